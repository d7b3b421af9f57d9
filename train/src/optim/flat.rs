//! The optimizer of a model over one flat tensor of all parameters. It owns master weights and the named state of each group's
//! [`Optimizer`](super::Optimizer), and shares weights of the compute dtype with the module.

mod state;

use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use kiln_kernels::collective::Communicator;
use kiln_kernels::optim::{
    Coefficients, Counters, Flat, LossScaling, Progress, StepNumbers, StepPolicy, is_updated_in_place, overwrite,
    prepare, view,
};

pub use state::FlatState;

use super::optimizer::{Section, SectionState};
use super::{FlatGradients, Groups, LearningRate, ParamTable, Slices, StateSlot};

/// Number of updates whose coefficients are computed ahead.
const AHEAD: u64 = 1024;

/// The optimizer: its flat state, the table of parameters in it, and its progress.
#[derive(Debug, Clone)]
pub struct FlatOptimizer {
    groups: Groups,
    policy: StepPolicy,
    learning_rate: LearningRate,
    table: ParamTable,
    /// Both are `None` only during a step.
    state: Option<FlatState>,
    progress: Option<Progress>,
    /// Parts of the state that one optimizer steps, in order.
    sections: Vec<Section>,
    /// Of each section.
    coefficients: Vec<Coefficients>,
    /// Updates made: the last count read from the device, and the count if no step since then was skipped.
    updates: [u64; 2],
    /// All weights, `[n]`, in the dtype that the model computes in, if the state is one rank's slice (ZeRO-1, Rajbhandari et al.
    /// 2020). `None` if the state is whole and has them.
    all_weights: Option<Tensor<1>>,
}

/// Settings of a [`FlatOptimizer`].
#[derive(Debug, Clone)]
pub struct Setup {
    /// Which optimizer updates which parameters.
    pub(crate) groups: Groups,
    /// Learning rate of each update.
    pub(crate) learning_rate: LearningRate,
    /// Limit of the global gradient norm; 0 switches clipping off.
    pub(crate) max_grad_norm: f64,
    /// Dynamic loss scaling, for f16.
    pub(crate) scaling: Option<LossScaling>,
    /// Whether a loss or gradient that is not finite stops all later updates. Without loss scaling only.
    pub(crate) stops: bool,
    /// Initial number of updates and loss scale.
    pub(crate) counters: Counters,
}

impl FlatOptimizer {
    /// Creates an optimizer whose master weights are the weights of `module`. Pass the module in f32, before any cast, so that
    /// the master weights are exact. The module will compute in `dtype`, see [`Self::attach`].
    pub(crate) fn new<M: Module>(module: &M, setup: Setup, dtype: FloatDType) -> Self {
        Self::with_table(module, ParamTable::of(module), setup, dtype)
    }

    /// Does the same with a `table` of `module` in which some parameters are frozen. They have no state.
    pub(crate) fn with_table<M: Module>(module: &M, table: ParamTable, setup: Setup, dtype: FloatDType) -> Self {
        let table = setup.groups.lay_out(table);
        let master = table.flatten_weights(module);
        Self::started(table, master, setup, dtype)
    }

    /// Starts from flat f32 master weights, laid out by a `table` of the setup's groups, with a state of zeros.
    pub(crate) fn started(table: ParamTable, master: Tensor<1>, setup: Setup, dtype: FloatDType) -> Self {
        let (device, state_dtype) = (master.device(), DType::from(setup.groups.state_dtype()));
        let zeros = |slot: StateSlot| Tensor::zeros([slot.range.len()], (&device, state_dtype));
        let named = setup.groups.slots(&table).into_iter().map(zeros).collect();
        Self::restored(table, (master, named), setup, dtype)
    }

