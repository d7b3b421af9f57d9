//! `data.cache_limit` for rows of every task: a run that was killed, and lost its caches, ends as the undisturbed run does, and so do two
//! ranks.

mod in_order;

use std::fmt::Write;

use super::ranks::{end_within, ranks_of, start, stderr};
use super::*;

/// Most bytes of token caches of a text, or of a source of a mixture. Each text has several times as many.
const LIMIT: u64 = 100_000;
const STEPS: usize = 160;

const WORDS: [&str; 14] =
    ["the", "old", "man", "walked", "down", "to", "a", "river", "and", "looked", "at", "boats", "no", "one"];

/// A task, its text and its settings.
struct Subject {
    place: Workplace,
    /// Behind `kiln train`.
    task: Vec<String>,
    /// Folders with shards.
    shards: Vec<&'static str>,
}

fn words(n: u64, random: &mut Random) -> String {
    let word = |random: &mut Random| WORDS[random.below(WORDS.len() as u64) as usize];
    (0..n).map(|_| word(random)).collect::<Vec<_>>().join(" ")
}

impl Subject {
    /// Writes `n` files of rows in the folder `rows`, and one for validation.
    fn new(task: &[&str], ending: &str, n: usize, row: &dyn Fn(usize, &mut Random) -> String) -> Self {
        let place = Workplace::new();
        let mut random = Random(7);
        let mut file = |name: &str, first: usize, n: usize| {
            let rows: String = (first..first + n).map(|number| row(number, &mut random)).collect();
            place.write(&format!("{name}.{ending}"), rows);
        };
        (0..130).for_each(|number| file(&format!("rows/{number:03}"), n * number, n));
        file("dev", 1_000_000, 8);
        let task = task.iter().map(|word| (*word).to_owned()).collect();
        Self { place, task, shards: vec!["cache/train-shards"] }
    }

