//! What `kiln translate` reads: lines, and on a pipe JSON objects with texts that have line breaks.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::error::Usage;

/// The key of a text in a JSON object, which `--json` prints, too.
const SOURCE: &str = "source";
/// The key of the words that its translation begins with.
const PREFIX: &str = "target_prefix";

/// A text to translate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Input {
    /// The text. With `--target-prefix`, the words that its translation begins with stand behind a tab.
    pub(super) text: String,
    /// Whether it comes in a JSON object, and its translation goes out in one.
    pub(super) is_row: bool,
}

/// Returns the object of a line that has a text.
fn object(line: &str) -> Option<Map<String, Value>> {
    let row = line.trim_start().starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(line).ok())??;
    row.get(SOURCE).is_some_and(Value::is_string).then_some(row)
}

impl Input {
    /// Whether a line is a JSON object with a text.
    pub(super) fn is_row(line: &str) -> bool {
        object(line).is_some()
    }

    /// Reads the lines behind `n_before` others, without objects if somebody types them. With `reads_prefixes`, an object may have the words
    /// that its translation begins with.
    ///
    /// # Errors
    /// If the source of an object has a tab, which stands in front of these words.
    pub(super) fn read_all(lines: &[String], n_before: usize, typed: bool, reads_prefixes: bool) -> Result<Vec<Self>> {
        let read = |(number, line): (usize, &String)| {
            let Some(row) = object(line).filter(|_| !typed) else {
                return Ok(Self { text: line.clone(), is_row: false });
            };
            let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default();
            let source = text(SOURCE);
            if !reads_prefixes {
                return Ok(Self { text: source.to_owned(), is_row: true });
            }
            if source.contains('\t') {
                let problem =
                    format!("line {number} of stdin: with --target-prefix, a source has no tab: write spaces for it");
                return Err(Usage(problem).into());
            }
            Ok(Self { text: format!("{source}\t{}", text(PREFIX)), is_row: true })
        };
        (n_before + 1..).zip(lines).map(read).collect()
    }

    pub(super) fn texts(inputs: &[Self]) -> Vec<&str> {
        inputs.iter().map(|input| input.text.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, typed: bool, reads_prefixes: bool) -> (String, bool) {
        let mut found = Input::read_all(&[line.to_owned()], 0, typed, reads_prefixes).expect("readable");
        let Input { text, is_row } = found.remove(0);
        (text, is_row)
    }

    #[test]
    fn an_object_with_a_source_is_a_text_of_its_own() {
        let row = r#"{"source": "a\n\tb", "id": 7}"#;
        assert_eq!(read(row, false, false), ("a\n\tb".to_owned(), true));
        assert_eq!(read(row, true, false), (row.to_owned(), false), "what somebody types is a text");
        for line in ["{\"text\": \"a\"}", "{\"source\": 5}", "{source} of the Nile", "[\"source\"]", ""] {
            assert_eq!(read(line, false, false), (line.to_owned(), false));
        }
        let with_prefix = r#"{"source": "a\nb", "target_prefix": "c d"}"#;
        assert_eq!(read(with_prefix, false, true), ("a\nb\tc d".to_owned(), true));
        assert_eq!(read(with_prefix, false, false), ("a\nb".to_owned(), true));
        assert_eq!(read(r#"{"source": "a"}"#, false, true), ("a\t".to_owned(), true));
        let problem = Input::read_all(&[String::new(), row.to_owned()], 5, false, true).expect_err("a tab").to_string();
        assert!(problem.starts_with("line 7 of stdin"), "{problem}");
    }
}
