//! Smaller stops of newcomers: each message names what is there, and what mends it.

use std::fmt::Write;
use std::fs;

use crate::kiln::Workplace;

/// Pairs of numbers and words, `n` of them.
fn pairs(n: usize) -> String {
    (0..n).fold(String::new(), |mut text, i| {
        writeln!(text, "number {i} is here\til numero {i}").expect("text");
        text
    })
}

fn conversation(i: usize) -> String {
    let message = |role: &str, text: &str| format!(r#"{{"role": "{role}", "content": "{text} {i}"}}"#);
    format!("{{\"messages\": [{}, {}]}}\n", message("user", "source"), message("assistant", "answer"))
}

/// Sets each key.
fn sets<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", *key]).collect()
}

#[test]
fn a_configuration_file_says_how_a_run_is_tuned() {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(80));
    place.write("more.tsv", pairs(60));
    place
        .train(
            &[&["--run", "runs/a", "pairs.tsv"][..], &sets(&["train.steps=12", "tokenizer.vocab_size=200"])].concat(),
        )
        .ok();

    place.write(
        "tuned.toml",
        "[data]\ntrain = \"more.tsv\"\nsplit = 10\n[train]\nsteps = 4\n[optim]\nlr = 0.25\nwarmup_steps = 1\n",
    );
    let tune = ["train", "--device", "cpu", "--from", "runs/a", "--config", "tuned.toml"];
    place.run(&tune).ok();
    let config = place.read("runs/tuned/config.toml");
    for line in ["lr = 0.25", "steps = 4", "train = [\"more.tsv\"]", "d_model = 32"] {
        assert!(config.contains(line), "{line}: {config}");
    }

    // The file that shows what a run used starts one like it.
    let printed = place.run(&["config", "--run", "runs/tuned"]).ok().stdout;
    place.write("again.toml", &printed);
    let again = ["train", "--device", "cpu", "--from", "runs/a", "--config", "again.toml"];
    place.run(&again).ok();
    assert_eq!(place.read("runs/again/config.toml"), config);
    place.run(&["memory", "--device", "cpu", "--from", "runs/a", "--config", "tuned.toml"]).ok();

    place.write("preset.toml", "preset = \"tiny\"\n");
    place
        .run(&["train", "--from", "runs/a", "--config", "preset.toml"])
        .refused(2, &["preset.toml:1", "has no place next to --from"]);
    place.run(&[&tune[..], &["--preset", "tiny"]].concat()).refused(2, &["--preset has no place", "--config"]);
}

#[test]
fn a_file_names_the_task_of_a_run_that_starts_from_another() {
    let place = Workplace::new();
    let text = (0..60).map(|i| format!("a text of some words {i}\n\n")).collect::<String>();
    place.write("text.txt", text);
    let keys = sets(&["train.steps=12", "tokenizer.vocab_size=300", "data.text.seq_len=32", "model.max_positions=32"]);
    place.train(&[&["--task", "mlm", "--run", "runs/a", "text.txt"][..], &keys].concat()).ok();
    let rows: String = (0..60).map(|i| format!("text {i},{}\n", ["good", "bad"][i % 2])).collect();
    place.write("rows.csv", format!("text,label\n{rows}"));
    place.write("classes.toml", "task = \"classification\"\n[data]\ntrain = \"rows.csv\"\n[train]\nsteps = 2\n");
    let ran = place.run(&["train", "--device", "cpu", "--from", "runs/a", "--config", "classes.toml"]).ok();
    assert!(ran.stderr.contains("2 classes") && place.path("runs/classes/config.toml").is_file(), "{ran:#?}");
}

#[test]
fn rows_of_a_split_are_named_in_the_files_that_they_come_from() {
    let place = Workplace::new();
    place.write("pairs.tsv", format!("{}same\tsame\n", pairs(100)));
    let dry = ["train", "--device", "cpu", "--dry-run", "--run", "run"];
    let keys = sets(&["data.split=0.1", "data.filter.drop_identical=true", "tokenizer.vocab_size=300"]);
    let ran = place.run(&[&dry[..], &["pairs.tsv"], &keys].concat()).ok();
    assert!(
        ran.stdout.contains("drop_identical drops 1 of") && ran.stdout.contains("first pairs.tsv:101: "),
        "{ran:#?}"
    );

    let rows: String = (0..200).map(conversation).collect();
    place.write("a.jsonl", &rows);
    place.write("b.jsonl", format!("{}{{\"messages\": []}}\n", conversation(200)));
    let chat = [&dry[..], &["--task", "lm", "a.jsonl", "b.jsonl"]].concat();
    let keys = ["data.text.format=chat", "tokenizer.vocab_size=300", "data.text.seq_len=128", "data.split=0.1"];
    let ran = place.run(&[&chat[..], &sets(&keys)].concat()).ok();
    assert!(ran.stderr.contains("\n  b.jsonl:2: field \"messages\" has no messages"), "{ran:#?}");
    let strict = [&keys[..], &["data.text.max_bad_rows=0"]].concat();
    let ran = place.run(&[&chat[..], &sets(&strict)].concat()).refused(3, &["error: a.jsonl, b.jsonl: ", "b.jsonl:2"]);
    assert!(!ran.stderr.contains("split.train.jsonl"), "{ran:#?}");
}

