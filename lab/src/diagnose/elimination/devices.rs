//! Several devices: the link between them, the share of collectives, and each alone against all together.

use anyhow::Result;
use kiln_kernels::collective::CollectiveTime;
use kiln_train::eval::Model;

use super::figures::{Figures, Together};
use super::steps::train;
use super::subject::Subject;
use super::verdict::{Found, Test, Verdict, percent};
use crate::diagnose::link;

/// Runs one of the tests of this file. Every rank calls it; rank 0 reports.
///
/// # Errors
/// If a device or another rank fails.
pub(super) fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    match test {
        Test::Link => bandwidth(subject),
        _ => together(subject, figures),
    }
    .map(Ok)
}

fn bandwidth<M: Model>(subject: &Subject<'_, M>) -> Result<Vec<Verdict>> {
    let n = subject.ranks.size();
    let times = link::measure_up_to(&subject.ranks, &subject.device, 200)?;
    let verdict = |time: &link::LinkTime| {
        let rate = |secs: f64| time.sent(n) / secs.max(1e-12) / 1e9;
        let words = format!(
            "all-gather {:.2} GB/s; an exchange takes {:.3} ms",
            rate(time.all_gather_secs),
            1e3 * time.exchange_secs
        );
        Verdict::new(format!("link, {} MiB", time.bytes >> 20), rate(time.exchange_secs), "GB/s", words)
    };
    Ok(times.iter().map(verdict).collect())
}

fn together<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let ranks = &subject.ranks;
    let groups = subject.resident()?;
    let alone = || -> Result<f64> {
        let mut state = subject.state()?;
        ranks.share("beginning to measure", ())?;
        Ok(train(subject, &mut state, &groups)?.ms)
    };
    // Kernels are compiled once, and a device that has worked for a while is slower.
    ranks.first_then_others("compiling kernels", || train(subject, &mut subject.state()?, &groups).map(drop))?;
    let before = alone()?;
    drop(ranks.take_timings());
    let mut state = subject.state()?.join(ranks, subject.config, None)?;
    ranks.share("beginning to measure", ())?;
    let together = train(subject, &mut state, &groups)?;
    let timed = timings(subject)?;
    drop(state);
    let after = alone()?;

    let n_steps = (subject.effort.warm_up + subject.effort.repeats) * subject.effort.steps;
    let collectives = timed.iter().map(|one| f64::from(one.ms)).sum::<f64>() / n_steps as f64;
    let of_ranks = ranks.share("the times of a step", [(before + after) / 2.0, together.ms, collectives])?;
    // Ranks wait for each other, so the slowest one sets the pace.
    let most = |at: usize| of_ranks.iter().map(|of| of[at]).fold(0.0, f64::max);
    let (alone, with_others, collectives) = (most(0), most(1), most(2));
    let found = Together { n: ranks.size(), alone_ms: alone, together_ms: with_others };
    figures.together = Some(found);
    figures.sync_every = subject.config.train.sync_every;
    figures.grad_accum_steps = subject.accumulated();

    let words = format!("{} devices reach {} of {} times one device", found.n, percent(found.efficiency()), found.n);
    let mut verdicts = vec![
        Verdict::new("step of each device alone", alone, "ms", ""),
        Verdict::new("step together", with_others, "ms", words).within(together.spread).against(alone),
    ];
    let share = (1.0 - found.efficiency()).max(0.0);
    verdicts.push(if timed.is_empty() {
        let words = "what a step takes longer together: collectives, and waits for the slowest device";
        Verdict::new("share of the exchange", 100.0 * share, "%", words)
    } else {
        let words = format!("{collectives:.2} ms of collectives per step on the device's clock, waits included");
        Verdict::new("share of the collectives", 100.0 * collectives / with_others, "%", words)
    });
    Ok(verdicts)
}

/// Takes the device's times of all collectives so far.
fn timings<M: Model>(subject: &Subject<'_, M>) -> Result<Vec<CollectiveTime>> {
    // The second call takes what the first one asks the device for.
    let mut timed = subject.ranks.take_timings();
    subject.ranks.share("the end of a measurement", ())?;
    timed.extend(subject.ranks.take_timings());
    Ok(timed)
}
