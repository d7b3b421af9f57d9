//! Language models from the command line: trained, resumed, scored, generated from, and asked for what they cannot do.

use std::fs;

use serde_json::Value;

use crate::kiln::{Ran, Workplace, copy_folder};

/// A model so small that a step takes milliseconds.
const SMALL: [&str; 11] = [
    "model.d_model=32",
    "model.n_heads=2",
    "model.d_ff=64",
    "model.max_positions=48",
    "model.dropout=0.1",
    "loader.batch_tokens=192",
    "tokenizer.vocab_size=320",
    "optim.warmup_steps=5",
    "train.log_every=2",
    "train.validate_every=0",
    "train.save_every=0",
];

const TEXT: &str = "The old man walked down to the river and looked at the boats.\n\nThere was nobody on the water, and the \
                    boats lay still.\n\nHe sat down on a stone and waited for the evening.\n\n";

/// A place with a text in it.
fn place() -> Workplace {
    let place = Workplace::new();
    place.write("train.txt", TEXT.repeat(30));
    place.write("dev.txt", TEXT);
    place
}

/// `kiln train` of a small model for `task` on the text.
fn train(place: &Workplace, task: &str, arguments: &[&str]) -> Ran {
    let mut all = vec!["train", "--device", "cpu", "--task", task];
    let files = ["data.train=train.txt", "data.valid=dev.txt"];
    let layers = if task == "lm" { "model.n_decoder_layers=1" } else { "model.n_encoder_layers=1" };
    all.extend(SMALL.iter().chain(&files).chain([&layers]).flat_map(|set| ["--set", *set]));
    all.extend(arguments);
    place.run(&all)
}

/// A run `runs/a` of 12 steps with a checkpoint in the middle.
fn trained(task: &str) -> Workplace {
    let place = place();
    let ran = train(&place, task, &["--run", "runs/a", "--set", "train.steps=12", "--set", "train.save_every=6"]).ok();
    assert!(ran.stderr.contains("step 12/12") && ran.stderr.contains("tok/s (padding"), "{ran:#?}");
    assert_eq!(ran.stdout.contains("\n  The old man walked"), task == "lm", "the model is tried at the end: {ran:#?}");
    let next = if task == "lm" { "generate runs/a --prompt 'The old man walked'" } else { "fill runs/a 'The old man" };
    assert!(ran.stdout.contains(next), "{ran:#?}");
    place
}

fn weights(place: &Workplace, run: &str) -> Vec<u8> {
    fs::read(place.path(run).join("checkpoints/step-00000012/model.safetensors")).expect("saved")
}

#[test]
fn generate_says_when_the_best_weights_are_not_the_newest() {
    let place = place();
    let steps =
        ["train.steps=12", "train.save_every=6", "train.validate_every=6", "optim.warmup_steps=11", "optim.lr=1.0"];
    train(&place, "lm", &[&["--run", "runs/a"], &steps.map(|set| ["--set", set]).concat()[..]].concat()).ok();
    assert_eq!(place.read("runs/a/checkpoints/best"), "step-00000006\n", "a rate at which the model gets worse");
    let generate = ["generate", "runs/a", "--device", "cpu", "--max-new-tokens", "2", "--prompt", "The old man"];
    let note = "note: the best checkpoint is used, step 6; --checkpoint last takes step 12";
    assert!(place.run(&generate).ok().stderr.contains(note));

    let newest = place.run(&[&generate[..], &["--checkpoint", "last"]].concat()).ok();
    assert!(!newest.stderr.contains("the best checkpoint"), "{newest:#?}");
}

