//! Which fields and columns hints name for classes, pairs and tags, and what they leave to the user.

use super::rows::{bird, discord, hash, quora, snli, words};
use super::{CHAT, CLASSES, LM, N, PAIRS, TAGS, command_in, dry, followed, owned, ran, with_flags};
use crate::kiln::Workplace;

#[test]
fn labelled_pairs_are_answered_with_their_class_by_every_task() {
    for (name, row, [text, pair, label], condition) in [
        ("a.jsonl", quora as fn(usize) -> String, ["question1", "question2", "is_duplicate"], "(.is_duplicate == 1)"),
        ("a.jsonl", snli, ["sentence1", "sentence2", "gold_label"], "(.gold_label == \"entailment\")"),
    ] {
        let place = Workplace::new();
        place.write(name, (0..N).map(|n| row(n) + "\n").collect::<String>());
        for options in [PAIRS, LM, CHAT, CLASSES] {
            let refused = dry(&place, name, &owned(options)).refused(3, &["pairs of texts with labels"]);

            let line = refused.stderr.lines().next().expect("a line").to_owned();
            for (key, field) in [("text_field", text), ("pair_field", pair), ("label_field", label)] {
                assert!(line.contains(&format!("--set data.labels.{key}={field}")), "{line}");
            }
            let classes = dry(&place, name, &with_flags(&owned(options), &line)).ok();
            assert!((classes.stdout + &classes.stderr).contains(" classes: "), "{options:?}");
            if options == CLASSES {
                continue;
            }

            assert!(refused.stderr.contains(condition), "{}", refused.stderr);
            // The pairs that fit can be learned.
            let (command, file) = command_in(&refused.stderr, name).expect("a command");
            if !ran(&place, &command) {
                return;
            }
            let flags = refused.stderr.lines().last().expect("a line").to_owned();
            let read = dry(&place, &file, &with_flags(&owned(options), &flags)).ok();
            assert!(read.stdout.contains("goodone") && !place.read(&file).contains("badone"), "{read:?}");
        }
    }
    // The names of topics and of files are not what compares two texts.

    let place = Workplace::new();
    let row = |n: usize| {
        format!(
            "{n}\t{}\tf{}\tnone\tnone\t{}\t{}\t{}.500\n",
            ["news", "forum"][n % 2],
            n % 3,
            words(n, "one"),
            words(n, "two"),
            n % 5
        )
    };
    place.write(
        "a.tsv",
        "index\tgenre\tfilename\tsource1\tsource2\tsentence1\tsentence2\tscore\n".to_owned()
            + &(0..N).map(row).collect::<String>(),
    );
    for options in [PAIRS, CLASSES] {
        let refused = dry(&place, "a.tsv", &owned(options)).refused(3, &[]);
        let line = refused.stderr.lines().find(|line| line.contains("text_field=")).expect("flags");
        assert!(line.contains("text_field=sentence1") && line.contains("pair_field=sentence2"), "{line}");
        assert!(line.contains("label_field=score"), "{line}");
    }
}

#[test]
fn columns_of_tables_are_judged_by_their_values() {
    let month = |n: usize| ["Mai", "Juni"][n % 2];
    let rows = |row: &dyn Fn(usize) -> String| (0..N).map(row).collect::<String>();
    let dates = |n: usize| {
        format!(
            "{}. {} 19{:02},19{:02}-0{}-{:02},{}\n",
            n % 28 + 1,
            month(n),
            n,
            n,
            5 + n % 2,
            n % 28 + 1,
            ["True", "False"][n / 5 % 2]
        )
    };
    let spelled =
        |n: usize| format!("{n},{},{},{},{}\n", words(n, "ask"), words(n, "goodone"), ["web", "app"][n % 2], n % 7);
    let tables = |n: usize| format!("{n},create table {n} of them,{},{}\n", words(n, "ask"), words(n, "goodone"));
    let mails = |n: usize| format!("{},{},{}\n", words(n, "about"), words(n, "ask"), words(n, "goodone"));
    for (text, flags) in [
        ("raw,iso,valid\n".to_owned() + &rows(&dates), "source_field=raw --set data.corpus.target_field=iso"),
        (
            "id,misspelled,correct,source,count\n".to_owned() + &rows(&spelled),
            "source_field=misspelled --set data.corpus.target_field=correct",
        ),
        ("subject,body,answer\n".to_owned() + &rows(&mails), "source_field=body --set data.corpus.target_field=answer"),
    ] {
        let place = Workplace::new();
        place.write("a.csv", text);
        let refused = dry(&place, "a.csv", &[]).refused(3, &[flags]);
        let read = dry(&place, "a.csv", &with_flags(&[], flags_line(&refused.stderr))).ok();
        assert!(
            read.stdout.contains(&format!("{N} of {N} rows kept"))
                || read.stderr.contains("rows kept")
                || read.code == 0,
            "{read:?}"
        );
    }

    let place = Workplace::new();
    place.write("a.csv", ",schema,question,sql\n".to_owned() + &rows(&tables));
    let Some((ran, file, _)) = followed(&place, "a.csv", PAIRS) else { return };
    ran.ok();
    assert!(
        place
            .read(&file)
            .lines()
            .all(|row| row.contains("{\"prompt\":\"create table") && row.contains("\"completion\":\"goodone"))
    );

    // Three texts without known names are the user's choice.
    place.write(
        "b.csv",
        "id,uno,due,tre\n".to_owned()
            + &rows(&|n| format!("{n},{},{},{}\n", words(n, "a"), words(n, "b"), words(n, "c"))),
    );
    let refused = dry(&place, "b.csv", &[]).refused(3, &["source_field=NAME"]);
    assert!(
        refused.stderr.contains("one of the columns \"uno\" (\"a river river river 0\"), \"due\" ("),
        "{refused:?}"
    );
}

