//! Text and pairs larger than their token cache may be (`data.cache_limit`), trained on while processes are killed.

use std::fmt::Write;

use super::disk::with_file_limit;
use super::ranks::{end_within, ranks_of, start, stderr};
use super::*;

/// Most bytes of token caches. The text has about four times as many.
const LIMIT: u64 = 100_000;

const WORDS: [&str; 14] =
    ["the", "old", "man", "walked", "down", "to", "a", "river", "and", "looked", "at", "boats", "no", "one"];

/// Appends `n` random words to `text`.
fn write_words(text: &mut String, n: u64, random: &mut Random) {
    for _ in 0..n {
        write!(text, "{} ", WORDS[random.below(WORDS.len() as u64) as usize]).expect("text");
    }
}

/// A folder with text and pairs in small files, so that a small limit has shards.
fn workplace() -> Workplace {
    let place = Workplace::new();
    let mut random = Random(7);
    for file in 0..130 {
        let mut text = String::new();
        for _ in 0..9 {
            let n_words = 1 + random.below(90);
            write_words(&mut text, n_words, &mut random);
            writeln!(text, "{file}.\n").expect("text");
        }
        place.write(&format!("text/{file:03}.txt"), text);

        let mut pairs = String::new();
        for pair in 0..45 {
            let n_words = 1 + random.below(8);
            write_words(&mut pairs, n_words, &mut random);
            write!(pairs, "{file} {pair}\t").expect("text");
            write_words(&mut pairs, n_words, &mut random);
            writeln!(pairs, "{pair}.").expect("text");
        }
        place.write(&format!("pairs/{file:03}.tsv"), pairs);
    }
    place.write("dev.txt", "the old man looked at the river\n\nno one walked down to the boats\n");
    place.write("dev.tsv", "the old man 1 2\tlooked at the river 2.\nno one 3 4\twalked down to the boats 4.\n");
    place
}

/// What is trained on.
#[derive(Debug, Clone, Copy)]
enum Rows {
    Text,
    Pairs,
}

/// Arguments of a run of `steps` steps on `devices`, begun or continued.
fn streamed(rows: Rows, run: &str, steps: usize, devices: &str, more: &[&str]) -> Vec<String> {
    let (task, files) = match rows {
        Rows::Text => ("lm", ["data.train=text", "data.valid=dev.txt"]),
        Rows::Pairs => ("translation", ["data.train=pairs/*.tsv", "data.valid=dev.tsv"]),
    };
    let (limit, steps) = (format!("data.cache_limit={LIMIT}"), format!("train.steps={steps}"));
    let sets = [
        "tokenizer.vocab_size=300",
        "model.d_model=16",
        "model.d_ff=32",
        "model.n_decoder_layers=1",
        "model.max_positions=48",
        "loader.batch_tokens=960",
        "loader.num_workers=2",
        "loader.prefetch_factor=2",
        "train.save_every=4",
        "train.validate_every=50",
        "train.log_every=1",
        "train.keep_last=2",
        &limit,
        &steps,
    ];

    let small = SMALL.iter().filter(|set| matches!(rows, Rows::Pairs) || !set.starts_with("model.n_encoder_layers"));
    let sets = small.chain(&files).chain(&sets).flat_map(|set| ["--set", set]);
    let device = if devices.contains(',') { "--devices" } else { "--device" };
    let flags = ["train", "--task", task, device, devices, "--run", run, "--resume", "auto"];
    flags.into_iter().chain(sets).chain(more.iter().copied()).map(String::from).collect()
}

/// Bytes of the token caches of a run's shards.
fn taken(place: &Workplace, run: &str) -> u64 {
    let entries = fs::read_dir(place.path(run).join("cache/train-shards")).into_iter().flatten().flatten();
    let caches = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".tokens"));
    caches.map(|entry| entry.metadata().map_or(0, |file| file.len())).sum()
}

#[test]
fn a_text_larger_than_its_cache_gives_the_same_bits_whatever_is_killed() {
    gives_the_same_bits_whatever_is_killed(Rows::Text);
}

#[test]
fn pairs_larger_than_their_cache_give_the_same_bits_whatever_is_killed() {
    gives_the_same_bits_whatever_is_killed(Rows::Pairs);
}