#[test]
fn an_averaged_run_is_named_and_is_not_resumed() {
    let place = Workplace::new();
    let keys = sets(&["train.steps=12", "train.save_every=6"]);
    place.train(&[&["--run", "runs/a"][..], &keys].concat()).ok();
    assert_eq!(place.run(&["average", "runs/a", "--last", "2"]).ok().stdout, "runs/a-average\n");
    place
        .run(&["average", "runs/a", "--last", "9", "--out", "runs/b"])
        .refused(2, &["has 2 checkpoints to choose from", "train.save_every", "train.keep_last (now 3)"]);
    place
        .run(&["train", "--device", "cpu", "--run", "runs/a-average", "--resume"])
        .refused(3, &["cannot be resumed", "kiln train --from runs/a-average"]);
    assert!(!place.path("runs/a-average/cache").exists(), "nothing was built for a run that does not continue");
}

#[test]
fn lines_that_are_not_utf8_are_named_together() {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(80));
    place
        .train(
            &[&["--run", "runs/a", "pairs.tsv"][..], &sets(&["train.steps=12", "tokenizer.vocab_size=200"])].concat(),
        )
        .ok();
    place.run_with_input(&["translate", "runs/a", "--device", "cpu"], b"one\ncaf\xe9\ntwo\n\xff\n").refused(
        3,
        &[
            "line 2 of stdin is not UTF-8 (at its byte 4); further lines that are not: 4;",
            "iconv -f cp1252",
            "iconv -c",
        ],
    );
}

#[test]
fn scores_of_pairs_without_the_tags_of_a_mixture_are_explained() {
    let place = Workplace::new();
    place.write("a.tsv", pairs(60));
    let mix = "data.mix=[{ name = \"a\", train = \"a.tsv\", tag = \"<a>\" }, { name = \"b\", train = \"a.tsv\", tag = \"<b>\" }]";
    place.train(&[&["--run", "runs/a"][..], &sets(&[mix, "train.steps=12", "tokenizer.vocab_size=200"])].concat()).ok();
    let evaluate = ["evaluate", "runs/a", "--device", "cpu", "--data"];
    let ran = place.run(&[&evaluate[..], &["a.tsv"]].concat()).ok();
    assert!(
        ran.stderr.contains("no source text begins with a tag of the run's mixture (\"<a>\", \"<b>\")"),
        "{ran:#?}"
    );
    place.write("tagged.tsv", pairs(20).replace("number", "<a> number"));
    let ran = place.run(&[&evaluate[..], &["tagged.tsv"]].concat()).ok();
    assert!(!ran.stderr.contains("begins with a tag"), "{ran:#?}");
}

#[test]
fn data_that_cannot_be_used_is_answered_with_what_to_do() {
    let place = Workplace::new();
    let lines: String = (0..4000_u64).map(|i| format!("a line of text {}\n\n", i * i * 7919 % 10_007)).collect();
    place.write("text.txt", &lines);
    let whole = std::process::Command::new("gzip").arg("-c").arg(place.path("text.txt")).output().expect("gzip").stdout;
    place.write("cut.txt.gz", &whole[..whole.len() / 2]);
    let dry = ["train", "--device", "cpu", "--dry-run", "--task", "lm"];
    place.run(&[&dry[..], &["cut.txt.gz"]].concat()).refused(3, &["cut.txt.gz: ", "cut short or damaged"]);

    fs::create_dir_all(place.path("model")).expect("writable");
    place.write("model/tokenizer.json", "{}");
    let keys = sets(&["tokenizer.path=model"]);
    place.run(&[&dry[..], &["text.txt"], &keys].concat()).refused(3, &["it is a folder", "model/tokenizer.json: name"]);

    let rows: String = (0..40).map(conversation).collect();
    place.write("chat.jsonl", rows);
    let keys = sets(&["data.text.format=chat", "data.text.seq_len=4", "tokenizer.vocab_size=300"]);
    place.run(&[&dry[..], &["chat.jsonl"], &keys].concat()).refused(3, &["40 over-long", "raise data.text.seq_len"]);

    place.write("a.jsonl", "{\"sentence\": \"a b\", \"label\": \"x\"}\n{\"sentence\": \"c d\", \"label\": \"y\"}\n");
    place.write("b.jsonl", "{\"text\": \"a b\", \"label\": \"x\"}\n{\"text\": \"c d\", \"label\": \"y\"}\n");
    let classes = ["train", "--device", "cpu", "--dry-run", "--task", "classification", "a.jsonl"];
    let keys = sets(&["data.labels.text_field=sentence", "data.valid=b.jsonl"]);
    place
        .run(&[&classes[..], &keys].concat())
        .refused(3, &["data.valid: b.jsonl", "the same keys read data.train", "give the rows of both the same form"]);
}
