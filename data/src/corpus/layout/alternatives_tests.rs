//! Lists of texts that do not follow each other in a talk: ways to say the same, questions without answers, and the words of another text.

use serde_json::json;

use super::*;
use crate::corpus::followed::rows_made;

/// Writes a file, and returns how it is refused and what the first command makes of it, if it has one.
fn asked(name: &str, text: &str, task: Task, format: TextFormat) -> (String, Vec<Value>) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("writable");
    let (corpus, labels) = (CorpusConfig::default(), LabelConfig::default());
    let text = TextConfig { format, ..TextConfig::default() };
    let other_tasks = &[Task::Lm, Task::Translation, Task::Classification];
    let reader = RowReader { task, other_tasks, corpus: &corpus, text: &text, labels: &labels };
    let said = check_layout(&[file], &reader).err().map(|error| error.to_string()).unwrap_or_default();
    let made = if said.contains("> rows.jsonl") { rows_made(&said, folder.path()) } else { None };
    (said, made.unwrap_or_default())
}

const PAIRS: (Task, TextFormat) = (Task::Translation, TextFormat::Auto);
const CHAT: (Task, TextFormat) = (Task::Lm, TextFormat::Chat);
const CLASSES: (Task, TextFormat) = (Task::Classification, TextFormat::Auto);

fn lines(row: &dyn Fn(usize) -> Value) -> String {
    (0..24).map(|n| row(n).to_string() + "\n").collect()
}

#[test]
fn intents_become_pairs_of_all_patterns_and_responses_or_a_row_of_each_pattern() {
    let intents = json!([
        {"tag": "greeting", "patterns": ["Hi", "How are you"], "responses": ["Hello!", "Hi there, how can I help?"]},
        {"tag": "bye", "patterns": ["Bye", "See you"], "responses": ["Goodbye", "See you soon!"], "context": [""]},
        {"tag": "thanks", "patterns": ["Thanks a lot"], "responses": ["You are welcome"]},
    ]);
    let rows = intents.as_array().expect("a list");
    let each_line: String = rows.iter().map(|row| row.to_string() + "\n").collect();
    let wrapped = json!({"intents": intents});

    for (name, text) in [
        ("intents.json", serde_json::to_string_pretty(&wrapped).expect("plain data")),
        ("one_line.json", wrapped.to_string()),
        ("array.json", intents.to_string()),
        ("rows.jsonl", each_line),
    ] {
        for (task, format) in [PAIRS, CHAT] {
            let (said, made) = asked(name, &text, task, format);
            assert!(said.contains("{prompt: .patterns[], completion: .responses[]}"), "{name}: {said}");
            assert!(!said.contains("role"), "no talk: {said}");
            assert!(made.is_empty() || made.len() == 9, "{made:?}");
            assert!(made.is_empty() || made[0] == json!({"prompt": "Hi", "completion": "Hello!"}), "{made:?}");
        }
        let (said, made) = asked(name, &text, CLASSES.0, CLASSES.1);
        assert!(said.contains("{text: .patterns[], label: .tag}") && !said.contains("{patterns}"), "{name}: {said}");
        assert!(made.is_empty() || made.len() == 5 && made[1] == json!({"text": "How are you", "label": "greeting"}));
    }
}

#[test]
fn a_class_of_its_own_in_each_row_has_its_texts_in_a_list_of_any_name() {
    for (list, class) in [("examples", "intent"), ("utterances", "intent"), ("said", "category"), ("phrases", "label")]
    {
        let row = |n: usize| json!({class: format!("class {n}"), list: [format!("say {n} so"), format!("or say {n}")]});
        let (said, made) = asked("a.jsonl", &lines(&row), CLASSES.0, CLASSES.1);
        assert!(said.contains(&format!("{{text: .{list}[], label: .{class}}}")), "{said}");
        assert!(made.is_empty() || made.len() == 48);
    }
    // The parts of one text stay together.
    let dish = |n: usize| json!({"cuisine": (["greek", "thai"][n % 2]), "id": n, "ingredients": [format!("salt {n}"), "romaine lettuce"]});
    let (said, _) = asked("a.jsonl", &lines(&dish), CLASSES.0, CLASSES.1);
    assert!(said.contains("text_field={ingredients}"), "{said}");
}

#[test]
fn questions_and_answers_at_the_same_places_stay_together() {
    let row = |n: usize| {
        let of = |what: &str| (0..=n % 3).map(|at| format!("{what} {at} of {n}")).collect::<Vec<_>>();
        json!({"id": n, "questions": of("what is"), "answers": of("it is")})
    };
    let (said, made) = asked("a.jsonl", &lines(&row), CHAT.0, CHAT.1);
    assert!(said.contains("transpose[]"), "{said}");
    assert!(
        made.is_empty() || made[2] == json!({"prompt": "what is 1 of 1", "completion": "it is 1 of 1"}),
        "{made:?}"
    );
    assert!(made.is_empty() || made.len() == 48);
}

