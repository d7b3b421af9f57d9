//! Stops of the fifth trial by newcomers: resuming with other settings, several texts, classes, and hints.

use std::fs;

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

/// Pairs of numbers, each as two words and one.
fn pairs(range: std::ops::Range<usize>) -> String {
    range.map(|n| format!("word{n} of {n}\tparola{n} di {n}\n")).collect()
}

pub(crate) fn with_set<'a>(fixed: &[&'a str], keys: &[&'a str]) -> Vec<&'a str> {
    fixed.iter().copied().chain(SMALL.iter().chain(keys).flat_map(|key| ["--set", key])).collect()
}

/// A run of 20 steps on 300 pairs, validated every 10 steps.
fn trained(place: &Workplace) -> Vec<&'static str> {
    place.write("train.tsv", pairs(0..300));
    place.write("valid.tsv", pairs(300..330));
    place.write("other.tsv", pairs(400..440));
    let keys = ["data.train=train.tsv", "data.valid=valid.tsv", "train.steps=20", "train.validate_every=10"];
    let arguments = with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "tiny"], &keys);
    place.run(&arguments).ok();
    ["train", "--run", "runs/a", "--resume", "--device", "cpu"].to_vec()
}

fn notes(place: &Workplace) -> String {
    let text = place.read("runs/a/metrics.jsonl");
    text.lines().filter(|line| line.contains("\"kind\":\"note\"")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_resumed_run_keeps_its_share_of_an_epoch_with_other_batches_and_notes_what_changed() {
    let place = Workplace::new();
    let resume = trained(&place);
    let batch =
        ["--set", "loader.batch_tokens=1024", "--allow", "loader.batch_tokens,optim.lr", "--set", "optim.lr=0.0001"];
    // A run with nothing left to do keeps its configuration.
    let before = place.read("runs/a/config.toml");
    place.run(&[&resume[..], &batch].concat()).ok();
    assert_eq!(place.read("runs/a/config.toml"), before);

    let ran = place.run(&[&resume[..], &batch, &["--set", "train.steps=24"]].concat()).ok();
    let shown = format!("{}{}", ran.stdout, ran.stderr);
    for part in ["loader.batch_tokens = 1024 (was 256)", "optim.lr = 0.0001", "at the same share of it"] {
        assert!(shown.contains(part) && notes(&place).contains(part), "{part}: {shown}");
    }
    place.run(&[&resume[..], &["--set", "train.steps=26"]].concat()).ok();
}

#[test]
fn other_validation_text_begins_a_new_best_and_a_vocabulary_stays() {
    let place = Workplace::new();
    let resume = trained(&place);
    let other = ["--set", "data.valid=other.tsv", "--set", "tokenizer.vocab_size=299", "--set", "train.steps=40"];
    let ran = place.run(&[&resume[..], &other].concat()).ok();
    let shown = format!("{}{}", ran.stdout, ran.stderr);
    assert!(shown.contains("`best` is chosen anew") && shown.contains("tokenizer.vocab_size stays"), "{shown}");
    assert!(!place.read("runs/a/config.toml").contains("vocab_size = 299"));
    let best = place.read("runs/a/checkpoints/best");
    assert!(["step-00000030", "step-00000040"].contains(&best.trim()), "{best}");
    // The same text is no other text.
    let again = place.run(&[&resume[..], &["--set", "train.steps=42"]].concat()).ok();
    assert!(!format!("{}{}", again.stdout, again.stderr).contains("chosen anew"), "{again:?}");
}

#[test]
fn runs_on_other_validation_texts_are_not_compared_by_their_scores() {
    let place = Workplace::new();
    trained(&place);
    let keys = ["data.train=train.tsv", "data.valid=other.tsv", "train.steps=20", "train.validate_every=10"];
    place.run(&with_set(&["train", "--run", "runs/b", "--device", "cpu", "--preset", "tiny"], &keys)).ok();
    let other = place.run(&["compare", "runs/a", "runs/b"]).ok().stdout;
    assert!(other.contains("validation texts differ"), "{other}");
    let same = place.run(&["compare", "runs/a", "runs/a"]).ok().stdout;
    assert!(!same.contains("validation texts differ"), "{same}");
}

#[test]
fn patience_and_tables_of_tags_work_with_a_split() {
    let place = Workplace::new();
    place.write("train.tsv", pairs(0..300));
    let keys =
        ["data.train=train.tsv", "data.split=30", "train.patience=3", "train.validate_every=5", "train.steps=10"];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "tiny"], &keys)).ok();

    let rows: String = (0..60).map(|n| format!("\"[\"\"w{n}\"\", \"\"b\"\"]\",\"[\"\"O\"\", \"\"B\"\"]\"\n")).collect();
    place.write("tags.csv", format!("tokens,tags\n{rows}"));
    let tags = ["train", "--task", "tagging", "--dry-run", "--device", "cpu", "--set", "data.train=tags.csv"];
    let ran = place.run(&[&tags[..], &["--set", "data.split=0.2"]].concat()).ok();
    assert!(ran.stderr.contains("of 60 rows are for validation"), "{}", ran.stderr);
}

