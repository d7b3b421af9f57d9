//! A loss or gradient that is not finite: names the step and the parameters, and saves the batch.
//!
//! The device makes no update from such a gradient. If the run must end ([`NonFinite::Stop`], or a loss scale at its
//! lowest), the device makes no later update either, until the host reads the failure. The weights are then still those
//! that the step failed with, so the step can be computed again exactly and examined.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use burn::tensor::FloatDType;
use kiln_data::files::replace::replace_file;
use kiln_data::{BatchLayout, BatchSource, HostBatch, Loader, LoaderConfig, Position, Rank};
use serde::Serialize;

use crate::checkpoint::named_tensors;
use crate::config::Config;
#[cfg(doc)]
use crate::config::NonFinite;
use crate::device::upload;
use crate::eval::Model;
use crate::metrics::StepMetrics;
use crate::metrics::host_sync::waiting;
use crate::optim::FlatGradients;
use crate::train::state::TrainState;
use crate::train::step::group_gradients;

/// Folder of the batches, in the run folder.
const FOLDER: &str = "non-finite";
/// Parameters named in a message.
const N_NAMED: usize = 5;

/// The start of a step: enough to compute it again.
#[derive(Debug, Clone, Copy, Serialize)]
pub(in crate::train) struct StepStart {
    /// Its number, from 1.
    pub(in crate::train) step: u64,
    /// Of its first micro-batch.
    pub(in crate::train) position: Position,
    /// Number of its first micro-batch.
    pub(in crate::train) micro_step: u64,
}

/// The file that describes a failed step.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    start: StepStart,
    seed: u64,
    /// As text: JSON has no NaN.
    loss: String,
    grad_norm: String,
    /// Parameters with gradients that were not finite, and the number of such elements; `null` if the step was skipped,
    /// because its weights are gone.
    gradients: Option<Vec<(String, usize)>>,
    batches: Vec<BatchRecord<'a>>,
}

/// A micro-batch as [`HostBatch`] lays it out.
#[derive(Debug, Serialize)]
struct BatchRecord<'a> {
    layout: BatchLayout,
    batch_size: usize,
    source_len: usize,
    target_len: usize,
    boundaries: bool,
    token_types: bool,
    preference: Option<f64>,
    /// Row numbers in the data set.
    rows: &'a [u32],
    ids: &'a [i32],
}

/// Checks the metrics of each step and acts on the first number that is not finite.
pub(in crate::train) struct Watch {
    limit: u64,
    folder: PathBuf,
    source: Arc<dyn BatchSource>,
    loader: LoaderConfig,
    /// All batches of a step, as one rank reads them.
    rank: Rank,
    n_batches: usize,
    is_first: bool,
    splits: usize,
    /// Steps whose measurements have not been read yet.
    pending: Vec<StepStart>,
}

impl Watch {
    pub(in crate::train) fn new(config: &Config, run_dir: &Path, source: Arc<dyn BatchSource>, rank: Rank) -> Self {
        Self {
            limit: config.train.max_non_finite_steps,
            folder: run_dir.join(FOLDER),
            source,
            loader: LoaderConfig { num_workers: 0, ..config.loader.clone() },
            n_batches: config.train.grad_accum_steps.max(1) * rank.world_size,
            is_first: rank.rank == 0,
            rank: Rank { rank: 0, world_size: 1, ..rank },
            splits: config.train.split_batches.max(1),
            pending: Vec::new(),
        }
    }

    /// Returns the training data.
    pub(in crate::train) fn source(&self) -> &Arc<dyn BatchSource> {
        &self.source
    }

    /// Records the start of the next step.
    pub(in crate::train) fn begin(&mut self, start: StepStart) {
        self.pending.push(start);
    }

    /// Returns how many of `steps` count: steps after one that ended the run made no update.
    pub(in crate::train) fn n_valid(steps: &[StepMetrics]) -> usize {
        steps.iter().position(|step| step.stopped).map_or(steps.len(), |at| at + 1)
    }

    /// Checks the pending steps up to the last of `steps`, their metrics. `n_before` earlier steps of this run were not finite.
    /// Returns a note on each step that was skipped.
    ///
    /// # Errors
    /// If a step was not finite and the policy is to stop, or if too many were skipped.
    pub(in crate::train) fn check<M: Model>(
        &mut self,
        steps: &[StepMetrics],
        state: &TrainState<M>,
        n_before: u64,
    ) -> Result<Vec<String>> {
        let last = steps.last().map_or(0, |step| step.step);
        let n = self.pending.iter().take_while(|start| start.step <= last).count();
        let starts: Vec<_> = self.pending.drain(..n).collect();
        let failed = steps.iter().filter(|step| step.has_failed());
        let mut notes = Vec::new();

        for (n, step) in (n_before + 1..).zip(failed) {
            let start = starts.iter().find(|start| start.step == step.step).copied();
            let start = start.ok_or_else(|| anyhow!("step {} was measured but never begun", step.step))?;
            if step.stopped {
                return Err(self.stop(step, start, state));
            }

            let batches = self.batches(start, state.seed)?;
            let path = self.write(step, start, state.seed, &batches, None)?;
            let what = format!(
                "step {}: {} is not finite; no update was made, its batch is in {}",
                step.step,
                what(step),
                path.display()
            );
            if n > self.limit {
                return Err(anyhow!(
                    "{what}; that makes {n} such steps, more than train.max_non_finite_steps = {}. {REMEDY}",
                    self.limit
                ));
            }
            notes.push(format!("warning: {what} ({n} of {} that are tolerated)", self.limit));
        }
        Ok(notes)
    }

