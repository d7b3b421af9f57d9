//! AdamW over all parameters at once (Loshchilov and Hutter 2019, with PyTorch's semantics).
//!
//! Parameters, moments and gradients of a model each lie end to end in one flat tensor, see [`Place`]. A step is then a
//! few launches whatever the number of layers: [`gather`] collects the gradients and sums their squares on the way,
//! [`prepare`] turns the sums into the numbers of the step and decides whether it is taken, [`adamw_step`] does the rest in one
//! pass. What changes from step to step is read from small device tensors and counted there, so that a captured step can be
//! replayed.

mod cpu;
mod flat;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod launch;
mod ops;
mod progress;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};
pub use flat::{ALIGNMENT, Flat, Part, Place, gather, view};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use ops::AdamWOps;
use progress::count;
pub use progress::{Coefficients, Counters, LossScaling, Progress, StepPolicy};

use crate::plain::plain_operators;

/// The optimizer's state of a model, every tensor `[n]` and laid out by the same [`Place`]s.
#[derive(Debug, Clone)]
pub struct AdamWState {
    /// Master weights, f32.
    pub master: Tensor<1>,
    /// First moment, f32.
    pub m: Tensor<1>,
    /// Second moment, f32.
    pub v: Tensor<1>,
    /// The master weights rounded to the dtype that the model computes in; `None` if it computes with the masters.
    pub weights: Option<Tensor<1>>,
}

impl AdamWState {
    /// A fresh state around `master` (`[n]`, f32): both moments zero, `weights` in `dtype`.
    pub fn new(master: Tensor<1>, dtype: DType) -> Self {
        let (m, v) = (master.zeros_like(), master.zeros_like());
        let weights = (dtype != DType::F32).then(|| master.clone().cast(dtype));
        Self { master, m, v, weights }
    }

    /// What the model computes with: views of it are its parameters.
    pub fn compute_weights(&self) -> &Tensor<1> {
        self.weights.as_ref().unwrap_or(&self.master)
    }

    /// Whether [`adamw_step`] writes over the very buffers of this state, so that views of [`Self::compute_weights`]
    /// taken once show every later step. On the CPU, and in plain operations, it makes new tensors.
    pub fn is_updated_in_place(device: &Device) -> bool {
        device.clone().inner() != Device::flex() && !plain_operators()
    }
}

/// What stays the same over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWHyper {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment, outside the root.
    pub eps: f64,
    /// Decoupled weight decay of the first `n_decayed` elements.
    pub weight_decay: f64,
    /// Elements before this one are decayed; a multiple of [`ALIGNMENT`] or the length.
    pub n_decayed: usize,
}

impl AdamWHyper {
    /// What learning rate and number of an update (from 1) make of it: `lr / (1 - beta1^t)`, `1 / sqrt(1 - beta2^t)` and
    /// `lr * weight_decay`.
    fn coefficients(&self, lr: f64, update: u64) -> [f32; 3] {
        let correction = |beta: f64| 1.0 - beta.powf(update as f64);
        let values = [lr / correction(self.beta1), correction(self.beta2).sqrt().recip(), lr * self.weight_decay];
        values.map(|value| value as f32)
    }
}

/// The numbers of one step, on the device.
#[derive(Debug, Clone)]
pub struct StepNumbers {
    pub(crate) values: Tensor<1>,
}

/// [`StepNumbers`] on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Global norm of the divided gradient before clipping.
    pub norm: f32,
    /// Whether an update was made.
    pub taken: bool,
    /// The number, from 1, of the update that was made or left out.
    pub update: u64,
    /// Scale of the loss in this step.
    pub loss_scale: f32,
    /// Whether the run has come to a stop, with this step or before.
    pub stopped: bool,
}

impl StepNumbers {
    /// Everything, `[10]`, f32: to be read together with other tensors, see [`Self::report`].
    pub fn values(&self) -> &Tensor<1> {
        &self.values
    }

    /// Global norm of the divided gradient before clipping, `[1]`.
    pub fn norm(&self) -> Tensor<1> {
        self.values.clone().narrow(0, 0, 1)
    }

