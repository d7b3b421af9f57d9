use std::fs;
use std::path::PathBuf;

use super::super::{Precision, Preset, Schedule, Task, presets};
use super::meant::{LENGTHS_OF_PAIRS, OPTIONAL_KEYS};
use super::other_names::OTHER_NAMES;
use super::*;

/// Loads a file with this text and these `--set`s.
fn load_text(text: &str, set: &[&str]) -> (Result<Config, ConfigError>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.toml");
    fs::write(&path, text).expect("writable");
    let sources = Sources {
        file: Some(path.clone()),
        set: set.iter().map(|&set| set.to_owned()).collect(),
        ..Sources::default()
    };
    (load(&sources), path.display().to_string())
}

fn load_set(preset: Option<&str>, set: &[&str]) -> Result<Config, ConfigError> {
    let set = set.iter().map(|&set| set.to_owned()).collect();
    load(&Sources { preset: preset.map(str::to_owned), set, ..Sources::default() })
}

fn only_problem(result: Result<Config, ConfigError>) -> String {
    let problems = result.expect_err("refused").problems;
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.into_iter().next().expect("one problem")
}

#[test]
fn nothing_given_is_the_built_in_task() {
    assert_eq!(load(&Sources::default()), Ok(presets::numbers()));
    let named = load_set(None, &["data.train=rows.jsonl"]).expect("valid");
    assert_eq!((named.model, named.data.train), (presets::base().model, vec!["rows.jsonl".into()]));
}

#[test]
fn names_of_columns_without_a_header_are_refused() {
    let named = ["data.corpus.header=no", "data.corpus.source_field=English (US)", "data.corpus.target_field=Italiano"];
    let with = |file: &'static str, set: &[&'static str]| load_set(None, &[&[file], set].concat());
    for file in ["data.train=a.tsv", "data.train=a.csv.gz"] {
        let problem = only_problem(with(file, &named));
        let keys = "data.corpus.source_field and data.corpus.target_field cannot be found";
        assert!(problem.contains(keys) && problem.contains("data.corpus.source_column"), "{problem}");
        assert!(
            only_problem(with(file, &[named[0], named[2]])).contains("so data.corpus.target_field cannot be found")
        );
        assert!(with(file, &named[1..]).is_ok() && with(file, &named[..1]).is_ok());
    }
    assert!(with("data.train=a.jsonl", &named).is_ok(), "they are fields of rows");

    let mut run = presets::tiny();
    run.data.corpus.source_field = "English".into();
    let set = ["data.train=a.tsv", "data.corpus.header=no"].map(str::to_owned).into();
    assert!(resolve(&Sources { base: Some(run), set, ..Sources::default() }).is_ok(), "another run has named them");
}

fn load_task(task: &str, set: &[&str]) -> Result<Config, ConfigError> {
    let set = set.iter().map(|&set| set.to_owned()).collect();
    load(&Sources { task: Some(task.into()), set, ..Sources::default() })
}

#[test]
fn a_task_chooses_its_preset_and_wins_over_the_files() {
    assert_eq!(load_task("lm", &[]), Ok(presets::gpt2_tiny()));
    assert_eq!(load_task("mlm", &[]), Ok(presets::bert_tiny()));
    assert_eq!(load_task("translation", &[]), Ok(presets::numbers()));
    let named = load_task("lm", &["data.train=text.txt"]).expect("valid");
    assert_eq!((named.model, named.data.train), (presets::gpt2_mini().model, vec!["text.txt".into()]));
    let (config, _) = load_text("task = \"mlm\"\n[data]\ntrain = [\"a.txt\"]\n", &[]);
    assert_eq!(config.expect("valid").model, presets::bert_small().model);
    assert_eq!(load_set(Some("gpt2-mini"), &[]).expect("valid").task, Task::Lm);
}

