//! Text pairs from files: JSONL, TSV and two parallel text files, plain or compressed.

mod config;

pub use config::{CorpusConfig, CorpusFormat};

/// A pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The text to read.
    pub source: String,
    /// The text to write.
    pub target: String,
}
