//! AdamW over flat parameter groups: f32 master weights and moments here, weights of the compute dtype in the module.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};
use kiln_kernels::{AdamWHyper, AdamWState, adamw_step, clip_coefficient, sum_of_squares};

use super::{FlatGradients, Group, ParamTable};
use crate::config::OptimConfig;

/// The optimizer: one `(master, m, v)` triple per group, and the table that says what lies where.
#[derive(Debug, Clone)]
pub struct AdamW {
    config: OptimConfig,
    table: ParamTable,
    groups: [Option<AdamWState>; 2],
}

impl AdamW {
    /// A fresh optimizer whose master weights are `module`'s: give it the module in f32, before any cast, and the master
    /// weights are the initial ones exactly.
    pub fn new<M: Module>(module: &M, config: &OptimConfig) -> Self {
        let table = ParamTable::of(module);
        let groups = table.flatten_weights(module).map(|master| master.map(AdamWState::new));
        Self { config: config.clone(), table, groups }
    }

    /// An optimizer that continues: `groups` as [`Self::groups`] gave them.
    ///
    /// # Panics
    /// If the groups do not have the table's lengths.
    pub fn restored(table: ParamTable, groups: [Option<AdamWState>; 2], config: &OptimConfig) -> Self {
        for (group, state) in Group::ALL.into_iter().zip(&groups) {
            let wanted = table.group_len(group);
            for tensor in state.iter().flat_map(|state| [&state.master, &state.m, &state.v]) {
                assert_eq!(tensor.dims(), [wanted], "restored {group:?} state");
            }
            assert_eq!(state.is_some(), wanted > 0, "restored {group:?} state");
        }
        Self { config: config.clone(), table, groups }
    }

    /// Where each parameter lies.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// The state of each group, indexed as [`Group::ALL`].
    pub fn groups(&self) -> &[Option<AdamWState>; 2] {
        &self.groups
    }

    /// Divides `gradients` by `divisor`, clips them to the global norm and takes step number `step` (from 1) with learning
    /// rate `lr`. Returns the norm before clipping, `[1]`, on the device: nothing here waits for it.
    ///
    /// Gradients of a sum of losses are divided by the number of labels (`[1]`, f32) here, where the device knows it. The
    /// division rides on the factor that clips, so it costs no pass over the gradients. A group without a single label has
    /// gradients of zero, and its divisor counts as 1.
    pub fn step(&mut self, gradients: FlatGradients, divisor: Tensor<1>, lr: f64, step: u64) -> Tensor<1> {
        let share = divisor.clamp_min(1.0).recip();
        let norm = gradient_norm(&gradients) * share.clone();
        let scale = clip_coefficient(norm.clone(), self.config.max_grad_norm) * share;
        let FlatGradients(gradients) = gradients;
        for ((group, state), gradient) in Group::ALL.into_iter().zip(&mut self.groups).zip(gradients) {
            let (Some(before), Some(gradient)) = (state.take(), gradient) else { continue };
            let hyper = AdamWHyper {
                lr,
                beta1: self.config.beta1,
                beta2: self.config.beta2,
                eps: self.config.eps,
                weight_decay: if group == Group::Decay { self.config.weight_decay } else { 0.0 },
                step,
            };
            *state = Some(adamw_step(before, gradient, scale.clone(), &hyper));
        }
        norm
    }

    /// Gives `module` the master weights, cast to `dtype`.
    pub fn write_back<M: Module>(&self, module: M, dtype: FloatDType) -> M {
        let masters = self.groups.each_ref().map(|group| group.as_ref().map(|state| state.master.clone()));
        self.table.write_back(module, masters, dtype)
    }
}

