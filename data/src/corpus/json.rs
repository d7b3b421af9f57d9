//! The fields of one JSON line.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::problem::RowProblem;

/// Extracts the texts of N fields from a JSON object.
#[derive(Debug, Clone)]
pub(super) struct JsonFields<const N: usize> {
    names: [String; N],
    /// A field name has a dot and may reach into nested objects. Such rows are parsed as a whole, which is slower.
    nested: bool,
}

impl<const N: usize> JsonFields<N> {
    pub(super) fn new(names: [String; N]) -> Self {
        let nested = names.iter().any(|name| name.contains('.'));
        Self { names, nested }
    }

    /// Returns the texts, borrowed from the line where they have no escapes.
    pub(super) fn parse<'a>(&self, line: &'a str) -> Result<[Cow<'a, str>; N], RowProblem> {
        let found = if self.nested {
            let row: serde_json::Value = serde_json::from_str(line).map_err(malformed_json)?;
            std::array::from_fn(|i| find_nested(&row, &self.names[i]))
        } else {
            let mut json = serde_json::Deserializer::from_str(line);
            let found = json.deserialize_map(FieldsVisitor { names: &self.names }).map_err(malformed_json)?;
            json.end().map_err(malformed_json)?;
            found
        };
        let mut texts = [const { Cow::Borrowed("") }; N];
        for ((text, field), name) in texts.iter_mut().zip(found).zip(&self.names) {
            *text = field.text(name, line)?;
        }
        Ok(texts)
    }
}

fn malformed_json(error: serde_json::Error) -> RowProblem {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    RowProblem::Malformed(format!("not a JSON object: {text} (byte {})", error.column()))
}

fn find_nested(row: &serde_json::Value, field: &str) -> Field<'static> {
    let found = row.get(field).or_else(|| field.split('.').try_fold(row, |object, key| object.get(key)));
    match found {
        None => Field::Missing,
        Some(serde_json::Value::String(text)) => Field::Text(text.clone().into()),
        Some(serde_json::Value::Null) => Field::Wrong("null"),
        Some(serde_json::Value::Bool(_)) => Field::Wrong("a Boolean"),
        Some(serde_json::Value::Number(_)) => Field::Wrong("a number"),
        Some(serde_json::Value::Array(_)) => Field::Wrong("an array"),
        Some(serde_json::Value::Object(_)) => Field::Wrong("an object"),
    }
}

/// The content of a field.
enum Field<'a> {
    Missing,
    Wrong(&'static str),
    Text(Cow<'a, str>),
}

impl<'a> Field<'a> {
    fn text(self, name: &str, line: &str) -> Result<Cow<'a, str>, RowProblem> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Wrong(found) => Err(RowProblem::Malformed(format!("field \"{name}\" is {found}, wanted a string"))),
            Self::Missing => {
                let names = match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line) {
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

/// Picks fields out of a JSON object and skips everything else without storing it.
struct FieldsVisitor<'p, const N: usize> {
    names: &'p [String; N],
}

impl<'de, const N: usize> Visitor<'de> for FieldsVisitor<'_, N> {
    type Value = [Field<'de>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [const { Field::Missing }; N];
        while let Some(key) = map.next_key::<Field<'de>>()? {
            let wanted = match key {
                Field::Text(key) => self.names.iter().position(|name| *name == *key),
                _ => None,
            };
            match wanted {
                Some(i) => found[i] = map.next_value()?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

impl<'de> serde::Deserialize<'de> for Field<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
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
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Field::Wrong("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Wrong("an object"))
    }
}
