//! Decoding with a cache computes the same as a full forward pass.

use burn::tensor::{DType, Device};
use kiln_model::{
    Activation, DecoderCache, EncoderDecoder, NormPlacement, Positions, TieEmbeddings, TransformerConfig,
};

use crate::support::{
    Pair, START, assert_close, bart_config, batch, ids, marian_config, random_rows, small_config, t5_like_config,
    values,
};
use crate::t5::t5_config;

const TOLERANCE: f32 = 1e-5;

/// Rows of unequal source length, targets of `len` tokens.
fn pairs(n: usize, len: usize) -> Vec<Pair> {
    random_rows(n, 2..=6, 5).into_iter().zip(random_rows(n, len..=len, 6)).collect()
}

fn started(model: &EncoderDecoder, pairs: &[Pair], device: &Device) -> DecoderCache {
    let batch = batch(pairs, [0, 0], device);
    model.start(&model.encode(batch.source, batch.source_lengths, batch.batch_size, None))
}

/// Logits of all positions of all rows, `[B * T, V]` flat, from a full forward pass.
fn full(model: &EncoderDecoder, pairs: &[Pair], device: &Device) -> Vec<f32> {
    values(model.logits(&batch(pairs, [0, 0], device), None))
}

/// Column t of the decoder's input.
fn input(pairs: &[Pair], t: usize) -> Vec<i32> {
    pairs.iter().map(|(_, target)| if t == 0 { START } else { target[t - 1] }).collect()
}

/// Checks that the steps from position `from` on equal the rows of the full forward pass.
fn assert_steps(
    model: &EncoderDecoder,
    cache: &mut DecoderCache,
    pairs: &[Pair],
    steps: std::ops::Range<usize>,
    device: &Device,
) {
    let (wanted, v, len) = (full(model, pairs, device), model.config().target_vocab_size, pairs[0].1.len() + 1);
    for t in steps {
        let found = values(model.decode_step(ids(&input(pairs, t), device), cache));
        let rows: Vec<f32> = (0..pairs.len()).flat_map(|b| wanted[(b * len + t) * v..][..v].iter().copied()).collect();
        assert_close(&found, &rows, TOLERANCE, TOLERANCE, &format!("logits of position {t}"));
        assert_eq!(cache.len(), t + 1);
    }
}

fn check(config: TransformerConfig, len: usize) {
    let device = Device::flex();
    let model = config.init_encoder_decoder(3, DType::F32, &device);
    let pairs = pairs(3, len);
    let mut cache = started(&model, &pairs, &device);
    assert!(cache.is_empty());
    assert_steps(&model, &mut cache, &pairs, 0..len + 1, &device);
}

#[test]
fn pre_norm_equals_the_full_forward_beyond_one_chunk_of_cache() {
    check(small_config(), 40);
}

#[test]
fn post_norm_with_learned_positions_and_no_ties_equals_the_full_forward() {
    let config = TransformerConfig {
        norm: NormPlacement::Post,
        positions: Positions::Learned,
        activation: Activation::Gelu.into(),
        tie_embeddings: TieEmbeddings::None,
        target_vocab_size: 14,
        ..small_config()
    };
    check(config, 6);
}

#[test]
fn bart_marian_and_t5_like_equal_the_full_forward() {
    for config in [bart_config(), marian_config(), t5_like_config(), t5_config()] {
        check(config, 6);
    }
}

#[test]
fn prefilled_targets_continue_like_decoded_ones() {
    let device = Device::flex();
    for config in [bart_config(), marian_config(), t5_like_config(), t5_config(), small_config()] {
        let model = config.init_encoder_decoder(3, DType::F32, &device);
        let pairs = pairs(3, 8);
        let mut cache = started(&model, &pairs, &device);
        let (begin, v, len) = (4, config.target_vocab_size, 9);
        let prefix: Vec<i32> = pairs.iter().flat_map(|(_, target)| [&[START], &target[..begin - 1]].concat()).collect();
        let lengths = ids(&[begin as i32; 3], &device);
        let found = values(model.prefill(ids(&prefix, &device), lengths, &mut cache));
        let wanted = full(&model, &pairs, &device);
        let rows: Vec<f32> = (0..3).flat_map(|b| wanted[(b * len + begin - 1) * v..][..v].iter().copied()).collect();
        assert_close(&found, &rows, TOLERANCE, TOLERANCE, "logits after the beginning");
        assert_steps(&model, &mut cache, &pairs, begin..len, &device);
    }
}

#[test]
fn selected_rows_continue_unchanged() {
    let device = Device::flex();
    let model = small_config().init_encoder_decoder(4, DType::F32, &device);
    let before = pairs(3, 8);
    let mut cache = started(&model, &before, &device);
    assert_steps(&model, &mut cache, &before, 0..3, &device);

    let rows = [2, 0, 0, 2];
    cache.select(&ids(&rows, &device));
    assert_eq!(cache.batch_size(), 4);
    let mut after: Vec<_> = rows.iter().map(|&row| before[row as usize].clone()).collect();
    after[3].1[5] = 3 + (after[3].1[5] - 2) % 9; // two rows of the same origin diverge
    assert_steps(&model, &mut cache, &after, 3..9, &device);
}

#[test]
fn beams_of_one_source_change_places() {
    let device = Device::flex();
    let model = small_config().init_encoder_decoder(4, DType::F32, &device);
    // Two sources with two beams each.
    let mut before = pairs(4, 6);
    before[1].0 = before[0].0.clone();
    before[3].0 = before[2].0.clone();
    let mut cache = started(&model, &before, &device);
    assert_steps(&model, &mut cache, &before, 0..4, &device);

    let rows = [1, 1, 3, 2];
    cache.reorder_beams(&ids(&rows, &device));
    let mut after: Vec<_> = rows.iter().map(|&row| before[row as usize].clone()).collect();
    after[1].1[3] = 3 + (after[1].1[3] - 2) % 9;
    assert_steps(&model, &mut cache, &after, 4..7, &device);
}

#[test]
#[should_panic(expected = "65 positions, but the model has 64")]
fn a_target_longer_than_the_positions_is_refused() {
    let device = Device::flex();
    let model = small_config().init_encoder_decoder(4, DType::F32, &device);
    let pairs = pairs(1, 2);
    let mut cache = started(&model, &pairs, &device);
    for _ in 0..65 {
        model.decode_step(ids(&[4], &device), &mut cache);
    }
}
