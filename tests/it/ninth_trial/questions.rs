//! Questions in several columns with one answer: hints read all of them, and train the answer.

use super::rows::words;
use super::{CHAT, LM, N, PAIRS, command_in, dry, owned, ran, with_flags};
use crate::kiln::Workplace;

/// Names of a question's first part, of its second part, and of its answer.
const NAMES: [[&str; 3]; 5] = [
    ["subject", "body", "answer"],
    ["Ticket Subject", "Ticket Description", "Resolution"],
    ["headline", "article", "summary"],
    ["title", "request", "reply"],
    ["subject", "message", "completion"],
];

/// A file of `N` rows with these names in a format. Some first parts are blank if `has_blanks`.
fn written(names: [&str; 3], ending: &str, has_blanks: bool) -> (Workplace, String) {
    let place = Workplace::new();
    let cells = |n: usize| {
        let first = if has_blanks && n % 5 == 3 { String::new() } else { words(n, "about") };
        [first, words(n, "ask"), words(n, "goodone"), ["web", "app"][n % 2].to_owned()]
    };
    let names = [&names[..], &["channel"]].concat();
    let object = |n: usize| {
        let fields = names.iter().zip(cells(n)).map(|(name, cell)| format!("{name:?}: {cell:?}"));
        format!("{{{}}}\n", fields.collect::<Vec<_>>().join(", "))
    };
    let rows: String = match ending {
        "jsonl" => (0..N).map(object).collect(),
        _ => {
            let delimiter = if ending == "tsv" { "\t" } else { "," };
            names.join(delimiter) + "\n" + &(0..N).map(|n| cells(n).join(delimiter) + "\n").collect::<String>()
        }
    };
    let file = format!("a.{ending}");
    place.write(&file, rows);
    (place, file)
}

/// Checks that the pair that a dry run shows has all of `read` in its source, nothing of `never`, and learns the answer.
fn is_trained(stdout: &str, read: &[&str], never: &[&str]) {
    let source = stdout.split_once("  source: ").expect("a source").1;
    let (source, target) = source.split_once("  target: ").expect("a target");
    assert!(read.iter().all(|word| source.contains(word)), "{stdout}");
    assert!(!never.iter().any(|word| source.contains(word)), "{stdout}");
    assert!(target.starts_with("goodone"), "{stdout}");
}

#[test]
fn all_columns_of_a_question_are_read_and_its_answer_is_learned() {
    for (number, names) in NAMES.into_iter().enumerate() {
        for ending in ["csv", "tsv", "jsonl"] {
            let (place, file) = written(names, ending, number == 0);
            for options in [PAIRS, LM] {
                if options == LM && ending != "jsonl" {
                    continue; // Plain text, which has a note.
                }
                let refused = dry(&place, &file, &owned(options)).refused(3, &["source_field", names[1], names[2]]);
                let line = |part: &str| refused.stderr.lines().find(|line| line.contains(part)).expect("a line");
                let both = dry(&place, &file, &with_flags(&owned(options), line("source_field="))).ok();
                assert!(both.stderr.contains(&format!("{N} of {N} rows kept")), "{both:?}");
                is_trained(&both.stdout, if number == 0 { &["ask "] } else { &["about ", "ask "] }, &["web", "app"]);

                // One column alone, as the message says.
                let alone = format!("to read \"{}\" alone: ", names[1]);
                let (_, flags) = line(&alone).split_once(&alone).expect("flags");
                let one = dry(&place, &file, &with_flags(&owned(options), flags)).ok();
                is_trained(&one.stdout, &["ask "], &["about "]);
            }
        }
    }
}

#[test]
fn a_conversation_gets_a_command_that_asks_with_all_columns() {
    for names in NAMES {
        for ending in ["csv", "jsonl"] {
            let (place, file) = written(names, ending, true);
            let refused = dry(&place, &file, &owned(CHAT)).refused(3, &["as one question", names[0], names[1]]);
            let (command, rows) = command_in(&refused.stderr, &file).expect("a command");
            if !ran(&place, &command) {
                return;
            }
            let text = place.read(&rows);
            let first = text.lines().next().expect("a row");
            assert!(first.contains("{\"prompt\":\"about ") && first.contains("\\nask "), "{first}");
            assert!(text.lines().all(|row| row.contains("\"completion\":\"goodone")), "{text}");
            assert!(text.lines().nth(3).expect("a row").contains("{\"prompt\":\"ask "), "{text}");
            let flags = refused.stderr.lines().find(|line| line.contains("rows.jsonl with --")).expect("flags");
            dry(&place, &rows, &with_flags(&owned(CHAT), flags)).ok();

            // Two fields alone.
            let line = refused.stderr.lines().next().expect("a line");
            dry(&place, &file, &with_flags(&owned(CHAT), line)).ok();
        }
    }
}

#[test]
fn a_table_that_is_read_as_plain_text_says_that_it_has_answers() {
    let (place, file) = written(NAMES[0], "csv", false);
    for options in [LM, &["--task", "mlm"]] {
        let read = dry(&place, &file, &owned(options)).ok();
        let said = read.stdout + &read.stderr;
        let note = said.lines().find(|line| line.contains("to learn to answer its questions: ")).expect("a note");
        let (_, flags) = note.split_once("questions: ").expect("flags");
        dry(&place, &file, &with_flags(&owned(options), flags)).refused(3, &["--set data.text.field=body,answer"]);
    }
    place.write("b.csv", "name,age\n".to_owned() + &(0..N).map(|n| format!("{n} a b,{n}\n")).collect::<String>());
    let read = dry(&place, "b.csv", &owned(LM)).ok();
    assert!(!(read.stdout + &read.stderr).contains("answer its questions"));
}

#[test]
fn a_column_that_the_user_has_named_stays() {
    for ending in ["csv", "jsonl"] {
        let (place, file) = written(NAMES[0], ending, false);
        let named = owned(&["--set", "data.corpus.source_field=body"]);
        let refused = dry(&place, &file, &named).refused(3, &["--set data.corpus.target_field=answer"]);
        assert!(!refused.stderr.contains("{{ subject }}"), "{refused:?}");
        let named = owned(&["--set", "data.corpus.target_field=answer"]);
        let refused = dry(&place, &file, &named).refused(3, &["{{ subject }}"]);
        let line = refused.stderr.lines().find(|line| line.contains("source_field=")).expect("flags");
        is_trained(&dry(&place, &file, &with_flags(&named, line)).ok().stdout, &["about ", "ask "], &[]);
    }
}
