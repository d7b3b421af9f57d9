//! Pairs of texts: the rows of JSONL, TSV, CSV and parallel files.

mod block;
mod by_language;
mod catalogue;
mod config;
mod divided;
mod header;
mod keyed;
mod named_texts;
mod remedy;
mod row;
mod segments;
mod table;
mod two_files;

use std::path::{Path, PathBuf};

pub(crate) use block::PairBlock;
pub(super) use by_language::ByLanguage;
pub use config::{CorpusConfig, CorpusFormat, Header};
pub(crate) use header::{are_column_names, flag, names_text, says_direction, texts_of};
pub(super) use header::{are_of_languages, is_language};
pub(super) use header::{names_columns, refuse_further_headers, refuse_lines_above, rows_above};
pub(crate) use row::{Pair, RowParser, length_problem};
pub use table::Table;
pub(super) use table::check_delimiter;

use super::RowReport;
use super::anki;
use super::block_start::BlockStart;
use super::filter::HeldOut;
use super::jq::with_other_output;
use super::origins::{Origins, names};
use super::plain_forms::PlainForm;
use super::table_lines;
use crate::error::{Error, Result};
use crate::formats::{FileFormat, LineReader, Split, find_files, is_json_lines, is_plain};

/// Stands behind flags that name a source and a target where the order in the file alone says which is which.
pub(super) const OR_REVERSED: &str = " (or the other way round)";

/// Of fewer pairs nothing is said.
const FEWEST_PAIRS: usize = 20;
/// Targets that equal their sources and are worth a warning, as a fraction.
const COPIES: f64 = 0.3;

/// A pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The text that the model reads.
    pub source: String,
    /// The text that the model learns to write.
    pub target: String,
}

/// One entry of a corpus: a file of rows, or two parallel files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorpusInput {
    /// One JSON object per line, or an array of objects.
    Jsonl(PathBuf),
    /// Records of another format.
    Records(PathBuf, FileFormat),
    /// Columns: TSV or CSV.
    Table(Table),
    /// Two text files: line n of one is the translation of line n of the other.
    Parallel(PathBuf, PathBuf),
}

impl CorpusInput {
    /// Returns the files of this entry.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::Jsonl(path) | Self::Records(path, _) | Self::Table(Table { path, .. }) => vec![path],
            Self::Parallel(source, target) => vec![source, target],
        }
    }

    /// Returns the file that reports name for a row.
    pub(crate) fn main_file(&self) -> &Path {
        match self {
            Self::Jsonl(path) | Self::Records(path, _) | Self::Table(Table { path, .. }) | Self::Parallel(path, _) => {
                path
            }
        }
    }

    /// Whether reading can begin at any of its rows: an entry that is compressed, or whose rows are not lines, is read from its beginning.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn can_start_within(&self) -> Result<bool> {
        match self {
            Self::Jsonl(path) => Ok(is_plain(path)? && is_json_lines(path)?),
            Self::Table(Table { path, delimiter: None, .. }) => is_plain(path),
            Self::Parallel(source, target) => Ok(is_plain(source)? && is_plain(target)?),
            Self::Records(..) | Self::Table(_) => Ok(false),
        }
    }

    /// Finds out the format of `entry`: the configured one, or else by the name, without `.gz` and `.zst`. Reads the first
    /// rows of a table.
    fn find(entry: &Path, config: &CorpusConfig) -> Result<Self> {
        let text = entry.to_string_lossy();
        let two = match text.split_once(',') {
            Some((a, b)) if !entry.exists() => Some((PathBuf::from(a.trim()), PathBuf::from(b.trim()))),
            _ => None,
        };
        if two.is_none()
            && let Some(format) = records_format(entry, config)
        {
            check_file(entry)?;
            return Ok(Self::Records(entry.into(), format));
        }
        let format = match config.format {
            CorpusFormat::Auto if two.is_some() => CorpusFormat::Parallel,
            CorpusFormat::Auto => format_by_name(entry)?,
            format => format,
        };

        match (format, two) {
            (CorpusFormat::Parallel, Some((source, target))) => {
                check_file(&source)?;
                check_file(&target)?;
                check_two_files(entry, [&source, &target])?;
                let marked = || segments::refusal([&source, &target]);
                if let Some(found) = PlainForm::pairs([&source, &target]).or_else(marked) {
                    return Err(Error::corpus(entry, found));
                }
                if config.format == CorpusFormat::Auto
                    && let Some(found) = two_files::refusal([&source, &target])
                {
                    return Err(Error::corpus(entry, found));
                }
                Ok(Self::Parallel(source, target))
            }
            (CorpusFormat::Parallel, None) => Err(Error::corpus(
                entry,
                "a parallel corpus is two files joined by a comma, for example `news.en,news.it`",
            )),
            (CorpusFormat::Tsv | CorpusFormat::Csv, _) => {
                check_file(entry)?;
                Table::check_languages(entry, format, config)?;
                Ok(Self::Table(Table::open(entry, format, config)?))
            }
            (CorpusFormat::Jsonl | CorpusFormat::Auto, _) => {
                check_file(entry)?;
                Ok(Self::Jsonl(entry.into()))
            }
        }
    }
}

