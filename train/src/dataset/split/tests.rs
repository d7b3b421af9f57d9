//! Which rows are for validation, and which stay for training.

use super::*;

fn row(i: usize) -> String {
    json!({"text": format!("row {i}")}).to_string()
}

fn rows_of(lines: &[String]) -> Rows {
    let mut rows = Rows { lines: lines.to_vec(), ..Rows::default() };
    (1..=lines.len() as u64).for_each(|line| rows.origins.push(Path::new("rows.jsonl"), line));
    rows
}

fn records(path: &Path) -> Vec<String> {
    records_of(path).expect("written").into_iter().map(|(_, record)| record).collect()
}

fn parts(rows: &[String], split: f64) -> [Vec<String>; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    rows_of(rows).write(split, folder.path(), String::new).expect("two parts");
    let parts = [TRAIN, VALID].map(|name| folder.path().join(name));
    parts.each_ref().map(|part| {
        let origins = kiln_data::files::read_text(&Origins::path_of(part)).expect("written");
        let rows_with_origins = records(part).len() + 1;
        assert_eq!(origins.lines().count(), rows_with_origins, "{origins}");
        records(part)
    })
}

#[test]
fn a_row_stays_on_its_side_when_others_come() {
    let rows: Vec<String> = (0..1000).map(row).collect();
    let [train, valid] = parts(&rows, 0.1);
    assert!((70..130).contains(&valid.len()) && train.len() + valid.len() == 1000, "{}", valid.len());
    let more: Vec<String> = (0..1500).rev().map(row).collect();
    let [later, _] = parts(&more, 0.1);
    let later: HashSet<&String> = later.iter().collect();
    assert!(train.iter().all(|row| later.contains(row)) && valid.iter().all(|row| !later.contains(row)));
}

#[test]
fn each_class_keeps_a_row_for_training() {
    let lines: Vec<String> = (0..300).map(row).collect();
    let class = |i: usize| if i < 40 { format!("rare {i}") } else { format!("usual {}", i % 2) };
    let labels: Vec<Vec<String>> = (0..300).map(|i| vec![class(i)]).collect();
    let split = |labels: &[Vec<String>], split: f64| {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = Rows { labels: labels.to_vec(), ..rows_of(&lines) };
        let said = rows.write(split, folder.path(), String::new).map_err(|error| error.to_string());
        (said, records_if_there(&folder.path().join(TRAIN)), records_if_there(&folder.path().join(VALID)))
    };
    let (said, train, valid) = split(&labels, 0.5);
    assert!((0..40).all(|i| train.contains(&lines[i])), "each rare class has one row");
    assert!(said.expect("two parts")[0].contains(" more stay for training"), "{}", valid.len());
    assert!(valid.len() > 100 && train.len() + valid.len() == 300);
    let (_, again, _) = split(&labels, 0.5);
    assert_eq!(train, again);

    // Two tags of a row, and no row that could be for validation.
    let alone: Vec<Vec<String>> = (0..300).map(|i| vec![format!("tag {i}"), "O".into()]).collect();
    let error = split(&alone, 0.2).0.expect_err("each row has a tag of its own");
    assert!(error.contains("each class needs a row for training"), "{error}");
}

fn records_if_there(path: &Path) -> Vec<String> {
    if path.is_file() { records(path) } else { Vec::new() }
}

#[test]
fn rows_of_a_table_are_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("labels.csv");
    fs::write(&path, "text,label\n\"two\nlines\",good\nplain,bad\n").expect("writable");
    let rows = records(&path);
    let wanted = [json!({"text": "two\nlines", "label": "good"}), json!({"text": "plain", "label": "bad"})];
    assert_eq!(rows, wanted.map(|row| row.to_string()));
}

#[test]
fn rows_that_are_read_alike_are_on_one_side_and_runs_of_earlier_versions_keep_their_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows.jsonl");
    let lines =
        |row: &dyn Fn(usize) -> serde_json::Value| (0..300).map(|n| format!("{}\n", row(n))).collect::<String>();
    let text = |n: usize| format!("ticket about thing {}", n % 60);
    let labelled = lines(&|n| json!({"id": n, "text": text(n), "label": (["a", "b"][n / 60 % 2])}));
    let chat = lines(&|n| json!({"id": n, "prompt": text(n), "completion": format!("answer {}", n % 60)}));
    let texts_of = |lines: Vec<String>| -> HashSet<String> {
        let texts = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        texts.map(|row| row["text"].as_str().or(row["prompt"].as_str()).expect("a text").to_owned()).collect()
    };
    let mut config = crate::config::presets::numbers();
    (config.data.train, config.data.split) = (vec![file.clone()], 0.2);
    for (task, rows) in [(kiln_data::Task::Classification, labelled), (kiln_data::Task::Lm, chat)] {
        fs::write(&file, rows).expect("writable");
        config.task = task;
        config.data.text.format = if task == kiln_data::Task::Lm { TextFormat::Chat } else { TextFormat::Auto };
        let shared = |cache: &Path| {
            split(&config, cache, &mut |_| ()).expect("two parts").expect("a split");
            let [train, valid] = [TRAIN, VALID].map(|name| texts_of(records(&cache.join(name))));
            assert!(!train.is_empty() && !valid.is_empty());
            train.intersection(&valid).count()
        };
        let cache = tempfile::tempdir().expect("a folder");
        assert_eq!(shared(cache.path()), 0, "{task:?}");

        // The stamp of an earlier version, with its parts and without: the same rows again.
        let stamp = stamp(&config, Deciding::Records).expect("files");
        let earlier = tempfile::tempdir().expect("a folder");
        fs::write(earlier.path().join(STAMP), stamp.replace("\"split\":0.2", "\"split\":0.3")).expect("writable");
        assert!(shared(earlier.path()) > 20, "{task:?}");
        assert_eq!(fs::read_to_string(earlier.path().join(STAMP)).expect("written"), stamp);
    }
}

#[test]
fn rows_move_only_from_validation_to_training_when_rows_are_added_to_a_number() {
    let rows: Vec<String> = (0..900).map(row).collect();
    let [_, valid] = parts(&rows[..800], 50.0);
    let [train, more] = parts(&rows, 50.0);
    let moved = valid.iter().filter(|row| train.contains(row)).count();
    assert!(moved > 0 && more.len() == 50, "{moved}");
    let [before, _] = parts(&rows[..800], 50.0);
    assert!(before.iter().all(|row| train.contains(row)), "a training row stays one");
}

#[test]
fn a_number_of_rows_is_kept_and_copies_are_on_one_side() {
    let rows: Vec<String> = (0..1000).map(row).collect();
    assert_eq!(parts(&rows, 50.0)[1].len(), 50);
    let copies: Vec<String> = (0..1000).map(|i| row(i % 50)).collect();
    let [train, valid] = parts(&copies, 0.2);
    let train: HashSet<&String> = train.iter().collect();
    assert!(!valid.is_empty() && valid.iter().all(|row| !train.contains(row)));
    let folder = tempfile::tempdir().expect("a folder");
    let all = rows_of(&rows).write(1000.0, folder.path(), String::new).expect_err("nothing to train on").to_string();
    assert!(all.contains("leaves 0 rows for training"), "{all}");
    let one = rows_of(&[row(0)]).write(0.1, folder.path(), String::new).expect_err("one row").to_string();
    assert!(one.contains("cannot divide one document") && !one.contains("another number"), "{one}");
}
