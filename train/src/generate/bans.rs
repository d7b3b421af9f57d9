//! Tokens that must not come next in a text because of the tokens that it has: n-grams that it would repeat, and bad words.
//!
//! As in `transformers`, beams keep the log-probabilities that their tokens had before the ban.

use std::collections::BTreeSet;

use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData, TensorReadError};

use super::batching::int_tensor;
use crate::metrics::host_sync::waiting;

/// What a text must not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bans {
    /// No n-gram of this many tokens occurs twice; 0: any may.
    pub no_repeat_ngram_size: usize,
    /// Sequences of tokens that do not occur.
    pub words: Vec<Vec<u32>>,
    /// The tokens in front of each row, which count; none: no row has any.
    pub given: Vec<Vec<u32>>,
}

impl Bans {
    /// Returns whether every token may follow.
    pub fn are_none(&self) -> bool {
        self.no_repeat_ngram_size == 0 && self.words.is_empty()
    }

    /// Returns the tokens that must not follow in each of the `rows`, given by its number and its tokens; nothing if every token may.
    pub(super) fn after_rows<'a>(&self, rows: impl Iterator<Item = (usize, &'a [u32])>) -> Vec<Vec<u32>> {
        if self.are_none() { Vec::new() } else { rows.map(|(row, tokens)| self.after(row, tokens)).collect() }
    }

    /// Returns the tokens that must not follow `tokens` in row `row`, in ascending order.
    pub fn after(&self, row: usize, tokens: &[u32]) -> Vec<u32> {
        if self.are_none() {
            return Vec::new();
        }
        let given = self.given.get(row).map_or(&[][..], Vec::as_slice);
        self.after_all(&[given, tokens].concat())
    }

    fn after_all(&self, tokens: &[u32]) -> Vec<u32> {
        let mut banned = BTreeSet::new();
        if let Some(before) = self.no_repeat_ngram_size.checked_sub(1)
            && let Some(start) = tokens.len().checked_sub(before)
        {
            let ngrams = tokens.windows(before + 1).filter(|ngram| ngram[..before] == tokens[start..]);
            banned.extend(ngrams.map(|ngram| ngram[before]));
        }
        for word in &self.words {
            let Some((last, first)) = word.split_last() else { continue };
            // As in transformers, a word that is longer than the text so far may begin it.
            if first.is_empty() || (word.len() <= tokens.len() && tokens.ends_with(first)) {
                banned.insert(*last);
            }
        }
        banned.into_iter().collect()
    }
}

/// Tokens that each row of some logits must not get.
pub(super) struct Banned<'a> {
    rows: &'a [Vec<u32>],
    /// The longest of the rows.
    width: usize,
}

impl<'a> Banned<'a> {
    /// Returns `None` if every row may get every token.
    pub(super) fn of(rows: &'a [Vec<u32>]) -> Option<Self> {
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        (width > 0).then_some(Self { rows, width })
    }

    /// Makes the tokens impossible. Rows beyond the banned ones stay as they are.
    ///
    /// # Shapes
    /// - `logits`, result: `[rows, V]`; the result is in f32
    pub(super) fn mask(&self, logits: Tensor<2>) -> Tensor<2> {
        let ([n_rows, _], device) = (logits.dims(), logits.device());
        let mut values = vec![0.0_f32; n_rows * self.width];
        for (row, banned) in self.rows.iter().enumerate() {
            values[row * self.width..][..banned.len()].fill(f32::NEG_INFINITY);
        }
        let values = Tensor::from_data(TensorData::new(values, [n_rows, self.width]), (&device, DType::F32));
        logits.cast(DType::F32).scatter(1, self.places(n_rows, &[], &device), values, IndexingUpdateOp::Add)
    }