#[test]
fn a_language_model_is_trained_scored_and_written_with() {
    let place = trained("lm");
    let lines: Vec<Value> =
        place.read("runs/a/metrics.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let validation = lines.iter().find(|line| line["kind"] == "validation").expect("a validation");
    assert!(validation["bits_per_byte"].is_number() && validation.get("bleu").is_none(), "{validation}");
    let step = lines.iter().find(|line| line["kind"] == "step").expect("a step");
    assert_eq!((&step["source_tokens"], &step["tokens"]), (&0.into(), &step["target_tokens"]));

    let scores = place.run(&["evaluate", "runs/a", "--device", "cpu", "--data", "dev.txt"]).ok();
    assert!(scores.stdout.contains("perplexity") && scores.stdout.contains("bits per byte"), "{scores:#?}");
    assert!(
        !scores.stderr.contains("built in") && !scores.stderr.contains(".tokens"),
        "no temporary cache: {scores:#?}"
    );
    let json = place.run(&["evaluate", "runs/a", "--device", "cpu", "--checkpoint", "last", "--json"]).ok();
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&json["step"], &json["nll"]), (&12.into(), &validation["nll"]), "the run's own validation text");

    let generate = ["generate", "runs/a", "--device", "cpu", "--max-new-tokens", "9"];
    let one = place.run(&[&generate[..], &["--prompt", "The old man", "--seed", "4"]].concat()).ok();
    assert_eq!(
        place.run(&[&generate[..], &["--prompt", "The old man", "--seed", "4"]].concat()).ok().stdout,
        one.stdout
    );
    let repeated =
        place.run(&[&generate[..], &["--prompt", "The old man", "--seed", "4", "--with-prompt"]].concat()).ok();
    assert_eq!(repeated.stdout, format!("The old man{}", one.stdout));

    // The same prompts from the command line, a file and stdin, one of them the one above: the same texts.
    let prompts = "The old man\nThere was\nHe sat down on a stone and waited\n";
    place.write("prompts.txt", prompts);
    let of_file = place.run(&[&generate[..], &["--prompts", "prompts.txt", "--seed", "4"]].concat()).ok();
    let of_stdin = place.run_with_input(&[&generate[..], &["--seed", "4"]].concat(), prompts).ok();
    assert_eq!(of_file.stdout, of_stdin.stdout);
    let texts: Vec<Value> = of_file.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(texts.len(), 3);
    assert_eq!(format!("{}\n", texts[0]["text"].as_str().expect("text")), one.stdout, "streamed and in a batch");
    assert_eq!(texts[1]["prompt"], "There was");
    assert!(texts.iter().all(|text| text["n_tokens"].as_u64().is_some_and(|n| n <= 9)), "{texts:?}");

    for how in [&["--greedy"][..], &["--beam", "3"], &["--temperature", "0.5", "--top-k", "5"]] {
        place.run(&[&generate[..], &["--prompt", "He", "--stop", "."], how].concat()).ok();
    }
}

#[test]
fn documents_are_scored_packed_or_in_rows_of_their_own() {
    let place = trained("lm");
    let long = "The old man looked at the river and at the boats, and there was nobody on the water. ".repeat(3);
    let documents: Vec<&str> = TEXT.split_terminator("\n\n").collect();
    let scored = |text: &str, more: &[&str]| -> Value {
        place.write("scored.txt", text);
        let evaluate = ["evaluate", "runs/a", "--device", "cpu", "--data", "scored.txt", "--json"];
        serde_json::from_str(&place.run(&[&evaluate[..], more].concat()).ok().stdout).expect("JSON")
    };
    let number = |scores: &Value, key: &str| scores[key].as_f64().expect("a number");

    // What the model makes of each document when nothing else is there.
    let alone: Vec<Value> = documents.iter().map(|document| scored(document, &[])).collect();
    let tokens: f64 = alone.iter().map(|scores| number(scores, "target_tokens")).sum();
    let nll = alone.iter().map(|scores| number(scores, "nll") * number(scores, "target_tokens")).sum::<f64>() / tokens;
    let in_rows = scored(TEXT, &["--packing", "sentences"]);
    assert_eq!(number(&in_rows, "target_tokens"), tokens);
    assert!((number(&in_rows, "nll") - nll).abs() < 1e-6, "{in_rows}, wanted {nll}");
    assert_eq!((&in_rows["packing"], &in_rows["n_documents"]), (&"sentences".into(), &documents.len().into()));
    assert_eq!((&in_rows["n_longer_than_row"], &in_rows["seq_len"]), (&0.into(), &48.into()));

    for (packing, more) in [("documents", &[][..]), ("stream", &["--packing", "stream"])] {
        let other = scored(TEXT, more);
        assert_eq!(other["packing"], packing);
        assert_eq!(other["target_tokens"], in_rows["target_tokens"]);
        assert!((number(&other, "nll") - nll).abs() > 1e-5, "documents are cut: {other}");
    }
    place.write("scored.txt", format!("{TEXT}{long}\n"));
    let evaluate = ["evaluate", "runs/a", "--device", "cpu", "--data", "scored.txt"];
    let lines = place.run(&[&evaluate[..], &["--packing", "sentences"]].concat()).ok().stdout;
    let wanted =
        "each document in a row of its own, of at most 48 tokens  (documents: 4, 1 longer than a row, so cut)\n";
    assert!(lines.contains(wanted), "{lines}");
    let lines = place.run(&evaluate).ok().stdout;
    assert!(lines.contains("packed into rows of 48 tokens, cut where a row ends  (documents: 4, 1 longer"), "{lines}");

    let rows = ["--packing", "rows"];
    place.run(&[&evaluate[..], &rows].concat()).refused(2, &["use documents, stream or sentences"]);
}

