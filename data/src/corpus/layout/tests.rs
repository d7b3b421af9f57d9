use super::*;
use crate::corpus::fields::ANSWERS;

fn layout(rows: &[&str]) -> Option<Layout> {
    let rows: Vec<Map<String, Value>> = rows.iter().map(|row| serde_json::from_str(row).expect(row)).collect();
    let order = rows_order(&rows);
    recognize(&rows, &order)
}

/// The order of parsed rows: by name.
fn rows_order(rows: &[Map<String, Value>]) -> Vec<String> {
    rows.iter().take(1).flat_map(|row| row.keys().cloned()).collect()
}

/// Writes a file with `text` and returns how a reader refuses it; nothing if it accepts the file.
fn refusal(name: &str, text: &str, task: Task, [corpus, field]: [[&str; 2]; 2]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("writable");
    let [source, target] = corpus.map(str::to_owned);
    let corpus = CorpusConfig { source_field: source, target_field: target, ..CorpusConfig::default() };
    let format = if field[0] == "chat" { TextFormat::Chat } else { TextFormat::Auto };
    let text = TextConfig { format, field: field[1].into(), ..TextConfig::default() };
    let labels = LabelConfig::default();
    let other_tasks = &[Task::Lm, Task::Tagging, Task::Translation];
    let reader = RowReader { task, other_tasks, corpus: &corpus, text: &text, labels: &labels };
    check_layout(&[file], &reader).err().map(|error| error.to_string()).unwrap_or_default()
}

const DEFAULT: [[&str; 2]; 2] = [["src", "trg"], ["auto", "text"]];

