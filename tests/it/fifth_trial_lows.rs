//! Lesser stops of the fifth trial by newcomers: hints that did not fit, and files in place of others.

use crate::fifth_trial::{follow, with_classes, with_set};
use crate::kiln::Workplace;

#[test]
fn another_reading_of_the_text_is_named_and_kept_by_the_command_for_a_new_run() {
    let place = Workplace::new();
    let text: String = (0..200).map(|n| format!("line {n} of the text, and so on\n\n")).collect();
    place.write("train.txt", text);
    let keys = ["data.train=train.txt", "data.text.format=lines", "train.steps=6"];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "gpt2-tiny"], &keys)).ok();
    let resume = ["train", "--run", "runs/a", "--resume", "--device", "cpu", "--set", "train.steps=8"];
    let other = ["--set", "data.text.format=blank_lines", "--set", "data.text.packing=sentences"];
    let refused = place.run(&[&resume[..], &other].concat());
    for part in ["data.text.packing: ", "--allow data accepts it", "--set data.text.packing=sentences"] {
        assert!(refused.code != 0 && refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    let command = refused.stderr.split("kiln train --from").nth(1).expect("a command").trim();
    let arguments: Vec<&str> = ["train", "--from"].into_iter().chain(command.split(' ')).collect();
    place.run(&[&arguments[..], &["--device", "cpu", "--dry-run"]].concat()).ok();
    place.run(&[&resume[..], &other, &["--allow", "data"]].concat()).ok();
}

#[test]
fn data_in_place_of_a_configuration_is_answered_in_one_line() {
    let place = Workplace::new();
    let table: String = (0..2000).map(|n| format!("word {n};Wort {n}\r\n")).collect();
    place.write("pairs.csv", &table);
    place.write("pairs.en", &table);
    place.write("rows.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    for file in ["pairs.csv", "pairs.en", "rows.json"] {
        let ran =
            place.run(&["train", "--config", file]).refused(2, &["this is data", &format!("kiln train {file} reads")]);
        assert!(ran.stderr.lines().count() < 4, "{}", ran.stderr);
    }
    place.write("many.toml", "steps: 5\nlr = 1\n".repeat(1000));
    let ran = place.run(&["train", "--config", "many.toml"]).refused(2, &["lines from line"]);
    assert!(ran.stderr.lines().count() < 30, "{}", ran.stderr);
}

#[test]
fn a_model_folder_in_place_of_a_run_is_answered_with_the_import() {
    let place = Workplace::new();
    place.write("models/a/config.json", "{}");
    for command in [&["classify", "models/a", "x"][..], &["translate", "models/a"], &["evaluate", "models/a"]] {
        place
            .run_with_input(command, "x\n")
            .refused(2, &["models/a: there is no run here", "kiln import models/a makes a run of it"]);
    }
}

#[test]
fn rows_with_other_fields_are_classified_by_the_command_of_the_hint() {
    let place = Workplace::new();
    with_classes(&place);
    let nested = "{\"data\": {\"body\": \"t0 x\", \"id\": 1}}\n{\"data\": {\"body\": \"t1 x\", \"id\": 2}}\n";
    let words = "{\"doc's\": {\"words\": [\"w1\", \"b\"]}}\n{\"doc's\": {\"words\": [\"w2\", \"b\"]}}\n";
    for (run, rows, field) in [("runs/c", nested, "data.body"), ("runs/t", words, "doc's.words")] {
        let ran = place.run_with_input(&["classify", run, "--jsonl"], rows);
        assert!(ran.code != 0 && ran.stderr.contains(&format!("its field {field:?} is read with")), "{}", ran.stderr);
        assert_eq!(follow(&place, &ran.stderr, rows).len(), 2);
    }
}

#[test]
fn words_with_tags_are_named_to_a_classifier() {
    let place = Workplace::new();
    place.write("tags.txt", "Issue O\n#42 B-X\nfixed O\n\n#1999 B-X\nBob O\n\n".repeat(20));
    let ran = place.run(&["train", "tags.txt", "--task", "classification", "--dry-run", "--device", "cpu"]);
    assert!(ran.code != 0 && ran.stderr.contains("--task tagging reads them"), "{}", ran.stderr);
    std::fs::rename(place.path("tags.txt"), place.path("tags.conll")).expect("writable");
    place.run(&["train", "tags.conll", "--task", "tagging", "--dry-run", "--device", "cpu"]).ok();
}

#[test]
fn short_translations_are_compared_without_bleu() {
    let place = Workplace::new();
    let row = "{\"src\": \"uno\", \"trg\": \"one\"}\n";
    place.write("train.jsonl", row.repeat(80));
    place.write("valid.jsonl", row);
    for (run, vocabulary) in [("runs/a", "tokenizer.vocab_size=290"), ("runs/b", "tokenizer.vocab_size=280")] {
        let keys = [
            "data.train=train.jsonl",
            "data.valid=valid.jsonl",
            "train.steps=8",
            "train.validate_every=4",
            "train.translate_every=4",
            "model.max_positions=64",
            vocabulary,
        ];
        place.run(&with_set(&["train", "--run", run, "--device", "cpu", "--preset", "tiny"], &keys)).ok();
    }
    let said = "chrF2 and exact match tell more";
    let compared = place.run(&["compare", "runs/a", "runs/b"]).ok().stdout;
    assert!(compared.matches(said).count() == 1 && !compared.contains("Compare BLEU"), "{compared}");
    place.run(&["report", "runs/a", "--out", "a.html"]).ok();
    assert_eq!(place.read("a.html").matches(said).count(), 1);
}
