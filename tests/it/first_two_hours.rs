//! Stops of a reader's first two hours with data of their own.

use std::process::Command;

use crate::fifth_trial::with_set;
use crate::kiln::{Ran, Workplace};

fn dry(place: &Workplace, options: &[&str], keys: &[&str]) -> Ran {
    place.run(&with_set(&[&["train", "--dry-run", "--device", "cpu"], options].concat(), keys))
}

fn shown(ran: Ran) -> String {
    let ran = ran.ok();
    ran.stdout + &ran.stderr
}

/// A sentence that no other number has.
fn line(n: usize) -> String {
    format!("the line {} of {} says {}", n * 7919 % 1009, n, n * 31 % 97)
}

fn time(secs: usize) -> String {
    format!("00:{:02}:{:02},000", secs / 60, secs % 60)
}

fn subtitles(range: std::ops::Range<usize>, text: fn(usize) -> String) -> String {
    range.map(|n| format!("{n}\n{} --> {}\n{}\n\n", time(2 * n), time(2 * n + 1), text(n))).collect()
}

#[test]
fn subtitles_are_neither_lines_of_pairs_nor_plain_text() {
    let place = Workplace::new();
    place.write("a.en.srt", subtitles(1..60, line));
    place.write("a.it.srt", subtitles(3..62, |n| format!("la riga {n}")));
    let refused = dry(&place, &[], &["data.train=a.en.srt,a.it.srt"]).refused(3, &["they are subtitles"]);
    assert!(!refused.stderr.contains("max_bad_rows"), "{refused:?}");
    let (_, command) = refused.stderr.split_once("same time: ").expect("a command");
    let (command, _) = command.split_once("\nand train").expect("a command");
    let ran = Command::new("sh").args(["-c", command]).current_dir(place.path(".")).output().expect("a shell");
    if ran.status.code() == Some(127) {
        return;
    }
    let rows = place.read("rows.jsonl");
    assert!(
        rows.lines().count() == 57
            && rows.starts_with(&format!("{{\"src\": \"{}\", \"trg\": \"la riga 3\"}}", line(3))),
        "{rows}"
    );
    assert!(shown(dry(&place, &[], &["data.train=rows.jsonl"])).contains("57 of 57 rows kept"));

    for split in [&[][..], &["data.split=0.2"]] {
        let text = shown(dry(&place, &["--task", "lm"], &[&["data.train=a.en.srt"], split].concat()));
        assert!(text.contains("a.en.srt: subtitles, numbers and times included; to learn its text: sed"), "{text}");
    }
}

#[test]
fn pairs_with_many_equal_sides_are_said_to_have_them() {
    let place = Workplace::new();
    let row = |n: usize| if n.is_multiple_of(2) { format!("{n}\t{n}\n") } else { format!("{}\t{n} parole\n", line(n)) };
    place.write("a.tsv", (0..60).map(row).collect::<String>());
    let text = shown(dry(&place, &[], &["data.train=a.tsv"]));
    assert!(text.contains("30 of the first 60 targets are the same as their sources"), "{text}");
}

#[test]
fn sequences_and_games_come_with_the_command_that_makes_documents_of_them() {
    let place = Workplace::new();
    let protein = |n: usize| format!(">sp|P{n}| a protein\n{}\n{}\n", "MKTAYIAKQR".repeat(5), "QISFVKSHFS".repeat(3));
    place.write("a.fasta", (0..60).map(protein).collect::<String>());
    let game = |n: usize| format!("[Event \"{n}\"]\n[White \"a\"]\n[Black \"b\"]\n\n1. e4 e5 2. d4 d5 {n} 1-0\n\n");
    place.write("a.pgn", (0..60).map(game).collect::<String>());
    for (file, format, n_documents) in [("a.fasta", "lines", 60), ("a.pgn", "auto", 60)] {
        let text = shown(dry(&place, &["--task", "lm"], &[&format!("data.train={file}")]));
        assert!(!text.contains("if each line is one") && text.contains("> plain.txt"), "{text}");
        let (_, command) = text.split_once("whole ones: ").expect("a command");
        let (command, _) = command.split_once(", ").expect("a command");
        let command = command.split(", and").next().expect("a command").split(", whose").next().expect("a command");
        let command = command.to_owned();
        let ran = Command::new("sh").args(["-c", &command]).current_dir(place.path(".")).output().expect("a shell");
        assert!(ran.status.success(), "{command}: {ran:?}");
        let format = format!("data.text.format={format}");
        let text = shown(dry(&place, &["--task", "lm"], &["data.train=plain.txt", &format]));
        assert!(text.contains(&format!("{n_documents} of {n_documents} rows kept")), "{text}");
    }
}

