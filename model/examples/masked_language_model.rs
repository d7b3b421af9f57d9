//! Trains a small BERT (with rotary positions) on masked words of counting, then predicts one masked word.
//!
//! ```text
//! cargo run --release -p kiln-model --example masked_language_model
//! ```

#[allow(dead_code, reason = "each example uses a part of it")]
mod training;

use std::error::Error;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device};
use kiln_data::{
    Loader, LoaderConfig, Packing, Position, Task, TextConfig, TextCorpus, TextSource, TextTokenizer, TokenizerConfig,
    TokenizerKind, prepare_text,
};
use kiln_model::mlm::{MaskConfig, mask_tokens};
use kiln_model::{Activation, Architecture, DropoutStream, EncoderOnly, Positions, TextBatch, TransformerConfig};
use training::{AdamW, folder, host, ids, scalar, write_counting};

const STEPS: u64 = 600;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = folder("kiln-example-masked-language-model")?;
    let file = folder.join("counting.txt");
    write_counting(&file)?;

    let text = TextConfig { seq_len: 64, packing: Packing::Sentences, ..TextConfig::default() };
    let corpus = TextCorpus::open(&[file], &text)?;
    let tokenizer_config = TokenizerConfig {
        kind: TokenizerKind::WordPiece,
        vocab_size: 120,
        mask_token: Some("[MASK]".into()),
        ..TokenizerConfig::default()
    };
    let tokenizer = TextTokenizer::train(&tokenizer_config, &corpus, 1)?;
    let cache = prepare_text(&folder.join("train.tokens"), &corpus, &tokenizer, 1, &mut |_| ())?.cache;
    let loading = LoaderConfig { batch_tokens: 1024, num_workers: 1, ..LoaderConfig::default() };
    let source = Arc::new(TextSource::new(cache, &tokenizer, Task::Mlm, &text, &loading)?);
    let mut loader = Loader::new(source, &loading, 1, Position::default())?;

    let config = TransformerConfig {
        architecture: Architecture::EncoderOnly,
        d_model: 64,
        n_heads: 4,
        d_ff: 256,
        n_encoder_layers: 2,
        source_vocab_size: tokenizer.vocab_size(),
        max_positions: 64,
        embedding_norm: true,
        scale_embedding: false,
        positions: Positions::Rotary,
        activation: Activation::Gelu.into(),
        dropout: 0.0,
        pad_id: tokenizer.special().pad.unwrap_or(0),
        ..TransformerConfig::default()
    };
    let device = Device::flex();
    let mut model = config.init_encoder_only(1, DType::F32, &device.clone().autodiff());
    let mask_id = tokenizer.special().mask.ok_or("the tokenizer has no mask token")?;
    let masking = MaskConfig::new(mask_id, tokenizer.special_ids(), tokenizer.vocab_size());
    println!("{} parameters, {} tokens in the vocabulary", model.num_params(), tokenizer.vocab_size());

    let mut optimizer = AdamW::new(3e-3);
    for step in 0..STEPS {
        let rows = loader.next_batch()?;
        let shape = [rows.batch_size, rows.target_len];
        let batch = TextBatch::from_contiguous(ids(&rows.ids, &device), shape, rows.target_tokens, rows.boundaries);
        let batch = mask_tokens(&batch, &masking, &DropoutStream::new(1, step, &device));

        let sums = model.loss(&batch, 0.0, None);
        let loss = sums.loss_sum / sums.n_labels;
        if step % 50 == 0 || step + 1 == STEPS {
            let sums = model.valid().evaluate(&batch, 0.0);
            let accuracy = scalar(&sums.n_correct) / scalar(&sums.losses.n_labels);
            println!("step {step:3}: loss {:.3}, {:.0} % of the masked tokens", scalar(&loss), 100.0 * accuracy);
        }

        let decay = 1.0 - step as f64 / STEPS as f64;
        model = optimizer.step(model, &loss.backward(), decay);
        loader.recycle(rows);
    }

    fill_in(&model.valid(), &tokenizer, mask_id, &device)
}

/// Masks one word of a sentence and prints the model's prediction.
fn fill_in(
    model: &EncoderOnly,
    tokenizer: &TextTokenizer,
    mask_id: u32,
    device: &Device,
) -> Result<(), Box<dyn Error>> {
    let sentence = "one hundred thirty one, one hundred thirty two, one hundred thirty three, one hundred thirty four";
    let (before, behind) = tokenizer.around();
    let mut row = [before, tokenizer.encode(sentence)?, behind].concat();
    // The last word of "thirty three".
    let unit = tokenizer.id("three").ok_or("no token for three")?;
    let hidden = row.iter().position(|&id| id == unit).ok_or("three is not in the sentence")?;
    row[hidden] = mask_id;

    let row: Vec<i32> = row.into_iter().map(u32::cast_signed).collect();
    let batch = TextBatch {
        input: ids(&row, device),
        labels: ids(&row, device),
        positions: None,
        documents: None,
        token_types: None,
        preference: None,
        max_labels: None,
        lengths: ids(&[row.len() as i32], device),
        batch_size: 1,
        seq_len: row.len(),
        tokens: row.len() as u64,
    };
    let guesses = host(&model.logits(&batch, None).argmax(1).reshape([row.len()]));
    println!("{sentence}: token {hidden} is hidden, the guess is {:?}", tokenizer.decode(&guesses[hidden..=hidden])?);
    Ok(())
}
