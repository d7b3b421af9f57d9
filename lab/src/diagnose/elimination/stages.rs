//! The loader's time by stage, and its memory map against tokens in memory.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, BatchWorker, CorpusConfig, EpochPlan, HostBatch, Order, PairCorpus, Shape, TextConfig, TextCorpus,
    TextFormat,
};
use kiln_train::dataset::Vocabulary;
use kiln_train::eval::Model;

use super::feeding::load;
use super::figures::Figures;
use super::subject::Subject;
use super::verdict::{Found, Test, Verdict, percent};
use super::watch::{Pace, pace};
use crate::diagnose::measure::Effort;

/// Rows whose text is parsed and tokenized.
const SAMPLE_ROWS: usize = 2000;

/// Runs one of the tests of this file.
///
/// # Errors
/// If a batch cannot be made.
pub(super) fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    Ok(Ok(match test {
        Test::Stages => stages(subject, figures)?,
        _ => map(subject)?,
    }))
}

/// Makes batches of a step on this thread.
fn collate<M: Model>(subject: &Subject<'_, M>, source: Arc<dyn BatchSource>) -> Result<Pace> {
    let plan = source.plan(Order::Sequential);
    let (mut worker, mut batch) = (source.worker(), HostBatch::default());
    let each = subject.accumulated();
    let (pace, ()) = pace(&subject.device, Effort { warm_up: 1, ..subject.effort }, |step| {
        (step * each..(step + 1) * each).try_for_each(|index| worker.fill(&plan, index, &mut batch))?;
        Ok(())
    })?;
    Ok(pace)
}

fn stages<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let sample = Sample::of(subject)?;
    let (parse, tokenize) = (sample.parse_ms()?, sample.tokenize_ms(subject)?);
    let filled = collate(subject, subject.window()?)?;
    let collate = filled.ms;
    let queue = (load(subject, 1)?.ms - filled.ms).max(0.0);
    figures.stages_ms = Some([parse, tokenize, collate, queue]);

    let once = match subject.config.data.cache_limit {
        Some(_) => "paid in every epoch, ahead of the training, because data.cache_limit is set",
        None => "paid once, when the token cache is built",
    };
    let share = |ms: f64| format!("{} of the loader's time", percent(ms / (collate + queue).max(1e-9)));
    Ok(vec![
        Verdict::new("parse", parse, "ms", format!("JSON lines of the rows of a step; {once}")),
        Verdict::new("tokenize", tokenize, "ms", format!("the same rows; {once}")),
        Verdict::new("collate", collate, "ms", format!("tokens to padded rows; {}", share(collate))),
        Verdict::new("queue", queue, "ms", format!("what a loader thread adds; {}", share(queue))),
    ])
}

/// Text of rows of the run, decoded from the tokens of its batches.
struct Sample {
    texts: Vec<String>,
    /// Rows of a step, relative to the rows of the sample.
    factor: f64,
    is_pairs: bool,
}

impl Sample {
    fn of<M: Model>(subject: &Subject<'_, M>) -> Result<Self> {
        let mut loader = subject.loader(subject.window()?, 0)?;
        let (mut texts, mut n_rows, mut n_batches) = (Vec::new(), 0, 0);
        while n_batches < subject.effort.steps * subject.accumulated() {
            let batch = loader.next_batch()?;
            n_batches += 1;
            n_rows += batch.batch_size;
            let width = batch.target_len.max(1);
            let room = SAMPLE_ROWS.saturating_sub(texts.len());
            for (row, labels) in batch.labels().chunks(width).enumerate().take(room) {
                let ids = if subject.data.vocabulary.pairs().is_some() {
                    &labels[..batch.target_lengths()[row] as usize]
                } else {
                    &batch.target_input()[row * width..][..batch.lengths()[row] as usize]
                };
                let ids: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
                texts.push(match &subject.data.vocabulary {
                    Vocabulary::Pairs(tokenizers) => tokenizers.decode(&ids)?,
                    Vocabulary::Text(tokenizer) => tokenizer.decode(&ids)?,
                });
            }
            loader.recycle(batch);
        }

        let per_step = n_rows as f64 / subject.effort.steps as f64;
        let is_pairs = subject.data.vocabulary.pairs().is_some();
        let factor = per_step / texts.len().max(1) as f64;
        // A text of special tokens alone is not a row.
        let texts = texts.into_iter().map(|text| if text.trim().is_empty() { "a".into() } else { text }).collect();
        Ok(Self { texts, factor, is_pairs })
    }

