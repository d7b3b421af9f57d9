//! From the figures of all tests to the bottleneck, in a sentence.

use kiln_metrics::units::thousands;
use kiln_train::metrics::GpuUse;
use kiln_train::train::accumulation_for;
use serde::Serialize;

use super::figures::{Calls, Figures, Padding, Rhythm};
use super::verdict::percent;

/// A share of the time that is not worth a word.
const LEAST: f64 = 0.03;
/// A larger batch changes what a step learns: it must save this share of the time to be proposed.
const LEAST_OF_BATCH: f64 = 0.2;
/// Share of the time that does not shrink with the batch, from which single operations are the cause.
const LEAST_OF_CALLS: f64 = 0.5;
/// Share of the time after which the host has enqueued a step, from which it waits for the device.
const WAITING: f64 = 0.9;
/// Fraction of the samples from which the clock counts as held down.
const THROTTLED: f64 = 0.5;

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
        calls(figures),
        waits(figures),
        rhythm(figures),
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
            "the source itself is too slow, whatever loader.num_workers: its threads wait for each other, for the \
                         disk or for a core; look at the tests stages and map"
                .into()
        }
    };
    let streamed = figures.is_streamed.then_some(
        "; data.cache_limit parses and tokenizes rows in every epoch, and without it Kiln does so once, before the training",
    );
    let found = format!("training waits for batches for {} of the time{}", percent(saves), in_threads(figures));
    Some(Cause { name: "the loader", saves, found, setting: setting + streamed.unwrap_or_default() })
}

/// `, which 1 loader thread makes in 31.20 ms per step, while a step takes 4.10 ms`, as far as it was measured.
fn in_threads(figures: &Figures) -> String {
    let Some(ms) = figures.loader_ms else { return String::new() };
    let makers = match figures.num_workers {
        0 => "which the uploading thread makes by itself".to_owned(),
        1 => "which 1 loader thread makes".to_owned(),
        n => format!("which {n} loader threads make"),
    };
    let step = figures.step_ms.map_or(String::new(), |step| format!(", while a step takes {step:.2} ms"));
    format!(", {makers} in {ms:.2} ms per step{step}")
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

/// Finds operations whose price is the call, and not the numbers: a loop in the model.
fn calls(figures: &Figures) -> Option<Cause> {
    let calls = figures.calls.filter(|calls| calls.fixed_share() >= LEAST_OF_CALLS)?;
    let Calls { n, whole_ms, short_ms, few_ms, .. } = calls;
    let (smaller, ms) = match short_ms >= few_ms {
        true => ("rows of a quarter of the length", short_ms),
        false => ("a quarter of the rows", few_ms),
    };
    let of_step = figures.step_ms.map_or(1.0, |step| (whole_ms / step.max(1e-9)).min(1.0));
    Some(Cause {
        name: "many small operations",
        saves: calls.fixed_share() * of_step,
        found: format!(
            "a forward pass calls {} operations, and forward and backward take {whole_ms:.2} ms, for {smaller} still {ms:.2} ms: \
             the time goes into calls, not into numbers",
            thousands(n as f64)
        ),
        setting: "compute in one operation (a batched product, a gather, a scatter) what the model's loop computes one by one: \
                  docs/own-head.md; a larger loader.batch_tokens helps if the loop does not grow with the batch"
            .into(),
    })
}

/// Finds a host that waits for the device within the step, although its calls are few.
fn waits(figures: &Figures) -> Option<Cause> {
    let calls = figures.calls.filter(|calls| calls.fixed_share() < LEAST_OF_CALLS)?;
    let share = calls.host_share.filter(|share| *share >= WAITING)?;
    // Without the wait, the host calls operations while the device works on earlier ones.
    let fixed = calls.fixed_share();
    Some(Cause {
        name: "a sync in the model",
        saves: fixed,
        found: format!(
            "the host returns from forward and backward after {} of their time, although calls take {} of it: the loss waits for \
             the device",
            percent(share),
            percent(fixed)
        ),
        setting: "read no tensor (into_scalar, into_data) in the model's loss; figures of validation and train.log_every read \
                  them later"
            .into(),
    })
}

/// Finds work that comes back every so many steps.
fn rhythm(figures: &Figures) -> Option<Cause> {
    let Rhythm { every, times, share } = figures.rhythm?;
    Some(Cause {
        name: "work at intervals",
        saves: share,
        found: format!("every {every} steps, a step takes {times:.1} x as long as the others"),
        setting: "find what the model, the optimizer or the data does at this interval, such as freeing a cache (memory_cleanup), \
                  which the next steps fill again; Kiln's own validations and checkpoints are not in these steps"
            .into(),
    })
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
    let accumulated = figures.grad_accum_steps.max(1);
    let when = match (figures.sync_every, accumulated) {
        (2.., _) => format!("once in {} steps", figures.sync_every),
        (_, 1) => "after each batch".into(),
        (_, n) => format!("in each step, which has {n} batches"),
    };
    let found = format!(
        "{} devices reach {} of {} times one device, because they exchange {when}",
        together.n,
        percent(together.efficiency()),
        together.n
    );

    let proposed = accumulation_for(accumulated, 1.0, saves.clamp(0.0, 0.99));
    let accumulation = (proposed > accumulated as u64)
        .then(|| format!(", train.grad_accum_steps = {proposed} once for {proposed} batches of each device"));
    let setting = match figures.sync_every {
        ..=1 => {
            format!("train.sync_every = 100 exchanges once in 100 steps{}", accumulation.unwrap_or_default())
        }
        _ => "a higher train.sync_every exchanges less often".into(),
    };
    Some(Cause { name: "the link between the devices", saves, found, setting })
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
