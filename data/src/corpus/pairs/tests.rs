use std::io::Write;

use super::*;
use crate::corpus::for_each_block;

fn file(dir: &tempfile::TempDir, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, contents).expect("a writable folder");
    path
}

fn lenient() -> CorpusConfig {
    CorpusConfig { max_bad_rows: 1.0, ..CorpusConfig::default() }
}

fn read(entries: &[PathBuf], config: &CorpusConfig) -> Result<(Vec<Example>, RowReport)> {
    PairCorpus::open(entries, config)?.read_all()
}

fn error(entries: &[PathBuf], config: &CorpusConfig) -> String {
    read(entries, config).expect_err("a bad corpus").to_string()
}

fn pair(source: &str, target: &str) -> Example {
    Example { source: source.into(), target: target.into() }
}

#[test]
fn jsonl_with_other_fields_escapes_and_line_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "\u{feff}{\"src\":\"a \\\"b\\\"\",\"id\":[1,{\"src\":\"no\"}],\"trg\":\"perch\\u00e9\"}\r\n{\"trg\":\"d\",\"src\":\"c\"}";
    let path = file(&dir, "a.jsonl", text);
    let (rows, report) = read(std::slice::from_ref(&path), &CorpusConfig::default()).expect("good rows");
    assert_eq!(rows, [pair("a \"b\"", "perché"), pair("c", "d")]);
    assert_eq!((report.kept, report.bad()), (2, 0));

    let config = CorpusConfig { source_field: "trg".into(), target_field: "src".into(), ..CorpusConfig::default() };
    assert_eq!(read(&[path], &config).expect("good rows").0[1], pair("d", "c"));
}

#[test]
fn fields_of_nested_objects() {
    let dir = tempfile::tempdir().expect("a folder");
    let path =
        file(&dir, "a.jsonl", "{\"translation\":{\"en\":\"a\",\"it\":\"b\"}}\n{\"translation\":{\"en\":\"a\"}}\n");
    let config =
        CorpusConfig { source_field: "translation.en".into(), target_field: "translation.it".into(), ..lenient() };
    let (rows, report) = read(&[path], &config).expect("one good row");
    assert_eq!(rows, [pair("a", "b")]);
    assert_eq!(report.shown[0].problem, "no field \"translation.it\": the row has \"translation\"");
}

#[test]
fn tsv_columns() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = file(&dir, "a.tsv", "one\tuno\tCC-BY\ntwo\n\tdue\n");
    let (rows, report) = read(std::slice::from_ref(&path), &lenient()).expect("one good row");
    assert_eq!(rows, [pair("one", "uno")]);
    assert_eq!((report.malformed, report.one_sided), (1, 1));
    assert_eq!(report.shown[0].problem, "no column 1 (counted from 0): the row has 1 tab-separated columns");
    let config = CorpusConfig { source_column: 2, target_column: 0, ..lenient() };
    assert_eq!(read(&[path], &config).expect("one good row").0, [pair("CC-BY", "one")]);
}

#[test]
fn a_key_twice_in_a_row_is_named_with_its_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "{\"src\":\"a\",\"trg\":\"b\",\"id\":1,\"id\":2}\n{\"src\":\"a\",\"trg\":\"b\",\"src\":\"c\"}\n";
    let (rows, report) = read(&[file(&dir, "a.jsonl", text)], &lenient()).expect("one good row");
    assert_eq!(rows, [pair("a", "b")]);
    assert_eq!((report.shown[0].line, report.shown[0].problem.contains("key \"src\" occurs twice")), (2, true));

    let text = "{\"t\":{\"en\":\"a\",\"it\":\"b\",\"en\":\"c\"}}\n{\"t\":{\"en\":\"a\"},\"t\":{\"it\":\"b\"}}\n\
                {\"t\":[1],\"x\":{}}\n{\"t\":{\"en\":\"a\",\"it\":\"b\",\"de\":{\"it\":1}}}\n";
    let path = file(&dir, "b.jsonl", text);
    let config = CorpusConfig { source_field: "t.en".into(), target_field: "t.it".into(), ..lenient() };
    let (rows, report) = read(&[path], &config).expect("one good row");
    assert_eq!(rows, [pair("a", "b")]);
    let problems: Vec<_> = report.shown.iter().map(|row| row.problem.as_str()).collect();
    assert!(
        problems[0].contains("key \"en\" occurs twice") && problems[1].contains("key \"t\" occurs twice"),
        "{problems:?}"
    );
    assert_eq!(problems[2], "no field \"t.en\": the row has \"t\", \"x\"");
}

