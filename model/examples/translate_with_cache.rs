//! Trains a small encoder-decoder to spell numbers (512 -> "five hundred twelve"), then translates a batch of unseen numbers
//! greedily with a key/value cache, dropping finished rows.
//!
//! ```text
//! cargo run --release -p kiln-model --example translate_with_cache
//! ```

#[allow(dead_code, reason = "each example uses a part of it")]
mod training;

use std::error::Error;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device};
use kiln_data::built_in::numbers;
use kiln_data::{CorpusConfig, Loader, LoaderConfig, PairCorpus, PairSource, PairTokenizers, Position, prepare_pairs};
use kiln_model::{DropoutStream, EncoderDecoder, PairBatch, TransformerConfig};
use training::{AdamW, folder, host, ids, scalar};

const STEPS: u64 = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = folder("kiln-example-translate")?;
    let file = folder.join("numbers.jsonl");
    let examples = numbers::examples(20_000, 8, 4, 1)?;
    numbers::write_jsonl(&file, &examples.train)?;

    let corpus =
        PairCorpus::open(&[file], &CorpusConfig { max_source_len: 16, max_target_len: 32, ..CorpusConfig::default() })?;
    let tokenizers = PairTokenizers::train(&numbers::tokenizer_config(), &corpus, 1)?;
    let loading = LoaderConfig { batch_tokens: 512, num_workers: 1, ..LoaderConfig::default() };
    let cache = prepare_pairs(&folder.join("numbers.tokens"), &corpus, &tokenizers, 1, &mut |_| {})?.cache;
    let source = Arc::new(PairSource::new(cache, &tokenizers, &loading)?);
    let mut loader = Loader::new(source, &loading, 1, Position::default())?;

    let config = TransformerConfig {
        d_model: 64,
        d_ff: 256,
        max_positions: 32,
        pad_id: tokenizers.special().pad,
        source_vocab_size: tokenizers.source_vocab_size(),
        target_vocab_size: tokenizers.target_vocab_size(),
        ..TransformerConfig::tiny()
    };
    let device = Device::flex();
    let mut model = config.init_encoder_decoder(1, DType::F32, &device.clone().autodiff());
    println!("{} parameters", model.num_params());

    let mut optimizer = AdamW::new(3e-3);
    for step in 0..STEPS {
        let rows = loader.next_batch()?;
        let shape = [rows.batch_size, rows.source_len, rows.target_len];
        let batch = PairBatch::from_contiguous(ids(&rows.ids, &device), shape, rows.source_tokens, rows.target_tokens);
        let sums = model.loss(&batch, 0.0, Some(&DropoutStream::new(1, step, &device)));
        let loss = sums.loss_sum / sums.n_labels;
        if step % 50 == 0 || step + 1 == STEPS {
            println!("step {step:3}: loss {:.3}", scalar(&loss));
        }

        let decay = 1.0 - step as f64 / STEPS as f64;
        model = optimizer.step(model, &loss.backward(), decay);
        loader.recycle(rows);
    }

    let sources: Vec<&str> = examples.held_out.iter().map(|example| example.source.as_str()).collect();
    for (source, ids) in sources.iter().zip(translate(&model.valid(), &tokenizers, &sources, &device)?) {
        println!("{source} -> {}", tokenizers.decode(&ids)?);
    }
    Ok(())
}

/// Translates greedily. Finished rows leave the batch and the cache.
fn translate(
    model: &EncoderDecoder,
    tokenizers: &PairTokenizers,
    sources: &[&str],
    device: &Device,
) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let special = tokenizers.special();
    let mut rows = tokenizers.encode_sources(sources)?;
    rows.iter_mut().for_each(|row| row.push(special.eos));
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let lengths: Vec<i32> = rows.iter().map(|row| row.len() as i32).collect();
    rows.iter_mut().for_each(|row| row.resize(longest, special.pad));
    let flat: Vec<i32> = rows.concat().into_iter().map(u32::cast_signed).collect();
    let memory = model.encode(ids(&flat, device), ids(&lengths, device), rows.len(), None);

    let mut cache = model.start(&memory);
    let mut open: Vec<usize> = (0..rows.len()).collect();
    let mut next = vec![special.bos.cast_signed(); rows.len()];
    let mut targets = vec![vec![]; rows.len()];
    while !open.is_empty() && cache.len() < model.config().max_positions {
        let chosen = host(&model.decode_step(ids(&next, device), &mut cache).argmax(1).reshape([open.len()]));

        let going: Vec<usize> = (0..open.len()).filter(|&i| chosen[i] != special.eos).collect();
        if going.len() < open.len() {
            let kept: Vec<i32> = going.iter().map(|&i| i as i32).collect();
            open = going.iter().map(|&i| open[i]).collect();
            if !open.is_empty() {
                cache.select(&ids(&kept, device));
            }
        }

        next = going.iter().map(|&i| chosen[i].cast_signed()).collect();
        for (&row, &id) in open.iter().zip(&next) {
            targets[row].push(id.cast_unsigned());
        }
    }
    Ok(targets)
}
