//! What is said about a first row, with the flags to paste.

use std::path::Path;

use super::super::{CorpusConfig, Header};
use super::kind::{can_be_names, differs_in_kind, has_usual_name, is_above_numbers, looks_like_header};
use super::texts::{asked, candidates, examples, varied_target, worth_reading};
use super::{OR_REVERSED, is_language, names_are_set, says_direction, texts_of};
use crate::corpus::fields::{ANSWERS, names_behind, with_text_behind};
use crate::error::Error;
use crate::formats::way_of_lossy;

/// Characters of a cell that a message shows.
const SHOWN: usize = 60;
/// Columns of a template that a message shows.
const MOST_IN_TEMPLATE: usize = 6;

/// Refuses a first row that lacks a column which `config` names.
pub(super) fn lacks_a_column(
    path: &Path,
    names: &[&str],
    others: &[Vec<String>],
    config: &CorpusConfig,
    found: [Option<usize>; 2],
) -> Error {
    let wanted = [&config.source_field, &config.target_field];
    let missing = wanted.iter().zip(found).find(|(_, found)| found.is_none()).map_or("", |(name, _)| name.as_str());
    let is_header = config.header == Header::Yes;
    let row = if is_header { "header" } else { "first row" };
    // No row has names then.
    let no_names = if names_are_set(config) { ", without the names of columns" } else { "" };

    let mut remedies = vec![format!("if the first row is a pair{no_names}: --set data.corpus.header=no")];
    let is_above = is_above_numbers(names, others);
    if is_header || is_above || can_be_names(names, others) {
        // The more probable one stands first.
        let seems = is_header
            || is_above
            || looks_like_header(names)
            || differs_in_kind(names, others)
            || has_usual_name(names);
        let is_near = seems || [0, 1].into_iter().any(|side| nearest(names, wanted[side], None).is_some());
        let naming = format!("to name the columns: {}", kept_flags(names, others, wanted, found));
        remedies.insert(if is_near { 0 } else { 1 }, naming);
    }
    let found = format!("the {row} has no column \"{missing}\": it has {}", quoted(names));
    Error::corpus(path, found + "\n  " + &remedies.join("\n  "))
}

/// Refuses settings that name some columns and count others.
pub(super) fn two_choices(path: &Path, config: &CorpusConfig, [source, target]: [usize; 2]) -> Error {
    Error::corpus(
        path,
        format!(
            "data.corpus.source_field and data.corpus.target_field name the columns {source} and {target}, but \
             data.corpus.source_column and data.corpus.target_column are {} and {}\n  to use the named columns: --set \
             data.corpus.source_column={source} --set data.corpus.target_column={target}",
            config.source_column, config.target_column
        ),
    )
}

/// Says that the numbers decide, because a header lacks the names.
pub(super) fn numbers_decide(path: &Path, config: &CorpusConfig) -> String {
    format!(
        "first row of {} lacks the columns \"{}\" and \"{}\", or one of them: data.corpus.source_column and \
         data.corpus.target_column decide",
        path.display(),
        config.source_field,
        config.target_field
    )
}

/// Says which columns hold the texts below a header whose names nobody has set.
pub(super) fn counted(path: &Path, names: &[&str], config: &CorpusConfig) -> String {
    let [source, target] = [config.source_column, config.target_column];
    let column = |at: usize| format!("column {at} ({})", names.get(at).map_or(String::new(), |name| quoted(&[*name])));
    format!(
        "first row of {} lacks the columns \"{}\" and \"{}\", or one of them: {} is the source and {} the target, counted from 0 \
         (data.corpus.source_column, data.corpus.target_column)",
        path.display(),
        config.source_field,
        config.target_field,
        column(source),
        column(target)
    )
}

/// Says that the configuration makes names of a row that is probably a pair.
pub(super) fn taken_as_header(path: &Path, names: &[&str]) -> String {
    format!(
        "first row of {} ({}) does not look like a header and is skipped as one (data.corpus.header); if it is a pair: --set \
         data.corpus.header=no",
        path.display(),
        quoted(names)
    )
}

/// Says that a first row is read as a pair which perhaps names the columns.
pub(super) fn taken_as_pair(path: &Path, names: &[&str], others: &[Vec<String>], numbers_are_set: bool) -> String {
    let texts = candidates(names, others);
    let (flags, choose) = match numbers_are_set {
        true => (if_header(names, true), String::new()),
        false => (flags_among(&texts, names), to_choose(&texts, names, others)),
    };
    format!(
        "first row of {} ({}) is taken as a pair; if it names the columns: {flags}{choose}",
        path.display(),
        quoted(names)
    )
}

