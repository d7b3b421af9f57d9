//! Rows of every layout, given to every task: what is accepted is read as what it is, and what is refused comes with flags that work.

use std::collections::BTreeMap;

use crate::kiln::Workplace;

/// A word that only answers have which a model must not learn.
const BAD: &str = "zzbad";

/// Name, a row made of a number, and what a model that reads the layout learns; nothing reads a layout without.
type Layout = (&'static str, fn(usize) -> String, Option<&'static str>);

const LAYOUTS: [Layout; 20] = [
    ("pairs", |i| format!(r#"{{"en": "source {i}", "it": "answer {i}"}}"#), Some("answer")),
    (
        "hf_pairs",
        |i| format!(r#"{{"id": {i}, "translation": {{"de": "source {i}", "ipa": "answer {i}"}}}}"#),
        Some("answer"),
    ),
    (
        "openai",
        |i| {
            let question = format!(r#"{{"role": "user", "content": "source {i}"}}"#);
            format!(r#"{{"messages": [{question}, {{"role": "assistant", "content": "answer {i}"}}]}}"#)
        },
        Some("answer"),
    ),
    (
        "sharegpt",
        |i| {
            let question = format!(r#"{{"from": "human", "value": "source {i}"}}"#);
            format!(r#"{{"conversations": [{question}, {{"from": "gpt", "value": "answer {i}"}}]}}"#)
        },
        Some("answer"),
    ),
    (
        "own_messages",
        |i| {
            let question = format!(r#"{{"role": "user", "content": "source {i}"}}"#);
            format!(r#"{{"turns": [{question}, {{"role": "assistant", "content": "answer {i}"}}]}}"#)
        },
        Some("answer"),
    ),
    (
        "alpaca",
        |i| format!(r#"{{"instruction": "source {i}", "input": "", "output": "answer {i} which is much longer"}}"#),
        Some("answer"),
    ),
    ("prompt_completion", |i| format!(r#"{{"prompt": "source {i}", "completion": "answer {i}"}}"#), Some("answer")),
    ("question_answer", |i| format!(r#"{{"question": "source {i}", "answer": "answer {i}"}}"#), Some("answer")),
    (
        "preferences",
        |i| {
            format!(
                r#"{{"prompt": "source {i}", "chosen": "answer {i}", "rejected": "{BAD} {i} and much longer than the other"}}"#
            )
        },
        Some("answer"),
    ),
    ("kto", |i| format!(r#"{{"prompt": "source {i}", "completion": "{BAD} {i}", "label": {}}}"#, i % 2 == 0), None),
    ("kto_numbers", |i| format!(r#"{{"prompt": "source {i}", "completion": "{BAD} {i}", "label": {}}}"#, i % 2), None),
    (
        "kto_lists",
        |i| {
            let [question, answer] = [("user", "source"), ("assistant", BAD)]
                .map(|(role, text)| format!(r#"[{{"role": "{role}", "content": "{text} {i}"}}]"#));
            format!(r#"{{"prompt": {question}, "completion": {answer}, "label": {}}}"#, i % 2)
        },
        None,
    ),
    (
        "kto_messages",
        |i| {
            let question = format!(r#"{{"role": "user", "content": "source {i}"}}"#);
            let answer = format!(r#"{{"role": "assistant", "content": "{BAD} {i}"}}"#);
            format!(r#"{{"messages": [{question}, {answer}], "label": {}}}"#, i % 2 == 0)
        },
        None,
    ),
    (
        "kto_tags",
        |i| format!(r#"{{"instruction": "source {i}", "output": "{BAD} {i}", "kto_tag": {}}}"#, i % 2 == 0),
        None,
    ),
    ("kto_scores", |i| format!(r#"{{"question": "source {i}", "answer": "{BAD} {i}", "score": {}}}"#, i % 5), None),
    ("labels", |i| format!(r#"{{"description": "source {i}", "section": "class{}"}}"#, i % 3), Some("source")),
    ("numbers", |i| format!(r#"{{"text": "source {i}", "label": {}}}"#, i % 2), Some("source")),
    ("tags", |i| format!(r#"{{"words": ["source", "{i}"], "ner_tags": [0, {}]}}"#, i % 3), Some("source")),
    ("texts", |i| format!(r#"{{"id": {i}, "body": "source {i}", "url": "http://a.org/{i}"}}"#), Some("source")),
    ("usual_texts", |i| format!(r#"{{"text": "source {i}"}}"#), Some("source")),
];

/// The options of a command that reads for a task.
const READERS: [&[&str]; 7] = [
    &["--task", "translation"],
    &["--task", "lm"],
    &["--task", "lm", "--set", "data.text.format=chat"],
    &["--task", "lm", "--set", "data.text.format=preferences"],
    &["--task", "mlm"],
    &["--task", "classification"],
    &["--task", "tagging"],
];

/// Returns the options `--task X` and `--set K=V` that a message prints.
fn flags_in(message: &str) -> Vec<String> {
    let words: Vec<&str> = message.split_whitespace().collect();
    let options = words.windows(2).filter(|pair| pair[0] == "--set" || pair[0] == "--task");
    options.flat_map(|pair| pair.iter().map(|word| word.trim_matches(['\'', '.', ';']).to_owned())).collect()
}

/// Puts `--task` of the hint in the place of the one before; `--set` adds to the ones before.
fn followed(reader: &[&str], flags: &[String]) -> Vec<String> {
    let has_task = flags.contains(&"--task".to_owned());
    let kept = reader.chunks(2).filter(|pair| pair[0] != "--task" || !has_task).flatten();
    // A format that a hint replaces is not given twice.
    let replaced = |pair: &&[String]| {
        !(pair[0] == "--set" && flags.iter().any(|flag| flag.split('=').next() == pair[1].split('=').next()))
    };
    let kept: Vec<String> = kept.map(ToString::to_string).collect();
    let kept: Vec<String> = kept.chunks(2).filter(replaced).flatten().cloned().collect();
    [kept, flags.to_vec()].concat()
}

#[test]
fn every_layout_is_recognized_by_every_task_and_following_the_hint_trains_the_right_thing() {
    let place = Workplace::new();
    let mut failures = BTreeMap::new();
    for (name, row, wanted) in LAYOUTS {
        let file = format!("{name}.jsonl");
        place.write(&file, (0..60).map(|i| row(i) + "\n").collect::<String>());
        let train = format!("data.train={file}");
        let run = |options: &[String]| {
            let options = options.iter().map(String::as_str);
            let small = ["train.steps=20", "model.d_model=32", "model.n_heads=2", "model.d_ff=64"];
            let small = small.iter().flat_map(|key| ["--set", *key]);
            let all: Vec<&str> = ["train", "--dry-run", "--device", "cpu", "--set", &train]
                .into_iter()
                .chain(small)
                .chain(options)
                .collect();
            place.run(&all)
        };

        for reader in READERS {
            let first = run(&reader.iter().map(ToString::to_string).collect::<Vec<_>>());
            let flags = flags_in(&first.stderr);
            let is_refused = first.code != 0;
            // Answers are compared with a model that exists, so that a dry run without one ends there.
            let needs_from = |text: &str| text.contains("name a run with --from");
            let last = if is_refused && !flags.is_empty() && !needs_from(&first.stderr) {
                run(&followed(reader, &flags))
            } else {
                first
            };

            let learned = last.stdout.split("first").last().unwrap_or_default().to_owned();
            let problem = match wanted {
                None if last.code == 0 => Some("rows that nothing reads are accepted"),
                None => None,
                Some(_) if name == "preferences" && needs_from(&last.stderr) => None,
                Some(_) if last.code != 0 => Some("the hint is missing or refused"),
                Some(word) if !learned.contains(word) => Some("another thing is learned"),
                Some(_) if learned.contains(BAD) => Some("bad answers are learned"),
                Some(_) => None,
            };

            if let Some(problem) = problem {
                failures.insert(
                    format!("{name} {reader:?}"),
                    format!("{problem}: {flags:?}\n{}\n{}", last.stderr, last.stdout),
                );
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
