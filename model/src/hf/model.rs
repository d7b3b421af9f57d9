//! Turns an import into a model for a plain Burn program.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::Imported;
use crate::named_tensor::NamedTensor;
use crate::transformer::Transformer;

impl Imported {
    /// Builds the model on `device`, with weights rounded to `dtype`. On an autodiff device all parameters are tracked.
    pub fn into_model(self, dtype: FloatDType, device: &Device) -> Transformer {
        let model = self.config.init(0, DType::from(dtype), device);
        let weights = self.weights.into_iter().map(|weight| (weight.name.clone(), weight)).collect();
        model.map(&mut Put { path: Vec::new(), weights })
    }
}

/// Replaces the initial weights.
struct Put {
    path: Vec<String>,
    weights: HashMap<String, NamedTensor>,
}

impl ModuleMapper for Put {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        let weight = self.weights.remove(&path).unwrap_or_else(|| panic!("the family's table has no row for {path}"));
        assert_eq!(weight.shape, param.dims(), "shape of {path}");
        let (autodiff, require_grad) = (param.is_autodiff(), param.is_require_grad());
        param.map(|initial| {
            let data = TensorData::new(weight.values, weight.shape);
            let tensor = Tensor::from_data(data, (&initial.device(), initial.dtype()));
            if autodiff { tensor.set_require_grad(require_grad) } else { tensor }
        })
    }
}
