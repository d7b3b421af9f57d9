//! Where the options of a question lie in a row, and how jq makes letters and texts of them.

use serde_json::{Map, Value};

use super::super::parts::leaves;
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::roles::{Role, is_of, parts_of};

/// The letters of options without their own.
pub(super) const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Names of the letter in an object with an option.
const KEYS: [&str; 9] = ["label", "key", "letter", "id", "identifier", "option", "marker", "name", "index"];
/// Names of its text, best first.
const TEXTS: [&str; 10] =
    ["text", "value", "content", "choice", "option", "answer", "title", "body", "option_text", "answer_text"];
/// Names of the mark of the right one.
const MARKS: [&str; 8] = ["correct", "is_correct", "isCorrect", "right", "is_right", "is_answer", "gold", "label"];

/// A letter and a text.
pub(super) type Pair = (String, String);

/// The options of rows.
pub(super) struct Options {
    pub(super) paths: Vec<Vec<String>>,
    /// The program of jq for a list of letters and texts.
    pub(super) program: String,
    /// The program of jq for the number of the right one, where the options say which one it is.
    pub(super) marked: Option<String>,
    /// Whether the first path has the right one.
    pub(super) is_right_first: bool,
    form: Form,
}

#[derive(Clone)]
enum Form {
    List(Prefix),
    /// Lines of one text that begin with letters.
    Lines,
    ByKey,
    /// Two lists: the names of the letters and of the texts.
    Lists([String; 2]),
    /// Objects: the name of the letter, if they have one, and of the text.
    Objects(Option<String>, String),
    /// Fields of their own.
    Fields,
    /// A right one and wrong ones.
    Sorted,
}

/// What stands in front of the texts of a list.
#[derive(Clone, Copy, PartialEq)]
enum Prefix {
    None,
    /// `A)`, `A.` or `A:`
    Letter,
    /// `(A)`
    Bracket,
}

impl Options {
    /// Returns the letters and texts of a row, in the order of `program`.
    pub(super) fn of_row(&self, row: &Map<String, Value>) -> Option<Vec<Pair>> {
        let value = at(row, &self.paths[0])?;
        let found: Vec<Pair> = match &self.form {
            Form::List(prefix) => {
                (0..).zip(value.as_array()?).map(|(n, text)| in_list(*prefix, n, &said(text))).collect()
            }
            Form::Lines => lines_of(value.as_str()?),
            Form::ByKey => value.as_object()?.iter().map(|(key, text)| (key.clone(), said(text))).collect(),
            Form::Lists([keys, texts]) => {
                let list = |name: &str| Some(value.get(name)?.as_array()?.iter().map(said).collect::<Vec<_>>());
                list(keys)?.into_iter().zip(list(texts)?).collect()
            }
            Form::Objects(key, text) => {
                let list = value.as_array()?;
                let of = |(n, one): (usize, &Value)| {
                    Some((
                        key.as_ref().map_or_else(|| Some(letter(n)), |key| Some(said(one.get(key)?)))?,
                        said(one.get(text)?),
                    ))
                };
                list.iter().enumerate().map(of).collect::<Option<_>>()?
            }

            Form::Fields => {
                let texts = self.paths.iter().filter_map(|path| at(row, path).filter(|text| !text.is_null()).map(said));
                texts.enumerate().map(|(n, text)| (letter(n), text)).collect()
            }
            Form::Sorted => {
                let mut texts: Vec<String> =
                    self.paths.iter().filter_map(|path| at(row, path)).flat_map(texts_in).collect();
                texts.sort();
                texts.dedup();
                texts.into_iter().enumerate().map(|(n, text)| (letter(n), text)).collect()
            }
        };
        (found.len() > 1).then_some(found)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.paths.iter().map(|path| path.join(".")).collect()
    }

    /// Returns the numbers in the names of the fields; empty for other options.
    pub(super) fn field_names(&self) -> Vec<&str> {
        let is_fields = matches!(self.form, Form::Fields);
        self.paths.iter().filter(|_| is_fields).filter_map(|path| path.last()).map(String::as_str).collect()
    }
}