#[test]
fn half_stars_are_classes_in_every_format() {
    let place = Workplace::new();
    let stars = |n: usize| ["0.5", "1", "1.5", "4.5", "5.0"][n % 5];
    place.write(
        "a.jsonl",
        (0..60).map(|n| format!("{{\"review\": \"{}\", \"stars\": {}}}\n", line(n), stars(n))).collect::<String>(),
    );
    place.write(
        "a.csv",
        "review,stars\n".to_owned() + &(0..60).map(|n| format!("{},{}\n", line(n), stars(n))).collect::<String>(),
    );
    for file in ["a.jsonl", "a.csv"] {
        let keys = [&format!("data.train={file}"), "data.labels.text_field=review", "data.labels.label_field=stars"];
        let text = shown(dry(&place, &["--task", "classification"], &keys));
        assert!(text.contains("5 classes: ") && text.contains("0.5 20.0%"), "{file}: {text}");
    }
    let label = |n: usize| ["4.5", "4,5", "½", "0.5", "5"][n % 5];
    place.write(
        "b.csv",
        "text,label\n".to_owned() + &(0..60).map(|n| format!("{},\"{}\"\n", line(n), label(n))).collect::<String>(),
    );
    let text = shown(dry(&place, &["--task", "classification"], &["data.train=b.csv"]));
    assert!(text.contains("warning: classes spell the same number:") && text.contains("\"½\""), "{text}");
}

#[test]
fn merged_cells_are_filled_from_above() {
    let place = Workplace::new();
    let row = |n: usize| format!("{};parole {n}\n", if n.is_multiple_of(2) { line(n) } else { String::new() });
    place.write("a.csv", "English;Italian\n".to_owned() + &(0..60).map(row).collect::<String>());
    let keys = ["data.train=a.csv", "data.corpus.source_field=English", "data.corpus.target_field=Italian"];
    let refused =
        dry(&place, &[], &keys).refused(3, &["blank cells of column 0 (\"English\") stand below filled ones"]);
    let (_, command) = refused.stderr.split_once("the one above it: ").expect("a command");
    let (command, _) = command.split_once("> filled.csv").expect("a command");
    let ran = Command::new("sh")
        .args(["-c", &format!("{command}> filled.csv")])
        .current_dir(place.path("."))
        .output()
        .expect("a shell");
    if ran.status.code() == Some(127) {
        return;
    }
    let text = shown(dry(&place, &[], &[&["data.train=filled.csv"], &keys[1..]].concat()));
    assert!(text.contains("60 of 60 rows kept"), "{text}");

    let row = |n: usize| format!("{},{}\n", line(n), if n.is_multiple_of(4) { ["x", "y"][n / 4 % 2] } else { "" });
    place.write("b.csv", "text,label\n".to_owned() + &(0..60).map(row).collect::<String>());
    dry(&place, &["--task", "classification"], &["data.train=b.csv"])
        .refused(3, &["blank cells of column 1 (\"label\")"]);
}

