//! Classes of texts and tags of words: imported, trained, scored, predicted, exported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::kiln::{Ran, Workplace, copy_folder};
use crate::tidy::tree::{documents, read};

const MODELS: [&str; 8] = [
    "bert-texts",
    "bert-words",
    "roberta-texts",
    "roberta-words",
    "gpt2-texts",
    "llama-texts",
    "qwen2-texts",
    "gemma2-texts",
];

/// A model so small that a step takes milliseconds.
const SMALL: [&str; 11] = [
    "model.d_model=48",
    "model.n_heads=2",
    "model.d_ff=96",
    "model.n_encoder_layers=1",
    "model.max_positions=48",
    "model.dropout=0.1",
    "tokenizer.vocab_size=600",
    "loader.batch_tokens=1024",
    "optim.warmup_steps=5",
    "train.log_every=20",
    "train.save_every=0",
];

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/classes")
}

pub(crate) fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn expected() -> Value {
    json_of(&fs::read_to_string(fixtures().join("expected.json")).expect("committed"))
}

/// Imports a model into `runs/NAME`.
fn import(place: &Workplace, name: &str) {
    let folder = fixtures().join(name);
    place.run(&["import", folder.to_str().expect("plain names"), "--out", &format!("runs/{name}")]).ok();
}

/// The probabilities of all classes of each row, in the order of their ids.
fn probabilities(ran: &Ran, names: &[&str]) -> Vec<Vec<f64>> {
    let of_row = |line: &str| {
        let found = json_of(line);
        let p = |name: &&str| {
            let classes = found["classes"].as_array().expect("classes").iter();
            classes.clone().find(|class| class["label"] == **name).expect("a class")["probability"].as_f64()
        };
        names.iter().map(|name| p(name).expect("a number")).collect()
    };
    ran.stdout.lines().map(of_row).collect()
}

#[test]
fn imported_models_predict_what_transformers_predicts() {
    let (place, expected) = (Workplace::new(), expected());
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().expect("a list").iter().map(|p| p.as_f64().expect("a number")).collect()
    };
    for name in MODELS {
        import(&place, name);
        let (run, wanted) = (format!("runs/{name}"), &expected["predictions"][name]);
        let lines = |rows: &str, row: fn(&Value) -> Value| -> String {
            expected[rows].as_array().expect("rows").iter().map(|found| format!("{}\n", row(found))).collect()
        };
        if name.ends_with("texts") {
            let input = lines("texts", |row| json!({"text": row[0], "text_pair": row[1]}));
            let ran = place.run_with_input(&["classify", &run, "--jsonl", "--device", "cpu"], input).ok();
            for (i, found) in probabilities(&ran, &["no", "yes", "perhaps"]).iter().enumerate() {
                let wanted = numbers(&wanted[i][0]);
                let off = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-5, "{name}, row {i}: {found:?}, wanted {wanted:?}");
            }
            continue;
        }

        let input = lines("words", |row| json!({"tokens": row}));
        let ran = place.run_with_input(&["classify", &run, "--jsonl", "--device", "cpu"], input).ok();
        let names = ["O", "B-thing", "I-thing"];
        for (i, line) in ran.stdout.lines().enumerate() {
            let found = json_of(line);
            for (at, wanted) in wanted[i].as_array().expect("words").iter().map(numbers).enumerate() {
                let best = (0..3).max_by(|a, b| wanted[*a].total_cmp(&wanted[*b])).expect("three classes");
                assert_eq!(found["tags"][at], names[best], "{name}, row {i}, word {at}: {found}");
                let p = found["probabilities"][at].as_f64().expect("a number");
                assert!((p - wanted[best]).abs() < 1e-5, "{name}, row {i}, word {at}: {p}, wanted {wanted:?}");
            }
        }
        assert_eq!(ran.stdout.lines().count(), 2, "{ran:#?}");
    }
}

