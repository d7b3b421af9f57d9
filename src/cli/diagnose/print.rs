//! What `kiln diagnose` prints as text.

use kiln_lab::diagnose::elimination::{self, Check, Figures, Outcome, Verdict, causes};
use kiln_metrics::logging::print::stdout_line;
use kiln_metrics::logging::wrap::for_stdout;
use kiln_train::metrics::GpuUse;

/// Prints a test with its verdicts.
pub(super) fn outcome(Outcome { test, verdicts, not_measured, not_run, gpu }: &Outcome) {
    let power = gpu.as_ref().map_or(String::new(), |gpu| format!("  [{}]", power(gpu)));
    stdout_line!("\n{test}{power}");
    if let Some(why) = not_run {
        stdout_line!("  {why}");
    }
    verdicts.iter().for_each(verdict);
    not_measured.iter().for_each(|why| stdout_line!("  {why}"));
}

fn verdict(Verdict { what, figure, unit, spread, against, words, .. }: &Verdict) {
    let spread = spread.map_or(String::new(), |[least, most]| format!(" ({} to {})", number(least), number(most)));
    let against = against.map_or(String::new(), |other| format!(", against {}", number(other)));
    stdout_line!("  {what:<40} {:>10} {unit}{spread}{against}", number(*figure));
    if !words.is_empty() {
        stdout_line!("      {words}");
    }
}

/// About four digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        ..0.1 => format!("{value:.4}"),
        ..100.0 => format!("{value:.2}"),
        ..10_000.0 => format!("{value:.1}"),
        _ => kiln_metrics::units::thousands(value),
    }
}

/// The power and the clock, each with its limit.
fn power(gpu: &GpuUse) -> String {
    let of = |value: Option<f64>, limit: Option<f64>, unit: &str| match (value, limit) {
        (Some(value), Some(limit)) => Some(format!("{value:.0} of {limit:.0} {unit}")),
        (Some(value), None) => Some(format!("{value:.0} {unit}")),
        _ => None,
    };
    let parts = [
        of(gpu.power_w, gpu.power_limit_w, "W"),
        of(gpu.sm_clock_mhz, gpu.max_sm_clock_mhz, "MHz"),
        of(gpu.busy_share.map(|share| 100.0 * share), None, "% busy"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Prints the checks.
pub(super) fn checks(checks: &[Check]) {
    if !checks.is_empty() {
        stdout_line!();
    }
    for Check { name, passed, words } in checks {
        let mark = match passed {
            Some(true) => "ok",
            Some(false) => "FAILED",
            None => "-",
        };
        stdout_line!("{mark:<7} {name:<9} {words}");
    }
}

/// Prints the bottleneck, and what else costs time.
pub(super) fn bottleneck(figures: &Figures) {
    stdout_line!("\n{}", for_stdout(&elimination::bottleneck(figures)));
    for cause in causes(figures).iter().skip(1) {
        stdout_line!("{}", for_stdout(&format!("also: {}: {}", cause.name, cause.sentence())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_four_digits() {
        let found = [0.0, 0.01234, 1.2345, 123.45, 12345.6].map(number);
        assert_eq!(found, ["0", "0.0123", "1.23", "123.5", "12,346"]);
    }

    #[test]
    fn power_stands_next_to_its_limit() {
        let gpu = GpuUse {
            power_w: Some(412.4),
            power_limit_w: Some(700.0),
            sm_clock_mhz: Some(1755.0),
            ..GpuUse::default()
        };
        assert_eq!(power(&gpu), "412 of 700 W, 1755 MHz");
    }
}
