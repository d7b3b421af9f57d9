//! What the CubeCL kernels share.

use burn::backend::DType;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::zspace::{shape, strides};
use half::bf16;

/// An uninitialized contiguous tensor on the device of `like`.
pub(crate) fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// The widest load of at most 16 bytes that divides a row of `d` elements, in elements.
pub(crate) fn vector_width(d: usize, dtype: DType) -> usize {
    let mut width = 16 / dtype.size();
    while !d.is_multiple_of(width) {
        width /= 2;
    }
    width
}

/// A whole contiguous bf16 matrix, moved in boxes of `box_rows` x `box_columns` with the 128-byte swizzle.
pub(crate) fn tensor_map(tensor: &CubeTensor, box_rows: usize, box_columns: usize) -> TensorMapArg<Tiled> {
    let [rows, columns] = [tensor.meta.shape()[0], tensor.meta.shape()[1]];
    // SAFETY: shape and strides are the tensor's own, and the tensor is contiguous.
    #[expect(unsafe_code, reason = "a tensor argument from a handle")]
    let arg = unsafe { TensorArg::from_raw_parts(tensor.handle.clone(), strides![columns, 1], shape![rows, columns]) };
    TensorMapArg::new(TiledArgs { tile_size: shape![box_rows, box_columns] }, arg, bf16::elem_type_native())
        .with_swizzle(TensorMapSwizzle::B128)
        .with_prefetch(TensorMapPrefetch::B256)
}

/// Sum of the elements of a vector.
#[cube]
pub(crate) fn sum_of<N: Size>(v: Vector<f32, N>) -> f32 {
    let mut sum = 0.0f32;
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        sum += v.extract(i);
    }
    sum
}

/// Sum over the `units` units of a cube, the same on each. In a loop, two sums must take turns: a unit may write for the
/// next turn while another still reads.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] units: u32) -> f32 {
    let planes = comptime![(units / 32) as usize];
    let mut shared = Shared::<[f32]>::new_slice(planes);
    let plane_total = plane_sum(value);
    if UNIT_POS_PLANE == 0 {
        shared[(UNIT_POS / 32) as usize] = plane_total;
    }
    sync_cube();
    let mut total = 0.0f32;
    #[unroll]
    for p in 0..planes {
        total += shared[p];
    }
    total
}
