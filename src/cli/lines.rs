//! Lines in, lines out: the text helpers of the commands that generate.

use std::io::BufRead;

use anyhow::{Context, Result};
use kiln_data::CharacterCounts;

use super::error::NotUtf8;

/// Joins `text` into one line: a model may write a line break where its training text had one.
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Quotes a text for the shell.
pub(super) fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Says on stderr which characters of the input the vocabulary lacks, if there are any.
pub(super) fn note_lacking(lacking: &CharacterCounts, spells_bytes: bool) {
    let read_as = if spells_bytes { "bytes, which it has rarely seen in training" } else { "unknown tokens" };
    if !lacking.is_empty() {
        eprintln!("note: the vocabulary lacks {lacking}; the model reads them as {read_as}");
    }
}

/// Reads up to `n` lines of `input`, called `name`, without their line ends; returns none at the end of the input.
/// `n_before` lines were read before.
pub(super) fn read_lines(input: &mut impl BufRead, name: &str, n: usize, n_before: usize) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    while lines.len() < n {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).with_context(|| format!("reading {name}"))? == 0 {
            break;
        }
        let line = String::from_utf8(line).map_err(|error| {
            let byte = error.utf8_error().valid_up_to() + 1;
            NotUtf8 { name: name.into(), line: n_before + lines.len() + 1, byte }
        })?;
        lines.push(line.trim_end_matches(['\n', '\r']).to_owned());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_chunks_without_their_ends() {
        let mut input = "a\r\n\nb c\nlast".as_bytes();
        assert_eq!(read_lines(&mut input, "stdin", 3, 0).expect("text"), ["a", "", "b c"]);
        assert_eq!(read_lines(&mut input, "stdin", 3, 3).expect("text"), ["last"]);
        assert!(read_lines(&mut input, "stdin", 3, 4).expect("text").is_empty());
    }

    #[test]
    fn a_line_that_is_no_text_is_named() {
        let error = read_lines(&mut b"ok\ncaf\xe9\n".as_slice(), "stdin", 9, 1000).expect_err("latin1");
        assert!(error.to_string().starts_with("line 1002 of stdin is not UTF-8 (at its byte 4)"), "{error}");
    }
}
