//! Which field says which option is right, and how: by its letter, its name, its number or its text.

use serde_json::{Map, Value};

use super::MOST;
use super::options::{Options, Pair, at, said};
use crate::corpus::jq::path_in_jq;
use crate::corpus::layout::parts::leaves;
use crate::corpus::roles::{Role, is_of, rank};

/// How rows say which option is right.
pub(super) enum Found {
    /// The program of jq for its number, and the fields that it reads.
    Index { index: String, fields: Vec<Vec<String>> },
    /// The same with a name or number that the user must fill in, and why.
    Open { index: String, fields: Vec<Vec<String>>, why: String },
}

/// How a value means an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// The letter of the option.
    Letter,
    /// A letter in another case, or with brackets.
    Loose,
    /// The letter and the text: `A. yes`.
    Whole,
    /// The name of the option's field.
    Name,
    /// Counted from this number.
    Number(u64),
    /// A number, where no row shows whether options count from 0 or from 1.
    Open,
    Text,
}

/// A field that means an option in most rows.
struct Candidate {
    path: Vec<String>,
    form: Form,
    /// Whether it is a list with one element.
    is_list: bool,
    is_string: bool,
    /// The option of each row.
    meant: Vec<Option<usize>>,
}

/// Finds out how `rows` say which of the `options` is right. `None` if they do not.
pub(super) fn key_of(rows: &[Map<String, Value>], options: &Options) -> Option<Found> {
    if let Some(index) = &options.marked {
        return Some(Found::Index { index: index.clone(), fields: Vec::new() });
    }
    if options.is_right_first {
        let index = format!("({} as $k | $o | map(.[1]) | index($k))", path_in_jq(&options.paths[0]));
        return Some(Found::Index { index, fields: Vec::new() });
    }
    let with_options: Vec<(&Map<String, Value>, Vec<Pair>)> =
        rows.iter().filter_map(|row| Some((row, options.of_row(row)?))).collect();
    if let Some((path, mark)) = marks(&with_options) {
        return Some(Found::Index { index: format!("({} | index({mark}))", path_in_jq(&path)), fields: vec![path] });
    }

    let names = options.field_names();
    let (first, _) = with_options.first()?;
    let is_free = |path: &[String]| !options.paths.iter().any(|other| path.starts_with(other));
    let can_be = |path: &[String]| {
        let name = path.last().map_or("", String::as_str);
        is_free(path) && is_of(Role::Key, name) && !is_of(Role::Guess, name) && !is_of(Role::Wrong, name)
    };
    let paths = leaves(first).into_iter().map(|(path, _)| path).filter(|path| can_be(path));
    let mut found: Vec<Candidate> = paths.filter_map(|path| candidate(path, &with_options, &names)).collect();
    found.sort_by_key(|one| {
        (one.form == Form::Text, one.form == Form::Open, rank(Role::Key, &one.path.join(".")), one.form)
    });
    let best = found.first()?;

    let fields: Vec<Vec<String>> = found.iter().map(|one| one.path.clone()).collect();
    let differs = |one: &&Candidate| {
        let both = one.meant.iter().zip(&best.meant).filter_map(|(one, best)| Some((*one)? == (*best)?));
        let (same, n) = both.fold((0, 0), |(same, n), is_same| (same + usize::from(is_same), n + 1));
        one.form != Form::Open && n > 0 && (same as f64) < MOST * f64::from(n)
    };
    if let Some(other) = found.iter().find(differs).filter(|_| best.form != Form::Open) {
        let why = format!(
            "\"{}\" and \"{}\" name different options: write the field with the right one for NAME",
            best.path.join("."),
            other.path.join(".")
        );
        return Some(Found::Open { index: index(best, ".NAME", &names), fields, why });
    }
    let index = index(best, &path_in_jq(&best.path), &names);
    if best.form == Form::Open {
        let why = format!(
            "no row shows whether \"{}\" counts from 0 or from 1: write the number of the first option for FIRST",
            best.path.join(".")
        );
        return Some(Found::Open { index, fields, why });
    }
    Some(Found::Index { index, fields })
}

/// Finds a list with a mark of 0 or 1 for each option, of which one is set.
fn marks(rows: &[(&Map<String, Value>, Vec<Pair>)]) -> Option<(Vec<String>, &'static str)> {
    let (first, _) = rows.first()?;
    let is_set = |value: &&Value| value.as_bool() == Some(true) || value.as_u64() == Some(1);
    let is_mark = |value: &Value| value.is_boolean() || matches!(value.as_u64(), Some(0 | 1));
    let are_marks = |path: &[String]| {
        rows.iter().all(|(row, pairs)| {
            let list = at(row, path).and_then(Value::as_array);
            list.is_some_and(|list| {
                list.len() == pairs.len() && list.iter().all(is_mark) && list.iter().filter(is_set).count() == 1
            })
        })
    };
    let (path, value) = leaves(first).into_iter().find(|(path, _)| are_marks(path))?;
    let is_boolean = value.get(0).is_some_and(Value::is_boolean);
    Some((path, if is_boolean { "true" } else { "1" }))
}

