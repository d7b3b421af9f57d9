//! What the CubeCL kernels share.

use burn::backend::DType;

/// The widest load of at most 16 bytes that divides a row of `d` elements, in elements.
pub(crate) fn vector_width(d: usize, dtype: DType) -> usize {
    let mut width = 16 / dtype.size();
    while !d.is_multiple_of(width) {
        width /= 2;
    }
    width
}
