//! Memory: whether steps or deferred metrics keep anything, and the peak of the largest batch.

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_metrics::units::thousands;
use kiln_model::flops::n_params;
use kiln_train::device::{is_cpu, live_bytes, machine_of};
use kiln_train::eval::Model;
use kiln_train::metrics::deferred::DeferredMetrics;
use kiln_train::run::need::Need;

use super::figures::{Figures, Rhythm};
use super::rhythm;
use super::subject::Subject;
use super::verdict::{Found, Test, Verdict, percent};
use crate::diagnose::ledger::Ledger;
use crate::diagnose::measure::WorkClock;

/// Steps before the first look.
const BEFORE: usize = 50;
/// Bytes that a step may leave on a GPU: less than one number.
const LEFT_ON_GPU: f64 = 2.0;
/// Bytes that a step may leave on the CPU, where other threads of the process allocate, too. The graph of a step has thousands.
const LEFT_ON_CPU: f64 = 512.0;
/// Bytes of the deferred metrics of a step: a few numbers and their handles.
const DEFERRED_BYTES: f64 = 16384.0;
/// The least bytes of a parameter: a frozen weight in 16 bits.
const LEAST_BYTES: u64 = 2;

/// Runs one of the tests of this file.
///
/// # Errors
/// If the device fails.
pub(super) fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    match test {
        Test::Live => live(subject, figures),
        _ => peak(subject, figures),
    }
}

/// Bytes that are live before and after some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Steps between the two looks.
    pub(crate) steps: usize,
    /// Live bytes before.
    pub(crate) before: u64,
    /// Live bytes after.
    pub(crate) after: u64,
}

impl Growth {
    /// Looks before and after `steps` calls; `None` if the system does not say what is live.
    ///
    /// # Errors
    /// If a call fails.
    pub fn over(device: &Device, steps: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<Option<Self>> {
        let look = || -> Result<Option<u64>> {
            device.clone().inner().sync().context("waiting for the device")?;
            Ok(live_bytes(device))
        };
        let Some(before) = look()? else { return Ok(None) };
        (0..steps).try_for_each(&mut call)?;
        Ok(look()?.map(|after| Self { steps, before, after }))
    }

    /// Returns the bytes that each step has left.
    pub fn per_step(&self) -> f64 {
        (self.after as f64 - self.before as f64) / self.steps.max(1) as f64
    }
}

fn live<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    let groups = subject.resident()?;
    let (mut state, mut captured) = (subject.state()?, subject.captured());
    let mut deferred = DeferredMetrics::default();
    let log_every = subject.config.train.log_every.max(1);
    // Other processes must not look like work of this one.
    let clock = WorkClock::start(&subject.device);
    let (mut number, mut secs) = (0, Vec::with_capacity(subject.leak_steps));
    let mut step = |deferred: &mut DeferredMetrics, reads: bool, secs: Option<&mut Vec<f64>>| -> Result<()> {
        let group = &groups[number % groups.len()];
        number += 1;
        let started = clock.now();
        let measures = captured.step(&mut state, &group.batches);
        if let Some(secs) = secs {
            subject.device.clone().inner().sync().context("waiting for the device")?;
            secs.push((clock.now() - started).as_secs_f64());
        }
        deferred.push(group.facts(&state), measures);
        if reads && (number as u64).is_multiple_of(log_every) {
            deferred.drain(|_| 0.0).context("reading metrics")?;
        }
        Ok(())
    };

    for _ in 0..BEFORE.max(subject.effort.warm_up * groups.len()) {
        step(&mut deferred, true, None)?;
    }
    deferred.drain(|_| 0.0).context("reading metrics")?;

    // As many steps as before, so that both looks follow the same group.
    let n = subject.leak_steps.saturating_sub(BEFORE).max(1).next_multiple_of(groups.len());
    secs.reserve(n);
    let of_steps = Growth::over(&subject.device, n, |at| {
        step(&mut deferred, true, Some(&mut secs))?;
        // Nothing of the last line is pending at the second look.
        if at + 1 == n { deferred.drain(|_| 0.0).map(drop).context("reading metrics") } else { Ok(()) }
    })?;
    // So many that what other threads allocate meanwhile does not count.
    let pending =
        Growth::over(&subject.device, BEFORE.next_multiple_of(groups.len()), |_| step(&mut deferred, false, None))?;
    let Some((of_steps, pending)) = of_steps.zip(pending) else {
        return Ok(Err("not on this system: it does not say how many bytes are live".into()));
    };

