//! Batches for language models: documents from a token cache, packed into rows.

mod rows;
mod source;

pub use source::TextSource;
