//! The tables of a profile as text.

use std::fmt::Write;

use kiln_metrics::units::{counted, thousands};

use crate::diagnose::profile::{HostRow, MemoryLine, MemoryPoint, Profile, RankRow, RoofSource, Row, RowWork, sums};

/// Rows of a table.
const MOST_ROWS: usize = 15;
/// Rows that get a sentence.
const VERDICTS: usize = 3;

/// Adds a line to a text, which takes it always.
macro_rules! put {
    ($out:ident, $($part:tt)*) => {{
        let _ = writeln!($out, $($part)*);
    }};
}

/// Returns the tables of a profile, as `kiln profile` prints them.
pub fn text(profile: &Profile) -> String {
    let mut out = String::new();
    let steps = profile.steps.len();
    put!(
        out,
        "{} on {}, {}: {} after {} others",
        profile.model,
        profile.device,
        profile.dtype,
        counted(steps as u64, "step"),
        profile.warm_up
    );
    put!(
        out,
        "  {:.2} ms per step, {} tokens per second without padding (padding {:.0} %)",
        profile.step_ms(),
        thousands(profile.tokens_per_sec),
        100.0 * profile.padding_ratio
    );
    let replayed: f64 = profile.steps.iter().filter_map(|step| step.replayed_share).sum();
    if replayed > 0.0 {
        put!(out, "  {:.0} % of the micro-batches were replayed as CUDA graphs", 100.0 * replayed / steps as f64);
    }

    if let Some(gpu) = &profile.gpu {
        put!(out, "  GPU busy {:.1} % of the time ({})", 100.0 * gpu.busy_share, gpu.source);
    }

    if !profile.ranks.is_empty() {
        add_ranks(&mut out, &profile.ranks, steps);
    }
    add_host(&mut out, "training thread", &profile.host, steps);
    if !profile.loader.is_empty() {
        add_host(&mut out, "loader", &profile.loader, steps);
    }
    add_sums(&mut out, &profile.operators, steps);
    add_rows(&mut out, "operator", &profile.operators, steps);
    if !profile.kernels.is_empty() {
        add_rows(&mut out, "kernel (grid of block)", &profile.kernels, steps);
    }

    if let Some(memory) = &profile.memory {
        add_memory(&mut out, memory);
    }
    let roofs = &profile.roofs;
    let source = match roofs.source {
        RoofSource::DataSheet => "from the data sheet",
        RoofSource::Measured => "measured",
    };
    put!(
        out,
        "\nroofs ({source}): {} and {}; they meet at {:.1} FLOP per byte",
        rate(roofs.flops_per_sec, "FLOP/s"),
        rate(roofs.bytes_per_sec, "B/s"),
        roofs.ridge()
    );
    let verdicts = profile.operators.iter().filter_map(|row| Some((row, row.verdict()?))).take(VERDICTS);
    for (row, verdict) in verdicts {
        put!(out, "  {} {}, {:.1} % of the time: {verdict}", row.name, row.sizes, 100.0 * row.share);
    }
    profile.notes.iter().for_each(|note| put!(out, "note: {note}"));
    out
}

fn add_ranks(out: &mut String, rows: &[RankRow], steps: usize) {
    put!(out, "\n{:<34}  {:>11}  {:>7}  {:>8}  {:>10}", "device", "ms per step", "busy", "exchange", "peak");
    for (rank, row) in rows.iter().enumerate() {
        let busy = row.busy_share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
        let peak = row.peak_bytes.map_or(String::new(), |bytes| format!("{} MiB", thousands(mib(bytes))));
        let name = format!("rank {rank}: {}", row.device);
        let (ms, exchange) = (row.total_ms / steps as f64, 100.0 * row.exchange_share);
        put!(out, "{name:<34}  {ms:>11.3}  {busy:>7}  {exchange:>6.1} %  {peak:>10}");
    }
}

fn add_memory(out: &mut String, MemoryLine { peak, .. }: &MemoryLine) {
    let parts = MemoryPoint::CATEGORIES.iter().zip(peak.parts());
    let parts = parts.map(|(name, bytes)| format!("{name} {}", thousands(mib(bytes)))).collect::<Vec<_>>().join(", ");
    let total = thousands(mib(peak.total()));
    put!(out, "\nmemory in use at most {total} MiB, at {}: {parts}", peak.operator);
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn add_host(out: &mut String, title: &str, rows: &[HostRow], steps: usize) {
    put!(out, "\n{title:<26}  {:>11}  {:>7}", "ms per step", "share");
    for row in rows {
        put!(out, "{:<26}  {:>11.3}  {:>5.1} %", row.name, row.ms / steps as f64, 100.0 * row.share);
    }
}

/// Prints the sums over all sizes of each operator.
fn add_sums(out: &mut String, rows: &[Row], steps: usize) {
    put!(out, "\n{:<31}  {:>6}  {:>9}  {:>7}  {:>6}", "operator, all sizes", "calls", "ms / step", "share", "roof");
    for sum in sums(rows) {
        let line = format!(
            "{:<31}  {:>6}  {:>9.3}  {:>5.1} %  {}",
            sum.name,
            sum.calls,
            sum.total_ms / steps as f64,
            100.0 * sum.share,
            sum.least_ms.map_or(String::new(), |least| format!("{:>4.0} %", 100.0 * least / sum.total_ms))
        );
        put!(out, "{}", line.trim_end());
    }
}

fn add_rows(out: &mut String, title: &str, rows: &[Row], steps: usize) {
    put!(
        out,
        "\n{title:<31}  {:<22}  {:>6}  {:>9}  {:>9}  {:>7}  {:>8}  {:>8}  {:>13}  {:>6}  bound by",
        "sizes",
        "calls",
        "ms / step",
        "us / call",
        "share",
        "MB",
        "FLOP/B",
        "achieved",
        "roof"
    );

    for row in rows.iter().take(MOST_ROWS) {
        let work = row.work.as_ref().map_or(String::new(), |work| work_columns(work, row.calls));
        let line = format!(
            "{:<31}  {:<22}  {:>6}  {:>9.3}  {:>9.1}  {:>5.1} %  {work}",
            row.name,
            row.sizes,
            row.calls,
            row.total_ms / steps as f64,
            row.mean_us,
            100.0 * row.share
        );
        put!(out, "{}", line.trim_end());
    }
    if rows.len() > MOST_ROWS {
        put!(out, "... and {} more rows in profile.json", rows.len() - MOST_ROWS);
    }
}

/// The columns of a row whose work is known.
fn work_columns(work: &RowWork, calls: u64) -> String {
    let achieved = match work.flops > 0.0 {
        true => rate(work.flops_per_sec, "FLOP/s"),
        false => rate(work.bytes_per_sec, "B/s"),
    };
    format!(
        "{:>8.2}  {:>8.1}  {achieved:>13}  {:>6}  {}",
        work.bytes / calls as f64 / 1e6,
        work.flops_per_byte,
        work.percent_of_roof(),
        work.bound.name()
    )
}

/// `12.3 GFLOP/s`.
fn rate(per_sec: f64, unit: &str) -> String {
    match per_sec {
        1e12.. => format!("{:.2} T{unit}", per_sec / 1e12),
        1e9.. => format!("{:.1} G{unit}", per_sec / 1e9),
        _ => format!("{:.1} M{unit}", per_sec / 1e6),
    }
}
