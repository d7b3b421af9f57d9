//! Rows with one question and one answer, by the names of their fields, and the fields that rate the answer of a row.

use serde_json::{Map, Value};

use crate::corpus::fields::words_of;
use crate::corpus::jq::in_jq;
use crate::corpus::reviews::{is_reply, is_review, is_star};

/// Words of which the name of a rating has one, each with whether a high or true value means a good answer.
const RATINGS: [(&str, bool); 54] = [
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
    ("coherence", true),
    ("truthfulness", true),
    ("honesty", true),
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
const GOOD: [&str; 21] = [
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
    "accept",
    "\u{1f44d}",
];
/// Values that rate an answer as bad.
const BAD: [&str; 22] = [
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
    "reject",
    "declined",
    "worse",
    "\u{1f44e}",
];

/// Words of names whose field says with a word of [`DECISIONS`] what somebody has decided.
const STATES: [&str; 9] =
    ["status", "state", "decision", "outcome", "review", "moderation", "judgment", "judgement", "annotation"];
/// Words that say what somebody has decided of an answer, whatever else the field says.
const DECISIONS: [&str; 10] =
    ["approved", "accepted", "accept", "correct", "good", "rejected", "reject", "declined", "incorrect", "bad"];

/// Rows that are good by one rating, as fractions to try one after another.
const SHARES: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// Rows that are good by all ratings, at least.
const LEAST_KEPT: f64 = 0.25;

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
        Self::all(row).next()
    }

    /// Finds all ratings of a row.
    fn all(row: &'a Map<String, Value>) -> impl Iterator<Item = Self> {
        let is_compared = row.contains_key("chosen") && row.contains_key("rejected");
        // The stars of a review that somebody has replied to do not rate the reply.
        let has_reply = row.keys().any(|name| is_review(name)) && row.keys().any(|name| is_reply(name));
        let is_own = move |field: &str| !(has_reply && is_star(field));
        row.iter().filter(move |(field, _)| !is_compared && is_own(field)).filter_map(|(field, value)| {
            let is_state = words_of(field).iter().any(|word| STATES.contains(&word.as_str()));
            if is_state && is_one_of(&DECISIONS, value) {
                return Some(Self { field, value, high_is_good: true });
            }
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

    /// Says how to keep the good answers among `rows`, by all ratings that they have. `command` returns the command for a program of jq.
    pub(crate) fn advice(self, rows: &[Map<String, Value>], command: &dyn Fn(&str) -> String) -> String {
        let mut ratings: Vec<Rating<'_>> = vec![self];
        for rating in rows.iter().flat_map(Rating::all) {
            if !ratings.iter().any(|other| other.field == rating.field) {
                ratings.push(rating);
            }
        }
        let kept: Vec<String> = ratings.iter().map(|rating| rating.kept()).collect();
        let fields: Vec<&str> = ratings.iter().map(|rating| rating.field).collect();
        let paths: Vec<String> = fields.iter().map(|field| in_jq(field)).collect();
        let Good { conditions, n_kept } = Good::of(&ratings, rows);
        let n_rows = rows.len();
        let said = if n_kept > 0 { format!("\nthat keeps {n_kept} of the first {n_rows} rows") } else { String::new() };
        format!(
            "to learn the good ones alone, keep the rows {} and drop the {}: {}{said}",
            kept.join(" and "),
            fields.join(", "),
            command(&format!("select({}) | del({})", joined(&conditions), paths.join(", ")))
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

    /// Returns a condition of jq that good answers meet, as far as `rows` tell. Of numbers, `bound` is the least good one.
    fn condition(self, rows: &[Map<String, Value>], bound: f64) -> String {
        let (field, path) = (self.field, in_jq(self.field));
        let values = || rows.iter().filter_map(move |row| row.get(field));
        let (good, bad) = self.words();
        if self.value.is_boolean() {
            return if self.high_is_good { path } else { format!("{path} | not") };
        }
        if self.is_number() {
            let number = if self.value.is_string() { format!("({path} | tonumber)") } else { path };
            let sign = if self.high_is_good { ">=" } else { "<=" };
            return format!("{number} {sign} {bound}");
        }
        let find = |words: &[&str]| values().find(|value| is_one_of(words, value));
        match (find(good), find(bad)) {
            (Some(word), _) => format!("{path} == {word}"),
            (None, Some(word)) => format!("{path} != {word}"),
            (None, None) => format!("{path} == \"{}\"", good[0]),
        }
    }

    /// Whether the answer of a row meets the condition.
    fn is_met(self, row: &Map<String, Value>, bound: f64) -> bool {
        let Some(value) = row.get(self.field) else { return false };
        match (value, number_of(value)) {
            (Value::Bool(is_set), _) => *is_set == self.high_is_good,
            (_, Some(number)) if self.is_number() => self.goodness(number) >= self.goodness(bound),
            _ => is_one_of(self.words().0, value),
        }
    }

    /// Returns the least good number of good answers, so that at most a `share` of the rows are good: the worst number never is.
    fn bound(self, rows: &[Map<String, Value>], share: f64) -> f64 {
        let numbers = rows.iter().filter_map(|row| number_of(row.get(self.field)?));
        let mut ranked: Vec<f64> = numbers.map(|number| self.goodness(number)).collect();
        ranked.sort_by(f64::total_cmp);
        let (Some(worst), Some(best)) = (ranked.first().copied(), ranked.last().copied()) else { return 1.0 };
        if worst == best {
            // The first rows of a file may all be bad.
            return match (self.high_is_good, self.goodness(best)) {
                (true, number) => {
                    if number > 0.0 {
                        number
                    } else {
                        1.0
                    }
                }
                (false, number) => {
                    if number < 1.0 {
                        number
                    } else {
                        0.0
                    }
                }
            };
        }

        let most = (share * ranked.len() as f64).max(1.0);
        let is_enough = |at: &usize| ranked[*at] > worst && (ranked.len() - at) as f64 <= most;
        let at = (0..ranked.len()).find(|at| is_enough(at) && ranked[*at] > ranked[at.saturating_sub(1)]);
        self.goodness(at.map_or(best, |at| ranked[at]))
    }

    /// Turns a number round if a low one means a good answer.
    fn goodness(self, number: f64) -> f64 {
        if self.high_is_good { number } else { -number }
    }

    fn is_number(self) -> bool {
        !self.value.is_boolean() && number_of(self.value).is_some()
    }

    /// Returns the words of good answers and of bad ones.
    fn words(self) -> (&'static [&'static str], &'static [&'static str]) {
        if self.high_is_good { (&GOOD, &BAD) } else { (&BAD, &GOOD) }
    }
}

/// What good answers meet.
struct Good {
    /// A condition of jq for each rating.
    conditions: Vec<String>,
    /// Rows that meet all of them.
    n_kept: usize,
}

impl Good {
    /// Finds conditions that keep the better half of the `rows` by each of the `ratings`, or more by each one if few rows meet all.
    fn of(ratings: &[Rating<'_>], rows: &[Map<String, Value>]) -> Self {
        let with = |share: f64| {
            let bounds: Vec<f64> = ratings.iter().map(|rating| short(rating.bound(rows, share))).collect();
            let is_kept = |row: &&Map<String, Value>| {
                ratings.iter().zip(&bounds).all(|(rating, bound)| rating.is_met(row, *bound))
            };
            let n_kept = rows.iter().filter(is_kept).count();
            let conditions =
                ratings.iter().zip(&bounds).map(|(rating, bound)| rating.condition(rows, *bound)).collect();
            Self { conditions, n_kept }
        };
        let shares = if ratings.len() == 1 { &SHARES[..1] } else { &SHARES[..] };
        let is_enough = |good: &Self| good.n_kept as f64 >= LEAST_KEPT * rows.len() as f64;
        shares.iter().map(|share| with(*share)).find(is_enough).unwrap_or_else(|| with(shares[shares.len() - 1]))
    }
}

/// Joins conditions of jq.
fn joined(conditions: &[String]) -> String {
    let bracketed = |one: &String| if one.ends_with("| not") { format!("({one})") } else { one.clone() };
    match conditions {
        [one] => one.clone(),
        several => several.iter().map(bracketed).collect::<Vec<_>>().join(" and "),
    }
}

/// Returns a number with few digits, which is near enough for a bound.
fn short(number: f64) -> f64 {
    let rounded = (number * 1000.0).round() / 1000.0;
    if number.to_string().len() > 6 && rounded != 0.0 { rounded } else { number }
}

/// Whether a word of the name is the name of a rating.
pub(crate) fn rates(field: &str) -> bool {
    words_of(field).iter().any(|word| RATINGS.iter().any(|(name, _)| name == word))
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

/// Returns the number that a value is or spells: tables have texts alone.
fn number_of(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number| number.is_finite())
}

fn is_one_of(words: &[&str], value: &Value) -> bool {
    value.as_str().is_some_and(|text| words.iter().any(|word| word.eq_ignore_ascii_case(text.trim())))
}

#[cfg(test)]
mod tests;
