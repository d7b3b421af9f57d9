//! The third stage: reads the defaults with the given values over them into a [`Config`].
//!
//! Both are merged as a TOML table. If a key cannot be read, this stage reports it with its place, puts the default there and starts
//! again. So one call finds all mistakes.

use std::collections::BTreeSet;

use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::choose::{Base, Based};
use super::dotted::{insert, leaves, lookup, lookup_mut, remove};
use super::epochs;
use super::lists::{listed, with_all_targets};
use super::mistakes::{correct_mix, explain};
use super::report::{Origin, Report};
use crate::config::Config;
use crate::config::set_keys::SetKeys;

/// A configuration, the defaults under it, and the keys that were set.
pub(super) struct Merged {
    /// `None` if the file is broken: most of its values are missing then, and other problems would follow from that.
    pub(super) config: Option<Config>,
    pub(super) defaults: Config,
    pub(super) base: Base,
    pub(super) set: SetKeys,
    pub(super) report: Report,
}

/// Reads the given values over the defaults.
pub(super) fn merge(based: Based) -> Merged {
    let Based { values, file_is_broken, defaults, base, mut report } = based;
    let config = read_over(&defaults, &values, &mut report).filter(|_| !file_is_broken);
    let set = SetKeys::new(report.origins.keys().cloned(), base == Base::Run);
    Merged { config, defaults, base, set, report }
}

/// Reads `defaults` with `values` over them, and reports each key that cannot be read. Returns `None` if the other keys cannot be read
/// either.
pub(super) fn read_over(defaults: &Config, values: &[(String, Value)], report: &mut Report) -> Option<Config> {
    let model = &defaults.model;
    let defaults = Table::try_from(defaults).expect("a configuration has string keys and plain values");
    let mut known = Vec::new();
    leaves(&defaults, "", &mut known);

    let mut table = defaults.clone();
    for (key, value) in values {
        let value = fitting(key, value.clone(), lookup(&defaults, key), report.origins.get(key));
        let value = with_all_targets(key, value, model);
        insert(&mut table, key, value);
    }

    let mut reported = BTreeSet::new();
    loop {
        let error = match serde_path_to_error::deserialize(Value::Table(table.clone())) {
            Ok(config) => return Some(config),
            Err(error) => error,
        };
        // A mistake in `data.train[0]` is reported for `data.train`.
        let keys: Vec<&str> = error.path().iter().map_while(key_of).collect();
        let key = keys.join(".");
        let problem = epochs::explain(&key, &table).unwrap_or_else(|| explain(&key, error.inner(), &known));
        let origin = report.origin(&key).cloned();
        report.problem(origin.as_ref(), problem);
        if let Some(mix) = lookup_mut(&mut table, &key)
            && correct_mix(&key, error.inner(), mix)
        {
            continue;
        }
        // The same mistake again: its path is not the path of the key, so removing the key does not help.
        if !reported.insert(key.clone()) {
            return None;
        }
        remove(&mut table, &key)?;
        // The default replaces the wrong one, so that validation does not report the key again.
        if let Some(value) = lookup(&defaults, &key) {
            insert(&mut table, &key, value.clone());
        }
    }
}

/// Returns the name of a part of a path, or `None` for an index of a list.
fn key_of(segment: &Segment) -> Option<&str> {
    match segment {
        Segment::Map { key } => Some(key),
        Segment::Enum { variant } => Some(variant),
        Segment::Seq { .. } | Segment::Unknown => None,
    }
}

/// Converts a value to the type of the preset's value: one string to a list, and digits of a `--set` to text.
fn fitting(key: &str, value: Value, before: Option<&Value>, origin: Option<&Origin>) -> Value {
    let from_command_line = origin.and_then(|origin| origin.text.strip_prefix("--set "));
    match (before, value, from_command_line) {
        (Some(Value::Array(_)), Value::String(text), _) => Value::Array(listed(key, text.into())),
        (Some(Value::String(_)), value, Some(assignment)) if !value.is_str() => {
            let text = assignment.split_once('=').map_or(assignment, |(_, text)| text);
            Value::String(text.trim().into())
        }
        // 1e3 is a number of steps, too.
        (Some(Value::Integer(_)), Value::Float(whole), _) if whole.fract() == 0.0 && whole.abs() < 1e15 => {
            Value::Integer(whole as i64)
        }
        (_, value, _) => value,
    }
}
