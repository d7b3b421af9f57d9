//! Forward: each head of queries and keys divided by its root mean square.

use cubecl::prelude::*;

use super::UNITS;
use super::heads::{HeadsConfig, Scales, load, place, scale, square_of, store};

/// Normalizes the heads of queries and keys, and copies the others.
#[cube(launch_unchecked)]
pub(super) fn norm_heads_forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    scales: &Scales<F, N>,
    y: &mut [Vector<F, N>],
    heads: u32,
    eps: f32,
    #[comptime] config: HeadsConfig,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(CUBE_POS as u32 * UNITS + UNIT_POS, config);
    let width = N::value().comptime();
    let n = comptime![(config.vectors as usize * width) as f32].runtime();
    let mut held = load::<F, N>(x, &at, heads, config);
    let inverse = f32::inverse_sqrt(square_of::<N>(&held, config) / n + eps);

    let of_row = at.head % comptime![config.n_heads];
    if of_row < comptime![config.n_query_heads + config.n_key_heads] {
        #[unroll]
        for i in 0..comptime![config.slots()] {
            let vector = at.lane + comptime![i as u32 * config.lanes()];
            let gamma = scale::<F, N>(scales, of_row < comptime![config.n_query_heads], vector, config);
            held[i] = held[i] * Vector::new(inverse) * gamma;
        }
    }
    store::<F, N>(y, &held, &at, heads, config);
}
