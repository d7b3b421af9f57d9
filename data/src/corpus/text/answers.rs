//! Rows with one question and one answer, by the names of their fields, and the fields that rate the answer of a row.

use serde_json::{Map, Value};

use crate::corpus::jq::in_jq;

/// Words of which the name of a rating has one, each with whether a high or true value means a good answer.
const RATINGS: [(&str, bool); 51] = [
    ("kto", true),
    ("score", true),
    ("scores", true),
    ("scored", true),
    ("rating", true),
    ("ratings", true),
    ("rated", true),
    ("stars", true),
    ("star", true),
    ("grade", true),
    ("vote", true),
    ("votes", true),
    ("voted", true),
    ("upvote", true),
    ("upvotes", true),
    ("upvoted", true),
    ("downvote", false),
    ("downvotes", false),
    ("downvoted", false),
    ("thumb", true),
    ("thumbs", true),
    ("like", true),
    ("likes", true),
    ("liked", true),
    ("dislike", false),
    ("dislikes", false),
    ("disliked", false),
    ("quality", true),
    ("feedback", true),
    ("reaction", true),
    ("verdict", true),
    ("desirable", true),
    ("undesirable", false),
    ("good", true),
    ("bad", false),
    ("reward", true),
    ("preference", true),
    ("preferred", true),
    ("accepted", true),
    ("rejected", false),
    ("approved", true),
    ("correct", true),
    ("incorrect", false),
    ("correctness", true),
    ("helpful", true),
    ("unhelpful", false),
    ("helpfulness", true),
    ("satisfaction", true),
    ("satisfied", true),
    ("label", true),
    ("rank", false),
];
/// Words that say of a rating who gave it, how, or to what. Other words say that the field is about something else (`language_score`).
const OF_RATINGS: [&str; 38] = [
    "is",
    "was",
    "up",
    "down",
    "count",
    "counts",
    "avg",
    "average",
    "mean",
    "overall",
    "final",
    "total",
    "num",
    "number",
    "n",
    "value",
    "human",
    "user",
    "users",
    "annotator",
    "judge",
    "llm",
    "gpt",
    "gpt4",
    "gpt3",
    "model",
    "reviewer",
    "answer",
    "response",
    "output",
    "completion",
    "reply",
    "assistant",
    "message",
    "chat",
    "conversation",
    "tag",
    "eval",
];
/// The first so many of [`GOOD`] and [`BAD`] count for labels, too.
const OF_LABELS: usize = 9;
/// Values that rate an answer as good.
const GOOD: [&str; 20] = [
    "true",
    "good",
    "desirable",
    "accepted",
    "chosen",
    "correct",
    "like",
    "upvote",
    "thumbs_up",
    "up",
    "thumbs up",
    "positive",
    "liked",
    "upvoted",
    "helpful",
    "yes",
    "approved",
    "great",
    "excellent",
    "\u{1f44d}",
];
/// Values that rate an answer as bad.
const BAD: [&str; 20] = [
    "false",
    "bad",
    "undesirable",
    "rejected",
    "incorrect",
    "wrong",
    "dislike",
    "downvote",
    "thumbs_down",
    "down",
    "thumbs down",
    "negative",
    "disliked",
    "downvoted",
    "unhelpful",
    "no",
    "poor",
    "terrible",
    "worse",
    "\u{1f44e}",
];

/// A field that says how good the answer of its row is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rating<'a> {
    field: &'a str,
    value: &'a Value,
    /// Whether a high or true value means a good answer.
    high_is_good: bool,
}

impl<'a> Rating<'a> {
    /// Finds the rating of a row: a field with a name made of [`RATINGS`] and [`OF_RATINGS`], and a Boolean, a number, or a word of
    /// [`GOOD`] or [`BAD`]. Other values, such as names of classes, rate nothing. Two answers to compare need no rating.
    pub(crate) fn of(row: &'a Map<String, Value>) -> Option<Self> {
        if row.contains_key("chosen") && row.contains_key("rejected") {
            return None;
        }
        row.iter().find_map(|(field, value)| {
            let high_is_good = direction_of(field)?;
            // A label may name a class, such as a sentiment.
            let n_words = if words_of(field).iter().any(|word| word == "label") { OF_LABELS } else { GOOD.len() };
            let is_word = is_one_of(&GOOD[..n_words], value) || is_one_of(&BAD[..n_words], value);
            let rates = value.is_boolean() || number_of(value).is_some() || is_word;
            rates.then_some(Self { field, value, high_is_good })
        })
    }

