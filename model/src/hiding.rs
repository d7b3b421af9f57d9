//! Masked fine-tuning: hides tokens that a model only reads, so that it relies on less of its source.
//!
//! The device chooses them as [`mlm`](crate::mlm) does, from a counter-based random stream. What is to be predicted stays as it is.

use burn::tensor::{Bool, Int, Tensor};
use kiln_kernels::{DropoutStream, random_words};

use crate::batch::{PairBatch, TextBatch};
use crate::mlm::{special, threshold};

/// How tokens are hidden.
#[derive(Debug, Clone, PartialEq)]
pub struct HideConfig {
    /// Id of the token that stands in the place of a hidden one.
    pub token: u32,
    /// Tokens that are never hidden: padding, start, end, and codes of languages.
    pub special_ids: Vec<u32>,
    /// Fraction of the tokens to hide, in (0, 1).
    pub share: f64,
}

/// Hides tokens of the sources. Uses one site of `stream`.
pub fn hide_source(batch: &PairBatch, config: &HideConfig, stream: &DropoutStream) -> PairBatch {
    PairBatch { source: hide(&batch.source, None, config, stream), ..batch.clone() }
}

/// Hides tokens of a text that are not labels: questions, and whatever else counts in no loss. Uses one site of `stream`.
pub fn hide_prompt(batch: &TextBatch, config: &HideConfig, stream: &DropoutStream) -> TextBatch {
    let [n_rows, len] = batch.shape();
    // A token is the label of the position before it.
    let labels = batch.labels.clone().reshape([n_rows, len]);
    let first = labels.clone().narrow(1, 0, 1).full_like(TextBatch::NOT_COUNTED);
    let before = Tensor::cat(vec![first, labels.narrow(1, 0, len - 1)], 1).reshape([n_rows * len]);
    let are_labels = before.not_equal_elem(TextBatch::NOT_COUNTED);
    TextBatch { input: hide(&batch.input, Some(are_labels), config, stream), ..batch.clone() }
}

/// Hides tokens of a text whose labels are not its tokens: classes, or what a head of one's own predicts. Uses one site of `stream`.
pub fn hide_text(batch: &TextBatch, config: &HideConfig, stream: &DropoutStream) -> TextBatch {
    TextBatch { input: hide(&batch.input, None, config, stream), ..batch.clone() }
}

/// Hides some of `ids`, `[n]`, but not the `kept` ones.
fn hide(
    ids: &Tensor<1, Int>,
    kept: Option<Tensor<1, Bool>>,
    config: &HideConfig,
    stream: &DropoutStream,
) -> Tensor<1, Int> {
    let [n] = ids.dims();
    let word = random_words(n, stream).narrow(0, 0, 1).reshape([n]);
    let hidden = word.lower_elem(threshold(config.share)).bool_and(special(ids, &config.special_ids).bool_not());
    let hidden = match kept {
        Some(kept) => hidden.bool_and(kept.bool_not()),
        None => hidden,
    };
    ids.clone().mask_fill(hidden, i64::from(config.token))
}