#[test]
fn rows_with_other_fields_are_answered_with_flags_to_paste() {
    let dir = tempfile::tempdir().expect("a folder");
    let flags = |row: &str| error(&[file(&dir, "a.jsonl", format!("{row}\n"))], &CorpusConfig::default());
    let text = flags("{\"id\":1,\"target\":\"b\",\"source\":\"a\"}");
    assert!(text.ends_with("--set data.corpus.source_field=source --set data.corpus.target_field=target"), "{text}");
    let text = flags("{\"translation\":{\"en\":\"a\",\"it\":\"b\"}}");
    assert!(
        text.ends_with(
            "source_field=translation.en --set data.corpus.target_field=translation.it (or the other way round)"
        ),
        "{text}"
    );
    assert!(flags("{\"src\":\"\",\"trg\":\"b\"}").contains("correct them, or set data.corpus.format"));
}

#[test]
fn a_first_line_that_names_the_delimiter_is_not_a_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let named = CorpusConfig { source_field: "Text".into(), target_field: "ISO".into(), ..lenient() };
    for (name, start, delimiter) in [
        ("a.csv", "sep=;\r\n", ";"),
        ("b.csv", "\u{feff}sep=|\r\n", "|"),
        ("c.tsv", "sep=;\n", ";"),
        ("d.tsv", "\u{feff}SEP=\t\r\n", "\t"),
    ] {
        let rows = "Nr,Text,ISO\r\n1,3 May,05-03\r\n2,4 May,\r\n".replace(',', delimiter);
        let path = file(&dir, name, format!("{start}{rows}"));
        let (found, report) = read(std::slice::from_ref(&path), &named).expect("one good row");
        assert_eq!(found, [pair("3 May", "05-03")], "{name}");
        assert_eq!((report.rows(), report.shown[0].line), (2, 4), "{name}");
        let other = CorpusConfig { source_field: "Texte".into(), ..named.clone() };
        let text = error(&[path], &other);
        assert!(text.contains("no column \"Texte\": it has \"Nr\", \"Text\", \"ISO\""), "{text}");
    }

    let pipes = file(&dir, "p.csv", "one|uno\ntwo, three|due, tre\nfour|quattro\n");
    let text = error(&[pipes], &CorpusConfig::default());
    assert!(text.contains("`|` divides each of them") && text.contains("(echo 'sep=|'; cat "), "{text}");
    let plain = file(&dir, "e.csv", "sep=;\none;uno\ntwo;due\n");
    assert_eq!(read(&[plain], &CorpusConfig::default()).expect("two rows").0.len(), 2);
}

#[test]
fn tsv_with_a_header() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = CorpusConfig { source_field: "en".into(), target_field: "it".into(), ..CorpusConfig::default() };
    let path = file(&dir, "a.tsv", "id\tit\ten\r\n1\tuno\tone\r\n2\t\"due\ttwo\r\n");
    let (rows, report) = read(std::slice::from_ref(&path), &config).expect("good rows");
    assert_eq!(rows, [pair("one", "uno"), pair("two", "\"due")]);
    assert_eq!(report.rows(), 2, "the header is not a row");
    assert!(error(std::slice::from_ref(&path), &CorpusConfig::default()).contains("looks like a header"));
    let no = CorpusConfig { header: Header::No, ..CorpusConfig::default() };
    assert_eq!(read(&[path], &no).expect("three pairs").0[0], pair("id", "it"));
    let bad = file(&dir, "b.tsv", "it\ten\nuno\tone\ndue\n");
    let (_, report) = read(&[bad], &CorpusConfig { max_bad_rows: 1.0, ..config }).expect("one good row");
    assert_eq!(
        (report.shown[0].line, report.shown[0].problem.as_str()),
        (3, "no column 1 (counted from 0): the row has 1 tab-separated columns")
    );
}

