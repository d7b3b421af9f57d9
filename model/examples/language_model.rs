//! Trains a small Llama to count, then continues two prompts of different lengths with a key/value cache.
//!
//! ```text
//! cargo run --release -p kiln-model --example language_model
//! ```

#[allow(dead_code, reason = "each example uses a part of it")]
mod training;

use std::error::Error;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device};
use kiln_data::{
    Loader, LoaderConfig, Packing, Position, Task, TextConfig, TextCorpus, TextSource, TextTokenizer, TokenizerConfig,
    prepare_text,
};
use kiln_model::{
    Architecture, DropoutStream, FeedForwardActivation, NormKind, Positions, Prompts, TextBatch, TransformerConfig,
};
use training::{AdamW, folder, host, ids, scalar, write_counting};

const STEPS: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = folder("kiln-example-language-model")?;
    let file = folder.join("counting.txt");
    write_counting(&file)?;

    // Text -> tokenizer -> token cache -> rows of 64 tokens, several documents each.
    let text = TextConfig { seq_len: 64, packing: Packing::Documents, ..TextConfig::default() };
    let corpus = TextCorpus::open(&[file], &text)?;
    let tokenizer_config = TokenizerConfig { vocab_size: 120, byte_fallback: false, ..TokenizerConfig::default() };
    let tokenizer = TextTokenizer::train(&tokenizer_config, &corpus, 1)?;
    let cache = prepare_text(&folder.join("train.tokens"), &corpus, &tokenizer, 1, &mut |_| ())?.cache;
    let loading = LoaderConfig { batch_tokens: 1024, num_workers: 1, ..LoaderConfig::default() };
    let source = Arc::new(TextSource::new(cache, &tokenizer, Task::Lm, &text, &loading)?);
    let mut loader = Loader::new(source, &loading, 1, Position::default())?;

    let config = TransformerConfig {
        architecture: Architecture::DecoderOnly,
        d_model: 64,
        n_heads: 4,
        n_kv_heads: 2,
        d_ff: 160,
        n_decoder_layers: 2,
        target_vocab_size: tokenizer.vocab_size(),
        max_positions: 64,
        norm_kind: NormKind::RmsNorm,
        positions: Positions::Rotary,
        activation: FeedForwardActivation::SWIGLU,
        bias: false,
        dropout: 0.0,
        pad_id: tokenizer.special().pad.unwrap_or(0),
        ..TransformerConfig::default()
    };
    let device = Device::flex();
    let mut model = config.init_decoder_only(1, DType::F32, &device.clone().autodiff());
    println!("{} parameters, {} tokens in the vocabulary", model.num_params(), tokenizer.vocab_size());

    let mut optimizer = AdamW::new(4e-3);
    for step in 0..STEPS {
        let rows = loader.next_batch()?;
        let shape = [rows.batch_size, rows.target_len];
        let batch = TextBatch::from_contiguous(ids(&rows.ids, &device), shape, rows.target_tokens, rows.boundaries);
        let stream = DropoutStream::new(1, step, &device);

        let sums = model.loss(&batch, 0.0, Some(&stream));
        let loss = sums.loss_sum / sums.n_labels;
        if step % 50 == 0 || step + 1 == STEPS {
            println!("step {step:3}: loss {:.3}", scalar(&loss));
        }

        let decay = 1.0 - step as f64 / STEPS as f64;
        model = optimizer.step(model, &loss.backward(), decay);
        loader.recycle(rows);
    }

    // Continue both prompts in one batch. Each row counts its own positions.
    let model = model.valid();
    let prompts = ["forty one, forty two,", "one hundred seven, one hundred eight, one hundred nine,"];
    let mut rows: Vec<Vec<u32>> = prompts.iter().map(|text| tokenizer.encode_prompt(text)).collect::<Result<_, _>>()?;
    let starts: Vec<usize> = rows.iter().map(Vec::len).collect();
    let Prompts { ids: prompt, lengths, batch_size, .. } = Prompts::new(&rows, &config, &device)?;
    let (mut logits, mut cache) = model.prefill(prompt, lengths);

    for _ in 0..12 {
        let next = logits.argmax(1).reshape([batch_size]).cast(DType::I32);
        for (row, id) in rows.iter_mut().zip(host(&next)) {
            row.push(id);
        }
        logits = model.decode_step(next, &mut cache);
    }
    for ((prompt, row), start) in prompts.iter().zip(&rows).zip(starts) {
        println!("{prompt} ...{}", tokenizer.decode(&row[start..])?);
    }
    Ok(())
}
