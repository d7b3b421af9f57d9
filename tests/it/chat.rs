//! Fine-tuning on conversations: the way of docs/fine-tune-an-llm.md at small size, and talking with the result.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::kiln::{Ran, Workplace, copy_folder};

const CONVERSATIONS: &str = include_str!("../fixtures/chat/conversations.jsonl");
const CHATML: &str = include_str!("../../data/fixtures/chat/chatml.jinja");

/// A model folder of `transformers`: the small Qwen 3 of the fixtures, with more positions and a chat template.
fn with_model(template: &str) -> Workplace {
    let place = Workplace::new();
    let dir = place.path("models/small");
    copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/qwen3"), &dir);
    let change = |file: &str, key: &str, value: Value| {
        let path = dir.join(file);
        let mut content: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
        content[key] = value;
        fs::write(path, content.to_string()).expect("writable");
    };
    change("config.json", "max_position_embeddings", json!(160));
    change("tokenizer_config.json", "chat_template", json!(template));
    place.write("chats.jsonl", CONVERSATIONS);
    place
}

/// `kiln train` of the imported model on the conversations.
fn tune(place: &Workplace, run: &str, steps: &str, more: &[&str]) -> Ran {
    let steps = format!("train.steps={steps}");
    let settings = [
        "data.train=chats.jsonl",
        "data.text.format=chat",
        "data.text.seq_len=128",
        "loader.batch_tokens=512",
        "loader.num_workers=1",
        "optim.lr=0.01",
        "optim.warmup_steps=1",
        "train.log_every=10",
        "train.validate_every=0",
        "train.save_every=0",
        &steps,
    ];
    let mut all = vec!["train", "--device", "cpu", "--from", "runs/small", "--run", run];
    all.extend(settings.iter().flat_map(|set| ["--set", *set]));
    all.extend(more);
    place.run(&all)
}

fn chat(place: &Workplace, run: &str, more: &[&str], input: &str) -> Ran {
    let arguments = ["chat", run, "--device", "cpu", "--greedy"];
    place.run_with_input(&[&arguments[..], more].concat(), input)
}

#[test]
fn a_model_learns_the_answers_of_conversations_and_gives_them() {
    let place = with_model(CHATML);
    place.run(&["import", "models/small"]).ok();
    let tuned = tune(&place, "runs/tuned", "150", &["--set", "data.valid=chats.jsonl"]).ok();
    assert!(tuned.stdout.contains(" chat runs/tuned"), "{tuned:#?}");
    assert!(tuned.stdout.contains("  What is the capital of Italy? -> Rome.\n"), "{tuned:#?}");
    let dry = tune(&place, "runs/dry", "150", &["--dry-run"]).ok();
    let shown = dry.stdout + &dry.stderr;
    let learned = shown.lines().find_map(|line| line.trim().strip_prefix("learned: ")).expect("an example");
    let is_answer = ["Madrid.", "Rome.", "Oslo.", "Seven.", "service."].iter().any(|answer| learned.contains(answer));
    assert!(is_answer && !learned.contains("capital") && !learned.contains("week"), "{learned}");
    assert!(!tuned.stderr.contains("bits/byte") && !tuned.stdout.contains("bits/byte"), "{tuned:#?}");

    // The answers of the training text, also to the second question of a conversation. /reset forgets the first.
    let input = "What is the capital of Spain?\nWhich river crosses it?\n/reset\nHow many days has a week?\n";
    assert_eq!(chat(&place, "runs/tuned", &[], input).ok().stdout, "Madrid.\nThe Manzanares.\nSeven.\n");
    let polite = "A small model, at your service.\n";
    assert_eq!(chat(&place, "runs/tuned", &["--system", "Be polite."], "Who are you?\n").ok().stdout, polite);
    let input = "/system Be polite.\nWho are you?\n/exit\nWhat is the capital of Italy?\n";
    assert_eq!(chat(&place, "runs/tuned", &[], input).ok().stdout, polite);

    let scores = place.run(&["evaluate", "runs/tuned", "--device", "cpu", "--data", "chats.jsonl"]).ok();
    assert!(scores.stdout.contains("perplexity") && !scores.stdout.contains("byte"), "{scores:#?}");

    // Other programs get the template, and the token that ends a turn besides the end token of the imported model.
    place.run(&["export", "runs/tuned", "out"]).ok();
    let of_tokenizer: Value = serde_json::from_str(&place.read("out/tokenizer_config.json")).expect("JSON");
    assert_eq!(of_tokenizer["chat_template"], CHATML);
    let generation: Value = serde_json::from_str(&place.read("out/generation_config.json")).expect("JSON");
    assert_eq!(generation["eos_token_id"], json!([0, 2]));
}

#[test]
fn adapters_are_trained_on_conversations_too() {
    let place = with_model(CHATML);
    place.run(&["import", "models/small"]).ok();
    tune(&place, "runs/adapters", "10", &["--set", "model.lora.rank=4"]).ok();
    let metrics = place.read("runs/adapters/metrics.jsonl");
    let step = metrics.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let step = step.into_iter().rfind(|line| line["kind"] == "step").expect("a step");
    let (learned, read) = (step["target_tokens"].as_u64().expect("a count"), step["tokens"].as_u64().expect("a count"));
    assert!(0 < learned && 2 * learned < read, "only answers have labels: {learned} of {read}");
    assert_eq!(chat(&place, "runs/adapters", &[], "Who are you?\n").ok().stdout.lines().count(), 1);
}

