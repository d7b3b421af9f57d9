//! Labelled rows: records with texts and their classes, or words and their tags.

mod config;
mod folders;
mod missing;
mod other_field;
mod other_forms;
mod records;
mod row;
mod several;
mod stream;
mod wide_rows;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

pub use config::LabelConfig;
use row::{Label, read_of, read_row};
pub use row::{Labelled, LabelledInput};
pub(crate) use stream::LabelledRecord;
pub use stream::{Classes, LabelledText};

use super::filter::{RowFilter, repeated, row_hash};
use super::jq::{self, path_in_jq};
use super::json::{JsonFields, first_rows};
use super::merged;
use super::origins;
use super::pairs::flag;
use super::report::RowReport;
use super::text::Task;
use crate::error::{Error, Result};
use crate::formats::{CsvRows, FileFormat, Place, RowProblem, Split, Wanted, find_files};

/// Said of a label that is none of the classes.
const OTHER_CLASS: &str = "is not one of the classes";
/// What fastText puts in front of a class.
const FAST_TEXT: &str = "__label__";
/// The most classes. More are texts rather than labels.
const MOST_CLASSES: usize = 1 << 16;

/// The labelled rows of some files, in memory.
#[derive(Debug)]
pub struct LabelledCorpus {
    rows: Vec<Labelled>,
    names: Vec<String>,
    report: RowReport,
    /// Labels are numbers that stand for names.
    numbered: bool,
}

impl LabelledCorpus {
    /// Returns the labels of `line`, a JSON object, as it has them. `None` if it is not a row that can be used.
    pub fn labels_of(line: &str, task: Task, config: &LabelConfig) -> Option<Vec<String>> {
        let row = read_row(line.as_bytes(), task, config).ok()?;
        Some(row.labels().iter().map(|label| label.name().to_owned()).collect())
    }

    /// Returns what the model reads of `line`, a JSON object, without its labels. `None` if it is not a row that can be used.
    pub fn input_of(line: &str, task: Task, config: &LabelConfig) -> Option<String> {
        let row = read_row(line.as_bytes(), task, config).ok()?;
        Some(read_of(&row))
    }

    /// Returns the two texts of one of the first rows of `files`; `None` if they have one text each, or cannot be read.
    pub fn first_pair(files: &[PathBuf], config: &LabelConfig) -> Option<[String; 2]> {
        let files = find_files(files, Split::Train, false).ok()?;
        let path = files.first().filter(|path| path.is_file())?;
        let rows = first_rows(path, FileFormat::by_name(path).unwrap_or(FileFormat::JSON)).rows;
        let lines = rows.into_iter().map(|row| serde_json::Value::Object(row).to_string());
        let mut inputs = lines.filter_map(|line| LabelledInput::from_json(&line, Task::Classification, config).ok());
        inputs.find_map(|input| match input {
            LabelledInput::Text { text, pair: Some(pair) } if !pair.trim().is_empty() => Some([text, pair]),
            _ => None,
        })
    }