    figures.left_bytes = Some(of_steps.per_step());
    figures.left_limit = if is_cpu(&subject.device) { LEFT_ON_CPU } else { LEFT_ON_GPU };
    figures.pending_bytes = Some(pending.per_step());
    figures.pending_limit = DEFERRED_BYTES;
    let words = left(figures);
    // The batches of a group come in turn.
    figures.rhythm = rhythm::find(&secs, groups.len());
    let mut found = vec![
        Verdict::new(
            format!("live bytes after {} more steps", thousands(n as f64)),
            of_steps.after as f64,
            "bytes",
            words,
        )
        .against(of_steps.before as f64),
        Verdict::new(
            "deferred metrics of a step",
            pending.per_step(),
            "bytes",
            "a few numbers, without the graph that computed them",
        ),
    ];
    found.extend(figures.rhythm.map(|Rhythm { every, times, share }| {
        let words = format!("every {every} steps; these steps take {} of the time beyond the others", percent(share));
        Verdict::new("steps that take longer", times, "x the others", words)
    }));
    Ok(Ok(found))
}

/// Says what a step leaves, and whether that is a leak.
fn left(figures: &Figures) -> String {
    let limit = figures.left_limit;
    match figures.left_bytes {
        Some(left) if left > limit => format!("{left:.1} bytes left by a step: a LEAK"),
        Some(left) if left >= -limit => {
            format!("{:.1} bytes left by a step: no leak; up to {limit:.0} are noise", left.max(0.0))
        }
        _ => "not measured what a step leaves: other threads have freed more than the noise".into(),
    }
}

fn peak<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    let need = Need { dtype: subject.dtype, n_devices: 1, checkpointing: subject.checkpointing };
    let ledger = Ledger { config: subject.config, device: &subject.device, largest: subject.largest, need };
    let (is_own, predicted) = (subject.init.is_own(), ledger.bytes().total());
    // On a GPU, the pools would keep what the tests before have needed.
    subject.device.clone().inner().memory_cleanup();
    let Some(measured) = ledger.measured(subject.data, subject.init)? else {
        return Ok(Err("not on this system: it does not say how much memory the steps took".into()));
    };
    figures.peak_bytes = Some(measured);
    figures.least_peak_bytes = match is_own {
        true => subject.n_params() * LEAST_BYTES,
        false => n_params(&subject.config.model).total() * LEAST_BYTES,
    };
    figures.memory_bytes = subject.config.part_of(machine_of(&subject.device)).memory_bytes;

    let words = format!("for the largest batch, {}; kiln memory lists what for", subject.largest);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let peak = Verdict::new("peak of the memory", mib(measured), "MiB", words)
        .between([mib(figures.least_peak_bytes), mib(figures.memory_bytes.unwrap_or(u64::MAX))]);
    // The prediction is for a Transformer.
    Ok(Ok(vec![if is_own { peak } else { peak.against(mib(predicted)) }]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_noise_and_nonsense_are_told_apart() {
        let said = |left| left_of(Some(left));
        assert!(said(4_096.0).contains("a LEAK"), "{}", said(4_096.0));
        for noise in [-300.0, 0.0, 300.0] {
            assert!(said(noise).contains("no leak") && !said(noise).contains('-'), "{}", said(noise));
        }
        assert!(said(-4_096.0).contains("not measured") && left_of(None).contains("not measured"));
    }

    fn left_of(left_bytes: Option<f64>) -> String {
        left(&Figures { left_bytes, left_limit: LEFT_ON_CPU, ..Figures::default() })
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_a_step_keeps_is_counted() {
        let mut kept = Vec::with_capacity(64);
        let leaking = Growth::over(&Device::flex(), 64, |_| {
            kept.push(vec![1u8; 1 << 20]);
            Ok(())
        });
        let leaking = leaking.expect("no call fails").expect("glibc");
        // Tests in other threads allocate and free, too.
        assert!(leaking.per_step() > 0.8 * f64::from(1 << 20), "{leaking:?}");
    }
}
