//! Rows in a list inside of one object, as many programs export them.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Layout;
use super::lists::strings;
use super::splits::part_of;
use crate::corpus::fields::{ANSWERS, words_of};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::share;
use crate::formats::{FileFormat, Wanted, is_json_lines};

/// Larger files are not looked at.
const MOST_BYTES: usize = 64 << 20;
/// The rows of larger files are not looked at.
const MOST_BYTES_OF_ROWS: usize = 8 << 20;
/// Rows that are looked at.
const N_ROWS: usize = 100;

/// Words of names of instructions that belong to all rows of a list.
const INSTRUCTIONS: [&str; 7] = ["definition", "instruction", "instructions", "prompt", "system", "guidelines", "task"];
/// Further names of a question and its answer.
const PLURALS: [[&str; 2]; 2] = [["inputs", "targets"], ["input", "target"]];
/// Lists of one object from which their rows belong together.
const FEWEST_LISTS: usize = 3;

/// A list of objects in the object that is the whole file.
pub(super) struct WrappedList {
    /// The fields that lead to it.
    path: Vec<String>,
    n: usize,
    /// Whether the rows of many lists, which are the fields of the object, belong together. The path is empty then.
    are_many: bool,
    /// Its first rows; none of a large file, or of many lists.
    rows: Vec<Map<String, Value>>,
    /// Texts next to the list that belong to all of its rows, as expressions of jq, and the names of the fields with others.
    shared: Vec<String>,
    unread: Vec<String>,
    /// Whether the object cannot be a row, because it has several lines.
    pub(super) is_certain: bool,
}

