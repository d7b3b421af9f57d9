//! Trains a model of your own with Kiln's data, optimizer, logging and checkpoints. It takes seconds on a CPU:
//!
//! ```text
//! cargo run --release --example own_model
//! ```
//!
//! With arguments, the program is `kiln` for this model. It trains on text of your own, and measures and diagnoses its steps:
//!
//! ```text
//! cargo run --release --example own_model -- train --task lm --run runs/bigram --device cpu
//! cargo run --release --example own_model -- diagnose --run runs/bigram --device cpu
//! ```
//!
//! The model guesses the next token from the current one alone: an embedding, a hidden layer and an output layer. All
//! it needs is a Burn module and the loss of a batch.

use std::process::ExitCode;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Distribution, Tensor};
use kiln::device::DeviceChoice;
use kiln::{Config, Model, Run};
use kiln_kernels::{Activation, CrossEntropyConfig, cross_entropy, embed, linear, linear_activated};
use kiln_model::{Batch, DropoutStream, LossSums, TextBatch, TransformerConfig};

/// A bigram model with a hidden layer. Legend of shapes: M tokens, D hidden features, V vocabulary.
#[derive(Module, Debug)]
struct Bigram {
    /// `[V, D]`
    embedding: Param<Tensor<2>>,
    /// `[D, D]`
    hidden: Param<Tensor<2>>,
    /// `[D, V]`
    output: Param<Tensor<2>>,
}

impl Bigram {
    /// Initial weights. The shape comes from the run's configuration, whose vocabulary size is filled in by now.
    fn init(config: &TransformerConfig, device: &Device) -> Self {
        let (v, d) = (config.vocab_size(), config.d_model);
        let weight =
            |shape: [usize; 2]| Param::from_tensor(Tensor::random(shape, Distribution::Normal(0.0, 0.05), device));
        Self { embedding: weight([v, d]), hidden: weight([d, d]), output: weight([d, v]) }
    }

    /// # Shapes
    /// - result: `[M, V]`
    fn logits(&self, batch: &TextBatch) -> Tensor<2> {
        let x = embed(batch.input.clone(), self.embedding.val(), 1.0, None, None);
        let x = linear_activated(x, self.hidden.val(), None, Activation::Gelu, None);
        linear(x, self.output.val(), None)
    }
}

impl Model for Bigram {
    fn loss(&self, batch: &Batch, label_smoothing: f64, _stream: Option<&DropoutStream>) -> LossSums {
        let Batch::Text(batch) = batch else { panic!("this model learns from text: train it with task = \"lm\"") };
        let ignore_index = TextBatch::NOT_COUNTED.into();
        let config = CrossEntropyConfig { label_smoothing, ignore_index };
        let sums = cross_entropy(self.logits(batch), batch.labels.clone(), &config);

        let counts = batch.labels.clone().not_equal_elem(ignore_index).int();
        LossSums { loss_sum: sums.loss_sum, nll_sum: sums.nll_sum, n_labels: counts.sum().float().cast(DType::F32) }
    }

    fn has_dropout(&self) -> bool {
        false
    }
}

fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().len() > 1 {
        return Ok(kiln::cli::main_for(Bigram::init));
    }
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("bigram");

    // The built-in text: sentences such as "105 is one hundred five."
    let config = Config::preset("gpt2-tiny")
        .set("model.d_model", 64)
        .set("train.steps", 60)
        .set("optim.warmup_steps", 10)
        .set("train.log_every", 20)
        .set("train.save_every", 30)
        .set("train.validate_every", 30)
        .validate()?;

    let run = Run::create(&dir, config)?.on(DeviceChoice::Cpu).with_console();
    let outcome = run.train_model(Bigram::init)?;
    let validation = outcome.validation.expect("the built-in task has validation text");
    println!("perplexity {:.2} after {} steps", validation.perplexity(), outcome.step);
    println!("checkpoint {}", outcome.checkpoint.expect("a run saves at its end").display());

    // A run of your own model resumes like any other: this one has nothing left to do.
    let again = Run::open(&dir)?.on(DeviceChoice::Cpu).resume_model(Bigram::init)?;
    println!("resumed: {:?}", again.ended);
    Ok(ExitCode::SUCCESS)
}
