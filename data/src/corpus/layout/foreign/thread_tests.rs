//! Messages that reply to one another: what the printed commands make of them.

use serde_json::json;

use super::super::roles_tests::refusal;
use super::*;
use crate::corpus::followed;
use crate::corpus::jq;
use crate::corpus::text::{Task, TextFormat};
use crate::formats::FileFormat;

/// Runs the command for rows of a file, and returns the texts of each conversation with the letter of their role. `None` without jq.
fn conversations(rows: &[Value]) -> Option<Vec<Vec<String>>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.jsonl");
    std::fs::write(&file, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).expect("writable");
    let rows: Vec<Map<String, Value>> = rows.iter().filter_map(|row| row.as_object().cloned()).collect();
    let command = match foreign(&rows, true).expect("conversations").way_out {
        WayOut::Program(_, program) => jq::command(&file, FileFormat::JSON, &program),
        WayOut::OfAll(_, program) => jq::command_of_all(&file, FileFormat::JSON, &program),
        WayOut::Text(text) => panic!("no command: {text}"),
    };
    let made = followed::rows_made(&format!("x: {command}"), folder.path())?;
    let said = |message: &Value| {
        let [role, text] = ["role", "content"].map(|name| message[name].as_str().expect("a text"));
        format!("{}: {text}", &role[..1])
    };
    Some(made.iter().map(|row| row["messages"].as_array().expect("a list").iter().map(said).collect()).collect())
}

#[test]
fn the_best_replies_of_a_tree_are_a_conversation() {
    let reply = |id: &str, rank: usize, inside: Value| {
        json!({"message_id": id, "text": format!("answer {id}"), "role": "assistant", "rank": rank, "replies": inside})
    };
    let ask = json!([{"message_id": "m3", "text": "and then?", "role": "prompter", "replies": [reply("c", 0, json!([]))]}]);
    let tree = json!({"message_id": "m", "text": "ask", "role": "prompter", "replies": [reply("a", 1, json!([])), reply("b", 0, ask)]});
    let wanted = vec!["u: ask", "a: answer b", "u: and then?", "a: answer c"];
    for row in [json!({"message_tree_id": "t", "prompt": tree.clone()}), tree] {
        let Some(made) = conversations(&[row]) else { return };
        assert_eq!(made, [wanted.clone()]);
    }
}

#[test]
fn rows_follow_the_message_that_they_reply_to() {
    let row = |id: &str, parent: Option<&str>, text: &str, role: &str| {
        json!({"message_id": id, "parent_id": parent, "text": text, "role": role, "deleted": text == "gone"})
    };
    let rows = [
        row("a", None, "ask", "prompter"),
        row("d", Some("b"), "and then?", "prompter"),
        row("b", Some("a"), "one", "assistant"),
        row("c", Some("a"), "two", "assistant"),
        row("e", Some("d"), "gone", "assistant"),
        row("f", None, "alone", "prompter"),
    ];
    let Some(mut made) = conversations(&rows) else { return };
    made.sort();
    assert_eq!(made, [vec!["u: ask", "a: one", "u: and then?"], vec!["u: ask", "a: two"]]);

    let comment = |id: &str, parent: &str, author: &str, body: &str| {
        json!({"id": id, "parent_id": parent, "link_id": "t3_p", "author": author, "body": body, "score": 3})
    };
    let rows = [
        comment("c0", "t3_p", "ada", "how?"),
        comment("c1", "t1_c0", "bob", "so"),
        comment("c2", "t1_c1", "ada", "thanks"),
        comment("c3", "t1_c2", "bob", "[deleted]"),
        comment("c4", "t1_c0", "[deleted]", "[removed]"),
        comment("c5", "t1_c4", "ada", "why was it removed?"),
    ];
    let Some(made) = conversations(&rows) else { return };
    assert_eq!(made, [vec!["u: how?", "a: so", "u: thanks"]]);
}

#[test]
fn turns_without_roles_alternate_and_tools_are_read() {
    let turn = |text: &str| json!({"text": text, "metadata": {}, "span_info": []});
    let row = json!({"goal": {"hotel": {}}, "log": [turn("a room"), turn("which one"), turn("a big one"), turn("done")]});
    let Some(made) = conversations(&[row.clone(), row]) else { return };
    assert_eq!(made[0], ["u: a room", "a: which one", "u: a big one", "a: done"]);
    let export = json!({"uuid": "x", "name": "a b c", "chat_messages": [
        {"uuid": "m0", "text": "how is it", "sender": "human"}, {"uuid": "m1", "text": "it is fine", "sender": "assistant"}
    ]});
    let Some(made) = conversations(&[export]) else { return };
    assert_eq!(made[0], ["u: how is it", "a: it is fine"]);

    let said = |n: usize| {
        let message = |from: &str, value: &str| json!({"from": from, "value": format!("{value} {n}")});
        let calls = ["system", "user", "assistant", "function", "assistant"].map(|role| message(role, role));
        json!({"id": n, "conversations": calls}).to_string()
    };
    let said = refusal(&said, Task::Lm, TextFormat::Chat);
    assert!(said.contains("conversations with the roles") && said.contains(r#""function":"user""#), "{said}");
    let calls = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": []}, {"role": "tool", "content": "b"}
    ]});
    assert!(foreign(&[calls.as_object().expect("a row").clone()], true).is_none());
}

#[test]
fn answers_that_are_lists_of_messages_are_read_with_their_prompts() {
    let row = |n: usize| {
        let message = |role: &str| json!([{"role": role, "content": format!("{role} {n}")}]);
        json!({"prompt": message("user"), "completion": message("assistant")}).to_string()
    };
    for (task, format) in [(Task::Lm, TextFormat::Preferences), (Task::Lm, TextFormat::Auto), (Task::Translation, TextFormat::Auto)] {
        let said = refusal(&row, task, format);
        assert!(said.ends_with("--set data.text.format=chat"), "{said}");
    }
    assert_eq!(refusal(&row, Task::Lm, TextFormat::Chat), "");
    let rated = |n: usize| row(n).replace("}]}", &format!("}}], \"label\": {}}}", n % 2 == 0));
    let said = refusal(&rated, Task::Lm, TextFormat::Preferences);
    assert!(said.contains("(KTO)") && said.ends_with("and read rows.jsonl with --set data.text.format=chat"), "{said}");
}

#[test]
fn notes_of_a_program_are_no_messages() {
    let row = |n: usize| {
        let note = if n % 6 == 0 { r#", "subtype": "channel_join""# } else { "" };
        format!(r#"{{"type": "message", "user": "U{}", "text": "m {n}", "ts": "{n}.0"{note}, "thread_ts": null}}"#, n % 2)
    };
    let said = refusal(&row, Task::Lm, TextFormat::Chat);
    assert!(said.contains("map(select(.subtype == null and (.text | strings | . != \"\")))"), "{said}");
    let row = |n: usize| {
        let kind = if n % 6 == 1 { "service" } else { "message" };
        format!(r#"{{"type": "{kind}", "from": "p{}", "text": "m {n}"}}"#, n % 2)
    };
    let said = refusal(&row, Task::Lm, TextFormat::Chat);
    assert!(said.contains("map(select(.type == \"message\" and (.text"), "{said}");
}
