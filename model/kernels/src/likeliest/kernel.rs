//! The likeliest columns on CubeCL devices.
//!
//! The likeliest one of a long row: a block per part of the row, then a warp per row that compares the parts. Several columns: a block
//! per row. Each thread keeps the best of every 512th vector. The block picks the best of all threads `k` times; the thread that had it
//! looks through its vectors again, which lie in the cache by then, for the next one.

use std::f32::consts::{LN_2, LOG2_E};

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::LikeliestOps;
use crate::calls;
use crate::gpu::early::{self, begin, changed};
use crate::gpu::instruction::{exp2_approx, log2_approx};
use crate::gpu::memory::{empty, in_rows, row_pitch, vector_width};
use crate::gpu::reduce::cube_sum;

const THREADS: u32 = 512;
/// Columns of a part, and threads that look through them (`benches/results/2026-11-29-h200-decoding.md`).
const PART: u32 = 2048;
const PART_THREADS: u32 = 256;
/// The column of no number.
const NONE: u32 = u32::MAX;
/// Below every score, and finite, so that differences of it are not NaN.
const LOWEST: f32 = f32::MIN;

/// A number and its column.
#[derive(CubeType)]
struct Place {
    number: f32,
    column: u32,
}

/// Returns the numbers of vector `at` of the row at `base`, negative infinity for excluded columns.
#[cube]
fn read<F: Float, N: Size>(logits: &[Vector<F, N>], excluded: &[i32], base: usize, at: u32) -> Vector<f32, N> {
    let mut numbers = Vector::<f32, N>::cast_from(logits[base + at as usize]);
    let first = at * N::value() as u32;
    let bits = excluded[(first / 32) as usize] >> ((first % 32) as i32);
    if bits != 0 {
        #[unroll]
        for i in 0..N::value() {
            if (bits >> (i as i32)) & 1 == 1 {
                numbers.insert(i, f32::NEG_INFINITY.runtime());
            }
        }
    }
    numbers
}

/// Returns this thread's best place after the last one: of a smaller number, or of an equal one in a later column.
#[cube]
fn best_after<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    excluded: &[i32],
    base: usize,
    vectors: u32,
    last_number: f32,
    last_column: u32,
) -> Place {
    let mut number = f32::NEG_INFINITY.runtime();
    let mut column = NONE.runtime();
    let mut at = UNIT_POS;
    while at < vectors {
        let numbers = read::<F, N>(logits, excluded, base, at);
        #[unroll]
        for i in 0..N::value() {
            let here = at * N::value() as u32 + i as u32;
            let x = numbers.extract(i);
            let is_after = x < last_number || (x == last_number && here > last_column);
            if x > number && is_after {
                number = x;
                column = here;
            }
        }
        at += THREADS;
    }

    Place { number, column }
}

/// Returns the best of the threads' places, on each of them. Ends with a barrier, so that it can be called again.
#[cube]
fn best_of_block(own_number: f32, own_column: u32, #[comptime] warps: u32) -> Place {
    let of_warp = plane_max(own_number);
    let first = plane_min(select(own_number == of_warp, own_column, NONE));
    let mut numbers = Shared::<[f32]>::new_slice(comptime![warps as usize]);
    let mut columns = Shared::<[u32]>::new_slice(comptime![warps as usize]);
    if UNIT_POS_PLANE == 0 {
        numbers[(UNIT_POS / 32) as usize] = of_warp;
        columns[(UNIT_POS / 32) as usize] = first;
    }
    sync_cube();

    let mut number = numbers[0];
    let mut column = columns[0];
    #[unroll]
    for warp in 1..warps {
        let (other, at) = (numbers[warp as usize], columns[warp as usize]);
        if other > number || (other == number && at < column) {
            number = other;
            column = at;
        }
    }
    sync_cube();
    Place { number, column }
}

