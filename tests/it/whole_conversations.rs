//! Conversations that have parts around their messages: a dry run shows what is read, and names what is left out.

use crate::kiln::Workplace;

/// Runs a dry run on rows, and returns all that it prints.
fn dry_run(row: fn(usize) -> String) -> String {
    let place = Workplace::new();
    place.write("rows.jsonl", (0..60).map(|i| row(i) + "\n").collect::<String>());
    let keys = [
        "data.train=rows.jsonl",
        "data.text.format=chat",
        "train.steps=20",
        "model.d_model=32",
        "model.n_heads=2",
        "model.d_ff=64",
    ];
    let keys = keys.iter().flat_map(|key| ["--set", *key]);
    let all: Vec<&str> = ["train", "--dry-run", "--device", "cpu", "--task", "lm"].into_iter().chain(keys).collect();
    let ran = place.run(&all);
    format!("{}\n{}", ran.stdout, ran.stderr)
}

#[test]
fn instructions_and_context_are_read_and_other_fields_are_named() {
    let asked =
        |i: usize| format!(r#"{{"system_prompt": "zzsystem", "question": "source {i}", "answer": "answer {i}"}}"#);
    let told = dry_run(asked);
    assert!(told.contains("zzsystem") && !told.contains("left out"), "{told}");

    let known = |i: usize| {
        format!(r#"{{"question": "source {i}", "context": "zzcontext", "answer": "answer {i}", "topic": "zztopic"}}"#)
    };
    let printed = dry_run(known);
    assert!(printed.contains("zzcontext") && !printed.contains("zztopic"), "{printed}");
    assert!(printed.contains("fields that are left out: topic (in 60 rows)"), "{printed}");
}

#[test]
fn an_answer_of_weight_0_is_not_learned() {
    let row = |i: usize| {
        let [first, last] = [("zzbad", 0), ("answer", 1)].map(|(text, weight)| {
            format!(
                r#"{{"role": "user", "content": "source {i}"}}, {{"role": "assistant", "content": "{text} {i}", "weight": {weight}}}"#
            )
        });
        format!(r#"{{"messages": [{first}, {last}]}}"#)
    };
    let printed = dry_run(row);
    let learned = printed.split("learned: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
    assert!(learned.contains("answer") && !learned.contains("zzbad"), "{printed}");
}

#[test]
fn messages_in_trees_get_no_flags_that_train_something_else() {
    let row =
        |i: usize| format!(r#"{{"message_id": "{i}", "parent_id": null, "text": "source {i}", "role": "prompter"}}"#);
    let printed = dry_run(row);
    assert!(printed.contains("OpenAssistant's trees") && printed.contains("which Kiln does not read"), "{printed}");
    assert!(!printed.contains("data.text.field"), "{printed}");
}
