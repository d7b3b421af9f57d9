//! What templates expect of Python: `json.dumps`, `datetime.strftime`, and an error of their own.

use std::fmt::Write;

use chrono::Utc;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Deepest nesting of a value that `tojson` writes.
const MAX_DEPTH: usize = 64;

/// Adds the functions, filters and methods to an environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the template says: {message}")))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let mut text = String::new();
        write!(text, "{}", Utc::now().format(&format))
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: no format {format:?}")))?;
        Ok(text)
    });
}

/// Writes a value as `json.dumps(value, ensure_ascii=False)` does. `indent` is the number of spaces per level.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    for unused in ["ensure_ascii", "separators", "sort_keys"] {
        let _ = options.get::<Option<Value>>(unused)?;
    }
    options.assert_all_used()?;
    let mut text = String::new();
    write_json(value, indent.map(|width| width.min(16)), 0, &mut text)?;
    Ok(Value::from_safe_string(text))
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, to: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value is nested too deeply"));
    }
    let line = |to: &mut String, depth: usize| {
        if let Some(width) = indent {
            to.push('\n');
            to.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };

    match value.kind() {
        ValueKind::None => to.push_str("null"),
        ValueKind::Bool => to.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => to.push_str(&value.to_string()),
        ValueKind::String => to.push_str(&serde_json::to_string(&value.to_string()).expect("a string")),
        ValueKind::Map => {
            to.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                to.push_str(if i > 0 { separator } else { "" });
                line(to, depth + 1);
                to.push_str(&serde_json::to_string(&key.to_string()).expect("a string"));
                to.push_str(": ");
                write_json(&value.get_item(&key)?, indent, depth + 1, to)?;
            }
            if value.len() != Some(0) {
                line(to, depth);
            }
            to.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            to.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                to.push_str(if i > 0 { separator } else { "" });
                line(to, depth + 1);
                write_json(&item, indent, depth + 1, to)?;
            }
            if value.len() != Some(0) {
                line(to, depth);
            }
            to.push(']');
        }
        kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} has no JSON"))),
    }
    Ok(())
}
