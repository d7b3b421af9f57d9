//! The mistakes and notes of a configuration, each with the place where its key was given.

use std::collections::BTreeMap;
use std::fmt;

use super::lines::in_a_file;

/// The place where a key was given.
#[derive(Clone)]
pub(super) struct Origin {
    /// Line of the file; `usize::MAX` for the command line.
    pub(super) line: usize,
    /// `file:line` or `--set key=value`.
    pub(super) text: String,
}

impl Origin {
    pub(super) fn command_line(text: String) -> Self {
        Self { line: usize::MAX, text }
    }
}

/// What the stages report.
#[derive(Default)]
pub(super) struct Report {
    /// Where each key was given.
    pub(super) origins: BTreeMap<String, Origin>,
    /// Each with its line, by which they are sorted.
    problems: Vec<(usize, String)>,
    /// Sentences about keys that were set twice, and about defaults that follow set keys.
    pub(super) notes: Vec<String>,
}

impl Report {
    pub(super) fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Reports a problem of the key that was given at `origin`.
    pub(super) fn problem(&mut self, origin: Option<&Origin>, problem: String) {
        self.problems.push(match origin {
            Some(origin) if origin.line < usize::MAX => {
                (origin.line, format!("{}: {}", origin.text, in_a_file(&problem)))
            }
            Some(origin) => (origin.line, format!("{}: {problem}", origin.text)),
            None => (usize::MAX, problem),
        });
    }

    /// Reports a problem that begins with its key.
    pub(super) fn problem_of_its_key(&mut self, problem: String) {
        let key = problem.split([' ', ':', '=', ',']).next().unwrap_or_default();
        let origin = self.origins.get(key).cloned();
        self.problem(origin.as_ref(), problem);
    }

    /// Returns all problems, in the order of their lines.
    pub(super) fn into_error(mut self) -> ConfigError {
        self.problems.sort_by_key(|(line, _)| *line);
        ConfigError { problems: self.problems.into_iter().map(|(_, problem)| problem).collect() }
    }

    /// Returns the place where `key`, a part of it or its section was given.
    pub(super) fn origin(&self, key: &str) -> Option<&Origin> {
        let below = format!("{key}.");
        self.origins
            .get(key)
            .or_else(|| self.origins.iter().find(|(given, _)| given.starts_with(&below)).map(|(_, origin)| origin))
            .or_else(|| self.origin(key.rsplit_once('.')?.0))
    }
}

/// All mistakes of a configuration. They are found before any work is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// One line per mistake: where, what was found, what to do.
    pub problems: Vec<String>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => f.write_str(problem),
            problems => {
                write!(f, "{} problems in the configuration", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}
