//! The least and the most that a figure can be. One beyond is a fault of the measurement and is called not measured.

use std::ops::RangeInclusive;

use super::figures::Figures;
use super::verdict::Verdict;

/// Milliseconds: a nanosecond, and a day.
const MS: RangeInclusive<f64> = 1e-6..=8.64e7;
/// Gigabytes per second that a copy can take: no memory or link of one device is faster.
const GB_PER_SEC: RangeInclusive<f64> = 1e-4..=10_000.0;
/// A fraction.
const SHARE: RangeInclusive<f64> = 0.0..=1.0;

/// Returns the least and the most that a figure of this unit can be.
fn of_unit(unit: &str) -> RangeInclusive<f64> {
    match unit {
        "ms" => MS,
        "GB/s" => GB_PER_SEC,
        "%" => 0.0..=100.0,
        "bytes" | "host syncs" => 0.0..=1e15,
        "MiB" => 1e-3..=1e9,
        "tokens per second" => 1e-3..=1e12,
        "x the time" => 1e-2..=1e2,
        _ => f64::MIN..=f64::MAX,
    }
}

/// Says why a verdict's figure is none; `None` if it can be one.
pub(super) fn why_not_measured(verdict: &Verdict) -> Option<String> {
    let Verdict { what, figure, unit, bounds, .. } = verdict;
    let range = bounds.map_or(of_unit(unit), |[least, most]| least..=most);
    (!range.contains(figure)).then(|| {
        let (least, most) = (range.start(), range.end());
        format!("{what}: not measured: {figure:.4} {unit} lies outside of what can be, {least} to {most}")
    })
}

/// Takes away the figures that can be none, so that no check and no sentence relies on them.
pub(super) fn forget_impossible(figures: &mut Figures) {
    let keep = |figure: &mut Option<f64>, range: &RangeInclusive<f64>| *figure = figure.filter(|it| range.contains(it));
    for ms in [
        &mut figures.step_ms,
        &mut figures.host_ms,
        &mut figures.synthetic_ms,
        &mut figures.real_ms,
        &mut figures.loader_ms,
        &mut figures.upload_ms,
    ] {
        keep(ms, &MS);
    }
    keep(&mut figures.mfu, &SHARE);
    keep(&mut figures.data_wait_share, &SHARE);
    figures.workers.retain(|(_, ms)| MS.contains(ms));
    for pair in [&mut figures.reads_ms, &mut figures.graphs_ms, &mut figures.precision_ms] {
        *pair = pair.filter(|both| both.iter().all(|ms| MS.contains(ms)));
    }
    figures.batch_rates = figures.batch_rates.filter(|both| both.iter().all(|rate| (1e-3..=1e12).contains(rate)));
    let is_time = |ms: f64| MS.contains(&ms);
    figures.together = figures.together.filter(|both| is_time(both.alone_ms) && is_time(both.together_ms));

    // A step cannot leave less than nothing, but other threads may free a little.
    let limit = figures.left_limit;
    figures.left_bytes = figures.left_bytes.filter(|left| *left >= -limit).map(|left| left.max(0.0));
    keep(&mut figures.pending_bytes, &(0.0..=1e15));
    let (least, most) = (figures.least_peak_bytes, figures.memory_bytes.unwrap_or(u64::MAX));
    figures.peak_bytes = figures.peak_bytes.filter(|peak| (least..=most).contains(peak));
}

#[cfg(test)]
mod tests {
    use super::super::figures::Together;
    use super::*;

    #[test]
    fn a_figure_of_each_unit_has_a_least_and_a_most() {
        for (unit, sound, planted) in [
            ("ms", 0.3, [0.0, 1e9]),
            ("GB/s", 25.0, [0.0, 43_521.0]),
            ("%", 12.0, [-0.1, 132.0]),
            ("bytes", 0.0, [-16.0, 1e18]),
            ("host syncs", 1.0, [-1.0, f64::INFINITY]),
            ("MiB", 29.7, [0.0, 1e12]),
            ("tokens per second", 5e4, [0.0, 1e15]),
            ("x the time", 2.0, [0.0, f64::NAN]),
        ] {
            assert_eq!(why_not_measured(&Verdict::new("a figure", sound, unit, "")), None, "{sound} {unit}");
            for figure in planted {
                let why = why_not_measured(&Verdict::new("a figure", figure, unit, "")).expect("impossible");
                assert!(why.starts_with("a figure: not measured: ") && why.contains(unit), "{why}");
            }
        }
        let verdict = Verdict::new("a copy", 2_000.0, "GB/s", "").between([1e-3, 1_000.0]);
        assert!(why_not_measured(&verdict).is_some_and(|why| why.ends_with("0.001 to 1000")), "bounds of its own");
    }

    #[test]
    fn no_check_and_no_cause_relies_on_an_impossible_figure() {
        let sound = Figures {
            step_ms: Some(1.0),
            mfu: Some(0.4),
            data_wait_share: Some(0.2),
            left_bytes: Some(-100.0),
            left_limit: 512.0,
            pending_bytes: Some(64.0),
            peak_bytes: Some(30 << 20),
            least_peak_bytes: 10 << 20,
            memory_bytes: Some(1 << 30),
            reads_ms: Some([1.0, 2.0]),
            together: Some(Together { n: 2, alone_ms: 1.0, together_ms: 1.0 }),
            workers: vec![(1, 2.0)],
            ..Figures::default()
        };
        let mut kept = sound.clone();
        forget_impossible(&mut kept);
        assert_eq!(kept, Figures { left_bytes: Some(0.0), ..sound.clone() }, "noise below nothing is nothing");

        let mut planted = Figures {
            step_ms: Some(0.0),
            mfu: Some(1.32),
            data_wait_share: Some(1.5),
            left_bytes: Some(-5_000.0),
            pending_bytes: Some(-1.0),
            peak_bytes: Some(0),
            reads_ms: Some([1.0, f64::NAN]),
            together: Some(Together { n: 2, alone_ms: -1.0, together_ms: 1.0 }),
            workers: vec![(1, 0.0)],
            ..sound.clone()
        };
        forget_impossible(&mut planted);
        let Figures { left_limit, least_peak_bytes, memory_bytes, .. } = sound;
        let nothing = Figures { left_limit, least_peak_bytes, memory_bytes, ..Figures::default() };
        assert_eq!(planted, nothing);
        let mut large = Figures { peak_bytes: Some(1 << 40), ..sound };
        forget_impossible(&mut large);
        assert_eq!(large.peak_bytes, None, "more than the machine has");
    }
}
