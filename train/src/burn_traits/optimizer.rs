//! Optimizers as Burn's: one parameter at a time, with a state that Burn keeps and saves.

use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::{ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use kiln_kernels::optim::{Flat, Place, StepNumbers, gather, view};

use crate::config::{Config, MasterWeights, OptimConfig};
use crate::optim::optimizer::{Matrix, Section, SectionState};
use crate::optim::{AdamW, Group, Groups, Muon, ParamTable};

/// Names in a record.
const UPDATES: &str = "updates";
const MASTER: &str = "master";
const STATE: &str = "state";

/// An optimizer of Kiln for one parameter at a time. Its updates have the bits of the trainer's optimizer on the CPU, except that a
/// step is always taken.
#[derive(Debug, Clone)]
pub struct ParameterOptimizer {
    rule: Arc<dyn crate::optim::Optimizer>,
    /// Factor of the learning rate.
    rate: f64,
}

impl ParameterOptimizer {
    /// AdamW. Only parameters of two and more dimensions have weight decay.
    pub fn adamw(config: &OptimConfig) -> Self {
        Self { rule: Arc::new(AdamW::new(config)), rate: 1.0 }
    }

    /// Muon, for weight matrices only. Its products are in f32 for a model that computes in f32, else in bf16.
    pub fn muon(config: &OptimConfig, dtype: FloatDType) -> Self {
        Self { rule: Arc::new(Muon::new(config, 1.0, dtype)), rate: 1.0 }
    }

    fn of_group(Group { optimizer, rate, .. }: &Group) -> Self {
        Self { rule: optimizer.clone(), rate: *rate }
    }
}

/// Returns Burn's optimizer of `module`, with the groups of parameters that a run of `config` in `dtype` has: `train.optimizer = "muon"`
/// gives matrices of layers to Muon and the rest to AdamW.
///
/// It does not clip: see [`clip_gradients`](super::clip_gradients). It keeps master weights and state in f32, whatever
/// `train.master_weights` says.
///
/// # Panics
/// If the module visits a parameter twice, or has none.
pub fn module_optimizer<M: Module>(config: &Config, dtype: FloatDType, module: &M) -> ModuleOptimizer {
    let mut config = config.clone();
    config.train.master_weights = MasterWeights::F32;
    let groups = Groups::of(&config, dtype);
    let table = groups.lay_out(ParamTable::of(module));

    // With Burn the first group has every parameter, and a later one takes some of them.
    let (rest, special) = groups.list().split_last().expect("a group");
    let mut optimizer = ModuleOptimizer::from(ParameterOptimizer::of_group(rest));
    for (number, group) in special.iter().enumerate() {
        let of_group = table.entries().iter().filter(|entry| entry.group == number);
        let paths: Vec<String> = of_group.map(|entry| entry.path.clone()).collect();
        optimizer = optimizer.with_group(ParamGroup::from_paths(paths), ParameterOptimizer::of_group(group), None);
    }
    optimizer
}

/// What an optimizer keeps of one parameter.
#[derive(Debug, Clone)]
pub struct ParameterState<const D: usize> {
    /// Updates made.
    updates: u64,
    /// The weights in f32, if the parameter is not.
    master: Option<Tensor<D>>,
    /// The tensors of [`Optimizer::state`](crate::optim::Optimizer::state), in its order, f32.
    named: Vec<Tensor<D>>,
}

impl Optimizer for ParameterOptimizer {
    type State<const D: usize> = ParameterState<D>;

    /// Makes a step. `tensor`, `grad` and `state` keep their numbers: it steps copies of them, since a program may have clones.
    ///
    /// # Panics
    /// If Muon gets a parameter that is not a matrix.
    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<ParameterState<D>>,
    ) -> (Tensor<D>, Option<ParameterState<D>>) {
        let (shape, dtype, device) = (tensor.dims(), tensor.dtype(), tensor.device());
        let place = Place { offset: 0, len: shape.iter().product() };
        let padded = place.padded_len();
        let flat = |x: Tensor<D>, dtype| -> Flat { gather(vec![x.into()], &[place], padded, dtype, &device, None) };
        let parameter = |x: &Tensor<1>| view(x, 0, shape);

        let before = state.unwrap_or_else(|| ParameterState { updates: 0, master: None, named: Vec::new() });
        let updates = before.updates + 1;
        let named: Vec<_> = match before.named.is_empty() {
            true => self.rule.state().iter().map(|_| Tensor::zeros([padded], (&device, DType::F32))).collect(),
            false => before.named.into_iter().map(|x| flat(x, DType::F32).values).collect(),
        };
        let master = flat(before.master.unwrap_or(tensor), DType::F32).values;
        let weights = (dtype != DType::F32).then(|| master.clone().cast(dtype));
        let gradient = flat(grad.clone(), grad.dtype());

        let numbers = StepNumbers::unconditional(self.rule.coefficients(lr * self.rate, updates), &device);
        let section = section(&shape, padded);
        let after = self.rule.step(&section, SectionState { master, weights, named }, gradient, &numbers);

        let (master, named) = (parameter(&after.master), after.named.iter().map(parameter).collect());
        match after.weights {
            Some(weights) => (parameter(&weights), Some(ParameterState { updates, master: Some(master), named })),
            None => (master, Some(ParameterState { updates, master: None, named })),
        }
    }

    fn to_device<const D: usize>(state: ParameterState<D>, device: &Device) -> ParameterState<D> {
        ParameterState {
            updates: state.updates,
            master: state.master.map(|master| master.to_device(device)),
            named: state.named.into_iter().map(|tensor| tensor.to_device(device)).collect(),
        }
    }
}

/// A section that holds one parameter of this shape in `padded` elements.
fn section(shape: &[usize], padded: usize) -> Section {
    let matrix = <[usize; 2]>::try_from(shape).map(|shape| Matrix { offset: 0, shape });
    Section {
        group: 0,
        range: 0..padded,
        first: 0,
        n_decayed: if shape.len() >= 2 { padded } else { 0 },
        matrices: matrix.into_iter().collect(),
    }
}

impl<const D: usize> RecordState for ParameterState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, UPDATES, self.updates.into());
        if let Some(master) = &self.master {
            out.push_tensor(prefix, MASTER, master.to_data());
        }
        for (i, tensor) in self.named.iter().enumerate() {
            out.push_tensor(prefix, &format!("{STATE}.{i}"), tensor.to_data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let updates = source.take_scalar(prefix, UPDATES)?.try_into().ok()?;
        let mut take = |name: &str| Some(Tensor::from_data(source.take_tensor(prefix, name)?, (device, DType::F32)));
        let master = take(MASTER);
        let named = (0..).map_while(|i| take(&format!("{STATE}.{i}"))).collect();
        Some(Self { updates, master, named })
    }
}
