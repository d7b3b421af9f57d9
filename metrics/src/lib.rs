//! What a run measures, and where the numbers go.
//!
//! The records are plain numbers on the host. The trainer makes them, and [`logging`] writes them: to the console, `metrics.jsonl`,
//! TensorBoard and MLflow. The crate knows neither tensors nor models.
//!
//! Token counts exclude padding. Losses are in nats per target token (label): per token of a translation, per next token of
//! a text (`lm`), per masked token (`mlm`). Each value carries the optimizer step at which it was measured, even if it was
//! read from the device several steps later.
//!
//! # The map
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `units` numbers for people · `hardware` memory, GPUs and the machine · `span` where the time of the training thread went · `validation` a validation |
//! | 1 | `sources` losses and tokens of a mixture · `outliers` steps far from those before · `throughput` tokens per second |
//! | 2 | `logging` console, JSON lines, TensorBoard, MLflow |

mod hardware;
#[doc(hidden)]
pub mod logging;
mod outliers;
mod sources;
mod span;
mod throughput;
#[doc(hidden)]
pub mod units;
mod validation;

use kiln_data::Lengths;
use serde::{Deserialize, Serialize};

pub use hardware::{DeviceMemory, DeviceTime, GpuUse, HostMemory, HostUse};
pub use outliers::Outliers;
pub use sources::{SourceLoss, SourceMetrics, SourceTotals};
pub use span::{HostTimes, Span, SpanTotals};
pub use throughput::{Throughput, ThroughputMeter};
pub use validation::ValidationMetrics;

/// Version of the records of this module, as `metrics.jsonl` has them. A new field keeps the version; a field that goes away
/// or changes its meaning raises it. Files without a [`StartMetrics`] are of version 1.
pub const SCHEMA: u64 = 2;

/// The process that writes the records after this one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StartMetrics {
    /// [`SCHEMA`].
    pub schema: u64,
    /// Kiln's version.
    pub kiln: String,
    /// Optimizer steps done before: 0, or the step of the checkpoint that the run goes on from.
    pub step: u64,
    /// Optimizer steps at the end, `train.steps`.
    pub steps: u64,
    /// Name of the device, for example `NVIDIA H200` or `CPU (8 threads)`.
    pub device: String,
    /// Devices that train together.
    pub devices: u64,
    /// The lengths of the training rows, by side. Empty if rows must be read to know.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lengths: Vec<Lengths>,
}

/// Measurements of one optimizer step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Optimizer steps done, this one included: the first step is 1.
    pub step: u64,
    /// Epoch of this step's first batch, counted from 0.
    pub epoch: u64,
    /// Training loss with label smoothing, nats per target token.
    pub loss: f64,
    /// Negative log-likelihood without smoothing, nats per target token.
    pub nll: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of this step's update.
    pub lr: f64,
    /// Updates so far: steps that were not skipped. The learning rate depends on this number.
    #[serde(default)]
    pub updates: u64,
    /// fp16: the factor of the loss.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<f64>,
    /// Whether the step was skipped, because its loss or gradient was not finite.
    #[serde(skip_serializing_if = "is_false", default)]
    pub skipped: bool,
    /// Whether the device has stopped the run at this step: no later step makes an update.
    #[serde(skip_serializing_if = "is_false", default)]
    pub stopped: bool,
    /// Non-padding tokens of all micro-batches: source and target, or tokens of text.
    pub tokens: u64,
    /// Source tokens among them; 0 for text.
    pub source_tokens: u64,
    /// Labels, over which the losses are means.
    pub target_tokens: u64,
    /// Positions computed, padding included.
    pub padded_tokens: u64,
    /// Pairs, or rows of text.
    #[serde(default)]
    pub samples: u64,
    /// A mixture: its sources.
    #[serde(skip_serializing_if = "SourceMetrics::is_empty", default)]
    pub sources: SourceMetrics,
    /// If the loss is an outlier: standard deviations above the mean of earlier steps, see [`Outliers`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_z: Option<f64>,
    /// If the gradient norm is an outlier: the same for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grad_norm_z: Option<f64>,
}

impl StepMetrics {
    /// Whether loss and gradient norm are finite.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }

    /// Whether dynamic loss scaling skipped this step, because its scale was too high. That is normal: the next step has a
    /// lower scale.
    pub fn is_overflow(&self) -> bool {
        self.loss_scale.is_some() && self.skipped && !self.stopped
    }

