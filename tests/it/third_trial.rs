//! Stops of a linguist with small corpora: scores, tables with and without headers, and hints.

use std::fmt::Write;

use crate::kiln::Workplace;

/// "kůň" with each accent as a character of its own, as macOS and tools for field work write it.
const DECOMPOSED: &str = "ku\u{30a}n\u{30c}";
/// The same in one character per letter.
const COMPOSED: &str = "k\u{16f}\u{148}";

/// Rows of four columns with a number in front.
fn school(n: usize) -> String {
    (0..n).fold(String::new(), |mut text, i| {
        writeln!(text, "S{i}\tNumber {i} is here.\tQui sta il numero {i}.\tMK").expect("text");
        text
    })
}

/// Sets each key.
fn sets<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", *key]).collect()
}

#[test]
fn scores_compare_texts_in_the_unicode_form_that_the_model_writes() {
    let place = Workplace::new();
    let pairs =
        |word: &str| -> String { (0..60).map(|i| format!("horse {}\t{word} a {word} a {word}\n", i % 10)).collect() };
    let decomposed = place.write("decomposed.tsv", pairs(DECOMPOSED));
    let composed = place.write("composed.tsv", pairs(COMPOSED));
    for normalization in ["nfc", "none"] {
        let (run, form) = (format!("runs/{normalization}"), format!("tokenizer.normalization={normalization}"));
        let keys =
            ["data.valid=decomposed.tsv", "train.steps=150", "optim.lr=0.005", "tokenizer.vocab_size=300", &form];
        place.train(&[&["--run", &run, "decomposed.tsv"][..], &sets(&keys)].concat()).ok();
        let metrics = place.read(&format!("{run}/metrics.jsonl"));
        assert!(metrics.contains("\"exact_match\":1.0"), "{normalization}: {metrics}");
        let written = if normalization == "nfc" { COMPOSED } else { DECOMPOSED };
        assert!(metrics.contains(&format!("\"reference\":\"{written} a")), "{normalization}: {metrics}");

        let evaluate = |data: &std::path::Path| {
            let data = data.to_str().expect("UTF-8");
            place.run(&["evaluate", &run, "--device", "cpu", "--data", data]).ok().stdout
        };
        let (own, other) = (evaluate(&decomposed), evaluate(&composed));
        assert!(own.contains("exact match 100.00%"), "{normalization}: {own}");
        assert_eq!(own == other, normalization == "nfc", "{normalization}: {own}{other}");
    }
}

#[test]
fn rows_wider_or_narrower_than_their_header_are_named() {
    let place = Workplace::new();
    let rows = format!("id\tEnglish\tVeluni\tby\n{}S\tnote\tshifted\thither\tMK\nS\tHello.\tCiao.\n", school(60));
    place.write("rows.tsv", &rows);
    place.write("rows.csv", rows.replace('\t', ";"));
    let keys = ["data.corpus.source_field=English", "data.corpus.target_field=Veluni", "data.corpus.max_bad_rows=0.1"];
    for file in ["rows.tsv", "rows.csv"] {
        let ran = place.train(&[&["--dry-run", file][..], &sets(&keys)].concat()).ok();
        assert!(ran.stderr.contains("60 of 62 rows kept, 2 malformed"), "{ran:#?}");
        assert!(
            ran.stderr.contains(&format!("{file}:62: the row has 5 columns, and the header 4: "))
                && ran.stderr.contains(&format!("{file}:63: the row has 3 columns, and the header 4: ")),
            "{ran:#?}"
        );
    }

    // Without a header, further columns are ignored, whatever their number.
    let pairs: String = (0..60).map(|i| format!("Number {i}.\tNumero {i}.{}\n", "\tx".repeat(i % 3))).collect();
    place.write("pairs.tsv", pairs);
    let ran = place.train(&["--dry-run", "pairs.tsv"]).ok();
    assert!(ran.stderr.contains("60 of 60 rows kept"), "{ran:#?}");

    let labels: String = (0..60).map(|i| format!("text {i},{}\n", ["good", "bad"][i % 2])).collect();
    place.write("labels.csv", format!("text,label\n{labels}a text, with a comma,good\n"));
    let keys = sets(&["data.labels.max_bad_rows=0.1", "tokenizer.vocab_size=300"]);
    let ran = place.train(&[&["--dry-run", "--task", "classification", "labels.csv"][..], &keys].concat()).ok();
    assert!(ran.stdout.contains("labels.csv:62: the row has 3 columns, and the header 2"), "{ran:#?}");
}