#[test]
fn csv_with_quotes_line_breaks_and_other_delimiters() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "\u{feff}src,trg\r\n\"Hello, \"\"you\"\"\",\"Ciao\r\na te\"\r\n5\" pipe,tubo\r\nalone\r\n,vuoto\r\n";
    let (rows, report) = read(&[file(&dir, "a.csv", text)], &lenient()).expect("good rows");
    assert_eq!(rows, [pair("Hello, \"you\"", "Ciao\na te"), pair("5\" pipe", "tubo")]);
    let shown: Vec<_> = report.shown.iter().map(|row| (row.line, row.problem.as_str())).collect();
    assert_eq!(
        shown,
        [(5, "no column 1 (counted from 0): the row has 1 columns"), (6, "one-sided pair: the source is empty")]
    );

    let semicolons = file(&dir, "b.csv", "one, two;uno, due\nthree;tre\n");
    assert_eq!(read(&[semicolons], &CorpusConfig::default()).expect("good rows").0[0], pair("one, two", "uno, due"));
    let german = file(&dir, "e.csv", "source;target\na;b, c\nd, e, f;g\n");
    let named =
        CorpusConfig { source_field: "source".into(), target_field: "target".into(), ..CorpusConfig::default() };
    assert_eq!(read(&[german], &named).expect("good rows").0[1], pair("d, e, f", "g"));
    let named = CorpusConfig { format: CorpusFormat::Csv, ..CorpusConfig::default() };
    assert_eq!(read(&[file(&dir, "c.txt", "a,b\n\nc,d")], &named).expect("good rows").0.len(), 2);
    assert!(
        error(&[file(&dir, "d.csv", "English,Italian\nHi,Ciao\n")], &CorpusConfig::default()).contains("looks like")
    );
}

#[test]
fn quotes_that_are_not_closed_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = file(&dir, "a.csv", "a,b\n\"c,d\ne,f\n");
    let (rows, report) = read(&[path], &lenient()).expect("good rows");
    assert_eq!(rows, [pair("a", "b"), pair("e", "f")]);
    assert_eq!(report.shown[0].line, 2);
    assert!(
        report.shown[0].problem.starts_with("a quote (\") that opens in line 2 is not closed"),
        "{:?}",
        report.shown
    );
}

#[test]
fn a_line_with_an_open_quote_counts_as_a_bad_row_and_those_behind_it_are_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let good = |n: usize| -> String { (0..n).map(|i| format!("word {i},parola {i}\n")).collect() };
    let limits = CorpusConfig { max_bad_rows: 0.0001, ..CorpusConfig::default() };
    for (name, after) in [
        ("end.csv", good(2499)),
        ("later.csv", format!("{}\"x\",y\n{}", good(1999), good(500))),
        ("soon.csv", format!("{}\"x\",y\n{}", good(29), good(500))),
    ] {
        let path = file(&dir, name, format!("src,trg\n{}\"open,aperto\n{after}", good(500)));
        let (rows, report) = read(std::slice::from_ref(&path), &lenient()).expect("good rows");
        let found = (report.malformed, report.shown[0].line, rows.len());
        assert_eq!(found, (1, 502, 500 + after.lines().count()), "{name}: {report}");
        assert!(error(&[path], &limits).contains(&format!("{name}:502: a quote (\") that opens in line 502")));
    }

    // Quotes may span lines, stand in the middle of a text and be written twice.
    let sound = "src,trg\n\"one\ntwo \"\"x\"\"\",\"uno\n\ndue\"\n5\" pipe,\"tubo\"\n";
    let (rows, report) = read(&[file(&dir, "sound.csv", sound)], &limits).expect("good rows");
    assert_eq!((rows.len(), report.bad()), (2, 0), "{report}");
    // The line where the quote opens is not always the first one of its row.
    let path = file(&dir, "second.csv", format!("src,trg\none,uno\n\"one\ntwo\",\"open\n{}", good(300)));
    let (_, report) = read(&[path], &lenient()).expect("one good row");
    assert!(report.shown[0].problem.contains("opens in line 4"), "{report}");
}