    /// Whether loss or gradient are not finite for another reason than the loss scale.
    pub fn has_failed(&self) -> bool {
        !self.is_finite() && !self.is_overflow()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Summary of the last `train.log_every` steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowMetrics {
    /// Last step of the window.
    pub step: u64,
    /// Mean training loss, weighted by target tokens; nats per target token.
    pub loss: f64,
    /// Mean negative log-likelihood, weighted by target tokens; nats per target token.
    pub nll: f64,
    /// Gradient norm before clipping of the last step that loss scaling did not skip.
    pub grad_norm: f64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// fp16: loss scale of the last step.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<f64>,
    /// fp16: steps that were skipped because the loss scale was too high.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub overflows: u64,
    /// Speed over the window.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// Fraction of the window's wall time in which training waited for the data loader, 0 to 1.
    pub data_wait_share: f64,
    /// Steps of the window whose loss or gradient norm was not finite.
    pub non_finite_steps: u64,
    /// Kernels launched for the first time in the window, and so compiled or read from the cache: 0 in steady state. Absent
    /// if the device compiles no kernels.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub new_kernels: Option<usize>,
    /// Bytes of device memory that the run holds at the end of the window, including free blocks of its pools: constant in
    /// steady state. Absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// Where the time of the training thread went since the last line, validation and saving included. The time to write a
    /// line counts for the next one.
    #[serde(default)]
    pub host: HostTimes,
    /// How often the training thread waited for the device since the last line: once for the line itself; validations and
    /// checkpoints before it add theirs.
    #[serde(default)]
    pub host_syncs: u64,
    /// Fraction of the micro-batches since the last line that were replayed as CUDA graphs, 0 to 1. Absent where nothing can
    /// be recorded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replayed_share: Option<f64>,
    /// Shapes of micro-batches that are replayed, each as a CUDA graph of its own. Absent where nothing can be recorded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recorded_graphs: Option<usize>,
    /// Memory of the device. Absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device_memory: Option<DeviceMemory>,
    /// Memory of this process in the machine. Absent where the system does not say it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host_memory: Option<HostMemory>,
    /// CPU, storage, network and swapping. Absent where the system does not say it, or if nothing was sampled since the last
    /// line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host_use: Option<HostUse>,
    /// Where the time of rank 0's GPU went. Absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device_time: Option<DeviceTime>,
    /// Power, clock and load of rank 0's GPU. Absent without a GPU, without the driver's library (NVML), or if nothing was
    /// sampled since the last line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gpu: Option<GpuUse>,
    /// Several GPUs: what rank 0's GPU has exchanged with the others, by operation, as far as its events have been read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub collectives: Vec<CollectiveMetrics>,
    /// A mixture: its sources over the window.
    #[serde(skip_serializing_if = "SourceMetrics::is_empty", default)]
    pub sources: SourceMetrics,
}

/// The operations of one kind between the GPUs of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveMetrics {
    /// `exchange` of gradients and sums, or `all_gather` of weights and sums.
    pub what: String,
    /// Operations.
    pub calls: u64,
    /// Bytes that they brought from other ranks.
    pub bytes: u64,
    /// Milliseconds on the device, the wait for slower ranks included.
    pub ms: f64,
    /// 10^9 bytes per second.
    pub gb_per_sec: f64,
}

impl CollectiveMetrics {
    /// Sums up operations, given as their kind, bytes and milliseconds, by kind.
    pub fn sums<'a>(operations: impl IntoIterator<Item = (&'a str, u64, f64)>) -> Vec<Self> {
        let mut sums: Vec<Self> = Vec::new();
        for (what, bytes, ms) in operations {
            let at = sums.iter().position(|sum| sum.what == what).unwrap_or_else(|| {
                sums.push(Self { what: what.into(), calls: 0, bytes: 0, ms: 0.0, gb_per_sec: 0.0 });
                sums.len() - 1
            });
            let sum = &mut sums[at];
            (sum.calls, sum.bytes, sum.ms) = (sum.calls + 1, sum.bytes + bytes, sum.ms + ms);
            sum.gb_per_sec = sum.bytes as f64 / sum.ms.max(1e-9) / 1e6;
        }
        sums
    }
}

impl WindowMetrics {
    /// Summarizes the steps of one window; `None` if there are none.
    pub fn new(steps: &[StepMetrics], throughput: Throughput, data_wait_share: f64) -> Option<Self> {
        let last = steps.last()?;
        let overflows = steps.iter().filter(|step| step.is_overflow()).count();
        // Leave out steps that overflowed, unless all did.
        let counted = || steps.iter().filter(|step| !step.is_overflow() || overflows == steps.len());
        let target_tokens: u64 = counted().map(|step| step.target_tokens).sum();
        let mean = |value: fn(&StepMetrics) -> f64| {
            counted().map(|step| value(step) * step.target_tokens as f64).sum::<f64>() / target_tokens.max(1) as f64
        };

        Some(Self {
            step: last.step,
            loss: mean(|step| step.loss),
            nll: mean(|step| step.nll),
            grad_norm: counted().next_back()?.grad_norm,
            lr: last.lr,
            loss_scale: last.loss_scale,
            overflows: overflows as u64,
            throughput,
            data_wait_share,
            non_finite_steps: steps.iter().filter(|step| step.has_failed()).count() as u64,
            new_kernels: None,
            memory_bytes: None,
            host: HostTimes::default(),
            host_syncs: 0,
            replayed_share: None,
            recorded_graphs: None,
            device_memory: None,
            host_memory: None,
            host_use: None,
            device_time: None,
            gpu: None,
            collectives: Vec::new(),
            sources: SourceMetrics::of(steps.iter().map(|step| &step.sources)),
        })
    }
}