    /// Computes the failed step again and reports what it finds.
    fn stop<M: Model>(&self, step: &StepMetrics, start: StepStart, state: &TrainState<M>) -> anyhow::Error {
        let examine = || -> Result<String> {
            let batches = self.batches(start, state.seed)?;
            let gradients = culprits(state, &batches, start)?;
            let named: Vec<_> = gradients.iter().take(N_NAMED).map(|(name, n)| format!("{name} ({n})")).collect();
            let more = gradients.len().saturating_sub(N_NAMED);
            let path = self.write(step, start, state.seed, &batches, Some(gradients))?;

            let named = match (named.is_empty(), more) {
                (true, _) => "all gradients are finite when the step is computed again".to_string(),
                (false, 0) => format!("gradients that are not finite, and how many elements: {}", named.join(", ")),
                (false, more) => {
                    format!(
                        "gradients that are not finite, and how many elements: {} and {more} more",
                        named.join(", ")
                    )
                }
            };
            Ok(format!("{named}; the batch is in {}", path.display()))
        };

        let found = examine().unwrap_or_else(|error| format!("and the step could not be examined: {error:#}"));

        let (even, remedy) = match step.loss_scale {
            Some(scale) => (format!(" even with a loss scale of {scale}, the lowest one"), FP16_REMEDY),
            None => (String::new(), REMEDY),
        };
        anyhow!(
            "step {}: {} is not finite{even}, so the run ends without that update and the last checkpoint stays; {found}. {remedy}",
            step.step,
            what(step)
        )
    }

    /// Reads the micro-batches of a step again: their order is a pure function of seed and position.
    fn batches(&self, start: StepStart, seed: u64) -> kiln_data::Result<Vec<HostBatch>> {
        let mut loader = Loader::for_rank(self.source.clone(), &self.loader, seed, start.position, self.rank)?;
        let mut batches = Vec::new();
        for _ in 0..self.n_batches {
            batches.extend(loader.next_batch()?.split(self.splits));
        }
        Ok(batches)
    }

    fn write(
        &self,
        step: &StepMetrics,
        start: StepStart,
        seed: u64,
        batches: &[HostBatch],
        gradients: Option<Vec<(String, usize)>>,
    ) -> Result<PathBuf> {
        let batches = batches.iter().map(|batch| BatchRecord {
            layout: batch.layout,
            batch_size: batch.batch_size,
            source_len: batch.source_len,
            target_len: batch.target_len,
            boundaries: batch.boundaries,
            token_types: batch.token_types,
            preference: batch.preference,
            rows: &batch.rows,
            ids: &batch.ids,
        });

        let (loss, grad_norm) = (step.loss.to_string(), step.grad_norm.to_string());
        let report = Report { start, seed, loss, grad_norm, gradients, batches: batches.collect() };
        let path = self.folder.join(format!("step-{:08}.json", step.step));
        if !self.is_first {
            return Ok(path); // rank 0 writes it
        }
        fs::create_dir_all(&self.folder).with_context(|| format!("{}: cannot be made", self.folder.display()))?;
        replace_file(&path, &serde_json::to_vec(&report).expect("plain numbers and strings"))?;
        Ok(path)
    }
}

const REMEDY: &str = "A lower optim.lr, longer optim.warmup_steps or a smaller optim.max_grad_norm is the usual remedy; \
                      train.non_finite = \"skip\" goes on without such batches.";

const FP16_REMEDY: &str = "fp16 has no numbers above 65504: train.precision = \"bf16\" or \"f32\" is the usual remedy, or a \
                           lower optim.lr.";

fn what(step: &StepMetrics) -> String {
    match (step.loss.is_finite(), step.grad_norm.is_finite()) {
        (false, _) => format!("the loss ({})", step.loss),
        (true, _) => format!("the gradient norm ({})", step.grad_norm),
    }
}

/// Returns the parameters with gradients that are not finite, in the model's order, and the number of such elements.
fn culprits<M: Model>(state: &TrainState<M>, batches: &[HostBatch], start: StepStart) -> Result<Vec<(String, usize)>> {
    let uploaded: Vec<_> = batches.iter().map(|batch| upload(batch, &state.device)).collect();
    let (_, FlatGradients(gradients)) = group_gradients(state, &uploaded, start.micro_step);
    // Host sync: the run is over.
    let flat = waiting(|| gradients.values.cast(FloatDType::F32).into_data());
    let found = named_tensors(state.optimizer.table(), &flat).into_iter().filter_map(|tensor| {
        let n = tensor.values.iter().filter(|value| !value.is_finite()).count();
        (n > 0).then_some((tensor.name, n))
    });
    Ok(found.collect())
}
