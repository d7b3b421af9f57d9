//! Text, tokenizers, caches and checkpoints that are not what they should be: exit code 3, file and line.

use std::fmt::Write;
use std::fs;

use crate::kiln::{Ran, Workplace};

/// `n` good rows.
fn rows(n: usize) -> String {
    (0..n).fold(String::new(), |mut text, n| {
        writeln!(text, "{{\"src\": \"row number {n}\", \"trg\": \"riga numero {n}\"}}").expect("memory");
        text
    })
}

/// `kiln prepare` of `text` with a small vocabulary.
fn prepare(place: &Workplace, text: impl AsRef<[u8]>, set: &[&str]) -> Ran {
    place.write("rows.jsonl", text);
    let mut arguments =
        vec!["prepare", "rows.jsonl", "--preset", "tiny", "--cache", "cache", "--set", "tokenizer.vocab_size=300"];
    arguments.extend(set.iter().flat_map(|set| ["--set", *set]));
    place.run(&arguments)
}

#[test]
fn rows_that_cannot_be_used_are_counted_shown_and_refused_above_the_limit() {
    let place = Workplace::new();
    let text = rows(300) + "{\"src\": \"half\n{\"src\": \"one side\", \"trg\": \"\"}\n{\"text\": \"no fields\"}\n";
    let ran = prepare(&place, &text, &["data.corpus.max_bad_rows=0.001"]);
    ran.refused(3, &["rows.jsonl:301", "rows.jsonl:302", "rows.jsonl:303", "max_bad_rows"]);
    assert!(!place.path("cache/train.tokens").exists(), "a refused corpus leaves no cache");

    let ran = prepare(&place, &text, &[]).ok();
    assert!(ran.stderr.contains("300 of 303 rows kept") && ran.stderr.contains("rows.jsonl:301"), "{ran:#?}");
}

#[test]
fn text_in_another_encoding_and_text_that_is_not_there_are_named() {
    let place = Workplace::new();
    let latin1 = b"{\"src\": \"caf\xe9\", \"trg\": \"caff\xe8\"}\n".repeat(20);
    prepare(&place, latin1, &[]).refused(3, &["rows.jsonl:1", "UTF-8"]);
    prepare(&place, "", &[]).refused(3, &["rows.jsonl", "empty"]);
    prepare(&place, "[1, 2, 3]\n", &[]).refused(3, &["rows.jsonl:1"]);
}

#[test]
fn rows_longer_than_the_positions_are_refused_with_a_remedy() {
    let place = Workplace::new();
    let long = format!("{{\"src\": \"{}\", \"trg\": \"x\"}}\n", "words and more ".repeat(100)).repeat(20);
    let set = ["model.max_positions=64", "tokenizer.vocab_size=300"];
    prepare(&place, rows(100) + &long, &set).refused(3, &["rows.jsonl:101", "max_source_len"]);
}

#[test]
fn a_validation_line_that_is_too_long_is_left_out_of_the_scores() {
    let place = Workplace::new();
    place.write("train.jsonl", rows(300));
    let long = format!("{{\"src\": \"{}\", \"trg\": \"x\"}}\n", "words and more ".repeat(100));
    place.write("valid.jsonl", rows(199) + &long);
    let arguments = [
        "train",
        "--preset",
        "tiny",
        "--device",
        "cpu",
        "--run",
        "run",
        "--set",
        "data.train=train.jsonl",
        "--set",
        "data.valid=valid.jsonl",
        "--set",
        "model.max_positions=64",
        "--set",
        "tokenizer.vocab_size=300",
        "--set",
        "train.steps=3",
    ];
    let ran = place.run(&arguments).ok();
    let wanted = "1 of 200 sources have more than 64 tokens (model.max_positions)";
    assert!(ran.stderr.contains(wanted) && ran.stderr.contains("BLEU"), "{ran:#?}");
    assert!(place.path("run/checkpoints/step-00000003").is_dir());

    let scored = place.run(&["evaluate", "run", "--device", "cpu", "--data", "valid.jsonl"]).ok();
    assert!(scored.stderr.contains(wanted) && scored.stderr.contains("on 199 pairs"), "{scored:#?}");
}

#[test]
fn a_vocabulary_without_room_is_refused() {
    let place = Workplace::new();
    prepare(&place, rows(100), &["tokenizer.vocab_size=265"]).refused(3, &["vocab_size", "too small", "at least"]);
    // A default gives way to the size; a set key does not.
    let ran = prepare(&place, rows(100), &["tokenizer.vocab_size=200"]).ok();
    assert!(ran.stderr.contains("tokenizer.byte_fallback = false instead of true"), "{ran:#?}");
    let ran = prepare(&place, rows(100), &["tokenizer.vocab_size=200", "tokenizer.byte_fallback=true"]);
    ran.refused(2, &["tokenizer.vocab_size = 200 cannot hold", "byte_fallback"]);
}

