//! Pairs of texts with a label that is a number: a class, or a score, which no task predicts.

use super::rows::words;
use super::{CLASSES, N, PAIRS, command_in, dry, owned, ran, with_flags};
use crate::kiln::Workplace;

/// Names of two texts and of their label, and the label of a row.
type Case = ([&'static str; 3], fn(usize) -> String);

/// Rows with an id, two texts and a label, in a format.
fn written((names, label): Case, ending: &str) -> (Workplace, String) {
    let place = Workplace::new();
    let row = |n: usize| match ending {
        "jsonl" => format!(
            "{{\"id\": {n}, \"{}\": \"{}\", \"{}\": \"{}\", \"{}\": {}}}\n",
            names[0],
            words(n, "one"),
            names[1],
            words(n, "two"),
            names[2],
            label(n)
        ),
        _ => {
            let delimiter = if ending == "tsv" { "\t" } else { "," };
            [n.to_string(), words(n, "one"), words(n, "two"), label(n)].join(delimiter) + "\n"
        }
    };
    let delimiter = if ending == "tsv" { "\t" } else { "," };
    let head =
        if ending == "jsonl" { String::new() } else { ["id", names[0], names[1], names[2]].join(delimiter) + "\n" };
    let file = format!("a.{ending}");
    place.write(&file, head + &(0..N).map(row).collect::<String>());
    (place, file)
}

/// Returns the line of a message with the flags for the texts of a class.
fn flags_of(message: &str) -> String {
    message.lines().find(|line| line.contains("data.labels.text_field=")).expect("flags").to_owned()
}

#[test]
fn numbers_of_classes_next_to_two_texts_are_classes() {
    let cases: [(Case, &str); 3] = [
        ((["sentence1", "sentence2", "label"], |n| (n % 2).to_string()), "2 classes: "),
        ((["premise", "hypothesis", "label"], |n| (n % 3).to_string()), "3 classes: "),
        ((["question1", "question2", "is_duplicate"], |n| (n % 2).to_string()), "2 classes: "),
    ];
    for (case, wanted) in cases {
        for ending in ["csv", "tsv", "jsonl"] {
            let (place, file) = written(case, ending);
            for options in [PAIRS, CLASSES] {
                let refused = dry(&place, &file, &owned(options)).refused(3, &[]);
                assert!(!refused.stderr.contains("regression"), "{refused:?}");
                let line = flags_of(&refused.stderr);
                assert!(options == CLASSES || line.contains("--task classification"), "{line}");
                let read = dry(&place, &file, &with_flags(&owned(options), &line)).ok();
                assert!((read.stdout.clone() + &read.stderr).contains(wanted), "{read:?}");
                assert!(read.stdout.contains("one ") && read.stdout.contains("two "), "{read:?}");
            }
        }
    }
}

#[test]
fn scores_are_called_scores_and_come_with_the_command_for_a_few_classes() {
    let cases: [(Case, &str); 3] = [
        ((["sentence1", "sentence2", "score"], |n| format!("{:.1}", (n * 37 % 51) as f64 / 10.0)), "6 classes: "),
        ((["sentence1", "sentence2", "similarity"], |n| format!("{:.2}", (n % 11) as f64 / 10.0)), "6 classes: "),
        ((["text_a", "text_b", "relevance"], |n| format!("{}.5", n * 13 % 100)), "11 classes: "),
    ];
    for (case, wanted) in cases {
        for ending in ["csv", "tsv", "jsonl"] {
            let (place, file) = written(case, ending);
            for options in [PAIRS, CLASSES] {
                let said = ["numbers on a scale", "classes, not numbers (regression)"];
                let refused = dry(&place, &file, &owned(options)).refused(3, &said);
                // As they are.
                dry(&place, &file, &with_flags(&owned(options), &flags_of(&refused.stderr))).ok();

                let (command, rows) = command_in(&refused.stderr, &file).expect("a command");
                if !ran(&place, &command) {
                    return;
                }
                let line = refused.stderr.lines().find(|line| line.contains("rows.jsonl with --")).expect("flags");
                let read = dry(&place, &rows, &with_flags(&owned(options), line)).ok();
                assert!((read.stdout.clone() + &read.stderr).contains(wanted), "{command}\n{read:?}");
                assert!(read.stdout.contains("one ") && read.stdout.contains("two "), "{read:?}");
            }
        }
    }
}