/// Names the columns that can have the texts, if their names do not tell which ones do.
fn to_choose(texts: &[&str], names: &[&str], others: &[Vec<String>]) -> String {
    match texts_of(texts).iter().flatten().count() == 2 || others.is_empty() {
        true => String::new(),
        false => format!("\n  write for NAME one of the columns {}", examples(texts, names, others)),
    }
}

/// Says how files with different names of columns are read together.
pub(in crate::corpus::pairs) fn with_other_headers(other: &Path) -> String {
    format!(
        "\n  {} has other names: one key reads both, so give the columns the same names, or count them from 0 without naming them: \
         --set data.corpus.source_column=N --set data.corpus.target_column=N --set data.corpus.header=yes",
        other.display()
    )
}

/// Asks whether a first row names the columns. The `others` below it show which of them can be source and target.
pub(super) fn ask(path: &Path, names: &[&str], others: &[Vec<String>], numbers_are_set: bool) -> Error {
    let texts = candidates(names, others);
    let asked = asked_flags(names, others).filter(|_| !numbers_are_set);
    let choose = match asked.is_some() || numbers_are_set {
        true => String::new(),
        false => to_choose(&texts, names, others),
    };

    Error::corpus(
        path,
        format!(
            "the first row looks like a header: {}{}\n  if it names the columns: {}{choose}\n  if it is a pair: --set \
             data.corpus.header=no",
            quoted(names),
            match names.iter().any(|name| name.contains('\u{fffd}')) {
                true => format!("; it is not UTF-8: {}", way_of_lossy(&names.join(" "))),
                false => String::new(),
            },
            match asked {
                Some([flags, alone]) => flags + "\n  " + &alone,
                None if numbers_are_set => if_header(names, true),
                None => flags_of_two(&texts, names, others),
            }
        ),
    )
}

/// Returns the flags for a first row that names the columns.
pub(super) fn if_header(names: &[&str], numbers_are_set: bool) -> String {
    if numbers_are_set { "--set data.corpus.header=yes".to_owned() } else { field_flags(names) }
}

/// Returns up to twelve cells in quotes, long ones cut.
pub(super) fn quoted(names: &[&str]) -> String {
    let shown = |name: &str| match name.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{} ...\"", &name[..end]),
        None => format!("\"{name}\""),
    };
    names.iter().take(12).map(|name| shown(name)).collect::<Vec<_>>().join(", ")
}

/// Returns the flags that name the two fields with the texts, as far as `names` tell which these are.
pub(in crate::corpus::pairs) fn field_flags(names: &[&str]) -> String {
    flags_among(names, names)
}

/// Returns the flags that read a question in several columns, and a sentence with those that read its main column alone. A question with
/// the text that it is about has flags of its own.
fn asked_flags(names: &[&str], others: &[Vec<String>]) -> Option<[String; 2]> {
    let (found, template) = asked(names, others).filter(|_| with_behind(names).is_none())?;
    let with = |source: &str| {
        format!("{} {}", flag("data.corpus.source_field", source), flag("data.corpus.target_field", &found.answer))
    };
    let alone = format!("that reads {}; to read \"{}\" alone: {}", found.named(), found.main, with(&found.main));
    Some([with(&template), alone])
}

/// Returns the flags for two of the `texts`. Of a wider table they come with the columns that they leave out.
fn flags_of_two(texts: &[&str], names: &[&str], others: &[Vec<String>]) -> String {
    let flags = flags_among(texts, names);
    let [Some(source), Some(target)] = texts_of(texts).map(|at| at.map(|at| texts[at])) else { return flags };
    if with_behind(names).is_some() {
        return flags;
    }
    let or_reversed = if says_direction(source, target) { "" } else { OR_REVERSED };
    let flags = format!("{flags}{or_reversed}");
    let left: Vec<&str> =
        worth_reading(names, others).into_iter().filter(|name| ![source, target].contains(name)).collect();
    if left.is_empty() {
        return flags;
    }

    let with_all = |learned: &str| {
        let is_read = |name: &&&str| **name != learned && (left.contains(name) || [source, target].contains(name));
        let parts: Vec<String> = names.iter().filter(is_read).map(|name| format!("{{{name}}}")).collect();
        format!("{} {}", flag("data.corpus.source_field", &parts.join(" ")), flag("data.corpus.target_field", learned))
    };
    let shown = examples(&left, names, others);
    match varied_target(&left, [source, target], names, others) {
        Some(varied) => format!("{}\n  that reads all columns; to read two alone: {flags}", with_all(varied)),
        // A translation is made of one text: a third language, or a key, would stand in its source.
        None if left.len() > MOST_IN_TEMPLATE || [source, target].into_iter().all(is_language) => {
            format!("{flags}\n  that leaves out {shown}")
        }
        None => format!("{flags}\n  that leaves out {shown}; to read all: {}", with_all(target)),
    }
}