fn check_file(file: &Path) -> Result<()> {
    let metadata = std::fs::metadata(file).map_err(Error::io(file, "opening the corpus"))?;
    if metadata.is_file() {
        return Ok(());
    }
    Err(Error::corpus(file, "is not a regular file: name text files, and for a folder the files in it"))
}

/// Refuses a file that is its own translation.
fn check_two_files(entry: &Path, files: [&Path; 2]) -> Result<()> {
    let [source, target] = files.map(|file| file.canonicalize().ok());
    if source.is_none() || source != target {
        return Ok(());
    }
    Err(Error::corpus(
        entry,
        "the source and the target are the same file: name the file with the translations behind the comma",
    ))
}

/// Returns the format of a file that is read as records: any but JSON Lines and tables, and tables whose columns go into templates.
fn records_format(entry: &Path, config: &CorpusConfig) -> Option<FileFormat> {
    let format = match config.format {
        CorpusFormat::Auto => FileFormat::by_name(entry).filter(|_| !entry.is_dir())?,
        CorpusFormat::Csv => FileFormat::CSV,
        CorpusFormat::Tsv => FileFormat::TSV,
        CorpusFormat::Jsonl | CorpusFormat::Parallel => return None,
    };
    let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
    (format != FileFormat::JSON && (!is_table || config.has_templates())).then_some(format)
}

/// Finds out the format of a single file by its name.
fn format_by_name(entry: &Path) -> Result<CorpusFormat> {
    if entry.is_dir() {
        return Err(Error::corpus(
            entry,
            "is a folder: name the files with the pairs; a folder of texts needs --task lm or --task mlm",
        ));
    }
    match FileFormat::by_name(entry) {
        Some(format) if format == FileFormat::TSV => Ok(CorpusFormat::Tsv),
        Some(format) if format == FileFormat::CSV => Ok(CorpusFormat::Csv),
        Some(_) => Ok(CorpusFormat::Jsonl),
        None => {
            LineReader::open(entry)?; // says if this is not text at all
            if let Some(command) = catalogue::command(entry) {
                return Err(Error::corpus(entry, format!("is a catalogue, and rows are wanted: {command}")));
            }

            if let Some(found) = anki::advice(entry, ["src", "trg"]) {
                return Err(Error::corpus(entry, found));
            }
            if let Some(found) = divided::advice(entry) {
                return Err(Error::corpus(entry, found));
            }
            if let Some(ending) = table_lines::ending(entry) {
                return Err(Error::corpus(
                    entry,
                    format!(
                        "its lines are the rows of a table, which its name does not tell: let its name end in .{ending}, or --set \
                         data.corpus.format={ending}"
                    ),
                ));
            }
            Err(Error::corpus(
                entry,
                "has no known ending: use .jsonl, .tsv, .csv or .parquet (.gz, .zst and .xz may follow), join two parallel files by a comma \
             (`news.en,news.it`), or set the format, for example --set data.corpus.format=tsv; plain text needs --task lm or --task mlm",
            ))
        }
    }
}

/// The files of one data set of pairs and how to read them. Rows are numbered in the order of the files.
#[derive(Debug, Clone)]
pub struct PairCorpus {
    inputs: Vec<CorpusInput>,
    config: CorpusConfig,
}

impl PairCorpus {
    /// Finds the files of every entry, those to train on of a data set, and their formats. Reads only the first rows of TSV and CSV files,
    /// which can begin with a header.
    ///
    /// # Errors
    ///
    /// If a file does not exist, if its name does not tell its format, or if its header cannot be used.
    pub fn open(entries: &[PathBuf], config: &CorpusConfig) -> Result<Self> {
        if entries.is_empty() {
            return Err(Error::Invalid(
                "no corpus files are named: name at least one .jsonl, .tsv or .csv file".into(),
            ));
        }
        // The files of a folder have their own formats.
        let entries = find_files(entries, Split::Train, config.format != CorpusFormat::Auto)?;
        let input = |e: &PathBuf| {
            CorpusInput::find(e, config).map_err(with_other_output).map_err(|error| Table::among(e, &entries, error))
        };
        let inputs = entries.iter().map(input).collect::<Result<Vec<_>>>()?;
        Ok(Self { inputs, config: config.clone() })
    }

    /// Returns the entries, in order.
    pub fn inputs(&self) -> &[CorpusInput] {
        &self.inputs
    }

