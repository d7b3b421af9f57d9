//! Samples tokens: temperature, top-k (Fan et al. 2018), top-p (Holtzman et al. 2020) and a penalty on tokens that have
//! already occurred (Keskar et al. 2019). Order and definitions follow Hugging Face's `generate`.
//!
//! The random number of a token is a pure function of the seed, the row and the position. The text of a row therefore does
//! not depend on the other rows of its batch or on when they end.

use std::collections::HashSet;

use burn::tensor::DType;

use super::GenerateError;
use super::batching::int_tensor;
use super::error::Interruption;
use super::sequences::{Begun, Sequences, TokenRules};
use crate::config::GenerateConfig;
use crate::metrics::host_sync::waiting;

/// How a token is chosen from its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Takes the likeliest token. Only the penalty applies then.
    pub greedy: bool,
    /// Divisor of the logits: below 1 sharpens, above 1 flattens.
    pub temperature: f64,
    /// Keeps only this many of the likeliest tokens; 0: all.
    pub top_k: usize,
    /// Keeps the likeliest tokens whose probabilities sum to this; 1: all.
    pub top_p: f64,
    /// Divisor of positive logits and factor of negative logits of tokens that have already occurred in the row; 1: off.
    pub repetition_penalty: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl From<&GenerateConfig> for Sampling {
    fn from(config: &GenerateConfig) -> Self {
        Self {
            greedy: !config.draws(),
            temperature: config.temperature,
            top_k: config.top_k,
            top_p: config.top_p,
            repetition_penalty: config.repetition_penalty,
            seed: config.seed,
        }
    }
}

/// One row to be sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledRow {
    /// Number of the row's random stream: its position in the whole input, not in the batch.
    pub stream: u64,
    /// Tokens before the first sampled one, for the repetition penalty.
    pub prompt: Vec<u32>,
}

/// Finishes every row of `begun` and returns its tokens without the end token.
///
/// Calls `accept` with the row and the token as soon as a token is chosen. If `accept` returns `false`, the token is the last
/// of its row. The host chooses the tokens, so it reads the logits at every step and waits for the device.
pub(super) fn sample<S: Sequences>(
    begun: Begun<S>,
    rules: &TokenRules,
    sampling: &Sampling,
    rows: &[SampledRow],
    accept: &mut dyn FnMut(usize, u32) -> Result<bool, GenerateError>,
) -> Result<Vec<Vec<u32>>, Interruption> {
    let Begun { mut sequences, mut logits, limits } = begun;
    let device = logits.device();
    let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); limits.len()];
    let mut live: Vec<usize> = (0..limits.len()).collect();

    loop {
        let vocab_size = logits.dims()[1];
        // Host sync: the logits of every unfinished row.
        let mut read = waiting(|| logits.cast(DType::F32).try_into_vec_as::<f32>())?;

        let (mut kept, mut chosen) = (Vec::new(), Vec::new());
        for (index, (&row, logits)) in live.iter().zip(read.chunks_mut(vocab_size)).enumerate() {
            let SampledRow { stream, prompt } = &rows[row];
            let output = &mut outputs[row];
            let banned = rules.bans.after(row, output);
            rules.never.iter().chain(&banned).for_each(|id| logits[*id as usize] = f32::NEG_INFINITY);
            let seen = prompt.iter().chain(output.iter()).copied();
            let uniform = uniform(sampling.seed, *stream, output.len() as u64);
            let token = choose(logits, seen, uniform, sampling)
                .ok_or(GenerateError::NoToken { row: (stream & u64::from(u32::MAX)) + 1 })?;
            if rules.is_end(token) {
                continue;
            }
            output.push(token);
            if accept(row, token)? && output.len() < limits[row] {
                kept.push(index);
                chosen.push(token.cast_signed());
            }
        }

        if kept.is_empty() {
            return Ok(outputs);
        }
        if kept.len() < live.len() {
            live = kept.iter().map(|&index| live[index]).collect();
            sequences.select(&kept);
        }
        logits = sequences.step(int_tensor(chosen, &device));
    }
}

