//! Answers whose names differ in a number or a letter, and how a row says which one is better.

use serde_json::{Map, Value};

use super::names::{is_answer_word, singular};
use super::{CHOICES, Field, Preferred, is_answer, is_conversation, prompt, row_in_jq};
use crate::corpus::fields::words_of;
use crate::corpus::path::value_at;
use crate::corpus::text::direction_of;

/// Marks that tell answers apart, in their order.
const MARKS: [[&str; 4]; 7] = [
    ["0", "1", "2", "3"],
    ["1", "2", "3", "4"],
    ["a", "b", "c", "d"],
    ["first", "second", "third", "fourth"],
    ["one", "two", "three", "four"],
    ["left", "right", "", ""],
    ["j", "k", "", ""],
];

/// An answer and the word that tells it from the others.
struct Marked<'f, 'a> {
    field: &'f Field<'a>,
    mark: String,
}

/// Recognizes such answers.
pub(super) fn of(rows: &[Map<String, Value>], row: &Map<String, Value>, fields: &[Field<'_>]) -> Option<Preferred> {
    let (answers, at) = marked(fields)?;
    let mut stem = answers[0].field.words();
    stem.remove(at);
    let paths: Vec<&Field<'_>> = answers.iter().map(|answer| answer.field).collect();
    let asked = prompt(fields, &paths);
    let is_whole = answers.iter().all(|answer| is_conversation(answer.field.value));
    // Questions that are numbered as the answers are several rows in one.
    let asked_twice = asked.is_some_and(|asked| asked.words().contains(&answers[0].mark));

    let has = |wanted: &str| stem.iter().any(|word| singular(word) == wanted);
    let is_sure = stem.iter().any(|word| is_answer_word(&singular(word)));
    let cases = cases(rows, fields, &answers);
    let is_named = !matches!(&cases, Cases::Unknown);
    let is_reference = (has("ref") || has("reference")) && fields.iter().any(|field| field.words() == ["labels"]);
    if asked_twice || !(is_sure || is_named || is_reference) || !(asked.is_some() || is_sure || is_whole) {
        return None;
    }

    let made = |good: usize, bad: usize| {
        let [good, bad] = [good, bad].map(|at| answers[at].field.jq_of_answer());
        row_in_jq(row, asked.map(Field::jq_of_text).as_deref(), [&good, &bad])
    };
    let fields: Vec<String> = paths.iter().map(|field| field.name()).collect();
    let found = |program: Option<String>, open: Option<String>| Preferred { fields, program, open, renamed: None };
    let other = |at: usize| usize::from(at == 0);
    if asked.is_none() && !is_whole {
        return Some(found(None, Some("add the question as prompt".to_owned())));
    }
    Some(match cases {
        Cases::Known(conditions) => {
            let branch = |(number, (condition, at)): (usize, &(String, usize))| {
                let case = if number == 0 { "if" } else { "elif" };
                format!("{case} {condition} then {} ", made(*at, other(*at)))
            };
            let branches: String = conditions.iter().enumerate().map(branch).collect();
            found(Some(format!("{branches}else empty end")), None)
        }
        Cases::Unknown | Cases::Doubtful => {
            let [first, second] = [0, 1].map(|at| answers[at].field.name());
            let program = format!("select(CONDITION) | {}", made(0, 1));
            let open = format!(
                "the names do not say which answer is better: write the rows twice, once with the CONDITION that \"{first}\" is better, and once \
                 with \"{second}\" as chosen"
            );
            found(Some(program), Some(open))
        }
    })
}

/// Finds answers whose names differ in one word, which is a mark. Returns them with the place of the word.
fn marked<'f, 'a>(fields: &'f [Field<'a>]) -> Option<(Vec<Marked<'f, 'a>>, usize)> {
    let mut best: Option<(usize, Vec<Marked<'f, 'a>>, usize)> = None;
    for first in fields.iter().filter(|field| is_answer(field.value)) {
        let words = first.words();
        for (at, marks) in (0..words.len()).flat_map(|at| MARKS.iter().map(move |marks| (at, marks))) {
            if words[at] != marks[0] {
                continue;
            }

            let with = |mark: &&str| {
                let mut wanted = words.clone();
                wanted[at] = (*mark).to_owned();
                let field = fields.iter().find(|field| {
                    field.parent() == first.parent() && is_answer(field.value) && field.words() == wanted
                });
                field.map(|field| Marked { field, mark: (*mark).to_owned() })
            };
            let found: Vec<Marked<'f, 'a>> = marks.iter().filter(|mark| !mark.is_empty()).map_while(with).collect();
            let is_answers = words.iter().any(|word| is_answer_word(&singular(word)));
            let size =
                found.iter().map(|one| one.field.n_bytes()).sum::<usize>() + if is_answers { 1 << 30 } else { 0 };
            if found.len() > 1 && best.as_ref().is_none_or(|(most, ..)| size > *most) {
                best = Some((size, found, at));
            }
        }
    }
    best.map(|(_, found, at)| (found, at))
}

/// What rows say of the better answer.
enum Cases {
    /// Conditions of jq, each with the answer that is better if it holds.
    Known(Vec<(String, usize)>),
    /// A field names it in a way that is not clear.
    Doubtful,
    Unknown,
}

