//! What the CubeCL kernels share.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::{copy_contiguous, untile};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::copy_into;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::{shape, strides};

/// An uninitialized contiguous tensor on the device of `like`.
pub(crate) fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// An uninitialized contiguous tensor with the device, shape and dtype of `like`.
pub(crate) fn empty_like(like: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), like.meta.shape().clone(), like.dtype)
}

/// Number `at` of `n`, counted from the last. Cubes start in the order of their numbers: a kernel that goes the other way reads first
/// what the one before wrote last, which L2 still has, and leaves there what the next one begins with.
#[cube]
pub(crate) fn from_last(at: u32, n: u32) -> u32 {
    n - 1 - at
}

/// The widest load of at most 16 bytes that divides a row of `d` elements, in elements.
pub(crate) fn vector_width(d: usize, dtype: DType) -> usize {
    let mut width = 16 / dtype.size();
    while !d.is_multiple_of(width) {
        width /= 2;
    }
    width
}

/// Bytes to whose multiples TMA addresses rows.
const ROW_ALIGNMENT: usize = 16;

/// Whether the device has what came with Hopper: TMA, bulk copies, and products of warpgroups.
pub(crate) fn is_hopper(client: &Client) -> bool {
    !client.properties().features.matmul.wgmma.is_empty()
}

/// Multiprocessors of the device, among which cubes are to be shared out: 64 if it does not say.
pub(crate) fn multiprocessors(client: &Client) -> u32 {
    client.properties().hardware.num_streaming_multiprocessors.unwrap_or(64)
}

/// [`empty`], with rows that begin at multiples of 16 bytes.
pub(crate) fn empty_pitched(like: &CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    let pitch = shape[1].next_multiple_of(ROW_ALIGNMENT / dtype.size().min(2));
    let whole = empty(like, [shape[0], pitch], dtype);
    CubeTensor { meta: Box::new(Metadata::new(shape, strides![pitch, 1])), ..whole }
}

/// Numbers from the beginning of a row of a matrix to the next.
pub(crate) fn row_pitch(matrix: &CubeTensor) -> usize {
    let [rows, columns] = [matrix.meta.shape()[0], matrix.meta.shape()[1]];
    // The stride of a single row says nothing.
    if rows > 1 { matrix.meta.strides()[0] } else { columns.next_multiple_of(ROW_ALIGNMENT / 2) }
}

/// Whether the numbers of a row lie side by side, and its rows behind each other, at any distance.
pub(crate) fn in_rows(matrix: &CubeTensor) -> bool {
    let columns = matrix.meta.shape()[1];
    let side_by_side = columns == 1 || matrix.meta.strides()[1] == 1;
    side_by_side && row_pitch(matrix) >= columns && !matrix.meta.is_tiled()
}

/// `matrix` in a memory layout that TMA can address, which is mostly the one it has.
pub(crate) fn addressable(matrix: CubeTensor) -> CubeTensor {
    let [rows, columns] = [matrix.meta.shape()[0], matrix.meta.shape()[1]];
    let start = matrix.handle.offset_start.unwrap_or(0) as usize;
    let unaligned = start % ROW_ALIGNMENT + row_pitch(&matrix) * matrix.dtype.size() % ROW_ALIGNMENT;
    if in_rows(&matrix) && unaligned == 0 {
        return matrix;
    }
    let copy = empty_pitched(&matrix, [rows, columns], matrix.dtype);
    let (client, dtype) = (matrix.client.clone(), dtype_to_storage_type(matrix.dtype));
    copy_into(&client, untile(matrix).binding(), copy.clone().binding(), dtype);
    copy
}

/// `vector` in a buffer of its own if it does not begin at a multiple of 16 bytes.
pub(crate) fn aligned(vector: CubeTensor) -> CubeTensor {
    if (vector.handle.offset_start.unwrap_or(0) as usize).is_multiple_of(ROW_ALIGNMENT) {
        vector
    } else {
        copy_contiguous(vector)
    }
}

/// An [`addressable`] 16-bit matrix, moved in boxes of `box_rows` x `box_columns` with the 128-byte swizzle.
pub(crate) fn tensor_map(tensor: &CubeTensor, box_rows: usize, box_columns: usize) -> TensorMapArg<Tiled> {
    let [rows, columns] = [tensor.meta.shape()[0], tensor.meta.shape()[1]];
    let strides = strides![row_pitch(tensor), 1];
    // SAFETY: shape and strides are the tensor's own.
    #[expect(unsafe_code, reason = "a tensor argument from a handle")]
    let arg = unsafe { TensorArg::from_raw_parts(tensor.handle.clone(), strides, shape![rows, columns]) };
    TensorMapArg::new(TiledArgs { tile_size: shape![box_rows, box_columns] }, arg, dtype_to_storage_type(tensor.dtype))
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

/// A number where kernels work on vectors.
pub(crate) type One = Vector<f32, Const<1>>;

/// `sum`, and added to it one after the other `values[base + stride * i]` for `i` from `from` on in steps of `step`, those below `end`.
/// `at_once` loads are on their way before the first is needed; beyond the last number it is read once more.
#[cube]
pub(crate) fn add_up<N: Size>(
    sum: Vector<f32, N>,
    values: &[Vector<f32, N>],
    base: usize,
    stride: usize,
    from: u32,
    end: u32,
    #[comptime] step: u32,
    #[comptime] at_once: u32,
) -> Vector<f32, N> {
    let mut total = sum;
    let mut next = from;
    while next < end {
        let mut read = Array::<Vector<f32, N>>::new(comptime![at_once as usize]);
        #[unroll]
        for i in 0..at_once {
            let here = min(next + comptime![i * step], end - 1);
            read[comptime![i as usize]] = values[base + here as usize * stride];
        }
        #[unroll]
        for i in 0..at_once {
            if next + comptime![i * step] < end {
                total += read[comptime![i as usize]];
            }
        }
        next += comptime![at_once * step];
    }
    total
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