#[test]
fn a_masked_model_is_trained_and_scored_beside_the_unigram_guess() {
    let place = trained("mlm");
    let scores = place.run(&["evaluate", "runs/a", "--device", "cpu"]).ok();
    assert!(scores.stdout.contains("masked-token accuracy"), "{scores:#?}");
    assert!(scores.stdout.contains("always the most frequent token"), "{scores:#?}");
    let again = place.run(&["evaluate", "runs/a", "--device", "cpu"]).ok();
    assert_eq!(again.stdout, scores.stdout, "the masks are the same every time");
    let metrics = place.read("runs/a/metrics.jsonl");
    assert!(metrics.contains("masked_accuracy") && metrics.contains("unigram_accuracy"), "{metrics}");
}

#[test]
fn temperature_0_is_greedy_and_samples_differ() {
    let place = trained("lm");
    let generate = |arguments: &[&str]| {
        let all = ["generate", "runs/a", "--device", "cpu", "--max-new-tokens", "9", "--prompt", "The old man"];
        place.run(&[&all[..], arguments].concat()).ok().stdout
    };
    assert_eq!(generate(&["--temperature", "0"]), generate(&["--greedy"]));

    let texts = |printed: String| -> Vec<String> {
        let lines = printed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.map(|line| line["text"].as_str().expect("a text").to_owned()).collect()
    };
    let five = texts(generate(&["--num-samples", "5", "--temperature", "2"]));
    let different: std::collections::HashSet<_> = five.iter().collect();
    assert!(five.len() == 5 && different.len() > 1, "{five:?}");
    let both = texts(generate(&["--num-samples", "2", "--temperature", "2", "--prompt", "There"]));
    assert_eq!(both[..2], five[..2], "more samples and more prompts change no text");
    assert_eq!(generate(&["--temperature", "2"]), format!("{}\n", five[0]), "the first one is the only one");
}

