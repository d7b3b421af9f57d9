//! Names that the user sets for the columns of tables, and first lines that name the delimiter.

use crate::kiln::Workplace;

#[test]
fn names_of_columns_are_found_behind_a_line_of_excel_and_never_ignored() {
    let place = Workplace::new();
    let rows: String = (0..300).map(|n| format!("{n};Smith;number {n};il numero {n}\r\n")).collect();
    place.write("excel.csv", format!("\u{feff}sep=;\r\nNr;Kunde;Text (en);Text it\r\n{rows}"));
    place.write("plain.csv", &rows);
    let prepare = |file: &str, source: &str| {
        let source = format!("data.corpus.source_field={source}");
        let sets = ["--set", &source, "--set", "data.corpus.target_field=Text it", "--set", "tokenizer.vocab_size=300"];
        place.run(&[&["prepare", file, "--preset", "tiny", "--cache", "cache"][..], &sets].concat())
    };
    let ran = prepare("excel.csv", "Text (en)").ok();
    assert!(ran.stderr.contains("300 of 300 rows kept"), "{ran:#?}");
    let flags = "--set 'data.corpus.source_field=Text (en)' --set 'data.corpus.target_field=Text it'";
    prepare("excel.csv", "text_en").refused(3, &["excel.csv: the first row has no column \"text_en\"", flags]);
    prepare("plain.csv", "Text (en)").refused(3, &["no column \"Text (en)\"", "--set data.corpus.header=no"]);
}

#[test]
fn labelled_tables_with_other_names_get_flags() {
    let place = Workplace::new();
    let rows: String = (0..200).map(|n| format!("the message {n},{}\n", ["info", "error"][n % 2])).collect();
    place.write("logs.csv", format!("message,severity\n{rows}"));
    let train = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let begin = ["train", "--dry-run", "--device", "cpu", "--task", "classification", "--run", "run", "logs.csv"];
        place.run(&[&begin[..], &sets].concat())
    };
    let flags = "--set data.labels.text_field=message --set data.labels.label_field=severity";
    train(&[]).refused(3, &["logs.csv: the first row names the columns", flags]);
    train(&["data.labels.text_field=message", "data.labels.label_field=severity", "tokenizer.vocab_size=320"]).ok();
}
