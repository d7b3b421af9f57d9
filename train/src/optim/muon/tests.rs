use burn::module::{Module, Param};
use burn::tensor::{Device, TensorData};
use kiln_kernels::optim::{Counters, Place, gather};
use serde::Deserialize;

use super::*;
use crate::config::Schedule;
use crate::optim::{FlatGradients, FlatOptimizer, Groups, LearningRate, Setup};

#[derive(Deserialize)]
struct Expected {
    rate: f64,
    weight_decay: f64,
    matrices: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    shape: [usize; 2],
    weight: Vec<f32>,
    momentum: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    after: Vec<f32>,
}

#[derive(Module, Debug)]
struct Matrices {
    layers: Vec<Param<Tensor<2>>>,
}

fn matrix(values: &[f32], shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

/// `tests/fixtures/muon/make.py`: the polynomials on the singular values of an SVD in f64.
fn expected() -> Expected {
    serde_json::from_str(include_str!("../../../../tests/fixtures/muon/expected.json")).expect("the fixture")
}

fn optimizer(expected: &Expected, dtype: FloatDType) -> FlatOptimizer {
    let config = OptimConfig {
        lr: expected.rate,
        weight_decay: expected.weight_decay,
        schedule: Schedule::Constant,
        warmup_steps: 0,
        ..OptimConfig::default()
    };
    let layers = expected.matrices.iter().map(|case| Param::from_tensor(matrix(&case.weight, case.shape)));
    let setup = Setup {
        groups: Groups::one(Muon::new(&config, 1.0, dtype)),
        learning_rate: LearningRate::new(&config, 8, 64),
        max_grad_norm: 0.0,
        scaling: None,
        stops: false,
        counters: Counters { updates: 0, loss_scale: 1.0, good_steps: 0 },
    };
    FlatOptimizer::new(&Matrices { layers: layers.collect() }, setup, dtype)
}

/// Steps with gradient number `i` of each matrix, times `factor`.
fn step(optimizer: &mut FlatOptimizer, expected: &Expected, i: usize, factor: f32) {
    let (table, device) = (optimizer.table().clone(), Device::flex());
    let parts = expected.matrices.iter().map(|case| (matrix(&case.gradients[i], case.shape) * factor).into());
    let places: Vec<Place> = table.entries().iter().map(|entry| entry.place()).collect();
    let flat = gather(parts.collect(), &places, table.flat_len(), burn::tensor::DType::F32, &device, None);
    let one = Tensor::ones([1], &device);
    optimizer.step(FlatGradients(flat), one.clone(), one);
}

/// The numbers of parameter `i` in a flat tensor.
fn numbers(optimizer: &FlatOptimizer, flat: &Tensor<1>, i: usize) -> Vec<f32> {
    let (entry, values) = (&optimizer.table().entries()[i], flat.clone().into_data());
    values.as_slice::<f32>().expect("f32")[entry.offset..][..entry.len()].to_vec()
}

fn largest_difference(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    found.iter().zip(wanted).map(|(found, wanted)| (found - wanted).abs()).fold(0.0, f32::max)
}

#[test]
fn equals_the_polynomials_on_singular_values() {
    let expected = expected();
    // bf16 products round an orthogonal matrix to 2 to 3 digits; an update has numbers up to 0.02.
    for (dtype, tolerance) in [(FloatDType::F32, 2e-5), (FloatDType::BF16, 2e-3)] {
        let mut optimizer = optimizer(&expected, dtype);
        (0..3).for_each(|i| step(&mut optimizer, &expected, i, 1.0));
        let state = optimizer.state();
        let momentum = state.named[0].as_ref().expect("a whole state");
        for (i, case) in expected.matrices.iter().enumerate() {
            let moved = largest_difference(&case.weight, &case.after);
            assert!(moved > 0.01, "{:?} moves by {moved}", case.shape);
            let error = largest_difference(&numbers(&optimizer, &state.master, i), &case.after);
            assert!(error < tolerance, "{dtype:?}, {:?}: off by {error}", case.shape);
            assert!(largest_difference(&numbers(&optimizer, momentum, i), &case.momentum) < 1e-5, "momentum");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let expected = expected();
    let mut optimizer = optimizer(&expected, FloatDType::F32);
    step(&mut optimizer, &expected, 0, 1.0);
    let read = |optimizer: &FlatOptimizer| {
        let state = optimizer.state();
        let tensors = [&state.master, state.named[0].as_ref().expect("a whole state")];
        tensors.map(|tensor| tensor.clone().into_data().try_into_vec::<f32>().expect("f32"))
    };
    let before = read(&optimizer);
    step(&mut optimizer, &expected, 1, f32::NAN);
    assert_eq!(read(&optimizer), before);
    step(&mut optimizer, &expected, 1, 1.0);
    assert_ne!(read(&optimizer), before);
}

/// Large enough that the products of one matrix are computed by several threads.
#[test]
fn a_matrix_has_the_same_bits_whatever_stands_beside_it() {
    for shape in [[256, 256], [64, 192], [320, 200]] {
        let [rows, columns] = shape;
        let value = |i: usize| ((i * 7919 + 31) % 65_537) as f32 / 977.0 - 30.0;
        let all: Vec<f32> = (0..5 * rows * columns).map(value).collect();
        let tensor = Tensor::<3>::from_data(TensorData::new(all, [5, rows, columns]), &Device::flex());
        let flat = tensor.reshape([5 * rows * columns]);
        let orthogonal = |first: usize, n: usize| {
            let first = Matrix { offset: first * rows * columns, shape };
            let (matrices, norms) = Run { first, n }.wide_matrices_and_norms(&flat);
            orthogonal(matrices, norms, FloatDType::F32).into_data().try_into_vec::<f32>().expect("f32")
        };
        let together = orthogonal(0, 5);
        for n in [1, 2, 3] {
            let some = orthogonal(2, n);
            let same = &together[2 * rows * columns..][..some.len()];
            assert!(some == same, "{shape:?}: {n} of 5");
        }
    }
}
