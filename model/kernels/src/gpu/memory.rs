//! Tensors in device memory: allocation, and layouts that TMA can address.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::{copy_contiguous, untile};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::std::tensor::copy_into;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::strides;

/// Returns an uninitialized contiguous tensor on the device of `like`.
pub(crate) fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// Returns an uninitialized contiguous tensor with the device, shape and dtype of `like`.
pub(crate) fn empty_like(like: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), like.meta.shape().clone(), like.dtype)
}

/// Returns the elements of the widest load, of at most 16 bytes, that divides a row of `d` elements.
pub(crate) fn vector_width(d: usize, dtype: DType) -> usize {
    let mut width = 16 / dtype.size();
    while !d.is_multiple_of(width) {
        width /= 2;
    }
    width
}

/// TMA addresses rows at multiples of this many bytes.
const ROW_ALIGNMENT: usize = 16;

/// Returns an [`empty`] matrix whose rows begin at multiples of 16 bytes.
pub(crate) fn empty_pitched(like: &CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    let pitch = shape[1].next_multiple_of(ROW_ALIGNMENT / dtype.size().min(2));
    let whole = empty(like, [shape[0], pitch], dtype);
    CubeTensor { meta: Box::new(Metadata::new(shape, strides![pitch, 1])), ..whole }
}

/// Returns the distance from one row of a matrix to the next, in elements.
pub(crate) fn row_pitch(matrix: &CubeTensor) -> usize {
    let [rows, columns] = [matrix.meta.shape()[0], matrix.meta.shape()[1]];
    // The stride of a single row is meaningless.
    if rows > 1 { matrix.meta.strides()[0] } else { columns.next_multiple_of(ROW_ALIGNMENT / 2) }
}

/// Whether the elements of each row are adjacent, and the rows follow each other at any distance.
pub(crate) fn in_rows(matrix: &CubeTensor) -> bool {
    let columns = matrix.meta.shape()[1];
    let are_adjacent = columns == 1 || matrix.meta.strides()[1] == 1;
    are_adjacent && row_pitch(matrix) >= columns && !matrix.meta.is_tiled()
}

/// Returns `matrix` in a memory layout that TMA can address: as it is, in most cases, else a copy.
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

/// Whether `tensor` begins at a multiple of 16 bytes.
pub(crate) fn starts_aligned(tensor: &CubeTensor) -> bool {
    (tensor.handle.offset_start.unwrap_or(0) as usize).is_multiple_of(ROW_ALIGNMENT)
}

/// Returns `vector`, or a copy if it does not begin at a multiple of 16 bytes.
pub(crate) fn aligned(vector: CubeTensor) -> CubeTensor {
    if starts_aligned(&vector) { vector } else { copy_contiguous(vector) }
}
