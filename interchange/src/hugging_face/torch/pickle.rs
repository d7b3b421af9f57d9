//! What a pickle says about tensors: a dictionary of them, and in older files the names of their storages.

use std::collections::HashSet;
use std::rc::Rc;

use super::machine::{Id, Storage, Value, run};

/// A tensor of the dictionary.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) name: Rc<str>,
    pub(super) storage: Rc<Storage>,
    /// Elements of the storage before the first.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) stride: Vec<usize>,
}

/// Returns the tensors of the dictionary that a pickle describes, and the length of the pickle.
pub(super) fn tensors(pickle: &[u8]) -> Result<(Vec<Described>, usize), String> {
    let (machine, top) = run(pickle)?;
    let Value::Dict(entries) = &machine.values[top] else {
        return Err("does not hold a dictionary of tensors; save the model's state_dict()".to_owned());
    };
    let (mut found, mut names) = (Vec::new(), HashSet::new());
    for (key, value) in entries {
        let Value::Text(name) = &machine.values[*key] else {
            return Err("holds a dictionary whose keys are not names; save the model's state_dict()".to_owned());
        };
        let Value::Tensor { storage, offset, shape, stride } = &machine.values[*value] else {
            return Err(format!("holds {name:?}, which is not a tensor; save the model's state_dict() alone"));
        };
        if !names.insert(name) {
            return Err(format!("holds {name:?} twice; it is damaged"));
        }
        let (name, storage) = (name.clone(), storage.clone());
        found.push(Described { name, storage, offset: *offset, shape: shape.clone(), stride: stride.clone() });
    }
    Ok((found, machine.at))
}

/// Returns the texts of the list that a pickle describes, and the length of the pickle.
pub(super) fn texts(pickle: &[u8]) -> Result<(Vec<Rc<str>>, usize), String> {
    let (machine, top) = run(pickle)?;
    let text = |id: &Id| match &machine.values[*id] {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    let Value::List(items) = &machine.values[top] else { return Err("is damaged: it lists no storages".to_owned()) };
    let texts: Option<Vec<_>> = items.iter().map(text).collect();
    Ok((texts.ok_or("is damaged: its storages have no names")?, machine.at))
}

/// Returns the number under a name of the dictionary that a pickle describes, and the length of the pickle.
pub(super) fn number_of(pickle: &[u8], name: &str) -> Result<(Option<i64>, usize), String> {
    let (machine, top) = run(pickle)?;
    let number = |(key, value): &(Id, Id)| match (&machine.values[*key], &machine.values[*value]) {
        (Value::Text(key), Value::Int(number)) if &**key == name => Some(*number),
        _ => None,
    };
    let entries = if let Value::Dict(entries) = &machine.values[top] { entries.as_slice() } else { &[] };
    Ok((entries.iter().find_map(number), machine.at))
}