    /// Adds settings.
    fn with(mut self, sets: &[&str]) -> Self {
        self.task.extend(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
        self
    }

    fn arguments(&self, run: &str, devices: &str, more: &[&str]) -> Vec<String> {
        let (limit, steps) =
            (format!("data.cache_limit={}", LIMIT * self.shards.len() as u64), format!("train.steps={STEPS}"));
        let sets = [
            "tokenizer.vocab_size=300",
            "model.d_model=16",
            "model.n_heads=2",
            "model.d_ff=32",
            "model.max_positions=128",
            "model.dropout=0.1",
            "loader.batch_tokens=1024",
            "loader.num_workers=2",
            "loader.prefetch_factor=2",
            "optim.warmup_steps=5",
            "train.save_every=8",
            "train.validate_every=50",
            "train.log_every=1",
            "train.keep_last=2",
            &limit,
            &steps,
        ];

        let device = if devices.contains(',') { "--devices" } else { "--device" };
        let flags = ["train", device, devices, "--run", run].map(String::from);
        // A run that goes on has its model already.
        let has_begun = self.task[0] == "--from" && self.place.path(run).join("config.toml").exists();
        let task = self.task.iter().skip(if has_begun { 2 } else { 0 }).cloned();
        let resume = if self.task[0] == "--from" && !has_begun { &[][..] } else { &["--resume", "auto"] };
        // A run that begins with a model takes its sizes and its vocabulary from there.
        let is_own = |set: &&str| {
            !self.task.contains(&"--from".to_owned()) || !set.starts_with("model.") && !set.starts_with("tokenizer.")
        };
        let sets = sets
            .into_iter()
            .filter(is_own)
            .flat_map(|set| ["--set", set])
            .chain(more.iter().copied())
            .chain(resume.iter().copied())
            .map(String::from);
        flags.into_iter().chain(sets).chain(task).collect()
    }

    /// Arguments of eight steps without a limit.
    fn without_limit(&self, run: &str) -> Vec<String> {
        self.without_limit_to(run, 8)
    }

    fn without_limit_to(&self, run: &str, steps: usize) -> Vec<String> {
        let mut all = self.arguments(run, "cpu", &["--set", &format!("train.steps={steps}")]);
        let at = all.iter().position(|word| word.starts_with("data.cache_limit")).expect("a limit");
        all.drain(at - 1..=at);
        all
    }

    fn start(&self, run: &str, devices: &str, more: &[&str]) -> std::process::Child {
        start(&self.place, &self.arguments(run, devices, more))
    }

    fn run_to_end(&self, run: &str, devices: &str, more: &[&str]) -> String {
        let ended = end_within(self.start(run, devices, more), Duration::from_secs(300));
        assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
        for folder in &self.shards {
            assert!(self.taken(run, folder) <= LIMIT, "{folder}: {} bytes", self.taken(run, folder));
        }
        stderr(&ended)
    }

    fn caches(&self, run: &str, folder: &str) -> Vec<std::path::PathBuf> {
        let folder = self.place.path(run).join(folder);
        let all = if folder.is_dir() { files_below(&folder) } else { Vec::new() };
        all.into_iter().filter(|path| path.to_string_lossy().contains(".tokens")).collect()
    }

    fn taken(&self, run: &str, folder: &str) -> u64 {
        self.caches(run, folder).iter().map(|path| fs::metadata(path).map_or(0, |file| file.len())).sum()
    }

    fn wait_for_step(&self, run: &str, step: u64) {
        let is_there = |text: String| text.contains(&format!("\"step\":{step},"));
        let metrics = self.place.path(&format!("{run}/metrics.jsonl"));
        wait_until("a step", || fs::read_to_string(&metrics).is_ok_and(is_there));
    }

    /// Trains undisturbed, and killed twice, each time without the caches. Returns what the undisturbed run has said.
    fn ends_alike_when_killed(&self) -> String {
        let said = self.run_to_end("runs/a", "cpu", &[]);
        assert!(said.contains("train-shards") && said.contains(": counted in "), "{said}");
        for step in [20, 70] {
            let mut child = self.start("runs/b", "cpu", &[]);
            self.wait_for_step("runs/b", step);
            child.kill().expect("ours");
            assert!(!child.wait().expect("ended").success(), "the training ended before step {step}");
            for folder in &self.shards {
                assert!(self.taken("runs/b", folder) <= LIMIT);
                self.caches("runs/b", folder).iter().for_each(|path| fs::remove_file(path).expect("there"));
            }
        }
        self.run_to_end("runs/b", "cpu", &[]);
        assert_same_end(&self.place, "runs/a", "runs/b", STEPS);
        said
    }

    /// Trains on one rank with two micro-batches, and on two ranks, of which one is killed.
    fn ends_alike_on_two_ranks(&self) {
        self.run_to_end("runs/one", "cpu", &["--set", "train.grad_accum_steps=2", "--set", "loader.num_workers=0"]);
        let two = self.start("runs/two", "cpu,cpu", &[]);
        self.wait_for_step("runs/two", 11);
        let ranks = ranks_of(&two, 2).expect("two ranks");
        signal(ranks[1], "-KILL");
        end_within(two, Duration::from_secs(60));
        self.run_to_end("runs/two", "cpu,cpu", &[]);
        assert_same_end(&self.place, "runs/one", "runs/two", STEPS);
    }
}

fn conversations() -> Subject {
    let row = |number: usize, random: &mut Random| {
        let (question, answer) = (words(1 + random.below(3), random), words(1 + random.below(20), random));
        serde_json::json!({"prompt": format!("{number} {question}"), "completion": answer}).to_string() + "\n"
    };
    let sets = ["data.train=rows", "data.valid=dev.jsonl", "data.text.format=chat", "model.n_decoder_layers=1"];
    Subject::new(&["--task", "lm"], "jsonl", 9, &row).with(&sets).with(&["model.max_positions=256"])
}

fn classes(valid: &str) -> Subject {
    let row = |number: usize, random: &mut Random| {
        let (text, label) = (words(1 + random.below(60), random), ["up", "down", "left"][number % 3]);
        serde_json::json!({"text": format!("{number} {text}"), "label": label}).to_string() + "\n"
    };
    let sets = ["data.train=rows/*.jsonl", valid, "model.n_encoder_layers=1"];
    Subject::new(&["--task", "classification"], "jsonl", 18, &row).with(&sets)
}

#[test]
fn conversations_larger_than_their_cache_give_the_same_bits() {
    conversations().ends_alike_when_killed();
}

#[test]
fn conversations_in_rows_of_their_own_train_on_two_ranks_as_on_one() {
    conversations().with(&["data.text.packing=sentences"]).ends_alike_on_two_ranks();
}

#[test]
fn classes_of_texts_larger_than_their_cache_give_the_same_bits() {
    let said = classes("data.valid=dev.jsonl").ends_alike_when_killed();
    assert!(said.contains("3 classes: ") && said.contains("of 2340 rows kept"), "{said}");
}

#[test]
fn classes_of_texts_in_shards_train_on_two_ranks_as_on_one() {
    classes("data.valid=dev.jsonl").ends_alike_on_two_ranks();
}

#[test]
fn tags_of_words_larger_than_their_cache_give_the_same_bits() {
    let row = |number: usize, random: &mut Random| {
        let text = words(1 + random.below(40), random);
        let tag = |at: usize| ["O", "B-x", "I-x"][(number + at) % 3];
        text.split(' ').enumerate().map(|(at, word)| format!("{word} {}\n", tag(at))).collect::<String>() + "\n"
    };
    let sets = ["data.train=rows/*.conll", "data.valid=dev.conll", "model.n_encoder_layers=1"];
    Subject::new(&["--task", "tagging"], "conll", 14, &row).with(&sets).ends_alike_when_killed();
}

#[test]
fn answers_to_compare_larger_than_their_cache_give_the_same_bits() {
    let row = |number: usize, random: &mut Random| {
        let (chosen, rejected) = (words(1 + random.below(12), random), words(1 + random.below(12), random));
        serde_json::json!({"prompt": number.to_string(), "chosen": chosen, "rejected": rejected}).to_string() + "\n"
    };
    let base = Subject::new(&["--task", "lm"], "jsonl", 6, &row);
    base.place.write("base.txt", (0..60).map(|n| format!("{n} {}\n\n", WORDS.join(" "))).collect::<String>());
    let base = base.with(&["data.train=base.txt", "model.n_decoder_layers=1", "model.max_positions=256"]);
    let arguments = base.without_limit("runs/base");
    base.place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let task = ["--from", "runs/base"].map(String::from).into();
    let sets = ["data.train=rows", "data.valid=dev.jsonl", "data.text.format=preferences"];
    Subject { task, ..base }.with(&sets).ends_alike_when_killed();
}

/// Sources of a mixture in folders of their own.
fn mixture(task: &str, ending: &str, row: &dyn Fn(usize, &mut Random) -> String, layer: &str) -> Subject {
    let mut subject = Subject::new(&["--task", task], ending, 24, row);
    let mut config = String::new();
    for (name, files, weight) in [("big", 0..80, 2.0), ("small", 80..110, 1.0), ("tiny", 110..130, 1.0)] {
        for number in files {
            let from = format!("rows/{number:03}.{ending}");
            subject.place.write(&format!("{name}/{number:03}.{ending}"), subject.place.read(&from));
        }
        let pattern = if ending == "txt" { name.to_owned() } else { format!("{name}/*.{ending}") };
        writeln!(config, "[[data.mix]]\nname = \"{name}\"\ntrain = \"{pattern}\"\nweight = {weight}").expect("text");
        writeln!(config, "valid = \"dev.{ending}\"").expect("text");
    }
    subject.place.write("mix.toml", config);
    subject.shards = vec!["cache/train-shards.big", "cache/train-shards.small", "cache/train-shards.tiny"];
    subject.task.extend(["--config", "mix.toml"].map(String::from));
    subject.with(&[layer])
}

fn mixture_of_texts() -> Subject {
    let row = |number: usize, random: &mut Random| format!("{} {number}.\n\n", words(1 + random.below(60), random));
    mixture("lm", "txt", &row, "model.n_decoder_layers=1")
}

/// Documents, of which some are longer than a row.
fn texts(sets: &[&str]) -> Subject {
    let row = |number: usize, random: &mut Random| format!("{} {number}.\n\n", words(1 + random.below(60), random));
    let data = ["data.train=rows", "data.valid=dev.txt", "model.n_decoder_layers=1", "data.text.seq_len=96"];
    Subject::new(&["--task", "lm"], "txt", 24, &row).with(&data).with(sets)
}

#[test]
fn documents_in_rows_of_their_own_larger_than_their_cache_give_the_same_bits() {
    texts(&["data.text.packing=sentences"]).ends_alike_when_killed();
}

#[test]
fn documents_in_rows_of_their_own_train_on_two_ranks_as_on_one() {
    texts(&["data.text.packing=sentences"]).ends_alike_on_two_ranks();
}

#[test]
fn a_mixture_of_documents_in_rows_of_their_own_gives_the_same_bits() {
    let subject = mixture_of_texts().with(&["data.text.packing=sentences"]);
    let said = subject.ends_alike_when_killed();
    assert!(said.contains("train-shards.tiny: counted in"), "{said}");
    has_metrics_by_source(&subject);
}

fn mixture_of_pairs() -> Subject {
    let row = |number: usize, random: &mut Random| {
        let n = 1 + random.below(16);
        format!("{} {number}\t{} {number}\n", words(n, random), words(n, random))
    };
    mixture("translation", "tsv", &row, "model.n_encoder_layers=1").with(&["model.n_decoder_layers=1"])
}

/// Checks that steps have counts and losses of each source.
fn has_metrics_by_source(subject: &Subject) {
    let metrics = subject.place.read("runs/a/metrics.jsonl");
    for name in ["big", "small", "tiny"] {
        let is_in_steps = |line: &str| line.contains("\"kind\":\"step\"") && line.contains(&format!("\"{name}\""));
        assert!(metrics.lines().any(is_in_steps), "{name} is in no step");
    }
}

#[test]
fn a_mixture_of_texts_larger_than_their_caches_gives_the_same_bits() {
    let subject = mixture_of_texts();
    let said = subject.ends_alike_when_killed();
    for part in ["mixture: big is 50.0 % of the rows", "train-shards.tiny: counted in", "trained on big "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    has_metrics_by_source(&subject);
}

#[test]
fn a_mixture_of_texts_in_shards_trains_on_two_ranks_as_on_one() {
    mixture_of_texts().ends_alike_on_two_ranks();
}

#[test]
fn a_mixture_of_pairs_larger_than_their_caches_gives_the_same_bits() {
    let subject = mixture_of_pairs();
    let said = subject.ends_alike_when_killed();
    assert!(said.contains("% of the pairs") && said.contains("train-shards.big: counted in"), "{said}");
    has_metrics_by_source(&subject);
}

/// The rows of a run's validation.
fn rows_for_validation(subject: &Subject) -> String {
    subject.place.read("runs/a/cache/split.valid.jsonl")
}

#[test]
fn a_split_of_a_text_larger_than_its_cache_gives_the_same_bits_and_copies_nothing() {
    let subject = mixture_of_texts();
    let task = ["--task", "lm"].map(String::from).into();
    let sets = ["data.train=rows", "data.split=0.1", "model.n_decoder_layers=1"];
    let subject = Subject { task, shards: vec!["cache/train-shards"], ..subject }.with(&sets);
    let said = subject.ends_alike_when_killed();
    let rows = rows_for_validation(&subject);
    let n = rows.lines().count();
    assert!(
        (250..380).contains(&n) && said.contains(&format!("data.split: {n} of 3120 rows are for validation")),
        "{said}"
    );
    assert!(said.contains(&format!("{} of {} rows kept", 3120 - n, 3120 - n)), "{said}");
    assert!(!subject.place.path("runs/a/cache/split.train.jsonl").exists());
    let scores = subject.place.run(&["evaluate", "runs/a", "--device", "cpu", "--json"]).ok();
    assert!(scores.stdout.contains("\"loss\""), "{scores:#?}");

    // The same rows as without the limit.
    let whole = subject.without_limit("runs/whole");
    subject.place.run(&whole.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    assert_eq!(subject.place.read("runs/whole/cache/split.valid.jsonl"), rows);
}

#[test]
fn a_split_of_pairs_and_of_classes_in_shards_leaves_the_rows_of_the_whole_split() {
    let pairs = mixture_of_pairs();
    let task = ["--task", "translation"].map(String::from).into();
    let sets = ["data.train=rows/*.tsv", "data.split=200", "model.n_encoder_layers=1", "model.n_decoder_layers=1"];
    let pairs = Subject { task, shards: vec!["cache/train-shards"], ..pairs }.with(&sets);
    for subject in [pairs, classes("data.split=200")] {
        let said = subject.run_to_end("runs/a", "cpu", &["--set", "train.steps=8"]);
        let rows = rows_for_validation(&subject);
        assert_eq!(rows.lines().count(), 200, "{said}");
        let whole = subject.without_limit("runs/whole");
        subject.place.run(&whole.iter().map(String::as_str).collect::<Vec<_>>()).ok();
        assert_eq!(subject.place.read("runs/whole/cache/split.valid.jsonl"), rows, "{said}");
    }
}

#[test]
fn duplicates_of_a_text_larger_than_its_cache_are_dropped_and_counted_as_in_the_whole() {
    let row = |number: usize, random: &mut Random| match number % 4 {
        0 => format!("{} {}\n\n", WORDS.join(" "), number % 40),
        _ => format!("{} {number}.\n\n", words(1 + random.below(60), random)),
    };
    let sets =
        ["data.train=rows", "data.valid=dev.txt", "data.filter.drop_duplicates=true", "model.n_decoder_layers=1"];
    let subject = Subject::new(&["--task", "lm"], "txt", 24, &row).with(&sets);
    let said = subject.ends_alike_when_killed();
    assert!(said.contains("data.filter.drop_duplicates drops 770 of 3120 rows"), "{said}");
}
