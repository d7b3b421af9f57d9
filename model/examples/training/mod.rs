//! Shared by the examples: AdamW for any module, and a training text.

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use kiln_data::built_in::numbers;

/// AdamW with the moments of each parameter by its id. Kiln's trainer does the same in one pass over flat tensors, with `kiln_kernels::adamw_step`; Burn's own optimizers do as well.)
pub(crate) struct AdamW {
    lr: f64,
    step: i32,
    moments: HashMap<ParamId, (Tensor<1>, Tensor<1>)>,
}

impl AdamW {
    const BETAS: (f64, f64) = (0.9, 0.98);
    const WEIGHT_DECAY: f64 = 0.01;

    /// An optimizer with learning rate `lr` and the usual other settings.
    pub(crate) fn new(lr: f64) -> Self {
        Self { lr, step: 0, moments: HashMap::new() }
    }

    /// Returns the model after one step. The learning rate warms up over 20 steps and is scaled by `decay`.
    pub(crate) fn step<M: Module>(&mut self, model: M, gradients: &Gradients, decay: f64) -> M {
        self.step += 1;
        let lr = self.lr * decay * (f64::from(self.step) / 20.0).min(1.0);
        model.map(&mut Update { lr, step: self.step, moments: &mut self.moments, gradients })
    }
}

struct Update<'a> {
    lr: f64,
    step: i32,
    moments: &'a mut HashMap<ParamId, (Tensor<1>, Tensor<1>)>,
    gradients: &'a Gradients,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = param.val().grad(self.gradients) else { return param };
        let (id, g, (b1, b2)) = (param.id, gradient.reshape([-1]), AdamW::BETAS);
        let (m, v) = self.moments.remove(&id).unwrap_or_else(|| (g.zeros_like(), g.zeros_like()));
        let m = m * b1 + g.clone() * (1.0 - b1);
        let v = v * b2 + g.clone() * g * (1.0 - b2);
        self.moments.insert(id, (m.clone(), v.clone()));
        let direction = m / (1.0 - b1.powi(self.step)) / ((v / (1.0 - b2.powi(self.step))).sqrt() + 1e-8);
        param.map(|weight| {
            let weight = weight.inner();
            let step = direction.reshape(weight.dims()) * self.lr;
            (weight * (1.0 - self.lr * AdamW::WEIGHT_DECAY) - step).autodiff().require_grad()
        })
    }
}

/// Token ids on a device.
pub(crate) fn ids(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (device, DType::I32))
}

/// Token ids on the host.
pub(crate) fn host(ids: &Tensor<1, Int>) -> Vec<u32> {
    ids.to_data().convert::<u32>().try_to_vec().expect("converted to u32")
}

/// The number of a tensor with one element.
pub(crate) fn scalar(tensor: &Tensor<1>) -> f64 {
    tensor.to_data().iter::<f64>().next().expect("one number")
}

/// Creates a folder for the example's files.
pub(crate) fn folder(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Writes a text file of documents that count: "forty, forty one, forty two, ...".
pub(crate) fn write_counting(path: &Path) -> Result<(), Box<dyn Error>> {
    let document = |first: u64| {
        let words: Vec<String> = (first..first + 12).map(numbers::in_words).collect();
        words.join(", ")
    };
    // In shuffled order, like a real corpus: a stride without common factors reaches every start.
    let documents: Vec<String> = (0..480).map(|i| document(i * 101 % 480)).collect();
    Ok(std::fs::write(path, documents.join("\n\n"))?)
}