    /// Restores an optimizer from flat tensors: master weights, and the state by [`Groups::slots`]. They take the dtype that the setup's
    /// groups keep. These groups have laid out the `table`.
    ///
    /// # Panics
    /// If a tensor does not have the length of its part of the table.
    pub(crate) fn restored(
        table: ParamTable,
        (master, named): (Tensor<1>, Vec<Tensor<1>>),
        setup: Setup,
        dtype: FloatDType,
    ) -> Self {
        let Setup { groups, learning_rate, max_grad_norm, scaling, stops, counters } = setup;
        assert_eq!(master.dims(), [table.flat_len()], "restored weights");
        let slots = groups.slots(&table);
        assert_eq!(named.len(), slots.len(), "tensors of restored state");
        for (tensor, slot) in named.iter().zip(&slots) {
            assert_eq!(tensor.dims(), [slot.range.len()], "restored {}", slot.name);
        }

        let (device, state_dtype) = (master.device(), groups.state_dtype());
        let master = master.cast(state_dtype);
        let named = named.into_iter().map(|tensor| tensor.cast(state_dtype)).collect();
        let policy = StepPolicy { max_norm: max_grad_norm, scaling, stops };
        let sections = table.sections(&(0..table.flat_len()));
        let mut optimizer = Self {
            groups,
            policy,
            learning_rate,
            table,
            state: Some(FlatState::new(master, named, dtype)),
            progress: Some(Progress::new(counters, &device)),
            sections,
            coefficients: Vec::new(),
            updates: [counters.updates; 2],
            all_weights: None,
        };
        optimizer.look_ahead(&device);
        optimizer
    }

    /// Creates an optimizer with the same settings for another module in f32.
    pub(crate) fn like<M: Module>(&self, module: &M, dtype: FloatDType) -> Self {
        let setup = Setup {
            groups: self.groups.clone(),
            learning_rate: self.learning_rate.clone(),
            max_grad_norm: self.policy.max_norm,
            scaling: self.policy.scaling,
            stops: self.policy.stops,
            counters: Counters { updates: 0, loss_scale: 1.0, good_steps: 0 },
        };
        Self::new(module, setup, dtype)
    }

    /// Keeps only this rank's slice of master weights and state. Call it before [`Self::attach`]. Every later step takes
    /// the gradients of the slice and updates its weights; [`Self::complete`] then brings in the weights of the other ranks.
    pub(crate) fn sharded(mut self, slices: &Slices) -> Self {
        let FlatState { master, weights, named } = self.state.take().expect("a state between steps");
        let (own, device) = (slices.own(), master.device());
        // Masters in bf16 are the weights: a step changes its slice of them.
        let are_weights = weights.is_none() && self.groups.state_dtype() == FloatDType::BF16;
        let (master, weights) = match weights {
            None if are_weights => (view(&master, own.start, [own.len()]), master),
            // The optimizer overwrites the masters in place, so the weights need a buffer of their own in f32, too.
            weights => {
                let weights = weights.unwrap_or_else(|| master.clone() * 1.0);
                (master.slice([own.clone()]) * 1.0, weights)
            }
        };
        let part = |(whole, slot): (Option<Tensor<1>>, StateSlot)| {
            let (start, end) = (own.start.max(slot.range.start), own.end.min(slot.range.end));
            let part = start.saturating_sub(slot.range.start)..end.saturating_sub(slot.range.start);
            (start < end).then(|| whole.expect("a whole state").slice([part]) * 1.0)
        };
        let named = named.into_iter().zip(self.groups.slots(&self.table)).map(part).collect();

        let own_weights = (!are_weights).then(|| view(&weights, own.start, [own.len()]));
        self.state = Some(FlatState { master, weights: own_weights, named });
        self.all_weights = Some(weights);
        self.sections = self.table.sections(&own);
        self.look_ahead(&device);
        self
    }

    /// Returns whether the state is one rank's slice.
    pub(crate) fn is_sharded(&self) -> bool {
        self.all_weights.is_some()
    }

