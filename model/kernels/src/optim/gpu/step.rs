//! The update itself.

use cubecl::prelude::*;

use crate::optim::slots::step as slot;

/// The sizes of the tensors, and the factors of the formulas.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Factors {
    /// Vectors of every tensor.
    pub(super) vectors: u32,
    /// Vectors with weight decay, the first ones.
    pub(super) decayed: u32,
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    /// `1 - beta1` and `1 - beta2`.
    pub(super) rest1: f32,
    pub(super) rest2: f32,
    pub(super) eps: f32,
}

/// The weights in f32, and the moments of their gradient.
#[derive(CubeType, CubeLaunch)]
pub(super) struct State<N: Size> {
    pub(super) master: Box<[Vector<f32, N>]>,
    pub(super) m: Box<[Vector<f32, N>]>,
    pub(super) v: Box<[Vector<f32, N>]>,
}

/// Makes a step, see [`adamw_step`](crate::optim::adamw_step) for the formulas and [`slots`](crate::optim::slots) for
/// `numbers`.
#[cube(launch_unchecked)]
pub(super) fn step<W: Float, G: Float, N: Size>(
    state: &mut State<N>,
    weights: &mut [Vector<W, N>],
    gradient: &[Vector<G, N>],
    numbers: &[f32],
    factors: Factors,
    #[comptime] writes_weights: bool,
    #[define(W, G)] _dtypes: [ElemType; 2],
) {
    let at = ABSOLUTE_POS;
    if at < factors.vectors as usize && numbers[slot::TAKEN] > 0.0f32 {
        let g = Vector::<f32, N>::cast_from(gradient[at]) * Vector::new(numbers[slot::GRADIENT_FACTOR]);

        let first = state.m[at] * Vector::new(factors.beta1) + g * Vector::new(factors.rest1);
        let second = state.v[at] * Vector::new(factors.beta2) + g * g * Vector::new(factors.rest2);
        let decay = select(at < factors.decayed as usize, 1.0f32 - numbers[slot::DECAY], 1.0f32);
        let denominator =
            Vector::<f32, N>::sqrt(second) * Vector::new(numbers[slot::SECOND_MOMENT]) + Vector::new(factors.eps);
        let change = Vector::new(numbers[slot::LEARNING_RATE]) * first / denominator;
        let updated = state.master[at] * Vector::new(decay) - change;

        state.m[at] = first;
        state.v[at] = second;
        state.master[at] = updated;
        if writes_weights {
            weights[at] = Vector::cast_from(updated);
        }
    }
}
