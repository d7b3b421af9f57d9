//! The fields of one JSON line.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::field_order::field_order;
use super::template::RowTemplate;
use crate::formats::{FileFormat, RowProblem, Wanted};

/// Extracts N texts from a JSON object, each of a field or made by a template. A dot in a name reaches into nested objects and lists.
#[derive(Debug, Clone)]
pub(super) struct JsonFields<const N: usize> {
    names: [String; N],
    templates: [Option<RowTemplate>; N],
}

impl<const N: usize> JsonFields<N> {
    pub(super) fn new(names: [String; N]) -> Self {
        let templates = names.each_ref().map(|name| RowTemplate::of(name));
        Self { names, templates }
    }

    /// Returns the fields to read of a record.
    pub(super) fn wanted(&self) -> Wanted {
        let mut fields = Vec::new();
        for (name, template) in self.names.iter().zip(&self.templates) {
            match template.as_ref().map(RowTemplate::fields) {
                None => fields.push(name.clone()),
                Some(Some(of_template)) => fields.extend(of_template),
                Some(None) => return Wanted::all(),
            }
        }
        Wanted::only(fields)
    }

    /// Returns the texts, borrowed from the line where they have no escapes.
    pub(super) fn parse<'a>(&self, line: &'a str) -> Result<[Cow<'a, str>; N], RowProblem> {
        let mut texts = self.parse_fields(line)?;
        if self.templates.iter().any(Option::is_some) {
            let row: Map<String, Value> = serde_json::from_str(line).map_err(malformed_json)?;
            for (text, template) in texts.iter_mut().zip(&self.templates) {
                if let Some(template) = template {
                    *text = Cow::Owned(template.render(&row, line.len())?);
                }
            }
        }
        Ok(texts)
    }

    /// Returns the texts of the fields, and nothing for templates.
    fn parse_fields<'a>(&self, line: &'a str) -> Result<[Cow<'a, str>; N], RowProblem> {
        let mut found = [const { Field::Missing }; N];
        let names = self.names.each_ref().map(|name| Some(name.as_str()));
        let mut json = serde_json::Deserializer::from_str(line);
        json.deserialize_map(Picked { names, found: &mut found }).map_err(malformed_json)?;
        json.end().map_err(malformed_json)?;

        let mut texts = [const { Cow::Borrowed("") }; N];
        for (at, field) in found.into_iter().enumerate() {
            if self.templates[at].is_none() {
                texts[at] = field.text(&self.names[at], line)?;
            }
        }
        Ok(texts)
    }
}

fn malformed_json(error: serde_json::Error) -> RowProblem {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    RowProblem::Malformed(format!("not a JSON object: {text} (byte {})", error.column()))
}

/// The first rows of a file.
#[derive(Default)]
pub(super) struct FirstRows {
    pub(super) rows: Vec<Map<String, Value>>,
    /// The fields of the first row in the order of the file, with dots for nested objects.
    pub(super) order: Vec<String>,
    /// The lists among the first records.
    pub(super) lists: Vec<Vec<Value>>,
}

/// Returns the first JSON objects of a file. Empty if it cannot be read.
pub(super) fn first_rows(path: &Path, format: FileFormat) -> FirstRows {
    read_rows(path, format, |_| 0)
}

/// Does the same, but a row with the fields that most rows have comes first.
pub(super) fn usual_rows(path: &Path, format: FileFormat) -> FirstRows {
    // Rows of another kind may stand above, such as the notes of a program in a chat.
    read_rows(path, format, |rows| usual_row(rows).unwrap_or(0))
}