#[test]
fn wrong_bytes_are_named_in_the_file_that_has_them() {
    let place = Workplace::new();
    place.write("a.en", "one\ntwo\n".repeat(50));
    let mut italian = "uno\ndue\n".repeat(49).into_bytes();
    italian.extend(b"perch\xe9\ndue\n");
    place.write("a.it", italian);
    let ran = place.run(&["train", "--dry-run", "--device", "cpu", "--set", "data.train=a.en,a.it"]);
    let shown = format!("{}{}", ran.stdout, ran.stderr);
    assert!(shown.contains("line 99 of a.it: byte 6 of the line is 0xe9"), "{shown}");
}

#[test]
fn names_of_other_programs_are_answered_with_what_was_meant() {
    let place = Workplace::new();
    place.write("train.tsv", pairs(0..50));
    let dry = |key: &str| {
        let ran = place.run(&["train", "--dry-run", "--set", "data.train=train.tsv", "--set", key]);
        format!("{}{}", ran.stdout, ran.stderr)
    };
    assert!(dry("optimizer.lr=1").contains("called optim"));
    assert!(dry("data.max_length=50").contains("data.corpus.max_source_len"));
    let ran = place.run(&["generate", "runs/a", "--max-tokens", "20"]);
    assert!(ran.stderr.contains("--max-new-tokens"), "{}", ran.stderr);
    let ran = place.run(&["train", "--dry-run", "--set", "data.train=no/**/*.tsv"]);
    assert!(ran.stderr.contains("** is not read"), "{}", ran.stderr);
    place.write("model.gguf", "GGUF");
    let ran = place.run(&["import", "model.gguf"]);
    assert!(ran.code != 0 && ran.stderr.contains("llama.cpp"), "{}", ran.stderr);
}

/// A small run that classifies, and one that tags.
pub(crate) fn with_classes(place: &Workplace) {
    let texts: String =
        (0..40).map(|n| format!("{{\"text\": \"t{} x\", \"label\": \"{}\"}}\n", n % 2, n % 2)).collect();
    place.write("classes.jsonl", texts);
    let words: String =
        (0..40).map(|n| format!("{{\"tokens\": [\"w{n}\", \"b\"], \"tags\": [\"O\", \"B\"]}}\n")).collect();
    place.write("tags.jsonl", words);
    for (task, file, run) in [("classification", "classes.jsonl", "runs/c"), ("tagging", "tags.jsonl", "runs/t")] {
        let data = format!("data.train={file}");
        let fixed = ["train", "--task", task, "--run", run, "--device", "cpu", "--set", data.as_str()];
        let keys = ["model.d_model=32", "model.d_ff=64", "model.n_heads=2", "train.steps=3", "optim.warmup_steps=1"];
        let keys = keys.iter().flat_map(|key| ["--set", key]);
        place.run(&fixed.into_iter().chain(keys).collect::<Vec<_>>()).ok();
    }
}

#[test]
fn numbers_in_place_of_names_are_noted_and_new_classes_have_a_way() {
    let place = Workplace::new();
    let rows = |name: &dyn Fn(usize) -> String| -> String {
        (0..30).map(|n| format!("{{\"text\": \"t{n}\", \"label\": {}}}\n", name(n))).collect()
    };
    place.write("numbers.jsonl", rows(&|n| (n % 2).to_string()));
    place.write("others.jsonl", rows(&|n| if n % 3 == 0 { "\"new\"".into() } else { "\"bad\"".into() }));
    let dry = |file: &str| {
        let data = format!("data.train={file}");
        let fixed = ["train", "--task", "classification", "--dry-run", "--device", "cpu", "--set", &data];
        place.run(&[&fixed[..], &["--set", "data.labels.names=[\"bad\", \"good\"]"]].concat())
    };
    let noted = dry("numbers.jsonl").ok();
    assert!(noted.stdout.contains("0 is \"bad\""), "{noted:?}");
    let refused = dry("others.jsonl");
    assert!(refused.code == 3 && refused.stderr.contains("--set 'data.labels.names=[]'"), "{refused:?}");
}

