//! `docs/configuration.md` compared with the configuration: every key, its default, nothing else.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::dotted::leaves;
use super::meant::OPTIONAL_KEYS;
use super::*;
use crate::config::reference::KeyDoc;

/// Returns every key of a section, optional ones too: the reader lists them when it meets an unknown key.
fn keys_in(section: &str) -> Vec<String> {
    let unknown = Value::Table(Table::from_iter([("no such key".to_owned(), Value::Integer(1))]));
    let sections = section.split('.').filter(|name| !name.is_empty()).rev();
    let config = sections.fold(unknown, |inner, name| Value::Table(Table::from_iter([(name.to_owned(), inner)])));
    let error = config.try_into::<Config>().expect_err("an unknown key");
    let names = error.message().split_once(", expected ").unwrap_or_else(|| panic!("{section}: {error}")).1;
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    names.split('`').skip(1).step_by(2).map(|name| format!("{prefix}{name}")).collect()
}

/// Returns every key that holds a value.
fn all_keys() -> BTreeSet<String> {
    let defaults = Table::try_from(Config::default()).expect("a configuration has string keys and plain values");
    let (mut keys, mut open) = (BTreeSet::new(), vec![String::new()]);
    while let Some(section) = open.pop() {
        for key in keys_in(&section) {
            match lookup(&defaults, &key) {
                Some(Value::Table(_)) => open.push(key),
                _ => _ = keys.insert(key),
            }
        }
    }
    keys
}

/// Returns the keys of the page's tables with their defaults.
fn page() -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    for KeyDoc { key, default, .. } in crate::config::reference::page() {
        assert!(rows.insert(key.to_owned(), default.to_owned()).is_none(), "twice on the page: {key}");
    }
    rows
}

#[test]
fn the_page_lists_every_key_and_no_other() {
    let mut wanted = all_keys();
    assert!(wanted.len() > 90 && wanted.contains("train.loss_scale.floor"), "{wanted:?}");
    wanted.insert("preset".into());
    let found: BTreeSet<String> = page().into_keys().collect();
    let missing: Vec<&String> = wanted.difference(&found).collect();
    let unknown: Vec<&String> = found.difference(&wanted).collect();
    assert!(missing.is_empty(), "docs/configuration.md lacks {missing:?}");
    assert!(unknown.is_empty(), "docs/configuration.md has keys that the configuration lacks: {unknown:?}");
}

#[test]
fn the_page_has_the_defaults_of_base() {
    let defaults = Table::try_from(Config::default()).expect("a configuration has string keys and plain values");
    for (key, cell) in page() {
        let Some(wanted) = lookup(&defaults, &key) else {
            assert_eq!(cell, "unset", "{key}");
            continue;
        };
        let found: Table = toml::from_str(&format!("value = {cell}")).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(&found["value"], wanted, "docs/configuration.md has another default of {key}");
    }
}

#[test]
fn optional_keys_are_all_known() {
    let mut known = Vec::new();
    leaves(&Table::try_from(Config::default()).expect("plain values"), "", &mut known);
    let known: BTreeSet<&str> = known.iter().map(|(key, _)| key.as_str()).chain(OPTIONAL_KEYS).collect();
    for key in all_keys() {
        assert!(known.contains(key.as_str()), "{key} is missing in OPTIONAL_KEYS");
    }
}
