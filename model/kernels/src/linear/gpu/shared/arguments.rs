//! The arguments of the kernel.

use cubecl::prelude::*;

/// The operands.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Operands<E: Float> {
    pub(crate) a: TensorMap<E, Tiled>,
    pub(crate) b: TensorMap<E, Tiled>,
}

/// What TMA stores, and what the epilogue reads.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Results<E: Float> {
    pub(crate) c: TensorMap<E, Tiled>,
    /// The residual, or where the arguments of an activation are kept for backward.
    pub(crate) auxiliary: TensorMap<E, Tiled>,
}

/// The sizes of a product.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GemmSize {
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Elements from one row of f32 sums to the next.
    pub(crate) pitch: u32,
    pub(crate) k_tiles: u32,
}

/// How K is split, see [`super::split_k`]; without meaning where it is not.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct SplitKSize {
    /// Slices per tile, without the tail's.
    pub(crate) slices: u32,
    /// K tiles per slice.
    pub(crate) slice_len: u32,
    /// Slices into which a tail of the last round is cut.
    pub(crate) tail_slices: u32,
}
