use std::path::PathBuf;

use super::*;
use crate::corpus::pairs::CorpusConfig;

/// Writes a file, and returns the notes about it, and how it is refused: nothing if it is read.
fn opened(name: &str, text: &str, config: &CorpusConfig) -> (String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(name), text).expect("writable");
    let corpus = PairCorpus::open(&[folder.path().join(name)], config).expect("a corpus");
    (corpus.notes().join("\n"), corpus.read_all().err().map(|error| error.to_string()).unwrap_or_default())
}

#[test]
fn numbers_become_texts_by_templates() {
    let rows = "{\"src\": \"good\", \"trg\": 5}\n";
    let (_, refused) = opened("a.jsonl", rows, &CorpusConfig::default());
    assert!(refused.ends_with("write the numbers as texts: --set 'data.corpus.target_field={trg}'"), "{refused}");
    let config = CorpusConfig { target_field: "{trg}".into(), ..CorpusConfig::default() };
    assert_eq!(opened("a.jsonl", rows, &config).1, "", "the flag reads them");
}

#[test]
fn quoted_cells_between_tabs_are_named() {
    let escaped = "a\tb\n\"\"\"I hear it\"\", she said.\"\td\ne\tf\n";
    let all = "\"How are you?\"\t\"Come stai?\"\n".repeat(5);
    for text in [escaped, &all] {
        let (notes, refused) = opened("a.tsv", text, &CorpusConfig::default());
        assert!(notes.contains("in quotes, which stay text") && notes.contains("data.corpus.format=csv"), "{notes}");
        assert_eq!(refused, "");
    }
    let broken = "a b c\td e f\n\"one\ntwo\"\t\"three\nfour\"\n".repeat(5);
    let (_, refused) = opened("a.tsv", &broken, &CorpusConfig::default());
    assert!(refused.contains("1 tab-separated columns and an open quote"), "{refused}");
    assert!(refused.ends_with("TSV has no quoting: --set data.corpus.format=csv"), "{refused}");

    let speech = "\"Hello,\" she said.\t\"Ciao\", disse.\n\"No!\"\t\"No!\"\nYes.\tSì.\n5\" long\t5 pollici\n";
    assert_eq!(opened("a.tsv", speech, &CorpusConfig::default()), (String::new(), String::new()));
}

#[test]
fn rows_that_lack_a_field_of_a_template_are_not_offered_to_be_left_out() {
    let rows = "{\"a\": \"x\", \"b\": \"y\", \"c\": \"z\"}\n{\"a\": \"x\", \"c\": \"z\"}\n";
    let read = |source: &str| {
        let config = CorpusConfig { source_field: source.into(), target_field: "c".into(), ..CorpusConfig::default() };
        opened("a.jsonl", rows, &config).1
    };
    for template in ["{{ a }} {{ b }}", "{a} {b}"] {
        let refused = read(template);
        assert!(
            refused.contains("fields that rows may lack: {% if ") && !refused.contains("max_bad_rows"),
            "{refused}"
        );
    }
    assert_eq!(read("{{ a }}{% if b %} {{ b }}{% endif %}"), "");
}

#[test]
fn a_file_is_not_its_own_translation() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.en");
    std::fs::write(&file, "one\n").expect("writable");
    let entry = PathBuf::from(format!("{},{}", file.display(), folder.path().join("./a.en").display()));
    let refused = PairCorpus::open(&[entry], &CorpusConfig::default()).expect_err("one file").to_string();
    assert!(refused.contains("the source and the target are the same file"), "{refused}");
}

#[test]
fn the_number_of_a_row_and_a_list_are_never_named_as_texts() {
    for row in [
        r#"{"id": 3, "translation": ["a b", "c d"]}"#,
        r#"{"id": "x3", "data": ["a b", "c d"]}"#,
        r#"{"row_id": "x3", "body": "a b"}"#,
        r#"{"uuid": "x3", "meta": {"tags": ["a"]}}"#,
    ] {
        let (_, refused) = opened("a.jsonl", &format!("{row}\n"), &CorpusConfig::default());
        assert!(
            refused.contains("no field \"src\"") && !refused.contains("--set data.corpus.source_field"),
            "{refused}"
        );
    }
    let (_, refused) = opened("a.jsonl", "{\"id\": 3, \"uno\": \"a\", \"due\": \"b\"}\n", &CorpusConfig::default());
    assert!(refused.contains("source_field=uno --set data.corpus.target_field=due"), "{refused}");
}
