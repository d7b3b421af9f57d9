//! AdamW over all parameters at once (Loshchilov and Hutter 2019, with PyTorch's semantics).
//!
//! The parameters, moments and gradients of a model each lie in one flat tensor, see [`Place`]. A step is then a few
//! launches, whatever the number of layers:
//!
//! 1. [`gather`] collects the gradients and sums their squares.
//! 2. [`prepare`] turns the sums into the numbers of the step and decides whether it is taken.
//! 3. [`adamw_step`] updates everything in one pass.
//!
//! Values that change from step to step are read from small device tensors and counted there, so that a captured step
//! can be replayed.

mod cpu;
mod flat;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
mod progress;
mod reference;
mod rounding;
mod slots;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor, TensorData};
pub use flat::{ALIGNMENT, CHUNK, Flat, Part, Place, gather, overwrite, view};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
#[cfg(feature = "cuda")]
pub(crate) use gpu::{UNITS, launch_step, part_of};
use ops::AdamWOps;
pub(crate) use ops::{Factors, PARTS};
use progress::count;
pub use progress::{Coefficients, Counters, LossScaling, Progress, StepPolicy};
pub use rounding::Rounding;
use slots::step;

use crate::settings::{is_cuda, reference_operators, runs_plain};

/// The optimizer's state of a model. Every tensor is `[n]`, laid out by the same [`Place`]s.
#[derive(Debug, Clone)]
pub struct AdamWState {
    /// Master weights: f32, or bf16 for [`adamw_step_rounded`], as both moments.
    pub master: Tensor<1>,
    /// First moment.
    pub m: Tensor<1>,
    /// Second moment.
    pub v: Tensor<1>,
    /// The master weights in the dtype that the model computes in; `None` if it computes with the masters.
    pub weights: Option<Tensor<1>>,
}

impl AdamWState {
    /// Creates the state around `master` (`[n]`, f32 or bf16): both moments zero and in its dtype, `weights` in `dtype`.
    pub fn new(master: Tensor<1>, dtype: DType) -> Self {
        let (m, v) = (master.zeros_like(), master.zeros_like());
        let weights = (dtype != master.dtype()).then(|| master.clone().cast(dtype));
        Self { master, m, v, weights }
    }

    /// Returns the weights that the model computes with: its parameters are views of them.
    pub fn compute_weights(&self) -> &Tensor<1> {
        self.weights.as_ref().unwrap_or(&self.master)
    }

    /// Replaces the weights by `master` (`[n]`, f32), in place where [`adamw_step`] works in place. Both moments stay.
    pub fn with_master(self, master: Tensor<1>) -> Self {
        let weights = self.weights.map(|weights| overwrite(weights, master.clone()));
        Self { master: overwrite(self.master, master), weights, ..self }
    }
}

/// Returns whether a step overwrites the buffers of its state, so that views of the weights taken once show every later
/// step. On the CPU, on a device without [kernels](crate::has_kernels), and with reference operators, a step makes new tensors.
pub fn is_updated_in_place(device: &Device) -> bool {
    is_cuda(device) && !reference_operators()
}

/// Hyperparameters that stay the same over a run.
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
    /// Returns the [`Coefficients`] of update number `update` (from 1): `lr / (1 - beta1^t)`, `1 / sqrt(1 - beta2^t)`
    /// and `lr * weight_decay`.
    pub fn coefficients(&self, lr: f64, update: u64) -> [f32; slots::COLUMNS] {
        let correction = |beta: f64| 1.0 - beta.powf(update as f64);
        let values = [lr / correction(self.beta1), correction(self.beta2).sqrt().recip(), lr * self.weight_decay];
        values.map(|value| value as f32)
    }
}

/// The numbers of one step, on the device.
#[derive(Debug, Clone)]
pub struct StepNumbers {
    /// See [`slots::step`].
    pub(crate) values: Tensor<1>,
}

