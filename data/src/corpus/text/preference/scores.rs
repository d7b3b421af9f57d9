//! Preferences whose scores, margins or verdicts say that the other answer is better, or that both are alike.

use std::path::Path;

use serde_json::{Map, Value};

use crate::corpus::fields::words_of;
use crate::corpus::jq::{self, in_jq};
use crate::corpus::text::direction_of;
use crate::formats::{FileFormat, Wanted};

/// Rows that are looked at.
const MOST_ROWS: u64 = 200_000;
/// Words of the better answer, and of the other one, in names of scores.
const SIDES: [[&str; 2]; 2] = [["chosen", "rejected"], ["accepted", "rejected"]];
/// Words of a field that has how much better the chosen answer is.
const MARGINS: [&str; 5] = ["margin", "gap", "delta", "difference", "diff"];
/// Words of a field that names the better answer.
const VERDICTS: [&str; 7] = ["winner", "better", "best", "preferred", "preference", "verdict", "label"];
/// Values of such a field for answers that are alike.
const TIES: [&str; 6] = ["tie", "both", "equal", "none", "draw", "neither"];

/// What a row says of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Agrees,
    Opposite,
    Tie,
}

/// A way in which rows say which answer is better.
enum Evidence {
    /// The scores of the chosen and the rejected answer, and whether a high one is good.
    Scores([String; 2], bool),
    Margin(String),
    Verdict(String),
}

impl Evidence {
    /// Finds all ways in which a row says it.
    fn of(row: &Map<String, Value>) -> Vec<Self> {
        let numbers = || row.iter().filter(|(_, value)| value.is_number()).map(|(name, _)| name);
        let other = |name: &str| {
            let words = words_of(name);
            SIDES.iter().find_map(|[good, bad]| {
                let at = words.iter().position(|word| word == good)?;
                let mut wanted = words.clone();
                wanted[at] = (*bad).to_owned();
                let mut rest = words.clone();
                rest.remove(at);
                let high_is_good = direction_of(&rest.join("_"))?;
                let other = numbers().find(|other| words_of(other) == wanted)?;
                Some(Self::Scores([name.to_owned(), other.clone()], high_is_good))
            })
        };

        let mut found: Vec<Self> = numbers().filter_map(|name| other(name)).collect();
        let has_word = |name: &str, list: &[&str]| words_of(name).iter().any(|word| list.contains(&word.as_str()));
        found.extend(numbers().filter(|name| has_word(name, &MARGINS)).map(|name| Self::Margin(name.clone())));
        let is_verdict = |value: &Value| {
            let text = value.as_str().map(str::to_lowercase);
            text.is_some_and(|text| ["chosen", "rejected"].contains(&&*text) || TIES.contains(&&*text))
        };
        let verdicts = row.iter().filter(|(name, value)| has_word(name, &VERDICTS) && is_verdict(value));
        found.extend(verdicts.map(|(name, _)| Self::Verdict(name.clone())));
        found
    }

    fn said(&self, row: &Map<String, Value>) -> Said {
        let number = |name: &String| row.get(name).and_then(Value::as_f64);
        let margin = match self {
            Self::Scores([chosen, rejected], high_is_good) => number(chosen).zip(number(rejected)).map(
                |(one, other)| {
                    if *high_is_good { one - other } else { other - one }
                },
            ),
            Self::Margin(name) => number(name),
            Self::Verdict(name) => match row.get(name).and_then(Value::as_str).map(str::to_lowercase) {
                Some(text) if text == "rejected" => Some(-1.0),
                Some(text) if TIES.contains(&&*text) => Some(0.0),
                _ => Some(1.0),
            },
        };
        match margin {
            Some(margin) if margin < 0.0 => Said::Opposite,
            Some(0.0) => Said::Tie,
            _ => Said::Agrees,
        }
    }

    /// Returns the conditions of jq for rows that agree, and for rows that say the opposite.
    fn conditions(&self) -> [String; 2] {
        match self {
            Self::Scores([chosen, rejected], high_is_good) => {
                let [chosen, rejected] = [in_jq(chosen), in_jq(rejected)];
                let [more, less] = if *high_is_good { [">", "<"] } else { ["<", ">"] };
                [format!("{chosen} {more} {rejected}"), format!("{chosen} {less} {rejected}")]
            }
            Self::Margin(name) => [format!("{} > 0", in_jq(name)), format!("{} < 0", in_jq(name))],
            Self::Verdict(name) => {
                [format!("{} == \"chosen\"", in_jq(name)), format!("{} == \"rejected\"", in_jq(name))]
            }
        }
    }

    /// Returns the fields that change with the sides of a row, for an object of jq.
    fn swapped(&self) -> String {
        let key = |name: &String| Value::from(name.as_str());
        match self {
            Self::Scores([chosen, rejected], _) => {
                format!(", {}: {}, {}: {}", key(chosen), in_jq(rejected), key(rejected), in_jq(chosen))
            }
            Self::Margin(name) => format!(", {}: (-{})", key(name), in_jq(name)),
            Self::Verdict(name) => format!(", {}: \"chosen\"", key(name)),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Scores([chosen, rejected], _) => format!("{chosen} and {rejected}"),
            Self::Margin(name) | Self::Verdict(name) => name.clone(),
        }
    }
}

