//! Arguments of programs, from tensors.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::memory::row_pitch;
use crate::device_queue::programs::{Arguments, Boxes};

/// Adds a buffer of `len` elements, as the kernel counts them.
pub(crate) fn add_buffer(arguments: &mut Arguments, tensor: &CubeTensor, len: usize) {
    arguments.add_buffer(tensor.handle.clone().binding(), len);
}

/// Adds the map of an [`addressable`](super::memory::addressable) matrix of 16-bit numbers, for boxes of `rows` rows and 64 columns.
pub(crate) fn add_matrix(arguments: &mut Arguments, matrix: &CubeTensor, rows: usize) {
    let shape = [matrix.meta.shape()[0], matrix.meta.shape()[1]];
    let boxes = Boxes { is_bf16: matrix.dtype == DType::BF16, shape, pitch: row_pitch(matrix), rows };
    arguments.add_matrix(matrix.handle.clone().binding(), boxes);
}
