//! What a verification has found, and which files it vouches for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The verdict on one part.
#[derive(Debug)]
pub(super) struct Finding {
    /// Its path, relative to the run folder if it is inside.
    pub(super) part: String,
    pub(super) verdict: Verdict,
}

#[derive(Debug)]
pub(super) enum Verdict {
    /// As it was written; the text describes its content.
    Sound(String),
    /// Not damaged, but worth knowing.
    Note(String),
    /// Damaged; the text says what is wrong and what to do.
    Damaged(String),
}

/// The findings on a folder, in order.
#[derive(Debug)]
pub(super) struct Findings {
    dir: PathBuf,
    found: Vec<Finding>,
    /// Files in which any change is found.
    vouched: BTreeSet<PathBuf>,
}

impl Findings {
    pub(super) fn of(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), found: Vec::new(), vouched: BTreeSet::new() }
    }

    pub(super) fn into_vec(self) -> Vec<Finding> {
        self.found
    }

    /// Adds a part that is as described, or damaged.
    pub(super) fn add(&mut self, path: &Path, result: Result<String>) {
        let verdict = match result {
            Ok(what) => Verdict::Sound(what),
            Err(error) => Verdict::Damaged(format!("{error:#}")),
        };
        self.push(path, verdict);
    }

    pub(super) fn note(&mut self, path: &Path, what: &str) {
        self.push(path, Verdict::Note(what.into()));
    }

    fn push(&mut self, path: &Path, verdict: Verdict) {
        let part = match self.shown(path) {
            part if part.is_empty() => path.display().to_string(),
            part => part,
        };
        self.found.push(Finding { part, verdict });
    }

    /// Vouches for a file: if any of its bits had changed, one of the findings would say so.
    pub(super) fn vouch_for(&mut self, path: impl Into<PathBuf>) {
        self.vouched.insert(path.into());
    }

    /// Names the files that no finding vouches for, because nothing records what they held.
    pub(super) fn name_the_rest(&mut self) {
        let mut rest: Vec<String> = Vec::new();
        for path in files_below(&self.dir) {
            let is_empty = fs::metadata(&path).is_ok_and(|file| file.len() == 0);
            if !is_empty && !self.vouched.contains(&path) {
                let name = self.shown(&path);
                // Folders without anything to compare with are named as a whole.
                let whole = ["tb", "non-finite"].into_iter().find(|folder| Path::new(&name).starts_with(folder));
                rest.push(whole.map_or(name, |folder| format!("{folder}/")));
            }
        }
        rest.dedup();
        if !rest.is_empty() {
            let verdict = Verdict::Note("nothing records what these files held".into());
            self.found.push(Finding { part: format!("not vouched for: {}", rest.join(", ")), verdict });
        }
    }

    /// Returns a path as messages name it.
    pub(super) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.dir).unwrap_or(path).display().to_string()
    }
}

/// Returns the entries of a folder by name; none if it cannot be listed.
pub(super) fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns every file below a folder, sorted.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries(dir).into_iter().flat_map(below).collect()
}
