//! What a run measures, as plain numbers on the host: made by the trainer, written by [`crate::logging`].
//!
//! Tokens are counted without padding; losses are nats per target token (label): the words of a translation, the next
//! tokens of a text (`lm`), the masked ones (`mlm`). A value always carries the optimizer step it was measured at, even
//! when it was read from the device several steps later.

pub mod deferred;
pub mod outliers;
pub mod span;
pub mod throughput;

use serde::{Deserialize, Serialize};

pub use outliers::Outliers;
pub use span::{Span, SpanClock, SpanTotals};
pub use throughput::{Throughput, ThroughputMeter};

/// What one optimizer step did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Optimizer steps done, this one included: the first step is 1.
    pub step: u64,
    /// Passes over the training data begun before this step's first batch, counted from 0.
    pub epoch: u64,
    /// Training loss with label smoothing, nats per target token.
    pub loss: f64,
    /// Negative log-likelihood without smoothing, nats per target token.
    pub nll: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of this step's update.
    pub lr: f64,
    /// Updates made so far: steps without those that were skipped. The learning rate is a function of it.
    #[serde(default)]
    pub updates: u64,
    /// fp16: what the loss was multiplied with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<f64>,
    /// Whether the step made no update, because its loss or gradient was not finite.
    #[serde(skip_serializing_if = "is_false", default)]
    pub skipped: bool,
    /// Whether the device has ended the run with this step: no later one makes an update.
    #[serde(skip_serializing_if = "is_false", default)]
    pub stopped: bool,
    /// Tokens without padding, all micro-batches together: source and target, or the tokens of rows of text.
    pub tokens: u64,
    /// Those of them that are a source; 0 for text.
    pub source_tokens: u64,
    /// Labels: what the losses are means over.
    pub target_tokens: u64,
    /// Positions computed, padding included.
    pub padded_tokens: u64,
    /// Set if the loss is an outlier: how many standard deviations above the mean of the steps before, see [`Outliers`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_z: Option<f64>,
    /// The same for the gradient norm.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grad_norm_z: Option<f64>,
}

impl StepMetrics {
    /// Whether loss and gradient norm are ordinary numbers.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }

    /// Whether this is a step that dynamic loss scaling leaves out now and then: the scale was too high for it, and a lower
    /// one is tried next.
    pub fn is_overflow(&self) -> bool {
        self.loss_scale.is_some() && self.skipped && !self.stopped
    }

    /// Whether loss or gradient were not finite when they should have been.
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

/// The steps since the last line together: one per `train.log_every` steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowMetrics {
    /// Last step of the window.
    pub step: u64,
    /// Mean training loss, weighted by target tokens; nats per target token.
    pub loss: f64,
    /// Mean negative log-likelihood, weighted by target tokens; nats per target token.
    pub nll: f64,
    /// Gradient norm of the last step, before clipping; the last that made an update, where loss scaling left some out.
    pub grad_norm: f64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// fp16: loss scale of the last step.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<f64>,
    /// fp16: steps of the window that made no update, because the loss scale was too high.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub overflows: u64,
    /// Speed over the window.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// Share of the window's wall time in which training waited for the data loader, 0 to 1.
    pub data_wait_share: f64,
    /// Steps of the window whose loss or gradient norm was not finite.
    pub non_finite_steps: u64,
    /// Kernels that were launched for the first time in the window, and compiled then or read from the cache: 0 in steady state.
    /// Absent where nothing is compiled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub new_kernels: Option<usize>,
    /// Bytes of the device's memory that the run holds at the end of the window, free blocks of its pools included: flat in steady
    /// state. Absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
}

impl WindowMetrics {
    /// Sums up the steps of one window; `None` when there are none.
    pub fn new(steps: &[StepMetrics], throughput: Throughput, data_wait_share: f64) -> Option<Self> {
        let last = steps.last()?;
        let overflows = steps.iter().filter(|step| step.is_overflow()).count();
        // A loss that overflowed in its step says nothing about the others.
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
        })
    }
}

/// One pass over the validation data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValidationMetrics {
    /// Optimizer steps done.
    pub step: u64,
    /// Label-smoothed loss, nats per target token.
    pub loss: f64,
    /// Negative log-likelihood, nats per target token; perplexity is its exponential.
    pub nll: f64,
    /// Labels: target tokens without padding, tokens of a text, or masked ones.
    pub target_tokens: u64,
    /// lm: bits per UTF-8 byte of the text, which can be compared between vocabularies.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bits_per_byte: Option<f64>,
    /// mlm: share of the masked tokens for which the right one was the likeliest, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub masked_accuracy: Option<f64>,
    /// mlm: the same for the best guess that looks at nothing: always the most frequent token.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unigram_accuracy: Option<f64>,
    /// Corpus BLEU of generated text, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bleu: Option<f64>,
    /// chrF2 of generated text, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chrf: Option<f64>,
    /// Share of generated lines equal to their reference, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exact_match: Option<f64>,
    /// Wall time of the validation, seconds.
    pub elapsed_secs: f64,
}

impl ValidationMetrics {
    /// `exp(nll)`.
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }
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
        assert_eq!((window.non_finite_steps, window.overflows), (1, 0), "the end is no overflow like any other");
        assert!(WindowMetrics::new(&[], Throughput::default(), 0.0).is_none());
    }
}
