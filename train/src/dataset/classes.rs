//! What the user should know about the classes of labelled rows.

use std::collections::{BTreeMap, HashSet};

use kiln_data::{Classes, Labelled, LabelledInput, Task};

use kiln_metrics::units::counted;

/// Frequent classes whose shares are listed.
const LISTED: usize = 8;
/// Rare ones that are listed, too.
const RAREST: usize = 3;
/// From so many rows on, a class with one row is worth a word.
const ENOUGH_ROWS: usize = 20;

/// Lists the classes with their shares, most frequent first: always predicting the first is right that often. Warns of classes with one
/// row, of classes that differ in case or spaces only, of texts that repeat, and of fields that are probably swapped. `rows` are the
/// training rows that are in memory.
pub(super) fn notes(classes: &Classes, rows: &[Labelled], task: Task) -> Vec<String> {
    let mut counts: Vec<(u64, &str)> =
        classes.counts.iter().copied().zip(classes.names.iter().map(String::as_str)).collect();
    let total = counts.iter().map(|(n, _)| n).sum::<u64>().max(1) as f64;
    counts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let share = |(n, name): &(u64, &str)| match 100.0 * *n as f64 / total {
        percent if percent < 0.1 && *n > 0 => format!("{name} ({n})"),
        percent => format!("{name} {percent:.1}%"),
    };
    // The rarest are worth a look: a label with a typo is one of them.
    let (first, rest) = counts.split_at(counts.len().min(LISTED));
    let (between, rarest) = rest.split_at(rest.len().saturating_sub(RAREST));
    let listed = |counts: &[(u64, &str)]| counts.iter().map(share).collect::<Vec<_>>().join(", ");
    let rest = match (between.len(), rarest) {
        (_, []) => String::new(),
        (0, rarest) => format!(", {}", listed(rarest)),
        (more, rarest) => format!(", {more} more, {}", listed(rarest)),
    };

    let first = format!("{} classes: {}{rest}", counts.len(), listed(first));
    let n_rows = classes.n_rows as usize;
    let of_task = numbered(&classes.names, task).or_else(|| swapped(classes, rows, task));
    let others = [alone(&counts, n_rows), of_task].into_iter().flatten();
    [first].into_iter().chain(alike(&counts)).chain(others).collect()
}

/// Says of tags that are numbers how entities are scored.
fn numbered(names: &[String], task: Task) -> Option<String> {
    let are_numbers = names.iter().all(|name| name.parse::<u32>().is_ok());
    (task == Task::Tagging && are_numbers).then(|| {
        "the tags are numbers, so entities are not scored: name the tag of each number, from 0 on, with --set \
         'data.labels.names=[\"O\", \"B-...\", \"I-...\"]'"
            .to_owned()
    })
}

/// What names of one class have in common; `None` for names of another kind.
type Spelling<'k> = &'k dyn Fn(&str) -> Option<String>;

