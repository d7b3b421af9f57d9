//! Tensor maps, through which TMA finds the boxes of a matrix.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::zspace::{shape, strides};

use super::memory::row_pitch;

/// Returns [`tensor_map_as`] the tensor's own elements.
pub(crate) fn tensor_map(tensor: &CubeTensor, box_rows: usize, box_columns: usize) -> TensorMapArg<Tiled> {
    tensor_map_as(tensor, box_rows, box_columns, dtype_to_storage_type(tensor.dtype))
}

/// Returns the map of an [`addressable`](super::memory::addressable) matrix that is moved in boxes of `box_rows` x
/// `box_columns` of 128, 64 or 32 bytes, with the swizzle of such lines. TMA rounds f32 to `element` if that is TF32.
pub(crate) fn tensor_map_as(
    tensor: &CubeTensor,
    box_rows: usize,
    box_columns: usize,
    element: ElemType,
) -> TensorMapArg<Tiled> {
    let [rows, columns] = [tensor.meta.shape()[0], tensor.meta.shape()[1]];
    let swizzle = match box_columns * tensor.dtype.size() {
        32 => TensorMapSwizzle::B32,
        64 => TensorMapSwizzle::B64,
        _ => TensorMapSwizzle::B128,
    };
    let strides = strides![row_pitch(tensor), 1];
    // SAFETY: shape and strides are the tensor's own.
    #[expect(unsafe_code, reason = "a tensor argument from a handle")]
    let arg = unsafe { TensorArg::from_raw_parts(tensor.handle.clone(), strides, shape![rows, columns]) };
    TensorMapArg::new(TiledArgs { tile_size: shape![box_rows, box_columns] }, arg, element)
        .with_swizzle(swizzle)
        .with_prefetch(TensorMapPrefetch::B256)
}
