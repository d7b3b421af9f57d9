//! AdamW over one flat tensor of all parameters: f32 master weights and moments here, weights of the compute dtype shared
//! with the module.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};
use kiln_kernels::{AdamWHyper, AdamWState, adamw_step, measure};

use super::{FlatGradients, ParamTable};
use crate::config::OptimConfig;

/// The optimizer: flat state, and the table that says what lies where.
#[derive(Debug, Clone)]
pub struct AdamW {
    max_grad_norm: f64,
    hyper: AdamWHyper,
    table: ParamTable,
    /// `None` only while a step is taken.
    state: Option<AdamWState>,
}

impl AdamW {
    /// A fresh optimizer whose master weights are `module`'s: give it the module in f32, before any cast, and the master
    /// weights are the initial ones exactly. The module is to compute in `dtype`, see [`Self::attach`].
    pub fn new<M: Module>(module: &M, config: &OptimConfig, dtype: FloatDType) -> Self {
        let table = ParamTable::of(module);
        let state = AdamWState::new(table.flatten_weights(module), dtype.into());
        Self::with_state(table, state, config)
    }

    /// An optimizer that continues: flat f32 tensors of master weights and both moments.
    ///
    /// # Panics
    /// If they do not have the table's length.
    pub fn restored(
        table: ParamTable,
        [master, m, v]: [Tensor<1>; 3],
        config: &OptimConfig,
        dtype: FloatDType,
    ) -> Self {
        for tensor in [&master, &m, &v] {
            assert_eq!(tensor.dims(), [table.flat_len()], "restored state");
        }
        let state = AdamWState { m, v, ..AdamWState::new(master, dtype.into()) };
        Self::with_state(table, state, config)
    }

