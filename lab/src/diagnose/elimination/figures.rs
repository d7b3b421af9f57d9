//! From the figures of all tests to the bottleneck, in a sentence.

use kiln_train::metrics::GpuUse;
use serde::Serialize;

use super::verdict::percent;

/// A share of the time that is not worth a word.
const LEAST: f64 = 0.03;
/// A larger batch changes what a step learns: it must save this share of the time to be proposed.
const LEAST_OF_BATCH: f64 = 0.2;
/// Fraction of the samples from which the clock counts as held down.
const THROTTLED: f64 = 0.5;

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
    /// Several devices.
    pub(crate) together: Option<Together>,
    /// `train.sync_every`.
    pub(crate) sync_every: u64,
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

/// Something that costs time, and what removes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    /// Its name.
    pub name: &'static str,
    /// Fraction of the time that removing it saves, 0 to 1.
    pub(crate) saves: f64,
    /// What was found.
    pub(crate) found: String,
    /// The setting to change.
    pub(crate) setting: String,
}

impl Cause {
    /// Returns the speed without this cause, relative to the speed with it.
    pub(crate) fn gain(&self) -> f64 {
        1.0 / (1.0 - self.saves.min(0.99))
    }

    /// Returns the finding, the promised gain, and the setting.
    pub fn sentence(&self) -> String {
        format!("{}; without that, training is up to {:.2} x as fast: {}", self.found, self.gain(), self.setting)
    }
}

/// Returns what costs time, the costliest first. Empty if nothing does that a setting removes.
pub fn causes(figures: &Figures) -> Vec<Cause> {
    let all = [
        loader(figures),
        padding(figures),
        batch(figures),
        reads(figures),
        graphs(figures),
        precision(figures),
        upload(figures),
        link(figures),
        throttled(figures.gpu.as_ref()),
    ];
    let mut found: Vec<Cause> = all.into_iter().flatten().filter(|cause| cause.saves >= LEAST).collect();
    found.sort_by(|a, b| b.saves.total_cmp(&a.saves));
    found
}

/// Names the bottleneck in a sentence.
pub fn bottleneck(figures: &Figures) -> String {
    match causes(figures).first() {
        Some(cause) => format!("bottleneck: {}: {}", cause.name, cause.sentence()),
        None if figures.step_ms.is_none() || figures.real_ms.is_none() => {
            "these tests found no bottleneck; the tests step and real tell computation from the loader".into()
        }
        None => {
            let mfu = figures.mfu.map_or(String::new(), |mfu| format!(" at an MFU of {}", percent(mfu)));
            format!(
                "bottleneck: computation{mfu}: no setting that was tried saves {} of the time; what remains is a smaller model, a \
                 faster device or more devices",
                percent(LEAST)
            )
        }
    }
}

fn loader(figures: &Figures) -> Option<Cause> {
    let saves = figures.data_wait_share?;
    let now = figures.loader_ms;
    let threads = |(n, ms): &(usize, f64)| format!("loader.num_workers = {n} ({ms:.2} ms per step)");
    let more = || figures.workers.iter().filter(|(n, _)| *n > figures.num_workers);
    let enough = figures.step_ms.and_then(|step| more().find(|(_, ms)| *ms <= 0.9 * step));
    let fastest = more().min_by(|a, b| a.1.total_cmp(&b.1));
    let helps = fastest.filter(|(_, ms)| now.is_some_and(|now| *ms <= 0.9 * now));

    let setting = match (enough, helps) {
        (Some(enough), _) => threads(enough),
        (None, Some(helps)) => {
            format!("{}, which is not enough: a faster source is needed, too", threads(helps))
        }
        (None, None) => {
            "the source itself is too slow, whatever loader.num_workers: look at the tests stages and map".into()
        }
    };
    let found = format!("training waits for batches for {} of the time", percent(saves));
    Some(Cause { name: "the loader", saves, found, setting })
}

fn padding(figures: &Figures) -> Option<Cause> {
    let Padding { now, then, settings } = figures.padding.as_ref()?;
    let saves = 1.0 - (1.0 - now) / (1.0 - then).max(1e-9);
    let found = format!("{} of the positions is padding, where {} would do", percent(*now), percent(*then));
    let setting = settings.iter().map(|set| set.replacen('=', " = ", 1)).collect::<Vec<_>>().join(" and ");
    Some(Cause { name: "padding", saves, found, setting })
}

