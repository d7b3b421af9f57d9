//! One row of text: a pair, or the reason why it cannot be used.

use std::borrow::Cow;
use std::sync::Arc;

use super::CorpusConfig;
use super::header::Columns;
use crate::corpus::filter::{HeldOut, RowFilter};
use crate::corpus::json::JsonFields;
use crate::formats::{OPEN_QUOTE, RowProblem, Wanted, Width, way_to_utf8};

/// The two texts of a row, borrowed from its line where it has no JSON escapes.
#[derive(Debug, PartialEq)]
pub(crate) struct Pair<'a> {
    pub(crate) source: Cow<'a, str>,
    pub(crate) target: Cow<'a, str>,
}

/// Returns why a pair of so many tokens (eos included) cannot be used, if it cannot.
pub(crate) fn length_problem(source_tokens: usize, target_tokens: usize, config: &CorpusConfig) -> Option<RowProblem> {
    let sides = [("source", source_tokens, config.max_source_len), ("target", target_tokens, config.max_target_len)];
    for (side, tokens, max) in sides {
        if tokens == 1 {
            return Some(RowProblem::Malformed(format!("the {side} has no tokens after normalization")));
        }
        if max != 0 && tokens > max {
            let found = format!("the {side} has {tokens} tokens, {max} are allowed");
            return Some(RowProblem::OverLong(found, source_tokens.max(target_tokens) as u64));
        }
    }
    None
}

/// Parses rows as the configuration says.
#[derive(Debug, Clone)]
pub(crate) struct RowParser {
    fields: JsonFields<2>,
    tag: Option<String>,
    filter: Option<Arc<RowFilter>>,
}

impl RowParser {
    pub(crate) fn new(config: &CorpusConfig) -> Self {
        let fields = JsonFields::new([config.source_field.clone(), config.target_field.clone()]);
        Self { fields, tag: config.tag.clone(), filter: config.filter.clone() }
    }

    /// Returns the fields that the parser reads of a record.
    pub(crate) fn wanted(&self) -> Wanted {
        self.fields.wanted()
    }

    pub(crate) fn parse_jsonl<'a>(&self, line: &'a [u8]) -> Result<Pair<'a>, RowProblem> {
        let line = utf8(line)?;
        if line.trim_ascii().is_empty() {
            return Err(RowProblem::Empty);
        }
        let [source, target] = self.fields.parse(line)?;
        self.pair(source, target)
    }

    /// Parses a row between tabs, which is `width` columns wide if a header says so.
    pub(crate) fn parse_tsv<'a>(
        &self,
        line: &'a [u8],
        columns: Columns,
        width: Option<Width>,
    ) -> Result<Pair<'a>, RowProblem> {
        let line = utf8(line)?;
        if line.trim_ascii().is_empty() {
            return Err(RowProblem::Empty);
        }
        let column = |number: usize| {
            let n_columns = line.split('\t').count();
            let no_column = || match line.matches('"').count() % 2 {
                0 => RowProblem::no_column(number, n_columns, "tab-separated columns"),
                _ => RowProblem::no_column(number, n_columns, &format!("tab-separated columns and {OPEN_QUOTE}")),
            };
            line.split('\t').nth(number).ok_or_else(no_column)
        };
        let (source, target) = (column(columns.source)?, column(columns.target)?);
        match width.and_then(|width| width.problem(line.split('\t'))) {
            Some(problem) => Err(problem),
            None => self.pair(source.into(), target.into()),
        }
    }

    /// Pairs two texts, judges the pair, and puts the tag in front of the source.
    fn pair<'a>(&self, source: Cow<'a, str>, target: Cow<'a, str>) -> Result<Pair<'a>, RowProblem> {
        let pair = pair(source, target)?;
        if let Some(filter) = &self.filter {
            filter.check_record(|| HeldOut::record_of_pair(&pair.source, &pair.target))?;
            filter.check_pair(&pair.source, &pair.target)?;
        }
        Ok(match &self.tag {
            Some(tag) => Pair { source: format!("{tag} {}", pair.source).into(), ..pair },
            None => pair,
        })
    }

    /// Pairs two texts that are already apart.
    pub(crate) fn parse_sides<'a>(&self, source: &'a [u8], target: &'a [u8]) -> Result<Pair<'a>, RowProblem> {
        self.pair(utf8(source)?.into(), utf8(target)?.into())
    }
}

pub(super) fn utf8(line: &[u8]) -> Result<&str, RowProblem> {
    std::str::from_utf8(line).map_err(|e| {
        let at = e.valid_up_to();
        RowProblem::Malformed(format!(
            "byte {} of the line is 0x{:02x}, not valid UTF-8: {}",
            at + 1,
            line[at],
            way_to_utf8(line)
        ))
    })
}

fn pair<'a>(source: Cow<'a, str>, target: Cow<'a, str>) -> Result<Pair<'a>, RowProblem> {
    match (source.trim().is_empty(), target.trim().is_empty()) {
        (false, false) => Ok(Pair { source, target }),
        (true, true) => Err(RowProblem::Empty),
        (true, false) => Err(RowProblem::OneSided("source")),
        (false, true) => Err(RowProblem::OneSided("target")),
    }
}
