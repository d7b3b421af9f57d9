//! Runs beside each other, and the times of a step and its operators.

use std::path::Path;
use std::process::{Command, Stdio};

use kiln_model::TransformerConfig;
use kiln_model::flops::train_flops_per_batch;
use serde_json::Value;

use crate::kiln::{Ran, Workplace};

/// Trains a small model for 16 steps; `arguments` choose which.
fn train(place: &Workplace, run: &str, arguments: &[&str]) -> Ran {
    let mut all = vec!["--run", run, "--set", "train.steps=16", "--set", "generate.beam_size=1"];
    all.extend(arguments);
    place.train(&all).ok()
}

/// The distance that `kiln compare` tells of run `letter`, in the mean of a window.
fn distance(ran: &Ran, letter: &str) -> f64 {
    let line = ran.stdout.lines().find(|line| line.starts_with(&format!("{letter} is "))).expect("a distance");
    line.split_whitespace().nth(2).expect("a number").parse().expect("a number")
}

#[test]
fn plain_operators_learn_what_the_kernels_learn() {
    let place = Workplace::new();
    train(&place, "runs/fused", &[]);
    let plain = train(&place, "runs/plain", &["--reference-operators"]);
    assert!(plain.stderr.contains("reference definition"), "{plain:#?}");
    assert!(place.read("runs/plain/metrics.jsonl").contains("reference definition"), "recorded with the run");
    train(&place, "runs/seed", &["--set", "seed=2"]);
    let ran = place.run(&["compare", "runs/fused", "runs/plain", "runs/seed", "--windows", "4"]).ok();
    assert!(ran.stdout.contains("A = runs/fused") && ran.stdout.contains("13-16"), "{}", ran.stdout);
    for part in
        ["A = runs/fused: translation, 16 steps, ", " tok/s", "\n  seed", "last nll (nats)", " @ 16", "best chrF2"]
    {
        assert!(ran.stdout.contains(part), "{part:?} is missing in {}", ran.stdout);
    }
    assert!(!ran.stdout.contains("optim.lr"), "only what differs: {}", ran.stdout);
    let (plain, seed) = (distance(&ran, "B"), distance(&ran, "C"));
    assert!(plain < 2e-3 && plain < seed / 4.0, "plain operators {plain}, another seed {seed}");
}

/// SwiGLU, RMS norms, rotary positions and grouped queries.
#[test]
fn plain_operators_learn_what_the_kernels_learn_in_a_llama() {
    let place = Workplace::new();
    let llama = ["--task", "lm", "--set", "model.activation=swiglu", "--set", "model.norm_kind=rms_norm"];
    train(&place, "runs/fused", &llama);
    train(&place, "runs/plain", &[&llama[..], &["--reference-operators"]].concat());
    let ran = place.run(&["compare", "runs/fused", "runs/plain"]).ok();
    assert!(distance(&ran, "B") < 2e-3, "{}", ran.stdout);
}

#[test]
fn runs_that_cannot_be_compared_are_an_error() {
    let place = Workplace::new();
    let ran = place.run(&["compare", "runs/none", "runs/neither"]);
    ran.refused(2, &["runs/none: this folder holds no run", "name a run folder"]);
    place
        .run(&["compare", "runs/one"])
        .refused(2, &["one run: name the runs to compare it with", "kiln report runs/one"]);
    place.write("runs/imported/config.toml", "");
    let imported = place.run(&["compare", "runs/imported", "runs/imported"]);
    assert!(!imported.stderr.contains("os error"), "{imported:#?}");
    imported.refused(2, &["was never trained", "kiln evaluate"]);
}

#[test]
fn runs_of_different_tasks_or_vocabularies_are_told_so() {
    let place = Workplace::new();
    let step = "{\"kind\":\"step\",\"step\":1,\"loss\":2.0}\n";
    for (name, config) in [
        ("lm", "task = \"lm\"\n"),
        ("larger", "task = \"lm\"\n[tokenizer]\nvocab_size = 9000\n"),
        ("pairs", "task = \"translation\"\n"),
    ] {
        place.write(&format!("runs/{name}/config.toml"), config);
        place.write(&format!("runs/{name}/metrics.jsonl"), step);
    }
    place
        .run(&["compare", "runs/lm", "runs/larger", "runs/pairs"])
        .refused(2, &["runs/lm has task = \"lm\" and runs/pairs has task = \"translation\"", "runs of one task"]);
    let ran = place.run(&["compare", "runs/lm", "runs/larger"]).ok();
    assert!(ran.stdout.contains("tokenizer.vocab_size") && ran.stdout.contains("The vocabularies differ"), "{ran:#?}");
}

