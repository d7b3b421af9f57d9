//! What can go wrong between a text file and a batch. Each message says where, what was found and what to do.

use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read, written or renamed.
    #[error("{}: {action} failed: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done to it.
        action: &'static str,
        /// What the operating system says.
        #[source]
        error: std::io::Error,
    },
    /// A setting or an input that cannot work; the text says what to do.
    #[error("{0}")]
    Invalid(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an operating-system error with its file; for `map_err`.
    pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, action, error }
    }
}
