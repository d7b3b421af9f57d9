//! Reads and changes TOML tables by dotted keys, such as `optim.lr`.

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// Collects every key of `table` that holds a value, in dotted form.
pub(super) fn leaves(table: &Table, prefix: &str, out: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            Value::Table(table) => leaves(table, &format!("{key}."), out),
            value => out.push((key, value.clone())),
        }
    }
}

/// Collects the byte offset of every key and section, in dotted form.
pub(super) fn key_offsets(table: &DeTable<'_>, prefix: &str, out: &mut Vec<(String, usize)>) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        if let DeValue::Table(table) = value.get_ref() {
            key_offsets(table, &format!("{name}."), out);
        }
        out.push((name, key.span().start));
    }
}

pub(in crate::config) fn lookup<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let (section, last) = match key.rsplit_once('.') {
        Some((section, last)) => (lookup(table, section)?.as_table()?, last),
        None => (table, key),
    };
    section.get(last)
}

/// As [`lookup`], to change the value.
pub(super) fn lookup_mut<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Value> {
    match key.split_once('.') {
        Some((section, rest)) => lookup_mut(table.get_mut(section)?.as_table_mut()?, rest),
        None => table.get_mut(key),
    }
}

/// Sets a dotted key. Creates missing sections and replaces values where a section is needed.
pub(super) fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.into(), value);
        }
        Some((section, rest)) => {
            let entry = table.entry(section).or_insert_with(|| Table::new().into());
            if !entry.is_table() {
                *entry = Table::new().into();
            }
            insert(entry.as_table_mut().expect("made a table above"), rest, value);
        }
    }
}

/// Removes a dotted key and returns its value, or `None` if it was absent.
pub(super) fn remove(table: &mut Table, key: &str) -> Option<Value> {
    match key.split_once('.') {
        Some((section, rest)) => remove(table.get_mut(section)?.as_table_mut()?, rest),
        None => table.remove(key),
    }
}