/// [`StepNumbers`] on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Global norm of the divided gradient before clipping.
    pub norm: f32,
    /// Whether the update was made.
    pub taken: bool,
    /// The number, from 1, of the update that was made or skipped.
    pub update: u64,
    /// Scale of the loss in this step.
    pub loss_scale: f32,
    /// Whether the run has stopped, in this step or before.
    pub stopped: bool,
}

impl StepNumbers {
    /// Returns the numbers of an update that is always made, and whose gradient is neither divided nor clipped: for a caller that
    /// knows one parameter only. `coefficients` are a row of [`Coefficients`]. The report of such a step has no norm.
    pub fn unconditional(coefficients: [f32; slots::COLUMNS], device: &Device) -> Self {
        let mut values = [0f32; step::LEN];
        (values[step::NORM], values[step::GRADIENT_FACTOR], values[step::TAKEN]) = (f32::NAN, 1.0, 1.0);
        values[step::COEFFICIENTS..][..slots::COLUMNS].copy_from_slice(&coefficients);
        values[step::LOSS_SCALE] = 1.0;
        Self { values: Tensor::from_data(TensorData::from(values), (device, DType::F32)) }
    }

    /// Returns all numbers, `[10]`, f32, to be read together with other tensors; see [`Self::report`].
    pub fn values(&self) -> &Tensor<1> {
        &self.values
    }

    /// Returns the global norm of the divided gradient before clipping, `[1]`.
    pub fn norm(&self) -> Tensor<1> {
        self.values.clone().narrow(0, step::NORM, 1)
    }

    /// Returns 1 if the update was made, else 0, `[1]`, f32.
    pub fn taken(&self) -> Tensor<1> {
        self.values.clone().narrow(0, step::TAKEN, 1)
    }

    /// Returns the factor that divides, unscales and clips the gradient, `[1]`, f32.
    pub fn gradient_factor(&self) -> Tensor<1> {
        self.values.clone().narrow(0, step::GRADIENT_FACTOR, 1)
    }

    /// Returns number `i` of the row of [`Coefficients`] that belongs to the update, `[1]`, f32.
    pub fn coefficient(&self, i: usize) -> Tensor<1> {
        assert!(i < slots::COLUMNS, "a row has {} numbers", slots::COLUMNS);
        self.values.clone().narrow(0, step::COEFFICIENTS + i, 1)
    }

    /// Interprets [`Self::values`] after they were read.
    ///
    /// # Panics
    /// If `values` does not come from [`Self::values`].
    pub fn report(values: &[f32]) -> StepReport {
        assert_eq!(values.len(), step::LEN, "the numbers of a step: {values:?}");

        StepReport {
            norm: values[step::NORM],
            taken: values[step::TAKEN] > 0.0,
            update: count(values[step::BLOCKS], values[step::UPDATES]) + 1,
            loss_scale: values[step::LOSS_SCALE],
            stopped: values[step::STOPPED] > 0.0,
        }
    }
}

