//! Rows that are lists of values without names: the command that names them.

#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::{Map, Value};

use super::said::lacking;
use super::spans::{self, has_span};
use super::splits::part_of;
use super::wrapped::one_object;
use super::{RowReader, tagged};
use crate::corpus::columns::{Column, ENOUGH_ROWS};
use crate::corpus::jq::{self, in_jq, path_in_jq};
use crate::corpus::pairs::are_column_names;
use crate::corpus::text::{Task, TextFormat};
use crate::formats::FileFormat;

/// Lists inside of one object from which these are its rows.
const FEWEST: usize = 3;
/// The part of an object's text that its list has, at least in percent.
const MOST: usize = 80;

/// Rows that are lists.
struct Lists {
    /// The field of the object that is the whole file. Empty if the rows are the file.
    field: String,
    rows: Vec<Vec<Value>>,
    /// Whether something else stands between them.
    has_others: bool,
    /// Other fields with such lists.
    more: Vec<String>,
}

/// What becomes of a row: the program of jq that makes it, and how it is read.
struct Named {
    what: &'static str,
    program: String,
    then: String,
}

/// Returns the lists in the only object of a file: those to train on, or else most of its text.
fn lists_in(file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<Lists> {
    let object: Map<String, Value> = serde_json::from_slice(&one_object(file, format, rows)?.0).ok()?;
    let lists_of = |name: &String| -> Vec<&Vec<Value>> {
        object[name].as_array().into_iter().flatten().filter_map(Value::as_array).collect()
    };
    let n_values = |name: &String| object[name].as_array().map_or(0, Vec::len);
    let are_rows = |name: &&String| {
        let n = lists_of(name).len();
        n >= FEWEST && 2 * n > n_values(name)
    };
    let found: Vec<&String> = object.keys().filter(are_rows).collect();
    // Of several lists to train on, such as `train` and `oos_train`, the longest counts.
    let rank = |name: &&&String| (part_of(name) == Some(0), n_values(name), std::cmp::Reverse(name.len()));
    let field = *found.iter().max_by_key(rank)?;

    let n_bytes = |name: &String| object[name].to_string().len();
    let of_lists: usize = found.iter().map(|name| n_bytes(name)).sum();
    let rows = lists_of(field);
    (100 * of_lists >= MOST * object.keys().map(n_bytes).sum::<usize>()).then(|| Lists {
        field: field.clone(),
        has_others: rows.len() < n_values(field),
        rows: rows.into_iter().take(100).cloned().collect(),
        more: found.iter().filter(|name| **name != field).map(|name| (*name).clone()).collect(),
    })
}

/// Returns the number of values that nearly all lists have.
fn width(rows: &[Vec<Value>]) -> Option<usize> {
    let n = rows.first()?.len();
    let n_alike = rows.iter().filter(|row| row.len() == n).count();
    (n > 1 && 10 * n_alike >= 9 * rows.len()).then_some(n)
}

/// Whether a list has a question and its answer, of which one may be missing.
fn is_turn(value: &Value) -> bool {
    let is_text = |value: &Value| value.is_string() || value.is_null();
    value
        .as_array()
        .is_some_and(|turn| turn.len() == 2 && turn.iter().all(is_text) && turn.iter().any(Value::is_string))
}

/// Returns the column of the lists at a place.
fn column(rows: &[Vec<Value>], at: usize) -> Column {
    Column::of_cells(rows.iter().filter_map(|row| row.get(at)?.as_str()))
}

/// Returns the place of a class and of its text, of lists of two strings.
fn class_in(rows: &[Vec<Value>]) -> Option<(usize, usize)> {
    match [0, 1].map(|at| column(rows, at).recurs()) {
        [false, true] => Some((1, 0)),
        [true, false] => Some((0, 1)),
        _ => None,
    }
}

/// Returns the field of objects behind texts that has spans of characters.
fn field_of_spans(rows: &[Vec<Value>]) -> Option<String> {
    let with_spans = |(name, value): (&String, &Value)| {
        value.as_array().is_some_and(|list| list.first().is_some_and(has_span)).then(|| name.clone())
    };
    let behind_text = |row: &Vec<Value>| row.len() == 2 && row[0].is_string() && row[1].is_object();
    let rows = rows.iter().filter(|row| behind_text(row));
    rows.filter_map(|row| row[1].as_object()).find_map(|behind| behind.iter().find_map(with_spans))
}

/// Returns the field of objects behind texts that has a number for each class.
fn field_of_marks(rows: &[Vec<Value>]) -> Option<String> {
    let is_mark = |value: &Value| value.is_number() || value.is_boolean();
    let are_marks =
        |value: &Value| value.as_object().is_some_and(|marks| marks.len() > 1 && marks.values().all(is_mark));
    let [text, behind] = rows.first()?.as_slice() else { return None };
    let (name, _) = behind.as_object()?.iter().find(|(_, value)| text.is_string() && are_marks(value))?;
    Some(name.clone())
}

impl RowReader<'_> {
    /// Says how the values of rows that are lists get names. `None` for other files: `rows` are the first objects, and `lists` the first lists.
    pub(super) fn unnamed(
        &self,
        (file, format): (&Path, FileFormat),
        rows: &[Map<String, Value>],
        lists: Vec<Vec<Value>>,
    ) -> Option<String> {
        // One list may be anything.
        let are_rows = rows.is_empty() && lists.len() > 1;
        let found = match are_rows {
            true => Lists { field: String::new(), rows: lists, has_others: false, more: Vec::new() },
            false => lists_in(file, format, rows)?,
        };
        let field = path_in_jq(std::slice::from_ref(&found.field));
        let within = match are_rows {
            true => String::new(),
            false => format!("{field}[] | {}", if found.has_others { "arrays | " } else { "" }),
        };
        let mut said = match are_rows {
            true => format!("{}: its rows are lists of values without names, and objects are wanted", file.display()),
            false => format!(
                "{}: it is one object, whose field \"{}\" has lists of values without names, and a row per line is wanted",
                file.display(),
                found.field
            ),
        };

        let spans = field_of_spans(&found.rows);
        let reads_texts = matches!(self.task, Task::Lm | Task::Mlm);
        if let Some(name) = spans.filter(|_| !reads_texts) {
            let spans = format!(".[1]{}", in_jq(&name));
            let program = format!("{within}select({spans} | type == \"array\") | {{text: .[0], entities: {spans}}}");
            let tags = "; they are texts with labels of spans of characters";
            return Some(format!("{said}{tags}\n{}", spans::of_lists(file, &program)));
        }
        let named = self.names_of(&found.rows);
        let program = format!("{within}{}", named.program);
        let command = match (named.what == TABLE, are_rows) {
            (true, true) => jq::command_of_all(file, format, &named.program),
            (true, false) => jq::command(file, format, &format!("{field} | {}", named.program)),
            (false, _) => jq::command(file, format, &program),
        };
        said += &format!("\nto {}: {command}\n{}", named.what, named.then);
        if !found.more.is_empty() {
            let more = found.more.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            said +=
                &format!("\nthe same command with another name in place of \"{}\" makes rows of {more}", found.field);
        }
        Some(said)
    }

    fn names_of(&self, rows: &[Vec<Value>]) -> Named {
        let flat = |value: &Value| !value.is_array() && !value.is_object();
        let n = width(rows);
        let are_flat = rows.iter().flatten().all(flat);
        let are_texts = rows.iter().flatten().all(Value::is_string);
        let are_turns = rows.iter().all(|row| !row.is_empty() && row.iter().all(is_turn));
        if let Some(field) = field_of_marks(rows) {
            let label = format!("(.[1]{} | to_entries | max_by(.value).key)", in_jq(&field));
            return self.as_class(&format!("{{text: .[0], label: {label}}}"));
        }

        match n {
            Some(_) if field_of_spans(rows).is_some() => Named {
                what: "take the texts alone",
                program: "{text: .[0]}".to_owned(),
                then: "and read rows.jsonl with the same flags".to_owned(),
            },
            Some(_) if are_flat && begins_with_names(rows) => Named {
                what: TABLE,
                program: ".[0] as $names | .[1:][] | [$names, .] | transpose | map({key: .[0], value: .[1]}) | from_entries".to_owned(),
                then: "and read rows.jsonl with the same flags".to_owned(),
            },
            Some(2) if are_texts && self.task != Task::Mlm => self.of_two(rows),
            Some(n) if are_flat && !(are_texts && self.task == Task::Mlm) => {
                let names: Vec<String> = (0..n).map(|at| format!("column_{at}: .[{at}]")).collect();
                Named {
                    what: "name the values, for which you can write better names",
                    program: format!("{{{}}}", names.join(", ")),
                    then: "and read rows.jsonl with the same flags".to_owned(),
                }
            }
            _ if are_turns && are_words(rows) => Named {
                what: "make words with tags of them",
                program: "{tokens: map(.[0]), tags: map(.[1])}".to_owned(),
                then: self.read_as(Task::Tagging),
            },
            _ if are_turns => Named {
                what: "make conversations of them",
                program: "{messages: [.[] | {role: \"user\", content: .[0]}, {role: \"assistant\", content: .[1]} | select(.content)]}".to_owned(),
                then: self.read_with("chat", TextFormat::Chat),
            },
            _ if are_texts && self.task == Task::Lm && self.text.format == TextFormat::Chat => Named {
                what: "make conversations of them, if the texts of each list are turns",
                program: "{messages: [to_entries[] | {role: (if .key % 2 == 0 then \"user\" else \"assistant\" end), content: .value}]}".to_owned(),
                then: self.read_with("chat", TextFormat::Chat),
            },
            _ if are_texts => Named {
                what: "make one text of each",
                program: "{text: join(\"\\n\")}".to_owned(),
                then: "and read rows.jsonl with the same flags".to_owned(),
            },
            _ => Named {
                what: "name the values, for example",
                program: "{text: .[0], label: .[1]}".to_owned(),
                then: "and read rows.jsonl with the same flags".to_owned(),
            },
        }
    }

    /// Names two texts: a pair, a question with its answer, or a text with its class.
    fn of_two(&self, rows: &[Vec<Value>]) -> Named {
        let are_few = rows.len() < ENOUGH_ROWS && self.task == Task::Classification;
        let class = class_in(rows).or_else(|| are_few.then_some((1, 0)));
        if let Some((label, text)) = class {
            return self.as_class(&format!("{{text: .[{text}], label: .[{label}]}}"));
        }
        if self.task == Task::Lm {
            return Named {
                what: "make prompts and completions of them",
                program: "{prompt: .[0], completion: .[1]}".to_owned(),
                then: self.read_with("chat", TextFormat::Chat),
            };
        }

        let (src, trg) = ("src".to_owned(), "trg".to_owned());
        let of_source = ("data.corpus.source_field", &self.corpus.source_field, &src);
        let flags = lacking([of_source, ("data.corpus.target_field", &self.corpus.target_field, &trg)]);
        let then = match (self.task, &flags[..]) {
            (Task::Translation, []) => self.read_as(Task::Translation),
            (Task::Translation, flags) => format!("and read rows.jsonl with {}", flags.join(" ")),
            (_, flags) => format!("{} {}", self.read_as(Task::Translation), flags.join(" ")),
        };
        Named {
            what: "make pairs of them",
            program: "{src: .[0], trg: .[1]}".to_owned(),
            then: then.trim_end().to_owned(),
        }
    }

    fn as_class(&self, program: &str) -> Named {
        let then = match self.task {
            Task::Classification => self.read_classes(),
            Task::Lm | Task::Mlm if !self.text.is_chat() => "and read rows.jsonl with the same flags".to_owned(),
            _ => self.read_as(Task::Classification),
        };
        Named { what: "name the text and its class", program: program.to_owned(), then }
    }

    /// Says which task reads the new rows.
    fn read_as(&self, task: Task) -> String {
        let name = super::said::name_of(task);
        match () {
            () if self.task == task => "and read rows.jsonl with the same flags".to_owned(),
            () if self.other_tasks.contains(&task) => {
                let format = self.without_format(task).map_or(String::new(), |format| format!(" {format}"));
                format!("and read rows.jsonl with --task {name}{format}")
            }
            () => format!("this run has another task; a run of task {name} reads the new rows"),
        }
    }
}