#[test]
fn exported_models_are_what_they_were() {
    let place = Workplace::new();
    let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for name in MODELS {
        import(&place, name);
        place.run(&["export", &format!("runs/{name}"), &format!("out/{name}")]).ok();
        let [ours, theirs] = [place.path("out").join(name), fixtures().join(name)];
        let [found, wanted] =
            [&ours, &theirs].map(|dir| json_of(&String::from_utf8(read(dir.join("config.json"))).expect("UTF-8")));
        for key in ["architectures", "id2label", "label2id", "model_type", "hidden_size", "pad_token_id"] {
            assert_eq!(found[key], wanted[key], "{name}: {key}");
        }

        let again = format!("runs/{name}-again");
        place.run(&["import", &format!("out/{name}"), "--out", &again]).ok();
        let weights = |run: &str| read(place.path(run).join("checkpoints/step-00000000/model.safetensors"));
        assert_eq!(weights(&again), weights(&format!("runs/{name}")), "{name}");
    }
    let Some(python) = std::env::var_os("KILN_TRANSFORMERS_PYTHON") else {
        eprintln!("skipped: KILN_TRANSFORMERS_PYTHON is not set; name a Python that has torch and transformers 5");
        return;
    };
    let mut command = Command::new(python);
    command.arg(fixtures().join("make.py")).arg("check");
    for name in MODELS {
        command.arg(place.path("out").join(name)).arg(name);
    }
    let output = command.output().expect("the interpreter starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    eprintln!("{stdout}");
}

/// Real text: lines of this repository's documents and of its code, in turn.
pub(crate) fn lines_of_the_repository(n: usize) -> Vec<(&'static str, String)> {
    let long = |text: String| -> Vec<String> {
        let lines =
            text.lines().map(str::trim).filter(|line| line.len() > 40 && !line.starts_with(['|', '/', '#', '`']));
        lines.map(|line| line.chars().take(100).collect()).collect()
    };
    let prose: Vec<String> = documents().iter().flat_map(|path| long(read(path))).collect();
    let sources =
        ["data/src/loader/mod.rs", "data/src/batch/bucket.rs", "src/cli/bench.rs", "train/src/train/trainer.rs"];
    let code: Vec<String> = sources.iter().flat_map(|path| long(read(path))).collect();
    assert!(prose.len() >= n && code.len() >= n, "{} and {} lines", prose.len(), code.len());
    // Of all documents, not only of the first.
    let step = prose.len() / n;
    let both = prose.into_iter().step_by(step).zip(code).take(n);
    both.flat_map(|(prose, code)| [("prose", prose), ("code", code)]).collect()
}

pub(crate) fn labelled(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(label, text)| format!("{}\n", json!({"text": text, "label": label}))).collect()
}

pub(crate) fn train(place: &Workplace, arguments: &[&str], settings: &[&str]) -> Ran {
    let mut all = vec!["train", "--device", "cpu"];
    all.extend(arguments);
    all.extend(settings.iter().flat_map(|set| ["--set", *set]));
    place.run(&all)
}

#[test]
fn an_encoder_learns_classes_of_real_text() {
    let place = Workplace::new();
    let rows = lines_of_the_repository(200);
    let (valid, training) = rows.split_at(60);
    place.write("train.jsonl", labelled(training));
    place.write("dev.jsonl", labelled(valid));
    place.write("train.txt", training.iter().map(|(_, text)| format!("{text}\n\n")).collect::<String>());
    let encoder = ["train.steps=20", "train.validate_every=0", "data.train=train.txt"];
    train(&place, &["--task", "mlm", "--run", "runs/encoder"], &[&SMALL[..], &encoder].concat()).ok();

    let settings = [
        "data.train=train.jsonl",
        "data.valid=dev.jsonl",
        "train.steps=120",
        "train.validate_every=40",
        "train.best_metric=accuracy",
        "optim.warmup_steps=5",
        "optim.lr=2e-3",
        "loader.batch_tokens=1024",
    ];
    let from = ["--from", "runs/encoder", "--task", "classification", "--run", "runs/lines"];
    let ran = train(&place, &from, &settings).ok();
    for part in [
        "2 classes: ",
        "--from: the head for masked tokens is left out",
        "--from: the pooler is new, 2,352 parameters",
        "--from: the head for classes is new, 98 parameters, initialized at random: classifier.output.weight",
        "| accuracy ",
    ] {
        assert!(ran.stderr.contains(part), "{part:?} is missing in {ran:#?}");
    }
    assert!(ran.stdout.contains("classify runs/lines"), "{ran:#?}");
    assert!(place.read("runs/lines/config.toml").contains("names = [\"code\", \"prose\"]"));
    assert!(place.read("runs/lines/metrics.jsonl").contains("\"macro_f1\""));

    let scores = place.run(&["evaluate", "runs/lines", "--json", "--device", "cpu"]).ok();
    let scores = json_of(&scores.stdout);
    let accuracy = scores["accuracy"].as_f64().expect("a number");
    assert!(accuracy > 0.85, "half of the lines are code: {scores}");
    assert_eq!((&scores["micro_f1"], &scores["classes"][1]["name"]), (&scores["accuracy"], &"prose".into()));

    let texts = ["let rows = batch.iter().map(|row| row.len()).collect();", "The loader reads the text of the run."];
    let found = place.run(&["classify", "runs/lines", texts[0], texts[1], "--device", "cpu"]).ok();
    let labels: Vec<Value> = found.stdout.lines().map(|line| json_of(line)["label"].clone()).collect();
    assert_eq!(labels, ["code", "prose"], "{found:#?}");

    // The run goes on with its head, and with other classes it gets a new one.
    let further = ["--from", "runs/lines", "--run", "runs/further"];
    let ran = train(&place, &further, &[&settings[..], &["train.steps=10"]].concat()).ok();
    assert!(!ran.stderr.contains("--from: "), "{ran:#?}");
    let resumed = train(&place, &["--run", "runs/further", "--resume"], &["train.steps=12"]).ok();
    assert!(resumed.stderr.contains("step 12/12"), "{resumed:#?}");
}

