//! Numbers that Python writes and JSON does not have.

/// Writes `null` for numbers that are not JSON behind `start`: `NaN` and `Infinity`, which Python writes.
pub(super) fn without_nan(json: &mut Vec<u8>, start: usize) {
    const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let has = |number: &[u8]| json[start..].windows(number.len()).any(|part| part == number);
    if !has(NUMBERS[1]) && !has(NUMBERS[2]) {
        return;
    }
    let (row, mut in_string, mut at) = (json.split_off(start), false, 0);
    while at < row.len() {
        let number = NUMBERS.iter().find(|number| !in_string && row[at..].starts_with(number));
        if let Some(number) = number {
            json.extend_from_slice(b"null");
            at += number.len();
            continue;
        }
        let len = if in_string && row[at] == b'\\' { 2.min(row.len() - at) } else { 1 };
        in_string ^= row[at] == b'"';
        json.extend_from_slice(&row[at..at + len]);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileFormat, Wanted};

    #[test]
    fn numbers_that_only_python_writes_are_null() {
        let folder = tempfile::tempdir().expect("a folder");
        let row = r#"{"a": NaN, "b": "NaN \" Infinity", "c": [-Infinity, Infinity, {"d": NaN}]}"#;
        let wanted = r#"{"a": null, "b": "NaN \" Infinity", "c": [null, null, {"d": null}]}"#;
        for (name, text) in [("a.jsonl", format!("{row}\n{row}\n")), ("a.json", format!("[{row}, {row}]"))] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("writable");
            let mut records = FileFormat::JSON.open(&path, &Wanted::all()).expect("rows");
            for _ in 0..2 {
                let mut json = Vec::new();
                assert!(records.next(&mut json).expect("readable").is_some());
                assert_eq!(String::from_utf8_lossy(&json), wanted);
            }
        }
    }
}
