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
