//! Sentences of documents that are longer than `docs/style.md` allows. A colon and a semicolon end one, and code is one word.

use super::lists::Offence;
use super::tree::{documents, read};

const MAX_WORDS: usize = 25;

/// The number of long sentences in each document.
pub(super) fn count() -> Vec<Offence> {
    let counted = texts().map(|(path, text)| (path, long_sentences(&text).len()));
    counted.filter(|(_, number)| *number > 0).map(|(path, number)| Offence::new("sentence", number, path)).collect()
}

/// The numbers of long sentences and of all sentences.
pub(super) fn long_and_all() -> (usize, usize) {
    let all: Vec<String> = texts().flat_map(|(_, text)| all_sentences(&text)).collect();
    (all.iter().filter(|sentence| words(sentence) > MAX_WORDS).count(), all.len())
}

/// The documents whose sentences count, with their texts.
fn texts() -> impl Iterator<Item = (String, String)> {
    let counted = |path: &String| path != "CHANGELOG.md" && !path.starts_with("benches/");
    documents().into_iter().filter(counted).map(|path| (path.clone(), read(&path)))
}

fn long_sentences(text: &str) -> Vec<String> {
    all_sentences(text).into_iter().filter(|sentence| words(sentence) > MAX_WORDS).collect()
}

/// The sentences of a document's text, without tables and blocks of code.
fn all_sentences(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut in_code = false;
    for line in text.lines() {
        let line = line.trim_start();
        if line.starts_with("```") {
            in_code = !in_code;
            pieces.push(String::new());
        } else if in_code || line.starts_with('|') {
            continue;
        } else {
            let is_item = line.starts_with(['-', '*', '#']) || line.starts_with(|c: char| c.is_ascii_digit());
            if line.is_empty() || is_item {
                pieces.push(String::new());
            }
            let piece = pieces.last_mut().expect("one was pushed");
            piece.push_str(line);
            piece.push(' ');
        }
    }
    pieces.iter().flat_map(|piece| sentences(&without_code(piece))).filter(|sentence| !sentence.is_empty()).collect()
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().count()
}

/// Replaces code by one word, and links by their text.
fn without_code(text: &str) -> String {
    let code: String = text.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "x" }).collect();
    let mut plain = String::new();
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.replace('[', "")
}

fn sentences(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for word in text.split_whitespace() {
        let sentence = found.last_mut().expect("one was pushed");
        sentence.push_str(word);
        sentence.push(' ');
        if word.ends_with(['.', '!', '?', ':', ';']) {
            found.push(String::new());
        }
    }
    found
}

#[test]
fn long_sentences_are_found_in_text_alone() {
    let long = "word ".repeat(26);
    let text = format!(
        "# Title\n\n{long}.\n\n- {long}\n\n| {long} |\n\n```sh\n{long}\n```\n\nShort: `{long}` and [a link]({long}).\n"
    );
    assert_eq!(long_sentences(&text).len(), 2);
    let short = "word ".repeat(24);
    assert!(long_sentences(&format!("{short}end.\n{short}end; {short}end\n")).is_empty());
}
