//! Filters: usable rows that are not wanted. A dropped row is counted under the key that dropped it, and the first of each key
//! is shown.
//!
//! A row is judged alone, wherever it is parsed, so the result does not depend on the number of threads. The keys are asked in one
//! order: lengths, ratio, identity, scripts, regular expressions. Duplicates come last, since they are found in the order of
//! the files: [`RowFilter::drops_duplicates`] leaves them to the cache.

mod config;
mod held_out;
mod script;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use config::{FilterConfig, FilteredRows, LengthUnit};
pub use held_out::HeldOut;
pub(crate) use held_out::record_of_json;
use regex::Regex;
use script::Script;

use crate::error::{Error, Result};
use crate::formats::RowProblem;

/// Characters of a text that an example shows.
const SHOWN: usize = 60;

/// The key under which repeated rows are counted.
const DUPLICATES: &str = "drop_duplicates";

/// A filter that is ready to judge rows.
#[derive(Debug)]
pub struct RowFilter {
    config: FilterConfig,
    held_out: Option<Arc<HeldOut>>,
    script: Option<Script>,
    source_script: Option<Script>,
    target_script: Option<Script>,
    drop_regex: Option<Regex>,
    keep_regex: Option<Regex>,
}

/// Filters are equal if their settings are.
impl PartialEq for RowFilter {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config && self.held_out == other.held_out
    }
}

impl RowFilter {
    /// Prepares a filter for `rows`, of which some may be held out; `None` if every row passes.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or does not suit the rows.
    pub fn new(
        config: &FilterConfig,
        held_out: Option<&Arc<HeldOut>>,
        rows: FilteredRows,
    ) -> Result<Option<Arc<Self>>> {
        let problems = config.validate("data.filter.", rows);
        if !problems.is_empty() {
            return Err(Error::Invalid(problems.join("\n")));
        }
        if config.is_empty() && held_out.is_none() {
            return Ok(None);
        }

        let script = |names: &[String]| Script::of(names).map_err(Error::Invalid);
        let regex = |pattern: &str| match pattern {
            "" => Ok(None),
            pattern => Regex::new(pattern).map(Some).map_err(|error| Error::Invalid(error.to_string())),
        };
        Ok(Some(Arc::new(Self {
            script: script(&config.script)?,
            source_script: script(&config.source_script)?,
            target_script: script(&config.target_script)?,
            drop_regex: regex(&config.drop_regex)?,
            keep_regex: regex(&config.keep_regex)?,
            config: config.clone(),
            held_out: held_out.cloned(),
        })))
    }

    /// Whether rows that repeat an earlier one are dropped.
    pub fn drops_duplicates(&self) -> bool {
        self.config.drop_duplicates
    }

    /// Whether it judges rows by what they say, not only by their hash.
    pub(crate) fn judges_texts(&self) -> bool {
        !self.config.is_empty()
    }

    /// Describes which rows pass, for fingerprints: equal descriptions keep equal rows. Names only the keys that are set, so that
    /// further keys leave it as it is.
    pub fn mark(&self) -> String {
        self.with_mark_of_held_out(mark_of(&self.config))
    }

    fn with_mark_of_held_out(&self, mark: String) -> String {
        self.held_out.as_ref().map_or(mark.clone(), |held_out| format!("{mark} without {}", held_out.mark()))
    }

    /// Describes which texts pass, as [`Self::mark`] does, repeated ones included; empty if all of them do.
    pub fn mark_of_texts(&self) -> String {
        let config = FilterConfig { drop_duplicates: false, ..self.config.clone() };
        self.with_mark_of_held_out(if config.is_empty() { String::new() } else { mark_of(&config) })
    }

    /// Refuses a row that is for validation. `record` is the line of JSON that says the same as the row.
    pub(crate) fn check_record(&self, record: impl FnOnce() -> String) -> Result<(), RowProblem> {
        match &self.held_out {
            Some(held_out) if held_out.has(HeldOut::hash(&record())) => Err(RowProblem::HeldOut),
            _ => Ok(()),
        }
    }

