//! How the files of a run on plain text are read where a run on other files, or an evaluation, takes over its format.

use std::path::PathBuf;

use kiln_data::{Split, TextFormat, find_files};

use super::DataConfig;

impl DataConfig {
    /// Lets the names of `files` decide how they are read, if the format is one of plain text and they have records. Returns a note.
    ///
    /// The format comes from a run on the files `before`. It stays if it reads records there, too.
    pub fn follow_names(&mut self, files: &[PathBuf], before: &[PathBuf]) -> Option<String> {
        let all = |entries: &[PathBuf]| find_files(entries, Split::Train, true).unwrap_or_else(|_| entries.to_vec());
        let (found, before) = (all(files), all(before));
        if before.iter().any(|file| self.text.reads_records_as_text(file)) {
            return None;
        }
        let file = found.iter().find(|file| self.text.reads_records_as_text(file))?;
        let before = serde_json::to_value(self.text.format).ok()?;
        self.text.format = TextFormat::Auto;
        Some(format!(
            "{}: read by its name, because data.text.format = {before} is from the text of that run; --set data.text.format={} reads it as \
             plain text",
            file.display(),
            before.as_str().unwrap_or_default()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, presets, resolve};

    #[test]
    fn records_are_not_read_as_the_plain_text_of_another_run() {
        let mut run = presets::gpt2_tiny();
        run.data.train = vec!["a.txt".into()];
        for format in [TextFormat::Files, TextFormat::Lines, TextFormat::BlankLines] {
            run.data.text.format = format;
            let over = |set: &[&str]| {
                let set = set.iter().map(ToString::to_string).collect();
                let sources = Sources { base: Some(run.clone()), fine_tunes: true, set, ..Sources::default() };
                let found = resolve(&sources).expect("valid");
                (found.config.data.text.format, found.notes.iter().any(|note| note.contains("read by its name")))
            };
            for file in ["data.train=b.jsonl", "data.train=b.json.gz", "data.train=b.parquet"] {
                assert_eq!(over(&[file]), (TextFormat::Auto, true), "{file}");
            }
            assert_eq!(over(&["data.train=b.txt"]), (format, false));
            assert_eq!(over(&["optim.lr=1e-4"]), (format, false));
            assert_eq!(over(&["data.train=b.jsonl", "data.text.format=lines"]), (TextFormat::Lines, false));
            let mut chosen = run.data.clone();
            assert_eq!(chosen.follow_names(&["b.jsonl".into()], &["a.jsonl".into()]), None, "it was meant there");
        }
    }
}
