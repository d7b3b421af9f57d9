//! Validation rows of a text that is not copied, because the disk may have no room for it.
//!
//! One pass over the text finds the rows, and writes them to a file. Another one comes first if `data.split` is a number of rows. One more
//! comes in between if rows have classes, since each class needs a row for training. Memory has the rows for validation alone.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::files::read_file;
use kiln_data::files::replace::replace_file;
use kiln_data::{HeldOut, LabelledText, Origins, PairCorpus, RowReport, TextCorpus};

use super::{VALID, check_parts, limit_of, read_of, remedy_for_few, said};
use crate::config::Config;
use crate::config::task::{Reads, traits_of};

/// Says which rows are for validation.
const HELD_OUT: &str = "split.held-out.json";

/// A usable row.
struct Row<'a> {
    file: &'a Path,
    line: u64,
    /// `None` for a document that is read in parts, and stays for training.
    json: Option<String>,
    labels: Vec<String>,
}

/// Reads which rows are for validation. Returns `None` if it is not known.
pub(super) fn read(cache_dir: &Path) -> Option<HeldOut> {
    let (below, kept): (u64, BTreeSet<u64>) =
        serde_json::from_slice(&read_file(&cache_dir.join(HELD_OUT)).ok()?).ok()?;
    cache_dir.join(VALID).is_file().then_some(HeldOut { below, kept })
}

/// Finds the rows for validation and writes them to a file in `cache_dir`.
pub(super) fn divide(config: &Config, cache_dir: &Path, note: &mut dyn FnMut(&str)) -> Result<HeldOut> {
    let split = config.data.split;
    let below = if split < 1.0 { limit_of(split) } else { limit_of_number(config, split as usize)? };
    let kept = match traits_of(config.task).classes {
        Some(_) => kept_for_classes(config, below)?,
        None => BTreeSet::new(),
    };
    let held_out = HeldOut { below, kept };

    let (mut lines, mut origins) = (String::new(), Origins::default());
    let (mut n, mut n_valid, mut n_kept, mut n_in_parts) = (0, 0, 0, 0_usize);
    let report = for_each(config, &mut |row| {
        n += 1;
        let Some(json) = row.json else {
            n_in_parts += 1;
            return;
        };
        let hash = hash(config, &json);
        n_kept += usize::from(held_out.kept.contains(&hash));
        if held_out.has(hash) {
            n_valid += 1;
            lines += &json;
            lines.push('\n');
            origins.push(row.file, row.line);
        }
    })?;
    check_parts(split, [n - n_valid, n_valid], !held_out.kept.is_empty(), || remedy_for_few(config))?;

    let path = cache_dir.join(VALID);
    replace_file(&path, lines.as_bytes())?;
    replace_file(&Origins::path_of(&path), origins.list(0..n_valid).as_bytes())?;
    let json = serde_json::to_vec(&(held_out.below, &held_out.kept)).context("plain numbers")?;
    replace_file(&cache_dir.join(HELD_OUT), &json)?;
    said(split, [n - n_valid, n_valid], n_kept).iter().for_each(|line| note(line));
    if n_in_parts > 0 {
        note(&format!("data.split: {n_in_parts} documents of more than 1 MiB stay for training"));
    }
    if report.bad() > 0 {
        note(&report.to_string());
    }
    Ok(held_out)
}

/// Calls `each` with every usable row of the training text.
fn for_each(config: &Config, each: &mut dyn FnMut(Row<'_>)) -> Result<RowReport> {
    let (data, traits) = (&config.data, traits_of(config.task));
    let mut read = || match traits.reads {
        Reads::Pairs => PairCorpus::open(&data.train, &data.corpus)?.for_each_record(&mut |file, line, json| {
            each(Row { file, line, json: Some(json), labels: Vec::new() });
            Ok(())
        }),
        Reads::Text if traits.classes.is_some() => {
            let text = LabelledText::open(&data.train, config.task, &data.labels)?;
            text.for_each_record(&mut |file, line, json, labels| {
                each(Row { file, line, json: Some(json), labels });
                Ok(())
            })
        }
        Reads::Text => TextCorpus::open(&data.train, &data.text)?.for_each_record(&mut |file, line, json| {
            each(Row { file, line, json, labels: Vec::new() });
            Ok(())
        }),
    };
    read().context("data.train")
}

/// Returns the hash of what the model reads of a row.
fn hash(config: &Config, json: &str) -> u64 {
    read_of(config, json).map_or_else(|| HeldOut::hash(json), |read| HeldOut::hash(&read))
}

/// Returns the hash below which `n` rows are, or a few more or less where copies of a row share one.
fn limit_of_number(config: &Config, n: usize) -> Result<u64> {
    // The smallest hashes, one more than wanted.
    let mut smallest = BinaryHeap::with_capacity(n + 2);
    for_each(config, &mut |row| {
        if let Some(json) = row.json {
            smallest.push(hash(config, &json));
            if smallest.len() > n + 1 {
                smallest.pop();
            }
        }
    })?;
    Ok(if smallest.len() > n { smallest.peek().copied().unwrap_or(u64::MAX) } else { u64::MAX })
}

/// Returns the hashes of rows that stay for training although they are below the limit: the largest hash of each class that has no row
/// above it.
fn kept_for_classes(config: &Config, below: u64) -> Result<BTreeSet<u64>> {
    let (mut learned, mut largest) = (HashSet::new(), BTreeMap::<String, u64>::new());
    for_each(config, &mut |row| {
        let hash = row.json.as_deref().map_or(u64::MAX, |json| hash(config, json));
        for label in row.labels {
            if hash >= below {
                learned.insert(label);
            } else {
                let known = largest.entry(label).or_default();
                *known = (*known).max(hash);
            }
        }
    })?;
    Ok(largest.into_iter().filter(|(label, _)| !learned.contains(label)).map(|(_, hash)| hash).collect())
}