/// What is made of a list whose first row has the names.
const TABLE: &str = "give the values the names in the first row";

/// Whether the first list names the values of the others.
fn begins_with_names(rows: &[Vec<Value>]) -> bool {
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    rows.split_first().is_some_and(|(first, others)| {
        let names: Vec<&str> = first.iter().map(String::as_str).collect();
        are_column_names(&names, others)
    })
}

/// Whether lists of two strings are words with their tags.
fn are_words(rows: &[Vec<Value>]) -> bool {
    let side = |row: &Vec<Value>, at: usize| row.iter().map(|turn| turn[at].clone()).collect::<Vec<Value>>();
    let row = |row: &Vec<Value>| {
        let sides = [("tokens", side(row, 0)), ("tags", side(row, 1))];
        sides.into_iter().map(|(name, list)| (name.to_owned(), Value::Array(list))).collect()
    };
    let rows: Vec<Map<String, Value>> = rows.iter().map(row).collect();
    let is_word = |value: &Value| value.as_str().is_some_and(|word| !word.trim().contains(' '));
    let words = rows.iter().flat_map(|row| row.values()).filter_map(Value::as_array).flatten();
    words.clone().all(is_word) && words.count() > 2 * rows.len() && tagged(&rows, ["", ""]).is_some()
}
