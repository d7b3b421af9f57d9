use super::*;

fn check(name: &str, text: &str, task: Task, config: &LabelConfig) -> std::result::Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("writable");
    check_form(&path, task, config).map_err(|error| error.to_string())
}

fn refused(name: &str, text: &str, task: Task) -> String {
    check(name, text, task, &LabelConfig::default()).expect_err("another form")
}

#[test]
fn a_table_with_other_names_is_answered_with_flags_to_paste() {
    let rows: String = (0..20).map(|n| format!("{n},the message {n},{}\n", ["info", "error"][n % 2])).collect();
    let text = refused("a.csv", &format!("id,message,severity\n{rows}"), Task::Classification);
    let flags = "--set data.labels.text_field=message --set data.labels.label_field=severity";
    assert!(text.contains("none of them is \"text\" or \"label\": it has \"id\", \"message\""), "{text}");
    assert!(text.ends_with(flags), "a first row with an id has names: {text}");
    let one = refused("a.csv", &format!("id,text,severity\n{rows}"), Task::Classification);
    assert!(one.ends_with("to name the columns: --set data.labels.label_field=severity"), "{one}");

    let tagged = "words\tner\nin Rome now\tO LOC O\nto Paris\tO LOC\n";
    let text = refused("a.tsv", tagged, Task::Tagging);
    assert!(text.contains("--set data.labels.words_field=words --set data.labels.tags_field=ner"), "{text}");
    assert_eq!(check("a.csv", "text,label\na,b\n", Task::Classification, &LabelConfig::default()), Ok(()));
}

#[test]
fn a_second_text_and_other_classes_are_offered() {
    let rows: String = (0..20)
        .map(|n| {
            format!("the first text {n},{},a second one {n},{}\n", ["low", "high"][n % 2], ["A", "B", "C"][n % 3])
        })
        .collect();
    let text = refused("a.csv", &format!("premise,priority,hypothesis,queue\n{rows}"), Task::Classification);
    let flags = "--set data.labels.text_field=premise --set data.labels.label_field=priority \
                 --set data.labels.pair_field=hypothesis\n  other columns that can be the class: queue\n  if the first";
    assert!(text.contains(flags), "{text}");
    let text = refused("a.csv", &format!("premise,priority,hypothesis,topic\n{rows}"), Task::Classification);
    let flags = "--set data.labels.text_field=premise --set data.labels.label_field=topic \
                 --set data.labels.pair_field=hypothesis";
    assert!(text.ends_with(flags), "{text}");
}

#[test]
fn a_second_text_that_the_user_has_named_must_be_there() {
    let named = LabelConfig { pair_field: "answer".into(), ..LabelConfig::default() };
    let text = check("a.csv", "text,label\na,b\n", Task::Classification, &named).expect_err("no answer");
    assert!(text.contains("none of them is \"answer\"") && text.contains("data.labels.pair_field=NAME"), "{text}");
    assert_eq!(check("a.csv", "text,answer,label\na,b,c\n", Task::Classification, &named), Ok(()));
}

#[test]
fn a_delimiter_that_no_table_has_is_named() {
    let rows: String = (0..20).map(|n| format!("the message {n}|{}\n", ["info", "error"][n % 2])).collect();
    for name in ["a.csv", "a.tsv"] {
        let text = refused(name, &format!("text|label\n{rows}"), Task::Classification);
        let ending = &name[1..];
        assert!(
            text.contains("`|` divides each of them evenly") && text.ends_with(&format!("> rows{ending}")),
            "{text}"
        );
        let named =
            check(name, &format!("sep=|\ntext|label\n{rows}"), Task::Classification, &LabelConfig::default());
        assert_eq!(named, Ok(()));
    }
}

#[test]
fn rows_without_names_are_called_so() {
    let rows: String = (0..20).map(|n| format!("{}\tthe message {n}\n", ["info", "error"][n % 2])).collect();
    let text = refused("a.tsv", &rows, Task::Classification);
    assert!(text.contains("\"info\" stands again below it"), "{text}");
    assert!(text.contains("(printf 'label\\ttext\\n'; cat "), "{text}");
}

#[test]
fn conll_by_another_name_and_fast_text_are_recognized() {
    let conll = "-DOCSTART- -X- O\n\nRome NNP B-LOC\nsleeps VBZ O\n\nParis NNP B-LOC\n";
    for name in ["a.tsv", "a.txt", "a.csv"] {
        let text = refused(name, conll, Task::Tagging);
        assert!(text.contains("let its name end in .conll"), "{text}");
        let text = refused(name, "__label__info Connection from here\n__label__error Gone\n", Task::Classification);
        assert!(text.contains("as in files of fastText") && text.contains("> rows.tsv"), "{text}");
    }
    let config = LabelConfig::default();
    let json = "{\"text\": \"a\", \"label\": \"b\"}\n\n{\"text\": \"a\", \"label\": \"b\"}\n";
    assert_eq!(check("a.txt", json, Task::Classification, &config), Ok(()));
    assert_eq!(check("a.txt", json, Task::Tagging, &config), Ok(()), "what is wrong is said of the rows");
}
