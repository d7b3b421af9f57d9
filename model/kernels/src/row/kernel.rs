//! Reductions of rows on CubeCL devices: a block per row.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::RowOps;
use crate::calls;
use crate::gpu::memory::{empty, vector_width};
use crate::gpu::reduce::{add_up, cube_sum, sum_of};

const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;
/// Below every number.
const LOWEST: f32 = f32::NEG_INFINITY;
/// Vectors that a thread has in flight.
const IN_FLIGHT: u32 = 4;

/// Writes the sum of row `CUBE_POS`: each thread adds every 512th vector, then the threads are added.
#[cube(launch_unchecked)]
fn sum_kernel<N: Size>(x: &[Vector<f32, N>], y: &mut [f32], vectors: u32) {
    let row = CUBE_POS;
    let start = row * vectors as usize;
    let own = add_up(Vector::<f32, N>::zeroed(), x, start, 1usize, UNIT_POS, vectors, THREADS, IN_FLIGHT);
    let total = cube_sum(sum_of::<N>(own), THREADS);
    if UNIT_POS == 0 {
        y[row] = total;
    }
}

/// Writes the column of the largest number of row `CUBE_POS`, the first one if several are equal.
#[cube(launch_unchecked)]
fn argmax_kernel<F: Float, N: Size>(x: &[Vector<F, N>], y: &mut [i32], vectors: u32, #[define(F)] _dtype: ElemType) {
    let row = CUBE_POS;
    let mut largest = LOWEST.runtime();
    let mut column = 0u32.runtime();
    let mut at = UNIT_POS;
    while at < vectors {
        let numbers = Vector::<f32, N>::cast_from(x[row * vectors as usize + at as usize]);
        #[unroll]
        for i in 0..N::value() {
            let number = numbers.extract(i);
            if number > largest {
                largest = number;
                column = at * N::value() as u32 + i as u32;
            }
        }
        at += THREADS;
    }

    // Of each warp, then of the block: the largest number, then the first column that has it.
    let of_warp = plane_max(largest);
    let first = plane_min(select(largest == of_warp, column, u32::MAX));
    let mut numbers = Shared::<[f32]>::new_slice(comptime![WARPS as usize]);
    let mut columns = Shared::<[u32]>::new_slice(comptime![WARPS as usize]);
    if UNIT_POS_PLANE == 0 {
        numbers[(UNIT_POS / 32) as usize] = of_warp;
        columns[(UNIT_POS / 32) as usize] = first;
    }
    sync_cube();
    if UNIT_POS == 0 {
        let mut largest = numbers[0];
        let mut column = columns[0];
        #[unroll]
        for warp in 1..WARPS {
            let (number, other) = (numbers[warp as usize], columns[warp as usize]);
            if number > largest || (number == largest && other < column) {
                largest = number;
                column = other;
            }
        }
        y[row] = i32::cast_from(column);
    }
}

impl RowOps for CubeBackend {
    fn row_sums(x: CubeTensor) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("row sums", &x, 1));
        let x = into_contiguous(x);
        let [rows, columns] = [x.meta.shape()[0], x.meta.shape()[1]];
        let y = empty(&x, [rows], DType::F32);
        let width = vector_width(columns, x.dtype);
        // SAFETY: a block for each row, which reads its vectors alone.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            sum_kernel::launch_unchecked(
                &y.client,
                CubeCount::Static(rows as u32, 1, 1),
                CubeDim::new_1d(THREADS),
                width,
                x.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                (columns / width) as u32,
            );
        }
        y
    }

    fn row_argmax(x: CubeTensor) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("row argmax", &x, 1));
        let x = into_contiguous(x);
        let [rows, columns] = [x.meta.shape()[0], x.meta.shape()[1]];
        let y = empty(&x, [rows], DType::I32);
        let (width, dtype) = (vector_width(columns, x.dtype), dtype_to_storage_type(x.dtype));
        // SAFETY: as for the sums.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            argmax_kernel::launch_unchecked(
                &y.client,
                CubeCount::Static(rows as u32, 1, 1),
                CubeDim::new_1d(THREADS),
                width,
                x.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                (columns / width) as u32,
                dtype,
            );
        }
        y
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let (launch, properties, target) = settings(THREADS);
            let sums = sum_kernel::SumKernel::new(launch, properties, target, b(), b(), (), 4);
            let (launch, properties, target) = settings(THREADS);
            let argmax = argmax_kernel::ArgmaxKernel::new(launch, properties, target, b(), b(), (), 8, dtype);
            vec![Compiled::new("row/sums/f32", sums), Compiled::new("row/argmax/bf16", argmax)]
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