#[test]
fn labelled_rows_have_statistics() {
    let place = Workplace::new();
    let rows: String =
        (0..30).map(|n| format!("{{\"text\": \"{}\", \"label\": \"{}\"}}\n", "a ".repeat(1 + n % 5), n % 2)).collect();
    place.write("rows.jsonl", rows);
    let stats = ["data", "stats", "--task", "classification", "--set", "data.train=rows.jsonl", "--svg", "lengths.svg"];
    let found = place.run(&stats).ok().stdout;
    for part in ["2 classes", "lengths in tokens: mean", "padding ", "per epoch"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert!(place.read("lengths.svg").starts_with("<svg"));
}

#[test]
fn arrays_words_in_columns_and_blank_rows_are_classified_or_answered() {
    let place = Workplace::new();
    with_classes(&place);
    let array = "[\n{\"text\": \"t0 x\"},\n{\"text\": \"t1 x\"}\n]\n";
    place.write("rows.json", array);
    for arguments in
        [&["classify", "runs/c"][..], &["classify", "runs/c", "--jsonl"], &["classify", "runs/c", "rows.json"]]
    {
        let ran = place.run_with_input(arguments, array);
        assert!(ran.code == 2 && ran.stderr.contains("json.load(open(0))"), "{arguments:?}: {}", ran.stderr);
        assert_eq!(follow(&place, &ran.stderr, array).len(), 2);
    }
    let conllu =
        "# text = a b\n1\ta\ta\tX\t_\t_\t0\t_\t_\t_\n2\tb\tb\tX\t_\t_\t0\t_\t_\t_\n\n1\tc\tc\tX\t_\t_\t0\t_\t_\t_\n\n";
    let ran = place.run_with_input(&["classify", "runs/t"], conllu);
    assert!(ran.code == 2 && ran.stderr.contains("awk"), "{}", ran.stderr);
    assert_eq!(follow(&place, &ran.stderr, conllu).len(), 2);

    let rows = "{\"text\": \"t0 x\"}\n{\"text\": \" \"}\n{\"text\": \"t1 x\"}\n";
    let ran = place.run_with_input(&["classify", "runs/c", "--jsonl"], rows).ok();
    assert!(ran.stdout.lines().count() == 3 && ran.stderr.contains("blank"), "{ran:?}");
    let utf16 = [0xff, 0xfe, b'a', 0, b'\n', 0];
    let ran = place.run_with_input(&["classify", "runs/c"], utf16);
    assert!(ran.stderr.contains("iconv -f utf-16 -t utf-8"), "{}", ran.stderr);
}

/// Runs the command that an error names, which prints JSON lines.
pub(crate) fn follow(place: &Workplace, error: &str, input: &str) -> Vec<Value> {
    let start = error.find("python3 -c").or_else(|| error.find("awk -F")).expect("a command");
    let end = error[start..].find("; to classify").map_or(error.len(), |end| start + end);
    let command = error[start..end].trim();
    let command = if command.contains(" < ") { command.to_owned() } else { format!("cat input | {command}") };
    printed(place, &command, input).lines().map(json).collect()
}

/// Returns what a command of the shell prints that has `input` in a file of this name.
fn printed(place: &Workplace, command: &str, input: &str) -> String {
    let kiln = env!("CARGO_BIN_EXE_kiln");
    let command = command.replace("| kiln ", &format!("| {kiln} "));
    fs::write(place.path("input"), input).expect("writable");
    let output = std::process::Command::new("sh").args(["-c", &command]).current_dir(place.path("")).output();
    let output = output.expect("sh is there");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"))
}

#[test]
fn words_that_begin_with_a_hash_and_columns_of_spaces_are_kept() {
    let place = Workplace::new();
    with_classes(&place);
    let conll = "# id = 1\nIssue\tO\n#42\tB\nfixed\tO\n\n#1999\tB\nBob\tO\n\n";
    let spaced = "-DOCSTART- O\n\nIssue O\n#42 B\nfixed O\n\n#1999 B\nBob O\n\n";
    let universal = "# newpar\n1\tIssue\tx\tX\t_\t_\t0\t_\t_\t_\n2\t#42\tx\tX\t_\t_\t0\t_\t_\t_\n3\tfixed\tx\tX\t_\t_\t0\t_\t_\t_\n\n\
                     1\t#1999\tx\tX\t_\t_\t0\t_\t_\t_\n2\tBob\tx\tX\t_\t_\t0\t_\t_\t_\n\n";
    for text in [conll, spaced, universal, &spaced.replace('\n', "\r\n")] {
        let ran = place.run_with_input(&["classify", "runs/t"], text);
        assert!(ran.code == 2 && ran.stderr.contains("awk"), "{}", ran.stderr);
        let sentences = follow(&place, &ran.stderr, text);
        let words: Vec<&Value> = sentences.iter().filter_map(|line| line["tokens"].as_array()).flatten().collect();
        assert_eq!(words, ["Issue", "#42", "fixed", "#1999", "Bob"], "{text}");
        assert!(sentences.iter().filter(|line| !line["tokens"][0].is_null()).count() == 2, "{sentences:?}");
    }
    let texts = "Two words\nAnd two\n\nOf each\n";
    assert_eq!(place.run_with_input(&["classify", "runs/t"], texts).code, 0, "sentences end in small letters");
}

#[test]
fn rows_to_translate_are_answered_with_what_reads_their_sources() {
    let place = Workplace::new();
    let rows: String = (0..80).map(|n| format!("{n};\"word{n} of {n}\";parola{n}\n")).collect();
    let table = format!("\u{feff}ID;Singular form;Plural\n{rows}");
    place.write("train.csv", &table);
    let keys = [
        "data.train=train.csv",
        "data.split=10",
        "data.corpus.source_field=Singular form",
        "data.corpus.target_field=Plural",
        "train.steps=10",
    ];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "tiny"], &keys)).ok();

    let named = place.run(&["translate", "runs/a", "train.csv"]);
    assert!(named.code == 2 && named.stderr.contains("kiln evaluate runs/a --data train.csv"), "{}", named.stderr);
    place.run(&["evaluate", "runs/a", "--data", "train.csv", "--hypotheses", "translations.txt"]).ok();
    assert_eq!(place.read("translations.txt").lines().count(), 80);

    let few = table.lines().take(4).map(|line| format!("{line}\n")).collect::<String>();
    let json = "{\"Singular form\": \"word1\"}\n{\"Singular form\": \"word2\"}\n{\"Singular form\": \"word3\"}\n";
    for text in [few.as_str(), json] {
        let ran = place.run_with_input(&["translate", "runs/a"], text);
        assert!(ran.code == 2 && ran.stderr.contains("\"Singular form\""), "{}", ran.stderr);
        let command = &ran.stderr[ran.stderr.find("python3").expect("a command")..];
        assert_eq!(printed(&place, &format!("cat input | {}", command.trim()), text).lines().count(), 3);
    }
    let columns = "word1\tparola1\nword2\tparola2\nword3\tparola3\n";
    let noted = place.run_with_input(&["translate", "runs/a"], columns).ok();
    assert!(noted.stderr.contains("cut -f1"), "{}", noted.stderr);
    let plain = place.run_with_input(&["translate", "runs/a"], "word1, of 1\nword2\nword3\n").ok();
    assert!(!plain.stderr.contains("as it stands"), "{}", plain.stderr);
}

