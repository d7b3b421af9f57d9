//! Rows in the form of public data sets and of exports of chats, made of a number.

/// Words that differ from row to row.
pub(super) fn words(n: usize, start: &str) -> String {
    let words = ["river", "stone", "garden", "window", "paper", "silver", "market", "engine"];
    let at = |step: usize| words[(n * step + n / 8) % 8];
    format!("{start} {} {} {} {n}", at(1), at(3), at(5))
}

pub(super) fn hash(n: usize) -> String {
    format!("a{:015x}", n * 7919 + 11)
}

pub(super) fn uuid(n: usize) -> String {
    format!("6f1d4c1e-0c5e-4b1a-9a53-{:012x}", n * 7919)
}

pub(super) fn spider(n: usize) -> String {
    format!(
        r#"{{"db_id": "shop{}", "question": "{}", "query": "goodone {n}", "query_toks": ["goodone", "{n}"], "query_toks_no_value": ["goodone", "value"], "question_toks": ["ask", "{n}", "?"]}}"#,
        n % 3,
        words(n, "ask")
    )
}

pub(super) fn bird(n: usize) -> String {
    let evidence = if n.is_multiple_of(3) { words(n, "evidence") } else { String::new() };
    format!(
        r#"{{"question_id": {n}, "db_id": "shop{}", "question": "{}", "evidence": "{evidence}", "SQL": "{}", "difficulty": "{}"}}"#,
        n % 2,
        words(n, "ask"),
        words(n, "goodone"),
        ["simple", "hard"][n % 2]
    )
}

pub(super) fn wiki_sql(n: usize) -> String {
    format!(r#"{{"table_id": "1-{n}-0", "question": "{}", "sql": {{"goodone": {n}}}}}"#, words(n, "ask"))
}

pub(super) fn quora(n: usize) -> String {
    let second = words(n + 1, ["badone", "goodone"][n % 2]);
    format!(r#"{{"id": {n}, "question1": "{}", "question2": "{second}", "is_duplicate": {}}}"#, words(n, "ask"), n % 2)
}

pub(super) fn snli(n: usize) -> String {
    let (one, other) = (words(n, "ask"), words(n + 1, "goodone"));
    format!(
        r#"{{"annotator_labels": ["neutral"], "captionID": "{n}.jpg", "gold_label": "{}", "sentence1": "{one}", "sentence1_parse": "(ROOT (S {one}))", "sentence2": "{other}", "sentence2_parse": "(ROOT (S {other}))"}}"#,
        ["neutral", "entailment", "contradiction"][n % 3]
    )
}

pub(super) fn tree(n: usize) -> String {
    let node = |id: usize, parent: &str, role: &str, text: &str| {
        let children = if id == 3 { String::new() } else { format!("\"n{}\"", id + 1) };
        format!(
            r#""n{id}": {{"id": "n{id}", "parent": {parent}, "children": [{children}], "message": {{"author": {{"role": "{role}"}}, "content": {{"content_type": "text", "parts": ["{text}"]}}}}}}"#
        )
    };
    let nodes = [
        r#""n0": {"id": "n0", "parent": null, "children": ["n1", "n9"], "message": null}"#.to_owned(),
        node(1, "\"n0\"", "system", ""),
        node(2, "\"n1\"", "user", &words(n, "ask")),
        node(3, "\"n2\"", "assistant", &words(n, "goodone")),
        // An earlier answer that the user has replaced.
        r#""n9": {"id": "n9", "parent": "n0", "children": [], "message": {"author": {"role": "assistant"}, "content": {"parts": ["badone"]}}}"#.to_owned(),
    ];
    format!(
        r#"{{"title": "a title", "mapping": {{{}}}, "current_node": "n3", "conversation_id": "{}"}}"#,
        nodes.join(", "),
        uuid(n)
    )
}

pub(super) fn discord(n: usize) -> String {
    let (name, start) = [("anna", "ask"), ("ben", "goodone")][n % 2];
    format!(
        r#"{{"id": "{n}", "timestamp": "2023-01-01", "isPinned": false, "content": "{}", "author": {{"id": "{}", "name": "{name}"}}, "attachments": [], "stickers": [], "reactions": []}}"#,
        words(n, start),
        n % 2
    )
}

pub(super) fn telegram(n: usize) -> String {
    if n == 0 {
        return r#"{"id": 0, "type": "service", "actor": "Anna", "action": "pin", "text": ""}"#.to_owned();
    }
    let (name, text) = [("Ben", "goodone"), ("Anna", "ask")][n % 2];
    format!(r#"{{"id": {n}, "type": "message", "from": "{name}", "text": "{text} {n}"}}"#)
}

pub(super) fn open_r1(n: usize) -> String {
    let mut answers = [words(n, "goodone"), words(n, "badone")];
    let mut marks = [true, false];
    if n.is_multiple_of(2) {
        answers.reverse();
        marks.reverse();
    }
    format!(
        r#"{{"problem": "{}", "solution": "so it is", "answer": "{n}", "uuid": "{}", "generations": {answers:?}, "correctness_math_verify": {marks:?}}}"#,
        words(n, "ask"),
        uuid(n)
    )
}

pub(super) fn points(n: usize) -> String {
    format!(r#"{{"document": "{}", "summary": ["{}", "goodone {n} it is"]}}"#, words(n, "ask"), words(n, "goodone"))
}

pub(super) fn ultra(n: usize) -> String {
    let scores = if n.is_multiple_of(4) { [4, 4] } else { [2, 7] };
    format!(
        r#"{{"instruction": "{}", "models": ["a", "b"], "completions": [{{"response": "{}", "overall_score": {}}}, {{"response": "{}", "overall_score": {}}}], "correct_answers": ["None"], "incorrect_answers": ["None"]}}"#,
        words(n, "ask"),
        words(n, "badone"),
        scores[0],
        words(n, "goodone"),
        scores[1]
    )
}

pub(super) fn bool_q(n: usize) -> String {
    format!(
        r#"{{"question": "{}", "passage": "{}", "answer": {}}}"#,
        words(n, "ask"),
        words(n, "passage"),
        n.is_multiple_of(2)
    )
}

pub(super) fn apps(n: usize) -> String {
    format!(
        r#"{{"problem_id": {n}, "question": "{}", "solutions": "[\"goodone = {n}\", \"badone = {n}\"]", "input_output": "{{\"inputs\": [\"1\"]}}", "difficulty": "{}", "starter_code": ""}}"#,
        words(n, "ask"),
        ["easy", "hard"][n % 2]
    )
}

pub(super) fn approved(n: usize) -> String {
    format!(
        r#"{{"prompt": "{}", "completion": "{}", "status": "{}"}}"#,
        words(n, "ask"),
        words(n, ["badone", "goodone"][n % 2]),
        ["rejected", "approved"][n % 2]
    )
}
