//! Toy tasks that a correct model learns in seconds: copy and reverse random sequences that it has never seen.

use burn::module::Module;
use burn::tensor::{DType, Int, Tensor};
use kiln_kernels::AdamWHyper;
use kiln_model::{DropoutStream, EncoderDecoder, NormPlacement, Positions, TransformerConfig};

use crate::support::{END, Optimizer, START, batch, gradients, ids, random_rows, scalar, small_config, train_device};

const MAX_LEN: usize = 6;

/// Greedy translations, without start and end.
fn translate(model: &EncoderDecoder, sources: &[Vec<i32>]) -> Vec<Vec<i32>> {
    let device = burn::tensor::Device::flex();
    let pairs: Vec<_> = sources.iter().map(|source| (source.clone(), vec![])).collect();
    let batch = batch(&pairs, [0, 0], &device);
    let mut cache = model.start(&model.encode(batch.source, batch.source_lengths, batch.batch_size, None));
    let mut next = ids(&vec![START; sources.len()], &device);
    let mut rows = vec![vec![]; sources.len()];
    for _ in 0..=MAX_LEN {
        let logits = model.decode_step(next, &mut cache);
        next = logits.argmax(1).reshape([sources.len()]);
        for (row, id) in rows.iter_mut().zip(host(&next)) {
            row.push(id);
        }
    }
    rows.into_iter().map(|row| row.into_iter().take_while(|&id| id != END).collect()).collect()
}

fn host(ids: &Tensor<1, Int>) -> Vec<i32> {
    ids.to_data().convert::<i32>().try_to_vec().expect("converted to i32")
}

/// Trains on fresh random sequences; returns the share of 200 unseen ones that come out right.
fn learn(config: TransformerConfig, steps: usize, task: fn(&[i32]) -> Vec<i32>) -> f64 {
    let device = train_device();
    let mut model = config.init_encoder_decoder(1, DType::F32, &device);
    let hyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.0, n_decayed: 0 };
    let mut optimizer = Optimizer::new(&model, 4e-3, hyper, 1.0);
    for step in 0..steps {
        let rows = random_rows(48, 1..=MAX_LEN, step as u64);
        let pairs: Vec<_> = rows.iter().map(|row| (row.clone(), task(row))).collect();
        let batch = batch(&pairs, [MAX_LEN + 1, MAX_LEN + 1], &device);
        let stream = DropoutStream::new(1, step as u64, &device);
        let loss = model.loss(&batch, 0.05, Some(&stream)).loss_sum / batch.target_tokens as f64;
        if step % 50 == 0 {
            println!("step {step}: loss {:.3}", scalar(loss.clone()));
        }
        optimizer.lr = 4e-3 * ((step + 1) as f64 / 40.0).min(1.0 - 0.95 * step as f64 / steps as f64);
        let found = gradients(&model, &loss.backward());
        (model, _) = optimizer.step(model, &found);
    }
    let held_out = random_rows(200, 1..=MAX_LEN, u64::MAX);
    let translated = translate(&model.valid(), &held_out);
    let right = translated.iter().zip(&held_out).filter(|(found, source)| **found == task(source)).count();
    println!("{right} of {} unseen sequences", held_out.len());
    right as f64 / held_out.len() as f64
}

fn config() -> TransformerConfig {
    TransformerConfig { d_model: 32, n_heads: 4, d_ff: 64, n_encoder_layers: 1, n_decoder_layers: 1, ..small_config() }
}

#[test]
fn copies() {
    let right = learn(TransformerConfig { dropout: 0.02, ..config() }, 300, <[i32]>::to_vec);
    assert!(right >= 0.95, "{right} of unseen sequences are copied");
}

#[test]
fn reverses_with_post_norm_and_learned_positions() {
    let config = TransformerConfig { norm: NormPlacement::Post, positions: Positions::Learned, ..config() };
    let right = learn(config, 500, |row| row.iter().rev().copied().collect());
    assert!(right >= 0.95, "{right} of unseen sequences are reversed");
}
