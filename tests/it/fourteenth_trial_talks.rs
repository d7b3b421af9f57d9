//! Talks of the fourteenth trial, as programs export them: what is printed about them is run as it stands, and what it makes is read.

use serde_json::{Value, json};

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{PAIRS, between, dry, lines, ran, shown};
use crate::twelfth_trial_talks::{CHAT, made};

const TRAIN: &[&str] = &["data.train=talks.jsonl", "data.split=8"];

/// Follows the message about `talks.jsonl`, and returns the rows that it makes.
fn converted(place: &Workplace, text: String, wanted: &[&str]) -> Option<Vec<Value>> {
    place.write("talks.jsonl", text);
    let said = dry(place, CHAT, TRAIN).refused(3, wanted).stderr;
    let rows = made(place, &said, "jq -c")?;
    shown(dry(place, CHAT, &["data.train=rows.jsonl"]));
    Some(rows)
}

fn contents(row: &Value) -> Vec<&str> {
    row["messages"].as_array().expect("messages").iter().map(|one| one["content"].as_str().expect("a text")).collect()
}

#[test]
fn remarks_among_those_who_answer_are_no_answers() {
    let place = Workplace::new();
    let say = |who: usize, text: String, mark: Value| {
        let mut turn = json!({"author_id": who, "body": text});
        turn.as_object_mut().expect("an object").extend(mark.as_object().expect("an object").clone());
        turn
    };
    for (shown, hidden) in [
        (json!({"public": true}), json!({"public": false})),
        (json!({"private": false}), json!({"private": true})),
        (json!({"type": "comment"}), json!({"type": "note"})),
    ] {
        let row = |n: usize| {
            let turns = [
                say(100, format!("Why is {n} so slow?"), shown.clone()),
                say(7, format!("INTERNAL do not tell {n}"), hidden.clone()),
                say(7, format!("It waits for {n}."), shown.clone()),
            ];
            json!({"id": n, "comments": turns})
        };
        let Some(rows) = converted(&place, lines(40, row), &["have a \"author_id\" and a \"body\""]) else { return };
        assert_eq!(contents(&rows[1]), ["Why is 1 so slow?", "It waits for 1."], "{hidden}");
    }

    let row = |n: usize| {
        let part =
            |kind: &str, text: String| json!({"part_type": kind, "body": text, "author": {"type": "admin", "id": "9"}});
        let parts = json!([part("note", format!("INTERNAL {n}")), part("comment", format!("It waits for {n}."))]);
        json!({
            "id": n, "source": {"body": format!("Why is {n} so slow?"), "author": {"type": "user", "id": "u"}},
            "conversation_parts": {"conversation_parts": parts}
        })
    };
    let Some(rows) = converted(&place, lines(40, row), &["threads, with a first message"]) else { return };
    assert_eq!(contents(&rows[2]), ["Why is 2 so slow?", "It waits for 2."]);
}

#[test]
fn kinds_and_stars_do_not_speak() {
    let place = Workplace::new();
    let message = |n: usize| json!({"id": n, "type": (["Default", "Reply"][n % 3 / 2]), "content": format!("message {n}"), "author": {"id": "1", "name": (["Ada", "Bo"][n % 2])}});
    let whole = json!({"guild": {"name": "g"}, "messages": (0..40).map(message).collect::<Vec<_>>()});
    place.write("talks.jsonl", format!("{whole}\n"));
    let said = dry(&place, CHAT, TRAIN).refused(3, &["\"messages\" is a list of 40 objects"]).stderr;
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    let Some(rows) = converted(&place, lines(rows.len(), |n| rows[n].clone()), &["\"author.name\", one per row"])
    else {
        return;
    };
    assert_eq!((rows.len(), &rows[0]["messages"][1]), (5, &json!({"role": "assistant", "content": "message 1"})));

    // Short ones are conversations.
    let row = |n: usize| json!({"messages": (0..4).map(|at| message(4 * n + at)).collect::<Vec<_>>()});
    let Some(rows) = converted(&place, lines(40, row), &["have a \"author.name\" and a \"content\""]) else { return };
    assert_eq!(rows[0]["messages"][3], json!({"role": "assistant", "content": "message 3"}));

    let review = |n: usize| json!({"starRating": (["ONE", "FIVE"][n % 2]), "comment": format!("A shop with {n} doors."), "createTime": "x"});
    place.write(
        "talks.jsonl",
        format!("{}\n", json!({"reviews": (0..40).map(review).collect::<Vec<_>>(), "averageRating": 3})),
    );
    dry(&place, CHAT, TRAIN).refused(3, &["\"reviews\" is a list of 40 objects"]);
}