    /// [`Self::values`] as read.
    ///
    /// # Panics
    /// If `values` is not what [`Self::values`] has given.
    pub fn report(values: &[f32]) -> StepReport {
        let &[norm, _, taken, _, _, _, loss_scale, blocks, rest, stopped] = values else {
            panic!("ten numbers of a step: {values:?}")
        };
        StepReport { norm, taken: taken > 0.0, update: count([blocks, rest]) + 1, loss_scale, stopped: stopped > 0.0 }
    }
}

/// Decides about a step and counts it: the global norm of `gradient / divisor`, the factor that divides the gradient and clips it to
/// `max_norm` (`min(1, max_norm / (norm + 1e-6)) / divisor`, as `torch.nn.utils.clip_grad_norm_`), and the coefficients of the
/// update. A divisor below 1 (not a single label) counts as 1. With [`LossScaling`] the factor also takes the scale back.
///
/// The step is not taken if its loss or norm is not finite; nothing is counted then, so that the learning rate and the bias
/// corrections of the next step are those of this one.
///
/// Sums are taken in a fixed order: the same gradient has the same norm in every run. On a GPU `progress` is written in place.
///
/// # Shapes
/// - `divisor`, `loss`: `[1]`, f32
///
/// `coefficients` must hold the update after those that `progress` counts, else the nearest it holds are taken.
pub fn prepare(
    gradient: &Flat,
    divisor: Tensor<1>,
    loss: Tensor<1>,
    progress: Progress,
    coefficients: &Coefficients,
    policy: &StepPolicy,
) -> (StepNumbers, Progress) {
    assert_eq!((divisor.dims(), loss.dims()), ([1], [1]), "one divisor and one loss for all gradients");
    if plain_operators() {
        return reference::prepare(gradient, divisor, loss, progress, coefficients, policy);
    }
    let (values, progress) = Dispatch::adamw_prepare(
        gradient.squares.clone().into_dispatch(),
        divisor.into_dispatch(),
        loss.into_dispatch(),
        coefficients.values.clone().into_dispatch(),
        progress.values.into_dispatch(),
        *policy,
    );
    (StepNumbers { values: Tensor::from_dispatch(values) }, Progress { values: Tensor::from_dispatch(progress) })
}

/// One AdamW step over a whole model:
/// `g = factor * gradient`, `master *= 1 - lr * wd`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `master -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`, `weights = master` in the dtype of `weights`.
/// A step that [`prepare`] does not take changes nothing.
///
/// On a GPU every buffer of `state` is written in place, whoever else holds a clone or a [`view`] of it: read what you want
/// to keep before you step. The backend's lazy queue does not know that the views change; flush the device
/// ([`Device::flush`]) before anything reads them again.
///
/// # Shapes
/// - `gradient`: `[n]`, any float dtype
///
/// # Panics
/// If `gradient` and the state differ in length.
pub fn adamw_step(state: AdamWState, gradient: Flat, numbers: &StepNumbers, hyper: &AdamWHyper) -> AdamWState {
    assert_eq!(gradient.values.dims(), state.master.dims(), "the gradient does not have the length of the weights");
    if plain_operators() {
        return reference::adamw_step(state, gradient, numbers, hyper);
    }
    let AdamWState { master, m, v, weights } = state;
    let (master, m, v) = (master.into_dispatch(), m.into_dispatch(), v.into_dispatch());
    let (gradient, numbers) = (gradient.values.into_dispatch(), numbers.values.clone().into_dispatch());
    match weights {
        Some(weights) => {
            let weights = weights.into_dispatch();
            let (master, m, v, weights) =
                Dispatch::adamw_mixed(master, m, v, weights, gradient, numbers, (*hyper).into());
            let [master, m, v, weights] = [master, m, v, weights].map(Tensor::from_dispatch);
            AdamWState { master, m, v, weights: Some(weights) }
        }
        None => {
            let (master, m, v) = Dispatch::adamw(master, m, v, gradient, numbers, (*hyper).into());
            let [master, m, v] = [master, m, v].map(Tensor::from_dispatch);
            AdamWState { master, m, v, weights: None }
        }
    }
}