    /// Says why a model cannot learn from the row, and what to do.
    pub(super) fn problem(self) -> String {
        let (field, kept) = (self.field, self.kept());
        format!(
            "the row says with \"{field}\" whether its answer is good (KTO), and Kiln would learn bad ones, too: keep the rows {kept}, \
             without the {field}"
        )
    }

    /// Says how to keep the good answers among `rows`, which have this rating.
    pub(crate) fn advice(self, rows: &[Map<String, Value>]) -> String {
        let (field, kept, condition) = (self.field, self.kept(), self.condition(rows));
        let path = in_jq(field);
        format!(
            "to learn the good ones alone, keep the rows {kept} and drop the {field}: jq -c 'select({condition}) | del({path})'"
        )
    }

    /// Says which rows have good answers.
    fn kept(self) -> String {
        let field = self.field;
        match (self.value, self.high_is_good) {
            (Value::Bool(_), good) => format!("whose {field} is {good}"),
            (value, true) if number_of(value).is_some() => format!("with the highest {field}"),
            (value, false) if number_of(value).is_some() => format!("with the lowest {field}"),
            _ => format!("whose {field} says that the answer is good"),
        }
    }

    /// Returns a condition of jq that good answers meet, as far as `rows` tell.
    fn condition(self, rows: &[Map<String, Value>]) -> String {
        let (field, path) = (self.field, in_jq(self.field));
        let values = || rows.iter().filter_map(move |row| row.get(field));
        let (good, bad) = if self.high_is_good { (&GOOD, &BAD) } else { (&BAD, &GOOD) };
        if self.value.is_boolean() {
            return if self.high_is_good { path } else { format!("{path} | not") };
        }
        if number_of(self.value).is_none() {
            let find = |words: &[&str]| values().find(|value| is_one_of(words, value));
            return match (find(good), find(bad)) {
                (Some(word), _) => format!("{path} == {word}"),
                (None, Some(word)) => format!("{path} != {word}"),
                (None, None) => format!("{path} == \"{}\"", good[0]),
            };
        }

        let number = if self.value.is_string() { format!("({path} | tonumber)") } else { path };
        let numbers = values().filter_map(number_of);
        if self.high_is_good {
            // The first rows of a file may all be bad.
            let highest = numbers.fold(f64::NEG_INFINITY, f64::max);
            format!("{number} >= {}", if highest > 0.0 { highest } else { 1.0 })
        } else {
            let lowest = numbers.fold(f64::INFINITY, f64::min);
            format!("{number} <= {}", if lowest < 1.0 { lowest } else { 0.0 })
        }
    }
}

/// Returns whether a high value of a rating means a good answer; `None` if the name is not the name of a rating.
pub(crate) fn direction_of(field: &str) -> Option<bool> {
    let words = words_of(field);
    let rating = |word: &String| RATINGS.into_iter().find(|(name, _)| name == word);
    let is_known = |word: &String| rating(word).is_some() || OF_RATINGS.contains(&word.as_str());
    let found: Vec<bool> = words.iter().filter_map(rating).map(|(_, high_is_good)| high_is_good).collect();
    let is_rating = !found.is_empty() && words.iter().all(is_known);
    // "Thumbs down" is bad whatever its first word says.
    is_rating.then(|| found.iter().all(|good| *good) && !words.iter().any(|word| word == "down"))
}

