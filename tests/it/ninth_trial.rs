//! Rows whose fields a hint must not mistake: what the command prints is followed to the end, and the right thing is trained.

mod columns;
mod questions;
mod rows;
mod scores;

use std::process::Command;

use self::rows::{approved, apps, bird, bool_q, discord, open_r1, points, spider, telegram, tree, ultra, wiki_sql};
use crate::followed_hints::dry;
use crate::kiln::{Ran, Workplace};

/// A file, a row made of a number, the options of the command, what a model reads, what it learns, and what it must not learn.
type Case =
    (&'static str, fn(usize) -> String, &'static [&'static str], &'static str, &'static str, &'static [&'static str]);

const CHAT: &[&str] = &["--task", "lm", "--set", "data.text.format=chat"];
const LM: &[&str] = &["--task", "lm"];
const CLASSES: &[&str] = &["--task", "classification"];
const TAGS: &[&str] = &["--task", "tagging"];
const PAIRS: &[&str] = &[];
/// Rows of a file.
const N: usize = 80;
/// Commands that follow one another, at most.
const MOST_STEPS: usize = 4;

const CASES: [Case; 22] = [
    ("a.jsonl", spider, PAIRS, "ask", "goodone", &["value"]),
    ("a.jsonl", spider, LM, "ask", "goodone", &["value"]),
    ("a.jsonl", spider, CHAT, "ask", "goodone", &["value"]),
    ("a.jsonl", bird, PAIRS, "ask", "goodone", &["simple"]),
    ("a.jsonl", bird, &["--set", "data.corpus.source_field=question"], "ask", "goodone", &["simple"]),
    ("a.jsonl", bird, CHAT, "ask", "goodone", &["simple"]),
    ("a.jsonl", wiki_sql, CHAT, "ask", "goodone", &["1-"]),
    ("a.jsonl", tree, PAIRS, "ask", "goodone", &["badone", "6f1d"]),
    ("a.jsonl", tree, CHAT, "ask", "goodone", &["badone", "6f1d"]),
    ("a.jsonl", discord, CHAT, "ask", "goodone", &["ask"]),
    ("a.jsonl", telegram, CHAT, "ask", "goodone", &["message"]),
    ("a.jsonl", open_r1, PAIRS, "ask", "goodone", &["badone"]),
    ("a.jsonl", open_r1, CHAT, "ask", "goodone", &["badone"]),
    ("a.jsonl", points, PAIRS, "ask", "goodone", &["ask"]),
    ("a.jsonl", points, CHAT, "ask", "goodone", &["ask"]),
    (
        "a.jsonl",
        points,
        &["--set", "data.corpus.source_field=document", "--set", "data.corpus.target_field=summary"],
        "ask",
        "goodone",
        &["ask"],
    ),
    ("a.jsonl", bool_q, CHAT, "passage", "yes", &["true"]),
    ("a.jsonl", bool_q, PAIRS, "passage", "yes", &["true"]),
    ("a.jsonl", apps, CHAT, "ask", "goodone", &["badone", "["]),
    ("a.jsonl", apps, PAIRS, "ask", "goodone", &["badone", "["]),
    ("a.jsonl", approved, CHAT, "ask", "goodone", &["badone"]),
    ("a.jsonl", approved, PAIRS, "ask", "goodone", &["badone"]),
];

fn owned(options: &[&str]) -> Vec<String> {
    options.iter().map(ToString::to_string).collect()
}

/// Returns the command of a message that makes new rows, with the file that it writes.
fn command_in(message: &str, file: &str) -> Option<(String, String)> {
    let start = ["jq -c", "python3 -c"].iter().filter_map(|program| message.find(program)).min()?;
    let text = &message[start..];
    let line = text.lines().next()?;
    // Messages on ratings leave the files to the user.
    if !text.contains("rows.jsonl") {
        return Some((format!("{} {file} > rated.jsonl", line.trim()), "rated.jsonl".to_owned()));
    }
    let new = if text.contains("> new-rows.jsonl") { "new-rows.jsonl" } else { "rows.jsonl" };
    let end = text.find(&format!("> {new}"))?;
    Some((format!("{}> {new}", &text[..end]), new.to_owned()))
}

/// Returns the words of a line as a shell has them: quoted ones have spaces.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() {
        let quoted = rest.strip_prefix('\'').and_then(|rest| rest.split_once('\''));
        let (word, behind) = quoted.or_else(|| rest.split_once(char::is_whitespace)).unwrap_or((rest, ""));
        words.push(word.trim_matches('\'').to_owned());
        rest = behind.trim_start();
    }
    words
}

/// Returns the options with the flags that a line of a message prints: a task and a key replace those before.
fn with_flags(options: &[String], line: &str) -> Vec<String> {
    let words = shell_words(line);
    let flags: Vec<[String; 2]> = words
        .windows(2)
        .filter(|pair| pair[0] == "--task" || pair[0] == "--set")
        .map(|pair| [pair[0].clone(), pair[1].clone()])
        .collect();
    let key = |pair: &[String]| {
        if pair[0] == "--task" { pair[0].clone() } else { pair[1].split('=').next().unwrap_or_default().to_owned() }
    };
    let kept = options.chunks(2).filter(|pair| !flags.iter().any(|flag| key(flag) == key(pair)));
    kept.flatten().cloned().chain(flags.iter().flatten().cloned()).collect()
}

/// Runs the command in the place; `false` without its program.
fn ran(place: &Workplace, command: &str) -> bool {
    let ran = Command::new("sh").args(["-c", command]).current_dir(place.path(".")).output().expect("a shell");
    assert!(ran.status.success() || ran.status.code() == Some(127), "{command}: {ran:?}");
    ran.status.success()
}

/// Follows what the command prints until rows are read, or compared with a run. `None` without a program that a command needs.
fn followed(place: &Workplace, file: &str, options: &[&str]) -> Option<(Ran, String, Vec<String>)> {
    let (mut file, mut options) = (file.to_owned(), owned(options));
    for _ in 0..MOST_STEPS {
        let found = dry(place, &file, &options);
        if found.code == 0 || found.stderr.contains("name a run with --from") {
            return Some((found, file, options));
        }
        let message = found.stderr;
        if let Some((command, new)) = command_in(&message, &file) {
            if !ran(place, &command) {
                return None;
            }
            file = new;
            let line = message.lines().find(|line| line.contains("rows.jsonl with --")).unwrap_or_default();
            options = with_flags(&options, line.split_once("rows.jsonl with").map_or("", |(_, flags)| flags));
        } else {
            let line =
                message.lines().find(|line| line.contains(" --")).unwrap_or_else(|| panic!("no way out: {message}"));
            assert!(!line.contains("=NAME"), "{message}");
            options = with_flags(&options, line);
        }
    }
    panic!("{file} {options:?}: still not read after {MOST_STEPS} steps")
}

#[test]
fn what_is_printed_for_rows_of_public_data_sets_trains_the_right_thing() {
    for (number, (file, row, options, read, learned, never)) in CASES.into_iter().enumerate() {
        let place = Workplace::new();
        place.write(file, (0..N).map(|n| row(n) + "\n").collect::<String>());
        let Some((ran, file, flags)) = followed(&place, file, options) else { return };
        let what = format!("{number} {options:?} {flags:?}\n{ran:#?}");
        let ran = ran.ok();
        let shown = ran.stdout.split("the first").last().expect("a row");
        let text = shown.split_once("learned: ").or_else(|| shown.split_once("target")).map_or("", |(_, text)| text);
        let text = text.lines().next().unwrap_or_default();
        assert!(shown.contains(read) && text.contains(learned), "{what}");
        assert!(never.iter().all(|word| !text.contains(word)), "{what}");
        // All rows, not only the shown one.
        let rows = if file == "a.jsonl" { String::new() } else { place.read(&file) };
        let bad = rows.lines().find(|row| row.contains("badone") && !row.contains("\"mapping\""));
        assert!(bad.is_none(), "{bad:?}\n{what}");
    }
}

#[test]
fn preferences_compare_answers_with_different_scores() {
    let place = Workplace::new();
    place.write("a.jsonl", (0..N).map(|n| ultra(n) + "\n").collect::<String>());
    for options in [PAIRS, LM, CHAT] {
        let Some((_, file, flags)) = followed(&place, "a.jsonl", options) else { return };
        let rows = place.read(&file);
        assert!(flags.contains(&"data.text.format=preferences".to_owned()), "{flags:?}");
        assert_eq!(rows.lines().count(), N - N / 4, "three of four rows have a better answer");
        let is_right = |row: &str| row.contains("\"chosen\":\"goodone") && row.contains("\"rejected\":\"badone");
        assert!(rows.lines().all(is_right), "{rows}");
    }
}