#[test]
fn masks_are_filled_in_from_arguments_and_lines() {
    let place = trained("mlm");
    let fill = ["fill", "runs/a", "--device", "cpu"];
    let one = place.run(&[&fill[..], &["The old [MASK] walked down", "--top-k", "3"]].concat()).ok();
    let lines: Vec<&str> = one.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("The old ") && !lines[0].contains("[MASK]"), "{one:#?}");
    assert_eq!(lines[1].matches('%').count(), 3, "{one:#?}");

    let text = "The old [MASK] walked down\nHe sat <mask> on a [MASK].\n";
    let many = place.run_with_input(&[&fill[..], &["--top-k", "2"]].concat(), text).ok();
    let many: Vec<Value> = many.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(many[0]["filled"], lines[0], "alone and in a batch");
    assert_eq!(many[1]["text"], "He sat <mask> on a [MASK].");
    let masks = many[1]["masks"].as_array().expect("a list for each mask");
    assert_eq!(masks.iter().map(|mask| mask.as_array().map_or(0, Vec::len)).collect::<Vec<_>>(), [2, 2]);
    let probability = |i: usize| masks[0][i]["probability"].as_f64().expect("a number");
    assert!(probability(0) >= probability(1) && probability(0) < 1.0, "{masks:?}");

    let run = kiln::Run::open(place.path("runs/a")).expect("a run").on(kiln::device::DeviceChoice::Cpu);
    let found = run.fill(&["The old [MASK] walked down"], 3).expect("filled");
    assert_eq!((found[0].text.as_str(), found[0].masks[0].len()), (lines[0], 3), "from Rust as from the command line");

    let blank = place.run_with_input(&fill, "a [MASK]\n\nthe [MASK]\n").ok();
    assert_eq!(blank.stdout.lines().nth(1), Some("{\"filled\":\"\",\"masks\":[],\"text\":\"\"}"), "{blank:#?}");
    place.run_with_input(&fill, "a [MASK]\nnone\n").refused(3, &["line 2 has no mask", "[MASK]"]);
    place.run_with_input(&fill, format!("{}[MASK]", "old ".repeat(60))).refused(3, &["line 1 has", "at most 48"]);
    place.run(&[&fill[..], &["a [MASK]", "--top-k", "0"]].concat()).refused(2, &["--top-k 0"]);
    let scores = place.run(&["evaluate", "runs/a", "--device", "cpu"]).ok();
    assert!(scores.stderr.contains("kiln fill runs/a"), "{scores:#?}");
}

#[test]
fn a_trained_masked_model_fills_in_what_it_has_read() {
    let place = place();
    let settings = ["train.steps=300", "optim.lr=1e-2", "model.dropout=0", "data.text.packing=sentences"];
    let sets: Vec<&str> = settings.iter().flat_map(|set| ["--set", *set]).collect();
    train(&place, "mlm", &[&sets[..], &["--run", "runs/a"]].concat()).ok();
    let text = "The old [MASK] walked down to the river and looked at the [MASK].\nHe [MASK] down on a stone and waited for \
                the evening.\n";
    let filled = place.run_with_input(&["fill", "runs/a", "--device", "cpu"], text).ok();
    let filled: Vec<Value> = filled.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(filled[0]["filled"], "The old man walked down to the river and looked at the boats.");
    assert_eq!(filled[1]["filled"], "He sat down on a stone and waited for the evening.");
    assert!(filled[0]["masks"][1][0]["probability"].as_f64().is_some_and(|p| p > 0.5), "{filled:?}");
}

#[test]
fn text_runs_resume_bit_for_bit() {
    for task in ["lm", "mlm"] {
        let place = trained(task);
        copy_folder(&place.path("runs/a"), &place.path("runs/b"));
        fs::remove_dir_all(place.path("runs/b/checkpoints/step-00000012")).expect("there");
        fs::write(place.path("runs/b/checkpoints/last"), "step-00000006").expect("writable");
        let resume = ["train", "--device", "cpu", "--run", "runs/b", "--resume"];
        let workers = ["--config", "runs/b/config.toml", "--set", "loader.num_workers=3"];
        let ran = place.run(&[&resume[..], &workers].concat()).ok();
        assert!(ran.stderr.contains("resuming from runs/b/checkpoints/step-00000006"), "{ran:#?}");
        assert!(weights(&place, "runs/a") == weights(&place, "runs/b"), "{task}: some weight has other bits");
        let packing = ["--config", "runs/b/config.toml", "--set", "data.text.packing=stream", "--set", "optim.lr=0.5"];
        let refused = place.run(&[&resume[..], &packing].concat());
        refused.refused(2, &["optim.lr", "data: contents"]);
    }
}

