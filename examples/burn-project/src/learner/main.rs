//! Trains Kiln's Transformer with a `Learner` of `burn-train`, and compares every loss with the losses of Kiln's trainer.
//!
//! The learner gets Kiln's batches, operators, AdamW, clipping and schedule. Then it resumes from Burn's own checkpoint of the first epoch
//! and repeats the second one.

mod language;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use burn::tensor::{DType, Device};
use burn_train::metric::LossMetric;
use burn_train::{ExecutionStrategy, Learner, SupervisedTraining};
use kiln_data::{
    BatchSource, LoaderConfig, Packing, Task, TextConfig, TextCorpus, TextFormat, TextSource, TextTokenizer,
    TokenizerConfig, prepare_text,
};
use kiln_train::burn_traits::{BatchLoader, BurnSchedule, module_optimizer};
use kiln_train::dataset::{RunData, Vocabulary};
use kiln_train::device::DeviceChoice;
use kiln_train::{Config, Run};
use language::Language;

/// Tokens of a row.
const SEQ_LEN: usize = 64;
const EPOCHS: usize = 2;
/// Largest relative difference of two losses. The trainer divides the gradients of a sum, Burn differentiates a mean: on full batches,
/// whose number of labels is a power of two, both are the same numbers.
const TOLERANCE: f32 = 1e-5;

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let loading = LoaderConfig { batch_tokens: 8 * SEQ_LEN, ..LoaderConfig::default() };
    let (tokenizer, source) = data(folder.path(), &loading)?;
    let steps = EPOCHS as u64 * source.batches_per_epoch();
    let config = Config::preset("gpt2-tiny")
        .set("model.d_model", 64)
        .set("model.d_ff", 256)
        .set("model.dropout", 0.0)
        .set("train.label_smoothing", 0.0)
        .set("data.text.seq_len", SEQ_LEN)
        .set("loader.batch_tokens", loading.batch_tokens)
        .set("train.steps", steps)
        .set("train.log_every", 1)
        .set("train.save_every", steps)
        .set("train.validate_every", steps)
        .set("optim.warmup_steps", 5)
        .validate()?;

    let of_trainer = losses_of_trainer(&folder.path().join("trainer"), &config, &tokenizer, &source)?;
    let dir = folder.path().join("learner");
    let of_learner = losses_of_learner(&dir, &config, &tokenizer, &source, 0)?;
    let resumed = losses_of_learner(&dir, &config, &tokenizer, &source, 1)?;

    ensure!(of_trainer.len() == steps as usize, "the trainer logged {} of {steps} losses", of_trainer.len());
    ensure!(of_learner.len() == of_trainer.len(), "the learner took {} of {steps} steps", of_learner.len());
    let (mut equal, mut largest) = (0, 0_f32);
    for (step, (trainer, learner)) in of_trainer.iter().zip(&of_learner).enumerate() {
        let difference = (trainer - learner).abs() / trainer;
        ensure!(difference <= TOLERANCE, "step {}: loss {learner} of the learner, {trainer} of the trainer", step + 1);
        equal += usize::from(trainer == learner);
        largest = largest.max(difference);
    }
    let half = of_learner.len() / EPOCHS;
    ensure!(of_trainer[half] < of_trainer[0], "the loss does not fall: {of_trainer:?}");
    ensure!(resumed == of_learner[half..], "the resumed epoch differs: {resumed:?} and {:?}", &of_learner[half..]);

    let (first, last) = (of_trainer[0], of_trainer[of_trainer.len() - 1]);
    println!("kiln-train: {steps} steps, loss {first:.4} to {last:.4}");
    println!("burn-train: {equal} losses are equal bit for bit, the others differ by {largest:.1e} at most");
    println!("burn-train, resumed from its checkpoint: the second epoch is equal bit for bit");
    Ok(())
}

/// Reads two files of this repository, with a vocabulary trained on them.
fn data(folder: &Path, loading: &LoaderConfig) -> Result<(TextTokenizer, Arc<dyn BatchSource>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = ["CONTRIBUTING.md", "LICENSE-APACHE"].map(|file| root.join(file));
    let text =
        TextConfig { format: TextFormat::Files, packing: Packing::Stream, seq_len: SEQ_LEN, ..TextConfig::default() };
    let corpus = TextCorpus::open(&files, &text)?;
    let vocabulary = TokenizerConfig { vocab_size: 512, ..TokenizerConfig::default() };
    let tokenizer = TextTokenizer::train(&vocabulary, &corpus, 2)?;
    let cache = prepare_text(&folder.join("text.tokens"), &corpus, &tokenizer, 2, &mut |_| ())?.cache;
    let source = TextSource::new(cache, &tokenizer, Task::Lm, &text, loading)?;
    Ok((tokenizer, Arc::new(source)))
}

/// Trains as `kiln train` does. Returns the loss of every step.
fn losses_of_trainer(
    dir: &Path,
    config: &Config,
    tokenizer: &TextTokenizer,
    source: &Arc<dyn BatchSource>,
) -> Result<Vec<f32>> {
    let data = RunData::new(Vocabulary::Text(tokenizer.clone()), source.clone());
    Run::create(dir, config.clone())?.on(DeviceChoice::Cpu).train_on(data)?;

    let metrics = fs::read_to_string(dir.join("metrics.jsonl")).context("the metrics of the trainer")?;
    let mut losses = Vec::new();
    for line in metrics.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        if let (true, Some(loss)) = (line["kind"] == "step", line["loss"].as_f64()) {
            losses.push(loss as f32);
        }
    }
    Ok(losses)
}

/// Trains with Burn's loop, from the start or behind the `done` epochs that a learner in this folder has finished. Returns the loss of
/// every step.
fn losses_of_learner(
    dir: &Path,
    config: &Config,
    tokenizer: &TextTokenizer,
    source: &Arc<dyn BatchSource>,
    done: usize,
) -> Result<Vec<f32>> {
    let device = Device::flex().autodiff();
    let losses = Arc::new(Mutex::new(Vec::new()));
    let shape = config.model.clone().with_vocab_size(tokenizer.vocab_size());
    // A model that resumes gets its weights from the checkpoint: other initial ones show that it does.
    let seed = config.seed + done as u64;
    let model = Language {
        transformer: shape.init(seed, DType::F32, &device),
        max_grad_norm: config.optim.max_grad_norm,
        losses: losses.clone(),
    };
    let optimizer = module_optimizer(config, burn::tensor::FloatDType::F32, &model);
    let learner = Learner::new(model, optimizer, BurnSchedule::new(config));

    let train = BatchLoader::new(source.clone(), &config.loader, config.seed, &device).at_epoch(done as u64);
    let in_order = LoaderConfig { shuffle: false, ..config.loader.clone() };
    let valid = BatchLoader::new(source.clone(), &in_order, config.seed, &device);
    let mut training = SupervisedTraining::new(dir, Arc::new(train), Arc::new(valid))
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_training_strategy(ExecutionStrategy::single(device).into())
        .with_application_logger(None)
        .with_default_checkpointers()
        .num_epochs(EPOCHS);
    if done > 0 {
        training = training.checkpoint(done);
    }
    let result = training.launch(learner);
    ensure!(result.error.is_none(), "burn-train failed: {:?}", result.error);
    let losses = losses.lock().expect("no thread panicked while it had the losses").clone();
    Ok(losses)
}
