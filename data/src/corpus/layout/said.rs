//! Names of layouts and tasks, and flags, as messages have them.

use super::Layout;
use super::classes::LabelList;
use crate::corpus::pairs::flag;
use crate::corpus::text::Task;

impl Layout {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Preferences => "preferences",
            Self::Rated => "answers that are rated (KTO)",
            Self::Conversations { .. } => "conversations",
            Self::Answers { .. } => "questions and answers",
            Self::Tagged { .. } => "words with tags",
            Self::Labelled { .. } => "texts with labels",
            Self::LabelledPairs { .. } => "pairs of texts with labels",
            Self::LabelLists { list: LabelList::Names(_), .. } => "texts with lists of labels",
            Self::LabelLists { list: LabelList::Spans(..), .. } => "texts with labels of spans of characters",
            Self::Pairs { .. } => "pairs",
            Self::Texts { .. } => "texts",
        }
    }
}

/// Returns the flags for keys whose value is not the wanted one: key, value, wanted value.
pub(super) fn lacking<const N: usize>(fields: [(&str, &String, &String); N]) -> Vec<String> {
    let others = fields.into_iter().filter(|(_, now, wanted)| now != wanted);
    others.map(|(key, _, wanted)| flag(key, wanted)).collect()
}

/// Returns the name of a task in a configuration.
pub(super) fn name_of(task: Task) -> &'static str {
    match task {
        Task::Translation => "translation",
        Task::Lm => "lm",
        Task::Mlm => "mlm",
        Task::Classification => "classification",
        Task::Tagging => "tagging",
    }
}

/// Names the fields that a command leaves out.
pub(super) fn without(left_out: &[String]) -> String {
    let shown = left_out.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    if left_out.is_empty() { String::new() } else { format!("\nthat leaves out {shown}") }
}
