//! Every configuration key that a message, `--help` or a document names must exist, and must be named in full.

use std::collections::BTreeSet;

use super::PROGRAM;
use super::documents::helps;
use super::scan::test_modules;
use super::tree::{documents, read, sources};

/// Names that begin like a key and are something else: files, fields of other programs, methods.
const ENDINGS: [&str; 17] = [
    "json",
    "model",
    "jsonl",
    "tokens",
    "txt",
    "tsv",
    "csv",
    "toml",
    "safetensors",
    "pkl",
    "rs",
    "files",
    "py",
    "gz",
    "train",
    "valid",
    "tmp",
];

/// Sections of sections: a key of theirs without its section does not exist.
const INNER: [&str; 4] = ["corpus", "text", "loss_scale", "lora"];

/// Every key, from the page that a test compares with the code.
pub(super) fn all_keys() -> BTreeSet<String> {
    let page = read("docs/configuration.md");
    let tables = page.split("\n| key | default | unit | meaning |\n").skip(1);
    let rows = tables.flat_map(|table| table.lines().skip(1).take_while(|line| line.starts_with('|')));
    rows.filter_map(|line| line.split('`').nth(1)).map(str::to_owned).collect()
}

/// The words of `text` that look like keys and are none. A placeholder of a message (`optim.{key}`) stands for any key of
/// its section.
fn unknown_keys(text: &str, keys: &BTreeSet<String>) -> Vec<String> {
    let sections: BTreeSet<&str> =
        keys.iter().filter_map(|key| key.split_once('.')).map(|(section, _)| section).collect();
    let is_key = |word: &str| match word.split_once('{') {
        Some((section, _)) => keys.iter().any(|key| key.starts_with(section)),
        None => keys.contains(word) || keys.iter().any(|key| key.starts_with(&format!("{word}."))),
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.{}/-<>".contains(c);
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches(['.', '-']));
    let named = words.filter(|word| {
        let parts: Vec<&str> = word.split('.').collect();
        let is_name = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_{}".contains(c))
        };
        let is_file = parts.last().is_some_and(|last| ENDINGS.contains(last)) && !is_key(word);
        let begins = sections.contains(parts[0]) || INNER.contains(&parts[0]);
        parts.len() > 1 && begins && parts.iter().all(is_name) && !is_file
    });
    named.filter(|word| !is_key(word)).map(str::to_owned).collect()
}

#[test]
fn every_configuration_key_that_messages_name_exists() {
    let keys = all_keys();
    assert!(keys.len() > 90 && keys.contains("data.corpus.header"), "{keys:?}");
    let mut wrong = String::new();
    let mut n_literals = 0;

    // Tensors of other programs' models are called `model.norm.weight` and the like.
    let is_read = |path: &str| {
        PROGRAM.iter().chain(&["data/src/", "model/src/"]).any(|folder| path.starts_with(folder))
            && !path.starts_with("model/src/hf/")
    };
    for source in sources().into_iter().filter(|source| is_read(&source.path) && !source.is_test) {
        let tests: Vec<_> = test_modules(&source.scanned.code).into_iter().filter_map(|module| module.body).collect();
        let literals = source.scanned.literals.iter().filter(|at| !tests.iter().any(|body| body.contains(&at.start)));
        for literal in literals {
            n_literals += 1;
            for key in unknown_keys(&source.text[literal.clone()], &keys) {
                wrong.push_str(&format!("\n  {}: {key}", source.path));
            }
        }
    }

    // The style's examples of bad wording are no messages, and the crates' pages show Rust.
    let is_page = |path: &String| path == "README.md" || path.starts_with("docs/") && path != "docs/style.md";
    let pages = documents().into_iter().filter(is_page).map(|path| (path.clone(), read(&path)));
    for (place, text) in pages.chain(helps(&kiln::cli::command(), "kiln")) {
        let spans: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        let named = if place.ends_with(".md") { spans.join(" ") } else { text };
        for key in unknown_keys(&named, &keys) {
            wrong.push_str(&format!("\n  {place}: {key}"));
        }
    }
    assert!(n_literals > 1000, "{n_literals} literals");
    assert!(wrong.is_empty(), "no such keys, or not in full:{wrong}");
}

#[test]
fn keys_are_told_from_other_names() {
    let keys = all_keys();
    let unknown = |text: &str| unknown_keys(text, &keys);
    assert_eq!(
        unknown("correct corpus.format; corpus.max_bad_rows raises the limit"),
        ["corpus.format", "corpus.max_bad_rows"]
    );
    assert_eq!(unknown("set optim.learning_rate, trian.steps or train.step."), ["optim.learning_rate", "train.step"]);
    assert_eq!(unknown("data.corpus.{key} = 1, optim.{key}, data.corpse.{key}"), ["data.corpse.{key}"]);
    assert!(
        unknown("train.tokens, model.safetensors, text.txt, --set data.corpus.header=no, data.text, train.steps.")
            .is_empty()
    );
}