#[test]
fn a_run_is_asked_for_what_its_task_can_do() {
    let (lm, mlm) = (trained("lm"), trained("mlm"));
    lm.run_with_input(&["translate", "runs/a", "--device", "cpu"], "hello\n")
        .refused(2, &["task = \"lm\"", "does not translate", "kiln generate"]);
    mlm.run_with_input(&["translate", "runs/a", "--device", "cpu"], "hello\n")
        .refused(2, &["task = \"mlm\"", "kiln fill"]);
    mlm.run(&["generate", "runs/a", "--device", "cpu", "--prompt", "x"])
        .refused(2, &["task = \"mlm\"", "does not continue text", "kiln fill"]);
    lm.run(&["fill", "runs/a", "--device", "cpu", "the [MASK]"])
        .refused(2, &["task = \"lm\"", "does not fill in hidden tokens", "kiln generate"]);
    lm.run(&["evaluate", "runs/a", "--device", "cpu", "--hypotheses", "x"])
        .refused(2, &["applies to translations only"]);

    let packing = ["--device", "cpu", "--packing", "sentences"];
    let masked = mlm.run(&[&["evaluate", "runs/a"], &packing[..]].concat()).ok();
    assert!(masked.stdout.contains("each document in a row of its own"), "{masked:#?}");

    let translation = Workplace::new();
    translation.train(&["--run", "runs/t", "--set", "train.steps=6"]).ok();
    translation.run(&[&["evaluate", "runs/t"], &packing[..]].concat()).refused(2, &["--packing", "reads pairs"]);
    translation
        .run(&["generate", "runs/t", "--device", "cpu", "--prompt", "x"])
        .refused(2, &["task = \"translation\"", "use kiln translate"]);
    // A translator can draw too.
    let sample = ["translate", "runs/t", "--device", "cpu", "--temperature", "1.2", "--seed", "3"];
    let first = translation.run_with_input(&sample, "12\n\n7\n").ok();
    assert_eq!(first.stdout.lines().count(), 3);
    assert_eq!(translation.run_with_input(&sample, "12\n\n7\n").ok().stdout, first.stdout);
}

#[test]
fn prompts_and_settings_that_cannot_work_are_named() {
    let place = trained("lm");
    let generate = |arguments: &[&str]| place.run(&[&["generate", "runs/a", "--device", "cpu"], arguments].concat());
    generate(&["--prompt", ""]).refused(2, &["--prompt 1 is empty"]);
    generate(&["--prompt", "The", "--prompt", ""]).refused(2, &["--prompt 2 is empty"]);
    generate(&["--prompt", &"river ".repeat(100)]).refused(3, &["prompt 1 has ", "48 positions"]);
    generate(&["--prompt", "x", "--stop-token", "<|none|>"]).refused(2, &["no token \"<|none|>\""]);
    generate(&["the prompt's text"])
        .refused(2, &["\"the prompt's text\" is not an option", r"--prompt 'the prompt'\''s text'"]);
    let silent = place.run_with_input(&["generate", "runs/a", "--device", "cpu"], "").ok();
    assert!(silent.stderr.contains("stdin is empty"), "{silent:#?}");
    generate(&["--prompt", "x", "--greedy", "--num-samples", "3"]).refused(2, &["--num-samples 3", "--sample"]);
    generate(&["--prompt", "x", "--num-samples", "0"]).refused(2, &["--num-samples"]);
    generate(&["--prompt", "x", "--temperature", "-1"]).refused(2, &["generate.temperature -1"]);
    generate(&["--prompt", "x", "--top-p", "1.5"]).refused(2, &["generate.top_p 1.5 is outside (0, 1]"]);
    generate(&["--prompt", "x", "--repetition-penalty", "0"]).refused(2, &["generate.repetition_penalty 0"]);
    generate(&["--prompt", "x", "--max-new-tokens", "0"]).refused(2, &["generate.max_new_tokens is 0"]);
    generate(&["--prompt", "x", "--greedy", "--top-k", "5"]).refused(2, &["--greedy", "--top-k"]);
    generate(&["--prompts", "none.txt"]).refused(2, &["none.txt: cannot read the prompts"]);

    place.write("prompts.txt", "one\n\nthree\n");
    let found = generate(&["--prompts", "prompts.txt", "--max-new-tokens", "2"]).ok();
    assert_eq!(found.stdout.lines().count(), 2, "{found:#?}");
    assert!(found.stderr.contains("empty lines of prompts.txt are left out: 1, the first is line 2"), "{found:#?}");
    place.write("latin1.txt", b"ok\ncaf\xe9\n");
    generate(&["--prompts", "latin1.txt"]).refused(3, &["line 2 of latin1.txt is not UTF-8"]);
    place.run(&["generate", "runs/none", "--prompt", "x"]).refused(2, &["runs/none: there is no run here"]);
}