    /// The fastest of a few passes, as milliseconds of a step.
    fn time(&self, mut pass: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            let started = Instant::now();
            pass()?;
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
        Ok(1e3 * self.factor * fastest)
    }

    fn parse_ms(&self) -> Result<f64> {
        let folder = tempfile::tempdir().context("making a temporary folder for a sample of the text")?;
        let path = folder.path().join("sample.jsonl");
        let line = |text: &String| match self.is_pairs {
            true => serde_json::json!({"src": text, "trg": text}).to_string(),
            false => serde_json::json!({"text": text}).to_string(),
        };
        let lines: Vec<String> = self.texts.iter().map(line).collect();
        fs::write(&path, lines.join("\n") + "\n").with_context(|| format!("writing {}", path.display()))?;

        if self.is_pairs {
            let config = CorpusConfig { max_source_len: 0, max_target_len: 0, ..CorpusConfig::default() };
            let corpus = PairCorpus::open(&[path], &config)?;
            self.time(|| {
                corpus.read_all()?;
                Ok(())
            })
        } else {
            let config = TextConfig { format: TextFormat::Auto, ..TextConfig::default() };
            let corpus = TextCorpus::open(&[path], &config)?;
            self.time(|| {
                corpus.read_all()?;
                Ok(())
            })
        }
    }

    fn tokenize_ms<M: Model>(&self, subject: &Subject<'_, M>) -> Result<f64> {
        let mut ids = Vec::new();
        match &subject.data.vocabulary {
            Vocabulary::Pairs(tokenizers) => self.time(|| {
                let mut encoder = tokenizers.encoder();
                for text in &self.texts {
                    ids.clear();
                    // Both sides; the sample has the text of the target.
                    encoder.encode_target(text, &mut ids)?;
                    encoder.encode_target(text, &mut ids)?;
                }
                Ok(())
            }),
            Vocabulary::Text(tokenizer) => self.time(|| {
                let mut encoder = tokenizer.encoder();
                for text in &self.texts {
                    ids.clear();
                    encoder.encode(text, &mut ids)?;
                }
                Ok(())
            }),
        }
    }
}

fn map<M: Model>(subject: &Subject<'_, M>) -> Result<Vec<Verdict>> {
    let window = subject.window()?;
    // The first touch may read the disk.
    let plan = window.plan(Order::Sequential);
    let (mut worker, mut held) = (window.clone().worker(), Vec::new());
    let started = Instant::now();
    for index in 0..plan.len() {
        let mut batch = HostBatch::default();
        worker.fill(&plan, index, &mut batch)?;
        held.push(batch);
    }
    let first = 1e3 * started.elapsed().as_secs_f64() / subject.effort.steps as f64;

    let mapped = collate(subject, window)?;
    let memory = collate(subject, Arc::new(Held(held)))?;
    let words = format!("the first touch took {first:.3} ms; later ones read what the system has cached");
    Ok(vec![
        Verdict::new("batches of a step from the map", mapped.ms, "ms", words).within(mapped.spread).against(memory.ms),
        Verdict::new("batches of a step from memory", memory.ms, "ms", "copies of finished batches")
            .within(memory.spread),
    ])
}

/// Batches that are in memory.
struct Held(Vec<HostBatch>);

impl BatchSource for Held {
    fn plan(&self, _order: Order) -> EpochPlan {
        let mut plan = EpochPlan::with_capacity(self.0.len());
        (0u32..).zip(&self.0).for_each(|(index, batch)| plan.push(&[index], batch.shape()));
        plan
    }

    fn batches_per_epoch(&self) -> u64 {
        self.0.len() as u64
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        None
    }

    fn fingerprint(&self) -> String {
        String::new()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(Copies(self))
    }
}

struct Copies(Arc<Held>);

impl BatchWorker for Copies {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        batch.clone_from(&self.0.0[plan.batch(index).0[0] as usize]);
        Ok(())
    }
}