#[test]
fn records_are_scored_as_records_by_a_run_on_plain_text() {
    let place = Workplace::new();
    let text: String = (0..200).map(|n| format!("line {n} of the text, and so on\n")).collect();
    place.write("train.txt", text);
    place.write("rows.jsonl", "{\"text\": \"line 1 of the text\"}\n{\"text\": \"line 2 of the text\"}\n");
    let keys = ["data.train=train.txt", "data.text.format=lines", "data.split=20", "train.steps=10"];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "gpt2-tiny"], &keys)).ok();
    let ran = place.run(&["evaluate", "runs/a", "--data", "rows.jsonl", "--device", "cpu"]).ok();
    assert!(ran.stderr.contains("read by its name"), "{ran:?}");
    let as_text = ["evaluate", "runs/a", "--data", "rows.jsonl", "--set", "data.text.format = lines"];
    let ran = place.run(&as_text).ok();
    assert!(!ran.stderr.contains("read by its name"), "a key that is set stays: {ran:?}");
    let tuned = ["train", "--from", "runs/a", "--set", "data.train=rows.jsonl", "--set", "data.split=0", "--dry-run"];
    let ran = place.run(&[&tuned[..], &["--device", "cpu"]].concat()).ok();
    assert!(ran.stdout.contains("read by its name") || ran.stderr.contains("read by its name"), "{ran:?}");
    assert!(!ran.stdout.contains("{\"text\""), "{}", ran.stdout);
}
