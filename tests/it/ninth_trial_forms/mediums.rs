//! Ratings, spellings of rows, corrections, languages and pages.

use serde_json::{Value, json};

use super::{CHAT, LM, PAIRS, between, dry, followed, lines, ran, rows, shown};
use crate::kiln::Workplace;

#[test]
fn rated_answers_without_a_rating_in_some_rows_come_with_the_command() {
    let place = Workplace::new();
    let rating = |n: usize| [json!("up"), json!("down"), Value::Null][n % 3].clone();
    let row = |n: usize| json!({"user_input": format!("ask {n} of it"), "bot_response": format!("say {n} of it"), "feedback": rating(n)});
    for begin in 0..3 {
        place.write("a.jsonl", lines(90, |n| row(n + begin)));
        let refused = dry(&place, CHAT, &["data.train=a.jsonl"]).refused(3, &["a.jsonl > rows.jsonl"]);
        if followed(&place, &refused.stderr, "jq -c").is_none() {
            return;
        }
        let found = rows(&place, "rows.jsonl");
        assert!(found.len() == 30 && found.iter().all(|row| row.get("feedback").is_none()), "{found:?}");
        let keys = ["data.train=rows.jsonl", "data.text.field=user_input,bot_response"];
        assert!(shown(dry(&place, CHAT, &keys)).contains("30 of 30 rows kept"));
    }
}

#[test]
fn tables_and_other_spellings_of_rows_come_with_a_way_to_read_them() {
    let place = Workplace::new();
    let row = |n: usize| format!("Title {n},\"the roses are {n}\nand the violets too\",Poet {n},tag\n");
    place.write("a.csv", "Title,Poem,Poet,Tags\n".to_owned() + &(0..60).map(row).collect::<String>());
    let keys = ["data.train=a.csv", "data.text.format=records"];
    dry(&place, LM, &keys).refused(3, &["name the one with the text, --set data.text.field=Poem"]);
    let said = shown(dry(&place, LM, &[&keys[..], &["data.text.field=Poem"]].concat()));
    assert!(said.contains("60 of 60") || said.contains("the roses are"), "{said}");

    let text = |n: usize| format!("words {n} of it's");
    let indented = (0..60).map(|n| format!("{{\n  \"text\": \"{}\"\n}}\n", text(n))).collect::<String>();
    let joined = (0..60)
        .map(|n| format!("{{\"text\": \"{}\"}}{}\n", text(n), if n < 59 { "," } else { "" }))
        .collect::<String>();
    let python = (0..60).map(|n| format!("{{'text': \"{}\", 'n': None}}\n", text(n))).collect::<String>();
    let strings = serde_json::to_string(&(0..60).map(text).collect::<Vec<_>>()).expect("JSON");
    for (content, start) in [(indented, "jq -c"), (joined, "sed -E"), (python, "python3 -c"), (strings, "jq -c")] {
        place.write("it's.jsonl", &content);
        let refused =
            dry(&place, LM, &["data.train=it's.jsonl"]).refused(3, &["and read rows.jsonl with the same flags"]);
        if followed(&place, &refused.stderr, start).is_none() {
            return;
        }
        let found = rows(&place, "rows.jsonl");
        assert!(found.len() == 60 && found.iter().enumerate().all(|(n, row)| row["text"] == text(n)), "{content}");
        assert!(shown(dry(&place, LM, &["data.train=rows.jsonl"])).contains("60"));
    }
}

#[test]
fn corrections_and_states_of_translations_are_read() {
    let place = Workplace::new();
    let block = |n: usize| format!("S He go to school {n} .\nA 1 2|||R:VERB:SVA|||goes|||REQUIRED|||-NONE-|||0\n\n");
    place.write("a.m2", (0..60).map(block).collect::<String>());
    let refused =
        dry(&place, PAIRS, &["data.train=a.m2"]).refused(3, &["corrections of the first annotator as targets"]);
    assert!(shown(dry(&place, LM, &["data.train=a.m2"])).contains("uncorrected sentences and their corrections (M2)"));
    if followed(&place, &refused.stderr, "python3 -c").is_none() {
        return;
    }
    assert_eq!(rows(&place, "rows.jsonl")[1], json!({"src": "He go to school 1 .", "trg": "He goes to school 1 ."}));

    let unit = |n: usize| {
        let state = ["translated", "needs-translation"][n % 2];
        format!(
            "<trans-unit id=\"{n}\"><source>Save {n}</source><target state=\"{state}\">Sichern {n}</target></trans-unit>\n"
        )
    };
    let units: String = (0..60).map(unit).collect();
    place.write("a.xlf", format!("<xliff version=\"1.2\"><file source-language=\"en\" target-language=\"de\"><body>{units}</body></file></xliff>"));
    let refused = dry(&place, PAIRS, &["data.train=a.xlf"]).refused(3, &["is a catalogue"]);
    let said = followed(&place, &refused.stderr, "python3 -c").expect("Python ran before");
    assert!(said.contains("by their text or state: 30") && rows(&place, "rows.jsonl").len() == 30, "{said}");
}

#[test]
fn a_field_with_the_wanted_language_is_not_ignored() {
    let place = Workplace::new();
    place.write("a.jsonl", lines(90, |n| json!({"src": format!("word {n} of it"), "trg": format!("mot {n} de"), "lang": (["de", "fr", "es"][n % 3])})));
    let said = shown(dry(&place, PAIRS, &["data.train=a.jsonl"]));
    assert!(said.contains("has 3 languages (de, es, fr), and the model does not read it"), "{said}");
    let flag = between(&said, "data.corpus.source_field=", "'");
    let said = shown(dry(&place, PAIRS, &["data.train=a.jsonl", flag]));
    assert!(
        ["de", "es", "fr"].iter().any(|name| said.contains(&format!("source: {name}: word ")))
            && !said.contains("languages ("),
        "{said}"
    );
}

#[test]
fn stats_of_labelled_rows_count_repeats_and_pages_come_with_a_command() {
    let place = Workplace::new();
    place.write("a.jsonl", lines(100, |n| json!({"text": format!("a text {}", n % 50), "label": (["a", "b"][usize::from(n % 10 == 0 && n >= 50)])})));
    let stats = place.run(&["data", "stats", "--task", "classification", "--set", "data.train=a.jsonl"]).ok();
    for part in ["repeat an earlier row 45 (45.0 %)", "another label 5 (5.0 %)", "data.filter.drop_duplicates = true"] {
        assert!(stats.stdout.contains(part), "{part}: {}", stats.stdout);
    }

    place.write("wiki.xml", "<page><title>Rome</title><text>Rome is a city &amp; more.</text></page>\n".repeat(60));
    let said = shown(dry(&place, LM, &["data.train=wiki.xml"]));
    let command = between(&said, "python3 -c", "> plain.txt");
    if ran(&place, &format!("{command}> plain.txt")).is_none() {
        return;
    }
    let plain = place.read("plain.txt");
    assert!(plain.starts_with("Rome\n\nRome is a city & more.\n\nRome") && !plain.contains('<'), "{plain}");
    shown(dry(&place, LM, &["data.train=plain.txt"]));
}
