//! Diagnosis by elimination: what a performance engineer does by hand, each test by itself.
//!
//! Every test begins with states and loaders of its own, warms up, syncs, repeats, and checks the values that it has timed. All take
//! the same batches ([`Subject::window`]). The figures of all tests together name the [`bottleneck`].

mod altered;
mod bounds;
mod calls;
mod causes;
mod checks;
mod devices;
mod feeding;
mod figures;
mod live;
mod padding;
mod rhythm;
mod smaller;
mod stages;
mod steps;
mod subject;
#[cfg(test)]
mod tests;
mod variants;
mod verdict;
mod watch;

use anyhow::{Context, Result};
use burn::tensor::FloatDType;

pub use super::measure::Effort;
pub use causes::{Cause, bottleneck, causes, throttled};
pub use checks::{Check, Limits, checks};
pub use figures::{Calls, Figures, Padding, Rhythm, Together};
use kiln_train::config::Capture;
use kiln_train::device::Telemetry;
use kiln_train::eval::Model;
pub use live::Growth;
pub use subject::Subject;
pub use verdict::{Found, Outcome, Test, Verdict};
pub use watch::{Harness, Pace};

/// What all tests have found.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// The outcomes, in the order of the tests.
    pub outcomes: Vec<Outcome>,
    /// Their figures.
    pub figures: Figures,
}

/// What [`diagnose`] is doing.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A test begins.
    Begins(Test),
    /// A test has ended.
    Ended(&'a Outcome),
}

/// Runs `tests` on `subject`. `show` gets each test before it runs, and its outcome.
///
/// # Errors
/// If a test cannot make a batch, if the device or another rank fails, or if a loss is not finite.
pub fn diagnose<M: Model>(
    subject: &Subject<'_, M>,
    tests: &[Test],
    mut show: impl FnMut(Event<'_>),
) -> Result<Diagnosis> {
    let installed = kiln_kernels::Settings::current();
    let _installed = subject.config.train.f32_products.within(installed).install();
    let mut figures = Figures {
        is_f32: subject.dtype == FloatDType::F32,
        capture_is_off: subject.config.train.capture == Capture::Off,
        ..Figures::default()
    };
    let mut outcomes = Vec::new();
    for test in Test::ALL.into_iter().filter(|test| tests.contains(test)) {
        show(Event::Begins(test));
        let mut telemetry = Telemetry::start(&subject.device);
        let found = run(test, subject, &mut figures).with_context(|| format!("the test {test}"))?;
        let (.., gpu) = telemetry.take();
        subject.device.clone().inner().memory_cleanup();
        if test == Test::Step {
            figures.gpu = gpu;
        }

        let (verdicts, not_run) = match found {
            Ok(verdicts) => (verdicts, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        bounds::forget_impossible(&mut figures);
        let not_measured: Vec<_> = verdicts.iter().filter_map(bounds::why_not_measured).collect();
        let verdicts = verdicts.into_iter().filter(|verdict| bounds::why_not_measured(verdict).is_none()).collect();
        let outcome = Outcome { test, verdicts, not_measured, not_run, gpu };
        show(Event::Ended(&outcome));
        outcomes.push(outcome);
    }
    Ok(Diagnosis { outcomes, figures })
}

fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    if test.needs_ranks() && !subject.ranks.are_many() {
        return Ok(Err("needs several devices: add --devices 0,1".into()));
    }

    match test {
        Test::Harness => {
            let found = Harness::measure(&subject.device)?;
            figures.harness_is_right = Some(found.is_right());
            let words = if found.is_right() { "measured right" } else { "measured WRONG: trust no other figure" };
            Ok(Ok(vec![
                Verdict::new("a sleep of 20 ms", found.measured_ms, "ms", words).against(found.slept_ms),
                Verdict::new("twice as many products", found.ratio, "x the time", words).against(2.0),
            ]))
        }
        Test::First | Test::Inference | Test::Forward | Test::Backward | Test::Step | Test::Phases => {
            steps::run(test, subject, figures)
        }
        Test::Precision | Test::Graphs | Test::Fused | Test::Batch => variants::run(test, subject, figures),
        Test::Calls => calls::run(subject, figures),
        Test::Deferred | Test::Loader | Test::Workers | Test::Upload | Test::Real => {
            feeding::run(test, subject, figures)
        }
        Test::Stages | Test::Map => stages::run(test, subject, figures),
        Test::Padding => padding::run(subject, figures),
        Test::Live | Test::Peak => live::run(test, subject, figures),
        Test::Link | Test::Together => devices::run(test, subject, figures),
    }
}