#[test]
fn a_test_file_is_read_with_what_its_columns_are() {
    let place = Workplace::new();
    place.write("school.tsv", format!("id\tEnglish\tVeluni\tby\n{}", school(60)));
    place.write("no-header.tsv", school(20));
    let two: String = (0..20).map(|i| format!("Number {i} is here.\tQui sta il numero {i}.\n")).collect();
    place.write("two.tsv", two);
    let columns = ["data.corpus.source_column=1", "data.corpus.target_column=2", "data.corpus.header=yes"];
    let keys = [&columns[..], &["train.steps=8", "tokenizer.vocab_size=300"]].concat();
    let ran = place.train(&[&["--run", "runs/a", "school.tsv"][..], &sets(&keys)].concat()).ok();
    assert!(!ran.stderr.contains("does not look like a header"), "{ran:#?}");

    let evaluate = ["evaluate", "runs/a", "--device", "cpu", "--data"];
    let ran = place.run(&[&evaluate[..], &["no-header.tsv"]].concat()).ok();
    assert!(
        ran.stderr.contains("first row of no-header.tsv (\"S0\", \"Number 0 is here.\"")
            && ran.stderr.contains("if it is a pair: --set data.corpus.header=no"),
        "{ran:#?}"
    );
    let ran = place.run(&[&evaluate[..], &["no-header.tsv", "--set", "data.corpus.header=no"]].concat()).ok();
    assert!(ran.stderr.contains("on 20 pairs") && !ran.stderr.contains("look like a header"), "{ran:#?}");

    let narrow = place.run(&[&evaluate[..], &["two.tsv"]].concat());
    let flags = "--set data.corpus.source_column=0 --set data.corpus.target_column=1";
    narrow.refused(3, &["no column 2", "two.tsv has 2 columns: count those with the texts from 0, for example", flags]);
    let keys = sets(&["data.corpus.source_column=0", "data.corpus.target_column=1", "data.corpus.header=no"]);
    place.run(&[&evaluate[..], &["two.tsv"], &keys].concat()).ok();
}

#[test]
fn files_of_several_forms_are_answered_with_keys_that_serve_all() {
    let place = Workplace::new();
    place.write("school.tsv", format!("id\tEnglish\tVeluni\tby\n{}", school(60)));
    place.write("excel.csv", format!("Nr;Englisch;Veluni;Notiz\n{}", school(60).replace('\t', ";")));
    place.write("a.en", "one\ntwo\nthree\n".repeat(20));
    place.write("a.ve", "uno\ndue\ntre\n".repeat(20));
    let dry = ["--dry-run", "school.tsv", "excel.csv"];
    let fields = sets(&["data.corpus.source_field=English", "data.corpus.target_field=Veluni"]);
    let ran = place.train(&[&dry[..], &fields].concat());
    ran.refused(
        3,
        &["excel.csv", "no column \"English\"", "school.tsv has other names", "--set data.corpus.header=yes"],
    );
    let numbers = sets(&["data.corpus.source_column=1", "data.corpus.target_column=2", "data.corpus.header=yes"]);
    let ran = place.train(&[&dry[..], &["a.en,a.ve"], &numbers].concat()).ok();
    let note = "data.corpus.source_column and data.corpus.target_column do not apply to parallel files: a.en is the source and a.ve the \
                target; for the other direction: a.ve,a.en";
    assert!(ran.stdout.contains(note) && !ran.stderr.contains("look like a header"), "{ran:#?}");
    let ran = place.train(&["--dry-run", "a.en,a.ve"]).ok();
    assert!(!ran.stdout.contains("do not apply"), "{ran:#?}");
    // One file alone, or files with the same names, need no such advice.
    let ran = place.train(&[&["--dry-run", "excel.csv"][..], &fields].concat());
    assert!(!ran.stderr.contains("has other names"), "{ran:#?}");
}

#[test]
fn a_configuration_of_another_program_is_one_problem() {
    let place = Workplace::new();
    place.write("onmt.yaml", "data:\n  corpus_1:\n    path_src: a.en\ntrain_steps: 500\n");
    let ran = place
        .run(&["train", "--config", "onmt.yaml"])
        .refused(2, &["onmt.yaml:1: this is YAML", "a configuration is TOML"]);
    assert!(!ran.stderr.contains("problems"), "{ran:#?}");
}

#[test]
fn blank_texts_are_said_to_have_no_class() {
    let place = Workplace::new();
    let rows: String = (0..60).map(|i| format!("text {i},{}\n", ["good", "bad"][i % 2])).collect();
    place.write("rows.csv", format!("text,label\n{rows}"));
    let keys = sets(&["train.steps=6", "tokenizer.vocab_size=300"]);
    place.train(&[&["--task", "classification", "--run", "runs/a", "rows.csv"][..], &keys].concat()).ok();
    let classify = ["classify", "runs/a", "--device", "cpu"];
    let ran = place.run_with_input(&classify, "text 1\n\n \ntext 2\n").ok();
    assert_eq!(ran.stdout.lines().count(), 4, "a line for each line: {ran:#?}");
    assert!(ran.stderr.contains("note: 2 of 4 texts are blank"), "{ran:#?}");
    let ran = place.run_with_input(&classify, "text 1\ntext 2\n").ok();
    assert!(!ran.stderr.contains("blank"), "{ran:#?}");
}
