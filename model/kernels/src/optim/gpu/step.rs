//! The update itself.

use cubecl::prelude::*;

use crate::dropout::kernel::philox_of;
use crate::optim::rounding::{OCTET, Rounded};
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

/// The weights, and the moments of their gradient.
#[derive(CubeType, CubeLaunch)]
pub(super) struct State<E: Float, N: Size> {
    pub(super) master: Box<[Vector<E, N>]>,
    pub(super) m: Box<[Vector<E, N>]>,
    pub(super) v: Box<[Vector<E, N>]>,
}

/// What a step makes of a vector of each.
#[derive(CubeType)]
struct Updated<N: Size> {
    master: Vector<f32, N>,
    m: Vector<f32, N>,
    v: Vector<f32, N>,
}

/// Computes vector `at` after a step, see [`adamw_step`](crate::optim::adamw_step) for the formulas and
/// [`slots`](crate::optim::slots) for `numbers`.
#[cube]
fn updated<E: Float, G: Float, N: Size>(
    state: &State<E, N>,
    gradient: &[Vector<G, N>],
    at: usize,
    numbers: &[f32],
    factors: &Factors,
) -> Updated<N> {
    let g = Vector::<f32, N>::cast_from(gradient[at]) * Vector::new(numbers[slot::GRADIENT_FACTOR]);

    let m = Vector::<f32, N>::cast_from(state.m[at]);
    let first = m * Vector::new(factors.beta1) + g * Vector::new(factors.rest1);
    let v = Vector::<f32, N>::cast_from(state.v[at]);
    let second = v * Vector::new(factors.beta2) + g * g * Vector::new(factors.rest2);
    let decay = select(at < factors.decayed as usize, 1.0f32 - numbers[slot::DECAY], 1.0f32);
    let denominator =
        Vector::<f32, N>::sqrt(second) * Vector::new(numbers[slot::SECOND_MOMENT]) + Vector::new(factors.eps);
    let change = Vector::new(numbers[slot::LEARNING_RATE]) * first / denominator;
    let master = Vector::<f32, N>::cast_from(state.master[at]) * Vector::new(decay) - change;

    Updated::<N> { master, m: first, v: second }
}

/// Makes a step with a state in f32.
#[cube(launch_unchecked)]
pub(super) fn step<W: Float, G: Float, N: Size>(
    state: &mut State<f32, N>,
    weights: &mut [Vector<W, N>],
    gradient: &[Vector<G, N>],
    numbers: &[f32],
    factors: &Factors,
    #[comptime] writes_weights: bool,
    #[define(W, G)] _dtypes: [ElemType; 2],
) {
    let at = ABSOLUTE_POS;
    if at < factors.vectors as usize && numbers[slot::TAKEN] > 0.0f32 {
        let after = updated::<f32, G, N>(&*state, gradient, at, numbers, factors);

        state.m[at] = after.m;
        state.v[at] = after.v;
        state.master[at] = after.master;
        if writes_weights {
            weights[at] = Vector::cast_from(after.master);
        }
    }
}

/// What decides the random bits of a launch, see [`Rounding`](crate::optim::Rounding).
#[derive(CubeType, CubeLaunch)]
pub(super) struct Random {
    pub(super) first_octet: u32,
    pub(super) seed_low: u32,
    pub(super) seed_high: u32,
}

/// Rounds `exact` to bf16 by 16 random bits of `word`, its `upper` or lower ones, see [`Rounding`](crate::optim::Rounding).
#[cube]
fn between_neighbours(exact: f32, word: u32, #[comptime] upper: bool) -> f32 {
    let digits = u32::reinterpret(exact);
    let bits = if comptime![upper] { word >> 16 } else { word & 0xffffu32 };
    let is_nan = (digits & 0x7fff_ffffu32) > 0x7f80_0000u32;
    let cut_off = select(is_nan, digits | 0x0040_0000u32, digits + bits) & 0xffff_0000u32;
    f32::reinterpret(cut_off)
}

/// Rounds vector `at` of the tensor `which`.
#[cube]
fn rounded<E: Float, N: Size>(
    exact: Vector<f32, N>,
    at: usize,
    numbers: &[f32],
    random: &Random,
    #[comptime] which: Rounded,
) -> Vector<E, N> {
    let (w0, w1, w2, w3) = philox_of(
        random.first_octet + at as u32,
        comptime![which as u32].runtime(),
        u32::cast_from(numbers[slot::BLOCKS]),
        u32::cast_from(numbers[slot::UPDATES]),
        random.seed_low,
        random.seed_high,
    );
    let mut words = Array::<u32>::new(comptime![OCTET / 2]);
    words[0] = w0;
    words[1] = w1;
    words[2] = w2;
    words[3] = w3;

    let mut of_vector = Vector::<f32, N>::zeroed();
    #[unroll]
    for i in 0..OCTET {
        let word = words[comptime![i / 2]];
        of_vector.insert(i, between_neighbours(exact.extract(i), word, comptime![i % 2 == 1]));
    }
    Vector::cast_from(of_vector)
}

/// Makes a step with a state in bf16. A vector has [`OCTET`] numbers.
#[cube(launch_unchecked)]
pub(super) fn step_rounded<E: Float, G: Float, N: Size>(
    state: &mut State<E, N>,
    gradient: &[Vector<G, N>],
    numbers: &[f32],
    factors: &Factors,
    random: &Random,
    #[define(E, G)] _dtypes: [ElemType; 2],
) {
    let at = ABSOLUTE_POS;
    if at < factors.vectors as usize && numbers[slot::TAKEN] > 0.0f32 {
        let after = updated::<E, G, N>(&*state, gradient, at, numbers, factors);

        state.m[at] = rounded::<E, N>(after.m, at, numbers, random, Rounded::FirstMoment);
        state.v[at] = rounded::<E, N>(after.v, at, numbers, random, Rounded::SecondMoment);
        state.master[at] = rounded::<E, N>(after.master, at, numbers, random, Rounded::Master);
    }
}
