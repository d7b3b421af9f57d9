//! AdamW over one flat tensor of all parameters. It owns f32 master weights and moments, and shares weights of the compute
//! dtype with the module.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use kiln_kernels::collective::Communicator;
use kiln_kernels::optim::{
    AdamWHyper, AdamWState, Coefficients, Counters, Flat, LossScaling, Progress, StepNumbers, StepPolicy, adamw_step,
    prepare, view,
};

use super::{FlatGradients, LearningRate, ParamTable, Slices};
use crate::config::OptimConfig;

/// Number of updates whose coefficients are computed ahead.
const AHEAD: u64 = 1024;

/// The optimizer: its flat state, the table of parameters in it, and its progress.
#[derive(Debug, Clone)]
pub struct AdamW {
    hyper: AdamWHyper,
    policy: StepPolicy,
    learning_rate: LearningRate,
    table: ParamTable,
    /// Both are `None` only during a step.
    state: Option<AdamWState>,
    progress: Option<Progress>,
    coefficients: Coefficients,
    /// Updates made: the last count read from the device, and the count if no step since then was skipped.
    updates: [u64; 2],
    /// All weights, `[n]`, in the dtype that the model computes in, if the state is one rank's slice (ZeRO-1, Rajbhandari et al.
    /// 2020). `None` if the state is whole and has them.
    all_weights: Option<Tensor<1>>,
}

/// Settings of an [`AdamW`].
#[derive(Debug, Clone)]
pub struct AdamWSetup<'a> {
    /// Hyperparameters.
    pub config: &'a OptimConfig,
    /// Learning rate of each update.
    pub learning_rate: LearningRate,
    /// Dynamic loss scaling, for f16.
    pub scaling: Option<LossScaling>,
    /// Whether a loss or gradient that is not finite stops all later updates. Without loss scaling only.
    pub stops: bool,
    /// Initial number of updates and loss scale.
    pub counters: Counters,
}

impl AdamW {
    /// Creates an optimizer whose master weights are the weights of `module`. Pass the module in f32, before any cast, so that
    /// the master weights are exact. The module will compute in `dtype`, see [`Self::attach`].
    pub fn new<M: Module>(module: &M, setup: AdamWSetup<'_>, dtype: FloatDType) -> Self {
        Self::with_table(module, ParamTable::of(module), setup, dtype)
    }

    /// Does the same with a `table` of `module` in which some parameters are frozen. They have no state.
    pub fn with_table<M: Module>(module: &M, table: ParamTable, setup: AdamWSetup<'_>, dtype: FloatDType) -> Self {
        let state = AdamWState::new(table.flatten_weights(module), dtype.into());
        Self::with_state(table, state, setup)
    }

    /// Creates an optimizer with the same settings for another module in f32.
    pub fn like<M: Module>(&self, module: &M, dtype: FloatDType) -> Self {
        let table = ParamTable::of(module);
        let state = AdamWState::new(table.flatten_weights(module), dtype.into());
        let (hyper, device) = (AdamWHyper { n_decayed: table.n_decayed(), ..self.hyper }, state.master.device());
        let counters = Counters { updates: 0, loss_scale: 1.0, good_steps: 0 };
        let coefficients = coefficients(&hyper, &self.learning_rate, [0; 2], &device);
        let (progress, state) = (Some(Progress::new(counters, &device)), Some(state));
        Self { hyper, table, state, progress, coefficients, updates: [0; 2], all_weights: None, ..self.clone() }
    }

    /// Restores an optimizer from flat f32 tensors of master weights and both moments.
    ///
    /// # Panics
    /// If a tensor does not have the table's length.
    pub fn restored(
        table: ParamTable,
        [master, m, v]: [Tensor<1>; 3],
        setup: AdamWSetup<'_>,
        dtype: FloatDType,
    ) -> Self {
        for tensor in [&master, &m, &v] {
            assert_eq!(tensor.dims(), [table.flat_len()], "restored state");
        }
        let state = AdamWState { m, v, ..AdamWState::new(master, dtype.into()) };
        Self::with_state(table, state, setup)
    }