/// Returns the words of a name in lower case: `qualityScore`, `quality-score` and `Quality Score` have two.
pub(crate) fn words_of(name: &str) -> Vec<String> {
    let (mut words, mut was_lower) = (vec![String::new()], false);
    for character in name.chars() {
        if !character.is_alphanumeric() || was_lower && character.is_uppercase() {
            words.push(String::new());
        }
        was_lower = character.is_lowercase() || character.is_numeric();
        if let (true, Some(word)) = (character.is_alphanumeric(), words.last_mut()) {
            word.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the number that a value is or spells: tables have texts alone.
fn number_of(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number| number.is_finite())
}

fn is_one_of(words: &[&str], value: &Value) -> bool {
    value.as_str().is_some_and(|text| words.iter().any(|word| word.eq_ignore_ascii_case(text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&str]) -> Vec<Map<String, Value>> {
        rows.iter().map(|row| serde_json::from_str(row).expect(row)).collect()
    }

    #[test]
    fn ratings_are_known_by_their_name_and_their_value() {
        for rating in [
            r#""label": false"#,
            r#""label": 0"#,
            r#""label": "1""#,
            r#""label": "undesirable""#,
            r#""kto_tag": true"#,
            r#""score": 4.5"#,
            r#""Rating": "Good""#,
            r#""thumbs_down": true"#,
            r#""stars": 5"#,
            r#""vote": -1"#,
            r#""n_votes": 3"#,
            r#""thumbs": "up""#,
            r#""quality_score": 4.5"#,
            r#""Answer Quality": "poor""#,
            r#""userFeedback": "positive""#,
            r#""avg-rating": "3.5""#,
        ] {
            let row = format!(r#"{{"question": "a", "answer": "b", {rating}}}"#);
            assert!(Rating::of(&rows(&[&row])[0]).is_some(), "{rating}");
        }

        for other in [
            r#""label": "billing""#,
            r#""label": null"#,
            r#""label": ["good"]"#,
            r#""category": 3"#,
            r#""quality": "it reads well""#,
            r#""feedback": "Good, but too long.""#,
            r#""id": 1"#,
            r#""label": "positive""#,
            r#""feedback_id": 7"#,
            r#""language_score": 0.98"#,
            r#""reward_model": "a name""#,
            r#""chosen": "b", "rejected": "c", "score": 3"#,
        ] {
            let row = format!(r#"{{"question": "a", "answer": "b", {other}}}"#);
            assert!(Rating::of(&rows(&[&row])[0]).is_none(), "{other}");
        }
    }

    #[test]
    fn advice_keeps_good_answers_whatever_rates_them() {
        let booleans = "keep the rows whose label is true and drop the label: jq -c 'select(.label) | del(.label)'";

        for (first, second, wanted) in [
            (r#"{"label": false}"#, r#"{"label": true}"#, booleans),
            (
                r#"{"label": 0}"#,
                r#"{"label": 1}"#,
                "with the highest label and drop the label: jq -c 'select(.label >= 1)",
            ),
            (r#"{"label": 0}"#, r#"{"label": 0}"#, "'select(.label >= 1)"),
            (r#"{"score": 2.5}"#, r#"{"score": 4.5}"#, "'select(.score >= 4.5)"),
            (r#"{"label": "0"}"#, r#"{"label": "1"}"#, "'select((.label | tonumber) >= 1)"),
            (r#"{"label": "undesirable"}"#, r#"{"label": "desirable"}"#, "'select(.label == \"desirable\")"),
            (r#"{"label": "bad"}"#, r#"{"label": "bad"}"#, "'select(.label != \"bad\")"),
            (r#"{"is_bad": true}"#, r#"{"is_bad": false}"#, "whose is_bad is false and drop the is_bad"),
            (r#"{"is_bad": true}"#, r#"{"is_bad": false}"#, "'select(.is_bad | not)"),
            (r#"{"thumbs_down": 1}"#, r#"{"thumbs_down": 0}"#, "'select(.thumbs_down <= 0)"),
            (r#"{"thumbs": "down"}"#, r#"{"thumbs": "up"}"#, "'select(.thumbs == \"up\")"),
            (r#"{"dislikes": 3}"#, r#"{"dislikes": 1}"#, "with the lowest dislikes"),
            (
                r#"{"User Rating": 3}"#,
                r#"{"User Rating": 5}"#,
                "'select(.[\"User Rating\"] >= 5) | del(.[\"User Rating\"])'",
            ),
        ] {
            let rows = rows(&[first, second]);
            let advice = Rating::of(&rows[0]).expect(first).advice(&rows);
            assert!(advice.contains(wanted), "{first}: {advice}");
        }
    }
}
