//! Questions that stand in several fields, with their answer in one more: the subject and the body of a mail, and the reply.

use std::path::Path;

use super::columns::{Column, columns_of};
use super::fields::words_of;
use super::json::first_rows;
use super::roles::{Role, is_changed_into, is_of, rank};
use crate::formats::FileFormat;

/// Words of names of texts that answer the others of their row, or are made of them.
const ANSWERS: [&str; 14] = [
    "answer",
    "answers",
    "reply",
    "replies",
    "response",
    "solution",
    "resolution",
    "summary",
    "tldr",
    "translation",
    "output",
    "target",
    "targets",
    "completion",
];
/// Words that say of such a text that it need not be right, or is a number or a name.
const NOT_ANSWERS: [&str; 16] = [
    "model",
    "predicted",
    "prediction",
    "pred",
    "student",
    "user",
    "worker",
    "baseline",
    "wrong",
    "incorrect",
    "rejected",
    "chosen",
    "type",
    "id",
    "key",
    "language",
];
/// Words of names of parts of a question, next to the words of its roles.
const PARTS: [&str; 17] = [
    "subject",
    "title",
    "headline",
    "body",
    "description",
    "details",
    "detail",
    "issue",
    "message",
    "request",
    "complaint",
    "ticket",
    "inquiry",
    "enquiry",
    "mail",
    "text",
    "content",
];

/// Names of instructions, which are parts of all questions of their task.
const INSTRUCTIONS: [&str; 4] = ["definition", "instruction", "instructions", "task_definition"];

/// Those that say little of the question.
const HEADS: [&str; 3] = ["subject", "title", "headline"];

/// A question in several fields, and the field with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// The fields of the question, in the order of the file.
    pub(super) parts: Vec<String>,
    /// The one that says most of it.
    pub(super) main: String,
    pub(super) answer: String,
}

/// Whether a field of this name has what the others of its row are turned into.
pub(super) fn is_answer(name: &str) -> bool {
    let words = words_of(name.rsplit('.').next().unwrap_or(name));
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    has(&ANSWERS) && !has(&NOT_ANSWERS)
}

/// Whether a field of this name is a part of a question.
fn is_part(name: &str) -> bool {
    let (is_one, words) = (|role| is_of(role, name), words_of(name));
    let has_word = words.iter().any(|word| PARTS.contains(&word.as_str()));
    // Who answers is not asked.
    let is_other = is_one(Role::Wrong) || words.iter().any(|word| word == "system");
    (is_one(Role::Question) || is_one(Role::Context) || has_word || is_instruction(name)) && !is_other
}

/// Whether a field of this name has instructions, which recur in the rows of a task.
fn is_instruction(name: &str) -> bool {
    INSTRUCTIONS.contains(&words_of(name).join("_").as_str())
}

/// Whether the file is a table with questions and their answers.
pub(super) fn is_table_of_answers(path: &Path) -> bool {
    let format = FileFormat::by_name(path).filter(|format| [FileFormat::CSV, FileFormat::TSV].contains(format));
    let rows = format.map_or_else(Vec::new, |format| first_rows(path, format).rows);
    question_among(columns_of(&rows).iter().map(|(name, column)| (name.as_str(), column))).is_some()
}

/// Finds a question, of one part or more, and one answer among fields of these names, by their values.
fn question_among<'c>(columns: impl Iterator<Item = (&'c str, &'c Column)>) -> Option<(Vec<&'c str>, &'c str)> {
    let is_text = |name: &str, column: &Column| {
        column.has_words() && !column.is_constant() && !column.has_no_texts() && !column.is_id(name)
    };
    let texts: Vec<(&str, &Column)> = columns.filter(|(name, column)| is_text(name, column)).collect();
    let mut answers = texts.iter().filter(|(name, _)| is_answer(name));
    let (answer, _) = *answers.next().filter(|_| answers.next().is_none())?;
    // What recurs is about the question.
    let is_own = |name: &str, column: &Column| !column.recurs() || is_instruction(name);
    let parts = texts.iter().filter(|(name, column)| *name != answer && is_part(name) && is_own(name, column));
    let parts: Vec<&str> = parts.map(|(name, _)| *name).collect();
    (!parts.is_empty()).then_some((parts, answer))
}

