//! Mixtures of corpora: the quick start of the page, what a run says of its sources, and what is refused.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

const PAGE: &str = include_str!("../../docs/mixtures.md");

/// The first block of code of the page that begins with this mark.
fn block(mark: &str) -> &'static str {
    blocks(mark).next().expect("a block")
}

/// The blocks of code of the page that begin with this mark.
fn blocks(mark: &str) -> impl Iterator<Item = &'static str> {
    let behind: Vec<_> = PAGE.split(&format!("```{mark}\n")).skip(1).collect();
    behind.into_iter().map(|behind| behind.split_once("```").expect("an end").0)
}

fn pairs(first: usize, n: usize) -> String {
    (first..first + n).fold(String::new(), |mut text, i| {
        let (a, b) = (i * 7919 % 97, i * 31 % 89);
        writeln!(text, "the number {a} and {b}\til numero {a} e {b}").expect("text");
        text
    })
}

/// The files and the configuration of the page.
fn quick_start() -> Workplace {
    let place = Workplace::new();
    for (file, first, n) in [
        ("news.tsv", 0, 60),
        ("news-dev.tsv", 500, 8),
        ("subtitles-1.tsv", 60, 25),
        ("subtitles-2.tsv", 85, 15),
        ("manuals.tsv", 100, 20),
        ("it-en.tsv", 300, 40),
        ("it-en-dev.tsv", 600, 6),
    ] {
        place.write(file, pairs(first, n));
    }
    place.write("mix.toml", block("toml"));
    place
}

fn lines(place: &Workplace, run: &str, kind: &str) -> Vec<Value> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["kind"] == kind).collect()
}

#[test]
fn the_quick_start_of_the_page_runs() {
    let place = quick_start();
    let small = ["tokenizer.vocab_size=400", "train.steps=10", "train.validate_every=5"];
    let sets: Vec<&str> = SMALL.iter().chain(&small).flat_map(|set| ["--set", *set]).collect();

    let mut n_commands = 0;
    for line in block("sh").lines() {
        n_commands += 1;
        let (input, line) = match line.split_once(" | ") {
            Some((echo, rest)) => (echo.trim_start_matches("echo ").trim_matches('\''), rest),
            None => ("", line),
        };
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let begins = words.contains(&"mix.toml");
        let resumes = words.contains(&"--resume");
        let longer = ["--set", "train.steps=14"];
        let device = if words[0] == "data" { &[][..] } else { &["--device", "cpu"] };
        let more = if begins {
            &sets[..]
        } else if resumes {
            &longer[..]
        } else {
            &[]
        };
        let ran = place.run_with_input(&[&words[..], device, more].concat(), input).ok();
        let said = format!("{}{}", ran.stdout, ran.stderr);
        if begins {
            let wanted = "mixture: news is 40.0 % of the pairs: 64 per epoch of its 60, 1.07 passes";
            assert!(said.contains(wanted), "{said}");
        }
        if begins && words[0] == "data" {
            assert!(said.contains("source subtitles\n40 rows kept"), "{said}");
        }
        if begins && words[0] == "train" {
            assert!(said.contains("trained on back ") && said.contains(" | news nll "), "{said}");
            let line = said.lines().find(|line| line.starts_with("step 2/")).expect("a line of metrics");
            assert!(line.contains(" | subtitles nll ") && line.contains(" | grad norm "), "{line}");
        }
    }

    assert_eq!(n_commands, 4);
    assert_sources_are_counted(&place);
    assert_sources_are_measured(&place);
}

/// Every step and every window counts its sources; the end counts the run before the resume, too.
#[track_caller]
fn assert_sources_are_counted(place: &Workplace) {
    let steps = lines(place, "runs/mix", "step");
    assert_eq!(steps.len(), 14);
    let sum = |lines: &[Value], name: &str, what: &str| -> u64 {
        lines.iter().filter_map(|line| line["sources"][name][what].as_u64()).sum()
    };
    let (windows, ends) = (lines(place, "runs/mix", "window"), lines(place, "runs/mix", "end"));
    for name in ["news", "subtitles", "manuals", "back"] {
        let total = &ends.last().expect("an end")["sources"][name];
        for what in ["samples", "tokens"] {
            assert!(sum(&steps, name, what) > 0);
            assert_eq!(sum(&steps, name, what), sum(&windows, name, what));
            assert_eq!(total[what].as_u64(), Some(sum(&steps, name, what)), "{name} {what}");
        }
    }
    assert_losses_are_by_source(&steps, &windows);
    let of_step =
        |step: &Value| ["news", "subtitles", "manuals", "back"].map(|name| step["sources"][name]["tokens"].as_u64());
    assert!(
        steps
            .iter()
            .all(|step| of_step(step).into_iter().flatten().sum::<u64>() == step["tokens"].as_u64().expect("tokens"))
    );
}