#[test]
fn a_run_on_conversations_resumes_bit_for_bit() {
    let place = with_model(CHATML);
    place.run(&["import", "models/small"]).ok();
    let save = ["--set", "train.save_every=6"];
    tune(&place, "runs/a", "12", &save).ok();
    copy_folder(&place.path("runs/a"), &place.path("runs/b"));
    fs::remove_dir_all(place.path("runs/b/checkpoints/step-00000012")).expect("saved");
    fs::write(place.path("runs/b/checkpoints/last"), "step-00000006\n").expect("writable");
    let resumed = place.run(&["train", "--device", "cpu", "--run", "runs/b", "--resume"]).ok();
    assert!(resumed.stderr.contains("resuming from runs/b/checkpoints/step-00000006"), "{resumed:#?}");
    let weights =
        |run: &str| fs::read(place.path(run).join("checkpoints/step-00000012/model.safetensors")).expect("saved");
    assert!(weights("runs/a") == weights("runs/b"), "some weight has other bits");

    let other =
        place.run(&["train", "--device", "cpu", "--run", "runs/b", "--resume", "--set", "data.text.learn=everything"]);
    assert_ne!(other.code, 0, "other labels are other data: {other:#?}");
}

#[test]
fn a_model_without_a_template_gets_chatml() {
    let place = with_model(CHATML);
    fs::write(place.path("models/small/tokenizer_config.json"), "{}").expect("writable");
    place.run(&["import", "models/small"]).ok();
    let note = "the conversation is written with ChatML";
    assert!(chat(&place, "runs/small", &[], "Hi\n").ok().stderr.contains(note));
    let tuned = tune(&place, "runs/tuned", "2", &[]).ok();
    assert!(tuned.stderr.contains("conversations are written with ChatML, because the model has no"), "{tuned:#?}");
    place.write("own.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
    let own = tune(&place, "runs/own", "2", &["--set", "data.text.chat_template=own.jinja"]).ok();
    assert!(!own.stderr.contains("ChatML"), "{own:#?}");
    assert!(!chat(&place, "runs/own", &[], "Hi\n").ok().stderr.contains("ChatML"));
}

#[test]
fn conversations_that_cannot_be_learned_are_named() {
    let place = with_model(include_str!("../../data/fixtures/chat/gemma.jinja"));
    place.run(&["import", "models/small"]).ok();
    let good = json!({ "prompt": "Hi", "completion": "Hello" }).to_string();
    let refused = |row: &str, more: &[&str], parts: &[&str]| {
        place.write("chats.jsonl", format!("{good}\n{row}\n"));
        tune(&place, "runs/x", "2", more).refused(3, parts);
    };
    refused(r#"{"text": "x"}"#, &[], &["chats.jsonl:2: no field \"messages\"", "the row has \"text\""]);
    refused(
        r#"{"messages": [{"role": "robot", "content": "x"}]}"#,
        &[],
        &["chats.jsonl:2: message 1: the role is \"robot\""],
    );
    refused(r#"{"prompt": "x", "completion": ""}"#, &[], &["chats.jsonl:2: message 2: the answer is empty"]);
    let long = json!({ "prompt": "Hi", "completion": "long ".repeat(100) }).to_string();
    refused(&long, &[], &["chats.jsonl:2: the conversation has ", "128 are allowed (data.text.seq_len)"]);
    let with_system = CONVERSATIONS.lines().nth(2).expect("a row");
    refused(with_system, &[], &["chats.jsonl:2: line 1 of the template: the template says: System role not supported"]);

    place.write("endless.jinja", "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}");
    refused(
        &good,
        &["--set", "data.text.chat_template=endless.jinja"],
        &["chats.jsonl:1: ", "does not come to an end"],
    );
    place.write("broken.jinja", "{% if %}");
    refused(
        &good,
        &["--set", "data.text.chat_template=broken.jinja"],
        &["has a chat template that cannot be used: line 1"],
    );
    refused(&good, &["--set", "data.text.format=jsonl"], &["read them as such with --set data.text.format=chat"]);

    tune(&place, "runs/x", "2", &["--set", "data.text.packing=stream"])
        .refused(2, &["data.text.packing = \"stream\" makes one text"]);
    let none = ["--set", "data.text.chat_template=none.jinja"];
    tune(&place, "runs/x", "2", &none).refused(2, &["data.text.chat_template names none.jinja"]);
    let masked = ["train", "--task", "mlm", "--set", "data.train=chats.jsonl", "--set", "data.text.format=chat"];
    place.run(&masked).refused(2, &["reads conversations, which task = \"mlm\" cannot learn"]);
}

#[test]
fn a_chat_names_what_it_cannot_do() {
    let place = with_model(include_str!("../../data/fixtures/chat/gemma.jinja"));
    place.run(&["import", "models/small"]).ok();
    chat(&place, "runs/small", &[], "/halp\n").refused(2, &["line 1 of stdin: unknown command /halp: /reset forgets"]);
    chat(&place, "runs/small", &["--system", "x"], "Hi\n")
        .refused(3, &["refuses the conversation", "System role not supported"]);
    chat(&place, "runs/small", &[], &"long ".repeat(100)).refused(3, &["160 positions"]);
    chat(&place, "runs/small", &["--max-new-tokens", "0"], "Hi\n").refused(2, &["generate.max_new_tokens is 0"]);
    chat(&place, "runs/none", &[], "Hi\n").refused(2, &["runs/none: there is no run here"]);
    let latin1 = place.run_with_input(&["chat", "runs/small", "--device", "cpu"], b"caf\xe9\n");
    latin1.refused(3, &["line 1 of stdin is not UTF-8"]);
    assert_eq!(chat(&place, "runs/small", &[], "").ok().stdout, "");
}
