//! Errors of the command line itself.

use std::fmt;

/// A command that cannot work as it was typed; the text says what to do.
#[derive(Debug)]
pub(super) struct Usage(pub String);

impl std::error::Error for Usage {}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Input that is not text.
#[derive(Debug, thiserror::Error)]
#[error(
    "line {line} of {name} is not UTF-8 (at its byte {byte}); convert it first, for example with iconv -f latin1 -t utf-8"
)]
pub(super) struct NotUtf8 {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) byte: usize,
}