/// The losses of the sources are parts of the loss of each step and window: its mean, weighted by their labels.
#[track_caller]
fn assert_losses_are_by_source(steps: &[Value], windows: &[Value]) {
    assert!(!windows.is_empty());
    for line in steps.iter().chain(windows) {
        let sources = line["sources"].as_object().expect("sources");
        let (mut sum, mut labels) = (0.0, 0);
        for (name, source) in sources {
            let nll = source["nll"].as_f64().unwrap_or_else(|| panic!("{name} has no loss: {line}"));
            let of_source = source["labels"].as_u64().expect("labels");
            assert!(nll > 0.0 && of_source > 0 && of_source < source["tokens"].as_u64().expect("tokens"), "{line}");
            (sum, labels) = (sum + nll * of_source as f64, labels + of_source);
        }
        let all = line["nll"].as_f64().expect("a loss");
        assert!((sum / labels as f64 - all).abs() < 1e-4 * all, "{line}");
        if line["kind"] == "step" {
            assert_eq!(Some(labels), line["target_tokens"].as_u64(), "{line}");
        }
    }
}

/// Validation, report and later commands know the sources.
#[track_caller]
fn assert_sources_are_measured(place: &Workplace) {
    let validation = lines(place, "runs/mix", "validation").pop().expect("a validation");
    let nll = |name: &str| validation["sources"][name].as_f64().expect("a loss");
    let (low, high) = (nll("news").min(nll("back")), nll("news").max(nll("back")));
    assert!((low..=high).contains(&validation["nll"].as_f64().expect("a loss")), "{validation}");
    assert_eq!(validation["sources"].as_object().map(serde_json::Map::len), Some(2));

    let page = {
        place.run(&["report", "runs/mix", "--out", "report.html"]).ok();
        place.read("report.html")
    };
    assert!(page.contains("trained on news"), "the report has a row per source");
    assert!(page.contains("training nll of news, last (nats)") && page.contains("training nll of back"), "{page}");

    // It is scored on the text of its sources, with their tags; and other text takes the place of a mixture.
    let ran = place.run(&["evaluate", "runs/mix", "--device", "cpu"]).ok();
    assert!(ran.stdout.contains("14"), "{ran:#?}");
    let other = [
        "train",
        "--device",
        "cpu",
        "--from",
        "runs/mix",
        "--run",
        "runs/b",
        "--set",
        "data.train=news.tsv",
        "--dry-run",
    ];
    let ran = place.run(&other).ok();
    assert!(ran.stdout.contains("data: 60 pairs") && !ran.stdout.contains("mixture: "), "{ran:#?}");

    // The tags are tokens.
    let tokenizer: Value = serde_json::from_str(&place.read("runs/mix/cache/tokenizer/tokenizer.json")).expect("JSON");
    for tag in [">>ita<<", ">>eng<<"] {
        assert!(tokenizer["model"]["vocab"][tag].is_u64(), "{tag}");
    }
}

#[test]
fn a_mixture_that_changed_is_refused_on_resume() {
    let place = quick_start();
    let keys = ["tokenizer.vocab_size=400", "train.steps=8"];
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    place.train(&[&keys[..], &["--config", "mix.toml", "--run", "runs/a"]].concat()).ok();
    let config = place.read("runs/a/config.toml");
    for (from, to) in
        [("weight = 4.0", "weight = 5.0"), (">>eng<<", ">>deu<<"), ("\"manuals.tsv\"", "\"news-dev.tsv\"")]
    {
        assert!(config.contains(from), "{config}");
        place.write("runs/a/config.toml", config.replacen(from, to, 1));
        let resume = ["train", "--device", "cpu", "--run", "runs/a", "--resume", "--set", "train.steps=10"];
        place.run(&resume).refused(2, &["data: contents ", "    data.mix: ", "--allow data accepts it"]);
    }
    place.write("runs/a/config.toml", config.replace("name = \"manuals\"", "name = \"handbooks\""));
    place.run(&["train", "--device", "cpu", "--run", "runs/a", "--resume", "--set", "train.steps=10"]).ok();
}

