//! What feeds the device: loader, uploads, and reads of metrics.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::tensor::{DType, Int, Tensor, TensorData};
use kiln_train::device::{is_cpu, upload};
use kiln_train::eval::Model;
use kiln_train::metrics::deferred::DeferredMetrics;
use kiln_train::metrics::{Span, SpanClock, host_sync};
use kiln_train::train::feed::Group;
use kiln_train::train::{CapturedSteps, STEPS_BEHIND, TrainState};

use super::figures::Figures;
use super::subject::Subject;
use super::verdict::{Found, Test, Verdict, percent};
use super::watch::{Pace, pace};
use crate::diagnose::link::median;
use crate::diagnose::measure::Effort;

/// Loader threads that are tried.
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Steps between two reads in the test of deferred metrics.
pub(super) const DEFERRED: u64 = 10;
/// Bytes of the large copy.
const LARGE_BYTES: usize = 64 << 20;
/// Gigabytes per second of a copy within a host or to a device: where nothing is copied, the quotient is higher.
const LARGE_COPY: [f64; 2] = [1e-3, 1_000.0];

/// Runs one of the tests of this file.
///
/// # Errors
/// If a batch cannot be made, or if the device fails.
pub(super) fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    figures.num_workers = subject.config.loader.num_workers;
    figures.is_streamed = subject.config.data.cache_limit.is_some();
    Ok(Ok(match test {
        Test::Loader => loader(subject, figures)?,
        Test::Workers => workers(subject, figures)?,
        Test::Upload => uploads(subject, figures)?,
        Test::Deferred => deferred(subject, figures)?,
        _ => real(subject, figures)?,
    }))
}

/// Times batches of a step from `num_workers` threads that nobody else waits for.
pub(super) fn load<M: Model>(subject: &Subject<'_, M>, num_workers: usize) -> Result<Pace> {
    let mut loader = subject.loader(subject.window()?, num_workers)?;
    // Before the clock starts, the queue is full once and empty again.
    for _ in 0..num_workers * subject.config.loader.prefetch_factor {
        let batch = loader.next_batch()?;
        loader.recycle(batch);
    }
    let (pace, ()) = pace(&subject.device, Effort { warm_up: 1, ..subject.effort }, |_| {
        for _ in 0..subject.accumulated() {
            let batch = loader.next_batch()?;
            loader.recycle(batch);
        }
        Ok(())
    })?;
    Ok(pace)
}

fn loader<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let n = subject.config.loader.num_workers;
    let pace = load(subject, n)?;
    figures.loader_ms = Some(pace.ms);
    let words = match figures.step_ms {
        Some(step) if pace.ms < step => format!("{:.1} x as fast as the step", step / pace.ms.max(1e-9)),
        Some(step) => format!("{:.1} x as slow as the step", pace.ms / step),
        None => String::new(),
    };
    let what = format!("batches of a step, loader.num_workers = {n}");
    let verdict = Verdict::new(what, pace.ms, "ms", words).within(pace.spread);
    Ok(vec![match figures.step_ms {
        Some(step) => verdict.against(step),
        None => verdict,
    }])
}

fn workers<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let mut found = Vec::new();
    for n in WORKERS {
        let pace = load(subject, n)?;
        figures.workers.push((n, pace.ms));
        let one = figures.workers[0].1;
        let words = if n == 1 { String::new() } else { format!("{:.2} x as fast as one", one / pace.ms.max(1e-9)) };
        found.push(Verdict::new(format!("loader.num_workers = {n}"), pace.ms, "ms", words).within(pace.spread));
    }
    Ok(found)
}

fn uploads<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let mut loader = subject.loader(subject.window()?, 0)?;
    let n = subject.effort.steps * subject.accumulated();
    let hosts = (0..n).map(|_| loader.next_batch()).collect::<kiln_data::Result<Vec<_>>>()?;
    let bytes = 4.0 * hosts.iter().map(|host| host.ids.len()).sum::<usize>() as f64 / subject.effort.steps as f64;
    let (pace, _) = pace(&subject.device, subject.effort, |step| {
        let first = step * subject.accumulated();
        Ok(hosts[first..first + subject.accumulated()]
            .iter()
            .map(|host| upload(host, &subject.device))
            .collect::<Vec<_>>())
    })?;
    figures.upload_ms = Some(pace.ms);

    let device = subject.device.clone().inner();
    let mut secs = Vec::new();
    for repeat in 0..=subject.effort.repeats {
        let data = TensorData::new(vec![repeat as i32; LARGE_BYTES / 4], [LARGE_BYTES / 4]);
        let started = Instant::now();
        let copied = Tensor::<1, Int>::from_data(data, (&device, DType::I32));
        device.sync().context("waiting for a copy")?;
        secs.push(started.elapsed().as_secs_f64());
        drop(copied);
    }
    let gb_per_sec = LARGE_BYTES as f64 / median(secs[1..].to_vec()).max(1e-9) / 1e9;

    let within = if is_cpu(&subject.device) { "within the memory that the CPU computes in" } else { "to the device" };
    let words = format!("{:.1} KB, copied {within} and cut into tensors", bytes / 1e3);
    Ok(vec![
        Verdict::new("upload of a step's batches", pace.ms, "ms", words).within(pace.spread),
        Verdict::new("upload of 64 MiB at once", gb_per_sec, "GB/s", format!("copied {within}")).between(LARGE_COPY),
    ])
}

