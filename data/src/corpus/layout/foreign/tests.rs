use super::*;

/// The program of jq for rows that are the same.
fn program(row: &str, is_chat: bool) -> Option<String> {
    let row: Map<String, Value> = serde_json::from_str(row).expect(row);
    match foreign(&vec![row; 3], is_chat)?.way_out {
        WayOut::Program(_, program) | WayOut::OfAll(_, program) => Some(program),
        WayOut::Text(text) => Some(text),
    }
}

#[test]
fn turns_of_any_form_become_messages_and_other_fields_stay() {
    for (row, wanted) in [
        (
            r#"{"system": "s", "chats": [{"human": "a", "bot": "b"}]}"#,
            r#"del(.chats) + {messages: [.chats[] | to_entries[] | {role: {"bot":"assistant","human":"user"}[.key], content: .value}"#,
        ),
        (
            r#"{"conversation": [{"system": "s", "input": "a", "output": "b"}]}"#,
            r#"(.system // "" | select(. != "") | {role: "system", content: .}), {role: "user", content: .input}, {role: "assistant", content: .output}"#,
        ),
        (
            r#"{"turns": [{"speaker": "USER", "utterance": "how are you"}, {"speaker": "SYSTEM", "utterance": "fine and well"}]}"#,
            r#".turns[0].speaker as $first | .turns[] | {role: (if .speaker == $first then "user" else "assistant" end), content: .utterance}"#,
        ),
        (
            r#"{"dialog": [{"who": "Ann", "said": "how are you"}, {"who": "Bob", "said": "fine and well"}]}"#,
            r#"(if .who == $first then "user" else "assistant" end), content: .said}"#,
        ),
        (
            r#"{"dialog": [{"sender": "agent", "msg": "how may I help"}, {"sender": "customer", "msg": "not at all now"}]}"#,
            r#"{role: {"agent":"assistant","customer":"user"}[.sender], content: .msg}"#,
        ),
        (
            r#"{"messages": [{"role": "developer", "content": "s"}, {"role": "User", "content": "a"}, {"role": "Bot", "content": "b"}]}"#,
            r#".messages |= map(.role |= {"Bot":"assistant","User":"user","developer":"system"}[.])"#,
        ),
        (
            r#"{"chat": [{"from": "customer", "value": "a"}, {"from": "agent", "value": "b"}]}"#,
            r#".chat |= map(.from |= {"agent":"assistant","customer":"user"}[.])"#,
        ),
        (
            r#"{"dialogue": ["how are you", "I am fine"]}"#,
            r#"[.dialogue | to_entries[] | {role: (if .key % 2 == 0 then "user" else "assistant" end), content: .value}]"#,
        ),
        (
            r#"{"conversation": [["how are you", "fine"]]}"#,
            r#"[.conversation[] | {role: "user", content: .[0]}, {role: "assistant", content: .[1]}]"#,
        ),
    ] {
        let found = program(row, false).unwrap_or_else(|| panic!("a conversation: {row}"));
        assert!(found.contains(wanted), "{found}");
    }

    let asked = r#"{"id": "1", "data": ["how are you", "I am fine"]}"#;
    assert!(program(asked, true).is_some() && program(asked, false).is_none());
}

#[test]
fn other_rows_are_no_conversations() {
    for row in [
        r#"{"title": "a b", "posts": [{"by": "x", "body": "a long text"}, {"by": "y", "body": "one more text"}]}"#,
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}"#,
        r#"{"text": "a", "keywords": ["one two", "three four"]}"#,
    ] {
        assert_eq!(program(row, false), None, "{row}");
    }
}
