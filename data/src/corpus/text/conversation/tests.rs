use std::collections::BTreeMap;

use super::*;

fn parsed(line: &str) -> Vec<(Role, String)> {
    let conversation = Conversation::parse(line, "text").expect(line);
    conversation.messages.into_iter().map(|message| (message.role, message.content)).collect()
}

#[test]
fn every_form_gives_the_same_messages() {
    let wanted = [(Role::User, "Hi".to_owned()), (Role::Assistant, "Hello!".to_owned())];
    for line in [
        r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}"#,
        r#"{"id": 7, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}"#,
        r#"{"prompt": "Hi", "completion": "Hello!"}"#,
        r#"{"instruction": "Hi", "input": "", "output": "Hello!"}"#,
        r#"{"question": "Hi", "answer": "Hello!", "id": 3}"#,
        r#"{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello!"}]}"#,
    ] {
        assert_eq!(parsed(line), wanted, "{line}");
    }
    let line = r#"{"messages": [{"role": "assistant", "content": "4", "reasoning_content": "2 + 2", "weight": 1}]}"#;
    let messages = Conversation::parse(line, "text").expect("a row").messages;
    assert_eq!(messages[0].more, BTreeMap::from([("reasoning_content".to_owned(), "2 + 2".to_owned())]));
}

