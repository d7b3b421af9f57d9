//! A Marian model that starts with zeros, as CTranslate2 wants it, computes the same.

use burn::tensor::{DType, FloatDType};
use kiln_model::hf::{self, ExportPlan, ZeroStart, start_with_zeros};
use kiln_model::{
    Batch, LazyTensor, NamedTensor, NormPlacement, PairBatch, Positions, TieEmbeddings, Transformer, TransformerConfig,
};

use crate::hf::{file_bytes, file_tensors};
use crate::support::{assert_close, ids, shapes, small_config, train_device, values, weights, with_weights};

const D: usize = 16;
const N: usize = 12;

/// A model of Kiln's own with numbers that differ everywhere.
fn model(config: &TransformerConfig) -> (Transformer, Vec<NamedTensor>) {
    let model = config.init(5, DType::F32, &train_device());
    let shapes = shapes(&model);
    let mut values = weights(&model);
    for (i, value) in values.values_mut().flatten().enumerate() {
        *value += (i as f32).sin() / 8.0;
    }
    let name = |(name, shape): (String, Vec<usize>)| NamedTensor { values: values[&name].clone(), name, shape };
    let named = shapes.into_iter().map(name).collect();
    (with_weights(model, &values), named)
}

fn plan<'a>(config: &TransformerConfig, named: &'a [NamedTensor], pad: u32, start: u32) -> ExportPlan<'a> {
    let tokens = hf::TokenIds { pad: Some(pad), bos: None, eos: Some(2), decoder_start: Some(start) };
    hf::plan_export(config, named.iter().map(LazyTensor::borrowed).collect(), &tokens).expect("post-norm")
}

fn tensor(plan: &ExportPlan<'_>, name: &str) -> Option<NamedTensor> {
    plan.tensors.iter().find(|tensor| tensor.name == name).map(LazyTensor::read)
}

/// Logits of two rows of one source each, whose targets begin with `start`.
fn logits(model: &Transformer, start: i32) -> Vec<f32> {
    let device = train_device();
    let (source, target) = ([4, 5, 6, 2, 9, 2, 0, 0], [start, 7, 8, start, 10, 11]);
    let flat = [&source[..], &target, &target, &[4, 2], &[3, 3]].concat();
    let batch = PairBatch::from_contiguous(ids(&flat, &device), [2, 4, 3], 0, 0);
    values(model.logits(&Batch::Pairs(batch), None))
}

/// Imports an export as another program would read it.
fn read_again(plan: ExportPlan<'_>) -> (Transformer, TransformerConfig, hf::TokenIds) {
    let exported = plan.read();
    let bytes: Vec<_> = exported.tensors.iter().map(file_bytes).collect();
    let again = hf::import(&exported.config, &file_tensors(&exported.tensors, &bytes)).expect("a Marian model");
    let (config, tokens) = (again.config.clone(), again.tokens);
    (again.into_model(FloatDType::F32, &train_device()), config, tokens)
}

