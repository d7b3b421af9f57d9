//! The first row of a TSV or CSV file: the names of its columns, or already a pair.

mod above;
mod kind;
mod marks;
mod messages;
mod role;
#[cfg(test)]
mod tests;
mod texts;

use std::path::Path;

pub(in crate::corpus) use self::above::{refuse as refuse_lines_above, refuse_further_headers, rows_above};
use self::kind::{
    can_be_names, differs_in_kind, end_differently, has_usual_name, is_above_numbers, look_different,
    looks_like_header, may_be_names,
};
pub(super) use self::marks::warning as warning_of_marks;
pub(crate) use self::messages::flag;
use self::messages::{ask, counted, lacks_a_column, numbers_decide, taken_as_header, taken_as_pair, two_choices};
pub(super) use self::messages::{field_flags, with_other_headers};
use self::role::Role;
pub(in crate::corpus) use self::role::{are_of_languages, is_language};
use self::texts::columns_of_texts;
use super::{CorpusConfig, Header, OR_REVERSED};
use crate::corpus::asked::is_answer;
use crate::corpus::fields::is_label;
use crate::corpus::roles::{is_changed_into, parts_of};
use crate::error::Result;
use crate::formats::CsvRows;

/// Where a file has its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Counted from 0.
    pub(crate) source: usize,
    /// Counted from 0.
    pub(crate) target: usize,
    /// Whether the first row names the columns.
    pub(crate) header: bool,
}

/// Where a file has its texts, and what the user should know about how that was decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) columns: Columns,
    pub(super) notes: Vec<String>,
}

impl Columns {
    /// Finds the columns of the file at `path` by its first rows, as `config` says.
    ///
    /// # Errors
    ///
    /// If the first row lacks a column that `config` names, or if it looks like a header that `config` does not describe. The error
    /// has the flags to paste.
    pub(super) fn find(path: &Path, rows: &[Vec<String>], config: &CorpusConfig) -> Result<Found> {
        let numbers_are_set = numbers_are_set(config);
        let by_number = Self { source: config.source_column, target: config.target_column, header: false };
        refuse_further_headers(path, rows)?;
        let (all, n_above) = (rows, rows_above(rows));
        let rows = &rows[n_above..];
        let Some((first_row, others)) = rows.split_first() else {
            return Ok(Found { columns: by_number, notes: Vec::new() });
        };

        let names: Vec<&str> = first_row.iter().map(|name| name.trim()).collect();
        let (mut notes, mut columns, mut texts) = (Vec::new(), by_number, Vec::new());
        if names.len() > 2 && !numbers_are_set {
            texts = columns_of_texts(rows, names.len());
            let others = texts::in_place_of(by_number, &texts).filter(|_| config.header == Header::Auto);
            columns = others.unwrap_or(by_number);
            notes.push(texts::note(path, names.len(), columns, by_number, &texts));
        }
        if config.header == Header::No {
            return Ok(Found { columns, notes });
        }

        let wanted = [&config.source_field, &config.target_field];
        let found = wanted.map(|field| names.iter().position(|name| name == field));
        let needs_names = config.header == Header::Yes && !numbers_are_set;
        let has_names = needs_names || names_are_set(config) || found.iter().any(Option::is_some);
        if n_above > 0 && (has_names || is_probably_header(&names, others)) {
            return Err(refuse_lines_above(path, all, n_above));
        }
        // Names that the user has set are never ignored: the first row must have them.
        if config.header == Header::Yes || names_are_set(config) || found.iter().all(Option::is_some) {
            return Self::named(path, (&names, others), config, found);
        }

        if is_probably_header(&names, others) {
            return Err(ask(path, &names, others, numbers_are_set));
        }
        if names.len() == 2 && !numbers_are_set {
            texts = columns_of_texts(rows, names.len());
        }
        let may_name =
            may_be_names(&names, others) || look_different(&names, others) || end_differently(&names, others);
        let lacks_a_text = || texts::lacks_a_text(path, rows, columns, (&texts, may_name));
        if let Some(error) = texts::of_options(path, rows).or_else(lacks_a_text) {
            return Err(error);
        }
        if may_name {
            notes.push(taken_as_pair(path, &names, others, numbers_are_set));
        }
        Ok(Found { columns, notes })
    }

