//! The layers by themselves: a program that composes them gets what the stacks compute.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_model::{DecoderLayer, EncoderLayer, Memory, Rows, TransformerConfig};

use crate::support::{assert_close, ids, small_config, values};

/// `[n, 16]` of smooth numbers.
fn features(n: usize, phase: f32, device: &Device) -> Tensor<2> {
    let numbers: Vec<f32> = (0..n * 16).map(|i| (i as f32 * 0.37 + phase).sin()).collect();
    Tensor::from_data(TensorData::new(numbers, [n, 16]), device)
}

#[test]
fn an_encoder_is_the_composition_of_its_layers() {
    let device = Device::flex();
    let encoder = small_config().init_encoder_decoder(1, DType::F32, &device).encoder;
    let rows = Rows::of_lengths(ids(&[5, 3], &device));
    let x = features(2 * 5, 0.0, &device);

    let layer = |x: Tensor<2>, layer: &EncoderLayer| {
        let attended = layer.self_attention.forward(layer.self_attention_norm.forward(x.clone()), &rows, false, None);
        let x = x + attended;
        x.clone() + layer.feed_forward.forward(layer.feed_forward_norm.forward(x), None)
    };
    let composed = encoder.layers.iter().fold(x.clone(), layer);
    let composed = encoder.norm.as_ref().expect("pre-norm").forward(composed);
    assert_close(&values(encoder.forward(x, &rows, None)), &values(composed), 1e-6, 0.0, "hidden states");
}

#[test]
fn a_decoder_is_the_composition_of_its_layers() {
    let device = Device::flex();
    let config = TransformerConfig { n_kv_heads: 1, ..small_config() };
    let decoder = config.init_encoder_decoder(1, DType::F32, &device).decoder;
    let memory = Memory { hidden: features(2 * 4, 1.0, &device), lengths: ids(&[4, 2], &device), batch_size: 2 };
    let rows = Rows::new(2);
    let x = features(2 * 3, 2.0, &device);

    let layer = |x: Tensor<2>, layer: &DecoderLayer| {
        let attended = layer.self_attention.forward(layer.self_attention_norm.forward(x.clone()), &rows, true, None);
        let x = x + attended;

        let cross = layer.cross_attention.as_ref().expect("an encoder-decoder");
        let query = layer.cross_attention_norm.as_ref().expect("an encoder-decoder").forward(x.clone());
        let x = x + cross.forward(query, cross.project(memory.hidden.clone(), None), &memory.lengths, 2, None);

        x.clone() + layer.feed_forward.forward(layer.feed_forward_norm.forward(x), None)
    };
    let composed = decoder.layers.iter().fold(x.clone(), layer);
    let composed = decoder.norm.as_ref().expect("pre-norm").forward(composed);
    assert_close(
        &values(decoder.forward(x, &rows, Some(&memory), None)),
        &values(composed),
        1e-6,
        0.0,
        "hidden states",
    );
}
