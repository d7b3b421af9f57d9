//! How the model of a run is made.

use std::fmt;

use burn::tensor::{Device, FloatDType};
use kiln_model::{Transformer, TransformerConfig};

use super::model::Model;
use crate::dataset::OwnData;
use crate::optim::ParamTable;

/// Returns a model, given its shape, a seed and a device that tracks gradients.
type Make<'a, M> = dyn Fn(&TransformerConfig, u64, &Device) -> M + 'a;

/// A part of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The field of the module.
    pub name: String,
    /// Its parameters.
    pub n_params: usize,
}

/// Makes the model of a run: Kiln's [`Transformer`], or the model of a program.
pub struct Init<'a, M> {
    make: Box<Make<'a, M>>,
    is_own: bool,
    data: Option<OwnData>,
}

impl Init<'_, Transformer> {
    /// Makes Kiln's Transformer. The seed decides its weights, on any device.
    pub fn transformer() -> Self {
        Self {
            make: Box::new(|model, seed, device| model.init(seed, FloatDType::F32, device)),
            is_own: false,
            data: None,
        }
    }
}

impl<'a, M: Model> Init<'a, M> {
    /// Makes the model of a program. `init` returns it with initial weights in f32 on the device that it gets, which tracks gradients.
    pub fn own(init: impl Fn(&TransformerConfig, &Device) -> M + 'a) -> Self {
        Self { make: Box::new(move |model, _, device| init(model, device)), is_own: true, data: None }
    }

    /// Returns the same for a program that has data of its own, too.
    #[must_use]
    pub fn reading(self, data: OwnData) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Returns the data of the program, if it has its own.
    pub fn data(&self) -> Option<OwnData> {
        self.data.clone()
    }

    /// Returns the parts of the model, which are the fields of its module, with their parameters.
    pub fn parts(&self, model: &TransformerConfig, seed: u64) -> Vec<Part> {
        let table = ParamTable::of(&self.make(model, seed, &Device::flex()));
        let mut parts: Vec<Part> = Vec::new();
        for entry in table.entries() {
            let name = entry.path.split('.').next().unwrap_or_default();
            match parts.iter_mut().find(|part| part.name == name) {
                Some(part) => part.n_params += entry.len(),
                None => parts.push(Part { name: name.into(), n_params: entry.len() }),
            }
        }
        parts
    }

    /// Whether the model is the program's.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns a model with initial weights in f32, tracked by autodiff: the master weights of a new run, whatever the compute dtype.
    pub fn make(&self, model: &TransformerConfig, seed: u64, device: &Device) -> M {
        (self.make)(model, seed, &device.clone().inner().autodiff())
    }
}

impl<M> fmt::Debug for Init<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Init").field("is_own", &self.is_own).finish_non_exhaustive()
    }
}