    /// Finds the columns of a file whose first row must have names, of which `found` are the wanted ones.
    fn named(
        path: &Path,
        (names, others): (&[&str], &[Vec<String>]),
        config: &CorpusConfig,
        found: [Option<usize>; 2],
    ) -> Result<Found> {
        let numbers = [config.source_column, config.target_column];
        let (names_are_set, numbers_are_set) = (names_are_set(config), numbers_are_set(config));
        let with = |[source, target]: [usize; 2], notes: Vec<String>| {
            Ok(Found { columns: Self { source, target, header: true }, notes })
        };

        match found {
            _ if numbers_are_set && !names_are_set => {
                let is_doubtful = found.iter().all(Option::is_none) && !can_be_names(names, others);
                with(numbers, is_doubtful.then(|| taken_as_header(path, names)).into_iter().collect())
            }
            [Some(source), Some(target)] if numbers_are_set && [source, target] != numbers => {
                Err(two_choices(path, config, [source, target]))
            }
            [Some(source), Some(target)] => with([source, target], Vec::new()),
            _ if config.header == Header::Yes && numbers_are_set => with(numbers, vec![numbers_decide(path, config)]),
            // Columns 0 and 1 may be set or not: the configuration does not tell. Names that say otherwise are asked about.
            _ if config.header == Header::Yes && !names_are_set && agrees(names) => {
                with(numbers, vec![counted(path, names, config)])
            }
            _ => Err(lacks_a_column(path, names, others, config, found)),
        }
    }
}

/// Whether the names of the columns allow that the first two hold the texts.
fn agrees(names: &[&str]) -> bool {
    names.len() >= 2 && texts_of(names).into_iter().flatten().all(|at| at < 2)
}

/// Whether the configuration counts columns other than the default ones.
fn numbers_are_set(config: &CorpusConfig) -> bool {
    let CorpusConfig { source_column, target_column, .. } = CorpusConfig::default();
    (config.source_column, config.target_column) != (source_column, target_column)
}

/// Whether the configuration names columns other than the default ones.
fn names_are_set(config: &CorpusConfig) -> bool {
    let CorpusConfig { source_field, target_field, .. } = CorpusConfig::default();
    (&config.source_field, &config.target_field) != (&source_field, &target_field)
}

/// Whether a first row names the columns rather than being a pair.
pub(super) fn is_probably_header(names: &[&str], others: &[Vec<String>]) -> bool {
    // The name of a language may stand in each row.
    let recurs = |at: usize| others.iter().any(|row| row.get(at).is_some_and(|cell| cell.trim() == names[at]));
    let once: Vec<&str> = (0..names.len()).filter(|at| !recurs(*at)).map(|at| names[at]).collect();
    looks_like_header(&once)
        || differs_in_kind(names, others)
        || is_above_numbers(names, others)
        || (has_usual_name(&once) && may_be_names(names, others))
}

/// Whether a first row has a usual name of a column, and probably names the columns of the `others`.
pub(crate) fn are_column_names(names: &[&str], others: &[Vec<String>]) -> bool {
    let is_usual = |name: &str| is_label(name) || Role::of(name) != Role::Unknown;
    names.iter().any(|name| is_usual(name)) && is_probably_header(names, others)
        || names.iter().all(|name| is_usual(name)) && !others.is_empty()
}

/// Whether the first row of a table names its columns, and the run has not said otherwise.
pub(in crate::corpus) fn names_columns(path: &Path, config: &CorpusConfig) -> bool {
    let Ok((_, rows)) = CsvRows::first_rows_by_name(path) else { return false };
    let Some((first, others)) = rows.split_first().filter(|_| rows_above(&rows) == 0) else { return false };
    let names: Vec<&str> = first.iter().map(|name| name.trim()).collect();
    config.header != Header::No && !numbers_are_set(config) && is_probably_header(&names, others)
}

