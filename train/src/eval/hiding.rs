//! Hides tokens that are only read in training, for `train.hidden_share`.

use anyhow::{Result, bail};
use kiln_model::hiding::{HideConfig, hide_prompt, hide_source, hide_text};
use kiln_model::{Batch, DropoutStream};

use crate::config::Config;
use crate::config::task::traits_of;
use crate::dataset::Vocabulary;

/// How tokens that are only read are hidden.
#[derive(Debug, Clone, PartialEq)]
pub struct Hiding {
    config: HideConfig,
    /// The labels of a text are tokens of it, which stay.
    learns_tokens: bool,
}

impl Hiding {
    /// Returns what a run hides, or `None` if `train.hidden_share` is 0. The token in the place of a hidden one is the mask token,
    /// or the unknown token in a vocabulary without masks.
    ///
    /// # Errors
    /// If the vocabulary has neither.
    pub fn of(config: &Config, vocabulary: &Vocabulary) -> Result<Option<Self>> {
        let share = config.train.hidden_share;
        if share == 0.0 {
            return Ok(None);
        }
        let (token, special_ids) = match vocabulary {
            Vocabulary::Pairs(tokenizers) => {
                let special = tokenizers.special();
                let ids = [special.pad, special.bos, special.eos, special.unk];
                (Some(special.unk), ids.into_iter().chain(tokenizers.before_source().iter().copied()).collect())
            }
            Vocabulary::Text(tokenizer) => {
                let special = tokenizer.special();
                (special.mask.or(special.unk), tokenizer.special_ids())
            }
        };
        let Some(token) = token else {
            bail!(
                "train.hidden_share = {share} needs a token in the place of hidden ones, and the vocabulary has neither a mask token nor an \
                 unknown token; set train.hidden_share=0"
            );
        };
        let learns_tokens = traits_of(config.task).continues_text;
        Ok(Some(Self { config: HideConfig { token, special_ids, share }, learns_tokens }))
    }

    /// Returns the batch with hidden tokens, a pure function of `stream`. Labels stay as they are. Uses one site of `stream`.
    pub fn hide(&self, batch: &Batch, stream: &DropoutStream) -> Batch {
        match batch {
            Batch::Pairs(batch) => Batch::Pairs(hide_source(batch, &self.config, stream)),
            Batch::Text(batch) if self.learns_tokens => Batch::Text(hide_prompt(batch, &self.config, stream)),
            Batch::Text(batch) => Batch::Text(hide_text(batch, &self.config, stream)),
        }
    }
}
