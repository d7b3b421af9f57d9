//! Host memory over many epochs.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use super::*;

/// Resident memory of a process in KiB.
fn resident_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

#[test]
fn memory_is_flat_over_fifty_epochs() {
    let place = workplace();
    // An epoch is 399 rows of about 14 tokens: about 60 batches.
    let mut arguments = arguments("runs/a", 3200);
    arguments.extend(
        ["--set", "train.save_every=100", "--set", "train.validate_every=100", "--set", "train.log_every=20"]
            .map(String::from),
    );
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut child = place.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut samples: Vec<(u64, u64)> = Vec::new();
    while child.try_wait().expect("ours").is_none() {
        let epoch = fs::read_to_string(place.path("runs/a/metrics.jsonl")).ok().and_then(|text| {
            let line =
                text.lines().rev().find(|line| line.contains("\"kind\":\"step\"") && line.ends_with('}'))?.to_string();
            serde_json::from_str::<serde_json::Value>(&line).ok()?["epoch"].as_u64()
        });
        if let (Some(epoch), Some(kib)) = (epoch, resident_kib(child.id())) {
            samples.push((epoch, kib));
        }
        sleep(Duration::from_millis(20));
    }
    assert!(child.wait().expect("ours").success());
    let last_epoch = samples.last().expect("samples").0;
    let peak = |epochs: std::ops::Range<u64>| {
        samples.iter().filter(|(epoch, _)| epochs.contains(epoch)).map(|(_, kib)| *kib).max().expect("samples there")
    };
    let (early, late) = (peak(last_epoch / 5..last_epoch * 2 / 5), peak(last_epoch * 4 / 5..last_epoch + 1));
    println!("{} epochs: at most {early} KiB in the second fifth, {late} KiB in the last", last_epoch + 1);
    assert!(last_epoch >= 49, "fifty epochs, not {}", last_epoch + 1);
    assert!(late as f64 <= early as f64 * 1.05 + 2048.0, "memory grew from {early} KiB to {late} KiB");
}
