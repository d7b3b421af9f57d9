//! Several labels of one text in a single cell or string, which would become a class per combination.

use std::collections::BTreeMap;
use std::path::Path;

use crate::corpus::jq::fed;
use crate::corpus::values::number;
use crate::formats::{CsvRows, FileFormat};

/// What may stand between two labels.
const DIVIDERS: [&str; 6] = ["|", ";", ",", "+", "&", "/"];

/// How texts have several labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Several {
    /// As lists: `['a', 'b']`.
    Lists { are_quoted: bool },
    /// With this between them: `a|b`.
    Divided(&'static str),
}

impl Several {
    /// Recognizes several labels by different values of a label.
    pub(super) fn of<'a>(values: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let is_list = |value: &&str| value.trim().starts_with('[') && value.trim().ends_with(']');
        if values.clone().any(|value| is_list(&value))
            && values.clone().filter(|value| !value.trim().is_empty()).all(|value| is_list(&value))
        {
            return Some(Self::Lists { are_quoted: values.clone().any(|value| value.contains(['\'', '"'])) });
        }
        // A number may have a decimal comma.
        if values.clone().all(|value| number(value).is_some()) {
            return None;
        }
        DIVIDERS.into_iter().find(|divider| are_combined(values.clone(), divider)).map(Self::Divided)
    }

    /// Says what the labels are.
    pub(super) fn what(self) -> String {
        match self {
            Self::Lists { .. } => "are lists".to_owned(),
            Self::Divided(divider) => format!("seem to have several labels with `{divider}` between them"),
        }
    }

    /// Returns the command that keeps the first label of each row of a table.
    pub(super) fn to_first_label(self, file: &Path, column: &str) -> Option<String> {
        let is_table =
            FileFormat::by_name(file).is_some_and(|format| [FileFormat::CSV, FileFormat::TSV].contains(&format));
        if !is_table || column.contains(['\'', '"', '\\']) {
            return None;
        }
        let first = match self {
            Self::Lists { are_quoted: true } => {
                r#"re.split(r"[\x27\"]\s*,?\s*[\x27\"]", cell.strip().strip("[] ").strip("\x27\""))[0]"#.to_owned()
            }
            Self::Lists { are_quoted: false } => r#"re.split(r"\s*,\s*|\s+", cell.strip().strip("[] "))[0]"#.to_owned(),
            Self::Divided(divider) => format!("cell.split(\"{divider}\")[0].strip()"),
        };
        let options = CsvRows::options_of_python(file);
        let script = format!(
            "python3 -c 'import csv, json, re\nfirst = lambda cell: {first}\nfor row in csv.DictReader(open(0, encoding=\"utf-8-sig\", \
             newline=\"\"){options}):\n  row[\"{column}\"] = first(row[\"{column}\"])\n  if row[\"{column}\"]: \
             print(json.dumps(row))'"
        );
        Some(format!("{} > rows.jsonl", fed(file, &script)))
    }
}

/// Whether values are combinations: most parts of those with the divider stand alone, too, or in other combinations.
fn are_combined<'a>(values: impl Iterator<Item = &'a str> + Clone, divider: &str) -> bool {
    let mut n_values: BTreeMap<&str, usize> = BTreeMap::new();
    let mut distinct: Vec<&str> = values.collect();
    distinct.sort_unstable();
    distinct.dedup();
    for value in &distinct {
        for part in value.split(divider) {
            *n_values.entry(part.trim()).or_default() += 1;
        }
    }
    let combined = || distinct.iter().filter(|value| value.contains(divider));
    let parts: Vec<&str> = combined().flat_map(|value| value.split(divider)).map(str::trim).collect();
    let n_again = parts.iter().filter(|part| !part.is_empty() && n_values[*part] > 1).count();
    combined().count() > 1 && 4 * n_again >= 3 * parts.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_labels_in_one_text_are_recognized() {
        let lists = Some(Several::Lists { are_quoted: true });
        for (values, wanted) in [
            (&["['a']", "['a', 'b']"][..], lists),
            (&["[\"a\" \"b\"]", "[]"], lists),
            (&["[a, b]", "[c]"], Some(Several::Lists { are_quoted: false })),
            (&["soup|vegan", "soup", "vegan", "cake|vegan"], Some(Several::Divided("|"))),
            (&["sport; news", "sport", "news; weather", "weather"], Some(Several::Divided(";"))),
            (&["joy, love", "joy", "love, fear", "joy, fear"], Some(Several::Divided(","))),
            (&["Action/Adventure", "Sci-Fi/Fantasy", "Drama"], None),
            (&["1,0", "1,5", "2,0", "2,5", "3"], None),
            (&["1,2,3", "1", "2,3", "3"], Some(Several::Divided(","))),
            (&["a", "b"], None),
            (&["read/write", "open"], None),
            (&["B-PER", "I-PER", "O"], None),
        ] {
            assert_eq!(Several::of(values.iter().copied()), wanted, "{values:?}");
        }
    }
}
