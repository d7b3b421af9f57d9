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
    rows_of(rows).write(split, folder.path()).expect("two parts");
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
        let said = rows.write(split, folder.path()).map_err(|error| error.to_string());
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
fn a_number_of_rows_is_kept_and_copies_are_on_one_side() {
    let rows: Vec<String> = (0..1000).map(row).collect();
    assert_eq!(parts(&rows, 50.0)[1].len(), 50);
    let copies: Vec<String> = (0..1000).map(|i| row(i % 50)).collect();
    let [train, valid] = parts(&copies, 0.2);
    let train: HashSet<&String> = train.iter().collect();
    assert!(!valid.is_empty() && valid.iter().all(|row| !train.contains(row)));
    let folder = tempfile::tempdir().expect("a folder");
    let all = rows_of(&rows).write(1000.0, folder.path()).expect_err("nothing to train on").to_string();
    assert!(all.contains("leaves 0 rows for training"), "{all}");
    let one = rows_of(&[row(0)]).write(0.1, folder.path()).expect_err("one row").to_string();
    assert!(one.contains("cannot divide one document") && !one.contains("another number"), "{one}");
}