/// Writes row `CUBE_POS` of the result, `[2, rows, k]`. Rows of `logits` begin every `pitch` vectors.
#[cube(launch_unchecked)]
fn likeliest_kernel<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    excluded: &[i32],
    result: &mut [f32],
    rows: u32,
    vectors: u32,
    pitch: u32,
    k: u32,
    #[define(F)] _dtype: ElemType,
) {
    let base = CUBE_POS * pitch as usize;
    let own = best_after::<F, N>(logits, excluded, base, vectors, f32::INFINITY.runtime(), 0u32.runtime());
    let mut own_number = own.number;
    let mut own_column = own.column;
    let best = best_of_block(own_number, own_column, comptime![THREADS / 32]);
    let mut number = best.number;
    let mut column = best.column;
    let largest = best.number;

    let mut sum = 0.0f32;
    let mut at = UNIT_POS;
    while at < vectors {
        let numbers = read::<F, N>(logits, excluded, base, at);
        #[unroll]
        for i in 0..N::value() {
            sum += exp2_approx((numbers.extract(i) - largest) * LOG2_E);
        }
        at += THREADS;
    }
    let log_sum = log2_approx(cube_sum(sum, THREADS)) * LN_2;

    for i in 0..k {
        let place = CUBE_POS * k as usize + i as usize;
        if UNIT_POS == 0 {
            let is_some = column != NONE;
            result[place] = select(is_some, number - largest - log_sum, f32::NEG_INFINITY);
            result[rows as usize * k as usize + place] = select(is_some, f32::cast_from(column), 0.0f32);
        }
        if i + 1 < k {
            if own_column == column && column != NONE {
                let next = best_after::<F, N>(logits, excluded, base, vectors, number, column);
                own_number = next.number;
                own_column = next.column;
            }
            let best = best_of_block(own_number, own_column, comptime![THREADS / 32]);
            number = best.number;
            column = best.column;
        }
    }
}

/// Writes the largest number of each part of a row, its column (-1 if there is none), and the sum of exponentials below that number:
/// `[rows, parts, 3]`. A block has a part.
#[cube(launch_unchecked)]
fn best_of_parts<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    excluded: &[i32],
    found: &mut [f32],
    parts: u32,
    vectors: u32,
    pitch: u32,
    #[comptime] is_early: bool,
    #[define(F)] _dtype: ElemType,
) {
    begin(is_early);
    changed(logits, is_early);
    let (row, part) = (CUBE_POS / parts as usize, CUBE_POS as u32 % parts);
    let width = N::value().comptime() as u32;
    let turns = comptime![PART / (width * PART_THREADS)];
    let first = part * comptime![PART / width] + UNIT_POS;
    let mut numbers = Array::<Vector<f32, N>>::new(comptime![turns as usize]);
    #[unroll]
    for i in 0..turns {
        let at = first + comptime![i * PART_THREADS];
        let read = read::<F, N>(logits, excluded, row * pitch as usize, min(at, vectors - 1));
        numbers[comptime![i as usize]] = select(at < vectors, read, Vector::new(f32::NEG_INFINITY.runtime()));
    }

    let mut number = f32::NEG_INFINITY.runtime();
    let mut column = NONE.runtime();
    #[unroll]
    for i in 0..turns {
        #[unroll]
        for j in 0..N::value() {
            let x = numbers[comptime![i as usize]].extract(j);
            if x > number {
                number = x;
                column = (first + comptime![i * PART_THREADS]) * width + j as u32;
            }
        }
    }
    let best = best_of_block(number, column, comptime![PART_THREADS / 32]);

    let level = max(best.number, LOWEST);
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..turns {
        #[unroll]
        for j in 0..N::value() {
            sum += exp2_approx((numbers[comptime![i as usize]].extract(j) - level) * LOG2_E);
        }
    }
    let sum = cube_sum(sum, PART_THREADS);
    if UNIT_POS == 0 {
        let place = CUBE_POS * 3;
        found[place] = best.number;
        found[place + 1] = select(best.column == NONE, -1.0f32, f32::cast_from(best.column));
        found[place + 2] = sum;
    }
}

/// Writes the best part of each row to the result, `[2, rows, 1]`. A warp has a row.
#[cube(launch_unchecked)]
fn best_part(found: &[f32], result: &mut [f32], rows: u32, parts: u32, #[comptime] is_early: bool) {
    begin(is_early);
    changed(found, is_early);
    let row = CUBE_POS;
    let base = row * parts as usize;
    let mut number = f32::NEG_INFINITY.runtime();
    let mut column = -1.0f32.runtime();
    let mut part = UNIT_POS;
    while part < parts {
        let place = (base + part as usize) * 3;
        if found[place] > number {
            number = found[place];
            column = found[place + 1];
        }
        part += 32;
    }
    let largest = plane_max(number);
    let own = select(number == largest && column >= 0.0f32, column, f32::INFINITY.runtime());
    let first = plane_min(own);

    let level = max(largest, LOWEST);
    let mut sum = 0.0f32;
    let mut part = UNIT_POS;
    while part < parts {
        let place = (base + part as usize) * 3;
        sum += found[place + 2] * exp2_approx((max(found[place], LOWEST) - level) * LOG2_E);
        part += 32;
    }
    let log_sum = log2_approx(plane_sum(sum)) * LN_2;
    if UNIT_POS == 0 {
        let is_some = first != f32::INFINITY;
        result[row] = select(is_some, -log_sum, f32::NEG_INFINITY);
        result[rows as usize + row] = select(is_some, first, 0.0f32);
    }
}

