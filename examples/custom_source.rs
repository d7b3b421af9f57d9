//! Trains on a data set of your own: sums, made in memory, which no file holds. It takes seconds on a CPU:
//!
//! ```text
//! cargo run --release --example custom_source
//! ```
//!
//! A data set is a [`BatchSource`]. It needs four things: a plan of the batches of an epoch (here [`Buckets`] of rows
//! of similar length), their number, a fingerprint, and a [`BatchWorker`] that fills batches (here with a
//! [`Collator`]). The loader runs the workers on its threads; the order of the batches depends on the seed alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln::dataset::{RunData, Vocabulary};
use kiln::device::DeviceChoice;
use kiln::{Config, Run};
use kiln_data::{
    BatchSource, BatchWorker, Buckets, Collator, EpochPlan, Example, HostBatch, LoaderConfig, Order, PairTokenizers,
    Shape, TokenizerConfig,
};

/// Pairs of token ids in memory.
struct Sums {
    rows: Vec<(Vec<u32>, Vec<u32>)>,
    buckets: Buckets,
    tokenizers: PairTokenizers,
}

impl Sums {
    fn new(examples: &[Example], tokenizers: &PairTokenizers, loader: &LoaderConfig) -> kiln_data::Result<Self> {
        let mut encoder = tokenizers.encoder();
        let mut rows = Vec::new();
        for example in examples {
            let (mut source, mut target) = (Vec::new(), Vec::new());
            encoder.encode_source(&example.source, &mut source)?;
            encoder.encode_target(&example.target, &mut target)?;
            rows.push((source, target));
        }

        // Lengths count the end token, which the collator adds. (0, 0): no limit.
        let lengths = rows.iter().map(|(source, target)| (source.len() + 1, target.len() + 1));
        let buckets = Buckets::new(lengths, (0, 0), loader)?;
        Ok(Self { rows, buckets, tokenizers: tokenizers.clone() })
    }
}

impl BatchSource for Sums {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes())
    }

    /// A hash of all rows. Checkpoints save it, and a run refuses to resume on other data.
    fn fingerprint(&self) -> String {
        blake3::hash(format!("{:?}", self.rows).as_bytes()).to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(SumsWorker(self))
    }
}

/// Fills batches on one thread of the loader.
struct SumsWorker(Arc<Sums>);

impl BatchWorker for SumsWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        let (numbers, shape) = plan.batch(index);
        let mut collator = Collator::new(batch, shape, self.0.tokenizers.special());
        for &number in numbers {
            let (source, target) = &self.0.rows[number as usize];
            collator.push(number, source, target);
        }
        Ok(())
    }
}

/// Returns example `i`: `12+30` -> `42`.
fn example(i: u32) -> Example {
    let (a, b) = (i * 37 % 100, i * 61 % 97);
    Example { source: format!("{a}+{b}"), target: (a + b).to_string() }
}

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("sums");
    let config = Config::preset("tiny")
        .set("train.steps", 60)
        .set("optim.warmup_steps", 10)
        .set("train.log_every", 20)
        .set("train.validate_every", 30)
        .set("generate.max_new_tokens", 8)
        .validate()?;

    // The rows, and a vocabulary in which each digit is a token.
    let train: Vec<Example> = (0..4000).map(example).collect();
    let valid: Vec<Example> = (4000..4200).map(example).collect();
    let vocabulary =
        TokenizerConfig { vocab_size: 64, byte_fallback: false, split_digits: true, ..TokenizerConfig::default() };
    let tokenizers = PairTokenizers::train_on_examples(&vocabulary, &train, 2)?;

    // Without validation: `RunData::new(vocabulary, train)`.
    let data = RunData {
        valid: Some(Arc::new(Sums::new(&valid, &tokenizers, &config.loader)?)),
        valid_examples: valid,
        ..RunData::new(Vocabulary::Pairs(tokenizers.clone()), Arc::new(Sums::new(&train, &tokenizers, &config.loader)?))
    };
    let outcome = Run::create(&dir, config)?.on(DeviceChoice::Cpu).with_console().train_on(data)?;
    println!("{} steps, loss {:.3}", outcome.step, outcome.validation.expect("there is validation data").loss);

    let run = Run::open(&dir)?.on(DeviceChoice::Cpu);
    for (sum, result) in ["1+2", "40+2"].iter().zip(run.translate(&["1+2", "40+2"])?) {
        println!("{sum} = {result}"); // a run this short has not learned to add
    }
    Ok(())
}