/// A row of the table of operators.
#[derive(Debug)]
struct Operator {
    name: String,
    sizes: Vec<f64>,
    calls: f64,
}

impl Operator {
    fn parse(line: &str) -> Option<Self> {
        let mut columns = line.trim().split("  ").map(str::trim).filter(|column| !column.is_empty());
        let (name, shape, calls) = (columns.next()?.to_owned(), columns.next()?, columns.next()?.parse().ok()?);
        let sizes = shape.split(" x ").map(|size| size.parse().ok()).collect::<Option<_>>()?;
        Some(Self { name, sizes, calls })
    }

    /// The operations of all calls: of products, and of attention.
    fn flops(&self) -> [f64; 2] {
        let product = 2.0 * self.calls * self.sizes.iter().product::<f64>();
        let seen = if self.name.ends_with(", causal") { 0.5 } else { 1.0 };
        match self.name.split([',', '+']).next().map(str::trim) {
            Some("linear NN" | "linear NT" | "linear TN") => [product, 0.0],
            // The result, and the gradients of both operands.
            Some("output projection by chunks") => [3.0 * product, 0.0],
            Some("attention forward") => [0.0, 2.0 * seen * product],
            Some("attention backward") => [0.0, 5.0 * seen * product],
            _ => [0.0; 2],
        }
    }
}

#[test]
fn a_bench_times_the_operators_that_the_step_calls_and_their_operations_are_the_ones_of_the_model() {
    let place = Workplace::new();
    let common = ["--operators", "--device", "cpu", "--steps", "2", "--repeats", "1"];
    let whole = ["--logits-chunk-rows", "0"];
    // Without dropout the loss falls within a few steps, as the command wants.
    let small = ["--rows", "8", "--len", "16", "--set", "model.dropout=0.0"];
    let grouped = [&small[..], &["--set", "model.n_heads=4", "--set", "model.n_kv_heads=2"]].concat();
    let gated = [&grouped[..], &["--set", "model.activation=swiglu"]].concat();
    for (chosen, more, wanted) in [
        (&["tiny"][..], &[][..], &["attention backward, causal", "activation forward", "linear NN + residual"][..]),
        (&["tiny"], &whole, &["cross-entropy forward", "cross-entropy backward", "256 x 64 x 512"]),
        (&["tiny-mt"], &[], &["attention forward, causal", "norm forward + residual", "128 x 64 x 512"]),
        (&["--preset", "gpt2-tiny"], &gated, &["swiglu forward", "swiglu backward"]),
        (&["--preset", "bert-tiny"], &["--rows", "8", "--len", "64"], &["attention forward", "labelled rows (1)"]),
        (&["--preset", "tiny"], &grouped, &["column sum", "embedding forward"]),
    ] {
        let name = format!("{chosen:?} {more:?}");
        let step = [&["bench"], chosen, more].concat();
        let ran = place.run(&[&step[..], &common].concat()).ok();
        let always = ["MFU = ", "tok/s", "linear TN", "norm backward", "norm, clip, AdamW", "sum of the operators"];
        for part in always.iter().chain(wanted) {
            assert!(ran.stdout.contains(part), "{name}: {part:?} is missing in {}", ran.stdout);
        }

        let found = ran.stdout.lines().filter_map(Operator::parse).map(|row| row.flops());
        let [weights, attention] = found.fold([0.0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
        let timed =
            place.run(&[&step[..], &["--device", "cpu", "--steps", "1", "--repeats", "1", "--json"]].concat()).ok();
        let record: Value = serde_json::from_str(&timed.stdout).expect("JSON");
        let workload = &record["workload"];
        let model: TransformerConfig = serde_json::from_value(workload["model"].clone()).expect("a model");
        let [rows, len] = ["rows", "len"].map(|key| workload[key].as_u64().expect("a number") as usize);
        let source = if workload["shortest"] == 1.0 { 0 } else { len };
        let masked = workload["max_labels"].as_u64().map(|_| 0.15);
        let counted = train_flops_per_batch(&model, [rows, source, len], masked);
        assert_eq!(weights, counted.weights, "{name}: {}", ran.stdout);
        // Backward computes the scores again, which the model does not count.
        assert!((attention / counted.attention - 7.0 / 6.0).abs() < 1e-9, "{name}: {attention}, {counted:?}");
    }
}

#[test]
fn a_bench_compares_itself_with_any_program_that_prints_the_lines_of_the_baseline() {
    let place = Workplace::new();
    place.write("peer.sh", "echo 'matmul tn 16x8x24 0.500 ms 1 TFLOP/s'\necho 'conv fwd 8x8 1.0 ms'");
    let bench =
        ["bench", "tiny", "--operators", "--device", "cpu", "--steps", "1", "--repeats", "1", "--peer", "peer.sh"];
    let output = place.command(&bench).env("KILN_PYTHON", "sh").output().expect("it ends");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(printed.contains("matmul tn 16x8x24") && printed.contains("torch   0.5000 ms"), "{printed}");
    assert!(!printed.contains("conv"), "Kiln has none: {printed}");
    assert!(printed.contains("torch          has no such workload"), "{printed}");
    let refused = place.run(&["bench", "gpt", "--device", "cpu", "--peer", "nowhere.py"]);
    assert!(refused.code == 1 && refused.stderr.contains("--peer nowhere.py: there is no such file"), "{refused:#?}");
    let bench = |arguments: &[&str]| place.run(&[&["bench", "--device", "cpu"][..], arguments].concat());
    bench(&["--peer", "gpt"]).refused(2, &["give workloads before --peer"]);
    bench(&["gpt3"]).refused(2, &["no workload", "tiny-mt"]);
    bench(&["tiny", "--len", "4096"]).refused(2, &["tiny has at most", "--set model.max_positions=4096"]);
    bench(&["tiny", "--steps", "0"]).refused(2, &["must be at least 1"]);
}

#[test]
fn warming_kernels_needs_a_gpu_and_a_workload_that_exists() {
    let place = Workplace::new();
    place.run(&["warm", "tiny", "--device", "cpu"]).refused(2, &["no kernels to compile"]);
    place.run(&["warm", "--to", "a.kernels", "--device", "cpu"]).refused(2, &["no kernels to compile"]);
    place.run(&["warm", "gpt3"]).refused(2, &["no workload", "tiny-mt"]);
    assert!(!place.path("a.kernels").exists());
}

#[test]
fn a_missing_python_or_pytorch_is_reported_before_anything_is_timed() {
    let place = Workplace::new();
    // `false` exits with 1, as a Python without PyTorch does.
    for (python, wanted) in [("/nowhere/python3", "cannot start /nowhere/python3"), ("false", "false has no PyTorch")] {
        let bench = ["bench", "gpt", "--device", "cpu", "--peer"];
        let output = place.command(&bench).env("KILN_PYTHON", python).output().expect("it ends");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted) && said.contains("KILN_PYTHON") && output.stdout.is_empty(), "{said}");
    }
}

