//! Training on a device that Kiln has no kernels for. `.ci/run wgpu` runs these tests with the feature `wgpu` on a software device.

use std::fs;

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

/// `kiln train --device DEVICE` of a small model of the built-in pairs, with a validation and a checkpoint at step 6.
fn train(place: &Workplace, device: &str, more: &[&str]) -> crate::kiln::Ran {
    let set = SMALL.iter().copied().chain(["train.validate_every=6", "train.save_every=6", "train.log_every=1"]);
    let mut all = vec!["train", "--device", device];
    all.extend(set.flat_map(|set| ["--set", set]));
    all.extend(more);
    place.run(&all)
}

/// Returns a folder, or `None` if this build or this machine has no device of wgpu, with the reason.
fn place_with_wgpu() -> Option<Workplace> {
    let place = Workplace::new();
    let ran = train(&place, "wgpu", &["--dry-run"]);
    if ran.code == 0 {
        return Some(place);
    }
    assert!(ran.stderr.contains("--features wgpu") || ran.stderr.contains("wgpu finds 0 device(s)"), "{ran:#?}");
    println!("skipped: {}", ran.stderr.trim());
    None
}

/// Returns the numbers called `key` of the lines of `kind`.
fn numbers(place: &Workplace, run: &str, kind: &str, key: &str) -> Vec<f64> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["kind"] == kind).map(|line| line[key].as_f64().expect("a number")).collect()
}

#[track_caller]
fn assert_close(found: &[f64], wanted: &[f64]) {
    assert!(found.len() == wanted.len() && !wanted.is_empty(), "{found:?} {wanted:?}");
    for (step, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() <= 2e-5 * wanted.abs(), "number {step}: {found} instead of {wanted}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_a_remedy() {
    let ran = train(&Workplace::new(), "wgpu:4096", &["--dry-run"]);
    let remedy = if cfg!(feature = "wgpu") { "mesa-vulkan-drivers" } else { "--features wgpu" };
    ran.refused(2, &["wgpu:4096", remedy, "--device cpu"]);
}

#[test]
fn plain_operations_train_with_the_losses_of_the_cpu() {
    let Some(place) = place_with_wgpu() else { return };
    let steps = ["--set", "train.steps=12"];
    train(&place, "cpu", &[&["--run", "runs/cpu"], &steps[..]].concat()).ok();
    let ran = train(&place, "wgpu", &[&["--run", "runs/wgpu"], &steps[..]].concat()).ok();
    assert!(ran.stderr.contains("plain Burn operations"), "{ran:#?}");
    for (kind, key) in [("step", "loss"), ("step", "grad_norm"), ("validation", "loss")] {
        let of = |run| numbers(&place, run, kind, key);
        assert_close(&of("runs/wgpu"), &of("runs/cpu"));
    }

    // A run that stops goes on with the losses of the others: the backend's own operators do not repeat their bits.
    train(&place, "wgpu", &[&["--run", "runs/halves"], &steps[..]].concat()).ok();
    fs::remove_dir_all(place.path("runs/halves/checkpoints/step-00000012")).expect("there");
    fs::write(place.path("runs/halves/checkpoints/last"), "step-00000006").expect("writable");
    let ran = place.run(&["train", "--device", "wgpu", "--run", "runs/halves", "--resume"]).ok();
    assert!(ran.stderr.contains("step-00000006"), "{ran:#?}");
    assert!(place.path("runs/halves/checkpoints/step-00000012/model.safetensors").is_file(), "{ran:#?}");
    assert_close(&numbers(&place, "runs/halves", "step", "loss"), &numbers(&place, "runs/cpu", "step", "loss"));

    // The same checkpoint translates to the same text, and has the same loss.
    let translate = |device: &str| {
        place.run_with_input(&["translate", "runs/wgpu", "--device", device], "1 2 3\n9 8\n").ok().stdout
    };
    assert_eq!(translate("wgpu"), translate("cpu"));
}

#[test]
fn plain_operations_recompute_and_accumulate() {
    let Some(place) = place_with_wgpu() else { return };
    for checkpointing in ["layer", "selective"] {
        let set = [
            format!("train.activation_checkpointing=\"{checkpointing}\""),
            "train.grad_accum_steps=2".into(),
            "train.steps=4".into(),
            "optim.warmup_steps=1".into(),
        ];
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set.as_str()]).collect();
        let run = |device: &str| {
            let name = format!("runs/{checkpointing}-{device}");
            train(&place, device, &[&["--run", name.as_str()], &set[..]].concat()).ok();
            numbers(&place, &name, "step", "loss")
        };
        assert_close(&run("wgpu"), &run("cpu"));
    }
}

#[test]
fn sixteen_bits_and_the_promise_of_equal_bits_are_refused() {
    let Some(place) = place_with_wgpu() else { return };
    for precision in ["bf16", "fp16"] {
        let set = format!("train.precision={precision}");
        train(&place, "wgpu", &["--dry-run", "--set", &set]).refused(2, &[precision, "f32"]);
    }
    let deterministic = ["--run", "runs/a", "--set", "train.deterministic=true"];
    let ran = train(&place, "wgpu", &deterministic);
    assert!(ran.code != 0 && ran.stderr.contains("Kiln has no kernels"), "{ran:#?}");
}
