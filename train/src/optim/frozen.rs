//! Parameters that training leaves alone: without gradient, optimizer state and weight decay.
//!
//! The device has them in the compute dtype only. Their f32 values stay on the host, so that every checkpoint has the exact values that
//! the run began with.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_model::NamedTensor;

use super::ParamTable;
use crate::metrics::host_sync::waiting;

/// The frozen parameters of a model, in visiting order.
#[derive(Debug, Clone, Default)]
pub struct Frozen(Arc<Vec<NamedTensor>>);

impl Frozen {
    /// Takes the frozen parameters of `module`, in f32. Waits for the device.
    pub(crate) fn of<M: Module>(module: &M, table: &ParamTable) -> Self {
        let mut visitor = Read { table, at: 0, tensors: Vec::new() };
        if table.has_frozen() {
            module.visit(&mut visitor);
        }
        Self(Arc::new(visitor.tensors))
    }

    /// Takes the frozen parameters from `weights`.
    ///
    /// # Errors
    /// The path of a parameter that is missing or has another shape.
    pub(crate) fn chosen(weights: &[NamedTensor], table: &ParamTable) -> Result<Self, String> {
        let by_name: HashMap<&str, &NamedTensor> = weights.iter().map(|it| (it.name.as_str(), it)).collect();
        let find = |entry: &super::ParamEntry| {
            let found = by_name.get(entry.path.as_str()).filter(|tensor| tensor.shape == entry.shape);
            found.map(|tensor| (*tensor).clone()).ok_or_else(|| entry.path.clone())
        };
        Ok(Self(Arc::new(table.frozen().map(find).collect::<Result<_, _>>()?)))
    }

    /// Gives the frozen parameters of `module` their values in `dtype`. They will get no gradients.
    pub(crate) fn put<M: Module>(&self, module: M, table: &ParamTable, dtype: FloatDType) -> M {
        if self.0.is_empty() {
            return module;
        }
        module.map(&mut Put { table, at: 0, tensors: self.0.iter(), dtype })
    }

    /// Their f32 values.
    pub(crate) fn tensors(&self) -> &[NamedTensor] {
        &self.0
    }
}

struct Read<'a> {
    table: &'a ParamTable,
    at: usize,
    tensors: Vec<NamedTensor>,
}

impl ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let entry = &self.table.all()[self.at];
        self.at += 1;
        if entry.frozen {
            let values = waiting(|| param.val().inner().into_data()).convert::<f32>().try_into_vec().expect("f32");
            self.tensors.push(NamedTensor { name: entry.path.clone(), shape: entry.shape.clone(), values });
        }
    }
}

struct Put<'a> {
    table: &'a ParamTable,
    at: usize,
    tensors: std::slice::Iter<'a, NamedTensor>,
    dtype: FloatDType,
}

impl ModuleMapper for Put<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entry = &self.table.all()[self.at];
        self.at += 1;
        if !entry.frozen {
            return param;
        }
        let tensor = self.tensors.next().expect("a value of each frozen parameter");
        let is_autodiff = param.is_autodiff();
        param.set_require_grad(false).map(|old| {
            let data = TensorData::new(tensor.values.clone(), tensor.shape.clone());
            let value = Tensor::<D>::from_data(data, &old.device().inner()).cast(self.dtype);
            if is_autodiff { Tensor::from_inner(value) } else { value }
        })
    }
}