    /// Returns for each row the logarithm of the probability that it does not get a banned token. `best` are a token of each row
    /// and its log-probability without the banned ones, `logits` the logits with them; tokens in `never` do not count.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn log_allowed(
        &self,
        logits: Tensor<2>,
        best: &[(u32, f32)],
        never: &[u32],
    ) -> Result<Vec<f64>, TensorReadError> {
        let (n_rows, device) = (logits.dims()[0], logits.device());
        let tokens: Vec<u32> = best.iter().map(|(token, _)| *token).collect();
        let places = self.places(n_rows, &tokens, &device);
        // Host sync: the logits of the banned tokens.
        let read: Vec<f32> = waiting(|| logits.cast(DType::F32).gather(1, places).try_into_vec_as::<f32>())?;
        let rows = read.chunks(self.width + 1).zip(best).zip(self.rows);
        Ok(rows
            .map(|((logits, (_, log_prob)), banned)| {
                // The sum of the exponentials of the allowed logits is 1 at this scale.
                let scale = f64::from(logits[self.width]) - f64::from(*log_prob);
                let counted = banned.iter().zip(logits).filter(|(token, _)| !never.contains(token));
                let share: f64 = counted.map(|(_, logit)| (f64::from(*logit) - scale).exp()).sum();
                if log_prob.is_finite() { -share.ln_1p() } else { 0.0 }
            })
            .collect())
    }

    /// The banned tokens of each row, filled up with token 0, and one of `more` behind them, if there are some.
    fn places(&self, n_rows: usize, more: &[u32], device: &Device) -> Tensor<2, Int> {
        let width = self.width + usize::from(!more.is_empty());
        let mut places = vec![0_i32; n_rows * width];
        for (row, banned) in self.rows.iter().enumerate() {
            let all = banned.iter().map(|token| token.cast_signed());
            places[row * width..].iter_mut().zip(all).for_each(|(place, token)| *place = token);
        }
        for (row, token) in more.iter().enumerate() {
            places[row * width + self.width] = token.cast_signed();
        }
        int_tensor(places, device).reshape([n_rows, width])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];

    fn bans(no_repeat_ngram_size: usize, words: &[&[u32]]) -> Bans {
        Bans { no_repeat_ngram_size, words: words.iter().map(|word| word.to_vec()).collect(), given: Vec::new() }
    }

    #[test]
    fn an_ngram_comes_once() {
        let after = |n, tokens: &[u32]| bans(n, &[]).after(0, tokens);
        assert_eq!(after(0, &[1, 2, 1]), NONE);
        assert_eq!(after(1, &[3, 1, 3]), [1, 3], "no token comes twice");
        assert_eq!(after(2, &[1, 2, 1]), [2]);
        assert_eq!(after(2, &[1, 2, 1, 3, 1]), [2, 3]);
        assert_eq!(after(3, &[1, 2, 3, 1, 2]), [3]);
        assert_eq!(after(3, &[1]), NONE);
        assert_eq!(after(2, &[]), NONE);
        assert_eq!(after(2, &[5, 5]), [5]);
    }

    #[test]
    fn a_word_does_not_end_behind_its_beginning() {
        let after = |words: &[&[u32]], tokens: &[u32]| bans(0, words).after(0, tokens);
        assert_eq!(after(&[&[7], &[4]], &[]), [4, 7]);
        assert_eq!(after(&[&[1, 2, 9]], &[0, 1, 2]), [9]);
        assert_eq!(after(&[&[1, 2, 9]], &[1, 2]), NONE, "as in transformers");
        assert_eq!(after(&[&[1, 2, 9]], &[1, 2, 3]), NONE);
    }

    #[test]
    fn what_is_given_counts() {
        let bans = Bans { given: vec![vec![1, 2], vec![]], ..bans(2, &[&[2, 8]]) };
        assert_eq!(bans.after(0, &[1]), [2]);
        assert_eq!(bans.after(0, &[]), [8]);
        assert_eq!(bans.after(1, &[1]), NONE);
        assert_eq!(bans.after(5, &[1, 2, 1]), [2]);
    }

    #[test]
    fn masked_rows_keep_what_the_others_cost() {
        let device = Device::flex();
        let values = vec![1.0_f32, 2.0, 3.0, 4.0, 0.5, 0.0, 0.5, 9.0];
        let logits = Tensor::<2>::from_data(TensorData::new(values.clone(), [2, 4]), &device);
        let rows = [vec![1, 3], vec![]];
        let banned = Banned::of(&rows).expect("some");
        let masked: Vec<f32> = banned.mask(logits.clone()).into_data().try_into_vec().expect("f32");
        assert_eq!(masked, [1.0, f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY, 0.5, 0.0, 0.5, 9.0]);

        // Token 3 is never written, so that it has no share.
        let exp = |logit: f32| f64::from(logit).exp();
        let kept = exp(1.0) + exp(3.0);
        let best = [(2, (exp(3.0) / kept).ln() as f32), (0, -1.0)];
        let found = banned.log_allowed(logits, &best, &[3]).expect("read");
        assert!((found[0] - (kept / (kept + exp(2.0))).ln()).abs() < 1e-6 && found[1] == 0.0, "{found:?}");
        assert!(Banned::of(&[Vec::new()]).is_none());
    }
}