fn cases(rows: &[Map<String, Value>], fields: &[Field<'_>], answers: &[Marked<'_, '_>]) -> Cases {
    let is_other = |field: &&Field<'_>| !answers.iter().any(|answer| answer.field.path == field.path);
    let is_choice =
        |field: &&Field<'_>| is_other(field) && field.words().iter().any(|word| CHOICES.contains(&word.as_str()));
    // "Better" stands before a weaker word.
    let mut choices: Vec<&Field<'_>> = fields.iter().filter(is_choice).collect();
    choices.sort_by_key(|field| {
        let words = field.words();
        CHOICES.iter().position(|word| words.iter().any(|other| other == word))
    });
    if let Some(conditions) = flags(rows, &choices, answers).or_else(|| ratings(fields, answers)) {
        return Cases::Known(conditions);
    }
    if let Some(conditions) = choices.iter().find_map(|field| chosen(rows, field, answers)) {
        return Cases::Known(conditions);
    }
    if choices.is_empty() { Cases::Unknown } else { Cases::Doubtful }
}

/// A field for each answer that is true or 1 if it is better: `winner_model_a`.
fn flags(
    rows: &[Map<String, Value>],
    choices: &[&Field<'_>],
    answers: &[Marked<'_, '_>],
) -> Option<Vec<(String, usize)>> {
    let of_answer = |(at, answer): (usize, &Marked<'_, '_>)| {
        let others = |word: &String| answers.iter().any(|other| other.mark == *word && other.mark != answer.mark);
        let field = choices.iter().find(|field| {
            let words = field.words();
            words.contains(&answer.mark) && !words.iter().any(others)
        })?;
        let values = || rows.iter().filter_map(|row| value_at(row, &field.name()));
        let is_mark = |value: &Value| ["0", "1", "true", "false"].contains(&value.to_string().trim_matches('"'));
        let is_set = |value: &&Value| ["1", "true"].contains(&value.to_string().trim_matches('"'));
        if !values().all(is_mark) {
            return None;
        }
        let set =
            values().find(is_set).cloned().unwrap_or(if field.value.is_boolean() { true.into() } else { 1.into() });
        Some((format!("{} == {set}", field.jq()), at))
    };
    let found: Option<Vec<_>> = answers.iter().enumerate().map(of_answer).collect();
    found
}

/// A rating for each answer: `score_0`.
fn ratings(fields: &[Field<'_>], answers: &[Marked<'_, '_>]) -> Option<Vec<(String, usize)>> {
    let [first, second] = [&answers[0].mark, &answers[1].mark];
    fields.iter().find_map(|field| {
        let words = field.words();
        let at = words.iter().position(|word| word == first)?;
        let mut other = words.clone();
        other[at].clone_from(second);
        let mut name = words.clone();
        name.remove(at);
        name.retain(|word| !["response", "answer", "completion", "output"].contains(&singular(word).as_str()));
        let is_number = |field: &Field<'_>| {
            field.value.is_number() || field.value.as_str().is_some_and(|text| text.parse::<f64>().is_ok())
        };
        let second = fields.iter().find(|field| field.words() == other && is_number(field))?;
        let high_is_good = direction_of(&name.join("_")).filter(|_| is_number(field))?;

        let number = |field: &Field<'_>| match field.value.is_string() {
            true => format!("({} | tonumber)", field.jq()),
            false => field.jq(),
        };
        let [more, less] = if high_is_good { [">", "<"] } else { ["<", ">"] };
        let [one, two] = [number(field), number(second)];
        Some(vec![(format!("{one} {more} {two}"), 0), (format!("{one} {less} {two}"), 1)])
    })
}

/// A field with the mark of the better answer: `"model_a"`, or 0 next to `response_0`.
fn chosen(rows: &[Map<String, Value>], field: &Field<'_>, answers: &[Marked<'_, '_>]) -> Option<Vec<(String, usize)>> {
    let name = field.name();
    let values = rows.iter().filter_map(|row| value_at(row, &name));
    let of_mark = |value: &Value, mark: &str| match value {
        Value::Number(number) => number.to_string() == mark,
        Value::String(text) => {
            let words = words_of(text);
            let has = |wanted: &str| {
                words.iter().any(|word| {
                    word == wanted || word.len() > wanted.len() && word.ends_with(wanted) && is_digit(wanted)
                })
            };
            has(mark) && !answers.iter().any(|other| other.mark != mark && has(&other.mark))
        }
        _ => false,
    };
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut example = None;
    for value in values {
        let Some(at) = answers.iter().position(|answer| of_mark(value, &answer.mark)) else {
            // Some other number or mark is not understood; a word may mean a tie.
            let is_mark = value.is_number() || value.as_str().is_some_and(|text| text.trim().chars().count() == 1);
            if is_mark {
                return None;
            }
            continue;
        };
        let condition = format!("{} == {value}", field.jq());
        if !found.iter().any(|(other, _)| *other == condition) {
            found.push((condition, at));
        }
        example = example.or(Some((value, at)));
    }

    // The first rows may all have the same better answer.
    let (value, of_example) = example?;
    for (at, answer) in answers.iter().enumerate() {
        if found.iter().any(|(_, other)| *other == at) {
            continue;
        }
        let other = with_mark(value, &answers[of_example].mark, &answer.mark)?;
        found.push((format!("{} == {other}", field.jq()), at));
    }
    found.sort_by_key(|(_, at)| *at);
    Some(found)
}

fn is_digit(mark: &str) -> bool {
    mark.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the value that names another answer: `"model_b"` for `"model_a"`.
fn with_mark(value: &Value, mark: &str, other: &str) -> Option<Value> {
    let Value::String(text) = value else { return serde_json::from_str(other).ok() };
    let lower = text.to_lowercase();
    let at = lower.rfind(mark).filter(|_| lower.len() == text.len())?;
    let is_upper = text[at..at + mark.len()].chars().all(char::is_uppercase);
    let other = if is_upper { other.to_uppercase() } else { other.to_owned() };
    Some(Value::String(format!("{}{other}{}", &text[..at], &text[at + mark.len()..])))
}
