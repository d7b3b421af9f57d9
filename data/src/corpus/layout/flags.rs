//! Which rows a reader reads as they are, and the settings that it lacks for others.

use serde_json::{Map, Value};

use super::classes::{LabelList, has, has_one_label};
use super::recognize::is_rated;
use super::said::lacking;
use super::{Layout, RowReader};
use crate::corpus::fields::ANSWERS;
use crate::corpus::labelled::LabelConfig;
use crate::corpus::pairs::flag;
use crate::corpus::text::{Conversation, Preference, Task, TextConfig, TextFormat};

impl RowReader<'_> {
    /// Returns the flag that another task needs where this reader reads conversations: no other task takes their format.
    pub(super) fn without_format(&self, task: Task) -> Option<String> {
        (task != Task::Lm && self.text.is_chat()).then(|| "--set data.text.format=auto".to_owned())
    }

    /// Whether the row has what this reader looks for.
    pub(super) fn reads(&self, row: &Map<String, Value>) -> bool {
        // A template says by itself what it needs.
        let has = |name: &str| has(row, name);
        let line = || Value::Object(row.clone()).to_string();
        match self.task {
            Task::Translation => {
                let is_answer = ["completion", "response", "answer"].contains(&self.corpus.target_field.as_str());
                // Other pairs may have a score: a good one is worth a translation, too.
                let learns_rated = is_answer && row.contains_key("prompt") && is_rated(row);
                has(&self.corpus.source_field) && has(&self.corpus.target_field) && !learns_rated
            }
            Task::Lm | Task::Mlm => match self.text.format {
                TextFormat::Chat => Conversation::parse(&line(), &self.text.field).is_ok(),
                TextFormat::Preferences => Preference::parse(&line()).is_ok(),
                _ => has(&self.text.field),
            },
            Task::Classification => has(&self.labels.text_field) && has_one_label(row, &self.labels.label_field),
            Task::Tagging => has(&self.labels.words_field) && has(&self.labels.tags_field),
        }
    }

    /// Returns the task that reads the layout, and the settings that this reader lacks; `None` if nothing reads it.
    pub(super) fn flags(&self, layout: &Layout) -> Option<(Task, Vec<String>)> {
        let text_task = if self.task == Task::Mlm { Task::Mlm } else { Task::Lm };
        let (field, format) = (&self.text.field, self.text.format);
        let set_format = |wanted, name: &str| (format != wanted).then(|| format!("--set data.text.format={name}"));
        let is_default = *field == TextConfig::default().field;
        // Usual names need no flag, unless the configuration has other ones.
        let chat = |wanted: &str, is_usual: bool| {
            let field = (field != wanted && !(is_usual && is_default)).then(|| flag("data.text.field", wanted));
            (Task::Lm, set_format(TextFormat::Chat, "chat").into_iter().chain(field).collect())
        };
        let as_text = |name: &String| {
            let other = !matches!(format, TextFormat::Auto | TextFormat::Jsonl);
            let format = other.then(|| "--set data.text.format=jsonl".to_owned());
            let field = (field != name).then(|| flag("data.text.field", name));
            (text_task, format.into_iter().chain(field).collect())
        };

        Some(match layout {
            Layout::Rated => return None,
            Layout::Preferences => (Task::Lm, set_format(TextFormat::Preferences, "preferences").into_iter().collect()),
            Layout::Conversations { field } => chat(field, ["messages", "conversations"].contains(&field.as_str())),
            Layout::Answers { question, answer } => {
                chat(&format!("{question},{answer}"), ANSWERS.contains(&[question, answer]))
            }
            Layout::Tagged { words, tags } => {
                let now = self.labels;
                let of_words = ("data.labels.words_field", &now.words_field, words);
                (Task::Tagging, lacking([of_words, ("data.labels.tags_field", &now.tags_field, tags)]))
            }
            Layout::Labelled { text, .. } if matches!(self.task, Task::Lm | Task::Mlm) => as_text(text),
            Layout::Labelled { text, label } => {
                let now = self.labels;
                let of_text = ("data.labels.text_field", &now.text_field, text);
                (Task::Classification, lacking([of_text, ("data.labels.label_field", &now.label_field, label)]))
            }

            Layout::LabelledPairs { text, pair, label } => {
                let LabelConfig { text_field, pair_field, label_field, .. } = self.labels;
                let of_text = ("data.labels.text_field", text_field, text);
                let of_pair = ("data.labels.pair_field", pair_field, pair);
                (Task::Classification, lacking([of_text, of_pair, ("data.labels.label_field", label_field, label)]))
            }
            Layout::LabelLists { list: LabelList::Spans(_), .. } => return None,
            Layout::LabelLists { text, list: LabelList::Names(label) } => {
                let of_text = ("data.labels.text_field", &self.labels.text_field, text);
                (Task::Classification, lacking([of_text, ("data.labels.label_field", &self.labels.label_field, label)]))
            }
            Layout::Pairs { source, target } => (Task::Translation, self.pair_flags(source, target)),
            Layout::Texts { field } => as_text(field),
        })
    }
}
