//! Lines in, lines out: the text helpers of the commands that generate.

use std::io::BufRead;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::CharacterCounts;
use kiln_data::files::read_line;
pub(super) use kiln_data::terminal::{shell_path, shell_word};
use kiln_data::way_to_utf8;
use kiln_metrics::logging::print::stderr_line;
use kiln_train::checkpoint::Checkpoints;
use kiln_train::dataset::lacking_note;
use kiln_train::run::TrainedModel;

use super::error::NotUtf8;

/// Most bytes of a line that a model reads: a page of a book has 2,000.
const MOST_BYTES: u64 = 1 << 20;
/// Bytes of lines that are read at once, unless one line is longer.
const CHUNK_BYTES: usize = 4 << 20;

/// Joins `text` into one line: a model may write a line break where its training text had one.
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Says on stderr which characters of the input the vocabulary lacks, if there are any.
pub(super) fn note_lacking(lacking: &CharacterCounts, spells_bytes: bool) {
    if let Some(note) = lacking_note(lacking, spells_bytes) {
        stderr_line!("note: {note}");
    }
}

/// Says on stderr that the best weights of the run in `dir` are older than its newest, if nobody chose between them.
pub(super) fn note_age(run: &TrainedModel, dir: &Path, chosen: Option<&str>) {
    let saved = Checkpoints::of_run(dir).list().unwrap_or_default();
    if let (None, Some((newest, _))) = (chosen, saved.last())
        && *newest > run.step
    {
        stderr_line!("note: the best checkpoint is used, step {}; --checkpoint last takes step {newest}", run.step);
    }
}

/// Lines of text that a model reads chunk by chunk.
pub(super) struct Chunks<'a> {
    /// Where the lines come from, for errors.
    pub(super) name: &'a str,
    /// Lines of a chunk: enough to sort them by length, and few enough that output starts soon.
    pub(super) size: usize,
    /// Somebody types the lines, so that each is a chunk.
    pub(super) typed: bool,
    /// Whether the model reads characters that its vocabulary lacks as bytes.
    pub(super) spells_bytes: bool,
}

impl Chunks<'_> {
    /// Passes each chunk of `input` to `each`, with the number of lines before it. Names the characters that the vocabulary
    /// lacks, which `lacking` counts: once for a whole file, and for each line that somebody types. Returns the number of
    /// lines.
    pub(super) fn for_each(
        &self,
        input: &mut impl BufRead,
        lacking: impl Fn(&[String]) -> kiln_data::Result<CharacterCounts>,
        mut each: impl FnMut(&[String], usize) -> Result<()>,
    ) -> Result<usize> {
        let size = if self.typed { 1 } else { self.size };
        let (mut n_done, mut counts) = (0, CharacterCounts::default());
        loop {
            let lines = read_lines(input, self.name, size, n_done)?;
            counts.merge(lacking(&lines)?);
            if lines.is_empty() || self.typed {
                note_lacking(&std::mem::take(&mut counts), self.spells_bytes);
            }
            if lines.is_empty() {
                return Ok(n_done);
            }
            each(&lines, n_done)?;
            n_done += lines.len();
        }
    }
}

/// Reads up to `n` lines of `input`, called `name`, without their line ends; returns none at the end of the input. Fewer lines
/// come if they are long, and a line of more than [`MOST_BYTES`] is refused before it is held in memory. One error names all lines that are
/// not UTF-8.
/// `n_before` lines were read before.
pub(super) fn read_lines(input: &mut impl BufRead, name: &str, n: usize, n_before: usize) -> Result<Vec<String>> {
    let (mut lines, mut n_bytes) = (Vec::new(), 0);
    let mut wrong: Option<NotUtf8> = None;
    for number in n_before + 1..=n_before + n {
        if n_bytes >= CHUNK_BYTES {
            break;
        }
        let mut line = Vec::new();
        if !read_line(input, &mut line, MOST_BYTES).with_context(|| format!("reading line {number} of {name}"))? {
            break;
        }
        n_bytes += line.len();
        match (std::str::from_utf8(&line), &mut wrong) {
            (Ok(line), _) => lines.push(line.trim_end_matches(['\n', '\r']).to_owned()),
            (Err(_), Some(wrong)) => wrong.others.push(number),
            (Err(error), none) => {
                let byte = error.valid_up_to() + 1;
                let is_utf16 = line.starts_with(&[0xff, 0xfe]) || line.starts_with(&[0xfe, 0xff]);
                let way = (!is_utf16).then(|| way_to_utf8(&line));
                *none = Some(NotUtf8 { name: name.into(), line: number, byte, others: Vec::new(), way });
            }
        }
    }
    wrong.map_or(Ok(lines), |wrong| Err(wrong.into()))
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
    fn every_chunk_comes_once_with_the_lines_before_it() {
        let chunks = |typed| Chunks { name: "stdin", size: 2, typed, spells_bytes: false };
        let read = |typed| {
            let mut found = Vec::new();
            let none = |_: &[String]| Ok(CharacterCounts::default());
            let each = |lines: &[String], before| {
                found.push((lines.join(","), before));
                Ok(())
            };
            (chunks(typed).for_each(&mut "a\nb\nc\n".as_bytes(), none, each).expect("text"), found)
        };
        assert_eq!(read(false), (3, vec![("a,b".into(), 0), ("c".into(), 2)]));
        assert_eq!(read(true), (3, vec![("a".into(), 0), ("b".into(), 1), ("c".into(), 2)]));
    }

    #[test]
    fn a_line_without_end_is_refused_and_long_lines_come_in_small_chunks() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'a'));
        let error = read_lines(&mut endless, "stdin", 9, 2).expect_err("endless");
        let text = format!("{error:#}");
        assert!(
            text.contains("line 3 of stdin") && text.contains("1048576 bytes") && text.contains("break it"),
            "{text}"
        );
        assert_eq!(super::super::exit::code_of(&error), super::super::exit::BAD_DATA);

        let line = "a".repeat(MOST_BYTES as usize - 1) + "\n";
        let text = line.repeat(9);
        let (mut input, mut sizes) = (text.as_bytes(), Vec::new());
        loop {
            match read_lines(&mut input, "stdin", 1000, 0).expect("text").len() {
                0 => break,
                n => sizes.push(n),
            }
        }
        assert_eq!(sizes, [4, 4, 1]);
    }

    #[test]
    fn a_line_that_is_no_text_is_named() {
        let read = |text: &[u8]| read_lines(&mut &*text, "stdin", 9, 1000).expect_err("latin1").to_string();
        let one = read(b"ok\ncaf\xe9\n");
        assert!(one.starts_with("line 1002 of stdin is not UTF-8 (at its byte 4); convert"), "{one}");
        let several = read(b"caf\xe9\nok\n\xff\n\xff\xff\n");
        assert!(
            several.starts_with(
                "line 1001 of stdin is not UTF-8 (at its byte 4); further lines that are not: 1003, 1004;"
            ),
            "{several}"
        );
    }
}