    /// Reads all rows of files for [`Task::Classification`] or [`Task::Tagging`]. The ending of a file's name tells its format; without a
    /// known one it is JSONL. Text files may be compressed with gzip, zstd or xz. Without `config.names`, the names of the classes are the labels of the rows, sorted.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, if too many rows are bad, if there are fewer than two classes or far too many, or if the
    /// settings are invalid.
    pub fn read(files: &[PathBuf], task: Task, config: &LabelConfig) -> Result<Self> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(Error::Invalid(problems.join("\n")));
        }

        let mut report = RowReport::default();
        let mut found = Vec::new();
        folders::check_entries(files, config)?;
        let files = find_files(files, Split::Train, false)?;
        let mut seen = HashSet::new();
        for path in &files {
            read_file(path, task, config, &mut report, &mut seen, &mut |line, row| {
                found.push((path.as_path(), line, row));
            })?;
        }
        let names = match config.names.as_slice() {
            [] => names_of(found.iter().flat_map(|(_, _, row)| row.labels()))?,
            names => names.to_vec(),
        };

        let ids: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
        let mut rows = Vec::with_capacity(found.len());
        let mut has_numbers = false;
        for (path, line, row) in found {
            let is_number = |label: &Label| label.number().is_some() && id_by_name(label, &ids).is_none();
            has_numbers |= are_words(&names) && row.labels().iter().any(is_number);
            match row.with_ids(|label| id_of(label, &ids, &names)) {
                Ok(row) => rows.push(row),
                Err(problem) => report.add_bad(path, line, &problem),
            }
        }
        report.add_kept(rows.len() as u64);
        check(&report, files.iter().map(PathBuf::as_path), task, config)?;
        let numbered = has_numbers && !rows.is_empty();
        Ok(Self { rows, names, report, numbered })
    }

    /// The rows.
    pub fn rows(&self) -> &[Labelled] {
        &self.rows
    }

    /// The names of the classes or tags, in the order of their ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the classes with the number of labels of each.
    pub fn classes(&self) -> Classes {
        let mut counts = vec![0; self.names.len()];
        self.rows.iter().flat_map(|row| &row.labels).for_each(|label| counts[*label as usize] += 1);
        let n_rows = self.rows.len() as u64;
        Classes { names: self.names.clone(), counts, n_rows, numbered: self.numbered }
    }

    /// Counts the rows whose texts `other` has, too, whatever their labels.
    pub fn n_shared_with(&self, other: &Self) -> u64 {
        let hash = |row: &Labelled| row_hash(row.input.texts().iter().map(String::as_str));
        let others: HashSet<u128> = other.rows.iter().map(hash).collect();
        self.rows.iter().filter(|row| others.contains(&hash(row))).count() as u64
    }

    /// Counts the rows that repeat an earlier one, and those that repeat its text with another label.
    pub fn n_repeated(&self) -> (u64, u64) {
        let mut seen: HashMap<u128, HashSet<&[u32]>> = HashMap::new();
        let (mut n_repeated, mut n_other) = (0, 0);
        for row in &self.rows {
            let labels = seen.entry(row_hash(row.input.texts().iter().map(String::as_str))).or_default();
            let is_first = labels.is_empty();
            match labels.insert(&row.labels) {
                false => n_repeated += 1,
                true => n_other += u64::from(!is_first),
            }
        }
        (n_repeated, n_other)
    }

    /// Counts of kept and bad rows.
    pub fn report(&self) -> &RowReport {
        &self.report
    }

    /// Returns all texts, to train a vocabulary on them: of tagged words, joined by spaces.
    pub fn texts(&self) -> Vec<String> {
        self.rows.iter().flat_map(|row| row.input.texts()).collect()
    }
}

/// Refuses rows of which too many cannot be used, and says what to do.
fn check<'a>(
    report: &RowReport,
    files: impl Iterator<Item = &'a Path> + Clone,
    task: Task,
    config: &LabelConfig,
) -> Result<()> {
    let name = || origins::names(files.clone()).join(", ");
    // The first bad row decides where files have several formats.
    let format = report.shown.first().and_then(|row| FileFormat::by_name(&row.file));
    let mut remedy = remedy(task, format.unwrap_or(FileFormat::JSON), config);
    let of_table = |file: &Path| merged_labels(file, config).or_else(|| wide_rows::advice(file, config));
    if let Some(found) = report.shown.first().and_then(|row| of_table(&row.file)) {
        remedy = found.into();
    }
    if let Some(row) = report.shown.iter().find(|row| row.problem.ends_with(RowProblem::NUMBERED)) {
        remedy = format!("{remedy}{}", counted_from_zero(&row.file, task, config)).into();
    }
    if report.shown.iter().any(|row| row.problem.contains(OTHER_CLASS)) {
        let task = if task == Task::Tagging { "tagging" } else { "classification" };
        remedy = format!("{remedy}; with --from, --task {task} gives the model a new head for the classes of the rows")
            .into();
    }
    report.check(config.max_bad_rows, &name, &remedy, "data.labels.max_bad_rows")
}

/// Says how labels that are counted from 1 become numbers of the classes.
fn counted_from_zero(file: &Path, task: Task, config: &LabelConfig) -> String {
    let field = &config.label_field;
    let format = FileFormat::by_name(file).filter(|_| task != Task::Tagging && !field.contains('{'));
    let Some(format) = format else { return String::new() };
    let path = path_in_jq(&field.split('.').map(str::to_owned).collect::<Vec<_>>());
    let program = format!("{path} = (({path} | tonumber? | . - 1) // {path})");
    format!("; if labels are counted from 1: {}, and read rows.jsonl", jq::command(file, format, &program))
}

