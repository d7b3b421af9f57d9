//! Overwriting a tensor on CubeCL devices.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::OverwriteOps;
use crate::gpu::early::{self, begin, changed};
use crate::gpu::memory::{in_rows, row_pitch, vector_width};

const UNITS: u32 = 256;

#[cube(launch_unchecked)]
fn copy<E: Numeric>(source: &[E], target: &mut [E], n: u32, #[comptime] is_early: bool, #[define(E)] _dtype: ElemType) {
    begin(is_early);
    changed(source, is_early);
    let at = ABSOLUTE_POS;
    if at < n as usize {
        target[at] = source[at];
    }
}

/// Writes a vector of a row into its matrix. Rows begin every `pitch` vectors, and a matrix has `len` rows.
#[cube(launch_unchecked)]
fn put_rows<E: Numeric, N: Size>(
    rows: &[Vector<E, N>],
    at: &[i32],
    target: &mut [Vector<E, N>],
    width: u32,
    pitch: u32,
    len: u32,
    #[comptime] is_early: bool,
    #[define(E)] _dtype: ElemType,
) {
    begin(is_early);
    changed(rows, is_early);
    changed(at, is_early);
    let (row, vector) = (CUBE_POS_Y, CUBE_POS_X * UNITS + UNIT_POS);
    let place = at[row as usize] as u32;
    if vector < width && place < len {
        let to = (row * len + place) as usize * width as usize + vector as usize;
        target[to] = rows[row as usize * pitch as usize + vector as usize];
    }
}

/// Copies `source` into the buffer of `target`.
fn overwritten(target: CubeTensor, source: CubeTensor) -> CubeTensor {
    assert!(target.is_contiguous(), "only a contiguous tensor can be overwritten");
    let (source, n) = (into_contiguous(source), target.meta.shape().num_elements());
    let is_early = early::is_wanted(&target.client);
    // SAFETY: both have `n` elements; threads beyond do nothing.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        copy::launch_unchecked(
            &target.client,
            CubeCount::Static(n.div_ceil(UNITS as usize) as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            source.into_buffer_arg(),
            target.clone().into_buffer_arg(),
            n as u32,
            is_early,
            dtype_to_storage_type(target.dtype),
        );
    }
    early::launched(&target, is_early);
    target
}

/// Writes `rows`, `[B, W]`, into `target`, which is `[B, S, W]` in memory.
fn put(target: CubeTensor, rows: CubeTensor, at: CubeTensor, [b, len, columns]: [usize; 3]) -> CubeTensor {
    let target = into_contiguous(target);
    let start = rows.handle.offset_start.unwrap_or(0) as usize / rows.dtype.size();
    let width = vector_width(columns, rows.dtype).min(vector_width(row_pitch(&rows), rows.dtype));
    let rows = if in_rows(&rows) && start.is_multiple_of(width) { rows } else { into_contiguous(rows) };
    let (pitch, dtype) = (row_pitch(&rows), dtype_to_storage_type(rows.dtype));
    let width = width.min(vector_width(pitch, rows.dtype));
    let vectors = (columns / width) as u32;
    let is_early = early::is_wanted(&target.client);

    // SAFETY: a vector of a row for each thread, within its matrix; threads beyond do nothing.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        put_rows::launch_unchecked(
            &target.client,
            CubeCount::Static(vectors.div_ceil(UNITS), b as u32, 1),
            CubeDim::new_1d(UNITS),
            width,
            rows.into_buffer_arg(),
            into_contiguous(at).into_buffer_arg(),
            target.clone().into_buffer_arg(),
            vectors,
            (pitch / width) as u32,
            len as u32,
            is_early,
            dtype,
        );
    }
    early::launched(&target, is_early);
    target
}

impl OverwriteOps for CubeBackend {
    fn overwrite(target: CubeTensor, source: CubeTensor) -> CubeTensor {
        overwritten(target, source)
    }

    fn overwrite_floats(target: CubeTensor, source: CubeTensor) -> CubeTensor {
        overwritten(target, source)
    }

    fn overwrite_rows(target: CubeTensor, rows: CubeTensor, at: CubeTensor) -> CubeTensor {
        let [b, len, columns] = [target.meta.shape()[0], target.meta.shape()[1], target.meta.shape()[2]];
        put(target, rows, at, [b, len, columns])
    }

    fn overwrite_numbers(target: CubeTensor, numbers: CubeTensor, at: CubeTensor) -> CubeTensor {
        let [b, len] = [target.meta.shape()[0], target.meta.shape()[1]];
        put(target, reshape(numbers, Shape::new([b, 1])), at, [b, len, 1])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::I32));
            let (launch, properties, target) = settings(UNITS);
            let kernel = copy::Copy::new(launch, properties, target, b(), b(), (), false, dtype);
            let (launch, properties, target) = settings(UNITS);
            let early = copy::Copy::new(launch, properties, target, b(), b(), (), true, dtype);
            let (launch, properties, target) = settings(UNITS);
            let bf16 = dtype_to_storage_type(DType::BF16);
            let rows = put_rows::PutRows::new(launch, properties, target, b(), b(), b(), (), (), (), 8, true, bf16);
            vec![
                Compiled::new("capture/overwrite/i32", kernel),
                Compiled::new("capture/overwrite/early-i32", early),
                Compiled::new("capture/rows/bf16", rows),
            ]
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