/// A loop of training steps on the clock.
struct Looped {
    pace: Pace,
    /// Shares of the time.
    data_wait: f64,
    reads: f64,
    syncs_per_step: f64,
}

/// Where the loop gets its groups.
enum Feed<'a> {
    Resident(&'a [Group]),
    Loader(Box<kiln_train::train::feed::GroupFeed>),
}

/// Takes steps as the trainer does, and reads the metrics after every `log_every`th.
fn train_loop<M: Model>(subject: &Subject<'_, M>, mut feed: Feed<'_>, log_every: u64) -> Result<Looped> {
    let (mut state, mut captured) = (subject.state()?, subject.captured());
    let (mut clock, mut deferred) = (SpanClock::start(), DeferredMetrics::default());
    let (mut n_steps, mut timed_from, mut syncs) = (0, 0, 0);
    let warm_up = subject.effort.warm_up * subject.effort.steps;
    // As the trainer does.
    let behind = if is_cpu(&subject.device) { 0 } else { STEPS_BEHIND as usize };
    let mut lines = VecDeque::new();

    let (pace, ()) = pace(&subject.device, subject.effort, |at| {
        if n_steps == warm_up {
            clock.take();
            (syncs, timed_from) = (0, n_steps);
        }
        let before = host_sync::count();
        match &mut feed {
            Feed::Resident(groups) => step(&mut state, &mut captured, &groups[at], &mut clock, &mut deferred),
            Feed::Loader(feed) => {
                let group = feed.next_group(&mut clock)?;
                step(&mut state, &mut captured, &group, &mut clock, &mut deferred);
            }
        }
        n_steps += 1;
        if (n_steps as u64).is_multiple_of(log_every.max(1)) {
            deferred.begin();
            lines.push_back(n_steps);
        }
        while lines.pop_front_if(|line| n_steps >= *line + behind).is_some() {
            let rate = state.optimizer.learning_rate();
            let read = clock.time(Span::Drain, || deferred.finish(|update| rate.at(update)));
            let steps = read.context("reading metrics")?;
            ensure!(steps.iter().all(|step| step.loss.is_finite()), "a loss is not finite");
        }
        syncs += host_sync::count() - before;
        Ok(())
    })?;

    let totals = clock.take();
    let share = |span| totals.spent(span).as_secs_f64() / totals.elapsed.as_secs_f64().max(1e-9);
    let counted = (n_steps - timed_from).max(1) as f64;
    Ok(Looped {
        pace,
        data_wait: share(Span::DataWait),
        reads: share(Span::Drain),
        syncs_per_step: syncs as f64 / counted,
    })
}

fn step<M: Model>(
    state: &mut TrainState<M>,
    captured: &mut CapturedSteps<M>,
    group: &Group,
    clock: &mut SpanClock,
    deferred: &mut DeferredMetrics,
) {
    let measures = clock.time(Span::Enqueue, || captured.step(state, &group.batches));
    deferred.push(group.facts(state), measures);
}

fn deferred<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let groups = subject.resident()?;
    let log_every = subject.config.train.log_every.max(1);
    let each = train_loop(subject, Feed::Resident(&groups), 1)?;
    let tenth = train_loop(subject, Feed::Resident(&groups), DEFERRED)?;
    figures.log_every = log_every;
    figures.reads_ms = Some([each.pace.ms, tenth.pace.ms]);

    let what = |n| format!("step, metrics read every {}", if n == 1 { "step".into() } else { format!("{n} steps") });
    let words = |looped: &Looped| {
        format!("{:.2} host syncs per step take {} of the time", looped.syncs_per_step, percent(looped.reads))
    };
    let mut found = vec![
        Verdict::new(what(1), each.pace.ms, "ms", words(&each)).within(each.pace.spread),
        Verdict::new(what(DEFERRED), tenth.pace.ms, "ms", words(&tenth))
            .within(tenth.pace.spread)
            .against(each.pace.ms),
    ];
    let advice = match log_every {
        1 => "the run reads its metrics after each step: train.log_every = 10 reads as much with a tenth of the waits"
            .into(),
        n => format!("the run reads its metrics every {n} steps (train.log_every)"),
    };
    found.push(Verdict::new("reads of the run per step", 1.0 / log_every as f64, "host syncs", advice));
    Ok(found)
}

fn real<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let log_every = subject.config.train.log_every.max(1);
    let groups = subject.resident()?;
    let synthetic = train_loop(subject, Feed::Resident(&groups), log_every)?;
    let feed = subject.feed(subject.window()?, subject.config.loader.num_workers)?;
    let real = train_loop(subject, Feed::Loader(Box::new(feed)), log_every)?;

    figures.synthetic_ms = Some(synthetic.pace.ms);
    figures.real_ms = Some(real.pace.ms);
    figures.data_wait_share = Some(real.data_wait);
    let ratio = real.pace.ms / synthetic.pace.ms;
    let words = format!(
        "{:.2} x the time of synthetic tokens; the loop waits for the loader for {} of it",
        ratio,
        percent(real.data_wait)
    );
    Ok(vec![
        Verdict::new("step on synthetic tokens", synthetic.pace.ms, "ms", "the same shapes, already on the device")
            .within(synthetic.pace.spread),
        Verdict::new("step on loaded tokens", real.pace.ms, "ms", words)
            .within(real.pace.spread)
            .against(synthetic.pace.ms),
    ])
}
