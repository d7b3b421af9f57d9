//! How much of the text of rows a field has, and where the rest is.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::pairs::flag;
use super::path::value_at;

/// Words from which a string counts as a text rather than a name.
const WORDS_OF_TEXT: usize = 3;
/// Rows from which the same words in all of them are not a text.
const ENOUGH_ROWS: usize = 8;
/// Most names of fields in a message.
const LISTED: usize = 20;
/// Rows whose texts are compared with each other.
const COMPARED: usize = 20;
/// Stands in a path for the elements of a list.
const EACH: &str = "[]";

/// The texts of rows at one path.
#[derive(Default)]
struct Texts {
    n: usize,
    n_bytes: usize,
    n_words: usize,
    first: String,
    varies: bool,
}

impl Texts {
    fn add(&mut self, text: &str) {
        if self.n == 0 {
            text.clone_into(&mut self.first);
        }
        self.varies |= text != self.first;
        (self.n, self.n_bytes) = (self.n + 1, self.n_bytes + text.len());
        self.n_words += text.split_whitespace().count();
    }

    /// Whether they are texts to learn: not names, and not the same words in all rows.
    fn are_texts(&self) -> bool {
        self.n_words >= WORDS_OF_TEXT * self.n && (self.varies || self.n < ENOUGH_ROWS)
    }
}

/// The share of a field in the text of rows.
struct Share {
    /// Bytes of all texts. Texts that repeat others count once.
    all: usize,
    of_field: usize,
    /// The path with most of the text.
    most: Vec<String>,
    /// The path with most of the text outside of the field, and whether it has the text of the field, too.
    other: Option<(Vec<String>, bool)>,
}

impl Share {
    /// Measures the text of `rows` and that in `field`. `None` for rows without text.
    fn of(rows: &[Map<String, Value>], field: &str) -> Option<Self> {
        Self::of_fields(rows, &[field])
    }

    /// Does the same for several fields together.
    fn of_fields(rows: &[Map<String, Value>], fields: &[&str]) -> Option<Self> {
        let fields: Vec<Vec<String>> = fields.iter().map(|field| path_of(field)).collect();
        let mut texts = texts_of(rows);
        let of_field = fields.iter().filter_map(|field| texts.get(field)).map(|texts| texts.n_bytes).sum();
        texts.retain(|path, texts| fields.contains(path) || texts.are_texts());
        let mut largest: Vec<(&Vec<String>, usize)> = texts.iter().map(|(path, texts)| (path, texts.n_bytes)).collect();
        largest.sort_by_key(|(path, n_bytes)| (!fields.contains(path), std::cmp::Reverse(*n_bytes)));

        let compared = Compared::of(rows);
        let mut kept: Vec<(&Vec<String>, usize)> = Vec::new();
        for (path, n_bytes) in largest {
            let is_repeated = kept.iter().any(|(other, _)| compared.has(other, path));
            if fields.contains(path) || !is_repeated {
                kept.push((path, n_bytes));
            }
        }
        let (most, _) = kept.iter().max_by_key(|(_, n_bytes)| *n_bytes)?;
        let outside = || kept.iter().filter(|(path, _)| !fields.contains(path));
        let is_within = |field: &Vec<String>| outside().any(|(other, _)| compared.has(other, field));
        let all = kept.iter().filter(|(path, _)| !(fields.contains(path) && is_within(path)));
        let all = all.map(|(_, n_bytes)| n_bytes).sum();
        let other = outside().max_by_key(|(_, n_bytes)| *n_bytes);
        let other = other.map(|(path, _)| ((*path).clone(), fields.iter().any(|field| compared.has(path, field))));
        (all > 0).then_some(Self { all, of_field, most: (*most).clone(), other })
    }

    fn is_small(&self) -> bool {
        2 * self.of_field < self.all
    }
}

/// The texts of the first rows at each path without white space, to find those that repeat others.
struct Compared(Vec<BTreeMap<Vec<String>, String>>);

impl Compared {
    fn of(rows: &[Map<String, Value>]) -> Self {
        let of_row = |row: &Map<String, Value>| {
            let mut texts = Vec::new();
            row.iter().for_each(|(name, value)| each_text(&mut vec![name.clone()], value, &mut texts));
            let mut joined: BTreeMap<Vec<String>, String> = BTreeMap::new();
            for (path, text) in texts {
                joined.entry(path).or_default().extend(text.split_whitespace());
            }
            joined
        };
        Self(rows.iter().take(COMPARED).map(of_row).collect())
    }

    /// Whether `one` has the text of `other` in nearly all rows.
    fn has(&self, one: &[String], other: &[String]) -> bool {
        let texts =
            self.0.iter().filter_map(|row| Some((row.get(one), row.get(other).filter(|text| !text.is_empty())?)));
        let held: Vec<bool> = texts.map(|(one, other)| one.is_some_and(|one| one.contains(other.as_str()))).collect();
        let n_held = held.iter().filter(|is_held| **is_held).count();
        n_held > 0 && 10 * n_held >= 9 * held.len()
    }
}