fn batch(figures: &Figures) -> Option<Cause> {
    let [now, then] = figures.batch_rates?;
    let saves = 1.0 - now / then.max(1e-9);
    let cause = || Cause {
        name: "a small batch",
        saves,
        found: format!("the batch keeps {} of the speed of one of four times as many rows", percent(now / then)),
        setting: format!(
            "loader.batch_tokens = {}, with fewer train.steps and perhaps a higher optim.lr, because a step then learns from more rows",
            4 * figures.batch_tokens
        ),
    };
    (saves >= LEAST_OF_BATCH).then(cause)
}

fn reads(figures: &Figures) -> Option<Cause> {
    let [each, tenth] = figures.reads_ms?;
    let cause = || Cause {
        name: "reads of metrics",
        saves: 1.0 - tenth / each.max(1e-9),
        found: format!(
            "the run reads its metrics after each step, which then takes {each:.2} ms instead of {tenth:.2} ms"
        ),
        setting: "train.log_every = 10".into(),
    };
    (figures.log_every == 1).then(cause)
}

fn graphs(figures: &Figures) -> Option<Cause> {
    let [eager, replayed] = figures.graphs_ms?;
    let cause = || Cause {
        name: "the host",
        saves: 1.0 - replayed / eager.max(1e-9),
        found: format!("enqueuing kernels one by one takes {eager:.2} ms per step, a replayed step {replayed:.2} ms"),
        setting: "train.capture = \"auto\"".into(),
    };
    figures.capture_is_off.then(cause)
}

fn precision(figures: &Figures) -> Option<Cause> {
    let [full, half] = figures.precision_ms?;
    let cause = || Cause {
        name: "the precision",
        saves: 1.0 - half / full.max(1e-9),
        found: format!("a step takes {full:.2} ms in f32 and {half:.2} ms in 16 bits"),
        setting: "train.precision = \"bf16\"; kiln check --precision bf16 compares what it learns".into(),
    };
    figures.is_f32.then(cause)
}

fn upload(figures: &Figures) -> Option<Cause> {
    let (upload, step) = figures.upload_ms.zip(figures.step_ms)?;
    // On the CPU, an upload is a copy that the step includes.
    let saves = (upload / (step + upload).max(1e-9)).min(1.0);
    let found = format!("copying the batches of a step takes {upload:.2} ms, computing it {step:.2} ms");
    let setting =
        "compare the GB/s of the large copy with the device's PCIe link: fewer lanes or a busy host slow it".into();
    Some(Cause { name: "uploads", saves, found, setting })
}

fn link(figures: &Figures) -> Option<Cause> {
    let together = figures.together?;
    let saves = 1.0 - together.efficiency();
    let found = format!(
        "{} devices reach {} of {} times one device, because they exchange in each step",
        together.n,
        percent(together.efficiency()),
        together.n
    );
    let setting = match figures.sync_every {
        ..=1 => "train.sync_every = 100 exchanges once in 100 steps, train.grad_accum_steps = 8 once for 8 batches",
        _ => "a higher train.sync_every exchanges less often",
    };
    Some(Cause { name: "the link between the devices", saves, found, setting: setting.into() })
}

/// Finds a clock that power or temperature holds down, in means over samples of the driver.
pub fn throttled(gpu: Option<&GpuUse>) -> Option<Cause> {
    let gpu = gpu?;
    let (clock, highest) = gpu.sm_clock_mhz.zip(gpu.max_sm_clock_mhz)?;
    let share = gpu.throttled_share?;
    let power = gpu.power_w.zip(gpu.power_limit_w).map(|(power, limit)| format!(" at {power:.0} of {limit:.0} W"));
    let cause = || Cause {
        name: "the clock",
        saves: 1.0 - clock / highest.max(1e-9),
        found: format!(
            "power or temperature holds the clock at {clock:.0} of {highest:.0} MHz in {} of the samples{}",
            percent(share),
            power.unwrap_or_default()
        ),
        setting: "nothing of Kiln's: the power limit and the cooling of the device decide".into(),
    };
    (share >= THROTTLED).then(cause)
}

#[cfg(test)]
mod tests;
