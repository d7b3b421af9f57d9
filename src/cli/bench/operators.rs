//! The tables of operators.

use std::time::Duration;

use kiln_lab::diagnose::operators::{ComparedOperator, Operators, Peaks, rate};
use kiln_metrics::logging::print::{stdout_line, stdout_text};

/// Prints the operators of a step that took `step`, with rates, and with floors if the device's peaks are known.
pub(super) fn print(Operators { timed: rows, others }: &Operators, step: Duration, peaks: Option<&Peaks>) {
    let name = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let shape = rows.iter().map(|row| row.shape.len()).max().unwrap_or(0);
    stdout_line!(
        "  {:<name$}  {:<shape$}  {:>5}  {:>8}  {:>8}  {:>6}  {:>8}  {:>15}  {:>8}  {:>8}",
        "operator",
        "shape",
        "calls",
        "ms",
        "of step",
        "share",
        "host ms",
        "rate",
        "floor ms",
        "of floor"
    );

    for row in rows {
        let (each, host, share) = (row.time.device, row.time.host, row.of_step() / step.as_secs_f64());
        let if_known = |text: String| if row.time.is_known() { text } else { "-".into() };
        let floor = peaks.map(|peaks| peaks.floor(&row.work));
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        stdout_line!(
            "  {:<name$}  {:<shape$}  {:>5}  {:>8}  {:>8}  {:>6}  {:>8.4}  {:>15}  {:>8}  {:>8}",
            row.name,
            row.shape,
            row.calls,
            if_known(format!("{:.4}", 1e3 * each)),
            if_known(format!("{:.3}", 1e3 * row.of_step())),
            if_known(format!("{:.1}%", 100.0 * share)),
            1e3 * host,
            if_known(rate(&row.work, each)),
            or_none(floor.map(|floor| format!("{:.4}", 1e3 * floor))),
            or_none(floor.map(|floor| if_known(format!("{:.0}%", 100.0 * floor / each)))),
        );
    }
    if !others.is_empty() {
        stdout_line!(
            "  called, but not timed alone: {}; kiln profile times them within a step",
            others.iter().map(|calls| format!("{} ({})", calls.operator, calls.calls)).collect::<Vec<_>>().join(", ")
        );
    }

    let (known, unknown): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.time.is_known());
    if !unknown.is_empty() {
        stdout_line!(
            "  not timed, and not in the sums: {}. Something else kept the machine busy: a part of the call took as long as the \
             whole. Try more --repeats",
            unknown.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    let sum: f64 = known.iter().map(|row| row.of_step()).sum();
    stdout_text!(
        "  sum of the operators {:.2} ms, {:.1}% of the step of {:.2} ms",
        1e3 * sum,
        100.0 * sum / step.as_secs_f64(),
        1e3 * step.as_secs_f64()
    );
    match peaks {
        Some(peaks) => {
            let floors: f64 = known.iter().map(|row| row.calls as f64 * peaks.floor(&row.work)).sum();
            stdout_line!("; sum of their floors {:.2} ms", 1e3 * floors);
            stdout_line!(
                "  floor = max(operations / {:.0} TFLOP/s, bytes / {:.2} TB/s). A product of M x K x N has 2 M K N operations, \
                 attention 4 B H T S K forward and 10 B H T S K backward (half if causal). Bytes: every operand once",
                peaks.flops / 1e12,
                peaks.bytes / 1e12
            );
        }
        None => stdout_line!("; the peaks of this device are unknown, so there are no floors"),
    }
}

/// Prints the times of the baseline's operators and of Kiln's at the same shapes.
pub(super) fn print_peer(rows: &[ComparedOperator]) {
    stdout_line!("operators of the PyTorch baseline");
    for ComparedOperator { name, ours, theirs_ms } in rows {
        let ours_ms = 1e3 * ours.device;
        match ours.is_known() {
            true => {
                let ratio = theirs_ms / ours_ms;
                stdout_line!("  {name:<34} {ours_ms:>8.4} ms, torch {theirs_ms:>8.4} ms: kiln is {ratio:.2} x as fast");
            }
            false => stdout_line!("  {name:<34} not timed: the machine was busy; torch {theirs_ms:>8.4} ms"),
        }
    }
}