    fn with_state(table: ParamTable, state: AdamWState, setup: AdamWSetup<'_>) -> Self {
        let AdamWSetup { config, learning_rate, scaling, stops, counters } = setup;
        let OptimConfig { beta1, beta2, eps, weight_decay, max_grad_norm, .. } = *config;
        let hyper = AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: table.n_decayed() };
        let policy = StepPolicy { max_norm: max_grad_norm, scaling, stops };
        let device = state.master.device();
        let progress = Some(Progress::new(counters, &device));
        let updates = [counters.updates; 2];
        let coefficients = coefficients(&hyper, &learning_rate, updates, &device);
        Self {
            hyper,
            policy,
            learning_rate,
            table,
            state: Some(state),
            progress,
            coefficients,
            updates,
            all_weights: None,
        }
    }

    /// Keeps only this rank's slice of master weights and moments. Call it before [`Self::attach`]. Every later step takes
    /// the gradients of the slice and updates its weights; [`Self::complete`] then brings in the weights of the other ranks.
    pub fn sharded(mut self, slices: &Slices) -> Self {
        let AdamWState { master, m, v, weights } = self.state.take().expect("a state between steps");
        let own = slices.own();
        // The optimizer overwrites the masters in place, so the weights need a buffer of their own in f32, too.
        let weights = weights.unwrap_or_else(|| master.clone() * 1.0);
        let [master, m, v] = [master, m, v].map(|tensor| tensor.slice([own.clone()]) * 1.0);
        let own_weights = view(&weights, own.start, [own.len()]);
        self.hyper.n_decayed = self.table.n_decayed().clamp(own.start, own.end) - own.start;
        self.state = Some(AdamWState { master, m, v, weights: Some(own_weights) });
        self.all_weights = Some(weights);
        self
    }

    /// Returns whether the state is one rank's slice.
    pub fn is_sharded(&self) -> bool {
        self.all_weights.is_some()
    }

    /// Brings in the other ranks' weights after a step of a sharded optimizer; a whole one has all. `all_gather` gets this
    /// rank's slice of the weights and all weights. It returns all weights with every slice up to date: in the same buffer on
    /// a GPU.
    ///
    /// # Errors
    /// If `all_gather` fails.
    pub fn complete<E>(
        &mut self,
        all_gather: impl FnOnce(Tensor<1>, Tensor<1>) -> Result<Tensor<1>, E>,
    ) -> Result<(), E> {
        let Some(all) = self.all_weights.clone() else { return Ok(()) };
        let all = all_gather(self.state().compute_weights().clone(), all)?;
        flush(&all.device());
        self.all_weights = Some(all);
        Ok(())
    }

    /// Replaces the weights by `master` (`[n]`, f32), for an optimizer with a whole state. Moments and counters stay.
    pub fn set_master(&mut self, master: Tensor<1>) {
        assert!(!self.is_sharded(), "a replica has whole weights");
        let device = master.device();
        let state = self.state.take().expect("a state between steps");
        self.state = Some(state.with_master(master));
        flush(&device);
    }

    /// The table of parameters.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// Learning rate of each update.
    pub fn learning_rate(&self) -> &LearningRate {
        &self.learning_rate
    }

    /// Master weights, moments, and weights of the compute dtype: this rank's slice of them if the optimizer is sharded. On a GPU
    /// the next step overwrites them, so do not keep them.
    pub fn state(&self) -> &AdamWState {
        self.state.as_ref().expect("a state between steps")
    }

    /// Updates made and loss scale. On a GPU the next step overwrites them.
    pub fn progress(&self) -> &Progress {
        self.progress.as_ref().expect("a state between steps")
    }

    /// Whether the loss is scaled.
    pub fn is_scaled(&self) -> bool {
        self.policy.scaling.is_some()
    }

    /// The factor for the loss before differentiation, `[1]`, f32; `None` without loss scaling.
    pub fn loss_factor(&self) -> Option<Tensor<1>> {
        self.loss_factor_at_call()()
    }

    /// A function that returns the current [`Self::loss_factor`] whenever it is called. On a GPU only, where the scale stays
    /// in the same buffer.
    pub fn loss_factor_at_call(&self) -> impl Fn() -> Option<Tensor<1>> + Send + use<> {
        let scaled = self.policy.scaling.map(|scaling| (self.progress().clone(), scaling.unit));
        move || scaled.as_ref().map(|(progress, unit)| progress.loss_scale() / *unit)
    }

    /// Divides `gradients` by `divisor`, clips them to the global norm and updates the weights. The device decides whether to
    /// skip the update, see [`prepare`]. The host does not wait for it.
    ///
    /// For gradients of a sum of losses, `divisor` is the number of labels (`[1]`, f32). The division is part of the clipping
    /// factor, so it needs no pass over the gradients. A divisor of 0 counts as 1: without labels all gradients are zero.
    ///
    /// `loss`, `[1]`, only decides about the update, which is skipped if the loss or the norm is not finite.
    pub fn step(&mut self, gradients: FlatGradients, divisor: Tensor<1>, loss: Tensor<1>) -> StepNumbers {
        let (gradients, numbers) = self.prepare(gradients, divisor, loss);
        let state = self.state.take().expect("a state between steps");
        let device = state.master.device();
        self.state = Some(adamw_step(state, gradients, &numbers, &self.hyper));
        if AdamWState::is_updated_in_place(&device) {
            flush(&device);
        }
        numbers
    }

    /// Takes the step of [`Self::step`] with a sharded state, and does what [`Self::complete`] does while it lasts. `bounds` are
    /// the slices' bounds.
    ///
    /// # Panics
    /// If the state is whole.
    pub fn step_and_complete(
        &mut self,
        gradients: FlatGradients,
        divisor: Tensor<1>,
        loss: Tensor<1>,
        communicator: &Communicator,
        bounds: &[usize],
    ) -> StepNumbers {
        let (gradients, numbers) = self.prepare(gradients, divisor, loss);
        let state = self.state.take().expect("a state between steps");
        let all = self.all_weights.take().expect("a sharded state");
        let device = all.device();
        let (state, all) = communicator.adamw_step(state, all, gradients, &numbers, &self.hyper, bounds);
        (self.state, self.all_weights) = (Some(state), Some(all));
        flush(&device);
        numbers
    }

    /// Returns the gradients, and the numbers of the step that they make. Counts it.
    fn prepare(
        &mut self,
        FlatGradients(gradients): FlatGradients,
        divisor: Tensor<1>,
        loss: Tensor<1>,
    ) -> (Flat, StepNumbers) {
        let device = divisor.device();
        self.updates[1] += 1;
        if self.updates[1] > self.coefficients.last() {
            self.coefficients = coefficients(&self.hyper, &self.learning_rate, self.updates, &device);
        }
        let progress = self.progress.take().expect("a state between steps");
        let (numbers, progress) = prepare(&gradients, divisor, loss, progress, &self.coefficients, &self.policy);
        self.progress = Some(progress);
        (gradients, numbers)
    }

    /// Sets the number of updates after reading it from the device, which has been given `n_later` steps since.
    /// Coefficients of earlier updates can then be dropped.
    pub fn observe(&mut self, updates: u64, n_later: u64) {
        self.updates = [updates, updates + n_later];
    }

    /// Replaces the weights of `module` by views of the flat tensor. On a GPU later steps change them in place.
    pub fn attach<M: Module>(&self, module: M) -> M {
        let weights = self.all_weights.as_ref().unwrap_or_else(|| self.state().compute_weights());
        self.table.attach(module, weights)
    }

    /// Updates the weights of the attached `module` after a step. On a GPU it has them already.
    pub fn write_back<M: Module>(&self, module: M) -> M {
        let in_place = AdamWState::is_updated_in_place(&self.state().master.device());
        if in_place { module } else { self.attach(module) }
    }
}

/// Makes all work that was asked for begin. The backend's queue does not know that a step changes the module's weights in place: without
/// this, a later read of the weights could move before the step. The next tensor that is read reports a failure of the device.
fn flush(device: &Device) {
    let _ = device.flush();
}

/// Coefficients of the next updates.
fn coefficients(hyper: &AdamWHyper, rate: &LearningRate, updates: [u64; 2], device: &Device) -> Coefficients {
    let [from, to] = updates;
    Coefficients::new(hyper, |update| rate.at(update), from, to + AHEAD, device)
}

#[cfg(test)]
mod tests;
