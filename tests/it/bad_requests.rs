//! Command lines and configurations that cannot work: exit code 2, and nothing is done.

use std::fs;

use crate::kiln::Workplace;

#[test]
fn every_mistake_is_named_at_once_with_place_and_remedy() {
    let place = Workplace::new();
    place.write("run.toml", "[optim]\nlearning_rate = 1e-3\nlr = \"high\"\n\n[model]\nd_model = 30\nn_heads = 4\n");
    let ran = place.run(&["train", "--config", "run.toml", "--set", "train.steps=0", "--set", "trian.steps=5"]);
    ran.refused(
        2,
        &[
            "5 problems",
            "run.toml:2: unknown key optim.learning_rate; did you mean optim.lr?",
            "run.toml:3: optim.lr: found string \"high\", wanted a number",
            "run.toml:6: model.d_model 30 is not a multiple of model.n_heads 4; set model.d_model to 32",
            "--set train.steps=0: train.steps is 0",
            "--set trian.steps=5: unknown key trian; did you mean train?",
        ],
    );
    assert!(!place.path("runs").exists(), "nothing was done");
}

#[test]
fn options_that_do_not_exist_and_commands_that_are_missing_are_refused() {
    let place = Workplace::new();
    place.run(&["train", "--stpes", "5"]).refused(2, &["--stpes", "--help"]);
    place.run(&["tain"]).refused(2, &["tain", "train"]);
    let other = ["train", "--set", "data.test=a.tsv", "--dry-run"];
    place
        .run(&other)
        .refused(2, &["unknown key data.test: training reads no test text", "kiln evaluate RUN --data FILE"]);
    place.run(&["train", "--preset", "bsae"]).refused(2, &["unknown preset \"bsae\"; did you mean base?"]);
    place.run(&["train", "--allow", "optim.lr"]).refused(2, &["--resume"]);
    place
        .run(&["train", "--dry-run", "--set", "train.best_metric=max:f1"])
        .refused(2, &["the model reports no figure \"f1\" at validations", "it reports none of its own"]);
}

#[test]
fn files_that_are_not_there_are_named() {
    let place = Workplace::new();
    place.run(&["train", "--config", "no.toml"]).refused(2, &["no.toml: cannot read the configuration", "--config"]);
    let text = "data.train=no/such.jsonl";
    place
        .run(&["train", "--device", "cpu", "--set", text])
        .refused(2, &["data.train", "no/such.jsonl", "No such file"]);
    place.write("rows.jsonl", "{\"src\": \"a b\", \"trg\": \"c d\"}\n");
    let typos = ["data.train=row.jsonl", "data.valid=rows.jsonl", "tokenizer.path=tok.json", "optim.lr=-1"];
    let typos: Vec<&str> = typos.iter().flat_map(|set| ["--set", *set]).collect();
    place.run(&[&["train", "--run", "runs/typo"], &typos[..]].concat()).refused(
        2,
        &[
            "3 problems",
            "data.train names row.jsonl: No such file or directory; did you mean rows.jsonl?",
            "tokenizer.path names tok.json",
            "optim.lr -1",
        ],
    );
    assert!(!place.path("runs").exists(), "nothing was done");
    place.run(&["prepare", "no.jsonl"]).refused(2, &["no.jsonl"]);
    place.run(&["tokenizer", "no.jsonl", "--out", "tok"]).refused(2, &["no.jsonl"]);
    place.run(&["evaluate", "runs/none"]).refused(2, &["runs/none: there is no run here"]);
    place.run(&["translate", "runs/none"]).refused(2, &["runs/none: there is no run here"]);

    place.write("in.txt", "hello\n");
    place.run(&["translate", "runs/none", "in.txt"]).refused(2, &["kiln translate runs/none < in.txt"]);
    place.run(&["translate", "runs/none", "hello"]).refused(2, &["echo 'hello' | kiln translate runs/none"]);
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let place = Workplace::new();
    place.run(&["train", "--device", "tpu"]).refused(2, &["unknown device \"tpu\"", "`cpu`"]);
    place.run(&["train", "--device", "cuda:4096"]).refused(2, &["cuda:4096"]);
    assert!(!place.path("runs/numbers/config.toml").exists(), "no run was begun");
}

#[test]
fn a_run_folder_is_never_overwritten() {
    let place = Workplace::new();
    let kept = place.write("runs/mine/config.toml", "seed = 1\n");
    place
        .run(&["train", "--run", "runs/mine"])
        .refused(2, &["runs/mine: this run folder exists already", "--resume", "--run"]);
    assert_eq!(fs::read_to_string(kept).expect("still there"), "seed = 1\n");
    place.run(&["train", "--run", "runs/other", "--resume"]).refused(2, &["no run to resume", "without --resume"]);
}

#[test]
fn a_run_folder_that_cannot_be_written_is_named() {
    let place = Workplace::new();
    place.write("file", "");
    place.run(&["train", "--device", "cpu", "--run", "file/run"]).refused(2, &["file/run", "--run"]);
}

#[test]
fn a_tokenizer_needs_text_and_a_place() {
    let place = Workplace::new();
    place.run(&["tokenizer", "--out", "tok"]).refused(2, &["there is no text"]);
    place.write("rows.jsonl", "{\"src\": \"a b\", \"trg\": \"c d\"}\n");
    place.run(&["tokenizer", "rows.jsonl"]).refused(2, &["--out", "tokenizer.path"]);
}

#[test]
fn a_run_that_fails_before_its_first_step_leaves_nothing_behind() {
    let place = Workplace::new();
    place.write("bad.jsonl", "{\"src\": 1}\n".repeat(20));
    place
        .run(&["train", "--device", "cpu", "--set", "data.train=bad.jsonl", "--run", "runs/d"])
        .refused(3, &["bad.jsonl"]);
    assert!(!place.path("runs").exists(), "the folder was made for the run");
}

#[test]
fn a_model_that_no_machine_holds_is_a_mistake_of_the_configuration() {
    let place = Workplace::new();
    let too_large = |set: &str, part: &str| {
        let ran = place.run(&["train", "--device", "cpu", "--set", set, "--run", "runs/d"]);
        ran.refused(2, &[set, part]);
    };
    too_large("model.d_model=100000000", "model.d_model 100000000 is above 1048576");
    too_large(
        "model.d_model=1000000",
        "model.d_model makes a model whose weights, gradients and optimizer state need at least",
    );
    too_large("model.n_encoder_layers=9999999", "model.n_encoder_layers 9999999 is above 10000");
    assert!(!place.path("runs").exists(), "nothing was done");
}
