//! Layouts that the twelfth trial left open: what is printed about them is run as it stands, and what it makes is read.

use serde_json::{Value, json};

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{PAIRS, TAGS, between, dry, lines, ran, shown};
use crate::twelfth_trial_talks::{CHAT, made};

#[test]
fn answers_at_places_in_a_document_are_taken_from_it() {
    let place = Workplace::new();
    let words = |n: usize| (0..40).map(|at| format!("w{}", n * 40 + at)).collect::<Vec<String>>();
    let plain = |n: usize| {
        let document = format!("<P> {} </P> Another paragraph stands here .", words(n).join(" "));
        // Every fourth question has no answer.
        let short = if n % 4 == 3 { json!([]) } else { json!([{"start_token": 3, "end_token": 6}]) };
        json!({
            "question_text": format!("what is number {n}"), "document_text": document,
            "long_answer_candidates": [{"start_token": 0, "end_token": 46, "top_level": true}],
            "annotations": [{"yes_no_answer": "NONE", "long_answer": {"start_token": 0, "end_token": 42}, "short_answers": short}]
        })
    };

    let nested = |n: usize| {
        let place = json!({"start_token": [2], "end_token": [5], "text": ["x"]});
        json!({
            "document": {"title": format!("title {n}"), "html": format!("<p>{}</p>", words(n).join(" ")), "tokens": {"token": words(n), "is_html": [false]}},
            "question": {"text": format!("what is number {n}"), "tokens": ["what"]},
            "annotations": {"long_answer": [{"start_token": 0, "end_token": 40}], "short_answers": [place], "yes_no_answer": [-1]}
        })
    };

    let forms: [(&dyn Fn(usize) -> Value, usize); 2] = [(&plain, 30), (&nested, 40)];
    for (form, n) in forms {
        place.write("nq.jsonl", lines(40, form));
        dry(&place, PAIRS, &["data.train=nq.jsonl", "data.split=8"])
            .refused(3, &["answers in \"short_answers\"", "--task lm --set data.text.format=chat"]);
        let said =
            dry(&place, CHAT, &["data.train=nq.jsonl", "data.split=8"]).refused(3, &["with the same flags"]).stderr;
        let Some(rows) = made(&place, &said, "jq -c") else { return };
        let prompt = format!("{}\n\nwhat is number 0", words(0).join(" "));
        assert_eq!((rows.len(), &rows[0]), (n, &json!({"prompt": prompt, "completion": "w2 w3 w4"})), "{said}");
        assert!(shown(dry(&place, CHAT, &["data.train=rows.jsonl", "data.split=8"])).contains("learned: w"));
    }
}

#[test]
fn answers_in_several_languages_become_rows() {
    let place = Workplace::new();
    let answer = |language: &str, n: usize| json!([{"type": "entity", "entity": format!("Q{n}"), "text": format!("{language} {n}"), "aliases": []}]);
    let row = |n: usize| {
        json!({
            "query": format!("who is {n}"), "queries": {"en": format!("who is {n}"), "it": format!("chi è {n}")},
            "answers": {"en": answer("Mr", n), "it": answer("Sig.", n)}, "example_id": n
        })
    };
    place.write("mkqa.jsonl", lines(40, row));
    let said =
        dry(&place, CHAT, &["data.train=mkqa.jsonl", "data.split=8"]).refused(3, &["answers in \"answers\""]).stderr;
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((rows.len(), &rows[1]), (80, &json!({"prompt": "chi è 0", "completion": "Sig. 0", "language": "it"})));
    let said = shown(dry(&place, CHAT, &["data.train=rows.jsonl", "data.split=8"]));
    assert!(said.contains("who is ") || said.contains("chi è "), "{said}");
}

#[test]
fn answers_of_one_session_are_noted_and_become_a_conversation() {
    let place = Workplace::new();
    let row = |n: usize| format!("{},ask {n},reply {n}\n", n / 3);
    place.write(
        "chats.csv",
        "session_id,user_message,bot_response\n".to_owned() + &(0..90).map(row).collect::<String>(),
    );
    let keys = ["data.train=chats.csv", "data.split=8"];
    dry(&place, CHAT, &keys).refused(3, &["data.text.field=user_message,bot_response"]);
    let said = shown(dry(&place, CHAT, &[&keys[..], &["data.text.field=user_message,bot_response"]].concat()));
    assert!(said.contains("share their \"session_id\""), "{said}");
    let Some(rows) = made(&place, &said, "python3 -c") else { return };
    let contents: Vec<&Value> =
        rows[0]["messages"].as_array().expect("messages").iter().map(|one| &one["content"]).collect();
    assert_eq!((rows.len(), contents[1], contents[4]), (30, &json!("reply 0"), &json!("ask 2")), "{rows:?}");
    assert!(shown(dry(&place, CHAT, &["data.train=rows.jsonl", "data.split=8"])).contains("reply "));

    // One row for each conversation is what it is.
    let row = |n: usize| format!("{n},ask {n},reply {n}\n");
    place.write(
        "chats.csv",
        "session_id,user_message,bot_response\n".to_owned() + &(0..90).map(row).collect::<String>(),
    );
    let said = shown(dry(&place, CHAT, &[&keys[..], &["data.text.field=user_message,bot_response"]].concat()));
    assert!(!said.contains("share their"), "{said}");
}

#[test]
fn a_table_of_words_with_blank_rows_becomes_sentences() {
    let place = Workplace::new();
    for blank in ["\n", ",\n", "\"\",\"\"\n"] {
        let sentence = |n: usize| format!("Ada,B-PER\nsees,O\n\",\",O\nRome{n},B-LOC\n{blank}");
        place.write("words.csv", "word,tag\n".to_owned() + &(0..60).map(sentence).collect::<String>());
        let said =
            dry(&place, TAGS, &["data.train=words.csv"]).refused(3, &["rows without a word divide sentences"]).stderr;
        let command = between(&said, "python3 -c", " > rows.conll").to_owned() + " > rows.conll";
        let Some(_) = ran(&place, &command) else { return };
        assert!(place.read("rows.conll").starts_with("Ada\tB-PER\nsees\tO\n,\tO\nRome0\tB-LOC\n\nAda"), "{said}");
        let said = shown(dry(&place, TAGS, &["data.train=rows.conll", "data.split=0.2"]));
        assert!(said.contains("60 rows") && said.contains("B-LOC"), "{said}");
    }
}
