//! Converts between named host tensors and the flat tensors of the optimizer.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use kiln_model::{Transformer, TransformerConfig};

use super::{CheckpointError, NamedTensor};
use crate::optim::{ParamEntry, ParamTable};

/// Builds a model with `weights` in `dtype`, without autodiff, for evaluation and generation.
pub fn load_model(
    config: &TransformerConfig,
    weights: &[NamedTensor],
    dtype: FloatDType,
    device: &Device,
) -> Result<Transformer, CheckpointError> {
    let device = device.clone().inner();
    load_into(config.init(0, FloatDType::F32, &device), weights, dtype)
}

/// Returns `module` with `weights` in `dtype`, on its device and tracked by autodiff if it was.
pub fn load_into<M: Module>(module: M, weights: &[NamedTensor], dtype: FloatDType) -> Result<M, CheckpointError> {
    let table = ParamTable::of(&module);
    let device = module.devices().into_iter().next().expect("a model has parameters").inner();
    let masters = flat_tensor(&table, weights, &device)?;
    Ok(table.attach(module, &masters.cast(dtype)))
}

/// The initial weights of a model.
pub fn initial_tensors(config: &TransformerConfig, seed: u64) -> Vec<NamedTensor> {
    let model = config.init(seed, FloatDType::F32, &Device::flex());
    let table = ParamTable::of(&model);
    named_tensors(&table, &table.flatten_weights(&model).into_data())
}

/// Splits the flat tensor `flat` into named tensors.
pub fn named_tensors(table: &ParamTable, flat: &TensorData) -> Vec<NamedTensor> {
    let flat: &[f32] = flat.as_slice().expect("optimizer state is f32");
    let values = |entry: &ParamEntry| flat[entry.offset..][..entry.len()].to_vec();
    let named = |entry: &ParamEntry| NamedTensor {
        name: entry.path.clone(),
        shape: entry.shape.clone(),
        values: values(entry),
    };
    table.entries().iter().map(named).collect()
}

/// Joins `tensors` into a flat tensor. Names and shapes must match the table. Frozen parameters may be among them; they are left out.
pub fn flat_tensor(table: &ParamTable, tensors: &[NamedTensor], device: &Device) -> Result<Tensor<1>, CheckpointError> {
    let by_name: HashMap<_, _> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut problems = Vec::new();
    let mut flat = vec![0f32; table.flat_len()];
    for entry in table.entries() {
        match by_name.get(entry.path.as_str()) {
            None => problems.push(format!("{} is missing", entry.path)),
            Some(tensor) if tensor.shape != entry.shape => {
                problems
                    .push(format!("{} has the shape {:?}, but the model {:?}", entry.path, tensor.shape, entry.shape));
            }
            Some(tensor) => flat[entry.offset..][..entry.len()].copy_from_slice(&tensor.values),
        }
    }
    let n = table.entries().len() + table.frozen().count();
    if tensors.len() > n {
        problems.push(format!("it holds {} tensors, but the model has {n}", tensors.len()));
    }

    if !problems.is_empty() {
        let more = problems.len().saturating_sub(5);
        problems.truncate(5);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        return Err(CheckpointError::Mismatch(format!("{}{more}", problems.join("; "))));
    }

    Ok(Tensor::from_data(TensorData::new(flat, [table.flat_len()]), device))
}
