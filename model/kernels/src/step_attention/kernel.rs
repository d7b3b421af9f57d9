//! Attention of a step on CubeCL devices: a warp per row and head, whose lanes divide the features.
//!
//! A step reads each key and value once, so that memory is the bound: no tensor cores. Some positions are in flight. Where there
//! are few rows with many positions, a block of 16 warps divides the positions of one head, and adds up the parts in their order.

use std::f32::consts::LOG2_E;

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{StepAttentionOps, StepSpec};
use crate::calls;
use crate::gpu::instruction::exp2_approx;
use crate::gpu::memory::{empty, in_rows, row_pitch};

const THREADS: u32 = 128;
const LANES: u32 = 32;
/// Warps that divide the positions of a head, where they do.
const PARTS: u32 = 16;
/// Positions that a warp reads together, alone and as one of [`PARTS`] (`benches/results/2026-11-29-int8.md`).
const IN_FLIGHT: [u32; 2] = [4, 8];
/// Below every score, and finite, so that differences of it are not NaN.
const LOWEST: f32 = -1e30;

/// Sizes in vectors of a lane's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sizes {
    heads: u32,
    kv_heads: u32,
    per_position: bool,
    /// Warps per head.
    parts: u32,
    /// Positions that a warp reads together.
    in_flight: u32,
}

/// What differs from call to call.
#[derive(CubeType, CubeLaunch)]
struct Call {
    /// Rows times heads.
    n: u32,
    /// Vectors from a row of the queries to the next.
    pitch: u32,
    capacity: u32,
    scale: f32,
}

/// Adds up what the warps of a block have of one head, in their order, and writes it at `place` of `out`.
#[cube]
fn add_parts<F: Float, N: Size>(
    top: f32,
    total: f32,
    sum: Vector<f32, N>,
    out: &mut [Vector<F, N>],
    place: usize,
    #[comptime] parts: u32,
) {
    let (warp, lane) = (UNIT_POS / LANES, UNIT_POS % LANES);
    let mut tops = Shared::<[f32]>::new_slice(comptime![parts as usize]);
    let mut totals = Shared::<[f32]>::new_slice(comptime![parts as usize]);
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(comptime![(parts * LANES) as usize]);
    if lane == 0 {
        tops[warp as usize] = top;
        totals[warp as usize] = total;
    }
    sums[UNIT_POS as usize] = sum;
    sync_cube();

    if warp == 0 {
        let mut highest = tops[0];
        #[unroll]
        for part in 1..parts {
            highest = max(highest, tops[part as usize]);
        }
        let mut all = 0.0f32;
        let mut whole = Vector::<f32, N>::zeroed();
        #[unroll]
        for part in 0..parts {
            let factor = exp2_approx(tops[part as usize] - highest);
            all += totals[part as usize] * factor;
            whole += sums[(part * LANES + lane) as usize] * Vector::new(factor);
        }
        out[place] = Vector::cast_from(whole * Vector::new(1.0f32 / all));
    }
}