#[test]
fn last_messages_that_stand_first_are_turned_round() {
    let place = Workplace::new();
    let row = |n: usize| {
        let say = |at: usize, who: &str, text: String| json!({"originalarrivaltime": format!("2024-03-01T08:0{at}:00Z"), "content": text, "from": who});
        json!({"id": n, "MessageList": [say(9, "8:ivo", format!("It is {n}.")), say(8, "8:ada", format!("What is {n}?"))]})
    };
    let Some(rows) = converted(&place, lines(40, row), &["have a \"from\" and a \"content\""]) else { return };
    assert_eq!(contents(&rows[3]), ["What is 3?", "It is 3."]);
    assert_eq!(rows[3]["messages"][1]["role"], "assistant");

    // So are rows of an account's export, whose first row has other fields.
    let row = |n: usize| match n {
        0 => json!({"sender_name": "Bo", "timestamp_ms": 1_700_000_000_000_u64, "photos": [{"uri": "x.jpg"}]}),
        n => {
            json!({"sender_name": (["Ada", "Bo"][n % 2]), "timestamp_ms": 1_700_000_000_000_u64 - 60_000 * n as u64, "content": format!("message {n}")})
        }
    };
    let Some(rows) = converted(&place, lines(41, row), &["persons in \"sender_name\""]) else { return };
    assert_eq!(contents(&rows[0])[..2], ["message 40", "message 39"]);
}

#[test]
fn texts_inside_of_a_message_and_creators_are_found() {
    let place = Workplace::new();
    let row = |n: usize| {
        let say = |who: &str, text: String| json!({"type": "m.room.message", "sender": who, "content": {"msgtype": "m.text", "body": text}});
        json!({"messages": [say("@ada:x.org", format!("What is {n}?")), say("@bo:x.org", format!("It is {n}."))]})
    };
    let Some(rows) = converted(&place, lines(40, row), &["\"content.body\""]) else { return };
    assert_eq!(contents(&rows[3]), ["What is 3?", "It is 3."]);

    let row = |n: usize| json!({"creator": {"name": (["Ada", "Bo"][n % 2])}, "text": format!("message {n}"), "topic_id": format!("t{}", n / 4)});
    let Some(rows) = converted(&place, lines(40, row), &["persons in \"creator.name\""]) else { return };
    assert_eq!(rows[0]["messages"][1], json!({"role": "assistant", "content": "message 1"}));
}

#[test]
fn states_and_numbers_answer_nothing() {
    let place = Workplace::new();
    for (name, value) in [("state", ["open", "closed"]), ("kind_id", ["t0", "t1"])] {
        let row = |n: usize| json!({"id": n, "body": format!("A long text about {n} doors."), name: value[n % 2]});
        place.write("talks.jsonl", lines(40, row));
        let said = dry(&place, CHAT, TRAIN).refused(3, &["--set data.text.field=body"]).stderr;
        assert!(!said.contains(&format!("body,{name}")), "{said}");
    }
    let row = |n: usize| json!({"question": format!("Is {n} even?"), "answer": (["yes", "no"][n % 2])});
    place.write("talks.jsonl", lines(40, row));
    assert!(shown(dry(&place, CHAT, TRAIN)).contains("learned: "));
}

