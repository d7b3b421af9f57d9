//! Flash attention on Ampere and later GPUs: `cp.async`, `ldmatrix`, `mma.sync`. On Hopper it serves the heads that the kernels for
//! Hopper do not.
//!
//! A block is four warps. Of each tile of 64 rows that it owns, a warp owns 16, in registers with the layout of a warpgroup
//! product. So masks, softmax, dropout and the order of the tiles have the same code as on Hopper.
//!
//! | kernel | owns | streamed | result |
//! |---|---|---|---|
//! | [`forward`] | one or two tiles of queries | keys, values | out, log-sums |
//! | [`query_gradient`] | a tile of queries and d_out | keys, values | dQ, deltas |
//! | [`key_value_gradient`] | a tile of keys and values | queries, d_out | dK, dV |
//!
//! With two tiles a warp uses each streamed fragment twice, which halves what it reads from shared memory. [`tile`] loads tiles,
//! multiplies and stores them.

mod forward;
mod key_value_gradient;
mod launch;
mod query_gradient;
#[cfg(test)]
pub(super) mod tests;
mod tile;

use cubecl::prelude::*;
pub(super) use launch::{launch_backward, launch_forward, serves};

use super::Oct;
use super::config::FlashConfig;

/// The matrices of queries, keys and values, in vectors of eight elements.
#[derive(CubeType, CubeLaunch)]
struct Inputs<E: Float> {
    query: Box<[Oct<E>]>,
    /// The same matrix if queries, keys and values are packed.
    key_value: Box<[Oct<E>]>,
}

/// What backward reads besides [`Inputs`].
#[derive(CubeType, CubeLaunch)]
struct Outputs<E: Float> {
    out: Box<[Oct<E>]>,
    d_out: Box<[Oct<E>]>,
    lse: Box<[f32]>,
}

/// Returns the blocks of a kernel of backward on a multiprocessor at a time.
fn gradient_cubes(cfg: &FlashConfig) -> usize {
    match cfg.head_dim {
        ..=32 => 4,
        // Masks and dropout together take the registers of a third.
        33..=64 if !(cfg.documents && cfg.dropout) => 3,
        _ => 2,
    }
}
