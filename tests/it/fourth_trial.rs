//! Stops of somebody who comes from other trainers: each message names what is there, and what mends it.

use crate::kiln::Workplace;

/// Training that stops before the first step, of this task.
fn dry<'a>(task: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--device", "cpu", "--dry-run", "--task", task][..], more].concat()
}

/// Sets each key.
fn sets<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", *key]).collect()
}

fn documents(n: usize, name: &str) -> String {
    (0..n).map(|i| format!("{name}: a text of some words, number {i}\n\n")).collect()
}

#[test]
fn validation_text_in_the_training_folder_is_warned_about() {
    let place = Workplace::new();
    place.write("texts/a.txt", documents(60, "a"));
    place.write("texts/more/b.txt", documents(60, "b"));
    place.write("dev/c.txt", documents(60, "c"));
    let warned = |train: &str, valid: &str| {
        let keys = [format!("data.train={train}"), format!("data.valid={valid}")];
        let keys = sets(&[keys[0].as_str(), &keys[1], "tokenizer.vocab_size=300"]);
        let ran = place.run(&dry("lm", &keys)).ok();
        let text = ran.stdout + &ran.stderr;
        text.lines().find(|line| line.contains("in data.train and in data.valid")).unwrap_or_default().to_owned()
    };

    for (train, valid, named) in [
        ("texts", "texts/a.txt", "warning: texts/a.txt is in data.train"),
        ("texts", "texts/../texts/more/b.txt", "more/b.txt is in data.train"),
        ("texts/*.txt", "texts", "warning: texts/a.txt is in data.train"),
        ("texts", "texts/more", "warning: texts/more/b.txt is in data.train"),
        ("texts", "texts", "warning: texts is in data.train"),
        ("[\"texts/a.txt\", \"texts/more/b.txt\"]", "texts", "warning: texts/a.txt and another file are in data.train"),
    ] {
        let warning = warned(train, valid);
        assert!(warning.contains(named) && warning.ends_with("let data.split take some"), "{train} {valid}: {warning}");
    }
    assert_eq!(warned("texts", "dev"), "");
    assert_eq!(warned("texts/a.txt", "texts/more"), "");
}