/// Returns the line of a message with flags for pairs.
fn flags_line(message: &str) -> &str {
    message.lines().find(|line| line.contains("source_field=")).expect("flags")
}

#[test]
fn marks_for_several_classes_are_the_users_choice() {
    let place = Workplace::new();
    let marks = ["toxic", "obscene", "threat", "insult"];
    let mark = |n: usize, at: usize| usize::from(n.is_multiple_of(at + 2));
    let csv = |n: usize| {
        format!("{},{},{},{},{},{}\n", hash(n), words(n, "you"), mark(n, 0), mark(n, 1), mark(n, 2), mark(n, 3))
    };
    place.write("a.csv", format!("id,comment_text,{}\n", marks.join(",")) + &(0..N).map(csv).collect::<String>());
    let json = |n: usize| {
        let marks: Vec<String> =
            marks.iter().enumerate().map(|(at, name)| format!("\"{name}\": {}", mark(n, at))).collect();
        format!("{{\"id\": \"{}\", \"comment_text\": \"{}\", {}}}\n", hash(n), words(n, "you"), marks.join(", "))
    };
    place.write("a.jsonl", (0..N).map(json).collect::<String>());

    for file in ["a.csv", "a.jsonl"] {
        for options in [PAIRS, CLASSES] {
            let refused = dry(&place, file, &owned(options)).refused(
                3,
                &[
                    "--set data.labels.text_field=comment_text",
                    "label_field=NAME",
                    "\"toxic\" (\"1\"), \"obscene\" (\"1\"), \"threat\" (\"1\"), \"insult\" (\"1\")",
                    "several labels of one text are not supported",
                ],
            );
            assert!(!refused.stderr.contains("source_field"), "{refused:?}");
            let line = refused.stderr.lines().find(|line| line.contains("label_field=NAME")).expect("flags");
            let chosen = with_flags(&owned(options), &line.replace("=NAME", "=insult"));
            let read = dry(&place, file, &chosen).ok();
            assert!((read.stdout + &read.stderr).contains("2 classes: "), "{file}");
        }
    }
}

#[test]
fn answers_and_sparse_tags_are_no_part_of_a_classified_text() {
    let place = Workplace::new();
    let cells = |n: usize| {
        let tag = if n.is_multiple_of(3) { "c" } else { "" };
        [
            words(n, "about"),
            words(n, "body"),
            words(n, "answer"),
            ["Incident", "Request"][n % 2].into(),
            ["IT", "Sales", "HR"][n % 3].into(),
            ["low", "high"][n / 2 % 2].into(),
            "en".into(),
            tag.into(),
        ]
    };
    let names = ["subject", "body", "answer", "type", "queue", "priority", "language", "tag_2"];
    place.write("a.csv", names.join(",") + "\n" + &(0..N).map(|n| cells(n).join(",") + "\n").collect::<String>());
    let json = |n: usize| {
        let fields: Vec<String> =
            names.iter().zip(cells(n)).map(|(name, cell)| format!("\"{name}\": {cell:?}")).collect();
        format!("{{{}}}\n", fields.join(", "))
    };
    place.write("a.jsonl", (0..N).map(json).collect::<String>());

    for file in ["a.csv", "a.jsonl"] {
        let refused = dry(&place, file, &owned(CLASSES))
            .refused(3, &["text_field=subject", "pair_field=body", "label_field=NAME"]);
        let listed = "\"type\" (\"Incident\"), \"queue\" (\"IT\"), \"priority\" (\"low\")";
        assert!(refused.stderr.contains(listed), "{refused:?}");
        assert!(!refused.stderr.contains("=answer") && !refused.stderr.contains("\"tag_2\" ("), "{refused:?}");
        let line = refused.stderr.lines().find(|line| line.contains("label_field=NAME")).expect("flags");
        dry(&place, file, &with_flags(&owned(CLASSES), &line.replace("=NAME", "=queue"))).ok();
    }
}

