//! The text: the documentation of this repository, with a vocabulary trained on it.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{Packing, TextConfig, TextCorpus, TextFormat, TextTokenizer, TokenizerConfig};

pub const BATCH_SIZE: usize = 4;
pub const SEQ_LEN: usize = 64;
const VOCAB_SIZE: usize = 512;

/// Token ids and labels of `BATCH_SIZE` rows of `SEQ_LEN`.
pub struct Batch {
    pub inputs: Vec<i32>,
    pub labels: Vec<i32>,
}

pub struct Text {
    pub documents: Vec<String>,
    pub corpus: TextCorpus,
    pub tokenizer: TextTokenizer,
    /// The tokens in front of a document in the input, and behind it in the labels.
    pub start: i32,
    pub end: i32,
    /// Holds the token cache.
    pub folder: tempfile::TempDir,
}

/// Every file is a document, and documents follow each other in full rows.
pub fn config() -> TextConfig {
    TextConfig { format: TextFormat::Files, packing: Packing::Stream, seq_len: SEQ_LEN, ..Default::default() }
}

impl Text {
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let paths: Vec<PathBuf> = ["README.md", "LICENSE-APACHE", "CHANGELOG.md"].map(|file| root.join(file)).into();
        let documents = paths.iter().map(read_document).collect::<Result<Vec<_>, _>>()?;

        let corpus = TextCorpus::open(&paths, &config())?;
        let vocabulary = TokenizerConfig { vocab_size: VOCAB_SIZE, ..Default::default() };
        let tokenizer = TextTokenizer::train(&vocabulary, &corpus, 2)?;
        let id = |token: &str| tokenizer.id(token).map(|id| id as i32).ok_or(format!("no {token} in the vocabulary"));
        let (start, end) = (id(&vocabulary.bos_token)?, id(&vocabulary.eos_token)?);
        Ok(Self { documents, corpus, start, end, tokenizer, folder: tempfile::tempdir()? })
    }

    pub fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    pub fn n_tokens(&self) -> usize {
        self.documents.iter().filter_map(|document| self.tokenizer.encode(document).ok()).map(|ids| ids.len()).sum()
    }
}

/// Returns the text of a file. Line breaks at its end are not part of a document.
fn read_document(path: &PathBuf) -> std::io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(text.trim_end_matches('\n').to_owned())
}