#[test]
fn words_are_tagged() {
    let place = Workplace::new();
    let settings = ["train.steps=60", "train.validate_every=30", "optim.lr=2e-3", "data.text.seq_len=32"];
    let ran = train(&place, &["--task", "tagging", "--run", "runs/tags"], &[&SMALL[..], &settings].concat()).ok();
    assert!(ran.stderr.contains("4 classes: ") && ran.stderr.contains("| accuracy "), "{ran:#?}");
    let scores = place.run(&["evaluate", "runs/tags", "--device", "cpu"]).ok();
    assert!(scores.stdout.contains("\nclass  precision") && !scores.stdout.contains("entities"), "{scores:#?}");
    let scores = json_of(&place.run(&["evaluate", "runs/tags", "--json", "--device", "cpu"]).ok().stdout);
    assert!(scores["accuracy"].as_f64().is_some_and(|accuracy| accuracy > 0.9), "{scores}");
    let found = place.run(&["classify", "runs/tags", "two hundred twelve", "--device", "cpu"]).ok();
    assert!(found.stdout.starts_with("two      digit  ") && found.stdout.contains("hundred  power  "), "{found:#?}");
}

#[test]
fn a_head_is_kept_where_the_classes_are_the_same() {
    let place = Workplace::new();
    import(&place, "bert-texts");
    let settings = ["data.train=rows.jsonl", "train.steps=1", "train.validate_every=0", "optim.lr=1e-12"];
    let train_on = |labels: &[&str], run: &str| {
        let rows = labels.iter().map(|label| format!("{{\"text\": \"a b\", \"label\": {label}}}\n"));
        place.write("rows.jsonl", rows.collect::<String>());
        train(&place, &["--from", "runs/bert-texts", "--task", "classification", "--run", run], &settings).ok().stderr
    };
    let probabilities_of = |run: &str| {
        let found = place.run(&["classify", run, "a b", "b a", "--device", "cpu"]).ok();
        probabilities(&found, &["no", "yes", "perhaps"]).concat()
    };

    let before = probabilities_of("runs/bert-texts");
    for (labels, run) in [(["\"perhaps\"", "\"no\"", "\"yes\""], "runs/named"), (["2", "0", "1"], "runs/by-id")] {
        let said = train_on(&labels, run);
        assert!(said.contains("the head for classes is kept") && !said.contains("is new"), "{said}");
        for (now, before) in probabilities_of(run).into_iter().zip(&before) {
            assert!((now - before).abs() < 1e-5, "{run}: {now} instead of {before}");
        }
    }

    // The names that are set decide the order.
    for (names, run) in [("\"no\", \"yes\", \"perhaps\"", "runs/set"), ("\"yes\", \"perhaps\", \"no\"", "runs/turned")]
    {
        place.write(
            "rows.jsonl",
            ["no", "yes"].map(|label| format!("{{\"text\": \"a b\", \"label\": \"{label}\"}}\n")).concat(),
        );
        let names = format!("data.labels.names=[{names}]");
        let with_names = [&settings[..], &[&names]].concat();
        let from = ["--from", "runs/bert-texts", "--task", "classification", "--run", run];
        let said = train(&place, &from, &with_names).ok().stderr;
        let is_turned = said.contains("--from: the head for classes is kept, in the order of data.labels.names");
        assert!(is_turned == (run == "runs/turned") && !said.contains("is new"), "{said}");
        for (now, before) in probabilities_of(run).into_iter().zip(&before) {
            assert!((now - before).abs() < 1e-5, "{run}: {now} instead of {before}");
        }
    }

    let said = train_on(&["\"no\"", "\"yes\"", "\"never\""], "runs/others");
    assert!(
        said.contains("the head for classes is left out") && said.contains("the head for classes is new"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_classified_is_refused() {
    let place = Workplace::new();
    place.write("bad.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\"}\n{\"text\": \"c\", \"label\": 2}\n");
    train(&place, &["--task", "classification"], &["data.train=bad.jsonl"])
        .refused(3, &["bad.jsonl:2: no field \"label\"", "--set data.labels.max_bad_rows=0.34"]);
    train(&place, &["--task", "classification"], &["model.class_head=tokens"])
        .refused(2, &["model.class_head", "needs \"pooled\" or \"dense\""]);

    import(&place, "bert-texts");
    place.run(&["fill", "runs/bert-texts", "a [MASK]"]).refused(2, &["use kiln classify"]);
    place.write("other.jsonl", "{\"text\": \"a\", \"label\": \"never\"}\n");
    place
        .run(&["evaluate", "runs/bert-texts", "--data", "other.jsonl", "--device", "cpu"])
        .refused(3, &["other.jsonl:1: label \"never\" is not one of the classes \"no\", \"yes\", \"perhaps\""]);
    place.run(&["classify", "runs/bert-texts", "--pair", "b"]).refused(2, &["--pair stands next to one TEXT"]);
    import(&place, "bert-words");
    place.run(&["classify", "runs/bert-words", "a", "--pair", "b"]).refused(2, &["this run tags words"]);
    let input = "{\"text\": \"a\"}\n{\"txt\": 1}\n";
    place
        .run_with_input(&["classify", "runs/bert-texts", "--jsonl", "--device", "cpu"], input)
        .refused(3, &["line 2 of stdin: no field \"text\": the row has \"txt\""]);
    train(&place, &["--from", "runs/bert-texts", "--task", "lm"], &[])
        .refused(2, &["--task classification or --task tagging"]);
}

#[test]
fn the_page_on_classes_works_as_written() {
    let place = Workplace::new();
    for model in ["bert", "gpt2"] {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf").join(model);
        copy_folder(&fixture, &place.path("models").join(model));
    }
    let rows = lines_of_the_repository(20);
    for (name, rows) in [("reviews", &rows[..20]), ("dev", &rows[20..30]), ("test", &rows[30..])] {
        place.write(&format!("{name}.jsonl"), labelled(rows));
    }
    let tags = json!({"tokens": ["Ada", "Lovelace", "slept"], "tags": ["B-person", "I-person", "O"]});
    for name in ["names", "names.dev", "words"] {
        place.write(&format!("{name}.jsonl"), format!("{tags}\n{tags}\n"));
    }
    place.write("reviews.txt", "One film.\nAnother film.\n");

    let page = read("docs/classify-text.md");
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("an end"));
    let mut n_commands = 0;
    for line in blocks.flat_map(str::lines) {
        let short = match line.split_whitespace().nth(1) {
            Some("train") => {
                " --device cpu --set train.steps=4 --set optim.warmup_steps=1 --set train.validate_every=2"
            }
            _ => "",
        };

        // Redirections come last.
        let (command, redirection) = line.split_at(line.find(" <").unwrap_or(line.len()));
        let script = format!("\"$KILN\" {}{short}{redirection}", command.strip_prefix("kiln ").expect("a command"));
        let output = Command::new("sh")
            .args(["-ec", &script])
            .current_dir(place.path(""))
            .env("KILN", env!("CARGO_BIN_EXE_kiln"))
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        n_commands += 1;
    }
    assert_eq!(n_commands, 18);
    assert_eq!(place.read("classes.jsonl").lines().count(), 2);
    assert!(place.read("tags.jsonl").contains("\"tokens\":[\"Ada\",\"Lovelace\",\"slept\"]"));
    assert!(place.path("models/reviews/config.json").exists());
    assert!(place.read("adapters/reviews/adapter_config.json").contains("\"score\""));
    assert!(place.path("models/reviews-lora/config.json").exists());
}
