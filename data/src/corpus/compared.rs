//! The field that says of two texts how they belong together: a class of pairs, which are not all fit to learn one text from the other.

use serde_json::Value;

use super::class_texts::are_compared;
use super::columns::Column;
use super::fields::{has_label_word, has_word_of_class, is_about, is_label, is_predicted, words_of};
use super::judgements::{are_marks, has_judgement};
use super::pairs::says_direction;
use super::text::direction_of;

/// Words of marks and scores that compare two texts, such as `is_duplicate`.
const COMPARISONS: [&str; 13] = [
    "duplicate",
    "paraphrase",
    "same",
    "similar",
    "similarity",
    "relatedness",
    "entailment",
    "entails",
    "equivalent",
    "equivalence",
    "match",
    "relevant",
    "relevance",
];

/// Returns two of the `texts` that somebody compares, and which one of the `fields` says how they belong together.
pub(super) fn compared_among<'n>(
    texts: &[&'n str],
    fields: impl Iterator<Item = (&'n str, &'n Column)>,
) -> Option<[&'n str; 3]> {
    let pairs = texts.iter().enumerate().flat_map(|(at, one)| texts[at + 1..].iter().map(move |other| [*one, *other]));
    let [text, pair] =
        pairs.into_iter().find(|[one, other]| are_compared(one, other) && !says_direction(one, other))?;
    let marks = fields.filter(|(name, column)| ![text, pair].contains(name) && !is_about(name) && !column.is_id(name));
    let marks = marks.map(|(name, column)| (rank_of_mark(name, column.values()), name)).filter(|(rank, _)| *rank > 0);
    // Of several with one rank, the first counts.
    let (_, label) = marks.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
    Some([text, pair, label])
}

/// Whether the value of a field says that the second text of a pair goes with the first one. Numbers of classes do not tell.
pub(super) fn is_fit(field: &str, value: &Value) -> bool {
    let has_comparison = words_of(field).iter().any(|word| COMPARISONS.contains(&word.as_str()));
    let is_set = value.as_bool() == Some(true) || value.as_u64() == Some(1);
    let is_entailed =
        value.as_str().is_some_and(|text| ["entailment", "entails"].contains(&&*text.trim().to_lowercase()));
    is_entailed || has_comparison && is_set
}

/// Says how probable it is that a field compares the two texts next to it, by its name and its different values; 0 for other fields.
fn rank_of_mark<'v>(name: &str, values: impl Iterator<Item = &'v str> + Clone) -> u8 {
    let mut filled = values.filter(|value| !value.trim().is_empty()).peekable();
    if filled.peek().is_none() {
        return 0;
    }
    let is_number = |value: &str| value.trim().parse::<f64>().is_ok();
    let has_comparison = || words_of(name).iter().any(|word| COMPARISONS.contains(&word.as_str()));
    let are_marks = are_marks(filled.clone());
    let are_numbers = filled.clone().all(is_number);
    let has_judgement = has_judgement(filled.clone());
    let are_short = filled.all(|value| value.split_whitespace().count() < 4);
    match () {
        () if !are_short => 0,
        () if is_predicted(name) => 1,
        () if has_word_of_class(name) => 6,
        () if has_judgement => 5,
        () if has_comparison() && (are_marks || are_numbers) => 4,
        () if are_numbers && direction_of(name).is_some() => 3,
        () if are_marks => 2,
        () if is_label(name) || has_label_word(name) => 1,
        () => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_or_score_is_more_than_a_topic() {
        let rank = |name: &str, values: &[&str]| rank_of_mark(name, values.iter().copied());
        let genre = rank("genre", &["news", "forum"]);
        for (name, values) in [
            ("gold_label", &["neutral", "-"][..]),
            ("relation", &["entailment", "neutral"]),
            ("is_duplicate", &["0", "1"]),
            ("score", &["0.5", "5.0"]),
            ("relatedness", &["3.5"]),
            ("same", &["True", "False"]),
        ] {
            assert!(rank(name, values) > genre && genre > 0, "{name}");
        }
        for (name, values) in
            [("id", &["17", "18"][..]), ("file", &["a.wav"]), ("label", &["a text of many words"]), ("score", &[""])]
        {
            assert_eq!(rank(name, values), 0, "{name}");
        }
    }
}