/// Says how blank labels below filled ones are filled, in a table.
fn merged_labels(file: &Path, config: &LabelConfig) -> Option<String> {
    let is_table = FileFormat::by_name(file).is_some_and(|format| [FileFormat::CSV, FileFormat::TSV].contains(&format));
    let (_, rows) = CsvRows::first_rows_by_name(file).ok().filter(|_| is_table)?;
    let column = rows.first()?.iter().position(|name| name.trim() == config.label_field)?;
    merged::advice(file, column)
}

/// Says what a row of a file in this format looks like.
fn remedy(task: Task, format: FileFormat, config: &LabelConfig) -> Cow<'static, str> {
    if task == Task::Tagging && format.has_tags() {
        return of_columns(config);
    }

    let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
    let text = match task {
        Task::Tagging if is_table => {
            "each row has words and as many tags, divided by spaces: fix the rows, or name other columns (data.labels.words_field, \
             data.labels.tags_field)"
        }
        Task::Tagging => {
            "each line is an object with words and as many tags, such as {\"tokens\": [\"Rome\"], \"tags\": [\"place\"]}: fix the rows, \
             name other fields (data.labels.words_field, data.labels.tags_field), or let names of CoNLL files end in .conll, or .conllu if they have \
             ten columns"
        }
        _ if is_table => {
            "each row has a text and its class in two columns: fix the rows, or name other columns (data.labels.text_field, \
             data.labels.label_field)"
        }
        _ => {
            "each line is an object with a text and its class, such as {\"text\": \"...\", \"label\": \"good\"}: fix the rows, or name other \
             fields (data.labels.text_field, data.labels.label_field)"
        }
    };
    text.into()
}

/// Says what the columns of a CoNLL file are, and which settings read them.
fn of_columns(config: &LabelConfig) -> Cow<'static, str> {
    let of_words = ("data.labels.words_field", &config.words_field, "tokens");
    let others = [of_words, ("data.labels.tags_field", &config.tags_field, "tags")].into_iter();
    // A column may also be named by its number.
    let others = others.filter(|(_, now, usual)| now != usual && now.parse::<usize>().is_err());
    let flags: Vec<String> = others.map(|(key, _, usual)| flag(key, usual)).collect();
    match flags.as_slice() {
        [] => "each line has a word and its tag, divided by tabs or spaces, and blank lines divide sentences: fix the rows".into(),
        flags => format!("the columns of CoNLL files are called tokens and tags: read them with {}", flags.join(" ")).into(),
    }
}

/// Reads the rows of a file, and counts bad ones.
fn read_file(
    path: &Path,
    task: Task,
    config: &LabelConfig,
    report: &mut RowReport,
    seen: &mut HashSet<u128>,
    each: &mut dyn FnMut(u64, row::Unresolved),
) -> Result<()> {
    other_forms::check_form(path, task, config)?;
    let format = FileFormat::by_name(path).unwrap_or(FileFormat::JSON);
    let mut records = format.open(path, &wanted(task, config))?;
    let mut json = Vec::new();

    while let Some(Place { line, problem, .. }) = records.next(&mut json)? {
        if problem.is_some() || !json.trim_ascii().is_empty() {
            let row = problem.map_or_else(|| read_row(&json, task, config), Err);
            let row = row.and_then(|row| wanted_by(config.filter.as_deref(), row, seen));
            match row {
                Ok(row) => each(line, with_numbers(row, format)),
                Err(problem) => report.add_bad(path, line, &problem),
            }
        }
        json.clear();
    }
    Ok(())
}

/// Lets labels that are texts of digits stand for numbers where a format has no numbers.
fn with_numbers(row: row::Unresolved, format: FileFormat) -> row::Unresolved {
    if format.is_all_text() { row.with_numbers() } else { row }
}

/// Lets a filter judge a row. `seen` has the hashes of the rows before it.
fn wanted_by(
    filter: Option<&RowFilter>,
    row: row::Unresolved,
    seen: &mut HashSet<u128>,
) -> std::result::Result<row::Unresolved, RowProblem> {
    let Some(filter) = filter else { return Ok(row) };
    let texts = row.texts();
    filter.check_text(&texts.join("\n"))?;
    let labels = row.labels().iter().map(Label::name);
    let is_repeated = || !seen.insert(row_hash(texts.iter().map(String::as_str).chain([""]).chain(labels)));
    if filter.drops_duplicates() && is_repeated() { Err(repeated()) } else { Ok(row) }
}

