//! Filters of rows: the quick start of the page, where a run says what was dropped, and what is refused.

use std::fmt::Write;

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

const PAGE: &str = include_str!("../../docs/filters.md");

/// The first block of code of the page that begins with this mark.
fn block(mark: &str) -> &'static str {
    let behind = PAGE.split_once(&format!("```{mark}\n")).expect("a block").1;
    behind.split_once("```").expect("an end").0
}

fn pair(i: usize) -> String {
    format!("the number {i} and more\til numero {i} e altro")
}

/// Rows that a key drops: their number, each of them, the key, and what it finds in the first.
type Kind = (usize, fn(usize) -> String, &'static str, &'static str);

/// 200 good pairs, with 44 others among them: `n` of the n-th kind. Returns the rows, and what the page's filter says of them.
fn web() -> (String, Vec<String>) {
    let kinds: [Kind; 8] = [
        (3, |i| format!("ok{i}\tsì{i}"), "min_length", "the source has 1 word: \"ok0\""),
        (2, |i| format!("{i}{}\tdue parole", " x".repeat(50)), "max_length", "the source has 51 words: \"0 x x "),
        (
            4,
            |i| format!("word two\ta b c d e f g h {i}"),
            "max_length_ratio",
            "the sides have 2 words and 9 words: \"word two\" and \"a b c d e f g h 0\"",
        ),
        (5, |i| format!("Home page {i}\tHome page {i}"), "drop_identical", "both sides are \"Home page 0\""),
        (6, |i| format!("Привет мир {i}\tciao mondo {i}"), "source_script", "0 % of the letters of the source"),
        (7, |i| format!("hello world {i}\tпривет мир {i}"), "target_script", "0 % of the letters of the target"),
        (8, |i| format!("see http://a.b {i}\tvedi lì {i}"), "drop_regex", "the source has \"http://\""),
        (9, |_| pair(0), "drop_duplicates", "the row repeats an earlier one"),
    ];

    let mut rows: Vec<String> = vec![pair(0)];
    let mut said = Vec::new();
    for (n, row, key, found) in kinds {
        let percent = 100.0 * n as f64 / 244.0;
        let line = rows.len() + 1;
        said.push(format!("data.filter.{key} drops {n} of 244 rows ({percent:.1} %), first web.tsv:{line}: {found}"));
        rows.extend((0..n).map(row));
    }
    // The kinds above come first, so that the lines on the page stay.
    rows.extend((1..200).map(pair));
    let text = rows.iter().fold(String::new(), |mut text, row| {
        writeln!(text, "{row}").expect("text");
        text
    });
    (text, said)
}

fn quick_start() -> (Workplace, Vec<String>) {
    let place = Workplace::new();
    let (text, said) = web();
    place.write("web.tsv", text);
    // No filter touches validation text.
    place.write("dev.tsv", format!("{}\n{}\nok\tsì\n", pair(300), pair(300)));
    place.write("clean.toml", block("toml"));
    (place, said)
}

fn notes(place: &Workplace, run: &str) -> Vec<String> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter_map(|line| line["note"].as_str().map(str::to_owned)).collect()
}

#[test]
fn the_quick_start_of_the_filters_runs() {
    let (place, said) = quick_start();
    let small = ["tokenizer.vocab_size=400", "train.steps=8"];
    let sets: Vec<&str> = SMALL.iter().chain(&small).flat_map(|set| ["--set", *set]).collect();
    for line in block("text").lines() {
        assert!(said.iter().any(|said| said == line), "the page says what happens: {line}\n{said:#?}");
    }
    let commands: Vec<Vec<&str>> = block("sh").lines().map(|line| line.split_whitespace().skip(1).collect()).collect();
    let [stats, train] = &commands[..] else { panic!("{commands:?}") };

    let ran = place.run(&[&stats[..], &sets].concat()).ok();
    for said in &said {
        assert!(ran.stdout.contains(said.as_str()), "{said} is missing in {}", ran.stdout);
    }
    assert!(ran.stdout.contains("200 rows kept, 0 (0.0 %) skipped"), "{}", ran.stdout);
    assert!(ran.stdout.contains("repeat an earlier row 0 (0.0 %)"), "{}", ran.stdout);

    let ran = place.run(&[&train[..], &sets, &["--device", "cpu"]].concat()).ok();
    let noted = notes(&place, "runs/clean");
    for said in &said {
        assert!(ran.stderr.contains(said.as_str()), "{said} is missing in {}", ran.stderr);
        assert_eq!(noted.iter().filter(|note| note.starts_with(said.as_str())).count(), 1, "{said}: {noted:#?}");
    }
    assert!(ran.stderr.contains("200 of 244 rows kept, 44 dropped by filters"), "{}", ran.stderr);
    assert!(ran.stderr.contains("3 of 3 rows kept;") || ran.stderr.contains("3 of 3 rows kept\n"), "{}", ran.stderr);
    place.run(&["report", "runs/clean", "--out", "report.html"]).ok();
    assert!(place.read("report.html").contains("data.filter.drop_identical drops 5 of 244 rows"));

    // A process that finds the cache says it, too.
    let resume = ["train", "--device", "cpu", "--run", "runs/clean", "--resume", "--set", "train.steps=10"];
    let ran = place.run(&resume).ok();
    assert!(!ran.stderr.contains("built in"), "{}", ran.stderr);
    assert!(said.iter().all(|said| ran.stderr.contains(said.as_str())), "{}", ran.stderr);
}