/// Square root of the sum of squares of all gradients, `[1]`.
///
/// # Panics
/// If there is no gradient at all.
fn gradient_norm(FlatGradients(gradients): &FlatGradients) -> Tensor<1> {
    gradients
        .iter()
        .flatten()
        .map(|gradient| sum_of_squares(gradient.clone()))
        .reduce(|a, b| a + b)
        .expect("a model has parameters")
        .sqrt()
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[derive(Module, Debug)]
    struct Toy {
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
        gain: Param<Tensor<1>>,
    }

    fn toy(device: &Device) -> Toy {
        let vector = |values: &[f32]| {
            let data = TensorData::new(values.to_vec(), [values.len()]);
            Param::from_tensor(Tensor::<1>::from_data(data, device))
        };
        let weight = Tensor::<2>::from_data([[0.5f32, -0.25, 1.5], [-1.0, 0.125, 2.0]], device);
        Toy { weight: Param::from_tensor(weight), bias: vector(&[0.1, -0.2]), gain: vector(&[1.0]) }
    }

    /// The textbook loop over scalars, in f64.
    struct Reference {
        weights: Vec<f64>,
        m: Vec<f64>,
        v: Vec<f64>,
        n_decayed: usize,
    }

    impl Reference {
        fn step(&mut self, gradients: &[f64], lr: f64, step: i32, config: &OptimConfig) -> f64 {
            let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
            let clip = if config.max_grad_norm > 0.0 { (config.max_grad_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
            for (i, gradient) in gradients.iter().enumerate() {
                let g = gradient * clip;
                if i < self.n_decayed {
                    self.weights[i] -= lr * config.weight_decay * self.weights[i];
                }
                self.m[i] = config.beta1 * self.m[i] + (1.0 - config.beta1) * g;
                self.v[i] = config.beta2 * self.v[i] + (1.0 - config.beta2) * g * g;
                let m_hat = self.m[i] / (1.0 - config.beta1.powi(step));
                let v_hat = self.v[i] / (1.0 - config.beta2.powi(step));
                self.weights[i] -= lr * m_hat / (v_hat.sqrt() + config.eps);
            }
            norm
        }
    }

    fn weights(module: &Toy) -> Vec<f32> {
        let read = |data: TensorData| data.as_slice::<f32>().expect("f32").to_vec();
        [
            read(module.weight.val().into_data()),
            read(module.bias.val().into_data()),
            read(module.gain.val().into_data()),
        ]
        .concat()
    }

    /// A loss whose gradients are known: `sum(c * w^2) / 2` has the gradient `c * w`.
    fn gradients(module: &Toy, table: &ParamTable, c: f64) -> FlatGradients {
        let loss = (module.weight.val().powi_scalar(2).sum()
            + module.bias.val().powi_scalar(2).sum()
            + module.gain.val().powi_scalar(2).sum())
            * (c / 2.0);
        table.flatten_gradients(module, &mut loss.backward())
    }

    #[test]
    fn equals_a_scalar_loop_with_division_clipping_decay_and_bias_correction() {
        let device = Device::flex().autodiff();
        for (max_grad_norm, divisor) in [(0.0, 1.0), (0.7, 1.0), (0.7, 640.0), (0.0, 0.0)] {
            let config = OptimConfig { max_grad_norm, weight_decay: 0.1, beta2: 0.98, ..OptimConfig::default() };
            let mut module = toy(&device);
            let mut optimizer = AdamW::new(&module, &config);
            let initial: Vec<f64> = weights(&module).into_iter().map(f64::from).collect();
            let zeros = vec![0.0; initial.len()];
            let mut reference = Reference { weights: initial, m: zeros.clone(), v: zeros, n_decayed: 6 };
            for step in 1..=8 {
                let (lr, c) = (0.05 / step as f64, step as f64);
                let n_labels = Tensor::<1>::from_data([divisor as f32], &device.clone().inner());
                let flat = gradients(&module, optimizer.table(), c * f64::max(divisor, 1.0));
                let norm = optimizer.step(flat, n_labels, lr, step as u64).into_scalar::<f32>();
                module = optimizer.write_back(module, FloatDType::F32);
                let reference_gradients: Vec<f64> = reference.weights.iter().map(|w| c * w).collect();
                let wanted = reference.step(&reference_gradients, lr, step, &config);
                assert!((f64::from(norm) / wanted - 1.0).abs() < 1e-5, "norm {norm} instead of {wanted}");
                for (found, wanted) in weights(&module).iter().zip(&reference.weights) {
                    assert!((f64::from(*found) - wanted).abs() < 2e-6, "step {step}: {found} instead of {wanted}");
                }
            }
            assert!(module.weight.is_require_grad() && module.weight.is_autodiff(), "weights stay trainable");
        }
    }

    #[test]
    fn the_table_names_every_parameter_and_decays_matrices_only() {
        let table = ParamTable::of(&toy(&Device::flex()));
        let found: Vec<_> = table.entries().iter().map(|e| (e.path.as_str(), e.group, e.offset, e.len())).collect();
        assert_eq!(
            found,
            [("weight", Group::Decay, 0, 6), ("bias", Group::NoDecay, 0, 2), ("gain", Group::NoDecay, 2, 1)]
        );
        assert_eq!((table.n_params(), table.group_len(Group::Decay), table.group_len(Group::NoDecay)), (9, 6, 3));
    }

    #[test]
    fn a_parameter_outside_the_loss_has_a_gradient_of_zeros() {
        let device = Device::flex().autodiff();
        let module = toy(&device);
        let table = ParamTable::of(&module);
        let loss = module.bias.val().sum();
        let FlatGradients([decay, no_decay]) = table.flatten_gradients(&module, &mut loss.backward());
        decay.expect("matrices").into_data().assert_eq(&TensorData::from([0f32; 6]), true);
        no_decay.expect("vectors").into_data().assert_eq(&TensorData::from([1f32, 1.0, 0.0]), true);
    }

    #[test]
    fn bf16_weights_come_from_an_exact_f32_master() {
        let module = toy(&Device::flex());
        let before = weights(&module);
        let optimizer = AdamW::new(&module, &OptimConfig::default());
        let module = optimizer.write_back(module, FloatDType::BF16);
        assert_eq!(module.weight.val().dtype(), burn::tensor::DType::BF16);
        let restored = weights(&optimizer.write_back(module, FloatDType::F32));
        assert_eq!(restored, before, "0.1 is no bf16 number, but the master keeps it");
    }
}