    /// Returns whether [`Self::step_and_complete`] can be called.
    pub(crate) fn overlaps(&self) -> bool {
        // Every rank must come to the same answer, so it does not depend on this one's slice.
        let mut groups = self.table.groups();
        let only = groups.next().filter(|_| groups.next().is_none());
        let overlapped = only.is_some_and(|(group, _)| self.groups.list()[group].optimizer.overlapped().is_some());
        self.is_sharded() && overlapped
    }

    /// Brings in the other ranks' weights after a step of a sharded optimizer; a whole one has all. `all_gather` gets this
    /// rank's slice of the weights and all weights. It returns all weights with every slice up to date: in the same buffer on
    /// a GPU.
    ///
    /// # Errors
    /// If `all_gather` fails.
    pub(crate) fn complete<E>(
        &mut self,
        all_gather: impl FnOnce(Tensor<1>, Tensor<1>) -> Result<Tensor<1>, E>,
    ) -> Result<(), E> {
        let Some(all) = self.all_weights.clone() else { return Ok(()) };
        let all = all_gather(self.state().compute_weights().clone(), all)?;
        flush(&all.device());
        self.all_weights = Some(all);
        Ok(())
    }

    /// Replaces the weights by `master` (`[n]`, f32), for an optimizer with a whole state. State and counters stay.
    pub(crate) fn set_master(&mut self, master: Tensor<1>) {
        assert!(!self.is_sharded(), "a replica has whole weights");
        let device = master.device();
        let state = self.state.take().expect("a state between steps");
        let weights = state.weights.map(|weights| overwrite(weights, master.clone()));
        self.state = Some(FlatState { master: overwrite(state.master, master), weights, ..state });
        flush(&device);
    }

    /// The table of parameters.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// Which optimizer updates which parameters.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Learning rate of each update, before the factors of the groups.
    pub fn learning_rate(&self) -> &LearningRate {
        &self.learning_rate
    }

    /// Master weights, named state, and weights of the compute dtype: this rank's slice of them if the optimizer is sharded. On a GPU
    /// the next step overwrites them, so do not keep them.
    pub fn state(&self) -> &FlatState {
        self.state.as_ref().expect("a state between steps")
    }

    /// Updates made and loss scale. On a GPU the next step overwrites them.
    pub(crate) fn progress(&self) -> &Progress {
        self.progress.as_ref().expect("a state between steps")
    }

    /// Whether the loss is scaled.
    pub(crate) fn is_scaled(&self) -> bool {
        self.policy.scaling.is_some()
    }

    /// The factor for the loss before differentiation, `[1]`, f32; `None` without loss scaling.
    pub(crate) fn loss_factor(&self) -> Option<Tensor<1>> {
        self.loss_factor_at_call()()
    }

    /// A function that returns the current [`Self::loss_factor`] whenever it is called. On a GPU only, where the scale stays
    /// in the same buffer.
    pub(crate) fn loss_factor_at_call(&self) -> impl Fn() -> Option<Tensor<1>> + Send + use<> {
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
        self.state = Some(self.stepped(state, &gradients, &numbers));
        if is_updated_in_place(&device) {
            flush(&device);
        }
        numbers
    }