    fn with_state(table: ParamTable, state: AdamWState, config: &OptimConfig) -> Self {
        let OptimConfig { beta1, beta2, eps, weight_decay, max_grad_norm, .. } = *config;
        let hyper = AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: table.n_decayed() };
        Self { max_grad_norm, hyper, table, state: Some(state) }
    }

    /// Where each parameter lies.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// Master weights, moments, and weights of the compute dtype. On a GPU the next step writes over them: read them, do
    /// not keep them.
    pub fn state(&self) -> &AdamWState {
        self.state.as_ref().expect("a state between steps")
    }

    /// Divides `gradients` by `divisor`, clips them to the global norm and takes step number `step` (from 1) with learning
    /// rate `lr`. Returns the norm before clipping, `[1]`, on the device: nothing here waits for it. If it is not finite,
    /// the weights stay as they are.
    ///
    /// Gradients of a sum of losses are divided by the number of labels (`[1]`, f32) here, where the device knows it. The
    /// division rides on the factor that clips, so it costs no pass over the gradients. A group without a single label has
    /// gradients of zero, and its divisor counts as 1.
    pub fn step(&mut self, gradients: FlatGradients, divisor: Tensor<1>, lr: f64, step: u64) -> Tensor<1> {
        let FlatGradients(gradients) = gradients;
        let device = divisor.device();
        let measured = measure(&gradients, divisor, self.max_grad_norm);
        let schedule = self.hyper.schedule(lr, step, &device);
        let state = self.state.take().expect("a state between steps");
        self.state = Some(adamw_step(state, gradients, &measured, schedule, &self.hyper));
        if AdamWState::is_updated_in_place(&device) {
            // What reads the module's weights next must not be moved before the step: the backend's queue does not know
            // that it changes them. A failure of the device shows when the next tensor is read.
            let _ = device.flush();
        }
        measured.norm()
    }

    /// Gives `module` the weights: views of the flat tensor, which every later step on a GPU changes with it.
    pub fn attach<M: Module>(&self, module: M) -> M {
        self.table.attach(module, self.state().compute_weights())
    }

    /// Gives the attached `module` the weights after a step. On a GPU it has them already.
    pub fn write_back<M: Module>(&self, module: M) -> M {
        let in_place = AdamWState::is_updated_in_place(&self.state().master.device());
        if in_place { module } else { self.attach(module) }
    }
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
        table.flatten_gradients(module, &mut loss.backward(), FloatDType::F32, None)
    }

    #[test]
    fn equals_a_scalar_loop_with_division_clipping_decay_and_bias_correction() {
        let device = Device::flex().autodiff();
        for (max_grad_norm, divisor) in [(0.0, 1.0), (0.7, 1.0), (0.7, 640.0), (0.0, 0.0)] {
            let config = OptimConfig { max_grad_norm, weight_decay: 0.1, beta2: 0.98, ..OptimConfig::default() };
            let mut module = toy(&device);
            let mut optimizer = AdamW::new(&module, &config, FloatDType::F32);
            module = optimizer.attach(module);
            let initial: Vec<f64> = weights(&module).into_iter().map(f64::from).collect();
            let zeros = vec![0.0; initial.len()];
            let mut reference = Reference { weights: initial, m: zeros.clone(), v: zeros, n_decayed: 6 };
            for step in 1..=8 {
                let (lr, c) = (0.05 / step as f64, step as f64);
                let n_labels = Tensor::<1>::from_data([divisor as f32], &device.clone().inner());
                let flat = gradients(&module, optimizer.table(), c * f64::max(divisor, 1.0));
                let norm = optimizer.step(flat, n_labels, lr, step as u64).into_scalar::<f32>();
                module = optimizer.write_back(module);
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
        let found: Vec<_> = table.entries().iter().map(|e| (e.path.as_str(), e.decayed, e.offset, e.len())).collect();
        let gap = kiln_kernels::ALIGNMENT;
        assert_eq!(found, [("weight", true, 0, 6), ("bias", false, gap, 2), ("gain", false, 2 * gap, 1)]);
        assert_eq!((table.n_params(), table.n_decayed(), table.flat_len()), (9, gap, 3 * gap));
    }

    /// The numbers of each entry of a flat tensor.
    fn parts(table: &ParamTable, flat: Tensor<1>) -> Vec<Vec<f32>> {
        let values = flat.into_data().try_into_vec::<f32>().expect("f32");
        table.entries().iter().map(|entry| values[entry.offset..][..entry.len()].to_vec()).collect()
    }

    #[test]
    fn a_parameter_outside_the_loss_has_a_gradient_of_zeros() {
        let device = Device::flex().autodiff();
        let module = toy(&device);
        let table = ParamTable::of(&module);
        let gradients = |before| {
            let loss = module.bias.val().sum();
            table.flatten_gradients(&module, &mut loss.backward(), FloatDType::F32, before)
        };
        let once = gradients(None);
        assert_eq!(parts(&table, once.0.values.clone()), [vec![0.0; 6], vec![1.0; 2], vec![0.0]]);
        let twice = gradients(Some(once));
        assert_eq!(parts(&table, twice.0.values), [vec![0.0; 6], vec![2.0; 2], vec![0.0]]);
    }

    #[test]
    fn bf16_weights_come_from_an_exact_f32_master() {
        let module = toy(&Device::flex());
        let before = weights(&module);
        let optimizer = AdamW::new(&module, &OptimConfig::default(), FloatDType::BF16);
        let module = optimizer.attach(module);
        assert_eq!(module.weight.val().dtype(), burn::tensor::DType::BF16);
        let restored = weights(&optimizer.table().attach(module, &optimizer.state().master));
        assert_eq!(restored, before, "0.1 is no bf16 number, but the master keeps it");
    }

    #[test]
    fn a_step_whose_gradient_is_not_finite_is_not_taken() {
        let device = Device::flex().autodiff();
        let module = toy(&device);
        let mut optimizer = AdamW::new(&module, &OptimConfig::default(), FloatDType::F32);
        let gradients = gradients(&module, optimizer.table(), f64::INFINITY);
        let one = Tensor::<1>::from_data([1f32], &device.inner());
        let norm = optimizer.step(gradients, one, 0.1, 1).into_scalar::<f32>();
        assert!(!norm.is_finite(), "{norm}");
        let before = weights(&module);
        assert_eq!(weights(&optimizer.write_back(module)), before);
    }
}
