//! Heads that predict classes.

use serde::{Deserialize, Serialize};

use super::{Architecture, TransformerConfig};

/// The most classes of a model. More labels than that are texts.
const MOST_CLASSES: usize = 1 << 16;

/// The head of an encoder-only or decoder-only model that predicts classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassHead {
    /// None.
    #[default]
    None,
    /// Encoder-only. A class per row: dropout and a projection of the pooler's output (Devlin et al. 2019). Needs the pooler.
    Pooled,
    /// Encoder-only. A class per row: dropout, a dense layer with tanh, dropout and a projection of the first hidden state (RoBERTa).
    Dense,
    /// Encoder-only. A class per token: dropout and a projection of each hidden state.
    Tokens,
    /// Decoder-only. A class per row: a projection, without bias, of the hidden state of the last token that is not padding (GPT-2,
    /// Llama). It stands in place of the projection to the vocabulary.
    Last,
}

impl TransformerConfig {
    /// The head for a class per row that the model's family has: of encoders RoBERTa's for one token type, else BERT's.
    pub fn row_head(&self) -> ClassHead {
        match (self.architecture, self.n_token_types) {
            (Architecture::DecoderOnly, _) => ClassHead::Last,
            (_, 1) => ClassHead::Dense,
            _ => ClassHead::Pooled,
        }
    }

    /// Whether the model has a head for classes.
    pub fn has_classes(&self) -> bool {
        self.class_head != ClassHead::None
    }

    /// The classes or tokens that the model predicts.
    pub(crate) fn n_predicted(&self) -> usize {
        if self.has_classes() { self.n_classes } else { self.vocab_size() }
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

        problems.extend(self.misplaced_head().map(|why| format!("model.class_head {why}")));
        if self.mlm_head && self.architecture == Architecture::EncoderOnly {
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

    /// Says why a model of this architecture cannot have the head.
    fn misplaced_head(&self) -> Option<&'static str> {
        match (self.architecture, self.class_head) {
            (_, ClassHead::None) | (Architecture::DecoderOnly, ClassHead::Last) => None,
            (Architecture::EncoderOnly, ClassHead::Last) => Some(
                "= \"last\" is for model.architecture = \"decoder_only\"; an encoder has \"pooled\", \"dense\" or \"tokens\"",
            ),
            (Architecture::EncoderOnly, _) => None,
            (Architecture::DecoderOnly, ClassHead::Tokens) => Some(
                "= \"tokens\" is for model.architecture = \"encoder_only\": a decoder has not read what follows a word. It predicts \
                 classes of texts with \"last\"",
            ),
            (Architecture::DecoderOnly, _) => Some(
                "= \"pooled\" or \"dense\" is for model.architecture = \"encoder_only\"; a decoder has \"last\" (--preset \
                 classify-decoder)",
            ),
            (Architecture::EncoderDecoder, _) => Some(
                "is for model.architecture = \"encoder_only\" and \"decoder_only\"; set it to \"none\", or choose a preset of one \
                 of them",
            ),
        }
    }
}