/// Reads the first rows of a file, and lets the one that `begin` names come first.
fn read_rows(path: &Path, format: FileFormat, begin: impl Fn(&[Map<String, Value>]) -> usize) -> FirstRows {
    let (mut rows, mut lines, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    let Ok(mut records) = format.open(path, &Wanted::all()) else { return FirstRows::default() };
    for _ in 0..100 {
        let mut line = Vec::new();
        let Ok(Some(_)) = records.next(&mut line) else { break };
        match serde_json::from_slice(&line) {
            Ok(Value::Object(row)) => {
                rows.push(row);
                lines.push(line);
            }
            Ok(Value::Array(list)) => lists.push(list),
            _ => {}
        }
    }
    let at = begin(&rows);
    if at > 0 {
        rows[..=at].rotate_right(1);
    }
    let order = lines.get(at).map_or_else(Vec::new, |line| field_order(line));
    FirstRows { rows, order, lists }
}

/// Returns the first row with the fields that most rows have. `None` if no fields belong to most of them.
fn usual_row(rows: &[Map<String, Value>]) -> Option<usize> {
    let has_same = |row: &Map<String, Value>| rows.iter().filter(|other| other.keys().eq(row.keys())).count();
    rows.iter().position(|row| 2 * has_same(row) > rows.len())
}

/// A field of a row.
pub(super) struct NamedField {
    /// With dots for nested objects.
    pub(super) name: String,
    /// Length of its text; 0 if it is not a text.
    pub(super) n_bytes: usize,
}

/// Returns the fields of the first record of a file in their order there, to suggest names. `None` if there is none near its start.
pub(super) fn fields_of_first_row(path: &Path, format: FileFormat) -> Option<Vec<NamedField>> {
    let mut records = format.open(path, &Wanted::all()).ok()?;
    let mut line = Vec::new();
    while records.next(&mut line).ok()??.line < 101 {
        if let Ok(row @ Value::Object(_)) = serde_json::from_slice(&line) {
            let mut fields = Vec::new();
            flatten("", &row, &mut fields);
            let order = field_order(&line);
            fields.sort_by_key(|field| order.iter().position(|name| *name == field.name));
            return Some(fields);
        }
        line.clear();
    }
    None
}

fn flatten(prefix: &str, value: &Value, fields: &mut Vec<NamedField>) {
    if let Value::Object(object) = value {
        for (key, value) in object {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            flatten(&name, value, fields);
        }
    } else {
        fields.push(NamedField { name: prefix.to_owned(), n_bytes: value.as_str().map_or(0, str::len) });
    }
}

/// The content of a field.
enum Field<'a> {
    Missing,
    Wrong(&'static str),
    Text(Cow<'a, str>),
    /// This key occurs twice, so one of the two values would be lost.
    Twice(String),
}

impl<'a> Field<'a> {
    fn text(self, name: &str, line: &str) -> Result<Cow<'a, str>, RowProblem> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Wrong(found) => Err(RowProblem::Malformed(format!("field \"{name}\" is {found}, wanted a string"))),
            Self::Twice(key) => {
                Err(RowProblem::Malformed(format!("key \"{key}\" occurs twice in the row: keep one of the two")))
            }
            Self::Missing => {
                let names = match serde_json::from_str::<Map<String, Value>>(line) {
                    Ok(row) if !row.is_empty() => {
                        let names: Vec<_> = row.keys().take(8).map(|k| format!("\"{k}\"")).collect();
                        format!("the row has {}", names.join(", "))
                    }
                    _ => "the row has no fields".into(),
                };
                Err(RowProblem::Malformed(format!("no field \"{name}\": {names}")))
            }
        }
    }
}

/// Reads a JSON value. From an object it picks the wanted fields, and skips everything else without storing it.
struct Picked<'p, 'f, 'de, const N: usize> {
    /// Names of the fields, as seen from this value; `None` for fields elsewhere.
    names: [Option<&'p str>; N],
    found: &'f mut [Field<'de>; N],
}

impl<'de> Deserialize<'de> for Field<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Picked { names: [], found: &mut [] }.deserialize(deserializer)
    }
}

impl<'de, const N: usize> DeserializeSeed<'de> for Picked<'_, '_, 'de, N> {
    type Value = Field<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Picked<'_, '_, 'de, N> {
    type Value = Field<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self { names, found } = self;
        let mut seen = [false; N];
        while let Some(key) = map.next_key::<Field<'de>>()? {
            let Field::Text(key) = key else { continue };
            let is_field = names.map(|name| name == Some(&*key));
            let inside = names.map(|name| name?.strip_prefix(&*key)?.strip_prefix('.'));
            let leads = |i: &usize| is_field[*i] || inside[*i].is_some();
            if !(0..N).any(|i| leads(&i)) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }

            let is_twice = (0..N).filter(leads).any(|i| seen[i]);
            (0..N).filter(leads).for_each(|i| seen[i] = true);
            let mut value = Some(map.next_value_seed(Picked { names: inside, found: &mut *found })?);
            for i in (0..N).filter(leads) {
                if is_twice {
                    found[i] = Field::Twice(key.to_string());
                } else if is_field[i] {
                    // Two fields have two names, so this is the only one.
                    found[i] = value.take().unwrap_or(Field::Missing);
                }
            }
        }
        Ok(Field::Wrong("an object"))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Field::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Field::Text(Cow::Owned(text.into())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Field::Wrong("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Field::Wrong("a Boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Field::Wrong("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Field::Wrong("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Field::Wrong("a number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let Self { names, found } = self;
        if names.iter().all(Option::is_none) {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Field::Wrong("an array"));
        }
        for number in 0.. {
            let number = number.to_string();
            let is_field = names.map(|name| name == Some(&*number));
            let inside = names.map(|name| name?.strip_prefix(&*number)?.strip_prefix('.'));
            let Some(value) = seq.next_element_seed(Picked { names: inside, found: &mut *found })? else { break };
            if let Some(at) = is_field.iter().position(|is_field| *is_field) {
                found[at] = value;
            }
        }
        Ok(Field::Wrong("an array"))
    }
}
