//! The table of operators.

use std::time::Duration;

use crate::diagnose::operators::{OperatorTime, Peaks};
use crate::diagnose::peer::PeerOperator;

/// The operators of a step that took `step`, with rates and floors where the device's peaks are known.
pub(super) fn print(rows: &[OperatorTime], step: Duration, peaks: Option<&Peaks>) {
    let name = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let shape = rows.iter().map(|row| row.shape.len()).max().unwrap_or(0);
    println!(
        "  {:<name$}  {:<shape$}  {:>5}  {:>8}  {:>8}  {:>6}  {:>8}  {:>15}  {:>8}  {:>8}",
        "operator", "shape", "calls", "ms", "of step", "share", "host ms", "rate", "floor ms", "of floor"
    );
    for row in rows {
        let (each, host, share) = (row.time.device, row.time.host, row.of_step() / step.as_secs_f64());
        let rate = if each > 0.0 { row.work.rate(each) } else { "-".into() };
        let floor = peaks.map(|peaks| row.work.floor(peaks));
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        println!(
            "  {:<name$}  {:<shape$}  {:>5}  {:>8.4}  {:>8.3}  {:>5.1}%  {:>8.4}  {rate:>15}  {:>8}  {:>8}",
            row.name,
            row.shape,
            row.calls,
            1e3 * each,
            1e3 * row.of_step(),
            100.0 * share,
            1e3 * host,
            or_none(floor.map(|floor| format!("{:.4}", 1e3 * floor))),
            or_none(floor.filter(|_| each > 0.0).map(|floor| format!("{:.0}%", 100.0 * floor / each))),
        );
    }
    if rows.iter().any(|row| row.calls == 0) {
        println!(
            "  what is called 0 times is no part of this step: its loss is computed by chunks of rows (model.logits_chunk_rows)"
        );
    }
    let sum: f64 = rows.iter().map(OperatorTime::of_step).sum();
    print!(
        "  sum of the operators {:.2} ms, {:.1}% of the step of {:.2} ms",
        1e3 * sum,
        100.0 * sum / step.as_secs_f64(),
        1e3 * step.as_secs_f64()
    );
    match peaks {
        Some(peaks) => {
            let floors: f64 = rows.iter().map(|row| row.calls as f64 * row.work.floor(peaks)).sum();
            println!("; sum of their floors {:.2} ms", 1e3 * floors);
            println!(
                "  floor = max(operations / {:.0} TFLOP/s, bytes / {:.2} TB/s): a product of M x K x N has 2 M K N operations, \
                 attention 4 B H T S K forward and 10 B H T S K backward (half if causal); bytes: every operand once",
                peaks.flops / 1e12,
                peaks.bytes / 1e12
            );
        }
        None => println!("; the peaks of this device are not known, so there are no floors"),
    }
}

/// What PyTorch's operators of the same shapes take, forward and backward.
pub(super) fn print_peer(rows: &[OperatorTime], theirs: &[PeerOperator]) {
    for (label, ours, operator) in beside(rows, theirs) {
        println!(
            "  {label:<34} {:>8.4} ms, torch {:>8.4} ms: kiln is {:.2} x as fast",
            1e3 * ours,
            operator.ms,
            operator.ms / (1e3 * ours)
        );
    }
}

/// Label, our seconds and the peer's line for each operator that both have.
fn beside<'a>(rows: &[OperatorTime], theirs: &'a [PeerOperator]) -> Vec<(String, f64, &'a PeerOperator)> {
    let find = |name: &str| theirs.iter().find(|operator| operator.name == name);
    let mut found = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let secs = row.time.device;
        let backward = || rows.get(i + 1).map_or(f64::INFINITY, |next| secs + next.time.device);
        let named = match row.name.as_str() {
            // The layouts of a product: as it is stored, or with one side transposed.
            "linear forward" => {
                let product = row.shape.replace(' ', "");
                ["nn", "nt"].map(|by| (format!("matmul {by} {product}"), secs)).into()
            }
            "attention causal forward" if row.shape == "16 x 12 x 1024 x 1024 x 64" => vec![
                ("attention fwd causal=True".to_string(), secs),
                ("attention fwd+bwd causal=True".to_string(), backward()),
            ],
            "cross-entropy forward" => {
                vec![(format!("xent fwd+bwd {} compiled", row.shape.replace(' ', "")), backward())]
            }
            _ => Vec::new(),
        };
        for (name, secs) in named {
            found.extend(find(&name).map(|operator| (name, secs, operator)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::operators::{Timed, Work};

    fn row(name: &str, shape: &str, device: f64) -> OperatorTime {
        let (time, work) = (Timed { device, host: 0.0 }, Work { flops: 0.0, bytes: 1.0 });
        OperatorTime { name: name.into(), shape: shape.into(), calls: 1, time, work }
    }

    #[test]
    fn operators_that_both_have_stand_side_by_side() {
        let rows = [
            row("linear forward", "16384 x 768 x 50304", 2e-3),
            row("attention causal forward", "16 x 12 x 1024 x 1024 x 64", 1e-4),
            row("attention causal backward", "16 x 12 x 1024 x 1024 x 64", 1e-4),
        ];
        let theirs: Vec<PeerOperator> =
            ["matmul nt 16384x768x50304", "attention fwd+bwd causal=True", "layer_norm fwd+bwd 32768x768"]
                .map(|name| PeerOperator { name: name.into(), ms: 1.0 })
                .into();
        let found: Vec<_> = beside(&rows, &theirs).into_iter().map(|(name, secs, _)| (name, secs)).collect();
        assert_eq!(
            found,
            [("matmul nt 16384x768x50304".to_string(), 2e-3), ("attention fwd+bwd causal=True".to_string(), 2e-4)]
        );
    }
}