/// Returns the texts of rows at each path.
fn texts_of(rows: &[Map<String, Value>]) -> BTreeMap<Vec<String>, Texts> {
    let mut texts = BTreeMap::new();
    for (name, value) in rows.iter().flatten() {
        collect(&mut vec![name.clone()], value, &mut texts);
    }
    texts
}

fn collect(path: &mut Vec<String>, value: &Value, texts: &mut BTreeMap<Vec<String>, Texts>) {
    let mut found = Vec::new();
    each_text(path, value, &mut found);
    for (path, text) in found {
        texts.entry(path).or_default().add(text);
    }
}

/// Appends the texts at and below a path, in their order.
fn each_text<'v>(path: &mut Vec<String>, value: &'v Value, texts: &mut Vec<(Vec<String>, &'v str)>) {
    let mut inside = |name: &str, value: &'v Value| {
        path.push(name.to_owned());
        each_text(path, value, texts);
        path.pop();
    };
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| inside(name, value)),
        Value::Array(list) => list.iter().for_each(|value| inside(EACH, value)),
        Value::String(text) => texts.push((path.clone(), text)),
        _ => {}
    }
}

/// Whether `field` has less than half of the text of `rows`.
pub(super) fn is_small(rows: &[Map<String, Value>], field: &str) -> bool {
    Share::of(rows, field).is_some_and(|share| share.is_small())
}

fn path_of(field: &str) -> Vec<String> {
    field.split('.').map(str::to_owned).collect()
}

/// Says how much of the text of `rows` lies outside of `field`, if this is most of it, and how it is read.
pub(super) fn note(rows: &[Map<String, Value>], field: &str) -> Option<String> {
    let Share { all, of_field, other, .. } = Share::of(rows, field).filter(Share::is_small)?;
    let (most, has_field) = other?;
    let percent = 100 - (100 * of_field).div_ceil(all);
    let is_plain = !most.iter().any(|name| name == EACH);
    let wanted = match template(&most) {
        // The text of the field comes with the other one.
        _ if has_field && is_plain => Some(most.join(".")),
        Some(template) if has_field => Some(template),
        found => found.filter(|_| is_name(&path_of(field))).map(|template| format!("{{{{ {field} }}}}\\n{template}")),
    };
    let to_read = wanted.map(|wanted| format!("; to read this, too: {}", flag("data.text.field", &wanted)));
    Some(format!(
        "that leaves out {percent} % of the text in the first rows, most of it in \"{}\"{}",
        most[0],
        to_read.unwrap_or_default()
    ))
}

/// Returns the template of the field with most of the text of `rows`, if `fields` have less than half of it together and it is neither
/// one of them nor the `label`.
pub(super) fn whole(rows: &[Map<String, Value>], fields: &[&str], label: &str) -> Option<String> {
    let Share { most, .. } = Share::of_fields(rows, fields).filter(Share::is_small)?;
    let is_other = most != path_of(label) && fields.iter().all(|field| most != path_of(field));
    template(&most).filter(|_| is_other)
}

/// Says where most of the text of `rows` is, if `fields` have less than half of it together, and how a template reads it, with
/// this `key`.
pub(super) fn elsewhere(rows: &[Map<String, Value>], fields: &[&str], key: &str) -> Option<String> {
    let Share { most, .. } = Share::of_fields(rows, fields).filter(Share::is_small)?;
    let is_list = most.iter().any(|name| name == EACH);
    let template = template(&most).filter(|_| is_list && fields.iter().all(|field| most != path_of(field)))?;
    Some(format!(
        "\nmost of the text in the first rows is in \"{}\", which a template reads, in place of a name: {}",
        most[0],
        flag(key, &template)
    ))
}

/// Returns the template of a `field` and of the text of another template below it.
pub(super) fn with_text(rows: &[Map<String, Value>], field: &str, template: &str) -> Option<String> {
    let is_text = |row: &Map<String, Value>| value_at(row, field).is_some_and(Value::is_string);
    is_name(&path_of(field)).then(|| match rows.iter().all(is_text) {
        true => format!("{{{{ {field} }}}}\\n{template}"),
        // Rows may lack it.
        false => format!("{{% if {field} %}}{{{{ {field} }}}}\\n{{% endif %}}{template}"),
    })
}

/// Names the fields of `rows` with texts that are in none of the fields and templates `read`; empty if there are none, and without a
/// template.
pub(super) fn rest(rows: &[Map<String, Value>], read: &[&String]) -> String {
    let is_read = |path: &[String]| {
        read.iter().any(|text| **text == path.join(".") || text.contains('{') && text.contains(&path[0]))
    };
    let has_template = read.iter().any(|text| text.contains('{'));
    let (all, compared) = (texts_of(rows), Compared::of(rows));
    let repeats = |path: &[String]| {
        all.keys().any(|other| is_read(other) && compared.has(other, path) && compared.has(path, other))
    };
    let texts =
        all.iter().filter(|(path, texts)| has_template && texts.are_texts() && !is_read(path) && !repeats(path));
    let mut names: Vec<String> = texts.map(|(path, _)| path[0].clone()).collect();
    names.dedup();
    if names.is_empty() { String::new() } else { format!("\nthat leaves out the texts in {}", listed(&names)) }
}

