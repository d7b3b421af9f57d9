//! The text of the built-in task: numbers in digits -> English words, or sentences about them.

use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::built_in::numbers::{self, Numbers};
use kiln_data::files::{read_file, write_fresh};
use kiln_data::{Example, TextConfig, TextFormat};
use serde_json::json;

use super::Files;
use crate::config::Config;
use crate::config::task::{Classes, Reads, traits_of};

/// Training rows.
const TRAIN_ROWS: usize = 50_000;
/// Held-out rows.
pub(super) const VALID_ROWS: usize = 500;

/// Generates the rows of the built-in task.
pub(crate) fn rows(config: &Config) -> kiln_data::Result<Numbers> {
    numbers::examples(TRAIN_ROWS, VALID_ROWS, numbers::MAX_DIGITS, config.seed)
}

/// Makes the text of the built-in task for `config`: the name and content of the training file and of the validation
/// file. Translation reads pairs, and tasks that predict classes read labelled numbers. The others read sentences, one
/// per line: `105 is one hundred five.`
pub fn texts(config: &Config) -> kiln_data::Result<[(&'static str, Vec<u8>); 2]> {
    let Numbers { train, held_out } = rows(config)?;
    let row = traits_of(config.task);
    if let Some(classes) = row.classes {
        return Ok([
            ("numbers.train.jsonl", labelled(&train, classes)),
            ("numbers.valid.jsonl", labelled(&held_out, classes)),
        ]);
    }
    Ok(match row.reads {
        Reads::Pairs => {
            [("numbers.train.jsonl", numbers::jsonl(&train)), ("numbers.valid.jsonl", numbers::jsonl(&held_out))]
        }
        Reads::Text => [("numbers.train.txt", sentences(&train)), ("numbers.valid.txt", sentences(&held_out))],
    })
}

/// Writes the text, unless the files already hold exactly this.
pub(super) fn write(config: &Config, dir: &Path) -> Result<Files> {
    let [train, valid] = texts(config)?.map(|(name, text)| {
        let path = dir.join(name);
        if !read_file(&path).is_ok_and(|there| there == text) {
            write_fresh(&path, &text).with_context(|| format!("{}: cannot write the built-in text", path.display()))?;
        }
        Ok::<_, anyhow::Error>(path)
    });
    Ok(Files { train: vec![train?], valid: vec![valid?] })
}

/// Returns how the built-in text is read: every sentence is a document.
pub(super) fn text_config(of_run: &TextConfig) -> TextConfig {
    TextConfig { format: TextFormat::Lines, ..of_run.clone() }
}

/// Numbers in words: each is even or odd, and each of its words a digit, a ten or a power of ten.
fn labelled(examples: &[Example], classes: Classes) -> Vec<u8> {
    let row = |example: &Example| match classes {
        Classes::OfTexts => {
            let is_even = example.source.ends_with(['0', '2', '4', '6', '8']);
            json!({ "text": example.target, "label": if is_even { "even" } else { "odd" } })
        }
        Classes::OfWords => {
            let words: Vec<&str> = example.target.split([' ', '-']).collect();
            let tags: Vec<&str> = words.iter().map(|word| kind_of_number(word)).collect();
            json!({ "tokens": words, "tags": tags })
        }
    };
    examples.iter().map(|example| format!("{}\n", row(example))).collect::<String>().into_bytes()
}

fn kind_of_number(word: &str) -> &'static str {
    match word {
        "hundred" | "thousand" | "million" | "billion" => "power",
        tens if tens.ends_with("ty") => "ten",
        teens if teens.ends_with("teen") || matches!(teens, "ten" | "eleven" | "twelve") => "teen",
        _ => "digit",
    }
}

fn sentences(examples: &[Example]) -> Vec<u8> {
    examples.iter().map(|row| format!("{} is {}.\n", row.source, row.target)).collect::<String>().into_bytes()
}