/// A text that the model wrote at a validation, to be read by people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleMetrics {
    /// Optimizer steps done.
    pub step: u64,
    /// What the model read.
    pub source: String,
    /// What the model wrote.
    pub output: String,
    /// What was wanted; a language model may continue a text in many ways.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reference: Option<String>,
}

/// A whole run, when a process ends its training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunMetrics {
    /// Optimizer steps since the start of the run.
    pub step: u64,
    /// Why the training ended: `steps` (`train.steps` are done), `time` (`train.max_minutes`) or `stopped` (by a signal).
    pub outcome: String,
    /// Seconds of training since the start of the run, without validation and saving.
    pub train_secs: f64,
    /// Non-padding tokens trained on since the start of the run: source and target, or tokens of text.
    pub tokens: u64,
    /// `tokens` per second of `train_secs`.
    pub tokens_per_sec: f64,
    /// Fraction of the positions computed by this process that were padding, 0 to 1.
    pub padding_ratio: f64,
    /// Fraction of this process's training time spent waiting for data, 0 to 1.
    pub data_wait_share: f64,
    /// Step of the best validation, if there was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub best_step: Option<u64>,
    /// A mixture: what the whole run has trained on of each source.
    #[serde(skip_serializing_if = "SourceMetrics::is_empty", default)]
    pub sources: SourceMetrics,
    /// Where the time of this process's training thread went, from the first step to the last checkpoint.
    #[serde(default)]
    pub host: HostTimes,
    /// How often the training thread of this process waited for the device in that time.
    #[serde(default)]
    pub host_syncs: u64,
    /// Where the time of this process went and what could be had back, in a sentence for people.
    #[serde(default)]
    pub summary: String,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn step(step: u64, loss: f64, target_tokens: u64) -> StepMetrics {
        StepMetrics {
            step,
            epoch: 0,
            loss,
            nll: loss / 2.0,
            grad_norm: step as f64,
            lr: 1e-3,
            updates: step,
            loss_scale: None,
            skipped: false,
            stopped: false,
            tokens: 10 + target_tokens,
            source_tokens: 10,
            target_tokens,
            padded_tokens: 40,
            samples: 4,
            sources: SourceMetrics::default(),
            loss_z: None,
            grad_norm_z: None,
        }
    }

    #[test]
    fn a_window_weighs_steps_by_their_target_tokens() {
        let steps = [step(9, 2.0, 30), step(10, 4.0, 10)];
        let window = WindowMetrics::new(&steps, Throughput::default(), 0.25).expect("two steps");
        assert_eq!((window.step, window.grad_norm), (10, 10.0));
        assert!((window.loss - 2.5).abs() < 1e-12, "{}", window.loss);
        assert!((window.nll - 1.25).abs() < 1e-12, "{}", window.nll);
        assert_eq!(window.non_finite_steps, 0);
    }

    #[test]
    fn steps_that_are_not_finite_are_counted_and_shown() {
        let steps = [step(1, f64::NAN, 5), step(2, 1.0, 5)];
        let window = WindowMetrics::new(&steps, Throughput::default(), 0.0).expect("two steps");
        assert_eq!(window.non_finite_steps, 1);
        assert!(window.loss.is_nan(), "a mean over NaN must not look healthy");
        let overflow = StepMetrics { loss_scale: Some(4.0), skipped: true, ..step(1, f64::NAN, 5) };
        let stopped = StepMetrics { stopped: true, ..overflow.clone() };
        let window = WindowMetrics::new(&[step(1, 1.0, 5), overflow], Throughput::default(), 0.0).expect("two steps");
        assert_eq!((window.non_finite_steps, window.overflows), (0, 1));
        assert_eq!((window.loss, window.grad_norm, window.loss_scale), (1.0, 1.0, Some(4.0)));
        let window = WindowMetrics::new(&[stopped], Throughput::default(), 0.0).expect("a step");
        assert_eq!((window.non_finite_steps, window.overflows), (1, 0), "a stop is not an overflow");
        assert!(WindowMetrics::new(&[], Throughput::default(), 0.0).is_none());
    }

    #[test]
    fn operations_are_summed_by_kind() {
        let sums = CollectiveMetrics::sums([("exchange", 1000, 0.5), ("all_gather", 10, 1.0), ("exchange", 3000, 1.5)]);
        let found: Vec<_> = sums.iter().map(|sum| (sum.what.as_str(), sum.calls, sum.bytes, sum.ms)).collect();
        assert_eq!(found, [("exchange", 2, 4000, 2.0), ("all_gather", 1, 10, 1.0)]);
        assert!((sums[0].gb_per_sec - 0.002).abs() < 1e-12);
    }
}
