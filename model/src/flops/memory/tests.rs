//! The estimate against sums by hand.

use super::*;

const PAIRS: [usize; 3] = [400, 64, 64];

fn bytes(setting: &TrainSetting) -> (TrainBytes, u64) {
    let config = TransformerConfig::base().with_vocab_size(32_000);
    (train_bytes(&config, &Device::flex(), PAIRS, setting), n_params(&config).total())
}

#[test]
fn sixteen_bit_training_state_is_sixteen_bytes_per_parameter() {
    let (bytes, n) = bytes(&TrainSetting::plain(DType::BF16));
    assert_eq!(bytes.state(), 16 * n);
    assert_eq!((bytes.accumulator, bytes.flat_gradients), (0, 2 * n), "one micro-batch accumulates nothing");
    // Of the order of what PyTorch keeps with flash attention.
    let activations = bytes.activations.total();
    assert!((4..12).contains(&(activations >> 30)), "{} GiB", activations >> 30);
    assert_eq!(bytes.total(), bytes.state() + activations, "flat gradients take the place of activations");
}

#[test]
fn a_state_in_bf16_takes_half_the_memory() {
    let rounded = TrainSetting { bf16_state: true, ..TrainSetting::plain(DType::BF16) };
    let (one, n) = bytes(&rounded);
    assert_eq!((one.weights, one.master, one.optimizer_state, one.gradients), (0, 2 * n, 4 * n, 2 * n));
    assert_eq!(one.state(), 8 * n);
    let (in_f32, _) = bytes(&TrainSetting { dtype: DType::F32, ..rounded });
    assert_eq!((in_f32.weights, in_f32.master), (4 * n, 2 * n), "the CPU computes with a copy");
    let (sharded, _) = bytes(&TrainSetting { n_ranks: 4, shards_optimizer: true, ..rounded });
    assert_eq!((sharded.weights, sharded.master, sharded.optimizer_state), (2 * n, 0, 4 * n.div_ceil(4)));
}

#[test]
fn f32_has_one_copy_of_the_weights_and_no_accumulator_for_one_micro_batch() {
    let (plain, n) = bytes(&TrainSetting::plain(DType::F32));
    assert_eq!((plain.weights, plain.master, plain.optimizer_state, plain.gradients), (0, 4 * n, 8 * n, 4 * n));
    assert_eq!((plain.state(), plain.accumulator, plain.exchange), (16 * n, 0, 0));
    let (two, _) = bytes(&TrainSetting { accumulates: true, ..TrainSetting::plain(DType::F32) });
    assert_eq!((two.state(), two.accumulator, two.flat_gradients), (20 * n, 4 * n, 0));
}

#[test]
fn a_sharded_optimizer_keeps_a_slice_and_buffers_for_the_exchange() {
    let four = TrainSetting { n_ranks: 4, ..TrainSetting::plain(DType::BF16) };
    let (whole, n) = bytes(&four);
    let (sharded, _) = bytes(&TrainSetting { shards_optimizer: true, ..four });
    let slice = n.div_ceil(4);
    assert_eq!((whole.master, whole.optimizer_state), (4 * n, 8 * n));
    assert_eq!((sharded.master, sharded.optimizer_state), (4 * slice, 8 * slice));
    assert_eq!((sharded.weights, sharded.exchange), (2 * n, (n - slice) * 2 + 4 * slice));
    let (f32_sharded, _) = bytes(&TrainSetting { shards_optimizer: true, dtype: DType::F32, ..four });
    assert_eq!(f32_sharded.weights, 4 * n, "the masters are a slice, the weights are all");
    let (alone, _) = bytes(&TrainSetting { takes_local_steps: true, ..four });
    assert_eq!(alone.exchange, 4 * slice + (4 + 3 * 2 + 4) * n);
    let (averaged, _) = bytes(&TrainSetting { keeps_average: true, ..four });
    assert_eq!(averaged.state(), whole.state() + 4 * n);
}

fn whole_logits(vocabulary: usize) -> TransformerConfig {
    TransformerConfig { logits_chunk_rows: Some(0), ..TransformerConfig::gpt2_124m() }.with_vocab_size(vocabulary)
}

fn kept(config: &TransformerConfig, len: usize, fused: bool, checkpointing: ActivationCheckpointing) -> u64 {
    let setting = TrainSetting { checkpointing, ..TrainSetting::plain(DType::BF16) };
    activation_bytes(config, [16, 0, len], fused, &setting).total()
}

/// Sums by hand: of 16 D per token and layer, six are norms and activations, and the first sum is one.
#[test]
fn checkpointing_keeps_ten_sixteenths_or_one() {
    let gpt2 = whole_logits(50_304);
    let [off, selective, layer] =
        [ActivationCheckpointing::Off, ActivationCheckpointing::Selective, ActivationCheckpointing::Layer]
            .map(|checkpointing| kept(&gpt2, 1024, true, checkpointing) / (16 * 1024));
    let d = 2 * 768;
    assert_eq!(off - selective, 11 * 6 * d);
    assert_eq!(off - layer, 11 * (15 * d + 12 * 4));
}

/// Sums everything by hand, with and without chunks of logits.
#[test]
fn gpt2_keeps_24_kib_per_token_and_layer_and_no_logits() {
    let gpt2 = TransformerConfig::gpt2_124m().with_vocab_size(50_304);
    let activations = |config: &TransformerConfig| kept(config, 1024, true, ActivationCheckpointing::Off);
    let whole = activations(&whole_logits(50_304));
    let tokens = 16 * 1024;
    assert_eq!(whole, tokens * (12 * (16 * 2 * 768 + 12 * 4) + 4 * 768 + 2 * 50_304));
    let saved = tokens * 2 * 50_304 - (8192 * 2 * 50_304 + tokens * 2 * 768 + 4 * 50_304 * 768);
    assert_eq!(activations(&gpt2), whole - saved);
}

#[test]
fn attention_without_its_kernel_keeps_squares() {
    let gpt2 = whole_logits(1000);
    let activations = |len, fused| kept(&gpt2, len, fused, ActivationCheckpointing::Off) / 2;
    assert_eq!(activations(1024, true), 2 * activations(512, true));
    assert!(activations(1024, false) > 3 * activations(512, false));
}