fn candidate(path: Vec<String>, rows: &[(&Map<String, Value>, Vec<Pair>)], names: &[&str]) -> Option<Candidate> {
    let values = || rows.iter().map(|(row, _)| at(row, &path));
    let is_list = values().flatten().next().is_some_and(Value::is_array);
    let one = |value: Option<&Value>| {
        let value = match value? {
            Value::Array(list) if list.len() == 1 => &list[0],
            value => value,
        };
        let is_missing =
            value.as_str().is_some_and(|text| text.trim().is_empty()) || value.as_i64().is_some_and(|n| n < 0);
        let is_one = value.is_string() || value.is_i64() || value.is_u64();
        (is_one && !is_missing).then(|| value.clone())
    };
    let said: Vec<Option<Value>> = values().map(one).collect();
    let known: Vec<(&Value, &Vec<Pair>)> =
        said.iter().zip(rows).filter_map(|(value, (_, pairs))| Some((value.as_ref()?, pairs))).collect();
    if known.is_empty() || 2 * known.len() < rows.len() {
        return None;
    }

    let form = [Form::Letter, Form::Loose, Form::Whole, Form::Name, Form::Text]
        .into_iter()
        .find(|form| fits(*form, &known, names))
        .or_else(|| number(&known, names))?;
    let meant = said.iter().zip(rows).map(|(value, (_, pairs))| place(form, value.as_ref()?, pairs, names)).collect();
    let is_string = known[0].0.is_string();
    Some(Candidate { path, form, is_list, is_string, meant })
}

/// Whether most values mean an option in this form.
fn fits(form: Form, known: &[(&Value, &Vec<Pair>)], names: &[&str]) -> bool {
    let n = known.iter().filter(|(value, pairs)| place(form, value, pairs, names).is_some()).count();
    n as f64 >= MOST * known.len() as f64
}

/// Returns how values that are numbers count the options.
fn number(known: &[(&Value, &Vec<Pair>)], names: &[&str]) -> Option<Form> {
    let numbers: Vec<(u64, u64)> = known
        .iter()
        .filter_map(|(value, pairs)| Some((said(value).trim().parse().ok()?, pairs.len() as u64)))
        .collect();
    if (numbers.len() as f64) < MOST * known.len() as f64 || numbers.iter().any(|(value, n)| value > n) {
        return None;
    }
    let of_names = names.first().and_then(|name| name.chars().last()?.to_digit(10)).map(u64::from);
    let (has_first, has_last) =
        (numbers.iter().any(|(value, _)| *value == 0), numbers.iter().any(|(value, n)| value == n));
    match (has_first, has_last, of_names) {
        (true, true, _) => None,
        (true, false, _) => Some(Form::Number(0)),
        (false, true, _) => Some(Form::Number(1)),
        (false, false, Some(first)) => Some(Form::Number(first)),
        (false, false, None) => Some(Form::Open),
    }
}

/// Returns the number of the option that a value means.
fn place(form: Form, value: &Value, pairs: &[Pair], names: &[&str]) -> Option<usize> {
    let text = said(value);
    let find = |wanted: &str| pairs.iter().position(|(key, _)| key == wanted);
    match form {
        Form::Letter => find(&text),
        Form::Loose => {
            let letters: String = text.chars().filter(char::is_ascii_alphabetic).collect();
            (letters.len() == 1).then(|| find(&letters.to_uppercase())).flatten()
        }
        Form::Whole => {
            let (first, rest) = text.split_at_checked(1)?;
            let rest = rest.strip_prefix([')', '.', ':'])?.trim_start();
            pairs.iter().position(|(key, option)| key == first && option == rest)
        }
        Form::Name => names.iter().position(|name| *name == text),
        Form::Text => pairs.iter().position(|(_, option)| *option == text),
        Form::Number(first) => {
            let at = text.trim().parse::<u64>().ok()?.checked_sub(first)? as usize;
            (at < pairs.len()).then_some(at)
        }
        Form::Open => None,
    }
}

/// Returns the program of jq for the number of the right option.
fn index(one: &Candidate, path: &str, names: &[&str]) -> String {
    let value = if one.is_list { format!("({path} | select(length == 1) | .[0])") } else { path.to_owned() };
    let number = format!("({value} | {})", if one.is_string { "tonumber?" } else { "numbers" });
    let key = if one.is_string { "$k" } else { "$k | tostring" };
    match one.form {
        Form::Letter => format!("({value} as $k | $o | map(.[0]) | index({key}))"),
        Form::Loose => {
            format!("({value} as $k | $o | map(.[0]) | index($k | strings | gsub(\"[^A-Za-z]\"; \"\") | ascii_upcase))")
        }
        Form::Whole => format!("({value} as $k | $o | map(.[0]) | index($k | strings | .[:1]))"),
        Form::Text => format!("({value} as $k | $o | map(.[1]) | index($k))"),
        Form::Name => format!("({value} as $k | {} | index($k))", Value::from(names)),
        Form::Number(0) => number,
        Form::Number(first) => format!("({number} - {first})"),
        Form::Open => format!("({number} - FIRST)"),
    }
}
