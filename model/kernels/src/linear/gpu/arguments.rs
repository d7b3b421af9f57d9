//! The arguments of the kernel.

use cubecl::prelude::*;

/// The operands.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Operands<E: Float> {
    pub(super) a: TensorMap<E, Tiled>,
    pub(super) b: TensorMap<E, Tiled>,
}

/// What TMA stores, and what the epilogue reads.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Results<E: Float> {
    pub(super) c: TensorMap<E, Tiled>,
    /// The residual, or where the arguments of an activation are kept for backward.
    pub(super) auxiliary: TensorMap<E, Tiled>,
}

/// The sizes of a product.
#[derive(CubeType, CubeLaunch)]
pub(super) struct GemmSize {
    pub(super) m: u32,
    pub(super) n: u32,
    /// Elements from one row of f32 sums to the next.
    pub(super) pitch: u32,
    pub(super) k_tiles: u32,
}

/// How K is split, see [`super::split_k`]; without meaning where it is not.
#[derive(CubeType, CubeLaunch)]
pub(super) struct SplitKSize {
    /// Slices per tile, without the tail's.
    pub(super) slices: u32,
    /// K tiles per slice.
    pub(super) slice_len: u32,
    /// Slices into which a tail of the last round is cut.
    pub(super) tail_slices: u32,
}
