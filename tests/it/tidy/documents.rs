//! What documents name must exist: linked files and headings, paths, programs, and the tests that hold a promise.

use std::collections::BTreeSet;

use super::scan::{word_at, words};
use super::tree::{documents, files, read, root, sources};

/// Folders of the repository whose files documents name by their path.
const FOLDERS: [&str; 15] = [
    "lab/src/",
    "train/src/",
    "metrics/src/",
    "ranks/src/",
    "interchange/src/",
    "src/",
    "model/",
    "data/",
    "benches/",
    "tests/",
    "scripts/",
    "docs/",
    "examples/",
    "fuzz/",
    ".ci/",
];

/// Made by commands of the documents, and ignored by git.
const MADE: [&str; 1] = ["fuzz/corpus/"];

/// Endings of programs. Text, models and configurations that commands name are the reader's own.
const PROGRAMS: [&str; 3] = [".rs", ".py", ".sh"];

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut broken = String::new();
    for document in documents() {
        let text = read(&document);
        for link in links(&text) {
            if !leads_somewhere(&document, link) {
                broken.push_str(&format!("\n  {document}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere:{broken}");
}

#[test]
fn every_path_that_documents_and_help_name_exists() {
    let files = files(&[""]);
    let mut missing = String::new();
    let helps = helps(&kiln::cli::command(), "kiln");
    let read_documents = documents().into_iter().filter(|path| path != "CHANGELOG.md").map(|path| {
        let text = read(&path);
        (path, text)
    });
    for (place, text) in read_documents.chain(helps) {
        for path in named_paths(&text).into_iter().filter(|path| !exists(&files, &place, path)) {
            missing.push_str(&format!("\n  {place}: {path}"));
        }
    }
    assert!(missing.is_empty(), "no such files:{missing}");
}

#[test]
fn every_test_that_documents_name_exists() {
    let sources = sources();
    let functions: BTreeSet<&str> = sources.iter().flat_map(|source| names(&source.scanned.code, "fn")).collect();
    let mut missing = String::new();
    for document in documents() {
        let text = read(&document);
        for name in named_tests(&text).filter(|name| !functions.contains(name)) {
            missing.push_str(&format!("\n  {document}: {name}"));
        }
    }
    assert!(missing.is_empty(), "no such tests:{missing}");
}

/// The text of `--help` of a command and of its subcommands.
pub(super) fn helps(command: &clap::Command, name: &str) -> Vec<(String, String)> {
    let mut found = vec![(format!("{name} --help"), command.clone().render_long_help().to_string())];
    for subcommand in command.get_subcommands() {
        found.extend(helps(subcommand, &format!("{name} {}", subcommand.get_name())));
    }
    found
}

/// Targets of the links that stay in the repository.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target).filter(|target| !target.contains("://") && !target.contains(' ')).collect()
}

fn leads_somewhere(document: &str, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    let target = if path.is_empty() { document.to_owned() } else { normal(&format!("{folder}/{path}")) };
    let there = root().join(&target).exists();
    there && (anchor.is_empty() || !target.ends_with(".md") || anchors(&read(&target)).contains(anchor))
}

/// A path without `.` and `..`.
pub(super) fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings
        .map(|heading| {
            let kept = heading.to_lowercase().replace(' ', "-");
            kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
        })
        .collect()
}

/// Paths and programs in code spans, code blocks and `--help`: words below a folder of the repository, or with a program's ending.
fn named_paths(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || "_-./{},<>*$~".contains(c);
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches(['.', ',', '-']));
    let words = words.map(|word| word.strip_prefix("./").unwrap_or(word));
    let named = words.filter(|word| {
        let starts = FOLDERS.iter().any(|folder| word.starts_with(folder));
        let ends = PROGRAMS.iter().any(|ending| word.strip_suffix(ending).is_some_and(|stem| !stem.is_empty()));
        let is_placeholder = word.contains(['<', '>', '*', '$', '~']) || word.contains("NAME") || word.contains("...");
        let is_made = MADE.iter().any(|folder| word.starts_with(folder));
        (starts || ends) && !is_placeholder && !is_made
    });
    named.flat_map(alternatives).collect()
}

/// `a/{b,c}.rs` as two paths.
fn alternatives(word: &str) -> Vec<String> {
    let Some((before, rest)) = word.split_once('{') else { return vec![word.replace([',', '{', '}'], "")] };
    let Some((list, after)) = rest.split_once('}') else { return Vec::new() };
    list.split(',').flat_map(|item| alternatives(&format!("{before}{item}{after}"))).collect()
}

/// Whether a path leads to a file or folder: from the root, from the page that names it, or from some folder.
fn exists(files: &[String], place: &str, path: &str) -> bool {
    let folder = place.rsplit_once('/').map_or("", |(folder, _)| folder);
    let from_page = normal(&format!("{folder}/{path}"));
    let from_root = normal(path);
    root().join(&from_root).exists()
        || root().join(from_page).exists()
        || files.iter().any(|file| file.ends_with(&format!("/{from_root}")))
}

/// The names that follow `keyword` in code.
fn names<'a>(code: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    words(code, keyword).filter_map(move |at| word_at(code, at + keyword.len())).map(|(_, name)| name)
}

/// Code spans that can only be the name of a test: at least five words.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.split('`').skip(1).step_by(2);
    let spans = spans.map(|span| span.rsplit("::").next().unwrap_or(span));
    spans.filter(|span| {
        let is_name = span.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        is_name && span.matches('_').count() >= 4
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors_are_followed() {
        assert_eq!(links("[a](b.md) and [c](https://example.org/d) ![e](f.svg#g)"), ["b.md", "f.svg#g"]);
        assert!(anchors("# One page\n\n## What's `here`, then\n").contains("whats-here-then"));
        assert!(leads_somewhere("README.md", "Cargo.toml"));
        assert!(leads_somewhere("docs/reliability.md", "../README.md"));
        assert!(!leads_somewhere("docs/reliability.md", "README.md"));
        assert!(!leads_somewhere("README.md", "README.md#no-such-heading-in-it"));
    }

    #[test]
    fn paths_are_told_from_other_words() {
        let named = named_paths("`src/{a,b}.rs`, `torch.py`. See tests/it/NAME.rs, train.txt, and/or runs/<name>.py");
        assert_eq!(named, ["src/a.rs", "src/b.rs", "torch.py"]);
        let files = ["src/train/step.rs".to_owned()];
        assert!(exists(&files, "README.md", "step.rs") && exists(&files, "README.md", "train/step.rs"));
        assert!(!exists(&files, "README.md", "ep.rs"));
    }

    #[test]
    fn long_names_are_tests() {
        let text = "`train::tests::a_run_goes_on_again`, `train.save_every`, `max_grad_norm`";
        assert_eq!(named_tests(text).collect::<Vec<_>>(), ["a_run_goes_on_again"]);
    }
}