#[test]
fn mistakes_in_a_mixture_are_named_with_the_source() {
    let place = quick_start();
    place.write("empty.tsv", "");
    let page = place.read("mix.toml");
    let refused = |from: &str, to: &str, wanted: &[&str]| {
        assert!(page.contains(from), "{from}");
        place.write("bad.toml", page.replacen(from, to, 1));
        let code = if to == "empty.tsv" { 3 } else { 2 };
        place.train(&["--config", "bad.toml", "--run", "runs/x"]).refused(code, wanted);
    };
    refused("weight = 4", "weight = 0", &["source \"news\" has weight = 0"]);
    refused("weight = 4\n", "", &["data.mix gives 3 of 4 sources a weight"]);
    refused("name = \"manuals\"", "name = \"news\"", &["data.mix has two sources with the name \"news\""]);
    refused("manuals.tsv", "empty.tsv", &["data.mix, source \"manuals\"", "empty.tsv has no rows"]);
    refused("manuals.tsv", "manual.tsv", &["data.mix names manual.tsv", "did you mean manuals.tsv?"]);
    refused("weight = 4", "wieght = 4", &["data.mix has a source with the unknown key wieght; did you mean weight?"]);
    let both = ["--config", "mix.toml", "--set", "data.train=news.tsv", "--run", "runs/x"];
    place.train(&both).refused(2, &["data.mix and data.train both name training text"]);
}

#[test]
fn texts_and_conversations_are_mixed_too() {
    let place = Workplace::new();
    let text = |word: &str, n: usize| (0..n).map(|i| format!("{word} {i} and some more words\n\n")).collect::<String>();
    place.write("web.txt", text("web", 120));
    place.write("books.txt", text("book", 30));
    place.write("dev.txt", text("web", 10));
    let chat = |n: usize| {
        (0..n).map(|i| format!("{{\"prompt\": \"What is {i}?\", \"completion\": \"It is {i}\"}}\n")).collect::<String>()
    };

    place.write("a.jsonl", chat(60));
    place.write("b.jsonl", chat(20));
    let mix = |files: [&str; 2], valid: &str| {
        let source = |name: &str, file: &str, more: &str| {
            format!("[[data.mix]]\nname = \"{name}\"\ntrain = \"{file}\"\n{more}\n")
        };
        let temperature = "[data]\nmix_temperature = 2.0\n";
        format!(
            "{temperature}{}{}",
            source("large", files[0], &format!("valid = \"{valid}\"")),
            source("small", files[1], "")
        )
    };
    place.write("text.toml", mix(["web.txt", "books.txt"], "dev.txt"));
    place.write("chat.toml", mix(["a.jsonl", "b.jsonl"], "b.jsonl"));

    let keys = ["tokenizer.vocab_size=400", "train.steps=6", "data.text.seq_len=32", "train.save_every=3"];
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    for (file, run, more) in
        [("text.toml", "runs/text", &[][..]), ("chat.toml", "runs/chat", &["--set", "data.text.format=chat"])]
    {
        let ran = place.train(&[&["--task", "lm", "--config", file, "--run", run], more, &keys[..]].concat()).ok();
        assert!(ran.stderr.contains("mixture: small is "), "{ran:#?}");
        let steps = lines(&place, run, "step");
        let small: u64 = steps.iter().filter_map(|step| step["sources"]["small"]["samples"].as_u64()).sum();
        assert!(steps.len() == 6 && small > 0, "{steps:?}");
        let validation = lines(&place, run, "validation").pop().expect("a validation");
        let (all, one) = (validation["nll"].as_f64(), validation["sources"]["large"].as_f64());
        assert!((all.expect("a loss") - one.expect("a loss")).abs() < 1e-5, "one source: {validation}");
    }
}

