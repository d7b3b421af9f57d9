//! Data as people have it: folders, wildcards, tables and templates, from the command line.

use std::fs;
use std::path::Path;

use crate::kiln::{Ran, Workplace};

/// `kiln prepare` of `data` with a small vocabulary.
fn prepare(place: &Workplace, data: &str, set: &[&str]) -> Ran {
    let mut arguments =
        vec!["prepare", data, "--preset", "tiny", "--cache", "cache", "--set", "tokenizer.vocab_size=320"];
    arguments.extend(set.iter().flat_map(|set| ["--set", *set]));
    place.run(&arguments)
}

fn pairs(from: usize, n: usize) -> String {
    let row = |n| format!("{{\"src\": \"row number {n}\", \"trg\": \"riga numero {n}\"}}\n");
    (from..from + n).map(row).collect()
}

#[test]
fn wildcards_and_splits_of_a_folder_name_the_files() {
    let place = Workplace::new();
    for (name, rows) in [("train-0", pairs(0, 150)), ("train-1", pairs(150, 150)), ("test", pairs(300, 40))] {
        place.write(&format!("rows/{name}.jsonl"), rows);
    }
    let ran = prepare(&place, "rows/train-*.jsonl", &[]).ok();
    assert!(ran.stderr.contains("300 of 300 rows kept"), "{ran:#?}");
    let again = prepare(&place, "rows", &["data.valid=rows"]).ok();
    assert!(!again.stderr.contains("cache/train.tokens: built"), "the same files: {again:#?}");
    assert!(again.stderr.contains("40 of 40 rows kept") && !again.stderr.contains("warning"), "{again:#?}");

    prepare(&place, "rows/valid-*.jsonl", &[]).refused(2, &["data.train", "valid-*.jsonl"]);
    prepare(&place, "rows/train-0.jsonl", &["data.valid=rows/trian-*"]).refused(2, &["data.valid", "trian-*"]);
}

#[test]
fn templates_and_arrays_are_rows_and_mistakes_in_them_are_named() {
    let place = Workplace::new();
    let rows: Vec<_> = (0..200)
        .map(|n| serde_json::json!({"instruction": format!("Add one to {n}."), "input": [n], "output": {"text": format!("{}", n + 1)}}))
        .collect();
    place.write("rows.json", serde_json::to_string(&rows).expect("memory"));
    let fields = ["data.corpus.source_field={instruction}\\n{input}", "data.corpus.target_field=output.text"];
    let ran = prepare(&place, "rows.json", &fields).ok();
    assert!(ran.stderr.contains("200 of 200 rows kept"), "{ran:#?}");

    let broken = ["data.corpus.source_field={instruction", fields[1]];
    prepare(&place, "rows.json", &broken).refused(2, &["data.corpus.source_field", "write {name}"]);
    let missing = ["data.corpus.source_field={question}", fields[1]];
    prepare(&place, "rows.json", &missing).refused(3, &["rows.json:1", "no field \"question\"", "\"instruction\""]);
}

#[test]
fn a_table_is_data_of_labels() {
    let place = Workplace::new();
    let rows = |n: usize| -> String { (0..n).map(|n| format!("\"word, {n}\",{}\n", ["no", "yes"][n % 2])).collect() };
    place.write("labels.csv", format!("text,label\n{}", rows(200)));
    let files = ["data.train=labels.csv", "data.valid=labels.csv", "tokenizer.vocab_size=320", "train.steps=2"];
    let mut arguments = vec!["train", "--device", "cpu", "--task", "classification", "--run", "run", "--dry-run"];
    arguments.extend(files.iter().flat_map(|set| ["--set", *set]));
    let ran = place.run(&arguments).ok();
    let all = format!("{}{}", ran.stdout, ran.stderr);
    assert!(all.contains("2 classes: no 50.0%, yes 50.0%"), "{ran:#?}");
}

#[test]
fn a_parquet_table_is_read_or_the_feature_is_named() {
    let place = Workplace::new();
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/testdata/rows.parquet");
    fs::copy(table, place.path("rows.parquet")).expect("readable");
    let ran = prepare(&place, "rows.parquet", &["tokenizer.vocab_size=290"]);
    if cfg!(feature = "arrow") {
        assert!(ran.ok().stderr.contains("6 of 6 rows kept"));
    } else {
        ran.refused(3, &["rows.parquet", "--features arrow"]);
    }
}