#[test]
fn a_task_that_is_none_or_does_not_fit_its_preset_is_named() {
    let problem = only_problem(load_task("lmm", &[]));
    assert!(problem.starts_with("--task lmm: task = \"lmm\" is not known; did you mean"), "{problem}");
    let sources = Sources { task: Some("mlm".into()), preset: Some("gpt2-mini".into()), ..Sources::default() };
    let problem = only_problem(load(&sources));
    assert!(problem.contains("--task mlm: task = \"mlm\" needs model.architecture = \"encoder_only\""), "{problem}");
}

#[test]
fn the_command_line_wins_over_the_file_and_the_file_over_the_preset() {
    let text = "preset = \"small\"\nseed = 5\n[optim]\nlr = 2e-4\nschedule = \"linear\"\n[train]\nsteps = 7000\n";
    let (config, _) =
        load_text(text, &["optim.lr=3e-4", "train.steps = 8000", "train.steps=9000", "train.precision=bf16"]);
    let config = config.expect("valid");
    assert_eq!((config.seed, config.optim.lr, config.train.steps), (5, 3e-4, 9000));
    assert_eq!((config.optim.schedule, config.train.precision), (Schedule::Linear, Precision::Bf16));
    assert_eq!((config.model, config.loader), (presets::small().model, presets::small().loader));
}

#[test]
fn a_preset_on_the_command_line_wins_over_the_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.toml");
    fs::write(&file, "preset = \"big\"").expect("writable");
    let sources = Sources { preset: Some("tiny".into()), file: Some(file), ..Sources::default() };
    assert_eq!(load(&sources), Ok(presets::tiny()));
}

#[test]
fn values_on_the_command_line_need_no_quotes() {
    let config = load_set(
        Some("base"),
        &[
            "data.train=a.jsonl",
            "data.valid=[\"b.jsonl\", \"c.jsonl\"]",
            "data.corpus.source_field=1",
            "tokenizer.path=t.json",
            "optim.lr=1",
        ],
    )
    .expect("valid");
    assert_eq!(config.data.train, ["a.jsonl"].map(PathBuf::from));
    assert_eq!(config.data.valid, ["b.jsonl", "c.jsonl"].map(PathBuf::from));
    assert_eq!((config.data.corpus.source_field.as_str(), config.optim.lr), ("1", 1.0));
    assert_eq!(config.tokenizer.path, Some("t.json".into()));
}

#[test]
fn every_mistake_of_file_and_command_line_is_named_with_its_place() {
    let text = "sed = 1\n[optim]\nlearning_rate = 1e-3\nlr = \"high\"\n\n[model]\ndropout = 1.5\nn_heads = -8\n[train]\nprecision = \"b16\"\n";
    let (result, path) = load_text(text, &["train.warmup_steps=5", "train.log_every=0", "generate.beam_size=many"]);
    let problems = result.expect_err("refused").problems;
    let wanted = [
        format!("{path}:1: unknown key sed; did you mean seed?"),
        format!("{path}:3: unknown key optim.learning_rate; did you mean optim.lr?"),
        format!("{path}:4: optim.lr: found string \"high\", wanted a number"),
        format!("{path}:7: model.dropout 1.5 is outside [0, 1)"),
        format!("{path}:8: model.n_heads: found integer -8, wanted a whole number from 0"),
        format!("{path}:10: train.precision = \"b16\" is not known; did you mean bf16?; one of auto, f32, bf16, fp16"),
        "--set train.warmup_steps=5: unknown key train.warmup_steps; did you mean optim.warmup_steps?".into(),
        "--set train.log_every=0: train.log_every is 0".into(),
        "--set generate.beam_size=many: generate.beam_size: found string \"many\", wanted a whole number from 0".into(),
    ];
    for line in &wanted {
        assert!(
            problems.iter().any(|problem| problem.starts_with(line.as_str())),
            "{line}\nis missing in {problems:#?}"
        );
    }
    assert_eq!(problems.len(), wanted.len(), "{problems:#?}");
    assert!(problems.is_sorted_by_key(|problem| !problem.starts_with(&path)), "file first: {problems:#?}");
}

#[test]
fn an_unknown_key_like_no_other_is_answered_with_the_keys_of_its_section() {
    let problem = only_problem(load_set(None, &["optim.xyzzy=1e-3"]));
    assert!(problem.contains("unknown key optim.xyzzy; the known keys are beta1, beta2"), "{problem}");
}