#[test]
fn parallel_files_and_their_lengths() {
    let dir = tempfile::tempdir().expect("a folder");
    let (en, it) = (file(&dir, "a.en", "one\ntwo\n"), file(&dir, "a.it", "uno\ndue"));
    let both = PathBuf::from(format!("{},{}", en.display(), it.display()));
    let (rows, _) = read(std::slice::from_ref(&both), &CorpusConfig::default()).expect("good rows");
    assert_eq!(rows, [pair("one", "uno"), pair("two", "due")]);

    file(&dir, "a.it", "uno\n");
    let text = error(std::slice::from_ref(&both), &CorpusConfig::default());
    assert!(text.contains("a.en has 2 lines") && text.contains("a.it has 1"), "{text}");

    let config = CorpusConfig { format: CorpusFormat::Parallel, ..CorpusConfig::default() };
    assert!(error(&[en], &config).contains("two files joined by a comma"));
}

#[test]
fn compressed_files_whatever_their_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "{\"src\":\"a\",\"trg\":\"b\"}\n".repeat(20_000);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).expect("memory");
    let gzip = gzip.finish().expect("memory");
    // Two members one after the other, as `cat a.gz b.gz` makes.
    let path = file(&dir, "a.jsonl.gz", [&gzip[..], &gzip[..]].concat());
    assert_eq!(read(&[path], &CorpusConfig::default()).expect("good rows").0.len(), 40_000);
    let zstd = zstd::encode_all(text.as_bytes(), 1).expect("memory");
    for name in ["a.jsonl.zst", "b.jsonl"] {
        let path = file(&dir, name, &zstd);
        assert_eq!(read(&[path], &CorpusConfig::default()).expect("good rows").0.len(), 20_000);
    }
    let path = file(&dir, "cut.jsonl.gz", &gzip[..gzip.len() / 2]);
    let text = error(std::slice::from_ref(&path), &CorpusConfig::default());
    assert!(text.contains("cut.jsonl.gz") && text.contains("is cut short or damaged"), "{text}");
    // A frame that asks for a window of 2 GiB, more than zstd itself gives without being told to.
    let path = file(&dir, "wide.jsonl.zst", b"\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00a");
    let text = error(std::slice::from_ref(&path), &CorpusConfig::default());
    assert!(text.contains("wide.jsonl.zst") && text.contains("too much memory"), "{text}");
}