#[test]
fn named_fields_and_the_input_of_alpaca_are_read() {
    let parsed = |line: &str, field: &str| -> Vec<(Role, String)> {
        let messages = Conversation::parse(line, field).expect(line).messages;
        messages.into_iter().map(|message| (message.role, message.content)).collect()
    };
    let wanted = [(Role::User, "Hi".to_owned()), (Role::Assistant, "Hello!".to_owned())];
    assert_eq!(parsed(r#"{"ask": "Hi", "reply": "Hello!", "text": "no"}"#, "ask, reply"), wanted);
    let list = r#"{"dialog": [{"from": "user", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}"#;
    assert_eq!(parsed(list, "dialog"), wanted);
    let alpaca = r#"{"system": "Be brief.", "instruction": "Sum up.", "input": "A b.", "output": "Ab."}"#;
    let texts: Vec<String> = parsed(alpaca, "text").into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Be brief.", "Sum up.\n\nA b.", "Ab."]);
    let missing = Conversation::parse(r#"{"ask": "Hi"}"#, "ask,reply").expect_err("no reply").to_string();
    assert!(missing.contains("no field \"reply\": the row has \"ask\""), "{missing}");
}

#[test]
fn rated_answers_are_refused_in_every_form() {
    let list = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No"}]"#;
    let shares = r#"[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "No"}]"#;
    let rows = [
        (format!(r#""messages": {list}"#), "text"),
        (format!(r#""conversations": {shares}"#), "text"),
        (format!(r#""dialog": {list}"#), "dialog"),
        (r#""ask": "Hi", "reply": "No""#.to_owned(), "ask,reply"),
        (r#""prompt": [{"role": "user", "content": "Hi"}], "completion": "No""#.to_owned(), "text"),
    ];
    let pairs = ANSWERS.map(|[question, answer]| (format!(r#""{question}": "Hi", "{answer}": "No""#), "text"));
    for (row, field) in rows.into_iter().chain(pairs) {
        for rating in
            [r#""label": false"#, r#""label": 1"#, r#""label": "bad""#, r#""kto_tag": true"#, r#""score": 2.5"#]
        {
            let rated = Conversation::parse(&format!("{{{row}, {rating}}}"), field).expect_err(&row).to_string();
            assert!(rated.contains("whether its answer is good (KTO)"), "{row} {rating}: {rated}");
        }
        let other = format!(r#"{{{row}, "label": "billing", "category": 3}}"#);
        assert!(Conversation::parse(&other, field).is_ok(), "{other}");
    }
}

#[test]
fn rows_that_are_not_conversations_are_named() {
    let many = format!(r#"{{"messages": [{}]}}"#, vec![r#"{"role": "user", "content": "x"}"#; 1001].join(","));
    for (line, wanted) in [
        ("[1]", "not a JSON object"),
        ("{}", "the row has no fields"),
        (r#"{"text": "x", "prompt": "y"}"#, "the row has \"prompt\", \"text\""),
        (r#"{"prompt": "x", "chosen": "y", "rejected": "z"}"#, "which data.text.format = \"preferences\" reads"),
        (r#"{"messages": "x"}"#, "field \"messages\" is a string, wanted an array"),
        (r#"{"messages": []}"#, "field \"messages\" has no messages"),
        (r#"{"messages": [5]}"#, "message 1: a number, wanted an object"),
        (r#"{"messages": [{"role": "user"}]}"#, "message 1: it has no \"content\""),
        (r#"{"messages": [{"role": "user", "content": [1]}]}"#, "message 1: \"content\" is an array"),
        (r#"{"messages": [{"role": "tool", "content": "x"}]}"#, "message 1: the role is \"tool\", wanted"),
        (r#"{"messages": [{"role": "assistant", "tool_calls": [1]}]}"#, "message 1: it has \"tool_calls\""),
        (r#"{"messages": [{"role": "user", "content": "x"}]}"#, "has no answer"),
        (r#"{"messages": [{"role": "assistant", "content": " "}]}"#, "message 1: the answer is empty"),
        (r#"{"prompt": "x", "completion": ""}"#, "message 2: the answer is empty"),
        (&many, "has 1001 messages, 1000 are allowed"),
    ] {
        let problem = Conversation::parse(line, "text").expect_err(line).to_string();
        assert!(problem.contains(wanted), "{line}: {problem}");
    }
}

const LIST: &str = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]"#;

/// Rows with a question and its answer in each form, and the value of `data.text.field` for each.
fn forms() -> Vec<(String, &'static str)> {
    let shares = r#"[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]"#;
    let lists = [
        (format!(r#""messages": {LIST}"#), "text"),
        (format!(r#""conversations": {shares}"#), "text"),
        (format!(r#""dialog": {LIST}"#), "dialog"),
        (r#""ask": "Hi", "reply": "Hello!""#.to_owned(), "ask,reply"),
    ];
    let pairs = ANSWERS.map(|[question, answer]| (format!(r#""{question}": "Hi", "{answer}": "Hello!""#), "text"));
    lists.into_iter().chain(pairs).collect()
}

fn texts(line: &str, field: &str) -> Vec<String> {
    let messages = Conversation::parse(line, field).expect(line).messages;
    messages.into_iter().map(|message| message.content).collect()
}

fn problem(line: &str) -> String {
    Conversation::parse(line, "text").expect_err(line).to_string()
}

#[test]
fn instructions_are_the_system_message_in_every_form() {
    for (row, field) in forms() {
        for name in ["system", "system_prompt", "system_message"] {
            let line = format!(r#"{{"{name}": "Be brief.", {row}}}"#);
            let found = Conversation::parse(&line, field).expect(&line);
            assert_eq!(found.messages[0], ChatMessage::new(Role::System, "Be brief."), "{line}");
            assert_eq!((found.messages.len(), found.left_out), (3, Vec::new()), "{line}");
            for nothing in ["null", "\" \"", "[]"] {
                assert_eq!(texts(&format!(r#"{{"{name}": {nothing}, {row}}}"#), field), ["Hi", "Hello!"]);
            }
        }
    }

    let with_own = |system: &str| {
        format!(
            r#"{{"system": "{system}", "messages": [{{"role": "system", "content": "Be brief."}},
            {{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "Hello!"}}]}}"#
        )
    };
    assert_eq!(texts(&with_own("Be brief. "), "text"), ["Be brief.", "Hi", "Hello!"]);
    let refused = problem(&with_own("Be long."));
    assert!(refused.contains("\"system\" and the system message have different instructions: keep one"), "{refused}");
    let two = problem(r#"{"system": "a", "system_prompt": "b", "prompt": "Hi", "completion": "Hello!"}"#);
    assert!(two.contains("\"system\" and \"system_prompt\" have different instructions"), "{two}");
    let other = problem(r#"{"system": {"a": 1}, "prompt": "Hi", "completion": "Hello!"}"#);
    assert!(other.contains("field \"system\" is an object, wanted a string"), "{other}");
}

#[test]
fn the_context_of_a_question_is_read_and_an_empty_question_adds_no_lines() {
    for (row, wanted) in [
        (r#"{"instruction": "Sum up.", "context": "A b.", "response": "x", "category": "c"}"#, "Sum up.\n\nA b."),
        (r#"{"context": "A b.", "question": "Sum up.", "answer": "x"}"#, "Sum up.\n\nA b."),
        (r#"{"instruction": "Sum up.", "context": "", "response": "x"}"#, "Sum up."),
        (r#"{"instruction": "Sum up.", "input": "A b.", "context": "A b.", "output": "x"}"#, "Sum up.\n\nA b."),
        (r#"{"instruction": "", "input": "A b.", "output": "x"}"#, "A b."),
        (r#"{"instruction": " \n", "context": "A b.", "output": "x"}"#, "A b."),
    ] {
        assert_eq!(texts(row, "text"), [wanted, "x"], "{row}");
    }
    let two = problem(r#"{"instruction": "Sum up.", "input": "a", "context": "b", "output": "x"}"#);
    assert!(two.contains("\"input\" and \"context\" have two texts for one question: join them"), "{two}");
}

#[test]
fn history_has_the_turns_before_the_question() {
    let wanted = ["Be brief.", "a", "b", "c", "d", "Hi", "Hello!"];
    for history in [
        r#"[["a", "b"], ["c", "d"]]"#,
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]"#,
    ] {
        let line = format!(
            r#"{{"system": "Be brief.", "instruction": "Hi", "input": "", "output": "Hello!", "history": {history}}}"#
        );
        assert_eq!(texts(&line, "text"), wanted, "{line}");
        assert_eq!(Conversation::parse(&line, "text").expect("a row").left_out, Vec::<String>::new());
    }
    for nothing in ["[]", "null"] {
        assert_eq!(
            texts(&format!(r#"{{"prompt": "Hi", "completion": "x", "history": {nothing}}}"#), "text"),
            ["Hi", "x"]
        );
    }
    let refused = problem(r#"{"prompt": "Hi", "completion": "x", "history": [["a", "b"], ["c"]]}"#);
    assert!(
        refused.contains("field \"history\": turn 2 is an array, wanted a list of a question and its"),
        "{refused}"
    );
}

#[test]
fn fields_with_texts_that_no_message_has_are_named() {
    for (row, field) in forms() {
        let line = format!(
            r#"{{{row}, "note": "a text", "empty": " ", "n": 7, "again": "Hello!", "tools": [1], "meta": ["x"]}}"#
        );
        assert_eq!(Conversation::parse(&line, field).expect(&line).left_out, ["note", "tools"], "{line}");
    }
    for (line, wanted) in [
        (format!(r#"{{"prompt": "Hi", "messages": {LIST}}}"#), &[][..]),
        (format!(r#"{{"context": "c", "history": [["a", "b"]], "messages": {LIST}}}"#), &["context", "history"]),
        (r#"{"question": "Hi", "context": ["c"], "answer": "x"}"#.to_owned(), &["context"]),
        (r#"{"question": "Hi", "options": {"A": "x", "B": "y"}, "answer": "x"}"#.to_owned(), &["options"]),
        (r#"{"question": "Hi", "endings": ["he left", "he stayed"], "answer": "x"}"#.to_owned(), &["endings"]),
        (r#"{"question": "Hi", "page": {"n": 1, "body": ["two words"]}, "answer": "x"}"#.to_owned(), &["page"]),
        (r#"{"question": "Hi", "tags": ["a", "b"], "said": {"t": "x"}, "answer": "x"}"#.to_owned(), &[]),
        (
            r#"{"question": "Hi", "history": "before", "answer": "x", "reasoning": "y"}"#.to_owned(),
            &["history", "reasoning"],
        ),
    ] {
        assert_eq!(Conversation::parse(&line, "text").expect(&line).left_out, wanted, "{line}");
    }
}

#[test]
fn weights_make_answers_context() {
    let learned = |mark: &str| {
        let line = format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "b"{mark}}},
            {{"role": "user", "content": "c"}}, {{"role": "assistant", "content": "d", "weight": 1.0, "train": null}}]}}"#
        );
        Conversation::parse(&line, "text").map(|found| {
            assert!(found.messages[3].is_learned);
            found.messages[1].is_learned
        })
    };
    for mark in [
        r#", "weight": 0"#,
        r#", "weight": 0.0"#,
        r#", "train": false"#,
        r#", "weight": false"#,
        r#", "training": false"#,
    ] {
        assert_eq!(learned(mark), Ok(false), "{mark}");
    }

    for mark in ["", r#", "weight": 1"#, r#", "train": true"#, r#", "weight": null"#, r#", "loss": 2.5"#] {
        assert_eq!(learned(mark), Ok(true), "{mark}");
    }
    for (mark, wanted) in [
        (r#", "weight": 0.5"#, "message 2: \"weight\" is 0.5, wanted 1 or true"),
        (r#", "weight": -1"#, "message 2: \"weight\" is -1, wanted 1"),
        (r#", "train": "no""#, "message 2: \"train\" is \"no\", wanted 1"),
    ] {
        let refused = learned(mark).expect_err(mark).to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
    let none = problem(
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}"#,
    );
    assert!(none.contains("no answer to learn: \"weight\" or \"train\""), "{none}");
}

#[test]
fn calls_without_content_are_as_good_as_none() {
    for key in ["tool_calls", "function_call"] {
        let line = |calls: &str| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "b", "{key}": {calls}}}]}}"#
            )
        };
        for nothing in ["null", "[]", "{}"] {
            assert_eq!(texts(&line(nothing), "text"), ["a", "b"]);
        }
        let refused = problem(&line(r#"[{"id": 1}]"#));
        assert!(refused.contains(&format!("message 2: it has \"{key}\", which Kiln does not support")), "{refused}");
    }
}

#[test]
fn messages_in_a_string_are_answered_with_the_way_to_a_list() {
    let line = serde_json::json!({ "messages": LIST }).to_string();
    let refused = problem(&line);
    assert!(refused.ends_with(
        "wanted an array of messages: it holds JSON, so make a list of it with jq -c '.messages |= fromjson'"
    ));
}
