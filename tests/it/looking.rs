//! What the command says about data and memory before anything is trained.

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

/// Pairs of very different lengths, in which every tenth repeats an earlier one.
fn write_pairs(place: &Workplace, name: &str) {
    let words = ["one", "two", "three", "four", "five", "six", "seven"];
    let sentence = |n: usize| (0..1 + n % 23).map(|i| words[(n * 5 + i * 3) % 7]).collect::<Vec<_>>().join(" ");
    let line = |i: usize| {
        let n = if i % 10 == 9 { i - 9 } else { i };
        format!("{} {n}\t{} {n}\n", sentence(n), sentence(n / 3))
    };
    place.write(name, (0..600).map(line).collect::<String>());
}

/// `kiln COMMAND` with the small model and further arguments.
fn look(place: &Workplace, command: &[&str], arguments: &[&str]) -> crate::kiln::Ran {
    let mut all = command.to_vec();
    all.extend(SMALL.iter().flat_map(|set| ["--set", *set]));
    all.extend(arguments);
    place.run(&all)
}

/// The fields of the last line of metrics.
fn end_of(place: &Workplace, run: &str) -> Value {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    serde_json::from_str(text.lines().last().expect("lines")).expect("JSON")
}

/// The words of the line of a table that begins with `name`.
fn row<'a>(printed: &'a str, name: &str) -> Vec<&'a str> {
    let line = printed.lines().find(|line| line.trim_start().starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {printed}")).split_whitespace().collect()
}

/// The padding and the batches of an epoch that are printed for the settings `name`.
fn batching(printed: &str, name: &str) -> (f64, String) {
    let words = row(printed, name);
    let percent = words.iter().position(|word| *word == "%").expect("a percentage");
    (words[percent - 1].parse().expect("a number"), words[words.len() - 1].replace(',', ""))
}

#[test]
fn padding_is_predicted_as_the_loader_makes_it() {
    let place = Workplace::new();
    write_pairs(&place, "pairs.tsv");
    let data = ["--set", "data.train=pairs.tsv", "--set", "tokenizer.vocab_size=200"];
    let stats = look(&place, &["data", "stats"], &[&data[..], &["--svg", "lengths.svg"]].concat()).ok();
    for part in
        ["600 rows kept", "repeat an earlier row 60 (10.0 %)", "tokens per byte of the target", "source lengths"]
    {
        assert!(stats.stdout.contains(part), "{part} is missing in {}", stats.stdout);
    }
    assert!(stats.stdout.contains("10.0 % of the rows repeat an earlier one"), "{}", stats.stdout);
    assert!(place.read("lengths.svg").contains("<title>Lengths of rows in tokens</title>"));
    assert!(!place.path("runs").exists(), "nothing of the run that was looked at is left");

    // An epoch of real batches, with the settings as they are and with others.
    for (name, run, more) in [
        ("as configured", "runs/now", &[][..]),
        (
            "loader.bucket_multiple=4",
            "runs/four",
            &["--set", "loader.bucket_multiple=4", "--set", "loader.max_buckets=16"],
        ),
    ] {
        let (padding, batches) = batching(&stats.stdout, name);
        let steps = format!("train.steps={batches}");
        place.train(&[&data[..], more, &["--run", run, "--set", &steps]].concat()).ok();
        let measured = 100.0 * end_of(&place, run)["padding_ratio"].as_f64().expect("a number");
        assert!((measured - padding).abs() < 0.051, "{name}: {padding} % predicted, {measured} % made");
    }

    // A recommendation names a setting that lowers the padding as promised.
    let advice = stats.stdout.lines().find(|line| line.starts_with("--set loader.")).expect("a recommendation");
    let better = advice.split(" lowers").next().expect("a setting").replace("--set ", "");
    assert!(batching(&stats.stdout, &better).0 < batching(&stats.stdout, "as configured").0 - 2.0, "{advice}");

    let of_run = place.run(&["data", "stats", "--run", "runs/now"]).ok();
    assert_eq!(batching(&of_run.stdout, "as configured"), batching(&stats.stdout, "as configured"));
}

#[test]
fn text_is_looked_at_by_its_packing() {
    let place = Workplace::new();
    let lines: String = (0..300).map(|i| format!("{} end\n\n", "a word or two, ".repeat(1 + i % 9))).collect();
    place.write("text.txt", lines);
    let lm = [
        "--task",
        "lm",
        "--set",
        "data.train=text.txt",
        "--set",
        "tokenizer.vocab_size=300",
        "--set",
        "data.text.seq_len=32",
    ];
    let stats = look(&place, &["data", "stats"], &lm).ok();
    let packed = batching(&stats.stdout, "as configured").0;
    let sentences = batching(&stats.stdout, "data.text.packing=sentences").0;
    assert!(packed < 1.0 && sentences > packed, "{}", stats.stdout);
    assert!(stats.stdout.contains("longer than a row, and cut"), "{}", stats.stdout);
    place.run(&["data", "stats", "--run", "runs/none"]).refused(2, &["runs/none", "no run"]);
}

/// The MiB in the words of a line.
fn mib(words: &[&str]) -> f64 {
    let unit = words.iter().position(|word| *word == "MiB").expect("MiB");
    words[unit - 1].replace(',', "").parse().expect("a number")
}

#[test]
fn memory_is_predicted_by_the_code_of_the_dry_run_and_near_what_steps_need() {
    let place = Workplace::new();
    let larger = ["--set", "loader.batch_tokens=8192", "--set", "model.d_model=128", "--set", "model.d_ff=512"];
    let ran = look(&place, &["memory", "--device", "cpu", "--memory", "1GiB", "--measure"], &larger).ok();
    for part in [
        "weights (f32, the master copy)",
        "activations: attention",
        "logits",
        "the largest batch that fits into 1.0 GiB: ",
    ] {
        assert!(ran.stdout.contains(part), "{part} is missing in {}", ran.stdout);
    }
    assert!(!ran.stdout.contains("accumulated"), "a step has one micro-batch: {}", ran.stdout);

    let sum = mib(&row(&ran.stdout, "sum "));
    let parts = ran.stdout.lines().skip(1).take_while(|line| !line.trim_start().starts_with("sum "));
    let of_parts: f64 = parts.map(|line| mib(&line.split_whitespace().collect::<Vec<_>>())).sum();
    assert!((sum - of_parts).abs() < 1.0, "{sum} and {of_parts} in {}", ran.stdout);
    let dry = place.train(&[&["--dry-run"], &larger[..]].concat()).ok();
    let told = format!("memory: about {:.0} MiB", sum.floor());
    assert!(dry.stdout.contains(&told), "{told} is missing in {}", dry.stdout);

    if ran.stdout.contains("not measured") {
        println!("skipped: this system does not say how much memory a process needed");
        return;
    }
    let measured = mib(&row(&ran.stdout, "measured "));
    assert!((0.5..2.0).contains(&(sum / measured)), "{sum} MiB predicted, {measured} MiB measured");
}

#[test]
fn a_size_that_cannot_be_read_and_a_memory_that_is_too_small_are_named() {
    let place = Workplace::new();
    place.run(&["memory", "--memory", "lots"]).refused(2, &["\"lots\" is not a size", "24GiB"]);
    let ran = look(&place, &["memory", "--device", "cpu", "--memory", "100KiB"], &[]).ok();
    assert!(
        ran.stdout.contains("no batch fits into 0.1 MiB: weights, gradients and optimizer state need"),
        "{}",
        ran.stdout
    );
    let saves = row(&ran.stdout, "8 devices, train.shard_optimizer=true");
    assert!(saves.contains(&"MiB"), "{saves:?}");
}
