//! Published texts with classes and tags of the twelfth trial: what is printed about them is run as it stands, and what it makes is read.

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{CLASSES, PAIRS, TAGS, between, dry, ran, shown};

/// Texts of several words without a number in common.
const TEXTS: [&str; 4] = [
    "the small screen is too dark",
    "a very good meal for us all",
    "nobody came to the old shop",
    "it works as it should",
];

/// Returns the flags that a message prints behind `start`, up to the end of the line.
fn flags(said: &str, start: &str) -> Vec<String> {
    let (_, rest) = said.split_once(start).unwrap_or_else(|| panic!("{start:?} is missing in {said}"));
    let line = rest.lines().next().unwrap_or_default();
    line.split_whitespace().filter(|word| word.contains('=')).map(str::to_owned).collect()
}

/// Runs with the flags that a message prints behind `start`.
fn read_with(place: &Workplace, task: &[&str], file: &str, said: &str, start: &str) -> String {
    let found = flags(said, start);
    let train = format!("data.train={file}");
    let keys: Vec<&str> =
        [train.as_str(), "data.split=0.2"].into_iter().chain(found.iter().map(String::as_str)).collect();
    shown(dry(place, task, &keys))
}

#[test]
fn a_stray_quote_loses_no_other_rows() {
    let place = Workplace::new();
    let row = |n: usize, divider: &str| match n {
        40 => format!("\"never closed{divider}1\n"),
        90 => format!("a screen of 5\"{divider}0\n"),
        n => format!("{} {n}{divider}{}\n", TEXTS[n % 4], n % 2),
    };
    for (file, divider) in [("inch.csv", ","), ("inch.tsv", "\t")] {
        place.write(file, format!("text{divider}label\n") + &(0..200).map(|n| row(n, divider)).collect::<String>());
    }
    let said = shown(dry(&place, CLASSES, &["data.train=inch.tsv"]));
    assert!(said.contains("2 classes: ") && said.contains("200 rows of up to"), "{said}");
    let said =
        dry(&place, CLASSES, &["data.train=inch.csv"]).refused(3, &["inch.csv:42: a quote", "199 of 200 rows"]).stderr;
    let command = between(&said, "awk -F", " > rows.csv").to_owned() + " > rows.csv";
    let Some(_) = ran(&place, &command) else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.csv"]));
    assert!(said.contains("200 rows of up to") && !said.contains("malformed"), "{said}");

    let pair = |n: usize| format!("{}the word {n},la parola {n}\n", if n == 40 { "\"" } else { "" });
    place.write("pairs.csv", "src,trg\n".to_owned() + &(0..200).map(pair).collect::<String>());
    let said = shown(dry(&place, PAIRS, &["data.train=pairs.csv", "data.split=20"]));
    assert!(said.contains("pairs.csv:42: a quote") && said.contains("199 of 200 rows"), "{said}");
}

