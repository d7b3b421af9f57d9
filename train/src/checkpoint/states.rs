//! The optimizer's state in a checkpoint: named tensors of the trained weights.
//!
//! A file of state holds the tensor `NAME` of the weight `PATH` as `NAME.PATH`; a name has no dot. Format 1 always has `m` and `v` of
//! every trained weight. From format 2 on, a weight has the tensors that its optimizer names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use kiln_model::NamedTensor;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};

use super::{CheckpointError, MODEL_FILE};
use crate::optim::{Groups, ParamEntry, ParamTable};

/// Tensors of one name, with the names of their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedState {
    /// What the optimizer calls it.
    pub name: String,
    /// The tensor of each weight that has one, in the order of the weights.
    pub tensors: Vec<NamedTensor>,
}

impl NamedState {
    /// Names the `tensors`.
    pub fn new(name: &str, tensors: Vec<NamedTensor>) -> Self {
        Self { name: name.to_owned(), tensors }
    }
}

/// The state of every trained weight in format 1.
const FORMAT_1: [&str; 2] = ["m", "v"];

/// The names and tensors that a file of `states` holds.
pub(super) fn in_file(states: &[NamedState]) -> impl Iterator<Item = (String, &NamedTensor)> {
    let of = |state: &NamedState| state.name.clone();
    states.iter().flat_map(move |state| {
        state.tensors.iter().map(move |tensor| (format!("{}.{}", of(state), tensor.name), tensor))
    })
}

/// Returns the bytes of a file of `states`, to send them to another process.
pub fn states_to_bytes(states: &[NamedState]) -> Result<Vec<u8>, SafeTensorError> {
    let mut views = Vec::new();
    for (name, tensor) in in_file(states) {
        let bytes = bytemuck::cast_slice(&tensor.values);
        views.push((name, TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)?));
    }
    safetensors::serialize(views, None)
}

/// Reads what [`states_to_bytes`] has written.
pub fn states_from_bytes(bytes: &[u8]) -> Result<Vec<NamedState>, SafeTensorError> {
    let mut states: BTreeMap<String, Vec<NamedTensor>> = BTreeMap::new();
    // Sorted, because the file keeps them in a map without an order.
    let tensors: BTreeMap<String, TensorView<'_>> = SafeTensors::deserialize(bytes)?.tensors().into_iter().collect();
    for (name, view) in &tensors {
        let (state, weight) = name.split_once('.').unwrap_or((name.as_str(), ""));
        let values = view.data().chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let tensor = NamedTensor { name: weight.to_owned(), shape: view.shape().to_vec(), values: values.collect() };
        states.entry(state.to_owned()).or_default().push(tensor);
    }
    Ok(states.into_iter().map(|(name, tensors)| NamedState { name, tensors }).collect())
}

/// Checks that the `tensors` of the file at `path`, names and shapes, belong to the trained `weights` and have their shapes. `format` is
/// the checkpoint's.
pub(super) fn check(
    path: &Path,
    tensors: &[(String, Vec<usize>)],
    weights: &HashMap<&str, &[usize]>,
    format: u32,
) -> Result<(), CheckpointError> {
    let foreign = |reason| CheckpointError::Foreign { file: path.to_path_buf(), reason };
    for (name, shape) in tensors {
        let wanted = name.split_once('.').and_then(|(_, weight)| weights.get(weight));
        let Some(wanted) = wanted else {
            return Err(foreign(format!("{name} belongs to no trained weight of {MODEL_FILE}")));
        };
        if shape != wanted {
            return Err(foreign(format!("{name} has the shape {shape:?}, its weight {wanted:?}")));
        }
    }

    if format == 1 {
        let found: HashSet<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        let wanted = FORMAT_1.iter().flat_map(|state| weights.keys().map(move |weight| format!("{state}.{weight}")));
        if let Some(missing) = wanted.filter(|name| !found.contains(name.as_str())).min() {
            return Err(foreign(format!("it has no {missing}")));
        }
    }
    Ok(())
}

/// Splits flat tensors, one for each of the [`Groups::slots`], into named ones, sorted by name of state.
pub fn named_states(groups: &Groups, table: &ParamTable, flat: &[TensorData]) -> Vec<NamedState> {
    let mut by_name: BTreeMap<&str, Vec<NamedTensor>> = BTreeMap::new();
    for (slot, flat) in groups.slots(table).iter().zip(flat) {
        let flat: &[f32] = flat.as_slice().expect("optimizer state is f32");
        let named = |entry: &ParamEntry| NamedTensor {
            name: entry.path.clone(),
            shape: entry.shape.clone(),
            values: flat[entry.offset - slot.range.start..][..entry.len()].to_vec(),
        };
        let of_group = table.entries().iter().filter(|entry| entry.group == slot.group);
        by_name.entry(slot.name).or_default().extend(of_group.map(named));
    }
    by_name.into_iter().map(|(name, tensors)| NamedState::new(name, tensors)).collect()
}

/// Joins `states` into flat tensors, one for each of the [`Groups::slots`].
///
/// # Errors
/// If a parameter lacks a tensor that its optimizer needs, or has another one.
pub fn flat_states(
    groups: &Groups,
    table: &ParamTable,
    states: &[NamedState],
    device: &Device,
) -> Result<Vec<Tensor<1>>, CheckpointError> {
    let mut found: HashMap<(&str, &str), &NamedTensor> = HashMap::new();
    for state in states {
        found.extend(state.tensors.iter().map(|tensor| ((state.name.as_str(), tensor.name.as_str()), tensor)));
    }

    let another = "the run was saved with another optimizer; resume it with the train.optimizer that it had";
    let mut flat = Vec::new();
    for slot in groups.slots(table) {
        let mut values = vec![0f32; slot.range.len()];
        for entry in table.entries().iter().filter(|entry| entry.group == slot.group) {
            let tensor = found.remove(&(slot.name, entry.path.as_str()));
            let Some(tensor) = tensor.filter(|tensor| tensor.shape == entry.shape) else {
                let problem = format!("the state {} of {} is missing or has another shape", slot.name, entry.path);
                return Err(CheckpointError::Mismatch(format!("{problem}: {another}")));
            };
            values[entry.offset - slot.range.start..][..entry.len()].copy_from_slice(&tensor.values);
        }
        let n = values.len();
        flat.push(Tensor::from_data(TensorData::new(values, [n]), device));
    }
    match found.keys().min() {
        Some((state, path)) => Err(CheckpointError::Mismatch(format!(
            "{path} has a state {state}, which its optimizer does not keep: {another}"
        ))),
        None => Ok(flat),
    }
}