#[test]
fn questions_in_turns_are_no_talk_without_their_answers() {
    let mt =
        |n: usize| json!({"question_id": n, "category": "math", "turns": [format!("Add {n} to it"), "Now double it"]});
    let asking = |n: usize| json!({"id": n, "turns": [format!("What is {n} of it?"), "And what is the double?"]});

    for (task, format) in [PAIRS, CHAT] {
        for row in [&mt as &dyn Fn(usize) -> Value, &asking] {
            let (said, _) = asked("a.jsonl", &lines(row), task, format);
            assert!(said.contains("several questions in \"turns\" without answers"), "{said}");
            assert!(!said.contains("> rows.jsonl"), "{said}");
        }
        let answered = |n: usize| {
            let mut row = mt(n);
            row["reference"] = if n.is_multiple_of(2) { json!([format!("it is {n}"), "twice"]) } else { Value::Null };
            row
        };
        let (said, made) = asked("a.jsonl", &lines(&answered), task, format);
        assert!(said.contains("questions in \"turns\" with their answers in \"reference\""), "{said}");
        assert!(made.is_empty() || made.len() == 12, "{made:?}");
        let last = made.first().map(|row| row["messages"][3].clone());
        assert!(last.is_none_or(|last| last == json!({"role": "assistant", "content": "twice"})), "{made:?}");
    }
    let talk =
        |n: usize| json!({"id": n, "dialog": [format!("Who wrote {n} of it?"), "It was me", "Why so?", "For fun"]});
    let (said, _) = asked("a.jsonl", &lines(&talk), PAIRS.0, PAIRS.1);
    assert!(said.contains("a list of texts in turn"), "{said}");
}

#[test]
fn lists_under_any_name_are_talks_if_each_second_text_answers_a_question() {
    let talk = |n: usize| json!({"id": n.to_string(), "data": [format!("Who wrote {n} of it? (7)"), "It was me. [4]"]});
    let (said, _) = asked("a.jsonl", &lines(&talk), PAIRS.0, PAIRS.1);
    assert!(said.contains("conversations whose \"data\" is a list of texts in turn"), "{said}");
    let captions = |n: usize| json!({"id": n, "captions": [format!("a dog of {n} runs"), "the dog runs fast"]});
    let (said, _) = asked("a.jsonl", &lines(&captions), PAIRS.0, PAIRS.1);
    assert!(!said.contains("role"), "{said}");
}

#[test]
fn words_of_another_text_and_what_all_rows_have_answer_nothing() {
    let spider = |n: usize| {
        let query = format!("SELECT x{n} FROM y WHERE z > {n}");
        let words: Vec<&str> = query.split(' ').collect();
        let without = ["select", &format!("x{n}"), "from", "y", "where", "z", ">", "value"].map(str::to_owned);
        json!({
            "db_id": format!("d{}", n % 3), "query": query, "query_toks": words, "query_toks_no_value": without,
            "question": format!("How many of {n} are there?"), "question_toks": ["How", "many"], "sql": {"limit": null},
        })
    };
    let renamed = |n: usize| {
        let row = spider(n);
        json!({"question": row["question"], "answer_words": row["query_toks"], "solution": row["query"]})
    };
    let constant = |n: usize| {
        let row = spider(n);
        json!({"question": row["question"], "answers": ["select", format!("other {n}")], "query": row["query"]})
    };

    for (row, answer) in [(&spider as &dyn Fn(usize) -> Value, "query"), (&renamed, "solution"), (&constant, "query")] {
        let (said, _) = asked("a.jsonl", &lines(row), PAIRS.0, PAIRS.1);
        let flags = format!("--set data.corpus.source_field=question --set data.corpus.target_field={answer}");
        assert!(said.contains(&flags) && !said.contains("> rows.jsonl"), "{said}");
        let (said, _) = asked("a.jsonl", &lines(row), CHAT.0, CHAT.1);
        assert!(said.contains(&format!("data.text.field=question,{answer}")), "{said}");
    }
    // A text comes before a list, and a list before one word.
    for (fields, program) in [
        (r#""answers": ["a b", "c d"], "long_answer": "it is N of them""#, "completion: .long_answer}"),
        (r#""answers": ["a N", "c d"], "answer": "N""#, "completion: .answers[0]}"),
    ] {
        let row = format!(r#"{{"question": "what is N of it", "context": "a long text", {fields}}}"#);
        let row = |n: usize| serde_json::from_str(&row.replace('N', &n.to_string())).expect("a row");
        let (said, _) = asked("a.jsonl", &lines(&row), PAIRS.0, PAIRS.1);
        assert!(said.contains(program), "{said}");
    }
}
