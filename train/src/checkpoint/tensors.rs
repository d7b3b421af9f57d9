//! Converts between named host tensors and the flat tensors of the optimizer.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use kiln_model::{LazyTensor, Transformer, TransformerConfig};

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

    fits(problems)?;
    Ok(Tensor::from_data(TensorData::new(flat, [table.flat_len()]), device))
}

/// Lists the first parameters that do not fit.
fn fits(mut problems: Vec<String>) -> Result<(), CheckpointError> {
    if problems.is_empty() {
        return Ok(());
    }
    let more = problems.len().saturating_sub(5);
    problems.truncate(5);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(CheckpointError::Mismatch(format!("{}{more}", problems.join("; "))))
}

/// Does the same as [`load_model`] with weights that are read one by one: memory holds the model, and the weight that is read.
pub fn load_tensors(
    config: &TransformerConfig,
    weights: Vec<LazyTensor<'_>>,
    dtype: FloatDType,
    device: &Device,
) -> Result<Transformer, CheckpointError> {
    let device = device.clone().inner();
    let model = config.init_without_weights(FloatDType::F32, &device);
    let n_weights = weights.len();
    let weights = weights.into_iter().map(|weight| (weight.name.clone(), weight)).collect();
    let mut put = Put { path: Vec::new(), weights, dtype, device, n: 0, problems: Vec::new() };
    let model = model.map(&mut put);
    let Put { n, mut problems, .. } = put;
    if n_weights > n {
        problems.push(format!("it holds {n_weights} tensors, but the model has {n}"));
    }
    fits(problems)?;
    Ok(model)
}

/// Reads the weights of a module.
struct Put<'a> {
    path: Vec<String>,
    weights: HashMap<String, LazyTensor<'a>>,
    dtype: FloatDType,
    device: Device,
    /// Parameters of the module.
    n: usize,
    problems: Vec<String>,
}

impl ModuleMapper for Put<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.n += 1;
        let (path, wanted) = (self.path.join("."), param.lazy_shape().to_vec());
        let Some(weight) = self.weights.remove(&path) else {
            self.problems.push(format!("{path} is missing"));
            return param;
        };
        if weight.shape != wanted {
            self.problems.push(format!("{path} has the shape {:?}, but the model {wanted:?}", weight.shape));
            return param;
        }
        let data = TensorData::new(weight.elements().into_f32(), wanted);
        let tensor = Tensor::<D>::from_data(data, (&self.device, DType::F32));
        Param::initialized(param.id, tensor.cast(self.dtype))
    }
}