/// Chooses a token and overwrites `logits`. `seen` are the tokens of the row so far, `uniform` is a number in [0, 1). Returns
/// `None` if no logit is a number above negative infinity.
pub fn choose(logits: &mut [f32], seen: impl Iterator<Item = u32>, uniform: f64, sampling: &Sampling) -> Option<u32> {
    if sampling.repetition_penalty != 1.0 {
        let penalty = sampling.repetition_penalty as f32;
        for id in seen.collect::<HashSet<_>>() {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }

    let candidates = (0u32..).zip(logits.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY);
    // Likelier first; ties by id, so that they do not depend on the device.
    let likelier = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if sampling.greedy {
        return candidates.min_by(likelier).map(|(id, _)| id);
    }

    let mut candidates: Vec<(u32, f32)> = candidates.collect();
    if sampling.top_k > 0 && sampling.top_k < candidates.len() {
        candidates.select_nth_unstable_by(sampling.top_k - 1, likelier);
        candidates.truncate(sampling.top_k);
    }
    candidates.sort_unstable_by(likelier);

    let largest = f64::from(candidates.first()?.1);
    let weights: Vec<f64> =
        candidates.iter().map(|(_, logit)| ((f64::from(*logit) - largest) / sampling.temperature).exp()).collect();
    let kept = nucleus(&weights, sampling.top_p);
    let mut left = uniform * weights[..kept].iter().sum::<f64>();
    let place = weights[..kept].iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    Some(candidates[place.unwrap_or(kept - 1)].0)
}

/// Returns how many of the descending `weights` sum to at least the fraction `top_p` of the total; at least one.
fn nucleus(weights: &[f64], top_p: f64) -> usize {
    if top_p >= 1.0 {
        return weights.len();
    }
    let mut left = top_p * weights.iter().sum::<f64>();
    let reached = weights.iter().position(|weight| {
        left -= weight;
        left <= 0.0
    });
    reached.map_or(weights.len(), |place| place + 1)
}

/// Returns the random number in [0, 1) for the token at `position` of row `stream`; 53 bits.
fn uniform(seed: u64, stream: u64, position: u64) -> f64 {
    let mut hasher = blake3::Hasher::new_derive_key("kiln 2026 sampling");
    for part in [seed, stream, position] {
        hasher.update(&part.to_le_bytes());
    }
    let bits = u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("8 bytes"));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sampling =
        Sampling { greedy: false, temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 1 };

    /// Counts how often each of four tokens is sampled at 4000 positions of one row.
    fn frequencies(logits: [f32; 4], sampling: &Sampling) -> [usize; 4] {
        let mut counts = [0; 4];
        for position in 0..4000 {
            let token = choose(&mut logits.clone(), [].into_iter(), uniform(7, 3, position), sampling);
            counts[token.expect("finite logits") as usize] += 1;
        }
        counts
    }

    fn logits(probabilities: [f32; 4]) -> [f32; 4] {
        probabilities.map(|probability| probability.ln() + 2.0)
    }

    /// Checks that the counts of 4000 samples match `probabilities` within four standard deviations.
    fn assert_drawn_from(counts: [usize; 4], probabilities: [f64; 4]) {
        for (count, probability) in counts.into_iter().zip(probabilities) {
            let deviation = (4000.0 * probability * (1.0 - probability)).sqrt();
            assert!((count as f64 - 4000.0 * probability).abs() <= 4.0 * deviation, "{counts:?}, {probabilities:?}");
        }
    }

    #[test]
    fn tokens_are_drawn_by_their_probabilities() {
        assert_drawn_from(frequencies(logits([0.5, 0.3, 0.15, 0.05]), &ALL), [0.5, 0.3, 0.15, 0.05]);
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        let probabilities = [0.4, 0.4, 0.1, 0.1];
        let cold = Sampling { temperature: 0.5, ..ALL };
        // Squares: 16, 16, 1, 1.
        assert_drawn_from(
            frequencies(logits(probabilities), &cold),
            [16.0 / 34.0, 16.0 / 34.0, 1.0 / 34.0, 1.0 / 34.0],
        );
        let frozen = Sampling { temperature: 1e-6, ..ALL };
        assert_eq!(frequencies(logits([0.3, 0.4, 0.2, 0.1]), &frozen), [0, 4000, 0, 0]);
    }

    #[test]
    fn top_k_leaves_the_likeliest_and_top_p_their_share() {
        let logits = logits([0.15, 0.5, 0.05, 0.3]);
        assert_drawn_from(frequencies(logits, &Sampling { top_k: 2, ..ALL }), [0.0, 0.625, 0.0, 0.375]);
        assert_eq!(frequencies(logits, &Sampling { top_k: 1, ..ALL }), [0, 4000, 0, 0]);
        assert_drawn_from(frequencies(logits, &Sampling { top_k: 9, ..ALL }), [0.15, 0.5, 0.05, 0.3]);
        // 0.5 is reached by the first token alone, 0.51 takes two; the share is of what top-k left.
        assert_eq!(frequencies(logits, &Sampling { top_p: 0.49, ..ALL }), [0, 4000, 0, 0]);
        assert_drawn_from(frequencies(logits, &Sampling { top_p: 0.51, ..ALL }), [0.0, 0.625, 0.0, 0.375]);
        assert_eq!(frequencies(logits, &Sampling { top_p: 0.6, top_k: 2, ..ALL }), [0, 4000, 0, 0]);
        assert_eq!(frequencies(logits, &Sampling { top_p: 1e-9, ..ALL }), [0, 4000, 0, 0]);
    }

    #[test]
    fn what_stands_there_is_made_less_likely_once() {
        let greedy = Sampling { greedy: true, repetition_penalty: 2.0, ..ALL };
        let choose = |logits: &[f32], seen: &[u32]| choose(&mut logits.to_vec(), seen.iter().copied(), 0.0, &greedy);
        assert_eq!(choose(&[3.0, 2.0, 1.0], &[]), Some(0));
        assert_eq!(choose(&[3.0, 2.0, 1.0], &[0]), Some(1), "3 / 2 is below 2");
        assert_eq!(choose(&[5.0, 2.0, 1.0], &[0, 0, 0]), Some(0), "a token is penalized once, not once per occurrence");
        assert_eq!(choose(&[-1.0, -1.5], &[0]), Some(1), "negative logits are multiplied");
    }

    #[test]
    fn ties_go_to_the_lower_id_and_hopeless_logits_to_nobody() {
        let greedy = Sampling { greedy: true, ..ALL };
        assert_eq!(choose(&mut [1.0, 2.0, 2.0], [].into_iter(), 0.0, &greedy), Some(1));
        for sampling in [greedy, ALL] {
            assert_eq!(choose(&mut [f32::NAN, f32::NEG_INFINITY], [].into_iter(), 0.5, &sampling), None);
            assert_eq!(choose(&mut [f32::NEG_INFINITY, -8.0], [].into_iter(), 0.999, &sampling), Some(1));
        }
    }

    #[test]
    fn a_draw_depends_on_seed_row_and_position_only() {
        assert_eq!(uniform(1, 2, 3), uniform(1, 2, 3));
        let others = [uniform(0, 2, 3), uniform(1, 0, 3), uniform(1, 2, 0), uniform(2, 1, 3)];
        assert!(others.iter().all(|other| *other != uniform(1, 2, 3)));
        let mean = (0..10_000).map(|position| uniform(5, 5, position)).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