/// Returns a question, the text that it is about and its answer, if the columns have usual names.
fn with_behind<'n>(names: &[&'n str]) -> Option<[&'n str; 3]> {
    let known = |name: &str| names.iter().copied().find(|other| *other == name);
    let [question, answer] = ANSWERS.into_iter().find(|pair| pair.iter().all(|name| names.contains(name)))?;
    let behind = names_behind(question).iter().find_map(|name| known(name))?;
    Some([known(question)?, behind, known(answer)?])
}

/// Does the same for the names of `texts` among all `names`.
fn flags_among(texts: &[&str], names: &[&str]) -> String {
    let [source, target] = texts_of(texts).map(|at| at.map_or("NAME", |at| texts[at]));
    if let Some([question, name, answer]) = with_behind(names) {
        let source = flag("data.corpus.source_field", &with_text_behind(question, name));
        return format!("{source} {}", flag("data.corpus.target_field", answer));
    }
    format!("{} {}", flag("data.corpus.source_field", source), flag("data.corpus.target_field", target))
}

/// Returns `--set KEY=VALUE`, quoted for the shell if necessary.
pub(crate) fn flag(key: &str, value: &str) -> String {
    let is_plain = value.chars().all(|c| c.is_ascii_alphanumeric() || "_-.,".contains(c));
    let quote = if is_plain { "" } else { "'" };
    format!("--set {quote}{key}={}{quote}", value.replace('\'', r"'\''"))
}

/// Returns the flags that keep the columns that were found, and name the nearest ones for the others.
fn kept_flags(names: &[&str], others: &[Vec<String>], wanted: [&String; 2], found: [Option<usize>; 2]) -> String {
    let mut meant = found;
    for side in [0, 1] {
        let other = meant[1 - side];
        meant[side] = meant[side].or_else(|| nearest(names, wanted[side], other));
    }
    if meant == [None, None] {
        return flags_among(&candidates(names, others), names);
    }

    let question = asked(names, others).and_then(|(found, template)| match meant {
        [None, Some(target)] if names[target] == found.answer => Some((template, found.answer)),
        [Some(source), None] if found.parts.iter().any(|part| part == names[source]) => {
            Some((names[source].to_owned(), found.answer))
        }
        _ => None,
    });
    if let Some((source, target)) = question {
        return format!("{} {}", flag("data.corpus.source_field", &source), flag("data.corpus.target_field", &target));
    }
    // Of two columns, the other one is left.
    let [source, target] = meant;
    let left = |other: Option<usize>| other.filter(|_| names.len() == 2).map(|at| 1 - at);
    let name = |at: Option<usize>| at.map_or("NAME", |at| names[at]);
    let (source, target) = (name(source.or_else(|| left(target))), name(target.or_else(|| left(source))));
    format!("{} {}", flag("data.corpus.source_field", source), flag("data.corpus.target_field", target))
}

/// Returns the column whose name is most like `wanted`: equal, or beginning alike, or with one in the other; never the column `taken`.
fn nearest(names: &[&str], wanted: &str, taken: Option<usize>) -> Option<usize> {
    let letters = |name: &str| -> String { name.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect() };
    let wanted = letters(wanted);
    let names: Vec<String> = names.iter().map(|name| letters(name)).collect();
    let free = || (0..names.len()).filter(|at| Some(*at) != taken && !names[*at].is_empty() && !wanted.is_empty());
    free()
        .find(|at| names[*at] == wanted)
        .or_else(|| free().find(|at| names[*at].starts_with(&wanted) || wanted.starts_with(&names[*at])))
        .or_else(|| free().find(|at| wanted.len() >= 3 && names[*at].contains(&wanted)))
}