#[test]
fn tags_in_one_text_are_tags_for_every_task() {
    let place = Workplace::new();
    let row = |n: usize| {
        format!(
            "{{\"text\": \"fly to {} on day {n}\", \"intent\": \"{}\", \"slots\": \"O O B-city O O B-day\"}}\n",
            ["Boston", "Denver"][n % 2],
            ["flight", "fare", "time"][n % 3]
        )
    };
    place.write("a.jsonl", (0..N).map(row).collect::<String>());
    let refused = dry(&place, "a.jsonl", &owned(CLASSES)).refused(3, &["label_field=intent"]);
    assert!(!refused.stderr.contains("slots=") && !refused.stderr.contains("pair_field"), "{refused:?}");
    let named = [TAGS, &["--set", "data.labels.words_field=text", "--set", "data.labels.tags_field=slots"]].concat();
    for options in [TAGS, &named] {
        let refused = dry(&place, "a.jsonl", &owned(options)).refused(3, &["words and tags in \"text\" and \"slots\""]);
        let (command, file) = command_in(&refused.stderr, "a.jsonl").expect("a command");
        if !ran(&place, &command) {
            return;
        }
        let read = dry(&place, &file, &owned(TAGS)).ok();
        assert!((read.stdout + &read.stderr).contains("3 classes: "), "O, B-city and B-day");
    }
}

#[test]
fn lists_of_words_become_texts_with_the_class_of_most_annotators() {
    let place = Workplace::new();
    let row = |n: usize| {
        format!(
            "{{\"post_id\": \"{n}_x\", \"annotators\": {{\"label\": [{0}, {0}, {1}], \"annotator_id\": [1, 2, 3]}}, \"post_tokens\": [\"you\", \"are\", \"w{n}\"]}}\n",
            n % 3,
            (n + 1) % 3
        )
    };
    place.write("a.jsonl", (0..N).map(row).collect::<String>());
    for options in [PAIRS, CLASSES] {
        let Some((ran, file, _)) = followed(&place, "a.jsonl", options) else { return };
        let shown = ran.ok();
        assert!((shown.stdout + &shown.stderr).contains("3 classes: "), "{options:?}");
        assert!(place.read(&file).starts_with("{\"text\":\"you are w0\",\"label\":0}\n"));
    }
}

#[test]
fn tables_of_lists_come_with_the_command_that_makes_rows() {
    let place = Workplace::new();
    let column = |start: &str| (0..N).map(|n| format!("{:?}", words(n, start))).collect::<Vec<_>>().join(", ");
    place.write("a.json", format!("{{\"src\": [{}], \"trg\": [{}]}}", column("ask"), column("goodone")));
    for options in [PAIRS, LM, CHAT, CLASSES, TAGS] {
        let refused = dry(&place, "a.json", &owned(options)).refused(3, &["whose columns are lists"]);
        let (command, file) = command_in(&refused.stderr, "a.json").expect("a command");
        if !ran(&place, &command) {
            return;
        }
        let rows = place.read(&file);
        assert!(rows.lines().count() == N && rows.lines().all(|row| row.starts_with("{\"src\":\"ask ")), "{rows}");
    }
    assert!(dry(&place, "rows.jsonl", &[]).ok().stdout.contains("goodone"));
}

#[test]
fn a_field_with_other_capitals_is_named() {
    let place = Workplace::new();
    place.write("a.jsonl", (0..N).map(|n| bird(n) + "\n").collect::<String>());
    let keys = ["--set", "data.corpus.source_field=question", "--set", "data.corpus.target_field=sql"];
    let refused = dry(&place, "a.jsonl", &owned(&keys)).refused(3, &["no row has the field \"sql\""]);
    assert!(refused.stderr.contains("--set data.corpus.target_field=SQL"), "{refused:?}");
}

#[test]
fn exports_in_one_line_are_lists_of_messages_and_never_pairs_of_ids() {
    let place = Workplace::new();
    let messages: Vec<String> = (0..N).map(discord).collect();
    let text = format!(
        r#"{{"guild": {{"id": "1"}}, "channel": {{"id": "2"}}, "messages": [{}], "messageCount": {N}}}"#,
        messages.join(", ")
    );
    place.write("a.json", text);
    for options in [PAIRS, LM, CHAT] {
        let refused =
            dry(&place, "a.json", &owned(options)).refused(3, &["whose field \"messages\" is a list of 80 objects"]);
        assert!(!refused.stderr.contains("guild"), "{refused:?}");
    }
    place.write("b.jsonl", (0..N).map(|n| discord(n) + "\n").collect::<String>());
    let Some((ran, ..)) = followed(&place, "b.jsonl", LM) else { return };
    assert!(ran.ok().stdout.contains("ask "), "the messages are texts");
}
