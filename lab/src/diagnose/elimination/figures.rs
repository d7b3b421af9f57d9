//! The figures of all tests.

use kiln_train::metrics::GpuUse;
use serde::Serialize;

/// What the tests have measured; `None` where a test did not run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// A step on synthetic tokens that are on the device, milliseconds.
    pub(crate) step_ms: Option<f64>,
    /// The host's time to enqueue it, milliseconds.
    pub(crate) host_ms: Option<f64>,
    /// Model FLOPs utilization, 0 to 1.
    pub(crate) mfu: Option<f64>,
    /// The training loop on synthetic tokens, milliseconds per step.
    pub(crate) synthetic_ms: Option<f64>,
    /// The training loop on loaded tokens, milliseconds per step.
    pub(crate) real_ms: Option<f64>,
    /// Fraction of that time in which the loop waits for the loader.
    pub(crate) data_wait_share: Option<f64>,
    /// `loader.num_workers`.
    pub(crate) num_workers: usize,
    /// The loader alone, milliseconds per step.
    pub(crate) loader_ms: Option<f64>,
    /// The loader alone with numbers of threads, milliseconds per step.
    pub(crate) workers: Vec<(usize, f64)>,
    /// Parse, tokenize, collate, queue: milliseconds per step.
    pub(crate) stages_ms: Option<[f64; 4]>,
    /// Whether rows are parsed and tokenized in every epoch (`data.cache_limit`).
    pub(crate) is_streamed: bool,
    /// Uploads, milliseconds per step.
    pub(crate) upload_ms: Option<f64>,
    /// `train.log_every`.
    pub(crate) log_every: u64,
    /// Steps whose metrics are read after each, and after every tenth, milliseconds.
    pub(crate) reads_ms: Option<[f64; 2]>,
    /// Eager and replayed steps, milliseconds.
    pub(crate) graphs_ms: Option<[f64; 2]>,
    /// Whether `train.capture` is `off`.
    pub(crate) capture_is_off: bool,
    /// The largest relative difference of losses of replayed and eager steps.
    pub(crate) graphs_differ: Option<f64>,
    /// The same for fused operators and their references.
    pub(crate) fused_differ: Option<f64>,
    /// The largest such difference that rounding explains.
    pub(crate) tolerance: f64,
    /// Steps in f32 and in 16 bits, milliseconds.
    pub(crate) precision_ms: Option<[f64; 2]>,
    /// Whether the run computes in f32.
    pub(crate) is_f32: bool,
    /// Padding of an epoch.
    pub(crate) padding: Option<Padding>,
    /// Tokens per second of the batch, and of one of four times as many rows.
    pub(crate) batch_rates: Option<[f64; 2]>,
    /// `loader.batch_tokens`.
    pub(crate) batch_tokens: usize,
    /// A model of one's own: the price of its operations, whatever their size.
    pub(crate) calls: Option<Calls>,
    /// Steps that take longer at regular intervals.
    pub(crate) rhythm: Option<Rhythm>,
    /// Several devices.
    pub(crate) together: Option<Together>,
    /// `train.sync_every`.
    pub(crate) sync_every: u64,
    /// `train.grad_accum_steps`.
    pub(crate) grad_accum_steps: usize,
    /// Power and clock during whole steps.
    pub(crate) gpu: Option<GpuUse>,
    /// Bytes that a step leaves behind.
    pub(crate) left_bytes: Option<f64>,
    /// The most that it may.
    pub(crate) left_limit: f64,
    /// Bytes of the deferred metrics of a step.
    pub(crate) pending_bytes: Option<f64>,
    /// The most that they may be.
    pub(crate) pending_limit: f64,
    /// Peak of the memory on the largest batch.
    pub(crate) peak_bytes: Option<u64>,
    /// The least that it can be: the weights.
    pub(crate) least_peak_bytes: u64,
    /// Memory of the device.
    pub(crate) memory_bytes: Option<u64>,
    /// Whether the stopwatch is right.
    pub(crate) harness_is_right: Option<bool>,
}

/// Padding as a fraction of the positions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Padding {
    /// With the settings of the run.
    pub(crate) now: f64,
    /// With better settings; the same if there are none.
    pub(crate) then: f64,
    /// The better settings, as arguments of `--set`.
    pub(crate) settings: Vec<String>,
}

/// Several devices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Together {
    /// Devices.
    pub(crate) n: usize,
    /// A step of each alone, milliseconds.
    pub(crate) alone_ms: f64,
    /// A step together, milliseconds.
    pub(crate) together_ms: f64,
}

impl Together {
    /// Returns the speed of all together, relative to n times one.
    pub(crate) fn efficiency(&self) -> f64 {
        self.alone_ms / self.together_ms.max(1e-9)
    }
}

/// Forward and backward of batches of several sizes, as the host calls one operation after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Calls {
    /// Operations on numbers that a forward pass of a batch calls.
    pub(crate) n: u64,
    /// A step's batches, milliseconds.
    pub(crate) whole_ms: f64,
    /// Rows of a quarter of the length, milliseconds.
    pub(crate) short_ms: f64,
    /// A quarter of the rows, milliseconds.
    pub(crate) few_ms: f64,
    /// GPU: the fraction of the time after which the host has enqueued the whole batches, 0 to 1.
    pub(crate) host_share: Option<f64>,
}

impl Calls {
    /// The part of the work that the smaller batches have.
    pub(crate) const PART: usize = 4;

    /// Returns the fraction of the time that does not shrink with the batch, 0 to 1: the larger one of shorter and of fewer rows.
    pub(crate) fn fixed_share(&self) -> f64 {
        let part = Self::PART as f64;
        // The line through both times, at a batch of no size.
        let at_none = (part * self.short_ms.max(self.few_ms) - self.whole_ms) / (part - 1.0);
        (at_none / self.whole_ms.max(1e-9)).clamp(0.0, 1.0)
    }
}

/// Steps that take longer at regular intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rhythm {
    /// Every so many steps, one takes longer.
    pub(crate) every: usize,
    /// Such a step, relative to the others.
    pub(crate) times: f64,
    /// Fraction of the time that the longer steps take beyond the others, 0 to 1.
    pub(crate) share: f64,
}
