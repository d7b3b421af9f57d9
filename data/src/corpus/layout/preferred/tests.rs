use super::*;

/// A program of jq for rows that are written one per line.
fn program(rows: &str) -> String {
    found(rows).program.unwrap_or_default()
}

fn found(rows: &str) -> Preferred {
    of(&parsed(rows)).unwrap_or_else(|| panic!("several answers: {rows}"))
}

fn parsed(rows: &str) -> Vec<Map<String, Value>> {
    rows.lines().map(|row| serde_json::from_str(row).expect(row)).collect()
}

#[test]
fn opposite_words_name_a_good_and_a_bad_answer() {
    for [good, bad] in [
        ["preferred_output", "non_preferred_output"],
        ["good", "bad"],
        ["positive", "negative"],
        ["chosen_response", "rejected_response"],
        ["winning_answer", "losing_answer"],
        ["bestResponse", "worstResponse"],
        ["y_w", "y_l"],
        ["answer_accepted", "answer_rejected"],
        ["upvoted", "downvoted"],
        ["preferred", "dispreferred"],
        ["Correct Reply", "Incorrect Reply"],
        ["helpful_output", "unhelpful_output"],
        ["safe", "unsafe"],
        ["desirable_completion", "undesirable_completion"],
        ["more preferred", "less preferred"],
        ["selected", "not selected"],
        ["chosen", "reject"],
    ] {
        let row = format!(r#"{{"id": "a1", "ask": "What is it?", "{bad}": "Dunno.", "{good}": "A cat."}}"#);
        let wanted = format!("{{prompt: .ask, chosen: {}, rejected: {}}}", in_jq(good), in_jq(bad));

        let found = found(&row);
        assert_eq!(found.program.as_deref(), Some(wanted.as_str()));
        assert_eq!(found.renamed, Some(["ask", good, bad].map(str::to_owned)));
    }
}

#[test]
fn questions_are_found_where_they_are_and_instructions_stay() {
    let message = |role: &str| format!(r#"[{{"role": "{role}", "content": "a b"}}]"#);
    let [asked, answer] = ["user", "assistant"].map(message);

    for (row, wanted) in [
        (
            format!(r#"{{"input": {{"messages": {asked}}}, "preferred_output": {answer}, "non_preferred_output": {answer}}}"#),
            "{prompt: .input.messages, chosen: .preferred_output, rejected: .non_preferred_output}",
        ),
        (
            r#"{"system": "Be kind.", "x": "a question of words", "good": "a", "bad": "b"}"#.to_owned(),
            "{system: .system, prompt: .x, chosen: .good, rejected: .bad}",
        ),
        (
            r#"{"question": "q", "pair": {"better": "a", "worse": "b"}, "better_model": "x", "worse_model": "y"}"#.to_owned(),
            "{prompt: .question, chosen: .pair.better, rejected: .pair.worse}",
        ),
        (
            r#"{"question": {"id": "7", "full_text": "Why?", "dataset": "x"}, "answer_0": "a b", "score_0": 1, "answer_1": "c d", "score_1": -1}"#
                .to_owned(),
            "if .score_0 > .score_1 then {prompt: .question.full_text, chosen: .answer_0, rejected: .answer_1} elif .score_0 < .score_1 then \
             {prompt: .question.full_text, chosen: .answer_1, rejected: .answer_0} else empty end",
        ),
        (
            r#"{"query": "q", "pos": ["a", "c"], "neg": ["b"]}"#.to_owned(),
            "{prompt: .query, chosen: .pos[0], rejected: .neg[0]}",
        ),
        (
            r#"{"chosen_chat": [{"role": "user", "content": "q"}], "rejected_chat": [{"role": "user", "content": "q"}], "chosen_score": 3}"#
                .to_owned(),
            "{chosen: .chosen_chat, rejected: .rejected_chat}",
        ),
    ] {
        assert_eq!(program(&row), wanted);
    }
}

#[test]
fn a_bad_answer_next_to_a_plain_one_is_the_rejected_one() {
    let asked = r#"{"role": "user", "content": "q"}"#;
    let answer = r#"{"role": "assistant", "content": "a"}"#;
    for (row, wanted) in [
        (
            format!(r#"{{"messages": [{asked}, {answer}], "rejected_response": "b"}}"#),
            "{prompt: .messages[:-1], chosen: [.messages[-1]], rejected: .rejected_response}",
        ),
        (
            r#"{"instruction": "q", "output": "a", "bad_output": "b"}"#.to_owned(),
            "{prompt: .instruction, chosen: .output, rejected: .bad_output}",
        ),
        (
            r#"{"question": "q", "response": "a", "rejected": "b"}"#.to_owned(),
            "{prompt: .question, chosen: .response, rejected: .rejected}",
        ),
    ] {
        assert_eq!(program(&row), wanted);
    }
}

#[test]
fn numbered_answers_are_ordered_by_the_field_that_chooses() {
    let two = |[first, second]: [&str; 2], choice: &str| {
        format!(r#"{{"prompt": "q", "{first}": "a b", "{second}": "c d", {choice}}}"#)
    };
    let row = |first: &str, second: &str| format!("{{prompt: .prompt, chosen: .{first}, rejected: .{second}}}");
    for (names, choice, conditions) in [
        (
            ["response_0", "response_1"],
            r#""better_response_id": 0"#,
            [".better_response_id == 0", ".better_response_id == 1"],
        ),
        (["response_a", "response_b"], r#""winner": "a""#, [r#".winner == "a""#, r#".winner == "b""#]),
        (["responseA", "responseB"], r#""winner": "model_b""#, [r#".winner == "model_a""#, r#".winner == "model_b""#]),
        (
            ["answer1", "answer2"],
            r#""preferred": "answer2""#,
            [r#".preferred == "answer1""#, r#".preferred == "answer2""#],
        ),
        (["output_1", "output_2"], r#""preference": 2"#, [".preference == 1", ".preference == 2"]),
        (["text_1", "text_2"], r#""best": "1""#, [r#".best == "1""#, r#".best == "2""#]),
        (["first_reply", "second_reply"], r#""choice": "second""#, [r#".choice == "first""#, r#".choice == "second""#]),
        (
            ["answer_0", "answer_1"],
            r#""score_0": 0.5, "score_1": 0.25"#,
            [".score_0 > .score_1", ".score_0 < .score_1"],
        ),
        (["response_a", "response_b"], r#""rank_a": 1, "rank_b": 2"#, [".rank_a < .rank_b", ".rank_a > .rank_b"]),
        (
            ["response_a", "response_b"],
            r#""winner_model_a": 1, "winner_model_b": 0, "winner_tie": 0"#,
            [".winner_model_a == 1", ".winner_model_b == 1"],
        ),
    ] {
        let made = program(&two(names, choice));
        let [first, second] = names;
        let wanted = format!(
            "if {} then {} elif {} then {} else empty end",
            conditions[0],
            row(first, second),
            conditions[1],
            row(second, first)
        );
        assert_eq!(made, wanted);
    }

    let ties = "{\"question\": \"q\", \"conversation_a\": [], \"winner\": \"tie\"}\n";
    let chat = r#"[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]"#;
    let row = format!(r#"{{"conversation_a": {chat}, "conversation_b": {chat}, "winner": "model_b"}}"#);
    let made = program(&format!("{ties}{row}"));
    assert!(
        made.starts_with(r#"if .winner == "model_a" then {chosen: .conversation_a, rejected: .conversation_b}"#),
        "{made}"
    );
}

#[test]
fn a_choice_that_is_not_clear_is_left_to_the_user() {
    for row in [
        r#"{"prompt": "q", "response1": "a b", "response2": "c d", "preference_strength": 3}"#,
        r#"{"history": "a question", "human_ref_A": "a b", "human_ref_B": "c d", "labels": 1}"#,
        r#"{"prompt": "q", "response_a": "a b", "response_b": "c d"}"#,
        r#"{"prompt": "q", "answer_a": "a b", "answer_b": "c d", "winner": 0}"#,
    ] {
        let found = found(row);
        assert!(found.open.is_some_and(|open| open.contains("do not say which answer is better")), "{row}");
        assert!(found.program.is_some_and(|program| program.starts_with("select(CONDITION) | {prompt: ")), "{row}");
    }
}

#[test]
fn a_list_of_answers_is_ordered_by_its_ratings() {
    let rated = "| {prompt: .instruction, chosen: ($all | max_by(.overall_score).response), rejected: ($all | min_by(.overall_score).response)} |";

    for (row, wanted) in [
        (
            r#"{"instruction": "q", "completions": [{"model": "x", "response": "a b", "overall_score": 3}, {"model": "y", "response": "c", "overall_score": 4}]}"#,
            rated,
        ),
        (
            r#"{"prompt": "q", "answers": [{"answer": "a", "rank": 1}, {"answer": "b", "rank": 2}]}"#,
            "chosen: ($all | min_by(.rank).answer), rejected: ($all | max_by(.rank).answer)",
        ),
        (
            r#"{"prompt": "q", "responses": ["a", "b"], "scores": [1, 2]}"#,
            "([.scores, .responses] | transpose) as $all | {prompt: .prompt, chosen: ($all | max_by(.[0])[1])",
        ),
        (
            r#"{"post": "q", "summaries": ["a", "b"], "choice": 1}"#,
            ".summaries as $all | .choice as $best | {prompt: .post, chosen: $all[$best], rejected: ($all | del(.[$best]))[0]}",
        ),
        (
            r#"{"info": {"id": "t3", "post": "a q of words"}, "summaries": [{"text": "a b", "policy": "x"}, {"text": "c d", "policy": "y"}], "choice": 1}"#,
            ".choice as $best | {prompt: .info.post, chosen: $all[$best].text, rejected: ($all | del(.[$best]))[0].text}",
        ),
        (
            r#"{"question": "q", "answers": [{"answer_id": 7, "text": "a b", "pm_score": 1, "selected": true}, {"answer_id": 8, "text": "c d", "pm_score": 0, "selected": false}]}"#,
            "chosen: ($all | max_by(.pm_score).text), rejected: ($all | min_by(.pm_score).text)",
        ),
        (
            r#"{"question": "q", "replies": [{"text": "a b", "is_selected": false}, {"text": "c d", "is_selected": true}]}"#,
            "select(($good | length > 0) and ($bad | length > 0)) | {prompt: .question, chosen: $good[0].text, rejected: $bad[0].text}",
        ),
        (
            r#"{"prompt": {"text": "a q", "replies": [{"message_id": "7c1", "text": "a b", "role": "assistant", "rank": 0}, {"message_id": "8d", "text": "c d", "role": "assistant", "rank": 1}]}}"#,
            "chosen: ($all | min_by(.rank).text), rejected: ($all | max_by(.rank).text)",
        ),
    ] {
        let made = program(row);
        assert!(made.contains(wanted), "{made}");
    }
}

#[test]
fn rows_with_one_answer_or_none_are_not_preferences() {
    for row in [
        r#"{"prompt": "q", "chosen": "a", "rejected": "b"}"#,
        r#"{"question": "q", "answer": "a", "score": 3}"#,
        r#"{"sentence1": "a b", "sentence2": "c d", "label": 1}"#,
        r#"{"question1": "a b", "question2": "c d", "is_duplicate": 1}"#,
        r#"{"question_1": "a b", "answer_1": "c d", "question_2": "e f", "answer_2": "g h"}"#,
        r#"{"text": "a b", "positive": 3, "negative": 4}"#,
        r#"{"wrong": "He go.", "right": "He goes."}"#,
        r#"{"text": "a b", "sentiment": "positive"}"#,
        r#"{"context": "t", "question": "q", "answers": {"text": ["a", "b"], "answer_start": [1, 2]}}"#,
        r#"{"context": "t", "question": "q", "answers": [{"text": "a", "answer_start": 1}, {"text": "b", "answer_start": 2}]}"#,
        r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}"#,
        r#"{"english": "a b", "italian": "c d"}"#,
        r#"{"name": "a b c", "chat_messages": [{"uuid": "m0", "text": "a b", "sender": "human"}, {"uuid": "m1", "text": "c", "sender": "assistant"}]}"#,
    ] {
        assert!(of(&parsed(row)).is_none(), "{row}");
    }
}

#[test]
fn lists_in_strings_become_their_texts() {
    let row = |asked: &str, n: usize| {
        let list = |text: &str| serde_json::json!([text]).to_string();
        serde_json::json!({
            "prompt": asked, "response_a": list(&format!("say \"{n}\"")), "response_b": list("no"),
            "winner_model_a": n % 2, "winner_model_b": 1 - n % 2, "winner_tie": 0
        })
    };
    let rows: Vec<Value> =
        (0..8).map(|n| row(&format!("[\"ask {n}\"]"), n)).chain([row("[\"a\", \"b\"]", 9)]).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.jsonl");
    std::fs::write(&file, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).expect("writable");
    let rows: Vec<Map<String, Value>> = rows.iter().filter_map(|row| row.as_object().cloned()).collect();
    let found = of(&rows).expect("answers");
    assert!(found.open.is_some_and(|open| open.contains("several texts, one for each turn")));
    let command =
        crate::corpus::jq::command(&file, crate::formats::FileFormat::JSON, &found.program.expect("a program"));
    let Some(made) = crate::corpus::followed::rows_made(&format!("x: {command}"), folder.path()) else { return };
    assert_eq!(made.len(), 8, "without two turns: {made:?}");
    assert_eq!(made[1], serde_json::json!({"prompt": "ask 1", "chosen": "say \"1\"", "rejected": "no"}));
}