#[test]
fn preferences_that_their_scores_contradict_are_counted() {
    let place = Workplace::new();
    let row = |n: usize| {
        format!(
            "{{\"prompt\": \"{}\", \"chosen\": \"yes {n}\", \"rejected\": \"no {n}\", \"score_chosen\": {}, \"score_rejected\": 2}}\n",
            line(n),
            n % 4
        )
    };
    place.write("a.jsonl", (0..40).map(row).collect::<String>());
    place.write("text.txt", (0..40).map(|n| line(n) + "\n\n").collect::<String>());
    let keys = ["data.train=text.txt", "train.steps=2", "optim.warmup_steps=1"];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--task", "lm"], &keys)).ok();
    let text = shown(dry(
        &place,
        &["--from", "runs/a", "--task", "lm"],
        &["data.train=a.jsonl", "data.text.format=preferences"],
    ));
    let counts =
        "by score_chosen and score_rejected the rejected answer is better in 20 of 40 rows, and both are alike in 10";
    assert!(text.contains(counts) && text.contains("jq -c 'select(.score_chosen > .score_rejected)'"), "{text}");
}

#[test]
fn keys_and_splits_that_mean_another_thing_are_answered_with_it() {
    let place = Workplace::new();
    place.write("a.tsv", (0..100).map(|n| format!("{}\t{n} parole\n", line(n))).collect::<String>());
    for (key, meant) in [
        ("train.batch_tokens=500", "loader.batch_tokens"),
        ("optim.batch_tokens=500", "loader.batch_tokens"),
        ("data.corpus.source=a", "data.corpus.source_field"),
        ("data.corpus.target=a", "data.corpus.target_field"),
        ("data.labels.pair=a", "data.labels.pair_field"),
        ("data.labels.words=a", "data.labels.words_field"),
    ] {
        let ran = dry(&place, &[], &["data.train=a.tsv", key]);
        assert!(ran.code != 0 && ran.stderr.contains(&format!("did you mean {meant}?")), "{key}: {ran:?}");
    }
    for (split, other) in [("0.9", "0.1"), ("0.75", "0.25"), ("70", "0.1")] {
        let text = shown(dry(&place, &[], &["data.train=a.tsv", &format!("data.split={split}")]));
        assert!(
            text.contains("rows for training, and") && text.contains(&format!("--set data.split={other}")),
            "{text}"
        );
    }
    assert!(!shown(dry(&place, &[], &["data.train=a.tsv", "data.split=0.3"])).contains("rows for training, and"));
}

#[test]
fn the_printed_chat_has_the_instructions_of_the_rows() {
    let place = Workplace::new();
    for name in ["system", "systemPrompt", "System Message"] {
        let row =
            |n: usize| format!("{{\"{name}\": \"Be kind.\", \"prompt\": \"ask {n}\", \"completion\": \"say {n}\"}}\n");
        place.write("a.jsonl", (0..40).map(row).collect::<String>());
        let keys = ["data.train=a.jsonl", "data.text.format=chat", "train.steps=2", "optim.warmup_steps=1"];
        let run = format!("runs/{}", name.replace(' ', ""));
        let ran = place.run(&with_set(&["train", "--run", &run, "--device", "cpu", "--task", "lm"], &keys)).ok();
        assert!(ran.stdout.contains(&format!("chat {run} --system 'Be kind.'")), "{name}: {}", ran.stdout);
    }
}

#[test]
fn a_column_of_numbers_does_not_hide_the_two_columns_of_texts() {
    let place = Workplace::new();
    let row = |n: usize| format!("{}\t0.{n}\t{}\t{}\n", n / 10, line(n).replace('e', "c"), line(n));
    for (names, flags) in [
        ("page\tconf\tocr\ttruth", "source_field=ocr --set data.corpus.target_field=truth"),
        ("page\tconf\tuno\tdue", "source_field=uno --set data.corpus.target_field=due"),
    ] {
        place.write("a.tsv", format!("{names}\n") + &(0..60).map(row).collect::<String>());
        dry(&place, &[], &["data.train=a.tsv"]).refused(3, &[flags]);
    }
}