#[test]
fn names_of_other_trainers_lead_to_keys_that_exist() {
    for (name, key) in OTHER_NAMES {
        let problem = only_problem(load_set(None, &[&format!("train.{name}=1")]));
        let meant = match key {
            "data.text.seq_len" => [&[key], &LENGTHS_OF_PAIRS[..]].concat().join(" or "),
            _ => key.to_owned(),
        };
        assert!(problem.ends_with(&format!("unknown key train.{name}; did you mean {meant}?")), "{problem}");
        if key.starts_with("--") {
            continue;
        }
        let problem = only_problem(load_set(None, &[&format!("{key}.x=1")]));
        assert!(!problem.contains(&format!("unknown key {key};")), "{problem}");
    }
}

#[test]
fn the_number_of_layers_leads_to_the_sides_that_the_model_has() {
    for (preset, meant) in [
        ("tiny", "model.n_encoder_layers or model.n_decoder_layers"),
        ("gpt2-tiny", "model.n_decoder_layers"),
        ("bert-tiny", "model.n_encoder_layers"),
    ] {
        for name in ["n_layers", "num_layers", "num-hidden-layers"] {
            let problem = only_problem(load_set(Some(preset), &[&format!("model.{name}=2")]));
            assert!(problem.ends_with(&format!("did you mean {meant}?")), "{problem}");
        }
    }
}

#[test]
fn a_key_of_another_kind_of_data_leads_to_those_of_its_own() {
    let problem = only_problem(load_set(None, &["data.corpus.field=x"]));
    assert!(problem.ends_with("did you mean data.corpus.source_field or data.corpus.target_field?"), "{problem}");
    let problem = only_problem(load_set(None, &["data.labels.field=x"]));
    assert!(problem.contains("data.labels.text_field") && !problem.contains("data.text.field"), "{problem}");
}

#[test]
fn no_known_key_is_listed_twice() {
    for preset in Preset::ALL.map(Preset::name) {
        let problem = load_set(Some(preset), &["model.xyzzyxyzzy=1"]).expect_err("refused").to_string();
        let names = problem.split_once("the known keys are ").expect("a list").1;
        let names = names.lines().next().unwrap_or_default();
        let mut names: Vec<&str> = names.split(", ").collect();
        let before = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), before, "{preset}: {problem}");
    }
}

#[test]
fn the_seed_of_a_run_is_a_key_of_its_own() {
    let problem = only_problem(load_set(None, &["train.seed=3"]));
    assert!(problem.ends_with("unknown key train.seed; did you mean seed?"), "{problem}");
}

#[test]
fn files_add_up_and_other_keys_are_replaced_with_a_note() {
    let resolved = |set: &[&str]| {
        let set = set.iter().map(ToString::to_string).collect();
        resolve(&Sources { preset: Some("tiny".into()), set, ..Sources::default() }).expect("valid")
    };
    let both = resolved(&["data.train=a.tsv", "data.train=b.en,b.it", "data.train=[c.tsv, d.tsv]"]);
    let files: Vec<_> = both.config.data.train.iter().map(|file| file.display().to_string()).collect();
    assert_eq!((files, both.notes.len()), (["a.tsv", "b.en,b.it", "c.tsv", "d.tsv"].map(String::from).to_vec(), 0));
    let notes = resolved(&["optim.lr=1e-3", "optim.lr=2e-3"]).notes;
    assert_eq!(notes, ["--set optim.lr=2e-3 replaces --set optim.lr=1e-3"]);
}

