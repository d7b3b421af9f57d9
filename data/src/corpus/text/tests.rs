use std::fs;
use std::io::Write;

use super::*;

fn file(dir: &tempfile::TempDir, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a writable folder");
    fs::write(&path, contents).expect("a writable folder");
    path
}

fn config(format: TextFormat) -> TextConfig {
    TextConfig { format, max_bad_rows: 1.0, ..TextConfig::default() }
}

fn read(entries: &[PathBuf], config: &TextConfig) -> Result<(Vec<String>, RowReport)> {
    TextCorpus::open(entries, config)?.read_all()
}

fn documents(path: &Path, format: TextFormat) -> Vec<String> {
    read(&[path.into()], &config(format)).expect("a good text").0
}

fn error(entries: &[PathBuf], config: &TextConfig) -> String {
    read(entries, config).expect_err("a bad text").to_string()
}

#[test]
fn blank_lines_files_and_lines_divide_documents() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "\u{feff}\n \nOne\r\n  two\r\n\r\n\t\n\nthree \nfour\n\n\n";
    let path = file(&dir, "a.txt", text);
    assert_eq!(documents(&path, TextFormat::Auto), ["One\n  two", "three \nfour"]);
    assert_eq!(documents(&path, TextFormat::BlankLines), ["One\n  two", "three \nfour"]);
    assert_eq!(documents(&path, TextFormat::Lines), ["One", "  two", "three ", "four"]);
    assert_eq!(documents(&path, TextFormat::Files), ["\n \nOne\n  two\n\n\t\n\nthree \nfour"]);
    let other = file(&dir, "b.txt", "five");
    let (all, report) = read(&[other, path], &config(TextFormat::Files)).expect("good texts");
    assert_eq!((all.len(), all[0].as_str(), report.kept), (2, "five", 2));
}

#[test]
fn jsonl_has_the_text_in_a_field() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = "{\"text\":\"a\\n\\nb\",\"id\":{\"text\":\"no\"}}\n{\"text\":\" \"}\n{\"body\":\"c\"}\n{\"text\":7}\nno JSON\n\n";
    let path = file(&dir, "a.jsonl", lines);
    let (texts, report) = read(std::slice::from_ref(&path), &config(TextFormat::Auto)).expect("one is good");
    assert_eq!(texts, ["a\n\nb"]);
    assert_eq!((report.kept, report.empty, report.malformed), (1, 2, 3));
    let text = report.to_string();
    for problem in [
        "a.jsonl:2: the document has no text",
        "a.jsonl:3: no field \"text\": the row has \"body\"",
        "a.jsonl:4: field \"text\" is a number, wanted a string",
        "a.jsonl:5: not a JSON object: expected ident (byte 2)",
        "a.jsonl:6: the document has no text",
    ] {
        assert!(text.contains(problem), "{text}");
    }
    let nested = TextConfig { field: "page.body".into(), ..config(TextFormat::Jsonl) };
    let path = file(&dir, "nested", "{\"page\":{\"body\":\"deep\"}}");
    assert_eq!(read(&[path], &nested).expect("good").0, ["deep"]);
}

#[test]
fn folders_stand_for_their_files() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in
        [("b.txt", "2"), ("a/z.txt", "1"), ("a/.hidden", "no"), (".git/x", "no"), ("c.jsonl", "{\"text\":\"3\"}")]
    {
        file(&dir, &format!("texts/{name}"), text);
    }
    let folder = dir.path().join("texts");
    assert_eq!(documents(&folder, TextFormat::Auto), ["1", "2", "3"]);
    let corpus = TextCorpus::open(std::slice::from_ref(&folder), &config(TextFormat::Auto)).expect("three files");
    assert_eq!(corpus.files().len(), 3);
    fs::create_dir(dir.path().join("nothing")).expect("a writable folder");
    let text = error(&[dir.path().join("nothing")], &config(TextFormat::Auto));
    assert!(text.contains("nothing: has no files in it: name a folder with text"), "{text}");
    let text = error(&[dir.path().join("missing")], &config(TextFormat::Auto));
    assert!(text.contains("missing: opening the text failed"), "{text}");
    let text = error(&[], &config(TextFormat::Auto));
    assert!(text.contains("no text is named"), "{text}");
}

#[test]
fn tables_are_read_as_text_and_said_to_be() {
    let dir = tempfile::tempdir().expect("a folder");
    let page = file(&dir, "d.html", "<p>four</p>");
    let files = [file(&dir, "a.txt", "one"), file(&dir, "b.TSV", "two\tdue"), file(&dir, "c.csv", "three,tre"), page];
    let notes = |format| TextCorpus::open(&files, &config(format)).expect("four files").notes();
    let found = notes(TextFormat::Auto);
    assert!(found.len() == 2 && found[1].contains("d.html: read as plain text, tags included"), "{found:?}");
    assert!(found[0].contains("b.TSV, ") && found[0].contains("c.csv: read as plain"), "{found:?}");
    assert_eq!(notes(TextFormat::Lines), Vec::<String>::new(), "the user has decided");
}