/// Lists names of fields, the first ones of many.
pub(super) fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let shown = names[..names.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Returns the flag that reads the lists with most of the text of `rows`; `None` if most of it lies elsewhere.
pub(super) fn flag_of_lists(rows: &[Map<String, Value>]) -> Option<String> {
    let Share { most, .. } = Share::of(rows, "")?;
    most.iter().any(|name| name == EACH).then(|| template(&most))?.map(|template| flag("data.text.field", &template))
}

/// Returns the flag that reads the field or the lists with most of the text of `rows`; `None` without text.
pub(super) fn flag_of_most(rows: &[Map<String, Value>]) -> Option<String> {
    let Share { most, .. } = Share::of(rows, "")?;
    let is_plain = !most.iter().any(|name| name == EACH);
    let field = if is_plain { most.join(".") } else { template(&most)? };
    Some(flag("data.text.field", &field))
}

/// Whether Jinja can spell the path.
fn is_name(path: &[String]) -> bool {
    path.iter().all(|name| {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        name == EACH || name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
    })
}

/// Returns the Jinja template that writes the texts at a path, each in a line of its own.
fn template(path: &[String]) -> Option<String> {
    if !is_name(path) {
        return None;
    }
    let (mut begin, mut end, mut now) = (String::new(), String::new(), String::new());
    for (number, name) in path.iter().enumerate() {
        if name == EACH {
            let element = format!("x{number}");
            begin += &format!("{{% for {element} in {now} or [] %}}");
            end += "{% endfor %}";
            now = element;
        } else {
            let dot = if now.is_empty() { "" } else { "." };
            now = format!("{now}{dot}{name}");
        }
    }
    Some(format!("{begin}{{% if {now} %}}{{{{ {now} }}}}\\n{{% endif %}}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::template::RowTemplate;

    #[test]
    fn the_text_that_a_field_leaves_out_is_named_with_a_template_that_reads_it() {
        let row = r#"{"title": "a title of words", "posts": [{"by": "x", "body": "a long text of many words"}, {"body": "and one more text"}]}"#;
        let rows: Vec<Map<String, Value>> = vec![serde_json::from_str(row).expect("an object")];
        let text = note(&rows, "title").expect("most is elsewhere");
        assert!(
            text.starts_with("that leaves out 72 % of the text in the first rows, most of it in \"posts\""),
            "{text}"
        );
        let template = text.split_once("data.text.field=").expect("a flag").1.trim_end_matches('\'');
        let read = RowTemplate::of(template).expect("a template").render(&rows[0], 100).expect("rendered");
        assert_eq!(read, "a title of words\na long text of many words\nand one more text\n");
        let lacks = serde_json::from_str(r#"{"title": "t"}"#).expect("an object");
        assert_eq!(RowTemplate::of(template).expect("a template").render(&lacks, 9).expect("rendered"), "t\n");

        let flag = flag_of_lists(&rows).expect("lists");
        assert!(flag.starts_with("--set 'data.text.field={% for x1 in posts or [] %}"), "{flag}");
        let plain = serde_json::from_str(r#"{"text": "a long text of words", "by": ["a b c"]}"#).expect("an object");
        assert_eq!((note(&[plain], "text"), is_small(&rows, "posts")), (None, true));
    }

    fn rows_of(row: impl Fn(usize) -> String) -> Vec<Map<String, Value>> {
        (0..30).map(|n| serde_json::from_str(&row(n)).expect("an object")).collect()
    }

    #[test]
    fn texts_that_repeat_a_field_are_not_left_out_and_a_template_has_each_field_once() {
        // The same text in two spellings: nothing is left out.
        let rows = rows_of(|n| {
            format!(
                r#"{{"code": "def f{n}(x):\n    return x + {n}", "whole": "def f{n}(x):\n  return x + {n}", "docstring": "Adds {n} to x"}}"#
            )
        });
        assert_eq!(note(&rows, "code"), None);
        assert_eq!(whole(&rows, &["code"], ""), None);
        let said = note(&rows, "docstring").expect("most is elsewhere");
        assert!(said.contains("% of the text") && !said.contains("docstring }}\\n{% if docstring"), "{said}");

        // The field is the largest one, and others have more together.
        let rows = rows_of(|n| {
            let text = |word: &str, times: usize| format!("{word} {n} {}", "and so on ".repeat(times));
            format!(r#"{{"a": "{}", "b": "{}", "c": "{}"}}"#, text("one", 5), text("two", 4), text("three", 4))
        });
        let said = note(&rows, "a").expect("most is elsewhere");
        assert!(
            said.contains(r"--set 'data.text.field={{ a }}\n{% if ") && said.matches("{{ a }}").count() == 1,
            "{said}"
        );
        // A field that has the text of another one takes its place.
        let rows =
            rows_of(|n| format!(r#"{{"title": "A title {n}", "page": "A title {n} and a long text of it {n}"}}"#));
        let said = note(&rows, "title").expect("most is elsewhere");
        assert!(said.ends_with("; to read this, too: --set data.text.field=page"), "{said}");
    }
}
