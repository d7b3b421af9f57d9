use serde_json::Value;

use super::*;

fn texts(conversation: &Conversation) -> Vec<(Role, &str)> {
    conversation.messages.iter().map(|message| (message.role, message.content.as_str())).collect()
}

#[test]
fn three_forms_give_the_same_answers() {
    for line in [
        r#"{"prompt": "Hi", "chosen": "Hello!", "rejected": "What?", "score": 3}"#,
        r#"{"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", "content": "Hello!"}],
            "rejected": "What?"}"#,
        r#"{"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}],
            "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}]}"#,
    ] {
        let found = Preference::parse(line).expect(line);
        assert_eq!(texts(&found.chosen), [(Role::User, "Hi"), (Role::Assistant, "Hello!")], "{line}");
        assert_eq!(texts(&found.rejected), [(Role::User, "Hi"), (Role::Assistant, "What?")], "{line}");
    }
}

#[test]
fn rows_that_are_not_preferences_are_named() {
    for (line, wanted) in [
        ("7", "not a JSON object"),
        (r#"{"prompt": "x", "chosen": "y"}"#, "no field \"rejected\""),
        (r#"{"prompt": "x", "chosen": 1, "rejected": "y"}"#, "field \"chosen\" is a number"),
        (r#"{"prompt": "x", "chosen": "", "rejected": "y"}"#, "\"chosen\": message 2: the answer is empty"),
        (r#"{"prompt": "x", "chosen": "y", "rejected": "y"}"#, "are the same"),
        (
            r#"{"prompt": [{"role": "assistant", "content": "a"}], "chosen": [{"role": "user", "content": "y"}],
                "rejected": "z"}"#,
            "\"chosen\" ends with a message that is not an answer",
        ),
    ] {
        let problem = Preference::parse(line).expect_err(line).to_string();
        assert!(problem.contains(wanted), "{line}: {problem}");
    }
}

/// The texts of both conversations.
fn both(line: &str) -> [Vec<String>; 2] {
    let found = Preference::parse(line).expect(line);
    [found.chosen, found.rejected].map(|side| side.messages.into_iter().map(|message| message.content).collect())
}

fn list(messages: &[(&str, &str)]) -> Value {
    messages.iter().map(|(role, content)| serde_json::json!({ "role": role, "content": content })).collect()
}

#[test]
fn a_prompt_that_the_answers_begin_with_is_written_once() {
    let with = |start: &[(&str, &str)], answer: &str| list(&[start, &[("assistant", answer)]].concat());
    let asked = [("user", "Hi")];
    let told = [("system", "Be brief."), ("user", "Hi")];
    let long = [("user", "Hi"), ("assistant", "Yes?"), ("user", "Who?")];
    for (prompt, own, wanted) in [
        (Value::from("Hi"), &asked[..], &["Hi"][..]),
        (Value::from(" Hi\n"), &asked, &["Hi"]),
        (list(&asked), &asked, &["Hi"]),
        (Value::from("Hi"), &told, &["Be brief.", "Hi"]),
        (list(&told), &told, &["Be brief.", "Hi"]),
        (list(&told), &asked, &["Be brief.", "Hi"]),
        (list(&told[..1]), &asked, &["Be brief.", "Hi"]),
        (Value::from("Hi"), &long, &["Hi", "Yes?", "Who?"]),
        (Value::from("Who?"), &long, &["Hi", "Yes?", "Who?"]),
        (list(&long[..2]), &[("user", "Who?")], &["Hi", "Yes?", "Who?"]),
        (list(&long), &[], &["Hi", "Yes?", "Who?"]),
    ] {
        let line = serde_json::json!({ "prompt": prompt, "chosen": with(own, "A"), "rejected": with(own, "B") });
        let wanted = |answer: &'static str| [wanted, &[answer]].concat();
        assert_eq!(both(&line.to_string()), [wanted("A"), wanted("B")], "{line}");
    }

    for (prompt, own) in [
        (Value::from("Who?"), &asked[..]),
        (list(&asked), &[("user", "Who?")]),
        (list(&[("system", "Be long."), ("user", "Hi")]), &told),
    ] {
        let line = serde_json::json!({ "prompt": prompt, "chosen": with(own, "A"), "rejected": "B" });
        let problem = Preference::parse(&line.to_string()).expect_err("two prompts").to_string();
        assert!(
            problem.contains("\"chosen\" begins with other messages than the prompt of the row: leave"),
            "{problem}"
        );
    }
}

#[test]
fn prompts_have_the_names_and_fields_of_questions() {
    for (row, wanted) in [
        (r#""system": "S", "question": "Hi""#, &["S", "Hi"][..]),
        (r#""instruction": "Sum up.", "input": "A b.", "history": [["a", "b"]]"#, &["a", "b", "Sum up.\n\nA b."]),
        (r#""conversations": [{"from": "human", "value": "Hi"}]"#, &["Hi"]),
    ] {
        for (chosen, rejected) in
            [(r#""A""#, r#""B""#), (r#"{"from": "gpt", "value": "A"}"#, r#"{"from": "gpt", "value": "B"}"#)]
        {
            let line = format!(r#"{{{row}, "chosen": {chosen}, "rejected": {rejected}}}"#);
            assert_eq!(both(&line)[0], [wanted, &["A"]].concat(), "{line}");
        }
    }

    let messages = list(&[("user", "Hi"), ("assistant", "A")]);
    let other = list(&[("user", "Hi"), ("assistant", "B")]);
    let line = serde_json::json!({
        "prompt": "Hi", "messages": messages, "chosen": messages, "rejected": other, "source": "web", "score_chosen": 8.0,
    });
    assert_eq!(Preference::parse(&line.to_string()).expect("a row").chosen.left_out, ["source"]);
    let bare = Preference::parse(r#"{"chosen": "A", "rejected": "B"}"#).expect_err("no question").to_string();
    assert!(bare.contains("\"chosen\" has an answer and no question: name the question \"prompt\""), "{bare}");
}

#[test]
fn transcripts_are_conversations() {
    let wanted = ["Hi\n\nHow are you?", "Good.", "And now?"].map(str::to_owned);
    let asked = "\n\nHuman: Hi\n\nHow are you?\n\nAssistant: Good.\n\nHuman: And now?";
    for line in [
        serde_json::json!({ "chosen": format!("{asked}\n\nAssistant: Fine.\n"), "rejected": format!("{asked}\n\nAssistant: No.") }),
        serde_json::json!({ "prompt": format!("{asked}\n\nAssistant:"), "chosen": "Fine.", "rejected": "No." }),
        serde_json::json!({
            "prompt": format!("{asked}\n\nAssistant:"), "chosen": format!("{asked}\n\nAssistant: Fine."), "rejected": "No.",
        }),
    ] {
        let of = |answer: &str| [&wanted[..], &[answer.to_owned()]].concat();
        assert_eq!(both(&line.to_string()), [of("Fine."), of("No.")], "{line}");
    }
    let roles =
        Preference::parse(r#"{"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}"#);
    assert_eq!(texts(&roles.expect("a row").chosen), [(Role::User, "a"), (Role::Assistant, "b")]);
    let open =
        Preference::parse(r#"{"chosen": "\n\nHuman: a\n\nAssistant:", "rejected": "\n\nHuman: a\n\nAssistant: c"}"#);
    assert!(open.expect_err("no answer").to_string().contains("message 2: the answer is empty"));
    let text = r#"{"prompt": "Human: rights?", "chosen": "Human: yes.", "rejected": "No."}"#;
    assert_eq!(both(text)[0], ["Human: rights?", "Human: yes."]);
}

#[test]
fn an_answer_to_compare_cannot_be_context() {
    let line = r#"{"prompt": "Hi", "chosen": [{"role": "assistant", "content": "a", "weight": 0}], "rejected": "b"}"#;
    let problem = Preference::parse(line).expect_err("context").to_string();
    assert!(problem.contains("\"chosen\": the conversation has no answer to learn"), "{problem}");
}