/// Returns the keys that say where the texts of a row are, as far as `config` sets them.
pub(super) fn keys_of_columns(config: &CorpusConfig) -> Option<&'static str> {
    match (names_are_set(config), numbers_are_set(config)) {
        (true, _) => Some("data.corpus.source_field and data.corpus.target_field"),
        (false, true) => Some("data.corpus.source_column and data.corpus.target_column"),
        (false, false) => None,
    }
}

/// Whether a column with this name usually has texts, perhaps of a language.
pub(crate) fn names_text(name: &str) -> bool {
    Role::of(name) == Role::Text
}

/// Whether the names say which of two texts is the source.
pub(crate) fn says_direction(source: &str, target: &str) -> bool {
    let is_named = Role::of(source) == Role::Source || Role::of(target) == Role::Target;
    is_named || is_changed_into(source, target) == Some(true)
}

/// Returns which names probably stand for the source and the target.
pub(crate) fn texts_of(names: &[&str]) -> [Option<usize>; 2] {
    let roles: Vec<Role> = names.iter().map(|name| Role::of(name)).collect();
    if !roles.iter().any(|role| matches!(role, Role::Source | Role::Target)) {
        let changed =
            |(one, other): &(usize, usize)| one != other && is_changed_into(names[*one], names[*other]) == Some(true);
        let pairs = (0..names.len()).flat_map(|one| (0..names.len()).map(move |other| (one, other)));
        let found: Vec<(usize, usize)> = pairs.filter(changed).collect();
        // An article becomes a headline and a summary, of which the summary is the answer.
        let answers: Vec<(usize, usize)> =
            found.iter().copied().filter(|(_, target)| is_answer(names[*target])).collect();
        if let ([(source, target)], _) | (_, [(source, target)]) = (&found[..], &answers[..]) {
            return [Some(*source), Some(*target)];
        }
        if let Some([source, target]) = plainest(names, &found) {
            return [Some(source), Some(target)];
        }
    }

    let first =
        |role: Role, except: Option<usize>| (0..roles.len()).find(|at| roles[*at] == role && Some(*at) != except);
    // One of both may have a name that goes with the other one: `question` and `sql`.
    let only = |fits: &dyn Fn(usize) -> bool| {
        let mut found = (0..names.len()).filter(|at| fits(*at));
        found.next().filter(|_| found.next().is_none())
    };
    let made_of = |source: usize| only(&|at| is_changed_into(names[source], names[at]) == Some(true));
    let made_into = |target: usize| only(&|at| is_changed_into(names[at], names[target]) == Some(true));
    let target = first(Role::Target, None);
    let source = first(Role::Source, None).or_else(|| target.and_then(made_into)).or_else(|| first(Role::Text, target));
    let target = target.or_else(|| source.and_then(made_of)).or_else(|| first(Role::Text, source));
    match (source, target, names.len()) {
        (None, None, 2) => [Some(0), Some(1)],
        // The name of a text says nothing of the direction: the order in the file counts.
        (Some(one), None, 2) if roles[one] == Role::Text => [Some(0), Some(1)],
        (Some(one), None, 2) => [Some(one), Some(1 - one)],
        (None, Some(one), 2) => [Some(1 - one), Some(one)],
        _ => [source, target],
    }
}

/// Returns the source with the plainest name, if others are further forms of it with the same target: `intent`, next to `rewritten_intent`.
fn plainest(names: &[&str], found: &[(usize, usize)]) -> Option<[usize; 2]> {
    let words = |at: usize| parts_of(names[at]);
    let (source, target) = *found.iter().min_by_key(|(source, _)| words(*source).len())?;
    let is_form = |(other, made): &(usize, usize)| {
        let other = words(*other);
        *made == target && words(source).iter().all(|word| other.contains(word))
    };
    found.iter().all(is_form).then_some([source, target])
}
