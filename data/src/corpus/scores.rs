//! Labels that are numbers on a scale, such as the similarity of two texts: no task learns to predict a number.

use std::path::Path;

use super::jq::{self, path_in_jq};
use super::values::number;
use crate::formats::FileFormat;

/// Most classes that a scale is rounded to, without the first one.
const MOST_CLASSES: f64 = 10.0;
/// Scales that are shorter are divided into so many parts.
const LEAST_CLASSES: f64 = 5.0;

/// Says what the numbers of the field `label` are, and how a few classes are made of them. `None` unless all `values` are numbers, some
/// with fractions. `flags` read the classes.
pub(super) fn note<'v>(
    label: &str,
    values: impl Iterator<Item = &'v str>,
    flags: &str,
    (file, format): (&Path, FileFormat),
) -> Option<String> {
    let (mut n_commas, mut n_points) = (0, 0);
    let numbers: Option<Vec<f64>> = values
        .map(|value| {
            n_commas += usize::from(value.contains(','));
            n_points += usize::from(value.contains('.'));
            number(value)
        })
        .collect();
    let has_commas = n_commas > 0;
    // Few numbers with commas among whole ones are lists of classes.
    let numbers = numbers.filter(|numbers| !has_commas || n_points > 0 || 2 * n_commas >= numbers.len());
    let numbers = numbers.filter(|numbers| numbers.iter().any(|number| number.fract() != 0.0))?;
    let (least, most) = numbers.iter().fold((f64::MAX, f64::MIN), |(least, most), n| (n.min(least), n.max(most)));
    let range = most - least;
    if !range.is_finite() || range <= 0.0 {
        return None;
    }

    let rounded = if range < LEAST_CLASSES / 2.0 {
        format!(". * {} | round", (LEAST_CLASSES / range).round())
    } else if range > MOST_CLASSES {
        let step = 10_f64.powf((range / MOST_CLASSES).log10().ceil());
        format!(". / {step} | round | . * {step}")
    } else {
        "round".to_owned()
    };
    let path = path_in_jq(&label.split('.').map(str::to_owned).collect::<Vec<_>>());
    let read = if has_commas { "tostring | gsub(\",\"; \".\") | tonumber?" } else { "tonumber?" };
    let program = format!("{path} = (({path} | {read} | {rounded}) // {path})");
    Some(format!(
        "\"{label}\" has numbers on a scale ({least} to {most} in the first rows), and Kiln learns classes, not numbers (regression): as they \
         are, each number is a class of its own\nto make a few classes of them, round them: {}\nand read rows.jsonl with {flags}",
        jq::command(file, format, &program)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_with_fractions_are_scores() {
        let file = Path::new("a.tsv");
        let said = |values: &[&str]| note("score", values.iter().copied(), "--task x", (file, FileFormat::JSON));
        for (values, program) in [
            (&["0.0", "5.0", "3.2"][..], ".score = ((.score | tonumber? | round) // .score)"),
            (&["0.1", "1"], "(.score | tonumber? | . * 6 | round)"),
            (&["12.5", "99", " 3 "], "(.score | tonumber? | . / 10 | round | . * 10)"),
            (&["3,5", "1,0", "4"], ".score = ((.score | tostring | gsub(\",\"; \".\") | tonumber? | round) // .score)"),
        ] {
            let text = said(values).expect("scores");
            assert!(text.contains(program) && text.contains("regression"), "{text}");
        }
        for values in [
            &["0", "1", "2"][..],
            &["0.5", "neutral"],
            &["0.5", "0.5"],
            &["0.5", "NaN", "inf"],
            &["1,2,3", "4"],
            &["2", "2,14", "0", "27"],
            &["a,5"],
            &[],
        ] {
            assert_eq!(said(values), None, "{values:?}");
        }
    }
}
