//! Data of the twelfth trial by newcomers, of conversations and questions as others publish them: what is printed about them is run as it
//! stands, and what it makes is read.

use serde_json::{Value, json};

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{PAIRS, between, dry, lines, ran, shown};

pub(crate) const CHAT: &[&str] = &["--task", "lm", "--set", "data.text.format=chat"];

/// Runs the command of a message that begins with `start`, and returns the rows that it makes; `None` without its program.
pub(crate) fn made(place: &Workplace, said: &str, start: &str) -> Option<Vec<Value>> {
    let command = between(said, start, "> rows.jsonl").to_owned() + "> rows.jsonl";
    ran(place, &command)?;
    Some(place.read("rows.jsonl").lines().map(|line| serde_json::from_str(line).expect(line)).collect())
}

/// Writes rows, and returns what a refusal says of them in both tasks. Both say the same of the rows.
fn refused(place: &Workplace, file: &str, text: &str, wanted: &str) -> String {
    place.write(file, text);
    let train = format!("data.train={file}");
    let keys = [train.as_str(), "data.split=8"];
    dry(place, PAIRS, &keys).refused(3, &[wanted, "--task lm --set data.text.format=chat"]);
    dry(place, CHAT, &keys).refused(3, &[wanted]).stderr
}

/// Returns what is shown of `rows.jsonl` as conversations.
fn learned(place: &Workplace) -> String {
    shown(dry(place, CHAT, &["data.train=rows.jsonl", "data.split=8"]))
}

fn roles(row: &Value) -> String {
    let messages = row["messages"].as_array().expect("messages").iter();
    messages.map(|message| &message["role"].as_str().expect("a role")[..1]).collect()
}

/// A table of rows with the same fields, none of which needs quotes.
fn table(rows: &[Value]) -> String {
    let names: Vec<&String> = rows[0].as_object().expect("an object").keys().collect();
    let header = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let line = |row: &Value| names.iter().map(|name| cell(&row[name.as_str()])).collect::<Vec<_>>().join(",");
    [header].into_iter().chain(rows.iter().map(line)).map(|line| line + "\n").collect()
}

