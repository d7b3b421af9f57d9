use burn::module::Param;
use burn::tensor::TensorData;

use super::*;
use crate::config::{OptimConfig, Schedule};
use crate::optim::AdamW;

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

fn setup(config: &OptimConfig) -> Setup {
    Setup {
        groups: Groups::one(AdamW::new(config)),
        max_grad_norm: config.max_grad_norm,
        learning_rate: LearningRate::new(config, 8, 64),
        scaling: None,
        stops: false,
        counters: Counters { updates: 0, loss_scale: 1.0, good_steps: 0 },
    }
}

fn one(device: &Device) -> Tensor<1> {
    Tensor::ones([1], &device.clone().inner())
}

/// AdamW as a loop over scalars in f64.
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
    [read(module.weight.val().into_data()), read(module.bias.val().into_data()), read(module.gain.val().into_data())]
        .concat()
}

/// Gradients of `sum(c * w^2) / 2`, which are `c * w`.
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
        let config = OptimConfig {
            lr: 0.05,
            schedule: Schedule::Linear,
            warmup_steps: 0,
            max_grad_norm,
            weight_decay: 0.1,
            ..OptimConfig::default()
        };

        let mut module = toy(&device);
        let mut optimizer = FlatOptimizer::new(&module, setup(&config), FloatDType::F32);
        module = optimizer.attach(module);
        let initial: Vec<f64> = weights(&module).into_iter().map(f64::from).collect();
        let zeros = vec![0.0; initial.len()];
        let mut reference = Reference { weights: initial, m: zeros.clone(), v: zeros, n_decayed: 6 };

        for step in 1..=8 {
            let (lr, c) = (optimizer.learning_rate().at(step as u64), step as f64);
            let n_labels = Tensor::<1>::from_data([divisor as f32], &device.clone().inner());
            let flat = gradients(&module, optimizer.table(), c * f64::max(divisor, 1.0));
            let norm = optimizer.step(flat, n_labels, one(&device)).norm().into_scalar::<f32>();
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
    let gap = kiln_kernels::optim::ALIGNMENT;
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
    let optimizer = FlatOptimizer::new(&module, setup(&OptimConfig::default()), FloatDType::BF16);
    let module = optimizer.attach(module);
    assert_eq!(module.weight.val().dtype(), burn::tensor::DType::BF16);
    let restored = weights(&optimizer.table().attach(module, &optimizer.state().master));
    assert_eq!(restored, before, "bf16 cannot represent 0.1, but the master keeps it");
}

#[test]
fn a_step_with_a_gradient_that_is_not_finite_is_skipped() {
    let device = Device::flex().autodiff();
    let module = toy(&device);
    let mut optimizer = FlatOptimizer::new(&module, setup(&OptimConfig::default()), FloatDType::F32);
    let gradients = gradients(&module, optimizer.table(), f64::INFINITY);
    let norm = optimizer.step(gradients, one(&device), one(&device)).norm().into_scalar::<f32>();
    assert!(!norm.is_finite(), "{norm}");
    let before = weights(&module);
    assert_eq!(weights(&optimizer.write_back(module)), before);
}

/// Two groups with rates of their own take the steps of two optimizers, also after the table of coefficients was computed anew.
#[test]
fn each_group_has_its_own_rate() {
    let device = Device::flex().autodiff();
    let config = OptimConfig {
        lr: 1e-4,
        schedule: Schedule::Constant,
        max_grad_norm: 0.0,
        weight_decay: 0.1,
        warmup_steps: 0,
        ..OptimConfig::default()
    };
    let train = |groups: Groups, n: usize| {
        let mut module = toy(&device);
        let mut optimizer = FlatOptimizer::new(&module, Setup { groups, ..setup(&config) }, FloatDType::F32);
        module = optimizer.attach(module);
        for step in 1..=n {
            let flat = gradients(&module, optimizer.table(), step as f64);
            optimizer.step(flat, one(&device), one(&device));
            module = optimizer.write_back(module);
        }
        weights(&module)
    };

    let with = |rate: f64, takes: fn(&crate::optim::ParamEntry) -> bool| crate::optim::Group {
        optimizer: std::sync::Arc::new(AdamW::new(&config)),
        rate,
        takes,
    };

    for n in [3, 1500] {
        let (slow, fast) =
            (train(Groups::new(vec![with(0.5, |_| true)]), n), train(Groups::one(AdamW::new(&config)), n));
        let both = train(Groups::new(vec![with(0.5, |entry| entry.shape.len() < 2), with(1.0, |_| true)]), n);
        assert_eq!(both, [&fast[..6], &slow[6..]].concat(), "{n} steps");
        assert_ne!(fast, slow);
    }
}

#[test]
fn coefficients_continue_if_nobody_reads_the_count() {
    let device = Device::flex().autodiff();
    let module = toy(&device);
    let config = OptimConfig { lr: 1e-6, schedule: Schedule::Constant, ..OptimConfig::default() };
    let mut optimizer = FlatOptimizer::new(&module, setup(&config), FloatDType::F32);
    let flat = gradients(&module, optimizer.table(), 1.0);
    let step = |optimizer: &mut FlatOptimizer| {
        let numbers = optimizer.step(flat.clone(), one(&device), one(&device));
        let values = numbers.values().clone().into_data().try_into_vec::<f32>().expect("f32");
        (StepNumbers::report(&values).update, values[3])
    };
    for update in 1..=5000 {
        let wanted = (optimizer.learning_rate().at(update) / (1.0 - config.beta1.powf(update as f64))) as f32;
        assert_eq!(step(&mut optimizer), (update, wanted));
    }
    // Read while two later steps were running.
    optimizer.observe(4998, 2);
    assert_eq!(optimizer.updates, [4998, 5000]);
    assert_eq!(step(&mut optimizer).0, 5001);
}
