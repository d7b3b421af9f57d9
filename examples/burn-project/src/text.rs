//! The text: the documentation of this repository, with a vocabulary trained on it.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use kiln_data::{Packing, TextConfig, TextCorpus, TextFormat, TextTokenizer, TokenizerConfig};

use crate::model::Shape;

/// Entries of the vocabulary, which is trained on the text: no download.
const VOCAB_SIZE: usize = 512;

/// Token ids and labels of the rows of a batch, one behind the other.
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
    pub shape: Shape,
    /// Holds the token cache.
    pub folder: tempfile::TempDir,
}

/// Every file is a document, and documents follow each other in full rows.
pub fn config(shape: &Shape) -> TextConfig {
    TextConfig { format: TextFormat::Files, packing: Packing::Stream, seq_len: shape.seq_len, ..Default::default() }
}

impl Text {
    pub fn read(shape: Shape) -> Result<Self, Box<dyn Error>> {
        let root = project().join("../..");
        let mut paths: Vec<PathBuf> =
            ["README.md", "LICENSE-APACHE", "CHANGELOG.md"].map(|file| root.join(file)).into();
        let mut pages: Vec<PathBuf> =
            fs::read_dir(root.join("docs"))?.map(|file| Ok(file?.path())).collect::<std::io::Result<_>>()?;
        pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
        pages.sort();
        paths.extend(pages);
        let documents = paths.iter().map(read_document).collect::<Result<Vec<_>, _>>()?;

        let corpus = TextCorpus::open(&paths, &config(&shape))?;
        let vocabulary = TokenizerConfig { vocab_size: VOCAB_SIZE, ..Default::default() };
        let tokenizer = TextTokenizer::train(&vocabulary, &corpus, 2)?;
        let id = |token: &str| tokenizer.id(token).map(|id| id as i32).ok_or(format!("no {token} in the vocabulary"));
        let (start, end) = (id(&vocabulary.bos_token)?, id(&vocabulary.eos_token)?);
        Ok(Self { documents, corpus, start, end, tokenizer, shape, folder: tempfile::tempdir()? })
    }

    pub fn n_tokens(&self) -> usize {
        self.documents.iter().filter_map(|document| self.tokenizer.encode(document).ok()).map(|ids| ids.len()).sum()
    }
}

/// The folder of this project. A program that was built on another machine reads it from the environment, as Cargo sets it.
fn project() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// Returns the text of a file. Line breaks at its end are not part of a document.
fn read_document(path: &PathBuf) -> std::io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(text.trim_end_matches('\n').to_owned())
}
