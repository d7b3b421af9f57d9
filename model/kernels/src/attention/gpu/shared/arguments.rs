//! The arguments that the kernels share.

use cubecl::prelude::*;

use super::Oct;
use crate::dropout::kernel::DropArgs;

/// The matrices whose tiles TMA loads.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Inputs<E: Float> {
    pub(crate) query: TensorMap<E, Tiled>,
    /// The same matrix if queries, keys and values are packed.
    pub(crate) key_value: TensorMap<E, Tiled>,
}

/// What backward reads besides [`Inputs`].
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Outputs<E: Float> {
    pub(crate) out: Box<[Oct<E>]>,
    pub(crate) d_out: Box<[Oct<E>]>,
    pub(crate) d_out_tiles: TensorMap<E, Tiled>,
    pub(crate) lse: Box<[f32]>,
}

/// What hides keys from queries, apart from causality, or favours them. A mask that the configuration does not ask for is not touched.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Masks {
    /// Keys of each batch row.
    pub(crate) lengths: Box<[i32]>,
    /// The document of each position.
    pub(crate) documents: Box<[i32]>,
    /// What each head adds to the scores of a distance, `[H, T + S - 1]`.
    pub(crate) relative: Box<[f32]>,
}

/// Queries and keys per batch row.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Lens {
    pub(crate) t: u32,
    pub(crate) s: u32,
}

/// Which probabilities are dropped. Without dropout, the state is not touched.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Dropout {
    /// Of the random stream.
    pub(crate) state: Box<[i32]>,
    pub(crate) args: DropArgs,
}

/// The arguments of a kernel whose blocks own a tile each.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Call {
    pub(crate) masks: Masks,
    /// Heads of the owned tiles, counted over all batch rows.
    pub(crate) heads: u32,
    pub(crate) lens: Lens,
    pub(crate) dropout: Dropout,
    /// How blocks are numbered, see [`super::position::cube_place`].
    pub(crate) heads_at_once: u32,
    pub(crate) tile_bits: u32,
}