#[test]
fn parallel_files_of_different_length_are_refused() {
    let place = Workplace::new();
    place.write("a.en", "one\ntwo\nthree\n");
    place.write("a.it", "uno\ndue\n");
    let set = ["--preset", "tiny", "--cache", "cache", "--set", "tokenizer.vocab_size=300"];
    let ran = place.run(&[&["prepare", "a.en,a.it"], set.as_slice()].concat());
    ran.refused(3, &["a.en", "a.it"]);
}

#[test]
fn a_second_preparation_is_instant_and_changes_are_noticed() {
    let place = Workplace::new();
    prepare(&place, rows(200), &[]).ok();
    let again = prepare(&place, rows(200), &[]).ok();
    assert_eq!(again.stderr, "", "nothing to do");
    assert!(again.stdout.contains("up to date"), "{again:#?}");
    let changed = prepare(&place, rows(201), &[]).ok();
    assert!(changed.stderr.contains("cache/train.tokens: built"), "{changed:#?}");
}

#[test]
fn a_damaged_cache_is_built_again_and_a_foreign_file_is_not_touched() {
    let place = Workplace::new();
    prepare(&place, rows(200), &[]).ok();
    let cache = place.path("cache/train.tokens");
    let whole = fs::read(&cache).expect("built");
    fs::write(&cache, &whole[..whole.len() / 2]).expect("writable");
    let ran = prepare(&place, rows(200), &[]).ok();
    assert!(ran.stderr.contains("cache/train.tokens: built"), "{ran:#?}");
    assert_eq!(fs::read(&cache).expect("built again"), whole);

    let foreign = "somebody's notes, not a cache; long enough to be looked at as a header of one, at the very least";
    fs::write(&cache, foreign).expect("writable");
    prepare(&place, rows(200), &[]).refused(3, &["cache/train.tokens"]);
    assert_eq!(fs::read_to_string(&cache).expect("untouched"), foreign);
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused() {
    let place = Workplace::new();
    place.write("tokenizer.json", "{\"version\": \"1.0\"}");
    prepare(&place, rows(50), &["tokenizer.path=tokenizer.json"]).refused(3, &["tokenizer.json"]);
}

#[test]
fn headers_are_asked_about_and_then_used() {
    let place = Workplace::new();
    let rows: String = (0..200).map(|n| format!("{n},\"row, number {n}\",riga numero {n}\n")).collect();
    place.write("pairs.csv", format!("id,english,italian\n{rows}"));
    let prepare = |set: &[&str]| {
        let mut arguments = vec!["prepare", "pairs.csv", "--preset", "tiny", "--cache", "cache"];
        arguments.extend(["tokenizer.vocab_size=300"].iter().chain(set).flat_map(|set| ["--set", *set]));
        place.run(&arguments)
    };
    let flags = "--set data.corpus.source_field=english --set data.corpus.target_field=italian";
    prepare(&[]).refused(3, &["pairs.csv: the first row looks like a header", flags, "--set data.corpus.header=no"]);
    let ran = prepare(&["data.corpus.source_field=english", "data.corpus.target_field=italian"]).ok();
    assert!(ran.stderr.contains("200 of 200 rows kept"), "{ran:#?}");
    prepare(&["data.corpus.header=yes"]).refused(3, &["the header has no column \"src\"", flags]);
}

#[test]
fn characters_that_the_vocabulary_lacks_are_named() {
    let place = Workplace::new();
    place.write("rows.jsonl", rows(200));
    let set = [
        "--set",
        "data.valid=more.jsonl",
        "--set",
        "tokenizer.byte_fallback=false",
        "--set",
        "tokenizer.vocab_size=60",
    ];
    place.write("more.jsonl", "{\"src\": \"caf\u{e9}\", \"trg\": \"riga\"}\n{\"src\": \"row\", \"trg\": \"riga\"}\n");
    let ran =
        place.run(&[&["prepare", "rows.jsonl", "--preset", "tiny", "--cache", "cache"], set.as_slice()].concat()).ok();
    assert!(ran.stderr.contains("the vocabulary lacks"), "{ran:#?}");
    assert!(ran.stderr.contains("\u{e9} (once)"), "{ran:#?}");
}
