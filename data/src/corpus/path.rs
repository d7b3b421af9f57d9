//! Paths into the objects and lists of a record: `translation.en`, `answers.text.0`.

use serde_json::{Map, Value};

/// Returns the value that `path` names: the field of that name, or one inside of a field. A number counts the elements of a list from 0.
pub(super) fn value_at<'a>(row: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = row.get(path) {
        return Some(value);
    }
    // A name may have dots itself.
    let dots = path.char_indices().filter(|(_, c)| *c == '.').map(|(at, _)| at);
    dots.filter_map(|at| inside(row.get(&path[..at])?, &path[at + 1..])).next()
}

fn inside<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    match value {
        Value::Object(object) => value_at(object, path),
        Value::Array(values) => {
            let (number, rest) = path.split_once('.').map_or((path, None), |(number, rest)| (number, Some(rest)));
            let value = values.get(number.parse::<usize>().ok()?)?;
            rest.map_or(Some(value), |rest| inside(value, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_through_objects_and_lists() {
        let row = r#"{"a.b": 1, "a": {"b": 2, "c": [{"d": 3}, [4, 5]]}, "x": "y"}"#;
        let row: Map<String, Value> = serde_json::from_str(row).expect("an object");
        for (path, wanted) in
            [("a.b", Some(1)), ("a.c.0.d", Some(3)), ("a.c.1.1", Some(5)), ("a.c.2", None), ("x.y", None), ("", None)]
        {
            assert_eq!(value_at(&row, path).and_then(Value::as_u64), wanted, "{path}");
        }
    }
}
