//! Heads that predict classes.

use serde::{Deserialize, Serialize};

use super::{Architecture, TransformerConfig};

/// The most classes of a model. More labels than that are texts.
const MOST_CLASSES: usize = 1 << 16;

/// The head of an encoder-only model that predicts classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassHead {
    /// None.
    #[default]
    None,
    /// A class per row: dropout and a projection of the pooler's output (Devlin et al. 2019). Needs the pooler.
    Pooled,
    /// A class per row: dropout, a dense layer with tanh, dropout and a projection of the first hidden state (RoBERTa).
    Dense,
    /// A class per token: dropout and a projection of each hidden state.
    Tokens,
}

impl TransformerConfig {
    /// The head for a class per row that the model's family has: RoBERTa's for one token type, else BERT's.
    pub fn row_head(&self) -> ClassHead {
        if self.n_token_types == 1 { ClassHead::Dense } else { ClassHead::Pooled }
    }

    /// Checks the head for classes against the other parts.
    pub(super) fn validate_classes(&self, problems: &mut Vec<String>) {
        if self.class_head == ClassHead::None {
            if self.n_classes > 0 {
                problems.push(format!(
                    "model.n_classes {} has no meaning without a head for them; set model.class_head, or model.n_classes = 0",
                    self.n_classes
                ));
            }
            return;
        }

        if self.architecture != Architecture::EncoderOnly {
            problems.push(
                "model.class_head is for model.architecture = \"encoder_only\"; set it to \"none\", or choose a preset of \
                 an encoder"
                    .to_owned(),
            );
        }
        if self.mlm_head {
            problems.push(
                "model.mlm_head = true predicts masked tokens, and model.class_head predicts classes; a model has one of \
                 the two: set model.mlm_head = false, or model.class_head = \"none\""
                    .to_owned(),
            );
        }

        if self.class_head == ClassHead::Pooled && !self.pooler {
            problems.push(
                "model.class_head = \"pooled\" reads what the pooler returns; set model.pooler = true, or model.class_head = \
                 \"dense\""
                    .to_owned(),
            );
        }
        if self.n_classes == 1 || self.n_classes > MOST_CLASSES {
            problems.push(format!(
                "model.n_classes {} is not between 2 and {MOST_CLASSES}; 0 takes the number of labels in the data",
                self.n_classes
            ));
        }
    }
}
