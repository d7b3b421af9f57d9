//! Templates of a row: a text made of several fields, in place of the name of one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use super::path::value_at;
use crate::formats::RowProblem;

/// Work that one rendering may do: for itself, and for each byte of the row.
const FUEL: [u64; 2] = [20_000, 1];
/// The name that the template has in its environment.
const NAME: &str = "row";
/// The problems of rows that a template cannot write begin so.
const PROBLEM: &str = "template ";

/// Returns what is wrong with the template that `key` is set to, if it is one.
pub(super) fn template_problem(key: &str, name: &str) -> Option<String> {
    let template = RowTemplate::of(name)?;
    template.problem().map(|found| format!("{key} = \"{name}\" {found}"))
}

/// A compiled template. `{instruction}` stands for a field. With `{{` or `{%` it is Jinja.
#[derive(Clone)]
pub(super) struct RowTemplate {
    source: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Fields(Vec<Piece>),
    Jinja(Arc<Environment<'static>>),
    /// What is wrong with it.
    Broken(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(String),
}

impl RowTemplate {
    /// Compiles `name` if it is a template rather than the name of a field.
    pub(super) fn of(name: &str) -> Option<Self> {
        let kind = if name.contains("{{") || name.contains("{%") {
            let mut environment = Environment::new();
            // Rows may lack a field that `if` asks for.
            environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
            environment.set_recursion_limit(100);
            match environment.add_template_owned(NAME, with_line_breaks(name)) {
                Ok(()) => Kind::Jinja(Arc::new(environment)),
                Err(error) => Kind::Broken(format!("is not valid Jinja: {error}")),
            }
        } else if name.contains(['{', '}']) {
            pieces(&with_line_breaks(name)).map_or_else(Kind::Broken, Kind::Fields)
        } else {
            return None;
        };
        Some(Self { source: name.to_owned(), kind })
    }

    /// Returns what is wrong with the template.
    fn problem(&self) -> Option<&str> {
        match &self.kind {
            Kind::Broken(found) => Some(found),
            _ => None,
        }
    }

    /// Returns the fields that it reads. `None`: perhaps all.
    pub(super) fn fields(&self) -> Option<Vec<String>> {
        match &self.kind {
            Kind::Fields(pieces) => {
                let fields = pieces.iter().filter_map(|piece| match piece {
                    Piece::Field(name) => Some(name.clone()),
                    Piece::Text(_) => None,
                });
                Some(fields.collect())
            }
            Kind::Jinja(_) | Kind::Broken(_) => None,
        }
    }

    /// Writes the text of a row that had `n_bytes`.
    pub(super) fn render(&self, row: &Map<String, Value>, n_bytes: usize) -> Result<String, RowProblem> {
        let malformed = |found: String| RowProblem::Malformed(format!("{PROBLEM}\"{}\": {found}", self.source));
        match &self.kind {
            Kind::Broken(found) => Err(malformed(found.clone())),
            Kind::Fields(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    piece.write(&mut text, row).map_err(malformed)?;
                }
                Ok(text)
            }
            Kind::Jinja(environment) => {
                let mut environment = Environment::clone(environment);
                environment.set_fuel(Some(FUEL[0] + FUEL[1] * n_bytes as u64));
                let template = environment.get_template(NAME).expect("added above");
                template.render(of_object(row)).map_err(|error| malformed(said(&error)))
            }
        }
    }
}

/// Whether a template is what a row has a `problem` with: another template reads the row.
pub(super) fn is_of_template(problem: &str) -> bool {
    problem.starts_with(PROBLEM)
}

/// Says how a template has a field that rows may lack.
fn if_there(name: &str) -> String {
    format!("for fields that rows may lack: {{% if {name} %}}{{{{ {name} }}}}{{% endif %}}")
}

/// Says why a row could not be rendered. For a field that the row lacks, it says how a template allows for it.
fn said(error: &minijinja::Error) -> String {
    match error.kind() {
        ErrorKind::UndefinedError => {
            format!("{error}: the row lacks a field; {}", if_there("NAME"))
        }
        _ => error.to_string(),
    }
}

impl Piece {
    fn write(&self, text: &mut String, row: &Map<String, Value>) -> Result<(), String> {
        let name = match self {
            Self::Text(piece) => {
                text.push_str(piece);
                return Ok(());
            }
            Self::Field(name) => name,
        };
        let value = value_at(row, name).ok_or_else(|| {
            let names: Vec<_> = row.keys().take(8).map(|name| format!("\"{name}\"")).collect();
            format!("no field \"{name}\": the row has {}; {}", names.join(", "), if_there(name))
        })?;
        write_value(text, value).map_err(|found| format!("field \"{name}\" is {found}"))
    }
}

impl fmt::Debug for RowTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// Replaces `\n` and `\t` as a shell passes them.
fn with_line_breaks(source: &str) -> String {
    source.replace("\\n", "\n").replace("\\t", "\t")
}

fn pieces(source: &str) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut rest) = (Vec::new(), source);
    while let Some(start) = rest.find(['{', '}']) {
        let Some(end) = rest[start..].find('}').filter(|end| *end > 1) else {
            return Err("has a brace without a name and the other brace: write {name}".into());
        };
        let name = rest[start + 1..start + end].trim();
        if name.is_empty() || name.contains('{') {
            return Err("has a brace without a name and the other brace: write {name}".into());
        }
        if start > 0 {
            pieces.push(Piece::Text(rest[..start].into()));
        }
        pieces.push(Piece::Field(name.into()));
        rest = &rest[start + end + 1..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.into()));
    }
    Ok(pieces)
}

