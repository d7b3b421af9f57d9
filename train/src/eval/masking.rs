//! Masks of a run: hides tokens on the device for `task = "mlm"`.

use anyhow::{Context, Result, ensure};
use kiln_model::mlm::{MaskConfig, mask_tokens};
use kiln_model::{Batch, DropoutStream, TextBatch};

use crate::config::Config;
use crate::dataset::Vocabulary;

/// The label of a token that is not hidden.
pub(super) const NOT_MASKED: i32 = TextBatch::NOT_COUNTED;

/// How tokens are hidden.
#[derive(Debug, Clone, PartialEq)]
pub struct Masking(MaskConfig);

impl Masking {
    /// Returns the masks of a run, or `None` if its task is not mlm. Special tokens of the vocabulary are never hidden.
    ///
    /// # Errors
    /// If the vocabulary lacks the tokens that mlm needs.
    pub fn of(config: &Config, vocabulary: &Vocabulary) -> Result<Option<Self>> {
        let Some((tokenizer, select_share)) = vocabulary.text().zip(config.masked_share()) else { return Ok(None) };
        tokenizer.check(config.task)?;
        let mask_id = tokenizer.special().mask.context("a vocabulary for mlm has a mask token")?;
        let masks =
            MaskConfig { select_share, ..MaskConfig::new(mask_id, tokenizer.special_ids(), tokenizer.vocab_size()) };
        let problems = masks.validate();
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(Some(Self(masks)))
    }

    /// The probability that a token is hidden.
    pub fn share(&self) -> f64 {
        self.0.select_share
    }

    /// Returns the batch with hidden tokens, a pure function of `stream`; only hidden tokens are labels. Uses one site of
    /// `stream`.
    ///
    /// # Panics
    /// If `batch` holds pairs.
    pub fn mask(&self, batch: &Batch, stream: &DropoutStream) -> Batch {
        match batch {
            Batch::Text(batch) => Batch::Text(mask_tokens(batch, &self.0, stream)),
            Batch::Pairs(_) => panic!("tokens of pairs are not hidden"),
        }
    }
}
