use burn::module::{Module, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::store::ModuleRecord;
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use kiln_kernels::optim::Counters;

use crate::burn_traits::{clip_gradients, module_optimizer};
use crate::config::Config;
use crate::optim::{FlatOptimizer, Groups, LearningRate, Setup};

/// A table, two layers with a matrix and a vector each, and a vector that no loss depends on.
#[derive(Module, Debug)]
struct Toy {
    table: Param<Tensor<2>>,
    layers: Vec<Layer>,
    unused: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

/// Sizes that do not fill the alignment of flat tensors, and one of more than a chunk.
fn toy(device: &Device) -> Toy {
    device.seed(3);
    let matrix = |shape: [usize; 2]| Param::from_tensor(Tensor::random(shape, Distribution::Normal(0.0, 0.3), device));
    let vector = |n: usize| Param::from_tensor(Tensor::random([n], Distribution::Normal(0.0, 0.3), device));
    let layer = |rows, columns| Layer { weight: matrix([rows, columns]), bias: vector(columns) };
    Toy { table: matrix([90, 70]), layers: vec![layer(70, 33), layer(33, 70)], unused: vector(3) }
}

/// A loss whose gradients differ from step to step.
fn loss(toy: &Toy, step: usize) -> Tensor<1> {
    let mut x = toy.table.val().cast(DType::F32) * (1.0 + step as f32);
    for Layer { weight, bias } in &toy.layers {
        x = x.matmul(weight.val().cast(DType::F32)) + bias.val().cast(DType::F32).unsqueeze();
        x = x.tanh();
    }
    x.powi_scalar(2).sum()
}

fn config(optimizer: &str, max_grad_norm: f64) -> Config {
    Config::preset("gpt2-tiny")
        .set("train.optimizer", optimizer)
        .set("optim.max_grad_norm", max_grad_norm)
        .set("optim.weight_decay", 0.1)
        .set("optim.lr", 0.01)
        .set("optim.warmup_steps", 2)
        .set("train.steps", 10)
        .validate()
        .expect("a valid configuration")
}

fn rate(config: &Config) -> LearningRate {
    LearningRate::new(&config.optim, config.train.steps, config.model.d_model)
}

/// The weights as f32, exactly.
fn weights(toy: &Toy) -> Vec<Vec<f32>> {
    let read = |tensor: Tensor<1>| tensor.inner().cast(DType::F32).into_data().as_slice::<f32>().expect("f32").to_vec();
    let layers = toy.layers.iter().flat_map(|layer| [read(layer.weight.val().flatten(0, 1)), read(layer.bias.val())]);
    [read(toy.table.val().flatten(0, 1)), read(toy.unused.val())].into_iter().chain(layers).collect()
}

/// Trains with the trainer's optimizer.
fn with_kiln(config: &Config, dtype: FloatDType, steps: usize) -> Vec<Vec<f32>> {
    let module = toy(&Device::flex().autodiff());
    let setup = Setup {
        groups: Groups::of(config, dtype),
        learning_rate: rate(config),
        max_grad_norm: config.optim.max_grad_norm,
        scaling: None,
        stops: false,
        counters: Counters { updates: 0, loss_scale: 1.0, good_steps: 0 },
    };
    let mut optimizer = FlatOptimizer::new(&module, setup, dtype);
    let mut module = optimizer.attach(module);
    let one = Tensor::<1>::ones([1], &Device::flex());
    for step in 0..steps {
        let mut gradients = loss(&module, step).backward();
        let flat = optimizer.table().flatten_gradients(&module, &mut gradients, dtype, None);
        optimizer.step(flat, one.clone(), one.clone());
        module = optimizer.attach(module);
    }
    weights(&module)
}

fn burn_step(toy: Toy, optimizer: &mut ModuleOptimizer, config: &Config, step: usize) -> Toy {
    let gradients = GradientsParams::from_grads(loss(&toy, step).backward(), &toy);
    let gradients = clip_gradients(&toy, gradients, config.optim.max_grad_norm);
    optimizer.step(rate(config).at(step as u64 + 1), toy, gradients)
}

/// A toy whose weights have the compute dtype, and Burn's optimizer of it.
fn start(config: &Config, dtype: FloatDType) -> (Toy, ModuleOptimizer) {
    let module = toy(&Device::flex().autodiff());
    let optimizer = module_optimizer(config, dtype, &module);
    (module, optimizer)
}

#[test]
fn updates_have_the_bits_of_the_trainer() {
    for optimizer in ["adamw", "muon"] {
        // Without clipping, and with a limit that clips every step.
        for max_grad_norm in [0.0, 0.5] {
            let config = config(optimizer, max_grad_norm);
            let (mut module, mut burn) = start(&config, FloatDType::F32);
            let before = weights(&module);
            for step in 0..6 {
                module = burn_step(module, &mut burn, &config, step);
            }
            let (found, wanted) = (weights(&module), with_kiln(&config, FloatDType::F32, 6));
            assert_ne!(found[0], before[0]);
            assert_eq!(found[1], before[1], "a parameter without a gradient stays");
            assert_eq!(found, wanted, "{optimizer}, limit {max_grad_norm}");
        }
    }
}

#[test]
fn a_clone_that_is_kept_does_not_change() {
    let config = config("muon", 0.0);
    let (module, mut optimizer) = start(&config, FloatDType::F32);
    let module = burn_step(module, &mut optimizer, &config, 0);
    let (kept, mut other) = (module.clone(), optimizer.clone());
    let before = weights(&kept);
    let stepped = burn_step(module, &mut optimizer, &config, 1);
    assert_eq!(weights(&kept), before);
    assert_eq!(weights(&burn_step(kept, &mut other, &config, 1)), weights(&stepped));
}

#[test]
fn a_record_continues_the_optimizer_bit_for_bit() {
    for optimizer in ["adamw", "muon"] {
        let config = config(optimizer, 1.0);
        let (mut module, mut burn) = start(&config, FloatDType::F32);
        for step in 0..3 {
            module = burn_step(module, &mut burn, &config, step);
        }

        // As a learner resumes: a new model gets the record, and with it the parameters' names in the optimizer's.
        let bytes = module.clone().into_record().into_bytes().expect("bytes");
        let fresh = toy(&Device::flex().autodiff());
        let mut resumed = fresh.load_record(ModuleRecord::from_bytes(bytes).expect("a record"));
        let state = burn.into_bytes().expect("bytes");
        let mut burn_again = module_optimizer(&config, FloatDType::F32, &resumed).from_bytes(state).expect("a record");
        let mut without_state = module_optimizer(&config, FloatDType::F32, &resumed);
        let other = burn_step(resumed.clone(), &mut without_state, &config, 3);

        for step in 3..6 {
            module = burn_step(module, &mut burn, &config, step);
            resumed = burn_step(resumed, &mut burn_again, &config, step);
            if step == 3 {
                assert_ne!(weights(&other), weights(&module), "the state is what makes them equal");
            }
            assert_eq!(weights(&resumed), weights(&module), "{optimizer}, step {step}");
        }
    }
}

#[test]
fn bf16_weights_have_f32_masters_in_the_state() {
    let config = config("adamw", 0.0);
    let (module, mut optimizer) = start(&config, FloatDType::BF16);
    let mut module = cast(module, DType::BF16);
    // The trainer's masters are exact, so it begins with the rounded weights, too.
    let rounded = weights(&module);
    for step in 0..4 {
        module = burn_step(module, &mut optimizer, &config, step);
    }
    assert_eq!(module.table.val().dtype(), DType::BF16);
    assert_ne!(weights(&module), rounded);

    // A rate too small to change a bf16 number in one step adds up in the masters.
    let slow = Config { optim: crate::config::OptimConfig { lr: 1e-5, ..config.optim.clone() }, ..config };
    let after = |steps| {
        let (module, mut optimizer) = start(&slow, FloatDType::BF16);
        let mut module = cast(module, DType::BF16);
        (0..steps).for_each(|_| {
            let gradients = GradientsParams::from_grads(loss(&module, 0).backward(), &module);
            module = optimizer.step(1e-5, module.clone(), gradients);
        });
        let changed = weights(&module).into_iter().flatten().zip(rounded.iter().flatten());
        changed.filter(|(after, before)| after != *before).count()
    };
    let (few, many) = (after(1), after(60));
    assert!(many > 5 * few.max(10), "{few} weights changed in one step, {many} in 60");
}

fn cast(toy: Toy, dtype: DType) -> Toy {
    use burn::module::ModuleMapper;
    struct Cast(DType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| Tensor::from_inner(tensor.inner().cast(self.0)).require_grad())
        }
    }
    toy.map(&mut Cast(dtype))
}
