//! What the command says about itself.

use crate::kiln::Workplace;

#[test]
fn help_goes_to_stdout_and_names_exit_codes_and_examples() {
    let place = Workplace::new();
    let help = place.run(&["--help"]).ok();
    for part in ["train", "prepare", "tokenizer", "evaluate", "translate", "generate", "doctor", "Exit codes", "stderr"]
    {
        assert!(help.stdout.contains(part), "{part} is missing in {}", help.stdout);
    }
    for command in ["train", "prepare", "tokenizer", "evaluate", "translate", "generate", "average", "warm", "doctor"] {
        let help = place.run(&[command, "--help"]).ok();
        assert!(help.stdout.contains("Example"), "{}", help.stdout);
        assert!(help.stdout.contains(&format!("kiln {command}")), "{}", help.stdout);
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(Workplace::new().run(&["--version"]).ok().stdout, concat!("kiln ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn the_doctor_names_what_it_looked_for() {
    let report = Workplace::new().run(&["doctor"]).ok().stdout;
    for part in ["cpu: built in", "gpu: ", "driver: ", "NVRTC: ", "CUDA headers: ", "LLVM 23.1: ", "kiln train"] {
        assert!(report.contains(part), "{part:?} is missing in {report}");
    }
}

#[test]
fn a_dry_run_prints_a_configuration_that_can_be_used_again() {
    let place = Workplace::new();
    let dry = ["train", "--dry-run", "--show-config", "--device", "cpu", "--run", "runs/x"];
    let first = place.run(&[&dry[..], &["--set", "optim.lr=0.0015"]].concat()).ok();
    for part in
        ["lr = 0.0015", "parameters: encoder", "batch 1: ", " for the largest batch, 64 x (8 + 8): weights ", "runs/x"]
    {
        assert!(first.stdout.contains(part), "{part:?} is missing in {}", first.stdout);
    }
    assert!(!place.path("runs").exists(), "a dry run leaves nothing behind");
    place.write("again.toml", &first.stdout);
    let again = place.run(&[&dry[..], &["--config", "again.toml"]].concat()).ok();
    let config = |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(config(&again.stdout), config(&first.stdout));
}

#[test]
fn a_dry_run_leads_with_a_summary_and_an_example() {
    let place = Workplace::new();
    place.write("few.tsv", (0..300).map(|n| format!("word {n}\tparola {n}\n")).collect::<String>());
    let dry = ["train", "--dry-run", "--device", "cpu", "--set", "data.train=few.tsv", "--run", "runs/x"];
    let ran = place.run(&dry).ok();
    for part in [
        "preset few-pairs, for 300 pairs on a CPU, with ",
        " of its 3,000 steps: about 100 epochs at most (--preset NAME and train.steps decide otherwise)\ndata: 300 pairs, none for validation; ",
        " M parameters on CPU (",
        "memory: about ",
        "kiln export: as marian",
        "the first example of the training data:\n  source: word ",
        " tokens: ",
        "  target: parola ",
        "--show-config prints the configuration",
    ] {
        assert!(ran.stdout.contains(part), "{part:?} is missing in {}", ran.stdout);
    }
    assert!(!ran.stdout.contains("batch_tokens =") && !ran.stdout.contains("warning"), "{}", ran.stdout);
    assert!(!ran.stderr.contains("tmp"), "no temporary names: {}", ran.stderr);
    assert!(!place.path("runs").exists());

    let named = place.run(&[&dry[..], &["--preset", "few-pairs"]].concat()).ok();
    assert!(
        named.stdout.contains("3,000 steps are ") && named.stdout.contains("warning: above 100 epochs"),
        "{named:#?}"
    );
    let base = place.run(&[&dry[..], &["--preset", "base"]].concat()).ok();
    assert!(base.stdout.contains("kiln export: as pegasus"), "{base:#?}");
}

#[test]
fn the_commented_configuration_can_be_saved_and_used() {
    let place = Workplace::new();
    place.run(&["config", "--preset", "bsae"]).refused(2, &["unknown preset \"bsae\"; did you mean base?"]);
    let printed =
        place.run(&["config", "--preset", "few-pairs", "--set", "data.train=pairs.tsv", "--set", "seed=7"]).ok();
    for part in
        ["preset = \"few-pairs\"", "\ntrain = [\"pairs.tsv\"]", "\nseed = 7\n", "\n#lr = ", "# Peak learning rate."]
    {
        assert!(printed.stdout.contains(part), "{part:?} is missing in {}", printed.stdout);
    }
    place.write("run.toml", &printed.stdout);
    // The data need not be there, since it is only printed.
    assert_eq!(place.run(&["config", "--config", "run.toml"]).ok().stdout, printed.stdout);
    place.run(&["train", "--config", "run.toml", "--dry-run"]).refused(2, &["run.toml", "data.train names pairs.tsv"]);

    // Keys that Kiln changed for a small text are set, because the file names the preset.
    place.write("pairs.tsv", (0..300).map(|n| format!("word {n}\tparola {n}\n")).collect::<String>());
    let printed = place.run(&["config", "--set", "data.train=pairs.tsv", "--device", "cpu"]).ok();
    assert!(printed.stdout.contains("\nsteps = ") && printed.stdout.contains("\nwarmup_steps = "), "{printed:#?}");
    place.write("few.toml", &printed.stdout);
    assert_eq!(place.run(&["config", "--config", "few.toml", "--device", "cpu"]).ok().stdout, printed.stdout);
}

/// The preset is chosen once. A run that is resumed keeps it, even if its text has grown since.
#[test]
fn a_resumed_run_does_not_choose_its_preset_again() {
    let place = Workplace::new();
    let pairs = |n: usize| (0..n).map(|n| format!("word {n}\tparola {n}\n")).collect::<String>();
    place.write("pairs.tsv", pairs(300));
    place.write("keys.toml", "[data]\ntrain = [\"pairs.tsv\"]\n[train]\nsteps = 2\n");
    let train = ["train", "--device", "cpu", "--config", "keys.toml", "--run", "runs/a"];
    let ran = place.run(&train).ok();
    assert!(ran.stderr.contains("preset few-pairs, for 300 pairs on a CPU"), "{ran:#?}");
    assert!(place.read("runs/a/config.toml").contains("d_model = 128"));

    place.write("pairs.tsv", pairs(6000));
    let dry = place.run(&[&train[..], &["--resume", "--allow", "data", "--dry-run", "--show-config"]].concat()).ok();
    assert!(dry.stdout.contains("d_model = 128") && !dry.stdout.contains("preset"), "{dry:#?}");
    let new = ["train", "--device", "cpu", "--config", "keys.toml", "--run", "runs/b", "--dry-run"];
    assert!(place.run(&new).ok().stdout.contains("preset tiny, for 6,000 pairs on a CPU"));
}
