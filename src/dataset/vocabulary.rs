//! The vocabulary of a run: of pairs, or of text.

use std::path::Path;

use anyhow::{Result, ensure};
use kiln_data::{PairTokenizers, Task, TextTokenizer};
use kiln_model::{Architecture, TransformerConfig};

/// The tokenizers of a run, by its task.
#[derive(Debug, Clone)]
pub enum Vocabulary {
    /// Translation: of both sides, one if they share it.
    Pairs(PairTokenizers),
    /// lm and mlm: of the text.
    Text(TextTokenizer),
}

impl Vocabulary {
    /// Loads what [`Self::save`] wrote.
    pub fn load_dir(dir: &Path, task: Task) -> kiln_data::Result<Self> {
        Ok(match task {
            Task::Translation => Self::Pairs(PairTokenizers::load_dir(dir)?),
            Task::Lm | Task::Mlm => Self::Text(TextTokenizer::load_dir(dir)?),
        })
    }

    /// Writes `tokenizer.json` (or one each for source and target) and `tokenizer_config.json` into a folder.
    pub fn save(&self, dir: &Path) -> kiln_data::Result<()> {
        match self {
            Self::Pairs(tokenizers) => tokenizers.save(dir),
            Self::Text(tokenizer) => tokenizer.save(dir),
        }
    }

    /// Equal fingerprints give equal ids; hex.
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Pairs(tokenizers) => tokenizers.fingerprint(),
            Self::Text(tokenizer) => tokenizer.fingerprint(),
        }
    }

    /// The tokenizers of pairs, of a run that translates.
    pub fn pairs(&self) -> Option<&PairTokenizers> {
        match self {
            Self::Pairs(tokenizers) => Some(tokenizers),
            Self::Text(_) => None,
        }
    }

    /// The tokenizer of text, of a run that learns from it.
    pub fn text(&self) -> Option<&TextTokenizer> {
        match self {
            Self::Pairs(_) => None,
            Self::Text(tokenizer) => Some(tokenizer),
        }
    }

    /// Fills in what the model takes from the tokenizers: vocabulary sizes of 0 and the padding id. Sizes that are set may
    /// be above the tokenizers'.
    pub fn complete(&self, model: &mut TransformerConfig) -> Result<()> {
        match self {
            Self::Pairs(tokenizers) => {
                model.pad_id = tokenizers.special().pad;
                let (source, target) = (tokenizers.source_vocab_size(), tokenizers.target_vocab_size());
                fill_in("source_", &mut model.source_vocab_size, source)?;
                fill_in("target_", &mut model.target_vocab_size, target)?;
            }
            Self::Text(tokenizer) => {
                // What fills rows is never looked at; GPT-2's vocabulary has no token for it.
                model.pad_id = tokenizer.special().pad.unwrap_or(0);
                let size = tokenizer.vocab_size();
                match model.architecture {
                    Architecture::EncoderOnly => fill_in("source_", &mut model.source_vocab_size, size)?,
                    _ => fill_in("target_", &mut model.target_vocab_size, size)?,
                }
                // One vocabulary: the other size says the same.
                let size = model.vocab_size();
                (model.source_vocab_size, model.target_vocab_size) = (size, size);
            }
        }
        let problems = model.validate();
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    }

    /// Refuses a model that has no row for a token. Rows that no token has are fine: vocabularies are rounded up.
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
