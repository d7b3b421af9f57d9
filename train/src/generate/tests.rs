mod batches;
mod beam;
mod conversation;
mod recorded;
mod text;
mod transformers;

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Tensor};
use kiln_data::SpecialIds;
use kiln_model::{EncoderDecoder, TransformerConfig};

use super::batching::{SourceBatch, SourceRow, int_tensor};
use super::beam::{BeamConfig, Scored};
use super::*;
use crate::config::{EarlyStopping, GenerateConfig, LengthNormalization};

const SPECIAL: SpecialIds = SpecialIds { pad: 0, bos: 1, eos: 2, unk: 3 };

fn model(vocab_size: usize, seed: u64) -> EncoderDecoder {
    let config = TransformerConfig {
        d_model: 16,
        n_heads: 2,
        d_ff: 32,
        n_encoder_layers: 1,
        n_decoder_layers: 2,
        source_vocab_size: vocab_size,
        target_vocab_size: vocab_size,
        max_positions: 24,
        ..TransformerConfig::tiny()
    };
    config.init_encoder_decoder(seed, FloatDType::F32, &Device::flex())
}

/// The default rules of beam search.
fn beams(beam_size: usize, length_penalty: f64, n_best: usize) -> BeamConfig {
    BeamConfig::new(&GenerateConfig { beam_size, length_penalty, ..GenerateConfig::default() }, n_best)
}

fn sources(lens: &[usize], limits: &[usize], vocab_size: usize) -> SourceBatch {
    let rows: Vec<SourceRow> = lens
        .iter()
        .zip(limits)
        .enumerate()
        .map(|(row, (&len, &limit))| {
            let mut ids: Vec<u32> = (1..len).map(|i| 3 + ((row * 7 + i * 5) % (vocab_size - 3)) as u32).collect();
            ids.push(SPECIAL.eos);
            SourceRow { ids, limit }
        })
        .collect();
    SourceBatch::new(&rows.iter().collect::<Vec<_>>(), SPECIAL.pad, 24, &Device::flex())
}

/// Log-probability of each next token after `prefix`, for row `row` of the batch alone, by the full forward pass without a
/// cache.
fn next_log_probs(model: &EncoderDecoder, batch: &SourceBatch, row: usize, prefix: &[u32]) -> Vec<f64> {
    let device = Device::flex();
    let width = batch.ids.dims()[0] / batch.batch_size();
    let ids = batch.ids.clone().slice(row * width..(row + 1) * width);
    let memory = model.encode(ids, batch.lengths.clone().slice(row..row + 1), 1, None);
    let input: Vec<i32> = [SPECIAL.bos].iter().chain(prefix).map(|id| id.cast_signed()).collect();
    let n = input.len();
    let logits = model.decode(&memory, int_tensor(input, &device), None).slice(n - 1..n);
    let mut logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
    TokenRules::of(SPECIAL).never.iter().for_each(|id| logits[*id as usize] = f32::NEG_INFINITY);
    let logits = Tensor::<1>::from_floats(logits.as_slice(), &device);
    log_softmax(logits, 0).into_data().iter::<f64>().collect()
}

/// All targets of one source that end within its limit or are cut at it, best first: the answer that beam search
/// approximates.
fn all_targets(model: &EncoderDecoder, batch: &SourceBatch, row: usize, length_penalty: f64) -> Vec<Scored> {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), 0.0)];
    while let Some((prefix, log_prob)) = open.pop() {
        for (token, next) in next_log_probs(model, batch, row, &prefix).into_iter().enumerate() {
            let (token, log_prob, length) = (token as u32, log_prob + next, prefix.len() + 1);
            let score = log_prob / ((5.0 + length as f64) / 6.0).powf(length_penalty);
            if token == SPECIAL.eos {
                found.push(Scored { tokens: prefix.clone(), log_prob, score });
            } else if next > f64::NEG_INFINITY {
                let tokens = [prefix.as_slice(), &[token]].concat();
                if length < batch.limits[row] {
                    open.push((tokens, log_prob));
                } else {
                    found.push(Scored { tokens, log_prob, score });
                }
            }
        }
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found
}