#[test]
fn a_binary_file_among_texts_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    file(&dir, "texts/a.txt", "one");
    file(&dir, "texts/b.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01");
    let text = error(&[dir.path().join("texts")], &config(TextFormat::Auto));
    assert!(text.contains("b.png: looks like a PNG image, not like text: leave it out"), "{text}");
}

#[test]
fn compression_is_recognized_by_the_first_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "one\n\ntwo\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).expect("memory");
    let gzip = file(&dir, "a.txt.gz", gzip.finish().expect("memory"));
    let zstd = file(&dir, "b", zstd::encode_all(text.as_bytes(), 1).expect("memory"));
    for path in [gzip, zstd] {
        assert_eq!(documents(&path, TextFormat::Auto), ["one", "two"]);
    }
    let json = file(&dir, "c.jsonl.zst", zstd::encode_all(&b"{\"text\":\"x\"}"[..], 1).expect("memory"));
    assert_eq!(documents(&json, TextFormat::Auto), ["x"]);
}

#[test]
fn invalid_utf8_is_named_with_its_byte() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut text = b"good\n\nfirst line\r\ncaf\xe9 au lait\n\nalso good".to_vec();
    let path = file(&dir, "latin1.txt", &text);
    let (texts, report) = read(std::slice::from_ref(&path), &config(TextFormat::Auto)).expect("two are good");
    assert_eq!((texts.len(), report.malformed), (2, 1));
    let wanted = "latin1.txt:3: byte 4 of line 4 of the file, in this document, is 0xe9 (byte offset 21), not valid UTF-8: convert";
    assert!(report.to_string().contains(wanted), "{report}");
    assert_eq!(text[21], 0xe9);

    let strict = TextConfig { max_bad_rows: 0.1, ..config(TextFormat::Auto) };
    let refused = error(&[path], &strict);
    assert!(refused.contains("33.33 % of the rows cannot be used, 10.00 % are tolerated"), "{refused}");
    assert!(
        refused.contains(wanted) && refused.contains("or leave them out: --set data.text.max_bad_rows=0.34"),
        "{refused}"
    );

    // A file that is one document is refused as a whole.
    text.truncate(30);
    let refused = error(&[file(&dir, "one.txt", &text)], &config(TextFormat::Files));
    assert!(refused.contains("100.00 %") && refused.contains("one.txt:1: byte 4 of line 4 of the file"), "{refused}");
    let utf16 = error(&[file(&dir, "utf16.txt", [0xff, 0xfe, 65, 0])], &config(TextFormat::Auto));
    assert!(utf16.contains("is UTF-16, wanted UTF-8"), "{utf16}");
}

#[test]
fn empty_texts_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let empty = file(&dir, "empty.txt", "");
    let blank = file(&dir, "blank.txt", "\n \n\n");
    for format in [TextFormat::BlankLines, TextFormat::Lines] {
        let text = error(&[empty.clone(), blank.clone()], &config(format));
        assert!(text.starts_with("the text is empty: ") && text.ends_with("blank.txt has no documents"), "{text}");
    }
    let text = error(&[empty, blank], &config(TextFormat::Files));
    assert!(
        text.contains("0 of 2 rows kept, 2 empty") && text.contains("blank.txt:1: the document has no text"),
        "{text}"
    );
}

/// A document of more than two mebibytes, in lines of letters.
fn book() -> String {
    let line = |i: usize| format!("line {i}{}\n", " of a long book".repeat(i % 7));
    (0..40_000).map(line).collect()
}

#[test]
fn long_documents_are_cut_between_lines_and_put_together_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let book = book();
    let book = book.trim_end_matches('\n');
    assert!(book.len() > 2 << 20);
    for ends in ["\n", "\r\n"] {
        let text = format!("first\n\n{book}\n\n{book}\n\nlast").replace('\n', ends);
        let path = file(&dir, "book.txt", &text);
        assert_eq!(documents(&path, TextFormat::BlankLines), ["first", book, book, "last"]);
        let all = text.replace("\r\n", "\n");
        assert_eq!(documents(&path, TextFormat::Files), [all.as_str()]);

        let corpus = TextCorpus::open(&[path], &config(TextFormat::BlankLines)).expect("a text");
        let blocks: Vec<_> = corpus.blocks().map(|block| block.expect("readable")).collect();
        assert!(blocks.len() > 4);
        for block in &blocks {
            for part in block.document_parts(&corpus) {
                let part = part.expect("valid UTF-8");
                let text = part.text.expect("text");
                assert!(text.len() < (1 << 20) + 1000, "{}", text.len());
                if part.continues {
                    // Starts with the end of the line before.
                    let next = text.strip_prefix("\nline ").and_then(|text| text.split([' ', '\n']).next());
                    assert_eq!(Ok((part.line - 2) % 40_001), next.expect("a line").parse());
                }
            }
        }
    }
}