#[test]
fn a_padding_token_is_added_and_the_start_moves_into_the_positions() {
    for (tie_embeddings, positions) in [
        (TieEmbeddings::ThreeWay, Positions::Sinusoidal),
        (TieEmbeddings::Output, Positions::SinusoidalHalves),
        (TieEmbeddings::None, Positions::Sinusoidal),
    ] {
        let config = TransformerConfig { norm: NormPlacement::Post, tie_embeddings, positions, ..small_config() };
        let (model, named) = model(&config);
        let ZeroStart { plan, added } = start_with_zeros(plan(&config, &named, 0, 1), true);
        assert_eq!(added, Some(N as u32));
        assert_eq!([&plan.config["vocab_size"], &plan.config["decoder_vocab_size"]], [N + 1, N + 1]);
        for key in ["pad_token_id", "decoder_start_token_id"] {
            assert_eq!([&plan.config[key], &plan.generation_config.as_ref().expect("it translates")[key]], [N, N]);
        }
        let name = if tie_embeddings == TieEmbeddings::ThreeWay { "shared" } else { "decoder.embed_tokens" };
        let table = tensor(&plan, &format!("model.{name}.weight")).expect("a table");
        assert_eq!(table.shape, [N + 1, D]);
        assert!(table.values[N * D..].iter().all(|x| *x == 0.0));
        let moved = tensor(&plan, "model.decoder.embed_positions.weight").expect("positions with a start");
        assert_eq!(moved.shape, [64, D]);

        let (again, imported, tokens) = read_again(plan);
        assert_eq!((tokens.pad, tokens.decoder_start), (Some(N as u32), Some(N as u32)));
        assert_eq!((imported.source_vocab_size, imported.target_vocab_size), (N + 1, N + 1));
        let (before, after) = (logits(&model, 1), logits(&again, N as i32));
        let (old, new): (Vec<_>, Vec<_>) = after.chunks_exact(N + 1).map(|row| row.split_at(N)).unzip();
        assert_close(&old.concat(), &before, 2e-5, 0.0, "logits");
        assert!(new.concat().iter().all(|x| *x < -9000.0), "the added token never occurs: {new:?}");
    }
}

/// As in published models, once fine-tuning has moved the vector of the padding.
#[test]
fn a_start_that_is_last_keeps_its_id() {
    for tie_embeddings in [TieEmbeddings::ThreeWay, TieEmbeddings::None] {
        let config = TransformerConfig {
            norm: NormPlacement::Post,
            positions: Positions::SinusoidalHalves,
            tie_embeddings,
            final_logits_bias: true,
            ..small_config()
        };
        let (model, named) = model(&config);
        let last = N as u32 - 1;
        let ZeroStart { plan, added } = start_with_zeros(plan(&config, &named, last, last), false);
        assert_eq!((added, &plan.config["vocab_size"]), (None, &N.into()));
        let (again, _, tokens) = read_again(plan);
        assert_eq!(tokens.decoder_start, Some(last));
        let (before, after) = (logits(&model, last as i32), logits(&again, last as i32));
        for (before, after) in before.chunks_exact(N).zip(after.chunks_exact(N)) {
            assert_close(&after[..N - 1], &before[..N - 1], 2e-5, 0.0, "logits");
            assert!(after[N - 1] < -9000.0);
        }
    }
}

#[test]
fn what_starts_with_zeros_or_cannot_stays_as_it_is() {
    let post = TransformerConfig { norm: NormPlacement::Post, ..small_config() };
    let (_, named) = model(&post);
    let same = |start: ZeroStart<'_>, before: &hf::Exported| {
        assert_eq!((start.added, start.plan.read()), (None, before.clone()));
    };
    // The published vocabulary has its padding in front.
    same(start_with_zeros(plan(&post, &named, 0, 1), false), &plan(&post, &named, 0, 1).read());

    // Its last token is the start, with zeros.
    let mut zeros = named;
    for table in zeros.iter_mut().filter(|it| it.name.ends_with("embedding.table")) {
        table.values[(N - 1) * D..].fill(0.0);
    }
    let last = N as u32 - 1;
    same(start_with_zeros(plan(&post, &zeros, last, last), true), &plan(&post, &zeros, last, last).read());

    // Pegasus starts with a vector.
    let pre = small_config();
    let (_, named) = model(&pre);
    let before = plan(&pre, &named, 0, 1).read();
    assert_eq!((before.family, &before.config["pad_token_id"]), (hf::Family::Pegasus, &1.into()));
    same(start_with_zeros(plan(&pre, &named, 0, 1), true), &before);

    // Two vocabularies.
    let two = TransformerConfig { target_vocab_size: 10, tie_embeddings: TieEmbeddings::None, ..post };
    let (_, named) = model(&two);
    same(start_with_zeros(plan(&two, &named, 0, 1), true), &plan(&two, &named, 0, 1).read());
}
