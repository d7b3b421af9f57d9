//! The vocabulary of a run: its tokenizers.

use std::path::Path;

use anyhow::{Result, ensure};
use kiln_data::{PairTokenizers, Task, TextTokenizer};
use kiln_model::{Architecture, TransformerConfig};

use crate::config::task::{Reads, traits_of};

/// The tokenizers of a run, by its task.
#[derive(Debug, Clone)]
pub enum Vocabulary {
    /// Translation: the tokenizers of source and target, which may be the same.
    Pairs(PairTokenizers),
    /// lm and mlm: the tokenizer of the text.
    Text(TextTokenizer),
}

impl Vocabulary {
    /// Loads what [`Self::save`] wrote.
    pub fn load_dir(dir: &Path, task: Task) -> kiln_data::Result<Self> {
        Ok(match traits_of(task).reads {
            Reads::Pairs => Self::Pairs(PairTokenizers::load_dir(dir)?),
            Reads::Text => Self::Text(TextTokenizer::load_dir(dir)?),
        })
    }

    /// Writes `tokenizer.json` (or one each for source and target) and `tokenizer_config.json` into a folder.
    pub(crate) fn save(&self, dir: &Path) -> kiln_data::Result<()> {
        match self {
            Self::Pairs(tokenizers) => tokenizers.save(dir),
            Self::Text(tokenizer) => tokenizer.save(dir),
        }
    }

    /// Returns a fingerprint in hex: vocabularies with the same fingerprint give the same ids.
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Pairs(tokenizers) => tokenizers.fingerprint(),
            Self::Text(tokenizer) => tokenizer.fingerprint(),
        }
    }

    /// Returns the tokenizers of a run that translates.
    pub fn pairs(&self) -> Option<&PairTokenizers> {
        match self {
            Self::Pairs(tokenizers) => Some(tokenizers),
            Self::Text(_) => None,
        }
    }

    /// Returns the tokenizer of a run that learns from text.
    pub fn text(&self) -> Option<&TextTokenizer> {
        match self {
            Self::Pairs(_) => None,
            Self::Text(tokenizer) => Some(tokenizer),
        }
    }

    /// Fills in the model's settings that follow from the tokenizers: vocabulary sizes of 0 and the padding id. A size
    /// that is set may be larger than the tokenizer's.
    ///
    /// # Errors
    /// If a size is smaller than the tokenizer's, or if the model is not valid.
    pub fn complete(&self, model: &mut TransformerConfig) -> Result<()> {
        match self {
            Self::Pairs(tokenizers) => {
                model.pad_id = tokenizers.special().pad;
                let (source, target) = (tokenizers.source_vocab_size(), tokenizers.target_vocab_size());
                fill_in("source_", &mut model.source_vocab_size, source)?;
                fill_in("target_", &mut model.target_vocab_size, target)?;
            }
            Self::Text(tokenizer) => {
                // The model never reads padding, and GPT-2's vocabulary has no token for it.
                model.pad_id = tokenizer.special().pad.unwrap_or(0);
                let size = tokenizer.vocab_size();
                match model.architecture {
                    Architecture::EncoderOnly => fill_in("source_", &mut model.source_vocab_size, size)?,
                    _ => fill_in("target_", &mut model.target_vocab_size, size)?,
                }
                // There is one vocabulary, so both sizes are the same.
                let size = model.vocab_size();
                (model.source_vocab_size, model.target_vocab_size) = (size, size);
            }
        }
        let problems = model.validate();
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    }

    /// Refuses a model with fewer embedding rows than tokens. More rows are fine, because vocabulary sizes are rounded
    /// up.
    ///
    /// # Errors
    /// If a token has no row.
    pub fn check(&self, model: &TransformerConfig) -> Result<()> {
        let sides = match self {
            Self::Pairs(tokenizers) => vec![
                ("source ", tokenizers.source_vocab_size(), model.source_vocab_size),
                ("target ", tokenizers.target_vocab_size(), model.target_vocab_size),
            ],
            Self::Text(tokenizer) => vec![("", tokenizer.vocab_size(), model.vocab_size())],
        };
        for (side, found, wanted) in sides {
            ensure!(
                found <= wanted,
                "the tokenizer has {found} {side}tokens, the model {wanted}; the tokenizer does not belong to these weights"
            );
        }
        Ok(())
    }
}

fn fill_in(side: &str, size: &mut usize, found: usize) -> Result<()> {
    ensure!(
        *size == 0 || *size >= found,
        "model.{side}vocab_size is {size}, but the tokenizer has {found} tokens there; leave it at 0 to take the \
         tokenizer's, or raise it"
    );
    *size = (*size).max(found);
    Ok(())
}