#[test]
fn bad_rows_are_counted_and_shown_with_file_and_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut text =
        b"{\"src\":\"a\",\"trg\":\"b\"}\n{\"src\":\"a\",\"trg\":\n{\"src\":\"a\"}\n{\"src\":1,\"trg\":\"b\"}\n"
            .to_vec();
    text.extend(b"[\"a\",\"b\"]\n{\"src\":\"\xe8\",\"trg\":\"b\"}\n\n{\"src\":\" \",\"trg\":\"\"}\n{\"src\":\"a\",\"trg\":\" \"}\n");
    text.extend(b"{\"src\":\"a\",\"trg\":\"b\"} x\n{\"src\":null,\"trg\":\"b\"}\n");

    let path = file(&dir, "bad.jsonl", text);
    let (rows, report) = read(std::slice::from_ref(&path), &lenient()).expect("tolerated");
    assert_eq!(rows.len(), 1);
    assert_eq!((report.kept, report.malformed, report.empty, report.one_sided), (1, 7, 2, 1));
    let shown: Vec<_> = report.shown.iter().map(|row| (row.line, row.problem.as_str())).collect();
    assert_eq!(
        shown,
        [
            (2, "not a JSON object: EOF while parsing a value (byte 17)"),
            (3, "no field \"trg\": the row has \"src\""),
            (4, "field \"src\" is a number, wanted a string"),
            (7, "both sides are empty"),
            (8, "both sides are empty"),
            (9, "one-sided pair: the target is empty"),
        ]
    );

    let text = error(&[path], &CorpusConfig::default());
    assert!(text.contains("bad.jsonl: 90.91 % of the rows cannot be used, 1.00 % are tolerated"), "{text}");
    assert!(text.contains("bad.jsonl:3: no field \"trg\""), "{text}");
}

#[test]
fn every_kind_of_malformed_row_says_what_was_found() {
    let parser = RowParser::new(&CorpusConfig::default());
    let problem = |line: &[u8]| parser.parse_jsonl(line).expect_err("a bad row").to_string();
    assert_eq!(problem(b"[1]"), "not a JSON object: invalid type: sequence, expected an object (byte 0)");
    assert_eq!(problem(b"{\"src\":\"a\",\"trg\":[\"b\"]}"), "field \"trg\" is an array, wanted a string");
    assert_eq!(problem(b"{\"src\":{},\"trg\":\"b\"}"), "field \"src\" is an object, wanted a string");
    assert_eq!(problem(b"{\"src\":true,\"trg\":\"b\"}"), "field \"src\" is a Boolean, wanted a string");
    assert_eq!(problem(b"{\"src\":null,\"trg\":\"b\"}"), "field \"src\" is null, wanted a string");
    assert_eq!(problem(b"{}"), "no field \"src\": the row has no fields");
    assert!(problem(b"{\"src\":\"a\",\"trg\":\"b\"} x").contains("trailing characters"));
    assert!(problem(b"{\"src\":\"caff\xe8\",\"trg\":\"b\"}").contains("byte 13 of the line is 0xe8, not valid UTF-8"));
}

#[test]
fn a_share_of_bad_rows_below_the_limit_is_tolerated() {
    let dir = tempfile::tempdir().expect("a folder");
    let good = "{\"src\":\"a\",\"trg\":\"b\"}\n".repeat(99);
    let path = file(&dir, "a.jsonl", format!("{good}{{}}\n"));
    assert_eq!(read(std::slice::from_ref(&path), &CorpusConfig::default()).expect("1 % is tolerated").0.len(), 99);
    let config = CorpusConfig { max_bad_rows: 0.009, ..CorpusConfig::default() };
    let text = error(&[path], &config);
    assert!(text.ends_with("or leave them out: --set data.corpus.max_bad_rows=0.01"), "{text}");
}

#[test]
fn whole_files_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = CorpusConfig::default();
    let text = error(&[dir.path().join("none.jsonl")], &config);
    assert!(text.contains("none.jsonl: opening the corpus failed: No such file"), "{text}");
    assert!(error(&[file(&dir, "empty.jsonl", "")], &config).contains("the corpus is empty: "));
    let text = error(&[file(&dir, "a.docx", "x")], &config);
    assert!(text.contains("has no known ending") && text.contains("--set data.corpus.format=tsv"), "{text}");
    assert!(
        error(&[dir.path().into()], &CorpusConfig { format: CorpusFormat::Tsv, ..config.clone() }).contains("folder")
    );
    assert!(error(&[], &config).contains("no corpus files are named"));
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01";
    for name in ["a.png", "a.jsonl", "a.tsv", "a.csv"] {
        let text = error(&[file(&dir, name, png)], &config);
        assert!(text.contains(&format!("{name}: looks like a PNG image, not like text")), "{text}");
    }
    let utf16: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let utf16 = file(&dir, "utf16.jsonl", [&[0xff, 0xfe], &utf16[..]].concat());
    assert!(error(&[utf16], &config).contains("is UTF-16, wanted UTF-8"));
    let all_bad = file(&dir, "bad.jsonl", "{}\n");
    assert!(error(&[all_bad], &lenient()).contains("100.00 % of the rows cannot be used"));
}

