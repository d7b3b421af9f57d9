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
    for command in ["train", "prepare", "tokenizer", "evaluate", "translate", "generate", "average", "doctor"] {
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
    let first =
        place.run(&["train", "--dry-run", "--device", "cpu", "--set", "optim.lr=0.0015", "--run", "runs/x"]).ok();
    for part in ["lr = 0.0015", "parameters: encoder", "batch 1: ", "memory for the largest batch", "runs/x"] {
        assert!(first.stdout.contains(part), "{part:?} is missing in {}", first.stdout);
    }
    assert!(!place.path("runs/x/config.toml").exists(), "a dry run starts no run");
    place.write("again.toml", &first.stdout);
    let again = place.run(&["train", "--dry-run", "--device", "cpu", "--config", "again.toml", "--run", "runs/x"]).ok();
    assert_eq!(again.stdout, first.stdout);
    assert_eq!(again.stderr, "", "text and tokenizer were prepared before");
}
