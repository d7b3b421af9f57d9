//! Errors between a text file and a batch. Each message says where, what was found and what to do.

use std::any::Any;
use std::path::{Path, PathBuf};

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read, written or renamed.
    #[error("{}: {action} failed: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the program was doing with it.
        action: &'static str,
        /// The operating system's error.
        #[source]
        error: std::io::Error,
    },
    /// An invalid setting or input; the text says what to do.
    #[error("{0}")]
    Invalid(String),
    /// A corpus file is unusable as a whole.
    #[error("{}: {problem}", path.display())]
    Corpus {
        /// The file.
        path: PathBuf,
        /// What was found and what to do.
        problem: String,
    },
    /// More rows are unusable than tolerated.
    #[error("{0}")]
    BadRows(String),
    /// A tokenizer cannot be loaded, trained, saved or applied.
    #[error("tokenizer{}: {problem}", path.as_deref().map(|p| format!(" {}", p.display())).unwrap_or_default())]
    Tokenizer {
        /// The file, if the tokenizer came from one.
        path: Option<PathBuf>,
        /// What was found and what to do.
        problem: String,
    },
    /// A token cache is truncated, foreign, damaged or out of date.
    #[error("token cache {}: {problem}; delete the file or run `prepare` again", path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// What was found and what was wanted.
        problem: String,
    },
    /// A worker thread panicked.
    #[error("a data worker panicked: {0}")]
    WorkerPanicked(String),
    /// The caller asked a failed loader for another batch.
    #[error("the loader stopped after an earlier error: {0}")]
    Stopped(String),
}

/// A result whose error is [`enum@Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an operating-system error with its file; for `map_err`.
    pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, action, error }
    }

    pub(crate) fn corpus(path: &Path, problem: impl Into<String>) -> Self {
        Self::Corpus { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn cache(path: &Path, problem: impl Into<String>) -> Self {
        Self::Cache { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn tokenizer(path: Option<&Path>, problem: impl Into<String>) -> Self {
        Self::Tokenizer { path: path.map(Into::into), problem: problem.into() }
    }

    /// Wraps a worker's panic, as `catch_unwind` returns it.
    pub fn from_panic(panic: Box<dyn Any + Send>) -> Self {
        Self::WorkerPanicked(panic_text(&*panic))
    }
}

/// Returns the message of a panic, as `catch_unwind` returns it.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}
