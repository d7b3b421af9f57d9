//! Chat templates in files.

use std::path::Path;

use serde_json::Value;

use super::template::MAX_BYTES;
use crate::error::{Error, Result};
use crate::files::read_text;
use crate::tokenizer::NAMES_FILE;
use crate::tokenizer::special::read_names;

/// The template, where it has a file of its own.
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// Returns the chat template that stands next to a `tokenizer.json`: in `chat_template.jinja`, else in
/// `tokenizer_config.json`, where it is a text or a list of named texts. Of several, the one with the name `default` counts.
///
/// # Errors
/// If a file cannot be read, or has more than 1 MiB.
pub fn chat_template_next_to(tokenizer: &Path) -> Result<Option<String>> {
    let path = tokenizer.with_file_name(TEMPLATE_FILE);
    if path.is_file() {
        return read_chat_template(&path).map(Some);
    }
    Ok(template_in(&read_names(&tokenizer.with_file_name(NAMES_FILE))?))
}

/// Reads a file with a chat template.
///
/// # Errors
/// If it cannot be read, or has more than 1 MiB.
pub fn read_chat_template(path: &Path) -> Result<String> {
    let bytes = std::fs::metadata(path).map_err(Error::io(path, "reading the chat template"))?.len();
    if bytes > MAX_BYTES as u64 {
        return Err(Error::Invalid(format!(
            "{}: a chat template of {bytes} bytes, {MAX_BYTES} are allowed",
            path.display()
        )));
    }
    read_text(path).map_err(Error::io(path, "reading the chat template"))
}

/// Finds the chat template in the content of a `tokenizer_config.json`.
fn template_in(names: &Value) -> Option<String> {
    let found = match &names["chat_template"] {
        Value::Array(named) => &named.iter().find(|entry| entry["name"] == "default").or(named.first())?["template"],
        one => one,
    };
    found.as_str().map(str::to_owned)
}