#[test]
fn tasks_that_cannot_be_trained_are_refused_before_any_work() {
    let place = place();
    let train = |arguments: &[&str]| place.run(&[&["train", "--device", "cpu"], arguments].concat());
    train(&["--task", "ml"]).refused(2, &["--task ml: task = \"ml\" is not known", "did you mean lm?"]);
    train(&["--task", "lm", "--preset", "bert-small"])
        .refused(2, &["--task lm: task = \"lm\" needs model.architecture = \"decoder_only\"", "--preset gpt2-mini"]);
    let too_long = ["--set", "data.text.seq_len=4096", "--set", "model.max_positions=512"];
    train(&[&["--task", "lm", "--set", "data.train=train.txt"][..], &too_long].concat())
        .refused(2, &["data.text.seq_len = 4096 is more than the model's 512 positions"]);
    train(&["--task", "lm", "--set", "data.train=train.txt", "--packing", "tight"])
        .refused(2, &["data.text.packing = \"tight\" is not known", "documents, stream, sentences"]);
    let too_few = ["--set", "tokenizer.vocab_size=320", "--set", "model.target_vocab_size=100", "--run", "runs/v"];
    train(&[&["--task", "lm", "--set", "data.train=train.txt"][..], &too_few].concat())
        .refused(2, &["model.target_vocab_size is 100, but the tokenizer has 320 tokens"]);
    train(&["--task", "mlm", "--set", "data.train=train.txt", "--set", "train.masked_share=0"])
        .refused(2, &["train.masked_share 0 is outside (0, 1]"]);
    train(&["--task", "lm", "--set", "data.train=none.txt"]).refused(2, &["data.train", "none.txt"]);
    assert!(!place.path("runs/lm/config.toml").exists(), "no run was begun");
    place.write("bytes.txt", b"caf\xe9\n".repeat(20));
    train(&["--task", "lm", "--set", "data.train=bytes.txt", "--run", "runs/x"]).refused(3, &["bytes.txt", "UTF-8"]);
}

#[test]
fn text_is_prepared_and_its_tokenizer_trained_once() {
    let place = place();
    let set = ["--task", "lm", "--set", "tokenizer.vocab_size=320"];
    let tokenizer = place.run(&[&["tokenizer", "train.txt", "--out", "tok"], &set[..]].concat()).ok();
    assert!(tokenizer.stdout.contains("320 entries") && tokenizer.stdout.contains("0.000% unknown"), "{tokenizer:#?}");
    let prepare = [&["prepare", "train.txt", "--cache", "cache"], &set[..]].concat();
    let prepared = place.run(&prepare).ok();
    assert!(prepared.stderr.contains("cache/train.tokens: built"), "{prepared:#?}");
    assert_eq!(place.run(&prepare).ok().stderr, "", "nothing to do");
    let dry = [
        "train",
        "--dry-run",
        "--show-config",
        "--device",
        "cpu",
        "--set",
        "data.train=train.txt",
        "--set",
        "data.cache_dir=cache",
    ];
    let dry = place.run(&[&dry[..], &set].concat()).ok();
    for part in ["task = \"lm\"", "parameters: ", "batch 1: ", " for the largest batch, "] {
        assert!(dry.stdout.contains(part), "{part:?} is missing in {}", dry.stdout);
    }
}