#[test]
fn stars_of_a_review_do_not_rate_the_reply_to_it() {
    let place = Workplace::new();
    let row = |n: usize| json!({"review": format!("The shop has {n} doors."), "stars": n % 5 + 1, "owner_reply": format!("It has {n} windows.")});
    place.write("talks.jsonl", lines(40, row));
    dry(&place, CHAT, TRAIN).refused(3, &["--set data.text.field=review,owner_reply"]);
    let row =
        |n: usize| json!({"prompt": format!("Is {n} even?"), "response": format!("It is {n}."), "rating": n % 5 + 1});
    place.write("talks.jsonl", lines(40, row));
    dry(&place, CHAT, TRAIN).refused(3, &["rated (KTO)"]);
}

#[test]
fn questions_and_answers_in_two_lists_become_conversations() {
    let place = Workplace::new();
    let story = |n: usize| {
        let asked = |text: String, turn: usize| json!({"input_text": text, "turn_id": turn});
        let answer = |text: String, turn: usize| json!({"span_text": "a span", "span_start": 0, "input_text": text, "turn_id": turn});
        json!({
            "story": format!("Ann has {n} cats."),
            "questions": [asked(format!("Who has {n} cats?"), 1), asked("How many?".into(), 2)],
            "answers": [answer("Ann".into(), 1), answer(n.to_string(), 2)]
        })
    };
    let whole = json!({"version": "1.0", "data": (0..40).map(story).collect::<Vec<_>>()});
    for text in [lines(40, story), format!("{whole}\n")] {
        let Some(rows) = converted(&place, text, &["\"answers\""]) else { return };
        assert_eq!(contents(&rows[3]), ["Ann has 3 cats.\n\nWho has 3 cats?", "Ann", "How many?", "3"]);
    }
}

#[test]
fn notes_of_anki_become_rows() {
    let place = Workplace::new();
    let top = "#separator:tab\n#html:true\n#guid column:1\n#notetype column:2\n#tags column:5\n";
    let note = |n: usize| format!("2b{n}\tBasic\tcat {n}\t\"<b>Katze {n}</b><br>[sound:a.mp3]\"\tverbs\n");
    place.write("notes.txt", top.to_owned() + &(0..40).map(note).collect::<String>());
    for (task, first) in [
        (PAIRS, json!({"src": "cat 0", "trg": "Katze 0"})),
        (CHAT, json!({"prompt": "cat 0", "completion": "Katze 0"})),
    ] {
        let said = dry(&place, task, &["data.train=notes.txt"]).refused(3, &["notes of Anki"]).stderr;
        let Some(rows) = made(&place, &said, "python3 -c") else { return };
        assert_eq!((rows.len(), &rows[0]), (40, &first));
        shown(dry(&place, task, &["data.train=rows.jsonl", "data.split=8"]));
    }
}

#[test]
fn texts_in_the_tags_of_xml_become_rows() {
    let place = Workplace::new();
    let message = |n: usize| format!("  <sms address=\"+393331{n}\" type=\"{}\" body=\"What is {n}?\" />\n", n % 2 + 1);
    place.write(
        "sms.xml",
        format!("<?xml version=\"1.0\"?>\n<smses>\n{}</smses>\n", (0..40).map(message).collect::<String>()),
    );
    let said = dry(&place, CHAT, &["data.train=sms.xml"]).refused(3, &["is XML, and rows are wanted"]).stderr;
    let command = between(&said, "python3 -c", "> rows.jsonl").to_owned() + "> rows.jsonl";
    let Some(_) = ran(&place, &command) else { return };
    assert_eq!(place.read("rows.jsonl").lines().count(), 40);
    dry(&place, CHAT, &["data.train=rows.jsonl"]).refused(3, &["data.text.field=body"]);
}