#[test]
fn millions_of_empty_rows_share_no_block() {
    let dir = tempfile::tempdir().expect("a folder");
    let corpus = PairCorpus::open(&[file(&dir, "a.jsonl", "\n".repeat(500_000))], &CorpusConfig::default());
    let (corpus, parser) = (corpus.expect("a corpus"), RowParser::new(&CorpusConfig::default()));
    let rows: Vec<usize> = corpus.blocks().map(|block| block.expect("readable").rows(&parser).count()).collect();
    assert_eq!(rows.iter().sum::<usize>(), 500_000);
    assert!(rows.iter().all(|rows| *rows <= 1 << 16), "{rows:?}");
}

#[test]
fn blocks_come_back_in_order_from_many_threads() {
    let dir = tempfile::tempdir().expect("a folder");
    let rows: String = (0..60_000).map(|i| format!("{{\"src\":\"s{i}\",\"trg\":\"t{i}\"}}\n")).collect();
    let corpus = PairCorpus::open(&[file(&dir, "a.jsonl", rows)], &CorpusConfig::default()).expect("a corpus");
    let parser = RowParser::new(corpus.config());
    let mut seen = Vec::new();
    let first_sources = |(): &mut (), block: PairBlock| {
        Ok(block.rows(&parser).map(|(line, row)| (line, row.expect("good").source.into_owned())).collect::<Vec<_>>())
    };
    for_each_block(
        corpus.blocks(),
        8,
        || (),
        first_sources,
        |block| {
            seen.extend(block);
            Ok(())
        },
    )
    .expect("good rows");
    assert_eq!(seen.len(), 60_000);
    assert!(seen.iter().zip(0..).all(|((line, source), i)| *line == i + 1 && *source == format!("s{i}")));
}

#[test]
fn errors_and_panics_of_any_thread_end_the_work() {
    let dir = tempfile::tempdir().expect("a folder");
    let rows = "{\"src\":\"a\",\"trg\":\"b\"}\n".repeat(100_000);
    let corpus = PairCorpus::open(&[file(&dir, "a.jsonl", rows)], &CorpusConfig::default()).expect("a corpus");
    let panics =
        for_each_block(corpus.blocks(), 4, || (), |(), _| -> Result<()> { panic!("broken {}", 7) }, |()| Ok(()));
    assert_eq!(panics.expect_err("a panic").to_string(), "a data worker panicked: broken 7");
    let refuse = |()| Err(Error::Invalid("enough".into()));
    assert_eq!(
        for_each_block(corpus.blocks(), 4, || (), |(), _| Ok(()), refuse).expect_err("refused").to_string(),
        "enough"
    );
}

#[test]
fn settings_that_cannot_work_are_all_named() {
    let config = CorpusConfig {
        source_field: String::new(),
        target_field: String::new(),
        source_column: 1,
        max_source_len: 1,
        max_bad_rows: 1.5,
        ..CorpusConfig::default()
    };
    assert_eq!(config.validate().len(), 6);
    assert!(CorpusConfig::default().validate().is_empty());
    assert!(serde_json::from_str::<CorpusConfig>("{\"sauce_field\":\"a\"}").is_err());
    assert_eq!(CorpusConfig { max_target_len: 9, ..CorpusConfig::default() }.resolved(64).max_source_len, 64);
}
