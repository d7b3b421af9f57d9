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