#[test]
fn projections_have_the_names_of_transformers_and_of_kiln() {
    use kiln_model::LoraTarget::{Down, Gate, Key, Output, Qkv, Query, Up, Value};
    let targets = |preset: &str, list: &str| {
        let set = ["model.lora.rank=8", &format!("model.lora.targets={list}")];
        load_set(Some(preset), &set).expect("valid").model.lora.targets
    };
    assert_eq!(targets("llama-125m", "q_proj,v_proj"), [Query, Value]);
    assert_eq!(targets("gpt2-124m", "[query, \"up\"]"), [Query, Up]);
    assert_eq!(targets("llama-125m", "all-linear"), [Query, Key, Value, Output, Up, Down, Gate]);
    assert_eq!(targets("gpt2-124m", "all-linear"), [Qkv, Output, Up, Down], "one module, as peft has it");
    assert_eq!(targets("gpt2-124m", "c_attn,c_proj,c_fc"), [Qkv, Output, Down, Up]);
    assert_eq!(targets("gpt2-124m", "[attn.c_proj, mlp.c_fc]"), [Output, Up]);
    assert_eq!(targets("bert-small", "query,value,dense"), [Query, Value, Output, Up, Down]);
    assert_eq!(targets("llama-125m", "self_attn.q_proj,gate_up_proj,wo"), [Query, Gate, Up, Down]);
    assert_eq!(targets("tiny", "all-linear"), [Query, Key, Value, Output, Up, Down]);
    let problem = only_problem(load_set(Some("gpt2-124m"), &["model.lora.targets=c_porj"]));
    assert!(problem.contains("\"c_porj\" is not known"), "{problem}");
}

#[test]
fn all_mistakes_in_the_sources_of_a_mixture_are_named_at_once() {
    let sources =
        "[{ name = \"a\", path = \"a.tsv\", wieght = 3, foo = 1 }, { name = \"b\", train = \"b.tsv\", wieght = 1 }]";
    let mix = format!("data.mix={sources}");
    let problems = load_set(Some("tiny"), &[&mix, "data.train=c.tsv"]).expect_err("mistakes").problems;
    for wanted in [
        "unknown key path; did you mean train?",
        "unknown key wieght; did you mean weight?",
        "unknown key foo",
        "data.train",
    ] {
        assert!(problems.iter().any(|problem| problem.contains(wanted)), "{wanted}: {problems:?}");
    }

    let problem = only_problem(load_set(Some("tiny"), &["data.mix.0.weight=5"]));
    assert!(
        problem.starts_with("--set data.mix.0.weight=5: items of a list") && problem.contains("all of data.mix"),
        "{problem}"
    );
}

#[test]
fn a_key_without_its_section_is_recognized() {
    let problem = only_problem(load_set(None, &["lr=1e-3"]));
    assert_eq!(problem, "--set lr=1e-3: unknown key lr; did you mean optim.lr?");
    let problem = only_problem(load_set(None, &["optm.lr=1e-3"]));
    assert!(problem.contains("unknown key optm; did you mean optim?"), "{problem}");
}

#[test]
fn values_and_sections_do_not_replace_each_other() {
    let problem = only_problem(load_set(None, &["optim=3"]));
    assert_eq!(problem, "--set optim=3: optim: found integer 3, wanted a section with keys of its own");
    let problem = only_problem(load_set(None, &["optim.lr.peak=3"]));
    assert_eq!(problem, "--set optim.lr.peak=3: optim.lr: found map, wanted a number");
}

#[test]
fn an_assignment_needs_a_key_and_a_value() {
    assert!(only_problem(load_set(None, &["optim.lr"])).contains("the `=` is missing"));
    assert!(only_problem(load_set(None, &["=3"])).contains("is not a key"));
    assert!(only_problem(load_set(None, &["optim..lr=3"])).contains("is not a key"));
}