#[test]
fn millions_of_empty_rows_share_no_block() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = file(&dir, "empty.jsonl", "\n".repeat(500_000));
    let corpus = TextCorpus::open(&[path], &config(TextFormat::Jsonl)).expect("a text");
    let rows = corpus.blocks().map(|block| block.expect("readable").document_parts(&corpus).count());
    let rows: Vec<usize> = rows.collect();
    assert_eq!(rows.iter().sum::<usize>(), 500_000);
    assert!(rows.iter().all(|rows| *rows <= 1 << 16), "{rows:?}");
}

#[test]
fn invalid_utf8_deep_in_a_long_document_ends_everything() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut text = book().into_bytes();
    let at = 3 * text.len() / 4;
    text[at] = 0xff;
    let line = 1 + text[..at].iter().filter(|b| **b == b'\n').count();
    let error = error(&[file(&dir, "book.txt", &text)], &config(TextFormat::Files));
    assert!(
        error.contains(&format!("of line {line} of the file, in this document, is 0xff (byte offset {at})")),
        "{error}"
    );
}

#[test]
fn words_with_tags_are_read_as_text_and_said_to_be() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["a.conll", "a.conllu", "a.iob", "a.iob2", "a.bio"] {
        let universal = "1\tEU\t_\tX\t_\t_\t_\t_\t_\t_\n2\trejects\t_\tX\t_\t_\t_\t_\t_\t_\n";
        let words = if name == "a.conllu" { universal } else { "EU B-ORG\nrejects O\n" };
        let files = [file(&dir, name, words)];
        let notes = |format| TextCorpus::open(&files, &config(format)).expect("a file").notes();
        let [note] = &notes(TextFormat::Auto)[..] else { panic!("{name}: one note") };
        assert!(note.contains("read as plain text") && note.ends_with("--set data.text.format=records"), "{note}");
        assert_eq!(notes(TextFormat::Records), Vec::<String>::new());
        assert_eq!(documents(&files[0], TextFormat::Records), ["EU rejects"]);
    }
}

#[test]
fn a_path_into_a_list_names_a_field_that_is_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let rows = file(&dir, "a.jsonl", "{\"parts\": [\"a b\"], \"body\": \"c\"}\n{\"parts\": []}\n{\"parts\": []}\n");
    let config = |field: &str| TextConfig { field: field.into(), max_bad_rows: 0.1, ..TextConfig::default() };
    let text = error(std::slice::from_ref(&rows), &config("parts.0"));
    assert!(!text.contains("data.text.field=") && text.contains("no field \"parts.0\""), "{text}");
    assert!(error(&[rows], &config("part.0")).contains("data.text.field=body"));
}

#[test]
fn texts_in_lists_are_named_with_the_template_that_reads_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let posts =
        r#""posts": [{"by": "x", "body": "a long text of many words, and more"}, {"body": "and one more text"}]"#;
    let row = |title: &str| format!("{{{title}{posts}}}\n").repeat(2);
    let config = |field: &str| TextConfig { field: field.into(), ..TextConfig::default() };
    let template = "{% for x1 in posts or [] %}{% if x1.body %}{{ x1.body }}\\n{% endif %}{% endfor %}";

    let titled = file(&dir, "a.jsonl", row("\"title\": \"a title\", "));
    let refused = error(std::slice::from_ref(&titled), &config("text"));
    assert!(refused.contains("--set data.text.field=title\nthat leaves out 88 % of the text"), "{refused}");
    let both = format!("{{{{ title }}}}\\n{template}");
    assert!(refused.contains(&format!("--set 'data.text.field={both}'")), "{refused}");
    let (texts, _) = read(&[titled], &config(&both)).expect("the flag reads them");
    assert_eq!(texts[0], "a title\na long text of many words, and more\nand one more text\n");

    let untitled = file(&dir, "b.jsonl", row(""));
    let refused = error(std::slice::from_ref(&untitled), &config("text"));
    assert!(
        refused.ends_with(&format!("the text is in lists, which a template reads: --set 'data.text.field={template}'"))
    );
    read(&[untitled], &config(template)).expect("the flag reads them");
}
