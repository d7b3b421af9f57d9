//! Activation checkpointing changes no bit of a loss or gradient.

use burn::tensor::{DType, Device};
use kiln_model::{
    ActivationCheckpointing, Architecture, Batch, DropoutStream, NormPlacement, Rows, Transformer, TransformerConfig,
};

use crate::gemma::gemma_config;
use crate::support::{
    ByPath, bart_config, batch, bert_config, cuda, gpt2_config, gradients, llama_config, random_rows, scalar,
    small_config, t5_like_config, text_batch, train_device,
};
use crate::t5::t5_config;

fn configs() -> [(&'static str, TransformerConfig); 9] {
    let biased = TransformerConfig { norm: NormPlacement::Sandwich, ..small_config() };
    [
        ("GPT-2", gpt2_config()),
        ("Llama", llama_config()),
        ("Gemma", gemma_config()),
        ("a Transformer with sandwich norms and biases", biased),
        ("BERT", bert_config()),
        ("BART", bart_config()),
        ("a Transformer", small_config()),
        ("a model like T5", t5_like_config()),
        ("T5", t5_config()),
    ]
}

fn batch_for(model: &Transformer, device: &Device) -> Batch {
    let rows = random_rows(4, 2..=9, 11);
    match model.config().architecture {
        Architecture::EncoderDecoder => {
            let pairs: Vec<_> = rows.into_iter().zip(random_rows(4, 1..=7, 12)).collect();
            Batch::Pairs(batch(&pairs, [0, 0], device))
        }
        _ => Batch::Text(text_batch(&rows, 0, device)),
    }
}

/// Returns the loss and all gradients of two micro-batches, the second with the same weights.
fn run(model: &Transformer, device: &Device, checkpointing: ActivationCheckpointing) -> Vec<(f64, ByPath)> {
    let model = model.clone().with_checkpointing(checkpointing);
    let batch = batch_for(&model, device);
    let of_draw = |draw| {
        let stream = DropoutStream::new(3, draw, device);
        let loss = model.loss(&batch, 0.1, Some(&stream)).loss_sum;
        (scalar(loss.clone()), gradients(&model, &loss.backward()))
    };
    (0..2).map(of_draw).collect()
}

fn assert_no_bit_changes(config: &TransformerConfig, dtype: DType, device: &Device, what: &str) {
    let model = config.init(1, dtype, device);
    let wanted = run(&model, device, ActivationCheckpointing::Off);
    assert!(wanted[0].0.is_finite() && wanted[0] != wanted[1], "{what}: the draw makes a difference");
    for checkpointing in [ActivationCheckpointing::Selective, ActivationCheckpointing::Layer] {
        let found = run(&model, device, checkpointing);
        for (draw, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found.0, wanted.0, "the loss of {what}, {dtype:?}, {checkpointing:?}, draw {draw}");
            for (path, wanted) in &wanted.1 {
                assert!(&found.1[path] == wanted, "{path} of {what}, {dtype:?}, {checkpointing:?}, draw {draw}");
            }
        }
    }
}

#[test]
fn losses_and_gradients_of_all_families_keep_their_bits() {
    for (name, config) in configs() {
        let with_dropout = TransformerConfig {
            dropout: 0.2,
            attention_dropout: 0.1,
            activation_dropout: Some(0.1),
            n_encoder_layers: config.n_encoder_layers.min(3),
            ..config
        };
        for dtype in [DType::F32, DType::BF16] {
            assert_no_bit_changes(&with_dropout, dtype, &train_device(), name);
        }
    }
}

#[test]
fn losses_and_gradients_keep_their_bits_on_a_gpu() {
    let Some(gpu) = cuda() else { return };
    let device = gpu.autodiff();
    for (name, config) in configs() {
        // Heads and widths that the fused kernels serve.
        let wide = TransformerConfig { d_model: 256, n_heads: 4, d_ff: 512, ..config };
        for dropout in [0.0, 0.1] {
            let config = TransformerConfig { dropout, attention_dropout: dropout, ..wide.clone() };
            let model = config.init(1, DType::BF16, &device);
            if dropout > 0.0 {
                assert_no_bit_changes(&config, DType::BF16, &device, name);
            } else {
                let wanted = run(&model, &device, ActivationCheckpointing::Off);
                for checkpointing in [ActivationCheckpointing::Selective, ActivationCheckpointing::Layer] {
                    assert!(run(&model, &device, checkpointing) == wanted, "{name} without dropout, {checkpointing:?}");
                }
            }
        }
    }
}

#[test]
fn frozen_embeddings_leave_the_gradients_of_the_layers() {
    let device = train_device();
    let Transformer::DecoderOnly(mut model) = gpt2_config().init(1, DType::F32, &device) else { unreachable!() };
    model.embedding = burn::module::Module::no_grad(model.embedding);
    model.positions = burn::module::Module::no_grad(model.positions);
    let model = Transformer::DecoderOnly(model);
    let off = run(&model, &device, ActivationCheckpointing::Off);
    assert!(!off[0].1.is_empty());
    assert!(run(&model, &device, ActivationCheckpointing::Layer) == off);
}

#[test]
fn a_forward_without_backward_leaves_nothing_behind() {
    let device = train_device();
    let model = llama_config().init(1, DType::F32, &device).with_checkpointing(ActivationCheckpointing::Layer);
    let before = run(&model, &device, ActivationCheckpointing::Layer);
    let Batch::Text(text) = batch_for(&model, &device) else { unreachable!() };
    drop(model.logits(&Batch::Text(text.clone()), None));
    if let Transformer::DecoderOnly(decoder) = &model {
        let x = decoder.embedding.forward(text.input.clone());
        drop(decoder.hidden(x, &Rows::new(text.batch_size), None));
    }
    assert!(run(&model, &device, ActivationCheckpointing::Layer) == before);
}