#[test]
fn a_filter_that_changed_is_refused_on_resume_and_leaves_the_cache() {
    let (place, _) = quick_start();
    let keys = ["tokenizer.vocab_size=400", "train.steps=8"];
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    place.train(&[&keys[..], &["--config", "clean.toml", "--run", "runs/a"]].concat()).ok();
    let resume = ["train", "--device", "cpu", "--run", "runs/a", "--resume", "--set", "train.steps=10"];
    for change in ["data.filter.max_length=39", "data.filter.drop_duplicates=false", "data.filter.drop_regex="] {
        let ran = place.run(&[&resume[..], &["--set", change]].concat());
        let (key, _) = change.split_once('=').expect("a key");
        ran.refused(2, &["data: contents ", &format!("    {key}: "), "--allow data accepts it"]);
    }
    let ran = place.run(&resume).ok();
    assert!(!ran.stderr.contains("built in"), "the cache is the run's own: {}", ran.stderr);
    let ran = place.run(
        &[&resume[..6], &["--set", "train.steps=12", "--set", "data.filter.max_length=39", "--allow", "data"]].concat(),
    );
    assert!(ran.ok().stderr.contains("built in"), "with a word it is accepted");
}

#[test]
fn sources_of_a_mixture_are_filtered_on_their_own() {
    let (place, _) = quick_start();
    let russian: String = (0..60).map(|i| format!("the number {i}\tчисло {i}\n")).collect();
    place.write("ru.tsv", format!("{russian}the number 5\tчисло 5\nthe number five\tnumber five\n"));
    let own = "{ target_script = \"Cyrillic\", drop_duplicates = true }";
    let mix = format!(
        "[data.filter]\nmin_length = 2\ntarget_script = \"Latin\"\n\
         [[data.mix]]\nname = \"web\"\ntrain = \"web.tsv\"\n\
         [[data.mix]]\nname = \"ru\"\ntrain = \"ru.tsv\"\nfilter = {own}\n"
    );
    assert!(PAGE.contains(own), "as on the page");
    place.write("mix.toml", mix);
    let sets: Vec<&str> = SMALL.iter().chain(&["tokenizer.vocab_size=400"]).flat_map(|set| ["--set", *set]).collect();
    let ran = place.run(&[&["data", "stats", "--config", "mix.toml"], &sets[..]].concat()).ok();
    let (web, ru) = ran.stdout.split_once("source ru\n").expect("two sources");
    for part in ["data.filter.min_length drops 3 of 244 rows", "data.filter.target_script drops 7 of 244 rows"] {
        assert!(web.contains(part) && !ru.contains(part), "{}", ran.stdout);
    }
    let of_ru = [
        "data.filter.target_script drops 1 of 62 rows (1.6 %), first ru.tsv:62: ",
        "data.filter.drop_duplicates drops 1 of 62 rows (1.6 %), first ru.tsv:61: ",
    ];
    assert!(of_ru.iter().all(|part| ru.contains(part)), "{}", ran.stdout);

    let train =
        ["--config", "mix.toml", "--run", "runs/mix", "--set", "train.steps=8", "--set", "tokenizer.vocab_size=400"];
    place.train(&train).ok();
    let noted = notes(&place, "runs/mix");
    for (name, part) in [("web", "data.filter.min_length drops 3 of 244 rows"), ("ru", of_ru[0]), ("ru", of_ru[1])] {
        let wanted = format!("data.mix, source \"{name}\": {part}");
        assert_eq!(noted.iter().filter(|note| note.starts_with(&wanted)).count(), 1, "{wanted}: {noted:#?}");
    }
}