/// Returns the likeliest column of each row, `[2, rows, 1]`. Vectors of `width` numbers lie within a row.
fn likeliest_one(logits: CubeTensor, excluded: CubeTensor, width: usize) -> CubeTensor {
    let [rows, columns] = [logits.meta.shape()[0], logits.meta.shape()[1]];
    let (pitch, dtype) = (row_pitch(&logits), dtype_to_storage_type(logits.dtype));
    let parts = columns.div_ceil(PART as usize);
    let found = empty(&logits, [rows, parts, 3], DType::F32);
    let result = empty(&logits, [2, rows, 1], DType::F32);
    let is_early = early::is_wanted(&result.client);

    // SAFETY: a block for each part of a row, which reads its vectors alone, and a warp for each row, which reads its parts.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        best_of_parts::launch_unchecked(
            &result.client,
            CubeCount::Static((rows * parts) as u32, 1, 1),
            CubeDim::new_1d(PART_THREADS),
            width,
            logits.into_buffer_arg(),
            into_contiguous(excluded).into_buffer_arg(),
            found.clone().into_buffer_arg(),
            parts as u32,
            (columns / width) as u32,
            (pitch / width) as u32,
            is_early,
            dtype,
        );
        early::launched(&found, is_early);
        best_part::launch_unchecked(
            &result.client,
            CubeCount::Static(rows as u32, 1, 1),
            CubeDim::new_1d(32),
            found.into_buffer_arg(),
            result.clone().into_buffer_arg(),
            rows as u32,
            parts as u32,
            is_early,
        );
    }
    early::launched(&result, is_early);
    result
}

impl LikeliestOps for CubeBackend {
    fn likeliest(logits: CubeTensor, excluded: CubeTensor, k: usize) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("likeliest columns", &logits, 1));
        let logits = if in_rows(&logits) { logits } else { into_contiguous(logits) };
        let [rows, columns] = [logits.meta.shape()[0], logits.meta.shape()[1]];
        let (pitch, dtype) = (row_pitch(&logits), dtype_to_storage_type(logits.dtype));
        // The columns of a row may end before its last vector would.
        let width = vector_width(columns, logits.dtype).min(vector_width(pitch, logits.dtype));
        if k == 1 && columns > PART as usize {
            return likeliest_one(logits, excluded, width);
        }
        let result = empty(&logits, [2, rows, k], DType::F32);

        // SAFETY: a block for each row, which reads its vectors alone.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            likeliest_kernel::launch_unchecked(
                &result.client,
                CubeCount::Static(rows as u32, 1, 1),
                CubeDim::new_1d(THREADS),
                width,
                logits.into_buffer_arg(),
                into_contiguous(excluded).into_buffer_arg(),
                result.clone().into_buffer_arg(),
                rows as u32,
                (columns / width) as u32,
                (pitch / width) as u32,
                k as u32,
                dtype,
            );
        }
        result
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
            let several = likeliest_kernel::LikeliestKernel::new(
                launch,
                properties,
                target,
                b(),
                b(),
                b(),
                (),
                (),
                (),
                (),
                8,
                dtype,
            );

            let (launch, properties, target) = settings(PART_THREADS);
            let parts =
                best_of_parts::BestOfParts::new(launch, properties, target, b(), b(), b(), (), (), (), 8, true, dtype);
            let (launch, properties, target) = settings(32);
            let best = best_part::BestPart::new(launch, properties, target, b(), b(), (), (), true);

            vec![
                Compiled::new("likeliest/bf16", several),
                Compiled::new("likeliest/parts-bf16", parts),
                Compiled::new("likeliest/best-part", best),
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
