//! One row of text: a pair, or the reason why not.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::CorpusConfig;

/// The two texts of a row, borrowed from its line where JSON escapes allow.
#[derive(Debug, PartialEq)]
pub(crate) struct Pair<'a> {
    pub(crate) source: Cow<'a, str>,
    pub(crate) target: Cow<'a, str>,
}

/// Why a row cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowProblem {
    /// No JSON, no such field, a wrong type, a wrong encoding.
    Malformed(String),
    /// No text on either side.
    Empty,
    /// Text on one side only; which side is empty.
    OneSided(&'static str),
    /// More tokens than allowed; the text says how many.
    OverLong(String),
}

impl RowProblem {
    /// Whether a row of so many tokens (eos included) can be used.
    pub(crate) fn of_lengths(source_tokens: usize, target_tokens: usize, config: &CorpusConfig) -> Option<Self> {
        for (side, tokens, max) in
            [("source", source_tokens, config.max_source_len), ("target", target_tokens, config.max_target_len)]
        {
            if tokens == 1 {
                return Some(Self::Malformed(format!("the {side} has no tokens after normalization")));
            }
            if max != 0 && tokens > max {
                return Some(Self::OverLong(format!("the {side} has {tokens} tokens, {max} are allowed")));
            }
        }
        None
    }
}

impl fmt::Display for RowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(found) => f.write_str(found),
            Self::Empty => f.write_str("both sides are empty"),
            Self::OneSided(side) => write!(f, "one-sided pair: the {side} is empty"),
            Self::OverLong(found) => f.write_str(found),
        }
    }
}

/// Takes rows apart as the configuration says.
#[derive(Debug, Clone)]
pub(crate) struct RowParser {
    source_field: String,
    target_field: String,
    source_column: usize,
    target_column: usize,
    /// A field name with a dot may reach into nested objects; such rows take the slower way.
    nested: bool,
}

impl RowParser {
    pub(crate) fn new(config: &CorpusConfig) -> Self {
        Self {
            source_field: config.source_field.clone(),
            target_field: config.target_field.clone(),
            source_column: config.source_column,
            target_column: config.target_column,
            nested: config.source_field.contains('.') || config.target_field.contains('.'),
        }
    }

    pub(crate) fn parse_jsonl<'a>(&self, line: &'a [u8]) -> Result<Pair<'a>, RowProblem> {
        let line = utf8(line)?;
        if line.trim_ascii().is_empty() {
            return Err(RowProblem::Empty);
        }
        let (source, target) = if self.nested {
            let row: serde_json::Value = serde_json::from_str(line).map_err(malformed_json)?;
            (find_nested(&row, &self.source_field), find_nested(&row, &self.target_field))
        } else {
            let mut json = serde_json::Deserializer::from_str(line);
            let fields = json.deserialize_map(FieldsVisitor { parser: self }).map_err(malformed_json)?;
            json.end().map_err(malformed_json)?;
            fields
        };
        let source = source.text(&self.source_field, line)?;
        let target = target.text(&self.target_field, line)?;
        pair(source, target)
    }

    pub(crate) fn parse_tsv<'a>(&self, line: &'a [u8]) -> Result<Pair<'a>, RowProblem> {
        let line = utf8(line)?;
        if line.trim_ascii().is_empty() {
            return Err(RowProblem::Empty);
        }
        let column = |number: usize| {
            line.split('\t').nth(number).ok_or_else(|| {
                let n = line.split('\t').count();
                RowProblem::Malformed(format!("no column {number} (from 0): the row has {n} separated by tabs"))
            })
        };
        pair(column(self.source_column)?.into(), column(self.target_column)?.into())
    }

    pub(crate) fn parse_parallel<'a>(&self, source: &'a [u8], target: &'a [u8]) -> Result<Pair<'a>, RowProblem> {
        pair(utf8(source)?.into(), utf8(target)?.into())
    }
}

fn utf8(line: &[u8]) -> Result<&str, RowProblem> {
    std::str::from_utf8(line).map_err(|e| {
        let at = e.valid_up_to();
        RowProblem::Malformed(format!(
            "byte {} of the line is 0x{:02x}, no valid UTF-8: convert the file, for example with `iconv -f latin1 -t utf-8`",
            at + 1,
            line[at]
        ))
    })
}

fn pair<'a>(source: Cow<'a, str>, target: Cow<'a, str>) -> Result<Pair<'a>, RowProblem> {
    match (source.trim().is_empty(), target.trim().is_empty()) {
        (false, false) => Ok(Pair { source, target }),
        (true, true) => Err(RowProblem::Empty),
        (true, false) => Err(RowProblem::OneSided("source")),
        (false, true) => Err(RowProblem::OneSided("target")),
    }
}

fn malformed_json(error: serde_json::Error) -> RowProblem {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    RowProblem::Malformed(format!("no JSON object: {text} (byte {})", error.column()))
}

fn find_nested(row: &serde_json::Value, field: &str) -> Field<'static> {
    let found = row.get(field).or_else(|| field.split('.').try_fold(row, |object, key| object.get(key)));
    match found {
        None => Field::Missing,
        Some(serde_json::Value::String(text)) => Field::Text(text.clone().into()),
        Some(serde_json::Value::Null) => Field::Wrong("null"),
        Some(serde_json::Value::Bool(_)) => Field::Wrong("a truth value"),
        Some(serde_json::Value::Number(_)) => Field::Wrong("a number"),
        Some(serde_json::Value::Array(_)) => Field::Wrong("an array"),
        Some(serde_json::Value::Object(_)) => Field::Wrong("an object"),
    }
}

/// What stands in a field.
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

/// Picks the two fields out of a JSON object; everything else is skipped without being stored.
struct FieldsVisitor<'p> {
    parser: &'p RowParser,
}

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = (Field<'de>, Field<'de>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut source, mut target) = (Field::Missing, Field::Missing);
        while let Some(key) = map.next_key::<Field<'de>>()? {
            match key {
                Field::Text(key) if *key == *self.parser.source_field => source = map.next_value()?,
                Field::Text(key) if *key == *self.parser.target_field => target = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok((source, target))
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
        Ok(Field::Wrong("a truth value"))
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