    /// Returns what the user should know about how the files are read: a first row that may be a header, columns that
    /// are not used, and keys that parallel files have no use for.
    pub fn notes(&self) -> Vec<String> {
        let keys = header::keys_of_columns(&self.config);
        let of_input = |input: &CorpusInput| match (input, keys) {
            (CorpusInput::Table(table), _) => table.notes(),
            (CorpusInput::Parallel(source, target), keys) => {
                let of_keys = keyed::note([source, target]);
                let (source, target) = (source.display(), target.display());
                let of_columns = keys.map(|keys| {
                    format!(
                        "{keys} do not apply to parallel files: {source} is the source and {target} the target; for the other direction: \
                         {target},{source}"
                    )
                });
                of_columns.into_iter().chain(of_keys).collect()
            }
            _ => Vec::new(),
        };
        self.inputs.iter().flat_map(of_input).collect()
    }

    /// Says if the targets of many of the first pairs are their sources: one column, two files with the same text, or lines of numbers and times.
    pub fn note_on_copies(&self) -> Option<String> {
        let parser = RowParser::new(&self.config);
        // What is wrong with a file is said when it is read.
        let block = self.blocks().next()?.ok()?;
        let (mut n, mut n_copies) = (0_usize, 0_usize);
        for pair in block.rows(&parser).filter_map(|(_, row)| row.ok()) {
            let source = self.config.tag.as_ref().and_then(|tag| pair.source.strip_prefix(tag.as_str()));
            n += 1;
            n_copies += usize::from(source.unwrap_or(&pair.source).trim() == pair.target.trim());
        }
        (n >= FEWEST_PAIRS && n_copies as f64 > COPIES * n as f64).then(|| {
            format!(
                "warning: {n_copies} of the first {n} targets are the same as their sources: check which fields, columns or files hold \
                 the translations"
            )
        })
    }

    /// Returns how rows are read.
    pub fn config(&self) -> &CorpusConfig {
        &self.config
    }

    /// Reads every usable row, in order, and counts the others. Does not check lengths, which takes a tokenizer.
    ///
    /// # Errors
    ///
    /// If more rows are bad than `max_bad_rows` tolerates, or if no row is usable.
    pub fn read_all(&self) -> Result<(Vec<Example>, RowReport)> {
        self.read_with_origins(&mut Origins::default())
    }

    /// Does the same as [`Self::read_all`], and adds the place of each usable row to `origins`.
    ///
    /// # Errors
    ///
    /// As [`Self::read_all`].
    pub fn read_with_origins(&self, origins: &mut Origins) -> Result<(Vec<Example>, RowReport)> {
        let mut examples = Vec::new();
        let report = self.for_each_pair(&mut |path, line, pair| {
            origins.push(path, line);
            examples.push(Example { source: pair.source.into_owned(), target: pair.target.into_owned() });
            Ok(())
        })?;
        self.check(&report)?;
        Ok((examples, report))
    }

    /// Calls `each` with the file and line of every pair that can be used, and with the line of JSON by which [`HeldOut`] knows it.
    /// Returns the counts of these and of the other rows.
    ///
    /// # Errors
    ///
    /// If the text cannot be read, or if `each` fails.
    pub fn for_each_record(&self, each: &mut dyn FnMut(&Path, u64, String) -> Result<()>) -> Result<RowReport> {
        self.for_each_pair(&mut |path, line, pair| {
            each(path, line, HeldOut::record_of_pair(&pair.source, &pair.target))
        })
    }

    /// Calls `each` with the file and line of every pair that can be used, and counts these and the other rows.
    fn for_each_pair(&self, each: &mut dyn FnMut(&Path, u64, Pair<'_>) -> Result<()>) -> Result<RowReport> {
        let (parser, mut report) = (RowParser::new(&self.config), RowReport::default());
        for block in self.blocks() {
            let block = block?;
            let path = self.inputs[block.input].main_file();
            for (line, row) in block.rows(&parser) {
                match row {
                    Ok(pair) => {
                        report.add_kept(1);
                        each(path, line, pair)?;
                    }
                    Err(problem) => report.add_bad(path, line, &problem),
                }
            }
        }
        Ok(report)
    }

    /// Returns the text in blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Result<PairBlock>> + Send + '_ {
        self.blocks_from(BlockStart::default())
    }

    /// Returns the blocks from the one that begins at `start`.
    pub(crate) fn blocks_from(&self, start: BlockStart) -> impl Iterator<Item = Result<PairBlock>> + Send + '_ {
        block::PairBlocks::starting_at(&self.inputs, RowParser::new(&self.config).wanted(), start)
    }

    /// Refuses a corpus without rows, or with more bad rows than tolerated.
    pub(crate) fn check(&self, report: &RowReport) -> Result<()> {
        let name = || names(self.inputs.iter().flat_map(|input| input.files())).join(", ");
        if report.rows() == 0 {
            return Err(Error::Invalid(format!("the corpus is empty: {} has no rows", name())));
        }

        let remedy = if report.over_long * 2 > report.bad() {
            format!(
                "the longest text has {} tokens: raise data.corpus.max_source_len and data.corpus.max_target_len, at most to \
                 model.max_positions",
                report.longest
            )
        } else {
            self.remedy(report)
        };

        report.check(self.config.max_bad_rows, &name, &remedy, "data.corpus.max_bad_rows")
    }
}

#[cfg(test)]
mod tests;
