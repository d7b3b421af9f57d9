//! Changes of the input that must not affect losses, logits or gradients.

use burn::tensor::DType;
use kiln_model::{DropoutStream, EncoderDecoder, PairBatch, TransformerConfig};

use crate::support::{
    ByPath, Pair, assert_close, batch, gradients, ids, random_rows, scalar, small_config, train_device, values,
};

fn pairs(n: usize) -> Vec<Pair> {
    random_rows(n, 1..=6, 11).into_iter().zip(random_rows(n, 1..=7, 12)).collect()
}

fn loss_and_gradients(model: &EncoderDecoder, batch: &PairBatch) -> (f64, ByPath) {
    let loss = model.loss(batch, 0.1, None).loss_sum;
    (scalar(loss.clone()), gradients(model, &loss.backward()))
}

fn assert_same(found: &(f64, ByPath), wanted: &(f64, ByPath)) {
    assert!(((found.0 - wanted.0) / wanted.0).abs() < 1e-5, "losses {} and {}", found.0, wanted.0);
    let largest = wanted.1.values().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for (path, wanted) in &wanted.1 {
        assert_close(&found.1[path], wanted, 1e-4, 1e-6 * largest, &format!("gradient of {path}"));
    }
}

#[test]
fn padding_changes_no_loss_and_no_gradient() {
    let device = train_device();
    let model = small_config().init_encoder_decoder(1, DType::F32, &device);
    let pairs = pairs(4);
    let tight = loss_and_gradients(&model, &batch(&pairs, [0, 0], &device));
    let wide = loss_and_gradients(&model, &batch(&pairs, [13, 16], &device));
    assert_same(&wide, &tight);
}

#[test]
fn padding_is_never_read() {
    let device = train_device();
    let model = small_config().init_encoder_decoder(1, DType::F32, &device);
    let clean = batch(&[(vec![5, 6], vec![7, 8, 9]), (vec![4, 5, 6, 7], vec![3])], [8, 0], &device);
    let mut dirty = clean.clone();
    dirty.source = clean.source.clone().equal_elem(0).int().cast(DType::I32) * 9 + clean.source.clone();
    assert_ne!(values(dirty.source.clone().float()), values(clean.source.clone().float()));
    assert_same(&loss_and_gradients(&model, &dirty), &loss_and_gradients(&model, &clean));
}

#[test]
fn later_target_tokens_do_not_change_earlier_logits() {
    let device = train_device();
    let model = small_config().init_encoder_decoder(1, DType::F32, &device);
    let original = batch(&[(vec![5, 6, 7], vec![3, 4, 5, 6, 7])], [0, 0], &device);
    let mut changed = original.clone();
    changed.target_input = ids(&[1, 3, 4, 9, 10, 11], &device);
    let v = model.config().target_vocab_size;
    let (before, after) = (values(model.logits(&original, None)), values(model.logits(&changed, None)));
    assert_eq!(before[..3 * v], after[..3 * v]);
    assert!((3..6).all(|t| before[t * v..][..v] != after[t * v..][..v]), "the changed tokens are not read at all");
}

#[test]
fn one_batch_of_32_equals_32_of_one() {
    let device = train_device();
    let model = small_config().init_encoder_decoder(1, DType::F32, &device);
    let pairs = pairs(32);
    let together = loss_and_gradients(&model, &batch(&pairs, [0, 0], &device));
    let mut summed = (0.0, ByPath::new());
    for pair in pairs {
        let (loss, gradients) = loss_and_gradients(&model, &batch(&[pair], [0, 0], &device));
        summed.0 += loss;
        for (path, gradient) in gradients {
            let sum = summed.1.entry(path).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += x);
        }
    }
    assert_same(&summed, &together);
}

#[test]
fn dropout_is_a_function_of_seed_and_step() {
    let device = train_device();
    let model = TransformerConfig { dropout: 0.3, ..small_config() }.init_encoder_decoder(1, DType::F32, &device);
    let batch = batch(&pairs(4), [0, 0], &device);
    let loss = |seed, draw| {
        let stream = DropoutStream::new(seed, draw, &device);
        scalar(model.loss(&batch, 0.0, Some(&stream)).loss_sum)
    };
    assert_eq!(loss(1, 1), loss(1, 1));
    assert_ne!(loss(1, 1), loss(1, 2));
    assert_ne!(loss(1, 1), loss(2, 1));
    let evaluated = scalar(model.loss(&batch, 0.0, None).loss_sum);
    assert_eq!(evaluated, scalar(model.loss(&batch, 0.0, None).loss_sum));
    assert_ne!(evaluated, loss(1, 1));
}

#[test]
fn bf16_follows_f32() {
    let device = train_device();
    let batch = batch(&pairs(8), [0, 0], &device);
    let loss = |dtype| loss_and_gradients(&small_config().init_encoder_decoder(1, dtype, &device), &batch);
    let (wide, narrow) = (loss(DType::F32), loss(DType::BF16));
    assert!(((wide.0 - narrow.0) / wide.0).abs() < 0.01, "f32 {}, bf16 {}", wide.0, narrow.0);
    let path = "decoder.layers.1.feed_forward.output.weight";
    assert_close(&narrow.1[path], &wide.1[path], 0.05, 0.0, path);
}
