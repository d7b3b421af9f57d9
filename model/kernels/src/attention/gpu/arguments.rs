//! The arguments that the kernels share.

use cubecl::prelude::*;

use super::Oct;
use crate::dropout::kernel::DropArgs;

/// The matrices whose tiles TMA loads.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Inputs<E: Float> {
    pub(super) query: TensorMap<E, Tiled>,
    /// The same matrix if queries, keys and values are packed.
    pub(super) key_value: TensorMap<E, Tiled>,
}

/// What backward reads besides [`Inputs`].
#[derive(CubeType, CubeLaunch)]
pub(super) struct Outputs<E: Float> {
    pub(super) out: Box<[Oct<E>]>,
    pub(super) d_out: Box<[Oct<E>]>,
    pub(super) d_out_tiles: TensorMap<E, Tiled>,
    pub(super) lse: Box<[f32]>,
}

/// What hides keys from queries, apart from causality, or favours them. A mask that the configuration does not ask for is not touched.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Masks {
    /// Keys of each batch row.
    pub(super) lengths: Box<[i32]>,
    /// The document of each position.
    pub(super) documents: Box<[i32]>,
    /// What each head adds to the scores of a distance, `[H, T + S - 1]`.
    pub(super) relative: Box<[f32]>,
}

/// Queries and keys per batch row.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Lens {
    pub(super) t: u32,
    pub(super) s: u32,
}

/// Which probabilities are dropped. Without dropout, the state is not touched.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Dropout {
    /// Of the random stream.
    pub(super) state: Box<[i32]>,
    pub(super) args: DropArgs,
}

/// The arguments of a kernel whose blocks own a tile each.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Call {
    pub(super) masks: Masks,
    /// Heads of the owned tiles, counted over all batch rows.
    pub(super) heads: u32,
    pub(super) lens: Lens,
    pub(super) dropout: Dropout,
    /// How blocks are numbered, see [`super::position::cube_place`].
    pub(super) heads_at_once: u32,
    pub(super) tile_bits: u32,
}