/// Writes the results of a block's warps. A row of `query` begins every `pitch` vectors; `scale` makes binary logarithms of the scores.
#[cube(launch_unchecked)]
fn step_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key_value: &[Vector<F, N>],
    places: &[i32],
    lengths: &[i32],
    out: &mut [Vector<F, N>],
    call: Call,
    #[comptime] sizes: Sizes,
    #[define(F)] _dtype: ElemType,
) {
    let warp = UNIT_POS / LANES;
    let at =
        if comptime![sizes.parts > 1] { CUBE_POS as u32 } else { CUBE_POS as u32 * comptime![THREADS / LANES] + warp };
    if at < call.n {
        let row = at / sizes.heads;
        let head = at % sizes.heads;
        let group = head / comptime![sizes.heads / sizes.kv_heads];
        let lane = UNIT_POS % LANES;
        let width = comptime![2 * sizes.kv_heads * LANES] as usize;
        let key_at = (group * LANES + lane) as usize;
        let value_at = key_at + comptime![sizes.kv_heads * LANES] as usize;
        let own =
            Vector::<f32, N>::cast_from(query[row as usize * call.pitch as usize + (head * LANES + lane) as usize]);
        let length = lengths[row as usize] as u32;

        let mut top = LOWEST.runtime();
        let mut total = 0.0f32;
        let mut sum = Vector::<f32, N>::zeroed();
        let mut first = if comptime![sizes.parts > 1] { warp * comptime![sizes.in_flight] } else { 0u32.runtime() };
        while first < length {
            let mut scores = Array::<f32>::new(comptime![sizes.in_flight as usize]);
            let mut values = Array::<Vector<f32, N>>::new(comptime![sizes.in_flight as usize]);
            #[unroll]
            for i in 0..comptime![sizes.in_flight] {
                // Beyond the last position, that position is read again and has no weight.
                let position = min(first + i, length - 1);
                let index = if comptime![sizes.per_position] { row * call.capacity + position } else { row };
                let base = (places[index as usize] as usize * call.capacity as usize + position as usize) * width;
                let products = own * Vector::<f32, N>::cast_from(key_value[base + key_at]);
                values[comptime![i as usize]] = Vector::<f32, N>::cast_from(key_value[base + value_at]);
                let mut product = 0.0f32;
                #[unroll]
                for j in 0..N::value() {
                    product += products.extract(j);
                }
                scores[comptime![i as usize]] = product;
            }

            let mut highest = top;
            #[unroll]
            for i in 0..comptime![sizes.in_flight] {
                let score = plane_sum(scores[comptime![i as usize]]) * call.scale;
                let seen = select(first + i < length, score, LOWEST);
                scores[comptime![i as usize]] = seen;
                highest = max(highest, seen);
            }
            let factor = exp2_approx(top - highest);
            total *= factor;
            sum *= Vector::new(factor);
            #[unroll]
            for i in 0..comptime![sizes.in_flight] {
                let weight = exp2_approx(scores[comptime![i as usize]] - highest);
                total += weight;
                sum += values[comptime![i as usize]] * Vector::new(weight);
            }
            top = highest;
            first += comptime![sizes.in_flight * sizes.parts];
        }

        let place = (at * LANES + lane) as usize;
        if comptime![sizes.parts > 1] {
            add_parts::<F, N>(top, total, sum, out, place, comptime![sizes.parts]);
        } else {
            out[place] = Vector::cast_from(sum * Vector::new(1.0f32 / total));
        }
    }
}

impl StepAttentionOps for CubeBackend {
    fn step_attention(
        query: CubeTensor,
        key_value: CubeTensor,
        places: CubeTensor,
        lengths: CubeTensor,
        spec: StepSpec,
    ) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("attention of a step", &query, 2));
        let StepSpec { n_heads, n_kv_heads, head_dim, capacity, per_position, divided, scale } = spec;
        let width = head_dim / LANES as usize;
        assert_eq!(width * LANES as usize, head_dim, "a lane for each part of a head");
        let aligned = in_rows(&query) && row_pitch(&query).is_multiple_of(width);
        let query = if aligned { query } else { into_contiguous(query) };
        let (pitch, rows, dtype) = (row_pitch(&query) / width, query.meta.shape()[0], query.dtype);

        let n = (rows * n_heads) as u32;
        let out = empty(&query, [rows, n_heads * head_dim], dtype);
        let (parts, in_flight) = if divided { (PARTS, IN_FLIGHT[1]) } else { (1, IN_FLIGHT[0]) };
        let sizes = Sizes { heads: n_heads as u32, kv_heads: n_kv_heads as u32, per_position, parts, in_flight };
        let (blocks, threads) = if divided { (n, PARTS * LANES) } else { (n.div_ceil(THREADS / LANES), THREADS) };

        // SAFETY: a warp or a block for each row and head, which reads below the row's length; warps beyond do nothing.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            step_kernel::launch_unchecked(
                &out.client,
                CubeCount::Static(blocks, 1, 1),
                CubeDim::new_1d(threads),
                width,
                query.into_buffer_arg(),
                into_contiguous(key_value).into_buffer_arg(),
                into_contiguous(places).into_buffer_arg(),
                into_contiguous(lengths).into_buffer_arg(),
                out.clone().into_buffer_arg(),
                CallLaunch::new(n, pitch as u32, capacity as u32, scale * LOG2_E),
                sizes,
                dtype_to_storage_type(dtype),
            );
        }
        out
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
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let kernel = |per_position, parts| {
                let (launch, properties, target) = settings(if parts > 1 { PARTS * LANES } else { THREADS });
                let sizes =
                    Sizes { heads: 8, kv_heads: 8, per_position, parts, in_flight: IN_FLIGHT[usize::from(parts > 1)] };
                step_kernel::StepKernel::new(
                    launch,
                    properties,
                    target,
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    CallCompilationArg { n: (), pitch: (), capacity: (), scale: () },
                    2,
                    sizes,
                    dtype,
                )
            };

            vec![
                Compiled::new("step_attention/self-bf16", kernel(true, 1)),
                Compiled::new("step_attention/cross-bf16", kernel(false, 1)),
                Compiled::new("step_attention/divided-bf16", kernel(false, PARTS)),
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