fn of_object(object: &Map<String, Value>) -> minijinja::Value {
    object.iter().map(|(name, value)| (name.clone(), of_json(value))).collect::<BTreeMap<_, _>>().into()
}

fn of_json(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => ().into(),
        Value::Bool(value) => (*value).into(),
        Value::Number(value) => match (value.as_i64(), value.as_u64()) {
            (Some(value), _) => value.into(),
            (None, Some(value)) => value.into(),
            (None, None) => value.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(value) => value.as_str().into(),
        Value::Array(values) => values.iter().map(of_json).collect(),
        Value::Object(object) => of_object(object),
    }
}

/// Appends a text, a number or a list of these.
fn write_value(text: &mut String, value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Null => {}
        Value::String(value) => text.push_str(value),
        Value::Number(value) => text.push_str(&value.to_string()),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                if number > 0 {
                    text.push(' ');
                }
                match value {
                    Value::Array(_) | Value::Object(_) => return Err("a list of lists or objects"),
                    value => write_value(text, value)?,
                }
            }
        }
        Value::Object(_) => return Err("an object"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, row: &str) -> Result<String, String> {
        let template = RowTemplate::of(template).expect("a template");
        let row = serde_json::from_str(row).expect("an object");
        template.render(&row, 100).map_err(|problem| problem.to_string())
    }

    #[test]
    fn fields_are_written_into_the_text() {
        let row = r#"{"instruction": "Add.", "input": null, "meta": {"n": [1, 2.5, "x"]}, "ok": true}"#;
        assert_eq!(
            render(r"{instruction}\n{input}|{meta.n}|{ meta.n.0 }|{ok}", row).as_deref(),
            Ok("Add.\n|1 2.5 x|1|true")
        );
        assert_eq!(render("{{ instruction }}{% if input %}\n{{ input }}{% endif %}", row).as_deref(), Ok("Add."));
        let optional = "{{ a }}{% if b %} {{ b }}{% endif %}{% if c.d %} {{ c.d }}{% endif %}";
        assert_eq!(render(optional, r#"{"a": "x", "c": {}}"#).as_deref(), Ok("x"), "fields that the row lacks");
        assert!(RowTemplate::of("translation.en").is_none());
        let fields = |text: &str| RowTemplate::of(text).expect("a template").fields();
        assert_eq!(fields("a {b.c} {d}"), Some(vec!["b.c".into(), "d".into()]));
        assert_eq!(fields("{{ a }}"), None);
    }

    #[test]
    fn what_a_template_cannot_write_is_named() {
        for (template, row, wanted) in [
            ("{a} {b}", r#"{"a": 1}"#, "template \"{a} {b}\": no field \"b\": the row has \"a\""),
            ("{a}", r#"{"a": {}}"#, "field \"a\" is an object"),
            ("{a}", r#"{"a": [[1]]}"#, "field \"a\" is a list of lists or objects"),
            ("{{ a.b.c }}", "{}", "undefined value"),
            ("{{ a }}", "{}", "for fields that rows may lack: {% if NAME %}{{ NAME }}{% endif %}"),
            ("{% for x in range(100000) %}{{ x }}{% endfor %}", "{}", "template \"{%"),
            ("{% if %}", "{}", "is not valid Jinja"),
            ("{}", "{}", "write {name}"),
            ("a} {b}", "{}", "write {name}"),
            ("{a", "{}", "write {name}"),
            ("{a {b}}", "{}", "write {name}"),
        ] {
            let problem = render(template, row).expect_err(template);
            assert!(problem.contains(wanted), "{template}: {problem}");
        }
    }
}
