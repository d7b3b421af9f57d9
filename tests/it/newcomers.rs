//! Mistakes of newcomers that a run survives, and that it should not survive in silence.

use crate::fifth_trial::with_set;
use crate::kiln::{Ran, Workplace};

/// A text that no other number has.
fn line(n: usize) -> String {
    format!("the line {} of {} says {}", n * 7919 % 1009, n, n * 31 % 97)
}

fn dry(place: &Workplace, task: &str, keys: &[&str]) -> String {
    let Ran { stdout, stderr, .. } =
        place.run(&with_set(&["train", "--dry-run", "--device", "cpu", "--task", task], keys)).ok();
    stdout + &stderr
}

#[test]
fn validation_rows_in_the_training_text_are_counted() {
    let place = Workplace::new();
    let rows = |range: std::ops::Range<usize>, row: &dyn Fn(usize) -> String| range.map(row).collect::<String>();
    let pair = |n: usize| format!("{}\t{} parole\n", line(n), n);
    let labelled = |n: usize| format!("{{\"text\": \"{}\", \"label\": \"c{}\"}}\n", line(n), n % 3);
    let tagged = |n: usize| format!("{{\"tokens\": [\"word{n}\", \"of\"], \"tags\": [\"B-x\", \"O\"]}}\n");
    let chat = |n: usize| format!("{{\"prompt\": \"{}?\", \"completion\": \"answer {n}\"}}\n", line(n));
    let text = |n: usize| format!("{}\n\n", line(n));
    for (task, name, row, more) in [
        ("translation", "a.tsv", &pair as &dyn Fn(usize) -> String, &[][..]),
        ("classification", "b.jsonl", &labelled, &[]),
        ("tagging", "c.jsonl", &tagged, &[]),
        ("lm", "d.jsonl", &chat, &["data.text.format=chat"]),
        ("lm", "e.txt", &text, &[]),
        ("mlm", "f.txt", &text, &[]),
    ] {
        place.write(name, rows(0..300, row));
        let set = |valid: &str| [format!("data.train={name}"), format!("data.valid={valid}")];
        let found = |valid: &str| {
            let set = set(valid);
            dry(&place, task, &[&[set[0].as_str(), set[1].as_str()], more].concat())
        };
        let [head, other, few] = ["head", "other", "few"].map(|part| format!("{part}-{name}"));
        place.write(&head, rows(50..90, row));
        place.write(&other, rows(1000..1040, row));
        place.write(&few, rows(290..330, row));
        let is_plain = name.ends_with(".txt");
        let (all, quarter) = match is_plain {
            true => ("100.0 % of the validation text also stands", "% of the validation text also stands"),
            false => ("40 of 40 validation rows also stand", "10 of 40 validation rows also stand"),
        };
        let shown = found(&head);
        assert!(shown.contains(all) && shown.contains("let data.split take some"), "{task}: {shown}");
        assert!(found(&few).contains(quarter), "{task}");
        assert!(!found(&other).contains("also stand"), "{task}");

        let set = set(&head);
        let keys = [&[set[0].as_str(), set[1].as_str()], more].concat();
        let stats = place.run(&with_set(&["data", "stats", "--task", task], &keys)).ok();
        assert!(stats.stdout.contains(all), "{task}: {stats:#?}");
    }
    // A split leaves no copy, and says nothing.
    assert!(!dry(&place, "translation", &["data.train=a.tsv", "data.split=0.2"]).contains("also stand"));
}

#[test]
fn sources_of_a_mixture_are_compared_with_each_other() {
    let place = Workplace::new();
    let rows = |range: std::ops::Range<usize>| range.map(|n| format!("{}\t{n} parole\n", line(n))).collect::<String>();
    place.write("a.tsv", rows(0..200));
    place.write("b.tsv", rows(200..400));
    place.write("dev.tsv", rows(250..280));
    let mix = "data.mix=[{name = \"a\", train = \"a.tsv\", valid = \"dev.tsv\"}, {name = \"b\", train = \"b.tsv\"}]";
    let shown = dry(&place, "translation", &[mix]);
    assert!(shown.contains("30 of 30 validation rows also stand in the training text"), "{shown}");
}