#[test]
fn facts_about_a_person_are_no_turns_and_the_last_candidate_answers() {
    let place = Workplace::new();
    let turn = |n: usize, at: usize| format!("turn {at} of talk {n}");
    let history = |n: usize, at: usize| (0..at).map(|at| turn(n, at)).collect::<Vec<_>>();
    let candidates = |n: usize, at: usize| json!(["a wrong one", "one more wrong", turn(n, at)]);
    let facts = |n: usize| json!([format!("i like {n} stones"), "i have a dog"]);
    let row = |n: usize| {
        let one = |at: usize| json!({"candidates": candidates(n, at), "history": history(n, at)});
        json!({"personality": facts(n), "utterances": [one(1), one(3)]})
    };
    let said = refused(&place, "persona.jsonl", &lines(40, row), "earlier turns in \"history\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((rows.len(), roles(&rows[0]).as_str()), (40, "suaua"));
    assert_eq!(rows[1]["messages"][0]["content"], "i like 1 stones\ni have a dog");
    assert_eq!(rows[1]["messages"][4]["content"], "turn 3 of talk 1");
    let shown = learned(&place);
    assert!(!shown.contains("wrong") && shown.contains("i like"), "{shown}");

    // The same with a row for each answer.
    let row = |n: usize| {
        let (talk, at) = (n / 2, 1 + n % 2 * 2);
        json!({"personality": facts(talk), "candidates": candidates(talk, at), "history": history(talk, at), "conv_id": talk, "utterance_idx": n % 2})
    };
    let said = refused(&place, "flat.jsonl", &lines(60, row), "the last one is the right answer");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((rows.len(), roles(&rows[0]).as_str()), (30, "suaua"));

    // Without a number of the talk, each row has its own answer to learn.
    let row = |n: usize| json!({"persona_b": facts(n), "dialogue": history(n, 3), "reference": turn(n, 3)});
    let said = refused(&place, "reference.jsonl", &lines(40, row), "earlier turns in \"dialogue\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!(rows[0]["messages"][2]["train"], json!(false));
    assert_eq!(rows[0]["messages"][4], json!({"role": "assistant", "content": "turn 3 of talk 0", "train": true}));
    assert!(learned(&place).contains("i like"));
}

#[test]
fn messages_of_support_follow_their_replies() {
    let place = Workplace::new();
    let row = |n: usize| {
        let (talk, at) = (n / 3, n % 3);
        let id = |at: usize| (4 * talk + at).to_string();
        json!({
            "tweet_id": id(at), "author_id": if at == 1 { "support".to_owned() } else { (900 + talk).to_string() }, "inbound": at != 1,
            "text": format!("message {at} of {talk}"), "response_tweet_id": if at < 2 { id(at + 1) } else { String::new() },
            "in_response_to_tweet_id": if at > 0 { id(at - 1) + ".0" } else { String::new() }
        })
    };
    let rows: Vec<Value> = (0..90).map(row).collect();
    let said = refused(&place, "twcs.csv", &table(&rows), "replies to in \"in_response_to_tweet_id\"");
    let Some(rows) = made(&place, &said, "python3 -c") else { return };
    assert_eq!((rows.len(), roles(&rows[0]).as_str()), (30, "uau"));
    assert!(learned(&place).contains("message 1 of"));
}

#[test]
fn messages_in_rows_become_conversations_by_their_numbers() {
    let place = Workplace::new();
    let content = |rows: &[Value], row: usize, at: usize| rows[row]["messages"][at]["content"].clone();
    // Names of roles, in an order that only the times tell.
    let row = |n: usize| {
        let (call, at) = (n / 6, 5 - n % 6);
        json!({"call_id": format!("c{call:02}"), "speaker": (["agent", "customer"][at % 2]), "start": at as f64 + 0.5, "text": format!("word {at} of call {call}")})
    };
    let rows: Vec<Value> = (0..72).map(row).collect();
    let said = refused(&place, "calls.csv", &table(&rows), "messages of persons in \"speaker\"");
    let Some(made_rows) = made(&place, &said, "python3 -c") else { return };
    assert_eq!((made_rows.len(), roles(&made_rows[0]).as_str()), (12, "auauau"));
    assert_eq!(content(&made_rows, 0, 0), "word 0 of call 0");

    // Numbers of persons who speak in one talk alone, and commas that are spelled.
    let row = |n: usize| {
        let (talk, at) = (n / 4, n % 4);
        json!({
            "conv_id": format!("hit:{talk}"), "utterance_idx": at + 1, "context": (["proud", "afraid"][talk % 2]), "prompt": format!("I saw {talk} dogs"),
            "speaker_idx": 2 * talk + at % 2, "utterance": format!("well_comma_ turn {at} of {talk}")
        })
    };
    let rows: Vec<Value> = (0..80).map(row).collect();
    let said = refused(&place, "empathetic.csv", &table(&rows), "one per row");
    let Some(made_rows) = made(&place, &said, "python3 -c") else { return };
    assert_eq!((made_rows.len(), roles(&made_rows[0]).as_str()), (20, "uaua"));
    assert_eq!(content(&made_rows, 0, 1), "well, turn 1 of 0");

    // A mark says who works there, and several people do.
    let row = |n: usize| {
        let (ticket, at) = (n / 4, n % 4);
        json!({"ticket_id": ticket, "author_id": if at % 2 == 0 { ticket } else { 70 + at }, "is_agent": at % 2 == 1, "body": format!("note {at} of {ticket}")})
    };
    let said = refused(&place, "tickets.jsonl", &lines(60, row), "one per row");
    let Some(made_rows) = made(&place, &said, "jq -cs") else { return };
    assert_eq!((made_rows.len(), roles(&made_rows[0]).as_str()), (15, "uaua"));
    assert!(learned(&place).contains("note 1 of"));
}

#[test]
fn several_questions_with_one_answer_become_rows() {
    let place = Workplace::new();
    let row = |n: usize| json!({"questions": [format!("how is {n} done?"), format!("how do I do {n}?")], "answer": format!("do {n} so")});
    let said = refused(&place, "faq.jsonl", &lines(40, row), "belong to the same \"answer\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!(rows.len(), 80);
    assert_eq!(rows[1], json!({"prompt": "how do I do 0?", "completion": "do 0 so"}));
    assert!(learned(&place).contains(" so<|im_end|>"));
}

#[test]
fn reasoning_is_learned_with_the_answer_behind_it() {
    let place = Workplace::new();
    let row = |n: usize| json!({"source": format!("is {n} even or is it odd?"), "target": (["yes", "no"][n % 2]), "rationale": format!("two divides {n} or not")});
    let said = refused(&place, "cot.jsonl", &lines(40, row), "the reasoning before it in \"rationale\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!(rows[0], json!({"prompt": "is 0 even or is it odd?", "completion": "two divides 0 or not\n\nyes"}));
    let pairs =
        ["data.train=cot.jsonl", "data.split=8", "data.corpus.source_field=source", "data.corpus.target_field=target"];
    assert!(shown(dry(&place, PAIRS, &pairs)).contains("40 rows"));
}

#[test]
fn logged_requests_become_conversations_with_their_replies() {
    let place = Workplace::new();
    let asked =
        |n: usize| json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": format!("ask {n}")}]);
    let reply = |n: usize| json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": format!("reply {n}")}}], "model": "m"});
    let request = |n: usize| json!({"model": "m", "messages": asked(n)});
    let parts = |text: String| json!([{"type": "text", "text": text}]);
    let forms: [Box<dyn Fn(usize) -> Value>; 5] = [
        Box::new(|n| json!({"id": n, "request": request(n), "response": reply(n)})),
        Box::new(|n| json!({"call_type": "completion", "messages": asked(n), "response": reply(n)})),
        Box::new(
            |n| json!({"request_body": request(n).to_string(), "response_body": reply(n).to_string(), "status": 200}),
        ),
        Box::new(
            |n| json!({"input": asked(n).to_string(), "output": json!({"role": "assistant", "content": format!("reply {n}")}), "metadata": {"a": "b"}}),
        ),
        Box::new(|n| {
            json!({
                "request": {"system": "Be kind.", "messages": [{"role": "user", "content": parts(format!("ask {n}"))}]},
                "response": {"role": "assistant", "content": parts(format!("reply {n}"))}
            })
        }),
    ];
    let wanted = json!([
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "ask 0"}, {"role": "assistant", "content": "reply 0"}
    ]);
    for form in forms {
        let said = refused(&place, "log.jsonl", &lines(40, form), "with the reply in");
        let Some(rows) = made(&place, &said, "jq -c") else { return };
        assert_eq!((rows.len(), &rows[0]["messages"]), (40, &wanted), "{said}");
        assert!(learned(&place).contains("reply"));
    }

    // An earlier answer does not hide that the last one stands elsewhere.
    let row = |n: usize| {
        let message = |role: &str| json!({"role": role, "content": format!("{role} {n}")});
        json!({"messages": [message("user"), message("assistant"), message("user")], "response": format!("the last {n}")})
    };
    let said = refused(&place, "last.jsonl", &lines(40, row), "with the reply in \"response\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!(rows[0]["messages"][3], json!({"role": "assistant", "content": "the last 0"}));
}

#[test]
fn instructions_of_all_rows_stay_with_them() {
    let place = Workplace::new();
    let instance =
        |n: usize| json!({"id": n, "input": format!("the stone {n} is here"), "output": [format!("{n} is here")]});
    let example = json!({"input": "a b", "output": "b", "explanation": "so it is"});
    let task = json!({
        "Contributors": ["Ada"], "Definition": ["Say where the stone is."], "Positive Examples": [example, example],
        "Instances": (0..60).map(instance).collect::<Vec<_>>()
    });
    for text in [serde_json::to_string_pretty(&task).expect("JSON"), task.to_string()] {
        let said = refused(&place, "task.json", &text, "belong to all of them");
        assert!(said.contains("that leaves out \"Positive Examples\""), "{said}");
        let Some(rows) = made(&place, &said, "jq -c") else { return };
        let wanted = json!({"prompt": "Say where the stone is.\n\nthe stone 0 is here", "completion": "0 is here"});
        assert_eq!((rows.len(), &rows[0]), (60, &wanted));
    }
}

#[test]
fn replies_inside_of_objects_answer_their_texts() {
    let place = Workplace::new();
    let row = |n: usize| {
        let reply = if n.is_multiple_of(3) {
            Value::Null
        } else {
            json!({"id": n, "body": format!("Thank you for {n}."), "modified": "2024-01-01"})
        };
        json!({"title": format!("Nice {n} times"), "review": format!("I like the {n} stones of it."), "rating": n % 5 + 1, "developer_response": reply})
    };
    let said = refused(&place, "reviews.jsonl", &lines(60, row), "reply to each in \"developer_response.body\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!(rows.len(), 40);
    assert_eq!(
        rows[0],
        json!({"prompt": "Nice 1 times\nI like the 1 stones of it.", "completion": "Thank you for 1."})
    );

    let row = |n: usize| {
        let reply = if n.is_multiple_of(3) { String::new() } else { format!("Thank you for {n}.") };
        json!({"reviewId": format!("gp:{n}"), "content": format!("I like the {n} stones of it."), "score": n % 5 + 1, "replyContent": reply})
    };
    let table = table(&(0..60).map(row).collect::<Vec<_>>());
    let said = refused(&place, "play.csv", &table, "reply to each in \"replyContent\"");
    let Some(rows) = made(&place, &said, "python3 -c") else { return };
    assert_eq!((rows.len(), &rows[0]["completion"]), (40, &json!("Thank you for 1.")));
}

#[test]
fn lists_of_languages_and_texts_become_fields() {
    let place = Workplace::new();
    let row = |n: usize| {
        let languages = if n.is_multiple_of(4) { vec!["de", "en"] } else { vec!["de", "en", "it"] };
        let texts: Vec<String> = languages.iter().map(|name| format!("{name} words of {n}")).collect();
        json!({"talk_name": format!("talk {n}"), "translations": {"language": languages, "translation": texts}})
    };
    place.write("ted.jsonl", lines(60, row));
    let keys = ["data.train=ted.jsonl", "data.split=8"];
    let said = dry(&place, PAIRS, &keys)
        .refused(3, &["lists of the languages", "for other languages, write their names in both: it"])
        .stderr;
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((rows.len(), &rows[0]), (60, &json!({"de": "de words of 0", "en": "en words of 0"})));
    let fields = ["data.corpus.source_field=de", "data.corpus.target_field=en"];
    let said = shown(dry(&place, PAIRS, &["data.train=rows.jsonl", "data.split=8", fields[0], fields[1]]));
    assert!(said.contains("de words of") && said.contains("en words of"), "{said}");
}

#[test]
fn lists_of_questions_and_answers_follow_their_text() {
    let place = Workplace::new();
    let row = |n: usize| {
        json!({
            "source": "cnn", "story": format!("There were {n} stones and a dog."), "questions": [format!("how many in {n}?"), "who was there?"],
            "answers": {"input_text": [n.to_string(), "a dog"], "answer_start": [1, 2]}
        })
    };
    let said = refused(&place, "coqa.jsonl", &lines(40, row), "about the text in \"story\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((rows.len(), roles(&rows[0]).as_str()), (40, "uaua"));
    assert_eq!(rows[0]["messages"][0]["content"], "There were 0 stones and a dog.\n\nhow many in 0?");
    assert_eq!(rows[3]["messages"][3]["content"], "a dog");
}

#[test]
fn worse_answers_are_not_learned_from_whole_conversations() {
    let place = Workplace::new();
    let talk = |n: usize, answer: &str| format!("\n\nHuman: ask {n}\n\nAssistant: {answer} {n} and so on");
    place.write("hh.jsonl", lines(40, |n| json!({"chosen": talk(n, "good"), "rejected": talk(n, "a bad one")})));
    for task in [PAIRS, CHAT] {
        let said = dry(&place, task, &["data.train=hh.jsonl"]).refused(3, &["data.text.format=preferences"]).stderr;
        assert!(!said.contains("messages"), "{said}");
    }

    // Of ranked replies to a message, the best one stays.
    let row = |n: usize| {
        let (tree, at) = (n / 3, n % 3);
        let parent = if at == 0 { Value::Null } else { json!(format!("m{tree}-0")) };
        let text = ["ask", "worse", "better"][at];
        json!({
            "message_id": format!("m{tree}-{at}"), "parent_id": parent, "role": (if at == 0 { "prompter" } else { "assistant" }),
            "text": format!("{text} {tree}"), "rank": if at == 0 { Value::Null } else { json!(2 - at) }
        })
    };
    let said = refused(&place, "oasst.jsonl", &lines(60, row), "each path of the best replies");
    let Some(rows) = made(&place, &said, "jq -cs") else { return };
    assert_eq!((rows.len(), &rows[0]["messages"][1]["content"]), (20, &json!("better 0")));
}

#[test]
fn speakers_in_lists_of_their_own_and_outside_of_lists_are_known() {
    let place = Workplace::new();
    let said_in = |n: usize| (0..4).map(|at| format!("turn {at} of {n}")).collect::<Vec<_>>();
    let row = |n: usize| json!({"dialogue_id": format!("PMUL{n}"), "turns": {"turn_id": ["0", "1", "2", "3"], "speaker": [0, 1, 0, 1], "utterance": said_in(n)}});
    let said = refused(&place, "woz.jsonl", &lines(40, row), "have a \"speaker\"");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((roles(&rows[0]).as_str(), &rows[0]["messages"][3]["content"]), ("uaua", &json!("turn 3 of 0")));

    let part = |n: usize, at: usize, who: &str| json!({"body": format!("part {at} of {n}"), "author": {"type": who, "name": "Ada"}});
    let row = |n: usize| json!({"id": n, "source": part(n, 0, "user"), "conversation_parts": {"conversation_parts": [part(n, 1, "admin"), part(n, 2, "user")]}});
    let said = refused(&place, "intercom.jsonl", &lines(40, row), "threads, with a first message");
    let Some(rows) = made(&place, &said, "jq -c") else { return };
    assert_eq!((roles(&rows[0]).as_str(), &rows[0]["messages"][0]["content"]), ("uau", &json!("part 0 of 0")));
}