#[test]
fn a_beam_wide_enough_finds_what_trying_everything_finds() {
    let vocab_size = 6;
    for (seed, length_penalty) in [(1, 0.0), (2, 0.6), (3, 1.5), (4, -0.5)] {
        let model = model(vocab_size, seed);
        let batch = sources(&[4, 2, 6], &[4, 3, 2], vocab_size);
        let config = beams(150, length_penalty, 4);
        let found = beam_search(Targets::begin(&model, &batch, SPECIAL), &TokenRules::of(SPECIAL), &config)
            .expect("the CPU answers");
        for (row, found) in found.iter().enumerate() {
            let wanted = all_targets(&model, &batch, row, length_penalty);
            assert_eq!(found.len(), wanted.len().min(4));
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_eq!(found.tokens, wanted.tokens, "seed {seed}, row {row}");
                assert!((found.score - wanted.score).abs() < 1e-4, "{} instead of {}", found.score, wanted.score);
                assert!((found.log_prob - wanted.log_prob).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn narrow_beams_keep_their_own_histories() {
    // After every reordering the cache must belong to the tokens of its row. The full forward pass must therefore give the
    // same sum of log-probabilities for the same tokens.
    let vocab_size = 9;
    for seed in 0..4 {
        let model = model(vocab_size, seed);
        let batch = sources(&[3, 8, 5, 5], &[12, 9, 12, 1], vocab_size);
        let config = beams(3, 0.6, 3);
        for (row, found) in beam_search(Targets::begin(&model, &batch, SPECIAL), &TokenRules::of(SPECIAL), &config)
            .expect("an answer")
            .into_iter()
            .enumerate()
        {
            assert!(!found.is_empty() && found.len() <= 3);
            assert!(found.is_sorted_by(|a, b| a.score >= b.score));

            for target in found {
                let mut log_prob = 0.0;
                for (at, &token) in target.tokens.iter().enumerate() {
                    log_prob += next_log_probs(&model, &batch, row, &target.tokens[..at])[token as usize];
                }
                let unfinished = log_prob;
                if target.tokens.len() < batch.limits[row] {
                    log_prob += next_log_probs(&model, &batch, row, &target.tokens)[SPECIAL.eos as usize];
                }
                let closest = (target.log_prob - log_prob).abs().min((target.log_prob - unfinished).abs());
                assert!(closest < 1e-4, "seed {seed} row {row}: {target:?} has {log_prob}");
            }
        }
    }
}

#[test]
fn one_beam_is_greedy_whatever_the_batch_and_the_interval_of_looking() {
    let vocab_size = 6;
    let mut ended = 0;
    for seed in 0..8 {
        let model = model(vocab_size, seed);
        let (lens, limits) = ([3, 8, 5, 2, 7], [12, 20, 7, 24, 1]);
        let batch = sources(&lens, &limits, vocab_size);
        let one_by_one =
            greedy(Targets::begin(&model, &batch, SPECIAL), &TokenRules::of(SPECIAL), 1).expect("an answer");
        for steps in [3, 8, 100] {
            assert_eq!(
                greedy(Targets::begin(&model, &batch, SPECIAL), &TokenRules::of(SPECIAL), steps).expect("an answer"),
                one_by_one,
                "every {steps} steps"
            );
        }
        let config = beams(1, 0.6, 1);
        let beams =
            beam_search(Targets::begin(&model, &batch, SPECIAL), &TokenRules::of(SPECIAL), &config).expect("an answer");
        for (row, tokens) in one_by_one.iter().enumerate() {
            assert_eq!(&beams[row][0].tokens, tokens, "seed {seed}, row {row}");
            assert!(tokens.len() <= limits[row]);
            // The definition: each token is the likeliest after those before it.
            for at in 0..(tokens.len() + 1).min(limits[row]) {
                let log_probs = next_log_probs(&model, &batch, row, &tokens[..at]);
                let best = (0..vocab_size).max_by(|&a, &b| log_probs[a].total_cmp(&log_probs[b])).expect("tokens");
                assert_eq!(best as u32, tokens.get(at).copied().unwrap_or(SPECIAL.eos), "seed {seed}, row {row}");
            }
            ended += usize::from(tokens.len() < limits[row]);
        }
    }
    assert!(ended > 0, "some rows must end by themselves for this test to mean something");
}

/// Rows whose targets begin with some of their tokens.
#[test]
fn a_search_behind_a_prefix_finds_what_follows_it() {
    let vocab_size = 6;
    let mut n_given = 0;
    for (seed, len) in (0..8).flat_map(|seed| [(seed, 1), (seed, 2), (seed, 4)]) {
        let model = model(vocab_size, seed);
        let batch = sources(&[3, 8, 5, 2, 7], &[12, 20, 7, 23, 9], vocab_size);
        let rules = TokenRules::of(SPECIAL);
        let whole = greedy(Targets::begin(&model, &batch, SPECIAL), &rules, 1).expect("an answer");
        let given: Vec<_> = whole.iter().map(|row| [&[SPECIAL.bos], &row[..len.min(row.len())]].concat()).collect();
        if given.iter().any(|row| row.len() <= len) {
            continue;
        }
        let batch = SourceBatch { limits: batch.limits.iter().map(|limit| limit - len).collect(), ..batch };
        let rest = greedy(Targets::begin_behind(&model, &batch, &given), &rules, 3).expect("an answer");
        for (whole, rest) in whole.iter().zip(&rest) {
            assert_eq!(&whole[len..], rest, "seed {seed}, {len} tokens");
        }
        n_given += len;
    }
    assert!(n_given > 10, "{n_given}");
}
