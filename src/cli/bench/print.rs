//! What `kiln bench` prints as text.

use kiln_lab::diagnose::Effort;
use kiln_lab::diagnose::bench_record::{Against, BenchRecord};
use kiln_lab::diagnose::operators::Peaks;
use kiln_lab::diagnose::replay::Comparison;
use kiln_lab::diagnose::step_time::StepTime;
use kiln_lab::diagnose::workload::Workload;
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_metrics::units::gib;
use kiln_train::device::device_name;

use super::{Bench, ms};

/// Prints the device and what the figures mean.
pub(super) fn header(bench: &Bench) {
    let Effort { steps, repeats, .. } = bench.effort;
    stdout_line!("{}, {:?}, {repeats} x {steps} steps", device_name(&bench.device), bench.dtype);
    stdout_line!(
        "tok/s = non-padding tokens / time; samples/s = pairs or rows of text / time; MFU = {}",
        mfu_formula(bench.peaks.as_ref())
    );
}

fn mfu_formula(peaks: Option<&Peaks>) -> String {
    let peak = peaks.map_or("peak".into(), |peaks| format!("{:.0} TFLOP/s", peaks.flops / 1e12));
    format!("(6 x parameters x positions + 6 x T x D x layers x positions, for causal text) / time / {peak}")
}

/// Prints a measured step.
pub(super) fn ours(workload: &Workload, time: &StepTime) {
    let mfu = time.mfu.map_or_else(|| "unknown".into(), |mfu| format!("{:.1}%", 100.0 * mfu));
    let memory = time.reserved_bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.2} GiB", gib(bytes)));
    // A CPU has computed a step when the host has: only a GPU has a queue that the host fills.
    let host = time.reserved_bytes.map_or(String::new(), |_| format!("  host {:.2} ms", ms(time.enqueue)));
    let [fastest, slowest] = time.spread;
    stdout_line!("{}", workload.title);
    stdout_line!(
        "  kiln           {:>8.2} ms  {:>9.0} tok/s  {:>8.1} samples/s  MFU {mfu:>5}  memory {memory}{host}  warm-up {:.1} s  loss {:.3} -> {:.3}",
        ms(time.step),
        time.tokens_per_sec,
        time.samples_per_sec,
        time.warm_up.as_secs_f64(),
        time.losses[0],
        time.losses[1],
    );
    stdout_line!("  repeats        {:>8.2} to {:.2} ms; the median is above", ms(fastest), ms(slowest));

    match &time.replayed {
        Ok(()) => {
            stdout_line!("  replayed       forward and backward as a CUDA graph, as in training once a shape recurs")
        }
        Err(reason) => stdout_line!("  eager          {reason}"),
    }
    if let Some(bytes) = time.activation_bytes_per_position {
        stdout_line!(
            "  activations    {bytes:.0} bytes per position: memory without weights, gradients, master weights and optimizer state"
        );
    }
}

/// Prints a comparison of replayed and eager steps.
pub(super) fn replayed(Comparison { steps, eager, replayed }: &Comparison) {
    for (how, pace) in [("eager", eager), ("replayed", replayed)] {
        let memory = pace.added_bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.2} GiB", gib(bytes)));
        stdout_line!("  {how:<14} {:>8.2} ms  host {:.2} ms  memory {memory}", ms(pace.step), ms(pace.enqueue));
    }
    stdout_line!(
        "  replayed and eager steps are equal bit for bit: {steps} steps, then all weights and optimizer state"
    );
}

/// Prints PyTorch's steps.
pub(super) fn peer(record: &BenchRecord, lacks_workload: bool) {
    if lacks_workload {
        stdout_line!("  torch          has no such workload");
    }
    for theirs in &record.peer {
        let mfu = if theirs.mfu_percent.is_nan() { "unknown".into() } else { format!("{:.1}%", theirs.mfu_percent) };
        stdout_line!(
            "  torch {:<8} {:>8.2} ms  {:>9.0} tok/s  {:>8.1} samples/s  MFU {mfu:>5}  memory {:.2} GiB  kiln is {:.2} x as fast",
            if theirs.compiled { "compiled" } else { "eager" },
            theirs.step_ms,
            theirs.tokens_per_sec,
            // The same rows in another time.
            record.samples_per_sec.map_or(f64::NAN, |ours| ours * record.step_ms / theirs.step_ms),
            theirs.peak_gib,
            theirs.step_ms / record.step_ms,
        );
    }
}

/// Prints a comparison with an earlier measurement; to stderr if stdout carries JSON.
pub(super) fn baseline(against: &Against, to_stderr: bool) {
    let line = match against {
        Against::Missing => "  baseline       has no such workload".into(),
        Against::Different(differs) => format!("  baseline       is of other steps: {}", differs.join(", ")),
        Against::Same { before_ms, ratio, within_spread } => {
            let how = if *ratio >= 1.0 { "faster" } else { "slower" };
            let percent = 100.0 * (ratio - 1.0).abs();
            let spread = if *within_spread { "; the repeats of the two overlap" } else { "" };
            format!("  baseline       {before_ms:>8.2} ms  now {percent:.1} % {how}{spread}")
        }
    };
    if to_stderr {
        stderr_line!("{line}");
    } else {
        stdout_line!("{line}");
    }
}
