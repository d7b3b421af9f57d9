//! The repository's files, read once.

use std::fs;
use std::path::{Path, PathBuf};

use super::scan::{Function, Scanned, functions, scan, test_modules};

/// A Rust file.
pub(super) struct Source {
    /// From the root of the repository, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) scanned: Scanned,
    /// Compiled for tests only.
    pub(super) is_test: bool,
}

impl Source {
    /// The functions, and whether each is compiled for tests only.
    pub(super) fn functions(&self) -> Vec<(Function, bool)> {
        let bodies: Vec<_> = test_modules(&self.scanned.code).into_iter().filter_map(|module| module.body).collect();
        let is_test = |at: usize| self.is_test || bodies.iter().any(|body| body.contains(&at));
        let found = functions(&self.text, &self.scanned.code).into_iter();
        found.map(|function| (is_test(function.at), function)).map(|(test, function)| (function, test)).collect()
    }

    /// The number of lines outside modules for tests.
    pub(super) fn lines_without_tests(&self) -> usize {
        let bodies = test_modules(&self.scanned.code).into_iter().filter_map(|module| module.body);
        let in_tests: usize = bodies.map(|body| self.text[body].lines().count()).sum();
        self.text.lines().count() - in_tests
    }
}

pub(super) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the repository with one of these endings, sorted, as paths from its root.
pub(super) fn files(endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.retain(|path| endings.iter().any(|ending| path.ends_with(ending)));
    found.sort();
    found
}

/// What builds and runs leave in a clone, and hidden folders other than the two that belong to the repository.
fn is_foreign(name: &str) -> bool {
    let made = ["target", "runs", "corpora", "__pycache__"].contains(&name);
    made || (name.starts_with('.') && ![".ci", ".github"].contains(&name))
}

fn walk(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder that can be listed") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        // A symbolic link puts a file of another folder into a package; the file is read where it lies.
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            if !is_foreign(&name) {
                walk(&entry.path(), &format!("{path}/"), found);
            }
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

/// The documents that are checked: dated results and fixtures are history and stay as they are.
pub(crate) fn documents() -> Vec<String> {
    let mut found = files(&[".md"]);
    found.retain(|path| !path.starts_with("benches/results/") || path.ends_with("README.md"));
    found.retain(|path| !path.starts_with("tests/fixtures/"));
    found
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file of the repository.
pub(super) fn sources() -> Vec<Source> {
    let sources = files(&[".rs"]).into_iter().map(|path| {
        let text = read(&path);
        let scanned = scan(&text);
        let is_test = path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("tests.rs");
        Source { path, text, scanned, is_test }
    });
    let mut sources: Vec<Source> = sources.collect();

    let mut for_tests = Vec::new();
    for source in &sources {
        let folder = source.path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib");
        let modules = test_modules(&source.scanned.code).into_iter().filter(|module| module.body.is_none());
        for_tests.extend(modules.map(|module| format!("{folder}/{}", module.name)));
    }
    for source in &mut sources {
        let inside = |module: &String| {
            source.path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']))
        };
        source.is_test |= for_tests.iter().any(inside);
    }
    sources
}
