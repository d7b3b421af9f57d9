//! Steps over batches that are already on the device: warmed up, and on the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use kiln_kernels::compilation::AheadError;
use kiln_model::{Batch, Transformer};
use kiln_train::config::Capture;
use kiln_train::eval::Model;
use kiln_train::metrics::Round;
use kiln_train::metrics::deferred::Measures;
use kiln_train::train::{CapturedSteps, TrainState, compile_step};

use super::pace::{Effort, time};

/// A model and the batches that its steps alternate between.
pub(crate) struct Stepper<M: Model = Transformer> {
    pub(crate) state: TrainState<M>,
    pub(crate) batches: Vec<Batch>,
    captured: CapturedSteps<M>,
    device: Device,
    n_steps: usize,
    /// The mean loss of the first step on each batch.
    first_losses: Vec<f64>,
}

/// How a model became warm.
#[derive(Debug)]
pub(crate) struct Warmth {
    /// The time until kernels were compiled and chosen, and a step was recorded.
    pub(crate) elapsed: Duration,
    /// Why the kernels were compiled one after another, if they were.
    pub(crate) one_by_one: Option<AheadError>,
}

/// The times of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepPace {
    /// The median over repeats of the mean step; each repeat ends with a device sync.
    pub(crate) step: Duration,
    /// The mean step of the fastest and of the slowest repeat.
    pub(crate) spread: [Duration; 2],
    /// Host time of a step: the median over single steps that begin with an empty queue.
    pub(crate) enqueue: Duration,
    /// The mean losses of the last step, and of the first one on the same batch.
    pub(crate) losses: [f64; 2],
}

impl<M: Model> Stepper<M> {
    /// Takes steps of `state` on `batches`. `capture` says whether they are replayed as CUDA graphs; a shape is recorded as early as
    /// possible.
    pub(crate) fn new(state: TrainState<M>, batches: Vec<Batch>, capture: Capture) -> Self {
        let device = state.device.clone();
        let first_losses = vec![0.0; batches.len()];
        Self { captured: CapturedSteps::new(capture, &device), state, batches, device, n_steps: 0, first_losses }
    }

    /// Takes one step over the next `n_batches` micro-batches.
    pub(crate) fn step(&mut self, n_batches: usize) -> Measures {
        self.n_steps += 1;
        let first = self.last_batch();
        if n_batches == 1 {
            return self.captured.step(&mut self.state, std::slice::from_ref(&self.batches[first]));
        }
        let group: Vec<Batch> = self.batches.iter().cycle().skip(first).take(n_batches).cloned().collect();
        self.captured.step(&mut self.state, &group)
    }

    /// The batch of the last step.
    fn last_batch(&self) -> usize {
        self.n_steps % self.batches.len()
    }

    /// Steps that were taken.
    pub(crate) fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// Compiles the kernels of a step on all cores, then takes the steps in which the backend chooses between kernels and a step is
    /// recorded. `show` gets the number of kernels that are done and of all.
    ///
    /// # Errors
    /// If the device fails, or if the loss is not finite.
    pub(crate) fn warm_up(&mut self, show: impl FnMut(usize, usize)) -> Result<Warmth> {
        let started = Instant::now();
        // Without it, the first steps compile their kernels themselves.
        let one_by_one = compile_step(&self.state, &self.batches[0], show).err();
        for _ in 0..self.batches.len() {
            let loss = mean_loss(self.step(1))?;
            let batch = self.last_batch();
            self.first_losses[batch] = loss;
        }
        // A shape is recorded the fourth time.
        let device = self.device.clone();
        Round::of(&device, self.batches.len() + 4, |_| {
            self.step(1);
            Ok(())
        })?;
        Ok(Warmth { elapsed: started.elapsed(), one_by_one })
    }

    /// Times steps: many in a row, and single ones that begin with an empty queue.
    ///
    /// # Errors
    /// If the device fails, or if the last loss is not finite: a kernel launch that fails is fast.
    pub(crate) fn pace(&mut self, effort: Effort) -> Result<StepPace> {
        let device = self.device.clone();
        let mut last = None;
        let mut call = |_| {
            last = Some(self.step(1));
            Ok(())
        };
        let many = time(&device, effort, || Ok(()), &mut call)?;
        let single = time(&device, Effort { steps: 1, ..effort }, || Ok(()), &mut call)?;
        Ok(StepPace {
            step: Duration::from_secs_f64(many.device.median()),
            spread: many.device.spread().map(Duration::from_secs_f64),
            enqueue: Duration::from_secs_f64(single.host.median()),
            losses: [mean_loss(last.context("no step was taken")?)?, self.first_losses[self.last_batch()]],
        })
    }

    /// Returns whether steps were replayed as CUDA graphs, and if not, why.
    pub(crate) fn replayed(&mut self) -> Result<(), String> {
        match self.captured.n_recorded() {
            0 => Err(self.captured.take_notes().join("; ")),
            _ => Ok(()),
        }
    }
}

/// Reads the mean loss of one step (host sync).
pub(crate) fn mean_loss(measures: Measures) -> Result<f64> {
    let loss: f32 = (measures.loss_sum / measures.target_tokens).try_into_scalar().context("reading the loss")?;
    ensure!(loss.is_finite(), "the loss is {loss}");
    Ok(f64::from(loss))
}
