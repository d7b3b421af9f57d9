//! Data of the eleventh trial by newcomers: what is printed about them is run as it stands, and what it makes is read.

use serde_json::Value;

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{CLASSES, PAIRS, between, dry, ran, shown};

#[test]
fn labels_with_decimal_commas_are_rounded_as_numbers() {
    let place = Workplace::new();
    let row =
        |n: usize| format!("05.01.2024 10:{:02};warm {},6 °C;{},{}\n", n % 60, n % 30, n % 4 + 1, 5 * (n / 4 % 2));
    place.write("comfort.csv", "Zeit;Meldung;Komfort\n".to_owned() + &(0..160).map(row).collect::<String>());
    let said = dry(&place, CLASSES, &["data.train=comfort.csv"]).refused(3, &["numbers on a scale (1 to 4.5"]).stderr;
    let command = between(&said, "python3 ", "> rows.jsonl").to_owned() + "> rows.jsonl";
    let Some(_) = ran(&place, &command) else { return };
    let labels: Vec<Value> = place
        .read("rows.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line)["Komfort"].clone())
        .collect();
    assert!(labels.len() == 160 && labels.iter().all(Value::is_number), "{labels:?}");
    let keys = ["data.train=rows.jsonl", "data.labels.text_field=Meldung", "data.labels.label_field=Komfort"];
    let said = shown(dry(&place, CLASSES, &keys));
    assert!(said.contains("160 of 160") || said.contains("160 rows"), "{said}");
}

#[test]
fn classes_counted_from_1_get_a_command_that_counts_from_0() {
    let place = Workplace::new();
    let words = ["awful", "poor", "okay", "good", "superb"];
    let row = |n: usize| format!("the concert {n} was {},{}\n", words[n % 5], n % 5 + 1);
    place.write("st.csv", "text,label\n".to_owned() + &(0..200).map(row).collect::<String>());
    let names = "data.labels.names=[\"awful\",\"poor\",\"okay\",\"good\",\"superb\"]";
    let ran_dry = dry(&place, CLASSES, &["data.train=st.csv", names]);
    let said = ran_dry.refused(3, &["numbers count the classes from 0"]).stderr;
    assert!(!said.contains("max_bad_rows="), "{said}");
    let command = between(&said, "python3 ", "> rows.jsonl").to_owned() + "> rows.jsonl";
    let Some(_) = ran(&place, &command) else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.jsonl", names]));
    assert!(said.contains("awful") && said.contains("superb") && !said.contains("malformed"), "{said}");
    let first: Value = serde_json::from_str(place.read("rows.jsonl").lines().next().expect("rows")).expect("JSON");
    assert_eq!(first["label"], 0);
}

#[test]
fn labelled_rows_that_repeat_or_contradict_each_other_are_warned_about() {
    let place = Workplace::new();
    let row = |n: usize| format!("the message number {},{}\n", n % 8, if n % 16 < 8 { "good" } else { "bad" });
    place.write("same.csv", "text,label\n".to_owned() + &(0..160).map(row).collect::<String>());
    let said = shown(dry(&place, CLASSES, &["data.train=same.csv"]));
    assert!(said.contains("of 160 rows repeat an earlier one") && said.contains("another label"), "{said}");
    let row = |n: usize| format!("the message number {n},{}\n", ["good", "bad"][n % 2]);
    place.write("other.csv", "text,label\n".to_owned() + &(0..160).map(row).collect::<String>());
    let said = shown(dry(&place, CLASSES, &["data.train=other.csv"]));
    assert!(!said.contains("repeat an earlier") && !said.contains("another label"), "{said}");
}

#[test]
fn more_characters_than_entries_get_a_larger_vocabulary() {
    let place = Workplace::new();
    let sign = |n: usize| char::from_u32(0x4e00 + n as u32).expect("an ideograph");
    place.write("signs.tsv", (0..1800).map(|n| format!("{}\tsign number {n}\n", sign(n))).collect::<String>());
    let said = shown(dry(&place, PAIRS, &["data.train=signs.tsv"]));
    assert!(said.contains("because the text has 18") && said.contains("different characters"), "{said}");
    let kept = ["data.train=signs.tsv", "tokenizer.vocab_size=1000"];
    dry(&place, PAIRS, &kept).refused(3, &["vocab_size = 1000 is too small", "to have room for words"]);
}
