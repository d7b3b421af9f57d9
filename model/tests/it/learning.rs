//! Toy tasks that a correct model learns in seconds, such as copying and reversing unseen random sequences.

use burn::module::Module;
use burn::tensor::{DType, Int, Tensor};
use kiln_kernels::optim::AdamWHyper;
use kiln_model::mlm::{MaskConfig, mask_tokens};
use kiln_model::{DropoutStream, EncoderDecoder, NormPlacement, Positions, Prompts, TextBatch, TransformerConfig};

use crate::support::{
    END, Optimizer, START, batch, bert_config, gradients, ids, llama_config, random_rows, scalar, small_config,
    text_batch, train_device,
};

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

/// Trains on random sequences. Returns the fraction of 200 unseen ones that the model translates correctly.
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

/// `START row END row`, with labels for the second row only.
fn repeated(row: &[i32]) -> (Vec<i32>, Vec<i32>) {
    let text = [&[START], row, &[END], row].concat();
    let labels = (1..text.len()).map(|at| if at > row.len() + 1 { text[at] } else { TextBatch::NOT_COUNTED });
    (text[..text.len() - 1].to_vec(), labels.collect())
}

/// A Llama learns to repeat a row. The test decodes one batch of prompts of different lengths.
#[test]
fn a_decoder_repeats_what_it_read() {
    let device = train_device();
    let config = TransformerConfig { d_model: 32, d_ff: 64, ..llama_config() };
    let mut model = config.init_decoder_only(1, DType::F32, &device);
    let hyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.0, n_decayed: 0 };
    let mut optimizer = Optimizer::new(&model, 4e-3, hyper, 1.0);

    let steps = 400;
    for step in 0..steps {
        let (texts, labels): (Vec<_>, Vec<_>) =
            random_rows(48, 1..=MAX_LEN, step as u64).iter().map(|row| repeated(row)).unzip();
        let mut batch = text_batch(&texts, 2 * MAX_LEN + 1, &device);
        let padded = labels.into_iter().flat_map(|row: Vec<i32>| {
            let padding = batch.seq_len - row.len();
            row.into_iter().chain(std::iter::repeat_n(TextBatch::NOT_COUNTED, padding))
        });
        batch.labels = ids(&padded.collect::<Vec<_>>(), &device);
        let sums = model.loss(&batch, 0.0, None);
        optimizer.lr = 4e-3 * ((step + 1) as f64 / 40.0).min(1.0 - 0.95 * step as f64 / steps as f64);
        let found = gradients(&model, &(sums.loss_sum / sums.n_labels).backward());
        (model, _) = optimizer.step(model, &found);
    }

    let (model, device) = (model.valid(), burn::tensor::Device::flex());
    let rows = random_rows(100, 1..=MAX_LEN, u64::MAX);
    let prompts: Vec<Vec<i32>> = rows.iter().map(|row| [&[START], row.as_slice(), &[END]].concat()).collect();
    let prompts = Prompts::new(&prompts, &config, &device).expect("sound prompts");
    let (mut logits, mut cache) = model.prefill(prompts.ids, prompts.lengths);
    let mut said = vec![vec![]; rows.len()];
    for _ in 0..MAX_LEN {
        let next = logits.argmax(1).reshape([rows.len()]);
        said.iter_mut().zip(host(&next)).for_each(|(said, id)| said.push(id));
        logits = model.decode_step(next, &mut cache);
    }
    let right = said.iter().zip(&rows).filter(|(said, row)| said.starts_with(row)).count();
    assert!(right >= 95, "{right} of 100 unseen rows are repeated");
}

/// A BERT learns that tokens count upwards, from masked rows.
#[test]
fn an_encoder_fills_in_what_is_masked() {
    let device = train_device();
    let config = TransformerConfig { d_model: 32, d_ff: 64, source_vocab_size: 13, ..bert_config() };
    let mut model = config.init_encoder_only(1, DType::F32, &device);
    let masking = MaskConfig::new(12, vec![0, 1, 2, 12], 13);
    let hyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.0, n_decayed: 0 };
    let mut optimizer = Optimizer::new(&model, 4e-3, hyper, 1.0);
    let batch = |step: u64| {
        // The tokens 3 to 11 in ascending order, from a random start.
        let rows: Vec<Vec<i32>> = random_rows(32, 1..=1, step)
            .iter()
            .enumerate()
            .map(|(i, first)| (0..6 + i as i32 % 5).map(|at| 3 + (first[0] - 3 + at) % 9).collect())
            .collect();
        let mut batch = text_batch(&rows, 0, &device);
        let padding = batch.input.clone().equal_elem(0);
        batch.labels = batch.input.clone().mask_fill(padding, TextBatch::NOT_COUNTED);
        mask_tokens(&batch, &masking, &DropoutStream::new(1, step, &device))
    };

    let steps = 300;
    for step in 0..steps {
        let sums = model.loss(&batch(step), 0.0, None);
        optimizer.lr = 4e-3 * ((step + 1) as f64 / 40.0).min(1.0 - 0.95 * step as f64 / steps as f64);
        let found = gradients(&model, &(sums.loss_sum / sums.n_labels).backward());
        (model, _) = optimizer.step(model, &found);
    }

    let sums = model.evaluate(&batch(u64::MAX), 0.0);
    let accuracy = scalar(sums.n_correct) / scalar(sums.losses.n_labels);
    // One token in nine is correct by chance.
    assert!(accuracy >= 0.9, "{accuracy} of unseen masked tokens");
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
