//! Trains heads of your own on Kiln's encoder: they find wrong tokens of a text and correct them. It takes about a minute on a CPU:
//!
//! ```text
//! cargo run --release --example error_detector
//! ```
//!
//! With `--features cuda` and `-- cuda` behind the command, it trains on a GPU. With a command of `kiln` there, it is that command for this
//! model, at any size: `-- bench --preset bert-small --rows 128 --len 128`.
//!
//! `model.rs` has the heads and their loss, `data.rs` the text and its errors. `docs/own-head.md` explains both.

mod data;
mod model;

use std::process::ExitCode;
use std::sync::OnceLock;

use burn::tensor::{DType, Device, FloatDType};
use data::{Confusions, Data};
use kiln::dataset::RunData;
use kiln::device::{DeviceChoice, upload};
use kiln::distributed::Ranks;
use kiln::eval::figures;
use kiln::{Config, Run};
use kiln_data::OnePass;
use kiln_kernels::row_argmax;
use kiln_model::{Batch, TransformerConfig};
use model::ErrorDetector;

fn main() -> anyhow::Result<ExitCode> {
    let device = match std::env::args().nth(1).map(|argument| argument.parse()) {
        None => DeviceChoice::Cpu,
        Some(Ok(device)) => device,
        Some(Err(_)) => return Ok(kiln::cli::main_on(data_of, model_of)),
    };
    show(device)?;
    Ok(ExitCode::SUCCESS)
}

/// The candidates of the data that [`data_of`] has made.
static CONFUSIONS: OnceLock<Confusions> = OnceLock::new();

/// Makes the data of a command.
fn data_of(config: &Config) -> anyhow::Result<RunData> {
    let made = Data::make(config)?;
    CONFUSIONS.get_or_init(|| made.confusions.clone());
    Ok(made.of_run())
}

/// Makes the model of a command. Candidates are neighbours by number where the vocabulary has no spelling: `bench` makes up its tokens.
fn model_of(shape: &TransformerConfig, device: &Device) -> ErrorDetector {
    let made = CONFUSIONS.get().filter(|made| made.vocab_size() == shape.vocab_size()).cloned();
    let confusions =
        made.unwrap_or_else(|| Confusions::of_neighbours(&(0..shape.vocab_size() as u32).collect::<Vec<_>>()));
    ErrorDetector::on(shape.init_encoder_only(1, DType::F32, device), &confusions, device)
}

/// Trains a small model and prints what it finds.
fn show(device: DeviceChoice) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("detector");
    let config = data::settings()
        .set("train.steps", 600)
        .set("train.log_every", 100)
        .set("train.validate_every", 200)
        .validate()?;
    let data = Data::make(&config)?;
    let new = |shape: &TransformerConfig, device: &Device| {
        ErrorDetector::on(shape.init_encoder_only(config.seed, DType::F32, device), &data.confusions, device)
    };

    let run = Run::create(&dir, config.clone())?.on(device).with_console();
    let outcome = run.train_model_on(data.of_run(), new)?;
    let after = outcome.validation.expect("there is validation data").figures;

    // The figures before training, on the same rows and on the CPU.
    let trained = Run::open(&dir)?.trained()?;
    let device = Device::flex();
    let untrained = new(&trained.model, &device);
    let batches = OnePass::new(data.valid.clone(), &config.loader)?;
    let (_, before) = figures(&untrained, batches, 0.0, None, &device, &Ranks::alone())?;
    for (name, after) in &after {
        println!("{name}: {:.3} before training, {after:.3} after", before[name]);
    }

    // Use the best checkpoint.
    let model = trained.load_into(untrained, FloatDType::F32)?;
    for (read, right) in data.valid.first(3) {
        let Batch::Text(batch) = upload(&data::text_batch(read.clone(), right.clone(), read.len()), &device) else {
            unreachable!()
        };
        let (logits, _) = model.corrected(&batch, None);
        let corrected = row_argmax(logits).into_data().iter::<i32>().map(|id| id as u32).collect::<Vec<_>>();
        let read: Vec<u32> = read.iter().map(|id| *id as u32).collect();
        println!("\nread       {}\ncorrected  {}", data.tokenizer.decode(&read)?, data.tokenizer.decode(&corrected)?);
    }
    Ok(())
}