/// Returns the value that a path leads to.
pub(super) fn at<'r>(row: &'r Map<String, Value>, path: &[String]) -> Option<&'r Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(row.get(first)?, |value, name| value.get(name))
}

/// Returns a value as jq writes it in a text.
pub(super) fn said(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn texts_in(value: &Value) -> Vec<String> {
    value.as_array().map_or_else(|| vec![said(value)], |list| list.iter().map(said).collect())
}

fn letter(n: usize) -> String {
    LETTERS.get(n..=n).unwrap_or("?").to_owned()
}

fn in_list(prefix: Prefix, n: usize, text: &str) -> Pair {
    match prefix {
        Prefix::None => (letter(n), text.to_owned()),
        Prefix::Letter => (text[..1].to_owned(), text[2..].strip_prefix(' ').unwrap_or(&text[2..]).to_owned()),
        Prefix::Bracket => (text[1..2].to_owned(), text[3..].strip_prefix(' ').unwrap_or(&text[3..]).to_owned()),
    }
}

/// Returns the letters and texts of lines such as `A. yes`.
fn lines_of(text: &str) -> Vec<Pair> {
    let begins = |line: &&str| {
        let mut characters = line.chars();
        characters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && characters.next().is_some_and(|c| ").:".contains(c))
    };
    text.lines().filter(begins).map(|line| in_list(Prefix::Letter, 0, line)).collect()
}

/// Whether a value says of an option whether it is right.
fn is_mark(value: &Value) -> bool {
    value.is_boolean() || matches!(value.as_u64(), Some(0 | 1))
}

/// Whether a value can be one option.
fn is_one(value: &Value) -> bool {
    value.is_number() || value.as_str().is_some_and(|text| !text.trim().is_empty())
}

/// Returns all that can be the options of the rows, the most probable first.
pub(super) fn options_of(rows: &[Map<String, Value>]) -> Vec<Options> {
    rows.iter().take(20).map(options_in).find(|found| !found.is_empty()).unwrap_or_default()
}

fn options_in(row: &Map<String, Value>) -> Vec<Options> {
    let mut found = Vec::new();
    let mut objects = vec![(Vec::new(), row)];
    while let Some((path, object)) = objects.pop() {
        for (name, value) in object {
            let path = [&path[..], std::slice::from_ref(name)].concat();
            if is_of(Role::Option, name) && !is_of(Role::Wrong, name) && !is_of(Role::Guess, name) {
                found.extend(in_value(&path, value));
            }
            objects.extend(value.as_object().map(|inside| (path, inside)));
        }
    }
    found.extend(in_fields(row));
    found.extend(next_to_right(row));
    found
}

/// Options in one field.
fn in_value(path: &[String], value: &Value) -> Option<Options> {
    let jq = path_in_jq(path);
    let (form, program, marked) = match value {
        Value::Array(list) if list.len() > 1 && list.iter().all(is_one) && list.iter().any(|one| !is_mark(one)) => {
            let prefix = prefix_of(list);
            let program = match prefix {
                Prefix::None => format!("({jq} | to_entries | map([\"{LETTERS}\"[.key:.key + 1], .value]))"),
                Prefix::Letter => format!("({jq} | map([.[:1], (.[2:] | ltrimstr(\" \"))]))"),
                Prefix::Bracket => format!("({jq} | map([.[1:2], (.[3:] | ltrimstr(\" \"))]))"),
            };
            (Form::List(prefix), program, None)
        }
        Value::Array(list) if list.len() > 1 => in_objects(list, &jq)?,
        Value::String(text) if lines_of(text).len() > 1 => {
            let program = format!(
                "({jq} | split(\"\\n\") | map(select(test(\"^[A-Za-z][).:]\")) | [.[:1], (.[2:] | ltrimstr(\" \"))]))"
            );
            (Form::Lines, program, None)
        }
        Value::Object(object) => in_object(object, &jq)?,
        _ => return None,
    };
    Some(Options { paths: vec![path.to_vec()], program, marked, is_right_first: false, form })
}

/// Options by their letters, or in two lists.
fn in_object(object: &Map<String, Value>, jq: &str) -> Option<(Form, String, Option<String>)> {
    let is_key = |key: &String| key.chars().count() == 1 && key.chars().all(char::is_alphanumeric);
    if object.len() > 1 && object.iter().all(|(key, text)| is_key(key) && (is_one(text) || text.is_null())) {
        return Some((
            Form::ByKey,
            format!("({jq} | to_entries | map(select(.value != null) | [.key, .value]))"),
            None,
        ));
    }
    let list = |name: &str| object.get(name).and_then(Value::as_array).filter(|list| list.len() > 1);
    let find = |names: &[&str], other: Option<&str>| {
        let is_it =
            |name: &&&str| Some(**name) != other && (list(name).is_some() || list(&format!("{name}s")).is_some());
        let name = names.iter().find(is_it)?;
        Some(if list(name).is_some() { (*name).to_owned() } else { format!("{name}s") })
    };

    let texts = find(&TEXTS, None)?;
    if !list(&texts)?.iter().all(is_one) {
        return None;
    }
    let keys = find(&KEYS, Some(&texts))?;
    let (of_keys, of_texts) = (in_jq(&keys), in_jq(&texts));
    if list(&keys)?.iter().all(is_mark) {
        // Marks of 0 and 1 say which text is right.
        let mark = if list(&keys)?[0].is_boolean() { "true" } else { "1" };
        let program = format!("({jq}{of_texts} | to_entries | map([\"{LETTERS}\"[.key:.key + 1], .value]))");
        return Some((Form::Lists([texts.clone(), texts]), program, Some(format!("({jq}{of_keys} | index({mark}))"))));
    }
    Some((Form::Lists([keys, texts]), format!("([{jq}{of_keys}, {jq}{of_texts}] | transpose)"), None))
}

/// Options that are objects.
fn in_objects(list: &[Value], jq: &str) -> Option<(Form, String, Option<String>)> {
    let objects: Vec<&Map<String, Value>> = list.iter().map(Value::as_object).collect::<Option<_>>()?;
    let find = |names: &[&'static str], fits: &dyn Fn(&Value) -> bool| {
        names.iter().copied().find(|name| objects.iter().all(|object| object.get(*name).is_some_and(fits)))
    };
    let text = find(&TEXTS, &is_one)?;
    let is_short = |value: &Value| said(value).chars().count() <= 2;
    let key = find(&KEYS, &is_short).filter(|key| *key != text);
    let mark = find(&MARKS, &is_mark).filter(|mark| Some(*mark) != key);
    let marked = mark.map(|mark| {
        let set = if objects[0][mark].is_boolean() { "true" } else { "1" };
        format!("({jq} | map({}) | index({set}))", in_jq(mark))
    });
    let program = match key {
        Some(key) => format!("({jq} | map([({} | tostring), {}]))", in_jq(key), in_jq(text)),
        None => format!("({jq} | to_entries | map([\"{LETTERS}\"[.key:.key + 1], .value{}]))", in_jq(text)),
    };
    Some((Form::Objects(key.map(str::to_owned), text.to_owned()), program, marked))
}

fn prefix_of(list: &[Value]) -> Prefix {
    let texts = || (0..).zip(list.iter().map(said));
    let begins = |n: usize, text: &str, bracket: bool| {
        let letter = letter(n);
        let lower = letter.to_lowercase();
        let rest = if bracket { text.strip_prefix('(') } else { Some(text) };
        let rest = rest.and_then(|text| text.strip_prefix(&*letter).or_else(|| text.strip_prefix(&*lower)));
        rest.is_some_and(|rest| if bracket { rest.starts_with(')') } else { rest.starts_with([')', '.', ':']) })
    };
    match () {
        () if texts().all(|(n, text)| begins(n, &text, false)) => Prefix::Letter,
        () if texts().all(|(n, text)| begins(n, &text, true)) => Prefix::Bracket,
        () => Prefix::None,
    }
}

/// Options in fields that differ in a letter or a number.
fn in_fields(row: &Map<String, Value>) -> Option<Options> {
    let fields: Vec<(Vec<String>, &Value)> =
        leaves(row).into_iter().filter(|(_, value)| is_one(value) || value.is_null()).collect();
    let mut best: Option<Vec<Vec<String>>> = None;
    for (first, _) in &fields {
        let name = first.last()?;
        let Some((stem, mark)) = stem_and_mark(name) else { continue };
        if !["a", "0", "1"].contains(&mark.to_lowercase().as_str()) || !is_stem(&stem) {
            continue;
        }

        let named = |n: u32| {
            let mark = match mark.parse::<u32>() {
                Ok(start) => (start + n).to_string(),
                Err(_) => char::from_u32(mark.chars().next().map_or(0, u32::from) + n).map(String::from)?,
            };
            let wanted = name[..name.len() - 1].to_owned() + &mark;
            let field = fields
                .iter()
                .find(|(path, _)| path[..path.len() - 1] == first[..first.len() - 1] && path.last() == Some(&wanted));
            field.map(|(path, _)| path.clone())
        };
        let found: Vec<Vec<String>> = (0..20).map_while(named).collect();
        if found.len() > 1 && best.as_ref().is_none_or(|best| best.len() < found.len()) {
            best = Some(found);
        }
    }
    let paths = best?;
    let pairs: Vec<String> =
        paths.iter().zip(0..).map(|(path, n)| format!("[\"{}\", {}]", letter(n), path_in_jq(path))).collect();
    let program = format!("([{}] | map(select(.[1] != null)))", pairs.join(", "));
    Some(Options { paths, program, marked: None, is_right_first: false, form: Form::Fields })
}

/// Divides a name into its stem and the letter or number at its end.
pub(super) fn stem_and_mark(name: &str) -> Option<(String, String)> {
    let mark = name.chars().last().filter(char::is_ascii_alphanumeric)?;
    let stem = &name[..name.len() - 1];
    let is_word = stem.chars().last().is_some_and(|c| c.is_ascii_digit()) && mark.is_ascii_digit();
    (!is_word).then(|| (stem.to_owned(), mark.to_string()))
}

/// Whether fields that differ in their last letter are options. Letters alone are.
fn is_stem(stem: &str) -> bool {
    let has = |role: Role| parts_of(stem).iter().any(|part| is_of(role, part));
    stem.is_empty() || has(Role::Option) && !has(Role::Wrong) && !has(Role::Guess)
}

/// A right answer and wrong ones.
fn next_to_right(row: &Map<String, Value>) -> Option<Options> {
    let fields = leaves(row);
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    let is_right =
        |path: &[String]| path.last().is_some_and(|name| is_of(Role::Right, name) && !is_of(Role::Wrong, name));
    let (right, _) = fields.iter().find(|(path, value)| is_text(value) && is_right(path))?;
    let wrong = fields.iter().filter(|(path, value)| {
        let is_list = value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(is_one));
        path.last().is_some_and(|name| is_of(Role::Wrong, name)) && (is_one(value) || is_list)
    });
    let wrong: Vec<&(Vec<String>, &Value)> = wrong.collect();
    let n_wrong: usize = wrong.iter().map(|(_, value)| value.as_array().map_or(1, Vec::len)).sum();
    if n_wrong < 2 {
        return None;
    }

    let of_wrong = wrong.iter().map(|(path, value)| {
        let jq = path_in_jq(path);
        if value.is_array() { format!("{jq}[]") } else { jq }
    });
    let all: Vec<String> = [path_in_jq(right)].into_iter().chain(of_wrong).collect();
    let program = format!(
        "([{}] | map(select(. != null)) | unique | to_entries | map([\"{LETTERS}\"[.key:.key + 1], .value]))",
        all.join(", ")
    );
    let paths: Vec<Vec<String>> = [right].into_iter().chain(wrong.iter().map(|(path, _)| path)).cloned().collect();
    Some(Options { paths, program, marked: None, is_right_first: true, form: Form::Sorted })
}