#[test]
fn texts_and_labels_are_filtered_too_and_mistakes_are_named() {
    let place = Workplace::new();
    let text: String = (0..120).map(|i| format!("document {} has some words\n\n", i % 100)).collect();
    place.write("text.txt", format!("{text}one\n"));
    let keys = ["tokenizer.vocab_size=400", "train.steps=8", "data.text.seq_len=32"];
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let filter = ["--set", "data.filter.min_length=2", "--set", "data.filter.drop_duplicates=true"];
    let train = ["--task", "lm", "--set", "data.train=text.txt", "--run", "runs/text"];
    let ran = place.train(&[&train[..], &keys, &filter].concat()).ok();
    assert!(
        ran.stderr.contains("data.filter.drop_duplicates drops 20 of 121 rows (16.5 %), first text.txt:201: "),
        "{ran:#?}"
    );
    assert!(
        ran.stderr.contains("data.filter.min_length drops 1 of 121 rows (0.8 %), first text.txt:241: "),
        "{ran:#?}"
    );

    let rows: String =
        (0..80).map(|i| format!("{{\"text\": \"row {}\", \"label\": \"l{}\"}}\n", i % 60, i % 2)).collect();
    place.write("labels.jsonl", rows);
    let train = ["--task", "classification", "--set", "data.train=labels.jsonl", "--run", "runs/labels"];
    let ran = place.train(&[&train[..], &keys[..4], &filter].concat()).ok();
    assert!(
        ran.stderr.contains("data.filter.drop_duplicates drops 20 of 80 rows (25.0 %), first labels.jsonl:61: "),
        "{ran:#?}"
    );

    let refused = |sets: &[&str], code: i32, wanted: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let train = ["--task", "lm", "--set", "data.train=text.txt", "--run", "runs/x"];
        place.train(&[&train[..], &keys, &sets].concat()).refused(code, wanted);
    };
    refused(&["data.filter.max_length_ratio=3"], 2, &["data.filter.max_length_ratio compares", "remove it"]);
    refused(&["data.filter.drop_regex=("], 2, &["data.filter.drop_regex = \"(\"", "unclosed group"]);
    refused(&["data.filter.script=Italian"], 2, &["data.filter.script names \"Italian\"", "Latin, Cyrillic"]);
    refused(
        &["data.filter.min_len=3"],
        2,
        &["unknown key data.filter.min_len", "did you mean data.filter.min_length?"],
    );
    refused(
        &["data.filter.min_length=50"],
        3,
        &["the filters leave no row", "drops 121 of 121 rows (100.0 %)", "loosen them"],
    );
}

/// The shards of a text have no whole cache to count in.
#[test]
fn text_in_shards_is_filtered_and_counted_too() {
    let place = Workplace::new();
    place.write("text.txt", (0..900).map(|i| format!("{}\n", "word ".repeat(1 + i % 9))).collect::<String>());
    let keys = ["tokenizer.vocab_size=300", "train.steps=8", "data.text.seq_len=32", "data.text.format=lines"];
    let filter = ["data.filter.min_length=3", "data.filter.length_unit=words"];
    let mut kept = Vec::new();
    for (run, limit) in [("runs/whole", &[][..]), ("runs/shards", &["data.cache_limit=2MB"])] {
        let sets: Vec<&str> = [&keys[..], &filter, limit].concat().into_iter().flat_map(|set| ["--set", set]).collect();
        place.train(&[&["--task", "lm", "--set", "data.train=text.txt", "--run", run], &sets[..]].concat()).ok();
        kept.push(notes(&place, run).into_iter().filter(|note| note.starts_with("data.filter")).collect::<Vec<_>>());
    }
    assert!(
        kept[0].len() == 1 && kept[0][0].contains("drops 200 of 900 rows (22.2 %), first text.txt:1: "),
        "{kept:?}"
    );
    assert_eq!(kept[0], kept[1]);
}