fn gives_the_same_bits_whatever_is_killed(rows: Rows) {
    let kills = count("KILN_FAULT_STREAM_KILLS", 6);
    let place = workplace();
    let mut random = Random::new("streamed");
    // Long enough that it cannot end before the last kill.
    let steps = 100 + 100 * kills;
    let started = Instant::now();
    let whole = end_within(start(&place, &streamed(rows, "runs/a", steps, "cpu", &[])), Duration::from_secs(300));
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(stderr(&whole).contains("train-shards: counted in "), "{}", stderr(&whole));
    let whole_run = started.elapsed();
    assert!(taken(&place, "runs/a") <= LIMIT);

    let (mut ended_early, mut most) = (0, 0);
    for kill in 0..kills {
        // A third starts without caches, a third without the index too.
        let folder = place.path("runs/b/cache/train-shards");
        if kill % 3 == 2 {
            let _ = fs::remove_dir_all(&folder);
        } else if kill % 3 == 1 {
            files_below_if_there(&folder)
                .iter()
                .filter(|path| path.extension().is_some_and(|end| end == "tokens"))
                .for_each(|path| fs::remove_file(path).expect("there"));
        }
        let mut child = start(&place, &streamed(rows, "runs/b", steps, "cpu", &[]));
        // All lives together are shorter than the run.
        let share = whole_run.as_micros() as u64 / kills.max(4) as u64;
        let life = Duration::from_micros(random.below(share.min(2_000_000)));
        let born = Instant::now();
        while born.elapsed() < life {
            most = most.max(taken(&place, "runs/b"));
            sleep(Duration::from_millis(2));
        }
        child.kill().expect("ours");
        let output = child.wait_with_output().expect("ended");
        ended_early += usize::from(output.status.success());
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    assert!(ended_early < 2, "the training is too short for {kills} kills");
    let last = end_within(start(&place, &streamed(rows, "runs/b", steps, "cpu", &[])), Duration::from_secs(300));
    assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
    println!("{kills} kills, {steps} steps, undisturbed in {whole_run:.1?}, {most} of {LIMIT} bytes");
    assert!(most <= LIMIT, "{most} of {LIMIT} bytes");
    assert_same_end(&place, "runs/a", "runs/b", steps);
}

fn files_below_if_there(dir: &Path) -> Vec<std::path::PathBuf> {
    if dir.is_dir() { files_below(dir) } else { Vec::new() }
}

#[test]
fn two_ranks_share_the_shards_of_a_text_and_train_as_one_does() {
    two_ranks_train_as_one_does(Rows::Text);
}

#[test]
fn two_ranks_share_the_shards_of_pairs_and_train_as_one_does() {
    two_ranks_train_as_one_does(Rows::Pairs);
}

fn two_ranks_train_as_one_does(rows: Rows) {
    let place = workplace();
    let steps = 30;
    let accumulates = ["--set", "train.grad_accum_steps=2", "--set", "loader.num_workers=0"];
    let one =
        end_within(start(&place, &streamed(rows, "runs/one", steps, "cpu", &accumulates)), Duration::from_secs(300));
    assert_eq!(one.status.code(), Some(0), "{}", stderr(&one));

    // Killed once, with every cache in the middle of its life.
    let two = start(&place, &streamed(rows, "runs/two", steps, "cpu,cpu", &[]));
    wait_until("a step", || {
        fs::read_to_string(place.path("runs/two/metrics.jsonl")).is_ok_and(|text| text.contains("\"step\":9,"))
    });
    let ranks = ranks_of(&two, 2).expect("two ranks");
    assert!(taken(&place, "runs/two") <= LIMIT);
    signal(ranks[1], "-KILL");
    end_within(two, Duration::from_secs(30));
    let two = end_within(start(&place, &streamed(rows, "runs/two", steps, "cpu,cpu", &[])), Duration::from_secs(300));
    assert_eq!(two.status.code(), Some(0), "{}", stderr(&two));
    assert!(taken(&place, "runs/two") <= LIMIT);
    assert_same_end(&place, "runs/one", "runs/two", steps);
}

#[test]
fn a_limit_that_cannot_work_is_refused_with_words() {
    let place = workplace();
    let refused = |rows: Rows, more: &[&str], parts: &[&str]| {
        let arguments = streamed(rows, "runs/x", 40, "cpu", more);
        let ran = place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(ran.code != 0 && parts.iter().all(|part| ran.stderr.contains(part)), "{parts:?}: {ran:#?}");
    };
    refused(Rows::Text, &["--set", "data.cache_limit=1000"], &["data.cache_limit", "at least 81920"]);
    refused(Rows::Pairs, &["--set", "data.cache_limit=1000"], &["data.cache_limit", "at least 81920"]);
    refused(Rows::Text, &["--set", "data.direct=true"], &["data.direct was removed", "data.cache_limit"]);
    refused(Rows::Text, &["--set", "data.cache_limit=a lot"], &["not a size", "80GB"]);
    // One file that is never cut.
    let rows = (0..4000).map(|row| format!("\"the old man {row}\",\"looked at the river and at {row} boats\"\n"));
    place.write("pairs.csv", rows.collect::<String>());
    refused(
        Rows::Pairs,
        &["--set", "data.train=pairs.csv"],
        &["data.cache_limit", "raise it to that", "begins in pairs.csv"],
    );
}

#[test]
fn bad_rows_of_a_limited_cache_are_named_with_file_and_line() {
    let place = workplace();
    let bad = "no tab\n".repeat(99);
    place.write("pairs/077.tsv", format!("the old man\twalked\n{bad}"));
    let arguments = streamed(Rows::Pairs, "runs/x", 40, "cpu", &[]);
    let ran = place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(ran.code != 0, "{ran:#?}");
    for part in ["99 malformed", "pairs/077.tsv:2", "data.corpus.max_bad_rows"] {
        assert!(ran.stderr.contains(part), "{part:?} is missing in {ran:#?}");
    }
}

#[test]
fn a_full_disk_names_the_limit_and_the_run_goes_on_when_there_is_room() {
    // Shards are larger than the other files of a run that has not taken a step.
    let more = ["--set", "data.cache_dir=cache", "--set", "data.cache_limit=1MB"];
    for rows in [Rows::Text, Rows::Pairs] {
        let place = workplace();
        let run = |name: &str| streamed(rows, name, 8, "cpu", &more);
        place.run(&run("runs/a").iter().map(String::as_str).collect::<Vec<_>>()).ok();
        // Everything is there but the caches.
        files_below(&place.path("cache/train-shards"))
            .iter()
            .filter(|path| path.extension().is_some_and(|end| end == "tokens"))
            .for_each(|path| fs::remove_file(path).expect("there"));
        let all = run("runs/b");
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let ran = with_file_limit(&place, &all, 16);
        assert_eq!(ran.code, 1, "{ran:#?}");
        for part in [".tokens", "free some space", "data.cache_limit", "1000000 bytes"] {
            assert!(ran.stderr.contains(part), "{part:?} is missing in {ran:#?}");
        }
        place.run(&all).ok();
    }
}
