//! Rows with classes and tags as other programs write them: what is read, and which flags or commands a refusal names.

use crate::kiln::{Ran, Workplace};

/// Short rows of a text.
const SHORT: [&str; 2] = ["data.text.seq_len=32", "model.max_positions=32"];

fn dry(place: &Workplace, task: &str, file: &str, keys: &[&str]) -> Ran {
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let train = format!("data.train={file}");
    let begin = ["train", "--dry-run", "--device", "cpu", "--task", task, "--set", &train];
    place.run(&[&begin[..], &["--set", "tokenizer.vocab_size=300"], &keys].concat())
}

/// Rows made of their numbers.
fn rows(row: impl Fn(usize) -> String) -> String {
    (0..60).map(|i| row(i) + "\n").collect()
}

#[test]
fn a_path_into_a_list_is_read_where_rows_have_it() {
    let place = Workplace::new();
    place.write(
        "labels.jsonl",
        rows(|i| format!(r#"{{"doc": {{"body": "text {i}"}}, "tags": [{{"name": "class{}"}}]}}"#, i % 3)),
    );
    let keys = ["data.labels.text_field=doc.body", "data.labels.label_field=tags.0.name"];
    let ran = dry(&place, "classification", "labels.jsonl", &keys).ok();
    assert!(ran.stdout.contains("3 classes: ") || ran.stderr.contains("3 classes: "), "{ran:#?}");
    place.write(
        "squad.jsonl",
        rows(|i| {
            format!(r#"{{"context": "number {i}", "question": "what {i}?", "answers": {{"text": ["it is {i}"]}}}}"#)
        }),
    );
    let keys = ["data.corpus.source_field=question", "data.corpus.target_field=answers.text.0"];
    dry(&place, "translation", "squad.jsonl", &keys).ok();
    dry(&place, "lm", "squad.jsonl", &["data.text.field=answers.text.0", SHORT[0], SHORT[1]]).ok();
}

#[test]
fn rows_with_a_class_are_answered_with_their_fields() {
    let place = Workplace::new();
    place.write(
        "mrpc.jsonl",
        rows(|i| {
            format!(r#"{{"sentence1": "a long sentence of words {i}", "sentence2": "b {i}", "label": {}}}"#, i % 2)
        }),
    );
    dry(&place, "classification", "mrpc.jsonl", &[])
        .refused(3, &["--set data.labels.text_field=sentence1 --set data.labels.pair_field=sentence2"]);
    let keys = ["data.labels.text_field=sentence1", "data.labels.pair_field=sentence_2"];
    dry(&place, "classification", "mrpc.jsonl", &keys)
        .refused(3, &["no row has the field \"sentence_2\"", "=sentence2"]);
    place.write("lists.jsonl", rows(|i| format!(r#"{{"body": "a text {i}", "labels": ["x{}", "y"]}}"#, i % 2)));
    for task in ["classification", "tagging"] {
        let ran = dry(&place, task, "lists.jsonl", &[]).refused(3, &["data.labels.label_field=labels.0"]);
        assert!(!ran.stderr.contains("--task lm"), "{ran:#?}");
    }
}

#[test]
fn words_in_other_forms_are_read_or_named() {
    let place = Workplace::new();
    let word = |id: usize, form: &str, tag: &str| format!("{id}\t{form}\t_\t{tag}\t_\t_\t0\t_\t_\tSpaceAfter=No\n");
    let universal =
        format!("# no sign of equality\n#plain\n{}{}\n", word(1, "Rome", "PROPN"), word(2, "sleeps", "VERB"));
    place.write("a.conll", universal.repeat(40));
    let ran = dry(&place, "tagging", "a.conll", &[]).ok();
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("2 classes: PROPN 50.0%, VERB 50.0%"), "{ran:#?}");
    place.write("a.txt", universal.repeat(40));
    dry(&place, "tagging", "a.txt", &[]).refused(3, &["let its name end in .conllu"]);
    let ran = dry(&place, "mlm", "a.conll", &SHORT).ok();
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("--set data.text.format=records"), "{ran:#?}");

    let python = rows(|i| format!("\"['Rome', \"\"it's\"\", '{i}']\",\"['B-LOC', 'O', 'O']\""));
    place.write("python.csv", format!("tokens,tags\n{python}"));
    let ran = dry(&place, "tagging", "python.csv", &[]).ok();
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("2 classes: O 66.7%, B-LOC 33.3%"), "{ran:#?}");
    place.write("words.csv", format!("Sentence #,Word,Tag\n{}", rows(|i| format!("{},w{i},O", i / 5))));
    for keys in [&[][..], &["data.labels.words_field=Word", "data.labels.tags_field=Tag"]] {
        let ran = dry(&place, "tagging", "words.csv", keys).refused(3, &["each row has one word", "> rows.conll"]);
        assert!(!ran.stderr.contains("--set"), "{ran:#?}");
    }
}

#[test]
fn a_split_keeps_a_row_of_each_class_for_training() {
    let place = Workplace::new();
    let class = |i: usize| if i < 20 { format!("rare{i}") } else { format!("usual{}", i % 2) };
    place.write("rare.jsonl", rows(|i| format!(r#"{{"text": "text {i}", "label": "{}"}}"#, class(i))));
    let ran = dry(&place, "classification", "rare.jsonl", &["data.split=0.3"]).ok();
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("22 classes: ") && said.contains("for training, where"), "{ran:#?}");
}

#[test]
fn entries_that_are_not_rows_come_with_the_way_to_rows() {
    let place = Workplace::new();
    place.write("imdb/pos/1.txt", "good");
    place.write("imdb/neg/1.txt", "bad");
    dry(&place, "classification", "imdb", &[]).refused(3, &["\"neg\", \"pos\" seem to be the classes", "python3 -c"]);
    let table = format!("text,label\n{}", rows(|i| format!("text {i},{}", ["a", "b"][i % 2])));
    place.write("a.csv", &table);
    place.write("b.csv", &table);
    let ran = dry(&place, "classification", "a.csv,b.csv", &[]);
    assert!(ran.code != 0 && ran.stderr.contains("--set data.train=a.csv --set data.train=b.csv"), "{ran:#?}");
    place.write("empty.csv", "text,label\n");
    let ran = dry(&place, "classification", "empty.csv", &[]).refused(3, &["empty.csv: it is empty"]);
    assert!(!ran.stderr.contains('%'), "{ran:#?}");
    place.write("pandas.json", r#"{"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}"#);
    dry(&place, "classification", "pandas.json", &[])
        .refused(3, &["orient=\"columns\"", "orient=\"records\", lines=True"]);
}
