//! Masked language modelling (Devlin et al. 2019, section 3.1): chooses the tokens that an encoder-only model must predict.
//!
//! The device chooses them, in a few operations over the whole batch, from a counter-based random stream. The same seed and
//! step mask the same tokens on every device and for any number of loader threads. The host reads nothing back.

use burn::tensor::{Bool, Int, Tensor};
use kiln_kernels::{DropoutStream, random_words};

use crate::batch::TextBatch;

/// How tokens are masked.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskConfig {
    /// Id of the mask token.
    pub mask_id: u32,
    /// Tokens that are never chosen: padding, start, end, separators, and the mask token itself.
    pub special_ids: Vec<u32>,
    /// Size of the vocabulary, from which random replacements are sampled uniformly.
    pub vocab_size: usize,
    /// Fraction of the tokens to predict, in (0, 1]; 0.15 is usual.
    pub select_share: f64,
    /// Fraction of the chosen tokens that the mask token replaces, in [0, 1]; 0.8 is usual.
    pub mask_share: f64,
    /// Fraction of the chosen tokens that a random token replaces, in [0, 1]; 0.1 is usual. The others stay as they are.
    pub random_share: f64,
}

impl MaskConfig {
    /// The fractions of BERT: 15 % are chosen; of these 80 % are masked, 10 % replaced, 10 % kept.
    pub fn new(mask_id: u32, special_ids: Vec<u32>, vocab_size: usize) -> Self {
        Self { mask_id, special_ids, vocab_size, select_share: 0.15, mask_share: 0.8, random_share: 0.1 }
    }

    /// Returns all problems of this configuration, or nothing if tokens can be masked.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.vocab_size == 0 || self.vocab_size > i32::MAX as usize {
            problems.push(format!("masking draws from a vocabulary of {} tokens", self.vocab_size));
        }
        for &id in self.special_ids.iter().chain([&self.mask_id]) {
            if id as usize >= self.vocab_size {
                problems.push(format!("the special token {id} is not one of the {} tokens", self.vocab_size));
            }
        }
        if !(self.select_share > 0.0 && self.select_share <= 1.0) {
            problems.push(format!("a share of {} of the tokens to guess is outside (0, 1]", self.select_share));
        }
        let (mask, random) = (self.mask_share, self.random_share);
        if !(mask >= 0.0 && random >= 0.0 && mask + random <= 1.0) {
            problems.push(format!("shares of {mask} masked and {random} replaced do not divide the chosen tokens"));
        }
        problems
    }
}

/// Returns how many of `n` tokens are chosen at most if each is chosen with probability `share`: rounded up to whole tiles of the
/// products, and `n` at most. More are chosen in fewer than one batch of 10^15 (Bernstein's inequality).
pub fn max_labels(n: usize, share: f64) -> usize {
    const TILE: usize = 128;
    // P(chosen > mean + t) <= exp(-t^2 / 2 / (variance + t / 3)), solved for t.
    let exponent = 15.0 * std::f64::consts::LN_10;
    let mean = n as f64 * share;
    let third = exponent / 3.0;
    let more = third + (third * third + 2.0 * exponent * mean * (1.0 - share)).sqrt();
    ((mean + more).ceil() as usize).next_multiple_of(TILE).min(n)
}

/// Masks tokens of `input` and keeps only their `labels`. All others become [`TextBatch::NOT_COUNTED`]. Labels that were not
/// counted before are never chosen. Uses one site of `stream`.
///
/// The head reads [`max_labels`] positions. If more were chosen, the last of them would not count.
///
/// A small batch may end up without a chosen token. Its loss and its number of labels are then 0.
///
/// # Panics
/// If [`MaskConfig::validate`] finds a problem.
pub fn mask_tokens(batch: &TextBatch, config: &MaskConfig, stream: &DropoutStream) -> TextBatch {
    let problems = config.validate();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let (input, labels) = (batch.input.clone(), batch.labels.clone());
    let [n] = input.dims();
    let words = random_words(n, stream);
    let word = |i: usize| words.clone().narrow(0, i, 1).reshape([n]);

    let chosen = word(0)
        .lower_elem(threshold(config.select_share))
        .bool_and(special(&input, &config.special_ids).bool_not())
        .bool_and(labels.clone().not_equal_elem(TextBatch::NOT_COUNTED));
    let fate = word(1);
    let masked = fate.clone().lower_elem(threshold(config.mask_share)).bool_and(chosen.clone());
    let replaced = fate
        .lower_elem(threshold(config.mask_share + config.random_share))
        .bool_and(masked.clone().bool_not())
        .bool_and(chosen.clone());
    let random = word(2).remainder_scalar(config.vocab_size as i64).cast(input.dtype());

    TextBatch {
        input: input.mask_where(replaced, random).mask_fill(masked, i64::from(config.mask_id)),
        labels: labels.mask_fill(chosen.bool_not(), i64::from(TextBatch::NOT_COUNTED)),
        max_labels: Some(max_labels(n, config.select_share)),
        ..batch.clone()
    }
}

/// The bound below which a fraction `share` of all 31-bit words lies.
pub(crate) fn threshold(share: f64) -> i64 {
    // One less than 2^31 at a share of 1, since the words are compared as 32-bit integers.
    ((share * 2_147_483_648.0) as i64).min(i64::from(i32::MAX))
}

/// Finds the tokens in `special` by two comparisons with constants per range of consecutive ids (BERT's are 0 and 100 to
/// 103), so that nothing is uploaded.
///
/// # Shapes
/// - `ids`: `[n]`; result the same
pub(crate) fn special(ids: &Tensor<1, Int>, special: &[u32]) -> Tensor<1, Bool> {
    let inside = |&(first, last): &(u32, u32)| {
        ids.clone().greater_equal_elem(i64::from(first)).bool_and(ids.clone().lower_equal_elem(i64::from(last)))
    };
    ranges(special).iter().map(inside).reduce(Tensor::bool_or).unwrap_or_else(|| ids.clone().lower_elem(i32::MIN))
}

/// First and last of each range of consecutive numbers, ascending.
fn ranges(ids: &[u32]) -> Vec<(u32, u32)> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some((_, last)) if id <= *last + 1 => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::{max_labels, ranges};

    #[test]
    fn special_ids_become_ranges() {
        assert_eq!(ranges(&[103, 0, 101, 100, 102, 101]), [(0, 0), (100, 103)]);
        assert_eq!(ranges(&[]), []);
    }

    #[test]
    fn more_labels_than_the_bound_are_eight_standard_deviations_away() {
        let bound = max_labels(32_768, 0.15);
        let deviation = (32_768.0 * 0.15 * 0.85_f64).sqrt();
        assert!(bound as f64 > 32_768.0 * 0.15 + 8.0 * deviation && bound < 32_768 / 5, "{bound}");
        assert_eq!([max_labels(32, 0.15), max_labels(1, 0.15), max_labels(5000, 1.0)], [32, 1, 5000]);
    }
}
