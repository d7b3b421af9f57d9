//! Transcripts and messages of persons, through jq.

use std::process::Command;

use super::*;
use crate::corpus::json::first_rows;
use crate::formats::FileFormat;

/// What the command for these rows makes; `None` without jq.
fn made(rows: &[String], is_chat: bool) -> Option<Vec<Value>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows.jsonl");
    std::fs::write(&file, rows.join("\n")).expect("writable");
    let rows = first_rows(&file, FileFormat::JSON).rows;
    let (options, program) = match foreign(&rows, is_chat).unwrap_or_else(|| panic!("{rows:?}")).way_out {
        WayOut::Program(_, program) => ("-c", program),
        WayOut::OfAll(_, program) => ("-cs", program),
        WayOut::Text(text) => panic!("{text}"),
    };
    let made = Command::new("jq").args([options, &program]).arg(&file).output().ok()?;
    assert!(made.status.success(), "{program}: {}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(made.stdout).expect("UTF-8");
    Some(text.lines().map(|line| serde_json::from_str(line).expect(line)).collect())
}

/// The roles and texts of a row.
fn turns(row: &Value) -> Vec<String> {
    let messages = row["messages"].as_array().expect("messages");
    messages
        .iter()
        .map(|one| format!("{}: {}", one["role"].as_str().expect("a role"), one["content"].as_str().expect("a text")))
        .collect()
}

/// A conversation with the marks of many programs.
const TRANSCRIPTS: [&str; 14] = [
    "USER: how are\nyou?\n\nASSISTANT: fine\n\nand well <|endoftext|>\nUSER: bye\nASSISTANT: bye now",
    "Human: how are\nyou?\n\nAssistant: fine\n\nand well\n\nHuman: bye\n\nAssistant: bye now",
    "### Instruction:\nhow are\nyou?\n\n### Response:\nfine\n\nand well\n\n### Instruction:\nbye\n\n### Response:\nbye now",
    "<|user|>\nhow are\nyou?</s>\n<|assistant|>\nfine\n\nand well</s>\n<|user|>\nbye</s>\n<|assistant|>\nbye now</s>",
    "<|im_start|>user\nhow are\nyou?<|im_end|>\n<|im_start|>assistant\nfine\n\nand well<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\nbye now<|im_end|>",
    "<bos><start_of_turn>user\nhow are\nyou?<end_of_turn>\n<start_of_turn>model\nfine\n\nand well<end_of_turn>\n<start_of_turn>user\nbye<end_of_turn>\n<start_of_turn>model\nbye now<end_of_turn>",
    "<s>[INST] how are\nyou? [/INST] fine\n\nand well </s><s>[INST] bye [/INST] bye now </s>",
    "Q: how are\nyou?\nA: fine\n\nand well\nQ: bye\nA: bye now",
    "**User:** how are\nyou?\n**Bot:** fine\n\nand well\n**User:** bye\n**Bot:** bye now",
    "### Human: how are\nyou?### Assistant: fine\n\nand well### Human: bye### Assistant: bye now",
    "<|user|> how are\nyou? <|assistant|> fine\n\nand well <|user|> bye <|assistant|> bye now",
    "<human>: how are\nyou?\n<bot>: fine\n\nand well\n<human>: bye\n<bot>: bye now",
    "[|Human|] how are\nyou?\n[|AI|] fine\n\nand well\n[|Human|] bye\n[|AI|] bye now",
    "[Customer]: how are\nyou?\n[Agent]: fine\n\nand well\n[Customer]: bye\n[Agent]: bye now",
];

#[test]
fn transcripts_with_any_marks_become_messages() {
    for text in TRANSCRIPTS {
        for field in ["chat", "text", "conv"] {
            let rows: Vec<String> = (0..4).map(|n| serde_json::json!({ "id": n, field: text }).to_string()).collect();
            let Some(made) = made(&rows, true) else { return };
            assert_eq!(
                turns(&made[0]),
                ["user: how are\nyou?", "assistant: fine\n\nand well", "user: bye", "assistant: bye now"],
                "{text}"
            );
            assert_eq!((made.len(), &made[3]["id"], made[0].get(field)), (4, &3.into(), None), "{text}");
        }
    }
}

#[test]
fn instructions_and_answers_of_tools_keep_their_places() {
    let chat = "USER: what is it?\n\n\nASSISTANT: <functioncall> {\"name\": \"f\"} <|endoftext|>\n\n\nFUNCTION RESPONSE: {\"a\": 1}\n\n\nASSISTANT: it is 1 <|endoftext|>";
    let rows = [serde_json::json!({"system": "SYSTEM: You are kind", "chat": chat}).to_string()];
    let Some(made) = made(&rows, false) else { return };
    assert_eq!(made[0]["system"], "You are kind");
    let wanted = [
        "user: what is it?",
        "assistant: <functioncall> {\"name\": \"f\"}",
        "user: FUNCTION RESPONSE: {\"a\": 1}",
        "assistant: it is 1",
    ];
    assert_eq!(turns(&made[0]), wanted);
}

#[test]
fn what_stands_in_front_of_the_first_turn_are_instructions() {
    let long = "and a long answer that is much longer than the words in front of it, as usual";
    let chat = format!("A chat of two.\n[|Human|] how are you?\n[|AI|] fine {long}\n[|Human|]");
    let rows = vec![serde_json::json!({ "input": chat }).to_string(); 3];
    let Some(made) = made(&rows, true) else { return };
    let answer = format!("assistant: fine {long}");
    assert_eq!(turns(&made[0]), ["system: A chat of two.", "user: how are you?", answer.as_str()]);
}

#[test]
fn plain_texts_are_not_transcripts() {
    for text in
        ["Note: a text\nAnswer: none", "a text that says User: and Assistant: in a line", "Anna: hello\nBen: hi"]
    {
        let row = serde_json::json!({ "body": text }).to_string();
        let rows: Vec<Map<String, Value>> = vec![serde_json::from_str(&row).expect("an object"); 3];
        assert!(foreign(&rows, true).is_none(), "{text}");
    }
}

#[test]
fn messages_of_persons_become_conversations() {
    for [person, text] in [["from", "text"], ["sender", "message"], ["Author", "Content"], ["speaker", "utterance"]] {
        let name = |n: usize| ["Anna", "Ben"][n % 2];
        let row = |n: usize| serde_json::json!({ person: name(n), text: format!("words {n}") }).to_string();
        let Some(all) = made(&(0..21).map(row).collect::<Vec<_>>(), true) else { return };
        assert_eq!(all.iter().map(|row| turns(row).len()).collect::<Vec<_>>(), [8, 8, 5]);
        assert_eq!(turns(&all[0])[..2], ["user: words 0", "assistant: words 1"]);
        let row = |n: usize| {
            serde_json::json!({ "thread_id": n / 3, person: name(n), text: format!("words {n}") }).to_string()
        };
        let by_thread = made(&(0..9).map(row).collect::<Vec<_>>(), true).expect("jq");
        assert_eq!(turns(&by_thread[1]), ["assistant: words 3", "user: words 4", "assistant: words 5"]);
    }
}