impl Asked {
    /// Finds several parts of a question and one answer among fields of these names, by their values. Other texts do not count.
    pub(super) fn among<'c>(columns: impl Iterator<Item = (&'c str, &'c Column)>) -> Option<Self> {
        let (parts, answer) = question_among(columns)?;
        let is_head = |name: &&&str| words_of(name).iter().any(|word| HEADS.contains(&word.as_str()));
        let main = || parts.iter().filter(|name| !is_head(name));
        let question = main().filter(|name| rank(Role::Question, name).is_some());
        let question = question.min_by_key(|name| rank(Role::Question, name));
        let is_answered = |name: &&&str| is_changed_into(name, answer) == Some(true);
        let main = question.or_else(|| main().find(is_answered)).or_else(|| main().next_back()).or(parts.last())?;
        (parts.len() > 1).then(|| Self {
            main: (*main).to_owned(),
            answer: answer.to_owned(),
            parts: parts.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    /// Returns the template that reads all parts, in the order of the file. Rows may lack a part for which `may_lack` says so.
    pub(super) fn template(&self, may_lack: impl Fn(&str) -> bool) -> String {
        let is_name = |name: &String| {
            let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
            name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
        };
        if !self.parts.iter().all(is_name) {
            return self.parts.iter().map(|name| format!("{{{name}}}")).collect::<Vec<_>>().join("\\n");
        }
        // Lines end in front of the main part, and begin behind it.
        let (mut template, mut is_behind) = (String::new(), false);
        for name in &self.parts {
            let is_main = *name == self.main;
            let field = format!("{{{{ {name} }}}}");
            let piece = match (is_main, is_behind) {
                (true, _) => field,
                (false, false) => format!("{field}\\n"),
                (false, true) => format!("\\n{field}"),
            };
            let is_optional = !is_main && may_lack(name);
            template += &if is_optional { format!("{{% if {name} %}}{piece}{{% endif %}}") } else { piece };
            is_behind |= is_main;
        }
        template
    }

    /// Names the parts, for a sentence.
    pub(super) fn named(&self) -> String {
        let quoted: Vec<String> = self.parts.iter().map(|name| format!("\"{name}\"")).collect();
        match quoted.as_slice() {
            [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            all => all.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::corpus::template::RowTemplate;

    const WORDS: [&str; 8] = ["river", "stone", "garden", "window", "paper", "silver", "market", "engine"];

    fn asked(names: &[&str]) -> Option<Asked> {
        let cell = |name: &str, n: usize| format!("{} {} of {name} {n}", WORDS[n % 8], WORDS[n / 8 % 8]);
        let columns: Vec<(&str, Column)> = names
            .iter()
            .map(|name| {
                let cells: Vec<String> = (0..40).map(|n| cell(name, n)).collect();
                (*name, Column::of_cells(cells.iter().map(String::as_str)))
            })
            .collect();
        Asked::among(columns.iter().map(|(name, column)| (*name, column)))
    }

    #[test]
    fn one_answer_and_several_parts_of_its_question_are_found_by_name() {
        for (names, main, answer) in [
            (&["subject", "body", "answer"][..], "body", "answer"),
            (&["Ticket Subject", "Ticket Description", "Resolution"], "Ticket Description", "Resolution"),
            (&["title", "question", "reply_text"], "question", "reply_text"),
            (&["headline", "article", "summary"], "article", "summary"),
            (&["instruction", "context", "output"], "instruction", "output"),
        ] {
            let found = asked(names).unwrap_or_else(|| panic!("{names:?}"));
            assert_eq!((found.main.as_str(), found.answer.as_str()), (main, answer), "{names:?}");
            assert_eq!(found.parts, names[..2], "{names:?}");
        }
        for names in [
            &["subject", "answer"][..],
            &["subject", "body"],
            &["subject", "body", "answer", "reply"],
            &["subject", "body", "model_answer"],
            &["english", "italian", "translation"],
            &["system_prompt", "question", "response"],
        ] {
            assert_eq!(asked(names), None, "{names:?}");
        }
    }

    #[test]
    fn a_template_reads_all_parts_and_allows_for_blank_ones() {
        let row = |subject: &str| -> Map<String, Value> {
            let row = serde_json::json!({"subject": subject, "body": "b", "details": "d", "Ticket Body": "t"});
            row.as_object().expect("an object").clone()
        };
        let rendered = |asked: &Asked, may_lack: bool, row: &Map<String, Value>| {
            let template = asked.template(|_| may_lack);
            RowTemplate::of(&template).expect("a template").render(row, 100).expect("rendered")
        };
        let found = asked(&["subject", "body", "details", "answer"]).expect("a question");
        assert_eq!(found.template(|_| false), "{{ subject }}\\n{{ body }}\\n{{ details }}");
        assert_eq!(rendered(&found, false, &row("s")), "s\nb\nd");
        assert_eq!(
            (rendered(&found, true, &row("s")), rendered(&found, true, &row(""))),
            ("s\nb\nd".into(), "b\nd".into())
        );
        let spaced = asked(&["subject", "Ticket Body", "Answer"]).expect("a question");
        assert_eq!(rendered(&spaced, false, &row("s")), "s\nt");
        assert_eq!(spaced.named(), "\"subject\" and \"Ticket Body\"");
    }
}