/// Names groups of classes that are probably one: in other spellings of a word, or of a number.
fn alike(counts: &[(u64, &str)]) -> Vec<String> {
    let word = |name: &str| Some(name.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase());
    let value = |name: &str| number(name.trim()).map(|number| number.to_string());
    let kinds: [(Spelling<'_>, &str); 2] =
        [(&word, "differ in case or spaces only"), (&value, "spell the same number")];
    let of_kind = |(key, what): (Spelling<'_>, &str)| {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, name) in counts {
            if let Some(key) = key(name) {
                groups.entry(key).or_default().push(format!("{name:?}"));
            }
        }
        let groups: Vec<String> =
            groups.into_values().filter(|names| names.len() > 1).map(|names| names.join(" and ")).collect();
        let more = groups.len().saturating_sub(LISTED);
        let more = if more > 0 { format!("; and {more} more groups") } else { String::new() };
        let listed = groups[..groups.len().min(LISTED)].join("; ");
        (!groups.is_empty())
            .then(|| format!("warning: classes {what}: {listed}{more}: if they are one, correct the rows"))
    };
    kinds.into_iter().filter_map(of_kind).collect()
}

/// Returns the number that a name spells, with a comma or a sign for a fraction, too.
fn number(name: &str) -> Option<f64> {
    const FRACTIONS: [(char, f64); 5] = [('½', 0.5), ('¼', 0.25), ('¾', 0.75), ('⅓', 1.0 / 3.0), ('⅔', 2.0 / 3.0)];
    let fraction = FRACTIONS.into_iter().find_map(|(sign, value)| Some((name.strip_suffix(sign)?.trim(), value)));
    match fraction {
        Some(("", value)) => Some(value),
        Some((whole, value)) => whole.parse::<u32>().ok().map(|whole| f64::from(whole) + value),
        None => name.replacen(',', ".", 1).parse().ok().filter(|number: &f64| number.is_finite()),
    }
}

/// Names classes that have one row.
fn alone(counts: &[(u64, &str)], n_rows: usize) -> Option<String> {
    let once: Vec<String> = counts.iter().filter(|(n, _)| *n == 1).map(|(_, name)| format!("{name:?}")).collect();
    if once.is_empty() || n_rows < ENOUGH_ROWS || once.len() * 2 > counts.len() {
        return None;
    }
    let more = once.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let listed = once[..once.len().min(LISTED)].join(", ");
    Some(format!(
        "warning: {} with one row: {listed}{more}; one row teaches little, or its label has a typo",
        counted(once.len() as u64, "label")
    ))
}

/// Says that text and label are probably swapped: nearly every row has a class of its own, and texts recur.
fn swapped(classes: &Classes, rows: &[Labelled], task: Task) -> Option<String> {
    let n_classes = classes.names.len();
    if task != Task::Classification || rows.len() < ENOUGH_ROWS || n_classes * 2 < rows.len() {
        return None;
    }
    let texts: HashSet<&str> = rows
        .iter()
        .filter_map(|row| match &row.input {
            LabelledInput::Text { text, .. } => Some(text.as_str()),
            LabelledInput::Words(_) => None,
        })
        .collect();
    let are_scores = classes.names.iter().all(|name| number(name).is_some());
    let hint = match texts.len() * 2 < n_classes {
        _ if are_scores => "; the labels are numbers: if they are scores, make a few classes of ranges of them",
        true => ": data.labels.text_field and data.labels.label_field are probably swapped",
        false => "; a class needs several rows to be learned",
    };
    Some(format!("warning: {n_classes} classes for {} rows{hint}", rows.len()))
}

#[cfg(test)]
mod tests {
    use kiln_data::{LabelConfig, LabelledCorpus};

    use super::*;

    fn notes_of(rows: impl Iterator<Item = (String, String)>) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let lines: String =
            rows.map(|(text, label)| format!("{{\"text\": \"{text}\", \"label\": \"{label}\"}}\n")).collect();
        std::fs::write(&path, lines).expect("writable");
        let corpus = LabelledCorpus::read(&[path], Task::Classification, &LabelConfig::default()).expect("rows");
        notes(&corpus.classes(), corpus.rows(), Task::Classification)
    }

    #[test]
    fn a_typo_in_a_label_is_named_although_its_class_is_small() {
        let rows = (0..60)
            .map(|i| (format!("text {i}"), if i == 7 { "Games ".into() } else { ["games", "net"][i % 2].into() }));
        let notes = notes_of(rows);
        assert!(notes[0].starts_with("3 classes: "), "{notes:?}");
        assert!(notes[1].contains("differ in case or spaces only: \"games\" and \"Games \": if"), "{notes:?}");
        assert!(notes[2].contains("1 label with one row: \"Games \""), "{notes:?}");
    }

    #[test]
    fn all_classes_alike_and_the_rarest_are_named() {
        let name = |i: usize| match i {
            1999 => "B-NUN",
            1997 | 1998 => "tag 1",
            i if i % 50 == 0 => "Tag 3",
            i => ["Tag 1", "tag 2", "tag 3", "tag 4", "tag 5", "tag 6", "tag 7", "tag 8", "tag 9", "tag 10"][i % 10],
        };
        let notes = notes_of((0..2000).map(|i| (format!("text {i}"), name(i).into())));
        assert!(notes[1].contains("\"Tag 1\" and \"tag 1\"; \"tag 3\" and \"Tag 3\": if they are one"), "{notes:?}");
        assert!(notes[0].starts_with("13 classes: ") && notes[0].contains(", 2 more, "), "{notes:?}");
        assert!(notes[0].ends_with("Tag 3 2.0%, tag 1 0.1%, B-NUN (1)"), "{notes:?}");
    }

    #[test]
    fn tags_that_are_numbers_are_to_be_named() {
        let note =
            |names: &[&str], task| numbered(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), task);
        let found = note(&["0", "1", "12"], Task::Tagging).expect("numbers");
        assert!(found.contains("entities are not scored") && found.contains("'data.labels.names=[\"O\","), "{found}");
        assert_eq!(note(&["O", "B-place"], Task::Tagging), None);
        assert_eq!(note(&["0", "1"], Task::Classification), None);
    }

    #[test]
    fn swapped_fields_are_named_and_usual_rows_get_no_warning() {
        let swapped = notes_of((0..60).map(|i| (["games", "net"][i % 2].into(), format!("a text {i}"))));
        assert!(
            swapped.iter().any(|note| note.contains("60 classes for 60 rows") && note.contains("swapped")),
            "{swapped:?}"
        );
        assert_eq!(notes_of((0..60).map(|i| (format!("a text {i}"), ["games", "net"][i % 2].into()))).len(), 1);
    }
}
