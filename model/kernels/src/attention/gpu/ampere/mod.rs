//! Flash attention on Ampere and later GPUs: `cp.async`, `ldmatrix`, `mma.sync`. On Hopper it serves f32 and the heads that the kernels
//! for Hopper do not.
//!
//! A block is four warps. Of each tile of 64 rows that it owns, a warp owns 16, in registers with the layout of a warpgroup
//! product. So masks, softmax, dropout and the order of the tiles have the same code as on Hopper.
//!
//! | kernel | owns | streamed | result |
//! |---|---|---|---|
//! | [`forward`] | one or two tiles of queries | keys, values | out, log-sums |
//! | [`query_gradient`] | a tile of queries and d_out | keys, values | dQ, deltas |
//! | [`key_value_gradient`] | a tile of keys and values | queries, d_out | dK, dV |
//! | [`split_gradient`] | a tile of keys, and for dK of values | queries, d_out | dK or dV |
//! | [`relative_gradient`] | a tile of queries and d_out | keys, values | sums by distance |
//!
//! Wide heads, of more than 128 dimensions or 64 of f32, leave a thread the registers for one sum. So dK and dV are two kernels, and
//! both compute the scores. Memory holds one streamed tile of each kind, with 32 rows where 64 do not fit. One tile arrives during the
//! product with the other. A block has 97 KiB at most, so that it fits on every GPU since Ampere.
//!
//! With two tiles a warp uses each streamed fragment twice, which halves what it reads from shared memory. [`tile`] loads tiles
//! and multiplies them.

mod forward;
mod key_value_gradient;
mod launch;
mod query_gradient;
mod relative_gradient;
mod split_gradient;
#[cfg(test)]
pub(super) mod tests;
mod tile;

use cubecl::prelude::*;
pub(super) use launch::{launch_backward, launch_forward, launch_relative_gradient, serves, serves_relative};

use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::gpu::mma_f32::Arithmetic;
use tile::tile_octs;

/// The matrices of queries, keys and values, in vectors of 16 bytes.
#[derive(CubeType, CubeLaunch)]
struct Inputs<E: Float, N: Size> {
    query: Box<[Vector<E, N>]>,
    /// The same matrix if queries, keys and values are packed.
    key_value: Box<[Vector<E, N>]>,
}

/// What backward reads besides [`Inputs`].
#[derive(CubeType, CubeLaunch)]
struct Outputs<E: Float, N: Size> {
    out: Box<[Vector<E, N>]>,
    d_out: Box<[Vector<E, N>]>,
    lse: Box<[f32]>,
}

/// Whether a thread lacks the registers, or a block the memory, for the gradients of keys and values at once.
fn is_wide(cfg: &FlashConfig) -> bool {
    cfg.head_dim > if cfg.arithmetic.is_f32() { 64 } else { 128 }
}

/// Whether a thread of forward has registers for one tile of queries only.
fn owns_one(cfg: &FlashConfig) -> bool {
    is_wide(cfg) || cfg.arithmetic == Arithmetic::F32
}

/// Returns the rows of a streamed tile of backward. For wide heads, 96 KiB hold two such tiles and `own` tiles of 64 rows.
fn streamed_rows(own: usize, cfg: &FlashConfig) -> usize {
    let tile_bytes = 16 * tile_octs(TILE, cfg);
    if is_wide(cfg) && (own + 2) * tile_bytes > 96 << 10 { TILE / 2 } else { TILE }
}

/// Returns the blocks of forward on a multiprocessor at a time, each with `owned` tiles of queries.
fn forward_cubes(owned: usize, cfg: &FlashConfig) -> usize {
    match (owned, cfg.head_dim) {
        (1, ..=64) if cfg.arithmetic == Arithmetic::F32 => {
            // Masks and dropout together take the registers of a third.
            if cfg.documents && cfg.dropout { 2 } else { 3 }
        }
        (1, ..=64) => 4,
        _ => 2,
    }
}

/// Returns the blocks of a kernel of backward on a multiprocessor at a time.
fn gradient_cubes(cfg: &FlashConfig) -> usize {
    match cfg.head_dim {
        ..=32 if cfg.arithmetic.is_f32() => 3,
        ..=32 => 4,
        // Masks and dropout together take the registers of a third.
        33..=64 if !(cfg.documents && cfg.dropout || cfg.arithmetic.is_f32()) => 3,
        _ => 2,
    }
}