/// Returns the longest list of objects in a file that is one object. `rows` are the first lines that are objects.
pub(super) fn list_in(file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<WrappedList> {
    let (text, n_lines) = one_object(file, format, rows)?;
    let Shape { lists, .. } = serde_json::from_slice(&text).ok()?;
    // Lists by the ids of texts, say: the parts of a data set stay apart.
    let outer: Vec<&(Vec<String>, usize)> = lists.iter().filter(|(path, _)| path.len() == 1).collect();
    let (n_rows, most) = (outer.iter().map(|(_, n)| n).sum(), outer.iter().map(|(_, n)| *n).max().unwrap_or(0));
    let are_many =
        outer.len() >= FEWEST_LISTS && 2 * most < n_rows && !outer.iter().any(|(path, _)| part_of(&path[0]).is_some());
    if are_many {
        let (path, rows, shared, unread) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        return Some(WrappedList { path, n: n_rows, are_many, rows, shared, unread, is_certain: n_lines > 1 });
    }

    let is_train = |path: &[String]| path.last().is_some_and(|name| part_of(name) == Some(0));
    let found = lists.into_iter().filter(|(path, n)| !path.is_empty() && *n > 1);
    let (path, n) = found.max_by_key(|(path, n)| (is_train(path), *n))?;
    let is_small = text.len() <= MOST_BYTES_OF_ROWS;
    let whole = if is_small { serde_json::from_slice::<Value>(&text).unwrap_or_default() } else { Value::Null };
    let [shared, unread] = next_to(&whole, &path);
    let rows = rows_at(&whole, &path);
    let is_certain = n_lines > 1 || !shared.is_empty() && names_of_answer(&rows).is_some();
    Some(WrappedList { path, n, are_many, rows, shared, unread, is_certain })
}

/// Returns the names of the question and the answer in rows.
fn names_of_answer(rows: &[Map<String, Value>]) -> Option<[&'static str; 2]> {
    let has = |name: &str| rows.first().is_some_and(|row| row.contains_key(name));
    ANSWERS.into_iter().chain(PLURALS).find(|names| names.iter().all(|name| has(name)))
}

/// Returns the first rows of the list at `path`.
fn rows_at(whole: &Value, path: &[String]) -> Vec<Map<String, Value>> {
    let list = path.iter().try_fold(whole, |value, name| value.get(name)).and_then(Value::as_array);
    list.into_iter().flatten().take(N_ROWS).filter_map(|row| row.as_object().cloned()).collect()
}

/// Returns the instructions next to the list at `path`, as expressions of jq, and the fields with lists of other objects.
fn next_to(whole: &Value, path: &[String]) -> [Vec<String>; 2] {
    let Some((list, around)) = path.split_last() else { return Default::default() };
    let object = around.iter().try_fold(whole, |value, name| value.get(name)).and_then(Value::as_object);
    let fields = || object.into_iter().flatten().filter(|(name, _)| *name != list);
    let text = |(name, value): (&String, &Value)| {
        let path = path_in_jq(&[around, std::slice::from_ref(name)].concat());
        let is_instruction = words_of(name).iter().any(|word| INSTRUCTIONS.contains(&word.as_str()));
        match strings(value) {
            _ if !is_instruction => None,
            Some(list) if list.iter().any(|text| text.contains(' ')) => Some(format!("({path} | join(\"\\n\"))")),
            Some(_) => None,
            None => value.as_str().filter(|text| text.contains(' ')).map(|_| path),
        }
    };
    let is_of_objects = |value: &Value| value.as_array().and_then(|list| list.first()).is_some_and(Value::is_object);
    let unread = fields().filter(|(_, value)| is_of_objects(value)).map(|(name, _)| name.clone());
    [fields().filter_map(text).collect(), unread.collect()]
}

/// Returns the text of a file that is probably one object, and how many lines have text.
pub(super) fn one_object(file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<(Vec<u8>, usize)> {
    if format != FileFormat::JSON || rows.len() > 1 || !is_json_lines(file).ok()? {
        return None;
    }
    let (mut lines, mut text, mut n_lines) = (format.open(file, &Wanted::all()).ok()?, Vec::new(), 0);
    let mut start = 0;
    while lines.next(&mut text).ok()?.is_some() {
        n_lines += usize::from(!text[start..].trim_ascii().is_empty());
        let is_object = text.trim_ascii_start().first().is_none_or(|byte| *byte == b'{');
        if !is_object || text.len() > MOST_BYTES {
            return None;
        }
        text.push(b'\n');
        start = text.len();
    }
    Some((text, n_lines))
}

/// Whether the list of the only row has most of its text: `layout` is what the row is by itself.
pub(super) fn has_most_text(rows: &[Map<String, Value>], layout: Option<&Layout>) -> bool {
    match layout {
        None => true,
        Some(Layout::Texts { field: text } | Layout::Labelled { text, .. } | Layout::Pairs { target: text, .. }) => {
            share::is_small(rows, text)
        }
        _ => false,
    }
}

impl WrappedList {
    pub(super) fn rows(&self) -> &[Map<String, Value>] {
        &self.rows
    }

    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// Returns the program of jq for its rows.
    pub(super) fn in_jq(&self) -> String {
        format!("{}[]", path_in_jq(&self.path))
    }

    /// Says what the file is, and how to get a row per line.
    pub(super) fn advice(&self, file: &Path) -> String {
        if self.are_many {
            let command = jq::command(file, FileFormat::JSON, ".[] | arrays | .[]");
            return format!(
                "{}: it is one object, whose fields are lists with {} objects in all, and a row per line is wanted\nto make rows of them: {command}",
                file.display(),
                self.n
            );
        }
        if !self.shared.is_empty() {
            return self.advice_for_shared(file);
        }
        let (command, file) = (jq::command(file, FileFormat::JSON, &self.in_jq()), file.display());
        format!(
            "{file}: it is one object, whose field \"{}\" is a list of {} objects, and a row per line is wanted\nto make rows of \
             them: {command}",
            self.path.join("."),
            self.n
        )
    }
}

impl WrappedList {
    /// Says how the instructions next to the list get into each of its rows.
    fn advice_for_shared(&self, file: &Path) -> String {
        let all = match self.shared.as_slice() {
            [one] => one.clone(),
            several => format!("([{}] | join(\"\\n\"))", several.join(", ")),
        };
        let (what, program, read) = match names_of_answer(&self.rows) {
            Some([question, answer]) => (
                "prompts with it, and completions",
                format!(
                    "{all} as $all | {} | {{prompt: ($all + \"\\n\\n\" + .{question}), completion: (.{answer} | if type == \"array\" then .[0] \
                     else . end)}} | select(.completion | strings | . != \"\")",
                    self.in_jq()
                ),
                "and read rows.jsonl with --task lm --set data.text.format=chat",
            ),
            None => (
                "rows with it",
                format!("{all} as $all | {} | {{instruction: $all}} + .", self.in_jq()),
                "and train on rows.jsonl",
            ),
        };

        let unread: Vec<String> = self.unread.iter().map(|name| format!("\"{name}\"")).collect();
        let unread = if unread.is_empty() { String::new() } else { format!("\nthat leaves out {}", unread.join(", ")) };
        format!(
            "{}: it is one object, whose field \"{}\" is a list of {} objects, and the instructions in {all} belong to all of them\nto make \
             {what}: {}{unread}\n{read}",
            file.display(),
            self.path.join("."),
            self.n,
            jq::command(file, FileFormat::JSON, &program)
        )
    }
}

/// What a value is: whether an object, and the lists of objects in it with their lengths.
#[derive(Default)]
struct Shape {
    is_object: bool,
    lists: Vec<(Vec<String>, usize)>,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut lists = Vec::new();
        while let Some((key, inside)) = map.next_entry::<String, Shape>()? {
            lists.extend(inside.lists.into_iter().map(|(mut path, n)| {
                path.insert(0, key.clone());
                (path, n)
            }));
        }
        Ok(Shape { is_object: true, lists })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut n = 0;
        while let Some(Shape { is_object, .. }) = seq.next_element()? {
            if !is_object {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Shape::default());
            }
            n += 1;
        }
        Ok(Shape { is_object: false, lists: vec![(Vec::new(), n)] })
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::default())
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::default())
    }
}