#[test]
fn the_two_texts_of_a_class_are_found_and_its_reason_is_not_one() {
    let place = Workplace::new();
    let anli = |n: usize, context: &str| {
        let (label, reason) = (["c", "e", "n"][n % 3], format!("because {}", TEXTS[n % 3]));
        let texts = format!("\"{context}\": \"{} {n}.\", \"hypothesis\": \"it is {n}\"", TEXTS[n % 4]);
        format!("{{\"uid\": \"u{n}\", {texts}, \"label\": \"{label}\", \"reason\": \"{reason}\"}}\n")
    };
    for context in ["premise", "context"] {
        place.write("anli.jsonl", (0..120).map(|n| anli(n, context)).collect::<String>());
        let said =
            dry(&place, CLASSES, &["data.train=anli.jsonl", "data.split=0.2"]).refused(3, &["hypothesis"]).stderr;
        let found = flags(&said, "read them as such with");
        let [text, pair] =
            [format!("data.labels.text_field={context}"), "data.labels.pair_field=hypothesis".to_owned()];
        assert!(found.contains(&text) && found.contains(&pair), "{said}");
        let said = read_with(&place, CLASSES, "anli.jsonl", &said, "read them as such with");
        assert!(said.contains("3 classes: c"), "{said}");
    }

    let text = |n: usize| format!("{} {n}", TEXTS[n % 4]);
    let booking = |n: usize| {
        let address = ["1 Serjeant s Inn Fleet Street London EC4Y 1LL United Kingdom", "55 Oost 1092 Amsterdam"][n % 2];
        let bad = if n.is_multiple_of(3) { "No Negative".to_owned() } else { text(n) };
        format!("{address},Hotel {},{bad},{},{}\n", n % 2, text(n + 1), ["good", "bad"][n % 2])
    };
    let header = "Hotel_Address,Hotel_Name,Negative_Review,Positive_Review,class\n";
    place.write("booking.csv", header.to_owned() + &(0..120).map(booking).collect::<String>());
    let two = |n: usize| format!("{},{},{}\n", text(n), text(n + 3), ["x", "y"][n % 2]);
    place.write("two.csv", "review_1,review_2,label\n".to_owned() + &(0..120).map(two).collect::<String>());
    place.write("reply.csv", "comment,reply,label\n".to_owned() + &(0..120).map(two).collect::<String>());
    for (file, texts) in [
        ("booking.csv", ["Negative_Review", "Positive_Review"]),
        ("two.csv", ["review_1", "review_2"]),
        ("reply.csv", ["comment", "reply"]),
    ] {
        let train = format!("data.train={file}");
        let said = dry(&place, CLASSES, &[&train, "data.split=0.2"]).refused(3, &[texts[0], texts[1]]).stderr;
        let found = flags(&said, "to name the columns:");
        assert!(found.contains(&format!("data.labels.text_field={}", texts[0])), "{said}");
        assert!(found.contains(&format!("data.labels.pair_field={}", texts[1])), "{said}");
        let said = read_with(&place, CLASSES, file, &said, "to name the columns:");
        assert!(said.contains("2 classes: "), "{said}");
    }
}

#[test]
fn statements_without_names_of_columns_get_their_class() {
    let place = Workplace::new();
    let row = |n: usize| {
        let classes = ["true", "false", "half-true", "mostly-true", "barely-true", "pants-fire"];
        let party = ["republican", "democrat", "none"][n * 7 % 3];
        let counts = (0..5).map(|at| (n * (at + 3) % 4).to_string()).collect::<Vec<_>>().join("\t");
        format!(
            "{}.json\t{}\tSays that {} {n}.\teconomy,taxes\tbarack-obama\tPresident\tIllinois\t{party}\t{counts}\ta mailer\n",
            2635 + 7 * n,
            classes[n * 5 % 6],
            TEXTS[n % 4]
        )
    };
    place.write("train.tsv", (0..120).map(row).collect::<String>());
    let said = dry(&place, CLASSES, &["data.train=train.tsv"]).refused(3, &["with names: (printf"]).stderr;
    let command = between(&said, "(printf", " > rows.tsv").to_owned() + " > rows.tsv";
    let Some(_) = ran(&place, &command) else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.tsv", "data.split=0.2"]));
    assert!(said.contains("6 classes: "), "{said}");
    assert!(place.read("rows.tsv").starts_with("column_0\tlabel\ttext\tcolumn_3"), "{said}");
}

#[test]
fn classes_behind_a_sign_become_a_table_in_utf_8() {
    let place = Workplace::new();
    let row =
        |n: usize| format!("{} {n} for EUR 5 in the caf\u{e9} .@{}\n", TEXTS[n % 4], ["positive", "neutral"][n % 2]);
    let text: String = (0..120).map(row).collect();
    let latin: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).expect("latin1")).collect();
    place.write("Sentences_AllAgree.txt", latin);
    let said = dry(&place, CLASSES, &["data.train=Sentences_AllAgree.txt"]).refused(3, &["end with a class"]).stderr;
    let command = between(&said, "iconv -f cp1252", " > rows.tsv").to_owned() + " > rows.tsv";
    let Some(_) = ran(&place, &command) else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.tsv", "data.split=0.2"]));
    assert!(said.contains("2 classes: ") && place.read("rows.tsv").contains("in the caf\u{e9} .\n"), "{said}");
}

#[test]
fn rows_with_numbers_of_python_are_read() {
    let place = Workplace::new();
    let row = |n: usize| {
        let score = if n.is_multiple_of(2) { "NaN" } else { "0.5" };
        let label = if n % 40 == 7 { "NaN".to_owned() } else { format!("\"{}\"", ["x", "y"][n % 2]) };
        format!("{{\"text\": \"{} {n} NaN\", \"label\": {label}, \"score\": {score}}}\n", TEXTS[n % 4])
    };
    place.write("rows.jsonl", (0..120).map(row).collect::<String>());
    let said = shown(dry(&place, CLASSES, &["data.train=rows.jsonl", "data.labels.max_bad_rows=0.1"]));
    assert!(
        said.contains("117 of 120 rows") && said.contains("2 classes: ") && said.contains("has null for a label"),
        "{said}"
    );
}