#[test]
fn toml_that_cannot_be_parsed_is_named_with_its_lines() {
    let (result, path) = load_text("seed = \n[optim\nlr = 1\n", &[]);
    let problems = result.expect_err("refused").problems;
    assert!(problems[0].starts_with(&format!("{path}:1: this is not TOML")), "{problems:#?}");
    assert!(problems.iter().any(|problem| problem.starts_with(&format!("{path}:2:"))), "{problems:#?}");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let missing = Sources { file: Some("no/such/file.toml".into()), ..Sources::default() };
    let problem = only_problem(load(&missing));
    assert!(problem.starts_with("no/such/file.toml: cannot read") && problem.contains("--config"), "{problem}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("latin1.toml");
    fs::write(&path, b"seed = 1 # caf\xe9\n").expect("writable");
    let problem = only_problem(load(&Sources { file: Some(path), ..Sources::default() }));
    assert!(problem.contains("byte 14 is not UTF-8"), "{problem}");
}

#[test]
fn unknown_presets_are_named_with_their_place() {
    assert!(only_problem(load_set(Some("huge"), &[])).starts_with("--preset huge: unknown preset \"huge\""));
    let (result, path) = load_text("\npreset = \"bass\"\n", &[]);
    assert_eq!(
        only_problem(result),
        format!(
            "{path}:2: unknown preset \"bass\"; did you mean base?; presets are {}",
            Preset::ALL.map(Preset::name).join(", ")
        )
    );
}

#[test]
fn optional_keys_are_those_that_presets_leave_out() {
    for key in OPTIONAL_KEYS {
        let result = load_set(Some("tiny"), &[&format!("{key}=tiny")]);
        let problem = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!problem.contains("unknown key"), "{key}: {problem}");
    }
}

#[test]
fn a_number_beyond_every_type_is_a_problem_with_its_line() {
    let (result, path) = load_text("[optim]\nlr = 1e9999\n", &[]);
    let problem = only_problem(result);
    assert!(problem.starts_with(&format!("{path}:2: this is not TOML")) && problem.contains("overflow"), "{problem}");
}

#[test]
fn keys_that_look_like_paths_are_reported_once() {
    for set in ["model[[=a", "model[[.x=1", "model[0].d_model=64"] {
        let problem = only_problem(load_set(None, &[set]));
        assert!(problem.contains("unknown key model["), "{problem}");
    }
    // Quoted, it is still the key that it spells.
    assert_eq!(load_text("\"model.d_model\" = 64\n", &[]).0.expect("valid").model.d_model, 64);
}

#[test]
fn a_broken_line_is_one_problem_without_others_that_follow_from_it() {
    let text = "preset = \"small\"\n[data]\ntrain = [\"a.jsonl\"\nvalid = [\"b.jsonl\"]\n[train]\nsteps = 9000\n";
    let (result, path) = load_text(text, &["data.valid=dev.jsonl", "train.steps=40"]);
    let problem = only_problem(result);
    assert!(problem.starts_with(&format!("{path}:3: this is not TOML: unclosed array")), "{problem}");
}

#[test]
fn epochs_are_answered_with_the_number_of_steps() {
    assert_eq!(load_set(None, &["train.epochs=10"]).expect("a key").train.epochs, 10.0);
    let problem = only_problem(load_set(None, &["num_train_epochs=10"]));
    assert!(
        problem.ends_with("unknown key num_train_epochs; Kiln calls it train.epochs: --set train.epochs=10"),
        "{problem}"
    );
    let both = only_problem(load_set(None, &["train.epochs=10", "train.steps=900"]));
    assert!(both.contains("train.steps is set next to train.epochs; name one of the two"), "{both}");

    // The number is the one that a run has: of rows, batches and accumulated batches.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("text.txt");
    fs::write(&file, "one two three four\n\n".repeat(4096)).expect("writable");
    let train = format!("data.train={}", file.display());
    let problem = only_problem(load_task("lm", &[&train, "num_train_epochs=10", "loader.batch_tokens=512"]));
    assert!(problem.contains("which are about 400 steps: --set train.epochs=10"), "{problem}");
    let set = [&train, "loader.batch_tokens=512", "train.grad_accum_steps=2", "num_epochs=1.5"];
    assert!(only_problem(load_task("lm", &set)).contains("about 30 steps"), "half as many steps");

    // A file gets the line of a file.
    let text = format!("task = \"lm\"\n[data]\ntrain = {:?}\n[train]\nmax_epochs = 10\n", file.display().to_string());
    let problem = only_problem(load_text(&text, &["loader.batch_tokens=512"]).0);
    assert!(problem.contains(":5: ") && problem.ends_with("steps: `epochs = 10` in [train]"), "{problem}");
}