/// Says how many rows of a file say by their own scores that their rejected answer is better, and how they are left out or turned round.
/// `None` if all agree.
pub(crate) fn contradicted(file: &Path, format: FileFormat) -> Option<String> {
    let mut records = format.open(file, &Wanted::all()).ok()?;
    let (mut json, mut evidence): (Vec<u8>, Vec<Evidence>) = (Vec::new(), Vec::new());
    let (mut n, mut n_opposite, mut n_ties) = (0_u64, 0_u64, 0_u64);
    while n < MOST_ROWS && records.next(&mut json).ok()?.is_some() {
        let row = serde_json::from_slice::<Map<String, Value>>(&json).unwrap_or_default();
        json.clear();
        if !row.contains_key("chosen") || !row.contains_key("rejected") {
            continue;
        }
        n += 1;
        if evidence.is_empty() {
            evidence = Evidence::of(&row);
        }
        // Rows without scores are not read to their end.
        if evidence.is_empty() && n == 100 {
            return None;
        }
        let said: Vec<Said> = evidence.iter().map(|one| one.said(&row)).collect();
        let is_opposite = said.contains(&Said::Opposite);
        n_opposite += u64::from(is_opposite);
        n_ties += u64::from(!is_opposite && said.contains(&Said::Tie));
    }
    if n_opposite + n_ties == 0 {
        return None;
    }

    let names: Vec<String> = evidence.iter().map(Evidence::name).collect();
    let conditions: Vec<[String; 2]> = evidence.iter().map(Evidence::conditions).collect();
    let [agree, differ] = [0, 1].map(|side| conditions.iter().map(|one| one[side].clone()).collect::<Vec<_>>());
    let keep = format!("select({})", agree.join(" and "));
    let swapped: String = evidence.iter().map(Evidence::swapped).collect();
    let swap =
        format!("if {} then . + {{chosen: .rejected, rejected: .chosen{swapped}}} else . end", differ.join(" and "));
    Some(format!(
        "warning: {}: by {} the rejected answer is better in {n_opposite} of {n} rows, and both are alike in {n_ties}; to leave these rows \
         out: {}; to turn round rows whose rejected answer is better: {}",
        file.display(),
        names.join(" and by "),
        jq::command(file, format, &keep),
        jq::command(file, format, &swap)
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn scores_that_prefer_the_other_answer_are_counted_and_the_rows_dropped_or_turned_round() {
        let row = |fields: &str| format!("{{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\", {fields}}}");
        for (rows, name) in [
            (
                [
                    r#""chosen_rating": 5, "rejected_rating": 2"#,
                    r#""chosen_rating": 1, "rejected_rating": 2"#,
                    r#""chosen_rating": 2, "rejected_rating": 2"#,
                ],
                "chosen_rating and rejected_rating",
            ),
            (
                [
                    r#""score_chosen": 5.5, "score_rejected": 2"#,
                    r#""score_chosen": 1, "score_rejected": 2"#,
                    r#""score_chosen": 2, "score_rejected": 2"#,
                ],
                "score_chosen and score_rejected",
            ),
            (
                [
                    r#""chosen-rank": 1, "rejected-rank": 2"#,
                    r#""chosen-rank": 2, "rejected-rank": 1"#,
                    r#""chosen-rank": 2, "rejected-rank": 2"#,
                ],
                "chosen-rank and rejected-rank",
            ),
            ([r#""margin": 3"#, r#""margin": -0.5"#, r#""margin": 0"#], "margin"),
            ([r#""winner": "chosen""#, r#""winner": "rejected""#, r#""winner": "tie""#], "winner"),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("rows.jsonl");
            std::fs::write(&file, rows.map(row).join("\n")).expect("writable");
            let said = contradicted(&file, FileFormat::JSON).expect(name);
            let counts = format!("by {name} the rejected answer is better in 1 of 3 rows, and both are alike in 1;");
            assert!(said.contains(&counts), "{said}");

            let command = |after: &str| {
                let (_, rest) = said.split_once(after).expect(after);
                rest.split_once(" > rows.jsonl").expect(after).0.to_owned()
            };
            let made = |command: &str| {
                let ran = Command::new("sh").args(["-c", command]).output().ok().filter(|ran| ran.status.success())?;
                let text = String::from_utf8(ran.stdout).expect("UTF-8");
                Some(text.lines().map(|line| serde_json::from_str::<Value>(line).expect(line)).collect::<Vec<_>>())
            };
            let Some(kept) = made(&command("to leave these rows out: ")) else { return };
            assert_eq!(kept.len(), 1, "{said}");
            let turned = made(&command("rejected answer is better: ")).expect("jq");
            let chosen: Vec<&Value> = turned.iter().map(|row| &row["chosen"]).collect();
            assert_eq!(chosen, ["a", "b", "a"], "{said}");
            std::fs::write(&file, turned.iter().map(|row| format!("{row}\n")).collect::<String>()).expect("writable");
            let said = contradicted(&file, FileFormat::JSON).expect("a tie");
            assert!(said.contains("better in 0 of 3 rows, and both are alike in 1;"), "{said}");
        }

        for fields in [r#""chosen_rating": 5, "rejected_rating": 2"#, r#""n": 1"#, r#""label": "chosen", "tag": "tie""#]
        {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("rows.jsonl");
            std::fs::write(&file, row(fields)).expect("writable");
            assert_eq!(contradicted(&file, FileFormat::JSON), None, "{fields}");
        }
    }
}
