use std::fs;

use super::*;
use crate::corpus::LabelledCorpus;

/// Reads files both ways, and compares classes, rows and problems.
fn compare(name: &str, text: &str, task: Task, config: &LabelConfig) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, text).expect("writable");
    let whole = LabelledCorpus::read(std::slice::from_ref(&path), task, config).expect("rows");

    let stream = LabelledText::open(&[path], task, config).expect("a file");
    let classes = stream.classes(2).expect("classes");
    assert_eq!(classes, whole.classes(), "{name}");
    let stream = stream.with_classes(&classes.names);
    let (resolve, mut report, mut rows) = (stream.resolver(), RowReport::default(), Vec::new());
    for block in stream.blocks_from(BlockStart::default()) {
        let block = block.expect("readable");
        for (line, record) in stream.rows(&block) {
            match record.and_then(&resolve) {
                Ok(row) => {
                    report.add_kept(1);
                    rows.push(row);
                }
                Err(problem) => report.add_bad(stream.path_of(&block), line, &problem),
            }
        }
    }
    assert_eq!((&rows[..], &report), (whole.rows(), whole.report()), "{name}");
}

#[test]
fn rows_of_every_format_are_those_of_the_whole_corpus() {
    let config = LabelConfig { max_bad_rows: 0.6, ..LabelConfig::default() };
    let tags = LabelConfig { names: ["O", "B", "7"].map(Into::into).into(), ..config.clone() };
    let ids = LabelConfig { names: ["no", "yes"].map(Into::into).into(), ..config.clone() };
    let of_texts = Task::Classification;
    compare("a.csv", "text,label\n\"two\nlines\",3\nplain,good\n,bad\n", of_texts, &config);
    compare("b.tsv", "label\ttext\n5\tx\n5.0\ty\n4\tz\n", of_texts, &config);
    let json = "{\"text\": \"a\", \"label\": \"up\"}\n\n{\"text\": \"b\"}\n{\"text\": \"c\", \"label\": \"down\"}\r\n";
    compare("c.jsonl", json, of_texts, &config);
    compare("d.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 2}\n", of_texts, &ids);
    compare("e.csv", "text,label\na,1\nb,no\n", of_texts, &ids);
    compare("f.conll", "a O\nb B\n\nc 7\n", Task::Tagging, &tags);
    compare(
        "g.csv",
        "tokens,tags\n\"[\"\"a\"\", \"\"b\"\"]\",\"[\"\"O\"\", \"\"B\"\"]\"\nx y,O 7\n",
        Task::Tagging,
        &tags,
    );
}

#[test]
fn one_class_and_rows_that_cannot_be_used_are_refused_as_for_the_whole_corpus() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    let one = "{\"text\": \"a\", \"label\": \"up\"}\n";
    for text in [one, "{\"text\": \"a\"}\n", ""] {
        fs::write(&path, text).expect("writable");
        let config = LabelConfig::default();
        let whole =
            LabelledCorpus::read(std::slice::from_ref(&path), Task::Classification, &config).expect_err("refused");
        let stream = LabelledText::open(std::slice::from_ref(&path), Task::Classification, &config)
            .and_then(|text| text.classes(2));
        assert_eq!(stream.expect_err("refused").to_string(), whole.to_string(), "{text}");
    }
}