#[test]
fn a_run_that_ends_above_a_guess_or_its_first_loss_names_the_learning_rate() {
    let place = Workplace::new();
    place.write("text.txt", (0..300).map(|n| line(n) + "\n\n").collect::<String>());
    place.write("rows.jsonl", {
        let row = |n: usize| format!("{{\"text\": \"{} word{}\", \"label\": \"c{}\"}}\n", line(n), n % 3, n % 3);
        (0..300).map(row).collect::<String>()
    });
    let train = |task: &str, file: &str, run: &str, rate: &str| {
        let set = [&format!("data.train={file}"), rate, "train.steps=30", "data.split=0.1", "train.validate_every=30"];
        let ran = place.run(&with_set(&["train", "--run", run, "--device", "cpu", "--task", task], &set)).ok();
        ran.stdout + &ran.stderr
    };
    for (task, file) in [("lm", "text.txt"), ("classification", "rows.jsonl")] {
        let shown = train(task, file, &format!("runs/{task}"), "optim.lr=10");
        let last: Vec<&str> = shown.lines().filter(|line| line.contains("lower optim.lr (now 10)")).collect();
        assert!(last.len() == 1 && last[0].contains("of a guess"), "{task}: {shown}");
        let shown = train(task, file, &format!("runs/{task}-2"), "optim.lr=0.001");
        assert!(!shown.contains("lower optim.lr"), "{task}: {shown}");
    }
}

#[test]
fn texts_that_equal_their_translations_come_with_a_warning() {
    let place = Workplace::new();
    place.write("same.tsv", (0..60).map(|n| format!("{0}\t{0}\n", line(n))).collect::<String>());
    let shown = dry(&place, "translation", &["data.train=same.tsv"]);
    assert!(shown.contains("60 of the first 60 targets are the same as their sources"), "{shown}");
    place.write("some.tsv", (0..60).map(|n| format!("{}\t{}\n", line(n), line(n + n % 5))).collect::<String>());
    assert!(!dry(&place, "translation", &["data.train=some.tsv"]).contains("the same as their sources"));
}

#[test]
fn files_of_code_are_documents_of_their_own_if_the_user_says_so() {
    let place = Workplace::new();
    let code = |n: usize| (0..40).map(|row| format!("def f{n}_{row}():\n    return {row}\n\n")).collect::<String>();
    (0..3).for_each(|n| drop(place.write(&format!("code/f{n}.py"), code(n))));
    let shown = dry(&place, "lm", &["data.train=code"]);
    assert!(shown.contains("if each file is one: --set data.text.format=files"), "{shown}");
    assert!(!dry(&place, "lm", &["data.train=code", "data.text.format=files"]).contains("if each file is one"));
}

#[test]
fn a_path_that_is_not_a_run_cannot_be_resumed() {
    let place = Workplace::new();
    place.write("poem.txt", "a text\n");
    place.write("run.toml", "seed = 1\n");
    place.write("texts/a.txt", "a text\n");
    place.write("runs/a/config.toml", "seed = 1\n");
    for (path, wanted) in [
        ("poem.txt", "poem.txt is not a run: kiln train poem.txt learns a text"),
        ("run.toml", "run.toml is not a run: --config run.toml begins a run"),
        ("texts", "texts is not a run: --run RUN --resume continues a run"),
        ("runs/a", "the run is named apart: --run runs/a --resume"),
        ("runs/a/config.toml", "the run is named apart: --run runs/a --resume"),
        ("runs/none", "the run is named apart: --run runs/none --resume"),
    ] {
        let ran = place.run(&["train", "--resume", path]);
        assert!(ran.code == 2 && ran.stderr.contains(wanted), "{path}: {ran:#?}");
    }
    place.write("bad.toml", "[data]\ntrain = news.tsv\n");
    let wanted = "bad.toml:2: this is not TOML: a text stands in quotes: train = \"news.tsv\"";
    place.run(&["train", "--config", "bad.toml"]).refused(2, &[wanted]);
}

#[test]
fn texts_of_messages_that_the_template_does_not_read_are_named() {
    let place = Workplace::new();
    let answer =
        |n: usize| format!("{{\"role\": \"assistant\", \"content\": \"{n}\", \"reasoning_content\": \"so {n}\"}}");
    let row =
        |n: usize| format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}, {}]}}\n", line(n), answer(n));
    place.write("rows.jsonl", (0..40).map(row).collect::<String>());
    let keys = ["data.train=rows.jsonl", "data.text.format=chat"];
    let shown = dry(&place, "lm", &keys);
    assert!(shown.contains("fields that are left out: reasoning_content of messages (in 40 rows)"), "{shown}");

    let thinks = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    place.write("thinks.jinja", thinks);
    let shown = dry(&place, "lm", &[&keys[..], &["data.text.chat_template=thinks.jinja"]].concat());
    assert!(!shown.contains("reasoning_content of messages"), "{shown}");
}