/// A shell script takes the place of Python: it has "PyTorch", and prints a line of a step or of an operator.
#[test]
fn the_carried_baseline_is_removed_after_the_bench() {
    let place = Workplace::new();
    place.write("python", "#!/bin/sh\ncase $1 in -c) exit 0 ;; esac\ndirname $1 >folder\nls $(dirname $1) >files\ncase $2 in ops) echo 'matmul nn 8x16x24 0.500 ms' ;; model) cp $3 workload; echo 'tiny compile=True: 3.00 ms/step 85333 effective tok/s MFU nan% peak 1.00 GiB' ;; esac\n");
    let bench = ["bench", "tiny", "--operators", "--device", "cpu", "--steps", "1", "--repeats", "1", "--peer"];
    Command::new("chmod").arg("+x").arg(place.path("python")).status().expect("chmod");
    let output = place.command(&bench).env("KILN_PYTHON", place.path("python")).output().expect("it ends");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(printed.contains("torch   0.5000 ms"), "{printed}{}", String::from_utf8_lossy(&output.stderr));

    assert!(
        printed.contains("torch compiled     3.00 ms      85333 tok/s    1333.3 samples/s  MFU unknown"),
        "{printed}"
    );
    assert!(place.read("workload").contains(r#""device":"cpu""#), "{}", place.read("workload"));

    assert_eq!(place.read("files"), "decode.py\nmodels.py\noperators.py\ntrain_step.py\ntransformer.py\n");
    assert!(!Path::new(place.read("folder").trim()).exists(), "the folder of the scripts is still there");
}

#[test]
fn a_bench_times_the_model_of_a_preset_a_file_and_a_run() {
    let place = Workplace::new();
    place.train(&["--run", "runs/short", "--set", "train.steps=8"]).ok();
    place.write("own.toml", "task = \"lm\"\npreset = \"gpt2-tiny\"\n[model]\nn_heads = 2\n");
    let common = ["--device", "cpu", "--steps", "1", "--repeats", "1", "--rows", "2", "--len", "16"];
    let bench = |chosen: &[&str]| place.run(&[&["bench"], chosen, &common[..]].concat());

    let preset = bench(&["--preset", "bert-tiny"]).ok();
    assert!(preset.stdout.contains("bert-tiny, 0.6 M parameters, 2 x 16"), "{}", preset.stdout);
    let own = bench(&["--config", "own.toml", "--set", "model.n_decoder_layers=1", "--json"]).ok();
    assert!(own.stdout.contains(r#""n_heads":2"#) && own.stdout.contains(r#""n_decoder_layers":1"#), "{}", own.stdout);
    let run = bench(&["--run", "runs/short"]).ok();
    assert!(run.stdout.contains("short, ") && run.stdout.contains("2 x (16 + 16) padded"), "{}", run.stdout);

    bench(&["--run", "runs/none"]).refused(2, &["runs/none"]);
    bench(&["gpt2-tiny"]).refused(2, &["is a preset: give it as --preset gpt2-tiny"]);
    bench(&["--preset", "gpt2-tiny", "--len", "1000"]).refused(2, &["--len"]);
    for key in ["train.grad_accum_steps", "train.split_batches"] {
        let alone = "a step of a workload is one batch";
        bench(&["tiny", "--set", &format!("{key}=2")]).refused(2, &[alone, key, "kiln diagnose"]);
    }
}

#[test]
fn a_bench_is_compared_with_a_stored_one() {
    let place = Workplace::new();
    let common = ["bench", "tiny", "--device", "cpu", "--steps", "1", "--repeats", "2"];
    let stored = place.run(&[&common[..], &["--json"]].concat()).ok();
    place.write("before.jsonl", &stored.stdout);
    let bench = |more: &[&str]| place.run(&[&common[..], &["--baseline", "before.jsonl"], more].concat());
    let same = bench(&[]).ok();
    assert!(same.stdout.contains("  baseline  ") && same.stdout.contains(" %"), "{}", same.stdout);
    let other = bench(&["--set", "model.n_heads=4", "--json"]).ok();
    assert!(other.stderr.contains("is of other steps: model.n_heads was 2"), "{other:#?}");

    place.write("before.jsonl", "not JSON");
    bench(&[]).refused(1, &["before.jsonl:1: not a line of kiln bench --json"]);
}

#[test]
fn the_link_between_devices_is_measured_alone_and_with_a_workload() {
    let place = Workplace::new();
    let bench = |named: &[&str]| {
        let common = ["--devices", "cpu,cpu", "--steps", "1", "--repeats", "1"];
        place.run(&[&["bench"], named, &common[..]].concat()).ok()
    };
    let link = bench(&["link"]).stdout;
    assert!(link.contains("  40 MiB") && !link.contains("each alone"), "{link}");
    let both = bench(&["tiny", "link"]).stdout;
    assert!(both.contains("  40 MiB") && both.contains("each alone"), "{both}");
}

#[test]
fn a_bench_ends_with_its_reader() {
    let place = Workplace::new();
    let bench = ["bench", "tiny", "--device", "cpu", "--steps", "1", "--repeats", "1"];
    let mut child = place.command(&bench).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What developers run on a GPU, here on the CPU.
#[test]
fn the_check_for_gpus_runs_its_stages_and_reports_what_it_lacks() {
    let place = Workplace::new();
    let check = |stages: &[&str]| {
        let mut command = Command::new("bash");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check.sh")).args(stages);
        command.env("KILN", env!("CARGO_BIN_EXE_kiln")).env("OUT", place.path("out"));
        command.env("DEVICE", "cpu").env("WORKLOADS", "tiny").env_remove("KERNEL_TESTS");
        // No test programs are found there.
        command.env("CARGO_TARGET_DIR", place.path("target"));
        command.output().expect("bash")
    };
    let output = check(&["steps", "kernels", "memcheck"]);
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{printed}");
    for part in
        ["=== steps", "tok/s", "=== kernels", "skipped: there are no tests of kiln-kernels", "=== memcheck\nskipped: "]
    {
        assert!(printed.contains(part), "{part:?} is missing in {printed}");
    }
    assert_eq!(check(&["everything"]).status.code(), Some(2));

    let help = check(&["--help"]);
    let printed = String::from_utf8(help.stdout).expect("UTF-8");
    assert!(help.status.success(), "{printed}");
    for part in ["usage:", "  score ", "benches/pytorch/translate.py", "  KERNEL_TESTS ", "  EN_IT "] {
        assert!(printed.contains(part), "{part:?} is missing in {printed}");
    }
}