    /// Lets the optimizer of each section step it.
    fn stepped(&self, state: FlatState, gradients: &Flat, numbers: &StepNumbers) -> FlatState {
        assert_eq!(
            gradients.values.dims(),
            state.master.dims(),
            "the gradient does not have the length of the weights"
        );
        if let [section] = self.sections.as_slice() {
            let (before, present) = state.into_section();
            return FlatState::of_section(self.step_of(section, before, gradients.clone(), numbers), &present);
        }

        let FlatState { master, weights, mut named } = state;
        let slots = self.groups.slots(&self.table);
        let (mut masters, mut all_weights) = (Vec::new(), Vec::new());
        for (section, coefficients) in self.sections.iter().zip(&self.coefficients) {
            let own: Vec<usize> = (0..slots.len()).filter(|i| slots[*i].group == section.group).collect();
            let part = |whole: &Tensor<1>| view(whole, section.range.start, [section.len()]);
            let before = SectionState {
                master: part(&master),
                weights: weights.as_ref().map(part),
                named: own.iter().map(|i| named[*i].take().expect("the state of a section")).collect(),
            };
            let gradient = gradients.part(section.range.start, section.len());
            let after = self.step_of(section, before, gradient, &coefficients.of(numbers));
            own.iter().zip(after.named).for_each(|(i, tensor)| named[*i] = Some(tensor));
            masters.push(after.master);
            all_weights.extend(after.weights);
        }

        // Views of the same buffers, where a step works in place.
        if is_updated_in_place(&master.device()) {
            return FlatState { master, weights, named };
        }
        FlatState { master: Tensor::cat(masters, 0), weights: weights.map(|_| Tensor::cat(all_weights, 0)), named }
    }

    fn step_of(&self, section: &Section, state: SectionState, gradient: Flat, numbers: &StepNumbers) -> SectionState {
        self.groups.list()[section.group].optimizer.step(section, state, gradient, numbers)
    }

    /// Takes the step of [`Self::step`] with a sharded state, and does what [`Self::complete`] does while it lasts. `bounds` are
    /// the slices' bounds.
    ///
    /// # Panics
    /// Unless it [`Self::overlaps`].
    pub(crate) fn step_and_complete(
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
        let (device, (state, present)) = (all.device(), state.into_section());
        let [section] = self.sections.as_slice() else { panic!("a slice of one group") };
        let optimizer = self.groups.list()[section.group].optimizer.overlapped().expect("an overlapped step");
        let (state, all) = optimizer.step_and_gather(section, state, all, gradients, &numbers, (communicator, bounds));
        (self.state, self.all_weights) = (Some(FlatState::of_section(state, &present)), Some(all));
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
        if self.updates[1] > self.coefficients[0].last() {
            self.look_ahead(&device);
        }
        let progress = self.progress.take().expect("a state between steps");
        let (numbers, progress) = prepare(&gradients, divisor, loss, progress, &self.coefficients[0], &self.policy);
        self.progress = Some(progress);
        (gradients, numbers)
    }

    /// Computes the coefficients of the next updates of each section.
    fn look_ahead(&mut self, device: &Device) {
        let [from, to] = self.updates;
        let table = |section: &Section| {
            let group = &self.groups.list()[section.group];
            let row = |update| group.optimizer.coefficients(group.rate * self.learning_rate.at(update), update);
            Coefficients::of_rows(row, from, to + AHEAD, device)
        };
        self.coefficients = self.sections.iter().map(table).collect();
    }

    /// Sets the number of updates after reading it from the device, which has been given `n_later` steps since.
    /// Coefficients of earlier updates can then be dropped.
    pub(crate) fn observe(&mut self, updates: u64, n_later: u64) {
        self.updates = [updates, updates + n_later];
    }

    /// Replaces the weights of `module` by views of the flat tensor. On a GPU later steps change them in place.
    pub(crate) fn attach<M: Module>(&self, module: M) -> M {
        let weights = self.all_weights.as_ref().unwrap_or_else(|| self.state().compute_weights());
        self.table.attach(module, weights)
    }

    /// Updates the weights of the attached `module` after a step. On a GPU it has them already.
    pub(crate) fn write_back<M: Module>(&self, module: M) -> M {
        let in_place = is_updated_in_place(&self.state().master.device());
        if in_place { module } else { self.attach(module) }
    }
}

/// Makes all work that was asked for begin. The backend's queue does not know that a step changes the module's weights in place: without
/// this, a later read of the weights could move before the step. The next tensor that is read reports a failure of the device.
fn flush(device: &Device) {
    let _ = device.flush();
}

#[cfg(test)]
mod tests;