    /// Judges a pair.
    pub(crate) fn check_pair(&self, source: &str, target: &str) -> Result<(), RowProblem> {
        let sides = [("source", source, &self.source_script), ("target", target, &self.target_script)];
        let unit = self.config.length_unit;
        for (side, text, _) in sides {
            self.check_length(&format_args!("the {side}"), text)?;
        }
        if self.config.max_length_ratio > 0.0 {
            let (short, long) = sorted(unit.length(source), unit.length(target));
            if long as f64 > self.config.max_length_ratio * short as f64 {
                let lengths =
                    format!("{} and {}", unit.counted(unit.length(source)), unit.counted(unit.length(target)));
                let found = format!("the sides have {lengths}: {} and {}", excerpt(source), excerpt(target));
                return Err(dropped("max_length_ratio", found));
            }
        }
        if self.config.drop_identical && source.trim() == target.trim() {
            return Err(dropped("drop_identical", format!("both sides are {}", excerpt(source))));
        }

        for (side, text, script) in sides {
            let key = if side == "source" { "source_script" } else { "target_script" };
            self.check_script(key, &format_args!("of the {side}"), script.as_ref(), text)?;
        }
        sides.into_iter().try_for_each(|(side, text, _)| self.check_regex(&format_args!("the {side}"), text))
    }

    /// Judges a row of one text.
    pub(crate) fn check_text(&self, text: &str) -> Result<(), RowProblem> {
        self.check_length(&"the text", text)?;
        self.check_script("script", &"of the text", self.script.as_ref(), text)?;
        self.check_regex(&"the text", text)
    }

    fn check_length(&self, what: &dyn std::fmt::Display, text: &str) -> Result<(), RowProblem> {
        let FilterConfig { length_unit: unit, min_length, max_length, .. } = self.config;
        if min_length == 0 && max_length == 0 {
            return Ok(());
        }
        let length = unit.length(text);
        let found = || format!("{what} has {}: {}", unit.counted(length), excerpt(text));
        if length < min_length {
            return Err(dropped("min_length", found()));
        }
        if max_length > 0 && length > max_length {
            return Err(dropped("max_length", found()));
        }
        Ok(())
    }

    fn check_script(
        &self,
        key: &'static str,
        what: &dyn std::fmt::Display,
        script: Option<&Script>,
        text: &str,
    ) -> Result<(), RowProblem> {
        let share = script.and_then(|script| script.share_in(text));
        match share.filter(|share| *share < self.config.min_script_share) {
            Some(share) => {
                let found =
                    format!("{:.0} % of the letters {what} are in the script: {}", 100.0 * share, excerpt(text));
                Err(dropped(key, found))
            }
            None => Ok(()),
        }
    }

    fn check_regex(&self, what: &dyn std::fmt::Display, text: &str) -> Result<(), RowProblem> {
        if let Some(found) = self.drop_regex.as_ref().and_then(|regex| regex.find(text)) {
            let found = format!("{what} has {}: {}", excerpt(found.as_str()), excerpt(text));
            return Err(dropped("drop_regex", found));
        }
        match &self.keep_regex {
            Some(regex) if !regex.is_match(text) => {
                Err(dropped("keep_regex", format!("{what} has no match: {}", excerpt(text))))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the keys that are set, as JSON.
fn mark_of(config: &FilterConfig) -> String {
    let of = |config: &FilterConfig| serde_json::to_value(config).expect("plain values");
    let (serde_json::Value::Object(mut set), usual) = (of(config), of(&FilterConfig::default())) else {
        unreachable!("a struct is an object")
    };
    set.retain(|key, value| usual[key.as_str()] != *value);
    serde_json::Value::Object(set).to_string()
}

/// Says that a row repeats an earlier one.
pub(crate) fn repeated() -> RowProblem {
    dropped(DUPLICATES, "the row repeats an earlier one".into())
}

/// Returns a hash of the texts of a row. Two rows with one hash are taken to be equal.
pub(crate) fn row_hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> u128 {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    let [half, _] = bytemuck::cast::<[u8; 32], [[u8; 16]; 2]>(*hasher.finalize().as_bytes());
    u128::from_le_bytes(half)
}

fn dropped(filter: &'static str, found: String) -> RowProblem {
    RowProblem::Filtered { filter, found }
}

fn sorted(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// Returns the beginning of a text in quotes.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?} ..", &text[..end]),
        None => format!("{text:?}"),
    }
}