#[test]
fn shares_change_after_their_steps_and_a_resumed_run_goes_on_with_them() {
    let place = Workplace::new();
    place.write("web.tsv", pairs(0, 120));
    place.write("clean.tsv", pairs(300, 40));
    let page = blocks("toml").nth(1).expect("the second block");
    assert!(page.contains("10000") && page.contains("15000"), "{page}");
    place.write("mix.toml", page.replace("10000", "4").replace("15000", "8"));
    let begin = |run: &str, steps: &str, more: &[&str]| {
        let keys = [
            "--config",
            "mix.toml",
            "--run",
            run,
            "--set",
            "tokenizer.vocab_size=400",
            "--set",
            "optim.warmup_steps=1",
        ];
        let ran = place.train(&[&keys[..], &["--set", &format!("train.steps={steps}")], more].concat()).ok();
        assert!(ran.stderr.contains("mixture: after 4 steps web 75.0 %, clean 25.0 % of the pairs"), "{}", ran.stderr);
        assert!(ran.stderr.contains("mixture: after 8 steps web 0.0 %, clean 100.0 % of the pairs"), "{}", ran.stderr);
    };
    let accumulated = ["--set", "train.grad_accum_steps=2"];
    begin("runs/whole", "12", &accumulated);
    let steps = lines(&place, "runs/whole", "step");
    let samples = |step: &Value| ["web", "clean"].map(|name| step["sources"][name]["samples"].as_u64().unwrap_or(0));
    assert_eq!(steps.len(), 12);
    for (step, [web, clean]) in (1..).zip(steps.iter().map(samples)) {
        match step {
            1..=4 => assert!(web > 0 && clean == 0, "step {step}: {web} and {clean}"),
            5..=8 => assert!(web > clean, "step {step}: {web} and {clean}"),
            _ => assert!(web == 0 && clean > 0, "step {step}: {web} and {clean}"),
        }
    }
    assert!(steps[4..8].iter().any(|step| samples(step)[1] > 0), "{steps:?}");

    // Stopped between two changes, and resumed with other workers.
    begin("runs/parts", "6", &accumulated);
    let resume = ["train", "--device", "cpu", "--run", "runs/parts", "--resume", "--set", "train.steps=12"];
    place.run(&[&resume[..], &["--set", "loader.num_workers=3"]].concat()).ok();
    let found: Vec<_> = lines(&place, "runs/parts", "step").iter().map(samples).collect();
    assert_eq!(found, steps.iter().map(samples).collect::<Vec<_>>());

    let config = place.read("runs/parts/config.toml");
    assert!(config.contains("[8, 0.0]"), "{config}");
    place.write("runs/parts/config.toml", config.replace("[8, 0.0]", "[9, 0.0]"));
    let longer = ["train", "--device", "cpu", "--run", "runs/parts", "--resume", "--set", "train.steps=14"];
    place.run(&longer).refused(2, &["data: contents ", "    data.mix: "]);

    let bad = |from: &str, to: &str, wanted: &str| {
        place.write("bad.toml", page.replacen(from, to, 1));
        place.train(&["--config", "bad.toml", "--run", "runs/x"]).refused(2, &[wanted]);
    };
    bad("[0, 9.0]", "[5, 9.0]", "source \"web\" has a weight whose steps do not ascend from 0");
    bad("[[0, 0.0], [10000, 1.0]]", "\"much\"", "weight is neither a number nor a list");
}

/// The tables are written by `pyarrow`.
#[test]
fn parquet_and_arrow_are_sources_or_the_feature_is_named() {
    let place = Workplace::new();
    for file in ["rows.parquet", "rows.arrow"] {
        let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/testdata").join(file);
        fs::copy(table, place.path(file)).expect("readable");
    }
    place.write("rows.tsv", pairs(0, 150));
    let source = |name: &str, file: &str| format!("[[data.mix]]\nname = \"{name}\"\ntrain = \"{file}\"\nweight = 1\n");
    let sources = [("table", "rows.parquet"), ("arrow", "rows.arrow"), ("lines", "rows.tsv")];
    place.write("mix.toml", sources.map(|(name, file)| source(name, file)).concat());
    let ran = place.run(&["prepare", "--config", "mix.toml", "--cache", "cache", "--set", "tokenizer.vocab_size=320"]);
    if cfg!(feature = "arrow") {
        let said = ran.ok().stderr;
        assert_eq!(said.matches("6 of 6 rows kept").count(), 2, "{said}");
        assert!(said.contains("mixture: arrow is 33.3 % of the pairs: 54 per epoch of its 6, 9.00 passes"), "{said}");
    } else {
        ran.refused(3, &["rows.parquet", "--features arrow"]);
    }
}