#[test]
fn lists_of_words_and_tags_in_cells_are_found() {
    let place = Workplace::new();
    let list = |words: &[&str]| format!("\"['{}']\"", words.join("', '"));
    let row = |n: usize, is_text: bool| {
        // Equal texts would all be on one side of a split.
        let text = format!("{} {n}", TEXTS[n % 4]);
        let words: Vec<&str> = text.split(' ').collect();
        let tags: Vec<&str> = (0..words.len()).map(|at| ["O", "O", "B-geo"][(at + n) % 3]).collect();
        let pos: Vec<&str> = (0..words.len()).map(|at| ["NN", "VB", "DT", "IN"][(at + n) % 4]).collect();
        let words = if is_text { text.clone() } else { list(&words) };
        format!("Sentence: {n},{words},{},{}\n", list(&pos), list(&tags))
    };
    for (name, is_text) in [("Sentence", true), ("Word", false)] {
        place.write(
            "ner.csv",
            format!("Sentence #,{name},POS,Tag\n") + &(0..60).map(|n| row(n, is_text)).collect::<String>(),
        );
        let said = dry(&place, TAGS, &["data.train=ner.csv"]).refused(3, &["data.labels.tags_field=Tag"]).stderr;
        assert!(said.contains(&format!("data.labels.words_field={name} ")), "{said}");
        let said = read_with(&place, TAGS, "ner.csv", &said, "to name the columns:");
        assert!(said.contains("B-geo") && !said.contains("NN"), "{said}");
    }
}

#[test]
fn marks_for_each_class_become_one_class() {
    let place = Workplace::new();
    let row = |n: usize| {
        let marks: Vec<String> =
            (0..4).map(|at| usize::from(n % 4 == at || n % 20 == 7 && at == 0).to_string()).collect();
        format!("{} {n},False,{},{}\n", TEXTS[n % 4], marks.join(","), ["nba", "nrl"][n / 4 % 2])
    };
    let header = "text,unclear,anger,joy,fear,neutral,subreddit\n";
    place.write("emotions.csv", header.to_owned() + &(0..200).map(row).collect::<String>());
    let said = dry(&place, CLASSES, &["data.train=emotions.csv"]).refused(3, &["have a mark for each class"]).stderr;
    let command = between(&said, "python3 -c", " > rows.jsonl").to_owned() + " > rows.jsonl";
    let Some(_) = ran(&place, &command) else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.jsonl"]));
    assert!(said.contains("4 classes: ") && place.read("rows.jsonl").lines().count() == 190, "{said}");
}

#[test]
fn delimiters_in_texts_without_quotes_come_with_a_command() {
    let place = Workplace::new();
    let row = |n: usize| {
        format!("{}{} {n},{}\n", TEXTS[n % 4], if n.is_multiple_of(3) { "" } else { ", so" }, ["x", "y"][n % 2])
    };
    place.write("commas.csv", "text,label\n".to_owned() + &(0..90).map(row).collect::<String>());
    let said = dry(&place, CLASSES, &["data.train=commas.csv"]).refused(3, &["more columns than the header"]).stderr;
    let command = between(&said, "python3 -c", " > rows.csv").to_owned() + " > rows.csv";
    let Some(_) = ran(&place, &command) else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.csv"]));
    assert!(said.contains("90 rows of up to") && said.contains("2 classes: "), "{said}");

    // A header without commas is not a title.
    let row = |n: usize| format!("{n}|{}, so {n}|{}\n", TEXTS[n % 4], ["x", "y"][n % 2]);
    place.write("pipes.csv", "id|text|label\n".to_owned() + &(0..90).map(row).collect::<String>());
    let said = dry(&place, CLASSES, &["data.train=pipes.csv"]).refused(3, &["name this delimiter"]).stderr;
    let command = between(&said, "(echo", " > rows.csv").to_owned() + " > rows.csv";
    let Some(_) = ran(&place, &command) else { return };
    assert!(shown(dry(&place, CLASSES, &["data.train=rows.csv"])).contains("90 rows of up to"));
}