/// Returns the fields of a record that a row of `task` is made of.
fn wanted(task: Task, config: &LabelConfig) -> Wanted {
    if task == Task::Tagging {
        let fields = vec![config.words_field.clone(), config.tags_field.clone()];
        return Wanted { fields: Some(fields.clone()), lists: fields, ..Wanted::all() };
    }
    let texts = JsonFields::new([config.text_field.clone(), config.pair_field.clone()]).wanted();
    let fields = texts.fields.map(|fields| fields.into_iter().chain([config.label_field.clone()]).collect());
    Wanted { fields, optional: vec![config.pair_field.clone()], ..Wanted::all() }
}

/// Sorts the labels of the rows: numbers by value, if all are numbers, else names by their characters.
fn names_of<'a>(labels: impl Iterator<Item = &'a Label>) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for label in labels {
        if !names.contains(label.name()) {
            names.insert(label.name().to_owned());
        }
        if names.len() > MOST_CLASSES {
            return Err(Error::Invalid(format!(
                "the rows have more than {MOST_CLASSES} different labels: data.labels.label_field or data.labels.tags_field \
                 names a field with something else"
            )));
        }
    }

    // One class in two spellings, of two programs or columns.
    let is_one = |name: &String| whole(name).is_some_and(|whole| names.contains(whole));
    let has_both = names.iter().any(is_one);
    let mut names: Vec<String> = match has_both {
        true => names.iter().map(|name| whole(name).unwrap_or(name).to_owned()).collect::<BTreeSet<_>>(),
        false => names,
    }
    .into_iter()
    .collect();
    if let Ok(numbers) = names.iter().map(|name| name.parse()).collect::<std::result::Result<Vec<f64>, _>>() {
        let mut numbered: Vec<(f64, String)> = numbers.into_iter().zip(names).collect();
        numbered.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
        names = numbered.into_iter().map(|(_, name)| name).collect();
    }
    match names.as_slice() {
        [only] => Err(Error::Invalid(format!(
            "all rows have the label {only:?}: there is nothing to learn from one class; add rows of other classes, or name \
             all classes in data.labels.names{}",
            if only == "O" {
                "; tags in another column of CoNLL files have its number: data.labels.tags_field=2"
            } else {
                ""
            }
        ))),
        // Without names, bad rows are reported first.
        _ => Ok(names),
    }
}

/// Whether numbers stand for ids of classes: no class has a number as its name.
fn are_words(names: &[String]) -> bool {
    names.iter().all(|name| name.parse::<f64>().is_err())
}

/// Returns the digits of a whole number with a point, such as `5.0`.
fn whole(name: &str) -> Option<&str> {
    name.strip_suffix(".0").filter(|digits| digits.parse::<i64>().is_ok())
}

/// Returns the other spelling of a whole number: `5` for `5.0`, and the other way round.
fn other_spelling(name: &str) -> Option<String> {
    let with_point = || name.parse::<i64>().is_ok().then(|| format!("{name}.0"));
    whole(name).map(str::to_owned).or_else(with_point)
}

/// Returns the id of a label by its name, or by another spelling: `5` and `5.0`, `true` and `True`.
fn id_by_name(label: &Label, ids: &HashMap<&str, u32>) -> Option<u32> {
    let boolean = || ["true", "false"].into_iter().find(|name| label.name().eq_ignore_ascii_case(name));
    let other = || ids.get(other_spelling(label.name())?.as_str());
    ids.get(label.name()).or_else(other).or_else(|| ids.get(boolean()?)).copied()
}

/// Returns the id of a label: by its name, or of a number where all names are words.
fn id_of(label: &Label, ids: &HashMap<&str, u32>, names: &[String]) -> std::result::Result<u32, RowProblem> {
    if let Some(id) = id_by_name(label, ids) {
        return Ok(id);
    }
    if let Some(id) = label.number().filter(|id| (*id as usize) < names.len() && are_words(names)) {
        return Ok(id);
    }
    let known = names.iter().take(8).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = if names.len() > 8 { format!(" and {} more", names.len() - 8) } else { String::new() };
    let counted = if label.number().is_some() && are_words(names) { RowProblem::NUMBERED } else { "" };
    Err(RowProblem::Malformed(format!("label {:?} {OTHER_CLASS} {known}{more}{counted}", label.name())))
}

#[cfg(test)]
mod tests;
