//! AdamW over all parameters at once (Loshchilov and Hutter 2019, with PyTorch's semantics).
//!
//! Parameters, moments and gradients of a model each lie end to end in one flat tensor, see [`Place`]. A step is then a
//! few launches whatever the number of layers: [`gather`] collects the gradients and sums their squares on the way,
//! [`measure`] turns the sums into norm and scale, [`adamw_step`] does the rest in one pass. What changes from step to step
//! is read from small device tensors, so that a captured step can be replayed.

mod cpu;
mod flat;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod launch;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor, TensorData};
pub use flat::{ALIGNMENT, Flat, Part, Place, gather, view};
use ops::AdamWOps;

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
    /// What changes from step to step: learning rate and bias corrections of step number `step` (from 1), `[3]`, f32. They
    /// are computed here in f64: in f32, `1 - beta2^step` has lost four digits at step 1.
    pub fn schedule(&self, lr: f64, step: u64, device: &Device) -> Tensor<1> {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        let values = [lr / correction(self.beta1), correction(self.beta2).sqrt().recip(), lr * self.weight_decay];
        Tensor::from_data(TensorData::from(values.map(|value| value as f32)), (device, DType::F32))
    }
}

/// Norm of a gradient and what to multiply it with.
#[derive(Debug, Clone)]
pub struct Measured {
    /// `[3]`, f32: norm, factor, and 1 if the norm is finite, 0 if not.
    pub(crate) values: Tensor<1>,
}

impl Measured {
    /// Global norm of the divided gradient before clipping, `[1]`.
    pub fn norm(&self) -> Tensor<1> {
        self.values.clone().narrow(0, 0, 1)
    }
}

/// Global norm of `gradient / divisor`, and the factor that divides the gradient and clips it to `max_norm`: `min(1,
/// max_norm / (norm + 1e-6)) / divisor`, as `torch.nn.utils.clip_grad_norm_`. A `max_norm` of 0 switches clipping off; a
/// divisor below 1 (not a single label) counts as 1.
///
/// Sums are taken in a fixed order: the same gradient has the same norm in every run.
///
/// # Shapes
/// - `divisor`: `[1]`, f32
pub fn measure(gradient: &Flat, divisor: Tensor<1>, max_norm: f64) -> Measured {
    assert_eq!(divisor.dims(), [1], "one divisor for all gradients");
    if plain_operators() {
        return reference::measure(gradient, divisor, max_norm);
    }
    let squares = gradient.squares.clone().into_dispatch();
    let values = Dispatch::adamw_measure(squares, divisor.into_dispatch(), max_norm as f32);
    Measured { values: Tensor::from_dispatch(values) }
}

/// One AdamW step over a whole model:
/// `g = factor * gradient`, `master *= 1 - lr * wd`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `master -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`, `weights = master` in the dtype of `weights`.
/// A gradient whose norm is not finite changes nothing.
///
/// On a GPU every buffer of `state` is written in place, whoever else holds a clone or a [`view`] of it: read what you want
/// to keep before you step. The backend's lazy queue does not know that the views change; flush the device
/// ([`Device::flush`]) before anything reads them again.
///
/// # Shapes
/// - `gradient`: `[n]`, any float dtype
/// - `schedule`: see [`AdamWHyper::schedule`]
///
/// # Panics
/// If `gradient` and the state differ in length.
pub fn adamw_step(
    state: AdamWState,
    gradient: Flat,
    measured: &Measured,
    schedule: Tensor<1>,
    hyper: &AdamWHyper,
) -> AdamWState {
    assert_eq!(gradient.values.dims(), state.master.dims(), "the gradient does not have the length of the weights");
    if plain_operators() {
        return reference::adamw_step(state, gradient, measured, schedule, hyper);
    }
    let AdamWState { master, m, v, weights } = state;
    let (master, m, v) = (master.into_dispatch(), m.into_dispatch(), v.into_dispatch());
    let (gradient, schedule) = (gradient.values.into_dispatch(), schedule.into_dispatch());
    let measured = measured.values.clone().into_dispatch();
    match weights {
        Some(weights) => {
            let weights = weights.into_dispatch();
            let (master, m, v, weights) =
                Dispatch::adamw_mixed(master, m, v, weights, gradient, measured, schedule, (*hyper).into());
            let [master, m, v, weights] = [master, m, v, weights].map(Tensor::from_dispatch);
            AdamWState { master, m, v, weights: Some(weights) }
        }
        None => {
            let (master, m, v) = Dispatch::adamw(master, m, v, gradient, measured, schedule, (*hyper).into());
            let [master, m, v] = [master, m, v].map(Tensor::from_dispatch);
            AdamWState { master, m, v, weights: None }
        }
    }
}