#[test]
fn a_pair_has_the_direction_of_the_file_unless_something_names_it() {
    let row = r#"{"id": 1, "date": {"raw": "a b", "iso": "c d"}}"#;
    let first = refusal("a.jsonl", row, Task::Translation, DEFAULT);
    let flags =
        "--set data.corpus.source_field=date.raw --set data.corpus.target_field=date.iso (or the other way round)";
    assert!(first.ends_with(flags), "{first}");
    let set = refusal("a.jsonl", row, Task::Translation, [["date.iso", "trg"], DEFAULT[1]]);
    assert!(set.ends_with("with --set data.corpus.target_field=date.raw"), "{set}");
    let named = refusal("a.jsonl", r#"{"tgt": "a b", "source": "c d"}"#, Task::Translation, DEFAULT);
    assert!(named.ends_with("data.corpus.source_field=source --set data.corpus.target_field=tgt"), "{named}");
}

#[test]
fn questions_and_answers_can_be_translated() {
    let message = refusal("a.jsonl", r#"{"input": "a", "output": "b"}"#, Task::Translation, DEFAULT);
    assert!(message.contains("--task lm --set data.text.format=chat"), "{message}");
    let flags = "--set data.corpus.source_field=input --set data.corpus.target_field=output";
    assert!(message.ends_with(flags), "{message}");
}

#[test]
fn the_input_of_an_instruction_is_part_of_the_source() {
    let rows = "{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\"}\n{\"instruction\": \"Hi\", \"output\": \"b\"}\n";
    let flags = "--set 'data.corpus.source_field={{ instruction }}{% if input %}\\n{{ input }}{% endif %}' --set \
                 data.corpus.target_field=output";
    let message = refusal("a.jsonl", rows, Task::Translation, DEFAULT);
    assert!(message.ends_with(flags), "{message}");
    let empty = rows.replace("1 2", "");
    let message = refusal("a.jsonl", &empty, Task::Translation, DEFAULT);
    assert!(message.contains("source_field=instruction --set"), "no row has such a text: {message}");
    let table = crate::corpus::pairs::PairCorpus::open;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.csv");
    std::fs::write(&file, "instruction,input,output\nAdd.,1 2,3\nHi,,b\n").expect("writable");
    let asked = table(std::slice::from_ref(&file), &CorpusConfig::default()).expect_err("asked").to_string();
    assert!(asked.contains(flags), "{asked}");
}

#[test]
fn rows_in_lists_by_id_belong_together_and_parts_of_a_data_set_do_not() {
    let rows = r#"[{"src": "a text", "trg": "one more"}, {"src": "a b", "trg": "c d"}]"#;
    for (names, program) in [
        (["doc1", "doc2", "doc3", "doc4"], "jq -c '.[] | arrays | .[]' "),
        (["train", "dev", "test", "test2"], "jq -c '.train[]' "),
    ] {
        let text = format!("{{\n{}\n}}\n", names.map(|name| format!("\"{name}\": {rows}")).join(",\n"));
        let message = refusal("a.json", &text, Task::Translation, DEFAULT);
        assert!(message.contains(program), "{message}");
    }
}

#[test]
fn an_object_around_a_list_of_rows_is_named_with_the_way_to_rows() {
    let rows = r#"{"title": "a b c", "post": "a text of some words"}, {"title": "d e f", "post": "one more text"}"#;
    let line = format!("{{\"forum\": \"pets\", \"of\": {{\"all threads\": [{rows}]}}, \"total\": 2}}");
    let pretty = line.replace(": ", ":\n  ").replace("}, {", "},\n{");
    for text in [line.as_str(), &pretty] {
        for task in [Task::Lm, Task::Classification, Task::Translation] {
            let message = refusal("a.json", text, task, DEFAULT);
            let wanted = "it is one object, whose field \"of.all threads\" is a list of 2 objects";
            assert!(message.contains(wanted) && !message.contains("forum"), "{message}");
            assert!(
                message.contains("jq -c '.of[\"all threads\"][]' ") && message.ends_with("> rows.jsonl"),
                "{message}"
            );
        }
    }
    let chat = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let message = refusal("a.json", chat, Task::Lm, DEFAULT);
    assert!(message.contains("its rows are conversations"), "{message}");
    assert_eq!(refusal("a.json", r#"{"text": "a b", "list": [{}, {}]}"#, Task::Lm, DEFAULT), "");
}

#[test]
fn two_texts_with_other_names_are_questions_where_conversations_are_asked_for() {
    let chat = [DEFAULT[0], ["chat", "text"]];
    for (row, wanted) in [
        (r#"{"Frage": "a b", "Antwort": "c"}"#, "--set data.text.field=Frage,Antwort (or the other way round)"),
        (r#"{"Antwort": "c", "question": "a b"}"#, "--set data.text.field=question,Antwort"),
        (r#"{"id": "1", "thema": "x", "frage": "a b", "antwort": "c d"}"#, "=frage,antwort (or the other way round)"),
        (r#"{"text": "a b", "topic": "sport"}"#, "--set data.text.field=text,topic (or the other way round)"),
    ] {
        let message = refusal("a.jsonl", row, Task::Lm, chat);
        assert!(message.contains("its rows are questions and answers") && message.ends_with(wanted), "{message}");
        assert!(!message.contains("--task"), "{message}");
    }

    let free = refusal("a.jsonl", r#"{"Frage": "a b", "Antwort": "c"}"#, Task::Lm, DEFAULT);
    assert!(free.contains("--task translation") && free.contains("alone: --set data.text.field=Frage"), "{free}");
}

#[test]
fn two_texts_with_a_class_are_a_pair_for_a_classifier() {
    for (row, fields) in [
        (r#"{"sentence1": "a b", "sentence2": "c d", "label": 0}"#, ["sentence1", "sentence2"]),
        (r#"{"premise": "a b", "hypothesis": "c d", "label": "no"}"#, ["premise", "hypothesis"]),
    ] {
        let message = refusal("a.jsonl", row, Task::Classification, DEFAULT);
        let flags = fields.iter().zip(["text_field", "pair_field"]);
        let flags: Vec<String> = flags.map(|(field, key)| format!("--set data.labels.{key}={field}")).collect();
        assert!(message.contains("its rows are pairs of texts with labels"), "{message}");
        assert!(message.ends_with(&format!("read them as such with {}", flags.join(" "))), "{message}");
    }
    let one = refusal(
        "a.jsonl",
        r#"{"message": "a long text of many words", "user": "bob", "label": 0}"#,
        Task::Classification,
        DEFAULT,
    );
    assert!(one.ends_with("with --set data.labels.text_field=message"), "{one}");
}

#[test]
fn words_with_tags_are_not_taken_for_pairs() {
    for name in ["a.conll", "a.iob2"] {
        let message = refusal(name, "Anna B-PER\nreads O\n\n", Task::Translation, DEFAULT);
        assert!(message.ends_with("its rows are words with tags: read them as such with --task tagging"), "{message}");
        assert_eq!(refusal(name, "Anna B-PER\nreads O\n\n", Task::Tagging, DEFAULT), "");
    }
}

#[test]
fn a_wrong_field_of_a_conversation_is_answered_with_one_that_exists() {
    for (row, wanted) in [
        (r#"{"instruction": "a", "input": "", "output": "b"}"#, "instruction,output"),
        (r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#, "messages"),
    ] {
        let message = refusal("a.jsonl", row, Task::Lm, [DEFAULT[0], ["chat", "output"]]);
        assert!(message.ends_with(&format!("with --set data.text.field={wanted}")), "{message}");
    }
}

#[test]
fn rated_answers_are_never_offered() {
    let list = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    for (row, field) in [
        (format!(r#"{{"dialog": {list}, "label": 0}}"#), "text"),
        (r#"{"prompt": [{"role": "user", "content": "a"}], "completion": "b", "label": 1}"#.to_owned(), "text"),
        (r#"{"instruction": "a", "output": "b", "kto_tag": true}"#.to_owned(), "text"),
        (r#"{"ask": "a", "reply": "b", "label": "undesirable"}"#.to_owned(), "ask,reply"),
    ] {
        let chat = refusal("a.jsonl", &row, Task::Lm, [DEFAULT[0], ["chat", field]]);
        assert!(chat.contains("answers that are rated (KTO)") && chat.contains("jq -c"), "{chat}");
        let fields = [chat, refusal("a.jsonl", &row, Task::Lm, DEFAULT)];
        assert!(
            field != "text" || fields.iter().all(|text| text.contains("(KTO)") && !text.contains("data.text.field")),
            "{fields:?}"
        );
    }
}

#[test]
fn layouts_are_recognized_by_names() {
    let of = |row: &str| layout(&[row]).expect(row);
    assert_eq!(of(r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#), Layout::Preferences);
    assert_eq!(of(r#"{"prompt": "a", "completion": "b", "label": false}"#), Layout::Rated);
    for name in ["messages", "conversations", "dialog"] {
        let row = format!(r#"{{"id": 1, "{name}": [{{"role": "user", "content": "a"}}]}}"#);
        assert_eq!(of(&row), Layout::Conversations { field: name.into() });
    }
    for [question, answer] in ANSWERS {
        let row = format!(r#"{{"{question}": "a", "{answer}": "b"}}"#);
        assert_eq!(of(&row), Layout::Answers { question: question.into(), answer: answer.into() }, "{row}");
    }

    let tagged = of(r#"{"words": ["Anna", "reads"], "pos_tags": [3, 4], "ner_tags": [1, 0], "id": "0"}"#);
    assert_eq!(tagged, Layout::Tagged { words: "words".into(), tags: "ner_tags".into() });
    let labelled = of(r#"{"review": "good", "stars": 5}"#);
    assert_eq!(labelled, Layout::Labelled { text: "review".into(), label: "stars".into() });
    for (row, source, target) in [
        (r#"{"translation": {"en": "a", "ipa": "b"}, "id": 1}"#, "translation.en", "translation.ipa"),
        (r#"{"target": "b", "source": "a"}"#, "source", "target"),
    ] {
        assert_eq!(of(row), Layout::Pairs { source: source.into(), target: target.into() });
    }
    assert_eq!(
        of(r#"{"id": 3, "body": "a b c", "url": "http://x.org/a/b/c"}"#),
        Layout::Texts { field: "body".into() }
    );
    assert_eq!(layout(&[r#"{"n": 3}"#]), None);
}

#[test]
fn a_class_is_recognized_because_it_recurs() {
    let rows: Vec<String> = (0..40).map(|i| format!(r#"{{"frase": "testo {i}", "tipo": "{}"}}"#, i % 3)).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(layout(&rows), Some(Layout::Labelled { text: "frase".into(), label: "tipo".into() }));
    let pairs: Vec<String> =
        (0..40).map(|i| format!(r#"{{"a": "text {i}", "b": "testo {i}", "lang": "it"}}"#)).collect();
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    assert!(!matches!(layout(&pairs), Some(Layout::Labelled { .. })));
}

#[test]
fn a_run_that_keeps_its_task_gets_no_flag_for_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows.jsonl");
    std::fs::write(&file, "{\"text\": \"a\", \"label\": \"up\"}\n").expect("writable");
    let (corpus, text, labels) = (CorpusConfig::default(), TextConfig::default(), LabelConfig::default());
    let reader = RowReader { task: Task::Translation, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
    let check =
        |reader: RowReader<'_>| check_layout(std::slice::from_ref(&file), &reader).expect_err("labels").to_string();
    let kept = check(reader);
    assert!(kept.contains("a run of task classification reads them") && !kept.contains("--"), "{kept}");
    let free = check(RowReader { other_tasks: &[Task::Classification], ..reader });
    assert!(free.ends_with(
        "its rows are texts with labels (they have \"label\", \"text\"): read them as such with --task classification"
    ));
}

#[test]
fn conversations_in_forms_that_are_not_read_are_said_to_be_that() {
    let chat = [DEFAULT[0], ["chat", "text"]];
    let written = serde_json::json!({ "messages": r#"[{"role": "user"}]"# }).to_string();
    let of_parts = r#"{"systemInstruction": {"role": "system", "parts": [{"text": "S"}]},
        "contents": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]}"#;
    for (row, name, way_out) in [
        (
            r#"{"message_id": "0", "parent_id": null, "text": "a b", "role": "prompter"}"#,
            "messages of OpenAssistant's trees, one per row",
            "write one row for each path",
        ),
        (
            r#"{"conversation_id": 3, "content": "a b", "role": "Assistant"}"#,
            "messages, one per row",
            "write one row for each conversation: {\"messages\": [",
        ),
        (
            of_parts,
            "conversations of Gemini, with parts in \"contents\"",
            "jq -c 'del(.contents, .systemInstruction) + {messages: [(.systemInstruction // empty",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}]}"#,
            "conversations whose messages in \"messages\" are lists of parts",
            "jq -c '.messages |= map(if (.content | type)",
        ),
        (&written, "conversations whose \"messages\" is a string", "jq -c '.messages |= fromjson'"),
        (
            r#"{"conversation": [{"human": "a", "assistant": "b"}]}"#,
            "conversations whose turns in \"conversation\" have the roles as names",
            "jq -c 'del(.conversation) + {messages: [.conversation[] | to_entries[]",
        ),
    ] {
        let row = row.replace('\n', " ");

        let text = format!("{row}\n").repeat(12);
        for (task, keys) in
            [(Task::Lm, chat), (Task::Translation, DEFAULT), (Task::Mlm, [DEFAULT[0], ["auto", "body"]])]
        {
            let message = refusal("a.jsonl", &text, task, keys);
            assert!(message.contains(&format!("its rows are {name} (they have ")), "{row}: {message}");
            assert!(message.contains("which Kiln does not read\n") && message.contains(way_out), "{row}: {message}");
            assert_eq!(message.contains("and read rows.jsonl with"), message.contains("jq -c"), "{row}: {message}");
            assert!(!message.contains("_field") && !message.contains("text.field"), "{row}: {message}");
        }
    }

    // A plain text next to such a field is read where it is asked for.
    let lists = r#"{"turns": [{"role": "user", "content": "a"}]}"#;
    let mixed = refusal("a.jsonl", &format!("{lists}\n{written}\n"), Task::Lm, DEFAULT);
    assert!(mixed.contains("its rows are conversations (they have"), "{mixed}");
    let tree = r#"{"parent_id": null, "text": "a b", "role": "prompter"}"#;
    assert_eq!(refusal("a.jsonl", tree, Task::Lm, DEFAULT), "");
}

#[test]
fn a_field_with_one_value_is_not_offered_as_the_text() {
    let rows: String = (0..20).fold(String::new(), |rows, i| {
        rows + &format!("{{\"kind\": {{\"of\": \"always the same long words\"}}, \"n\": {{\"said\": \"no {i}\"}}}}\n")
    });
    let message = refusal("a.jsonl", &rows, Task::Lm, DEFAULT);
    assert!(message.ends_with("data.text.field=n.said"), "{message}");
}

#[test]
fn ratings_of_any_name_are_rated_answers() {
    for rating in [r#""stars": 5"#, r#""thumbs": "up""#, r#""quality_score": 5.0"#, r#""vote": 1"#] {
        let row = format!(r#"{{"prompt": "a", "response": "b", {rating}}}"#);
        for keys in [DEFAULT, [DEFAULT[0], ["chat", "text"]]] {
            let message = refusal("a.jsonl", &row, Task::Lm, keys);
            assert!(message.contains("answers that are rated (KTO)") && message.contains("jq -c"), "{row}: {message}");
        }
    }
}