/// Decides about a step and counts it.
///
/// The numbers of the step are the global norm of `gradient / divisor`, the factor that divides the gradient and clips
/// it to `max_norm` (`min(1, max_norm / (norm + 1e-6)) / divisor`, as `torch.nn.utils.clip_grad_norm_`), and the
/// coefficients of the update. A divisor below 1 (a batch without labels) counts as 1. With [`LossScaling`] the factor
/// also undoes the loss scale.
///
/// The step is not taken if its loss or norm is not finite. Nothing is counted then, so that the next step has the same
/// learning rate and bias corrections.
///
/// Sums have a fixed order: the same gradient has the same norm in every run. On a GPU `progress` is updated in place.
///
/// # Shapes
/// - `divisor`, `loss`: `[1]`, f32
///
/// `coefficients` should hold the update that follows the updates counted by `progress`; otherwise its nearest row is
/// used.
pub fn prepare(
    gradient: &Flat,
    divisor: Tensor<1>,
    loss: Tensor<1>,
    progress: Progress,
    coefficients: &Coefficients,
    policy: &StepPolicy,
) -> (StepNumbers, Progress) {
    assert_eq!((divisor.dims(), loss.dims()), ([1], [1]), "one divisor and one loss for all gradients");
    if runs_plain(&loss.device()) {
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

/// Returns the factor that clips `gradient` to the global norm `max_norm`, `[1]`, f32: as [`prepare`] computes it with a divisor of 1.
/// It is 0 if the norm is not finite.
pub fn clipping_factor(gradient: &Flat, max_norm: f64) -> Tensor<1> {
    let device = gradient.values.device();
    let one = Tensor::ones([1], (&device, DType::F32));
    let progress = Progress::new(Counters { updates: 0, loss_scale: 1.0, good_steps: 0 }, &device);
    let policy = StepPolicy { max_norm, scaling: None, stops: false };
    let none = Coefficients::of_no_update(&device);
    let (numbers, _) = prepare(gradient, one.clone(), one, progress, &none, &policy);
    let (factor, skipped) = (numbers.gradient_factor(), numbers.taken().equal_elem(0.0));
    factor.mask_fill(skipped, 0.0)
}

/// Makes one AdamW step over a whole model:
/// `g = factor * gradient`, `master *= 1 - lr * wd`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `master -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`, `weights = master` in the dtype of `weights`.
/// A step that [`prepare`] does not take changes nothing.
///
/// On a GPU every buffer of `state` is overwritten, even if a clone or a [`view`] of it exists: read what you want to
/// keep before the step. The backend's lazy queue does not know that the views change, so flush the device
/// ([`Device::flush`]) before anything reads them again.
///
/// # Shapes
/// - `gradient`: `[n]`, any float dtype
///
/// # Panics
/// If `gradient` and the state differ in length.
pub fn adamw_step(state: AdamWState, gradient: Flat, numbers: &StepNumbers, hyper: &AdamWHyper) -> AdamWState {
    assert_eq!(gradient.values.dims(), state.master.dims(), "the gradient does not have the length of the weights");
    if runs_plain(&state.master.device()) {
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

/// Makes the step of [`adamw_step`] with master weights and moments in bf16: computes them in f32 and rounds them stochastically
/// ([`Rounding`]). The same seed, update and place of an element give the same bits on the CPU, in every process and for any number of
/// slices. A GPU computes other last digits than the CPU, and rounds them by the same random bits.
///
/// # Shapes
/// - `state`: `[n]`, bf16
/// - `gradient`: `[n]`, any float dtype
///
/// # Panics
/// If `gradient` and the state differ in length, if the state is not bf16, or if `n` or the place of the first element is not a multiple
/// of [`ALIGNMENT`].
pub fn adamw_step_rounded(
    state: AdamWState,
    gradient: Flat,
    numbers: &StepNumbers,
    hyper: &AdamWHyper,
    rounding: Rounding,
) -> AdamWState {
    let AdamWState { master, m, v, weights } = state;
    let ([n], dtypes) = (master.dims(), [&master, &m, &v].map(Tensor::dtype));
    assert_eq!(gradient.values.dims(), [n], "the gradient does not have the length of the weights");
    assert_eq!(dtypes, [DType::BF16; 3], "weights and moments that are rounded to bf16");
    assert!(n.is_multiple_of(ALIGNMENT) && rounding.first.is_multiple_of(ALIGNMENT), "{n} numbers for {rounding:?}");

    let [master, m, v] = if runs_plain(&master.device()) {
        reference::adamw_step_rounded([master, m, v], gradient, numbers, hyper, rounding)
    } else {
        let [master, m, v, gradient, numbers] =
            [master, m, v, gradient.values, numbers.values.clone()].map(Tensor::into_dispatch);
        let (master, m, v) = Dispatch::adamw_rounded(master, m, v, gradient, numbers, ((*hyper).into(), rounding));
        [master, m, v].map(Tensor::from_dispatch)
    };
    let weights = weights.map(|weights| overwrite(weights, master.clone()));
    AdamWState { master, m, v, weights }
}
