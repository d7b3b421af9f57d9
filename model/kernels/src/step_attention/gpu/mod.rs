//! Attention of a step on CubeCL devices: a warp per row and head, in which each group of lanes has a position.
//!
//! A step reads each key and value once, so that memory is the bound: no tensor cores. Some positions are in flight. Where there
//! are few rows with many positions, a block of 16 warps divides the positions of one head, and adds up the parts in their order.
//! Such a block also appends the last position to the buffer, so that nobody else has to write it first.

mod positions;
mod sizes;
mod sums;

use std::f32::consts::LOG2_E;

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use positions::{append, attend, prefetch_positions};
use sizes::{Call, CallLaunch, Place, Sizes, THREADS, WARP};
use sums::{LOWEST, Sums, add_groups, write, write_parts};

use super::ops::{StepAttentionOps, StepSpec};
use crate::calls;
use crate::gpu::early::{self, await_front, changed, start_next};
use crate::gpu::memory::{empty, in_rows, row_pitch, starts_aligned};

/// Bytes that a lane reads at once.
const VECTOR_BYTES: usize = 16;
/// Warps that divide the positions of a head, where they do.
const PARTS: u32 = 16;
/// Heads up to which positions are prefetched.
const PREFETCHED_HEADS: usize = 128;

/// Writes the results of a block's warps. A row of `query` begins every `pitch` vectors; `scale` makes binary logarithms of the scores.
#[cube(launch_unchecked)]
fn step_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key_value: &mut [Vector<F, N>],
    places: &[i32],
    lengths: &[i32],
    out: &mut [Vector<F, N>],
    call: Call,
    #[comptime] sizes: Sizes,
    #[define(F)] _dtype: ElemType,
) {
    if comptime![sizes.early] {
        start_next();
        if comptime![sizes.prefetches] {
            prefetch_positions::<F, N>(key_value, lengths, &call, sizes);
        }
        await_front();
    }
    changed(query, sizes.early);
    changed(places, sizes.early);
    changed(lengths, sizes.early);
    let at = if comptime![sizes.parts > 1] {
        CUBE_POS as u32
    } else {
        CUBE_POS as u32 * comptime![THREADS / WARP] + UNIT_POS / WARP
    };
    if at < call.n {
        let (row, head) = (at / sizes.heads, at % sizes.heads);
        let place = Place { row, head, group: head / comptime![sizes.heads / sizes.kv_heads] };
        let mut own = Array::<Vector<f32, N>>::new(comptime![sizes.vectors as usize]);
        let mut values = Array::<Vector<f32, N>>::new(comptime![sizes.vectors as usize]);
        #[unroll]
        for j in 0..sizes.vectors {
            let vector = head * comptime![sizes.head()] + UNIT_POS % sizes.lanes + comptime![j * sizes.lanes];
            own[comptime![j as usize]] = Vector::cast_from(query[(row * call.pitch + vector) as usize]);
            values[comptime![j as usize]] = Vector::zeroed();
        }
        let mut sums = Sums::<N> { top: LOWEST.runtime(), total: 0.0f32.runtime(), values };

        let mut end = lengths[row as usize] as u32;
        if comptime![sizes.appends] {
            end -= 1;
            append::<F, N>(query, &own, key_value, &mut sums, &place, end, &call, sizes);
            end = min(end, call.capacity);
        }
        attend::<F, N>(&own, key_value, places, &mut sums, &place, end, &call, sizes);
        add_groups::<N>(&mut sums, sizes);
        let to = (at * comptime![sizes.head()]) as usize;
        if comptime![sizes.parts > 1] {
            write_parts::<F, N>(&sums, out, to, sizes);
        } else {
            write::<F, N>(&sums, out, to, sizes);
        }
    }
}

/// Launches the kernel. Without `places`, the last position comes in the columns behind the query.
fn launch(
    query: CubeTensor,
    key_value: CubeTensor,
    places: Option<CubeTensor>,
    lengths: CubeTensor,
    spec: StepSpec,
) -> CubeTensor {
    let StepSpec { n_heads, n_kv_heads, head_dim, capacity, per_position, divided, scale } = spec;
    let (rows, dtype) = (query.meta.shape()[0], query.dtype);
    let width = VECTOR_BYTES / dtype.size();
    let aligned = in_rows(&query) && row_pitch(&query).is_multiple_of(width) && starts_aligned(&query);
    let query = if aligned { query } else { into_contiguous(query) };
    let pitch = row_pitch(&query) / width;

    let out = empty(&query, [rows, n_heads * head_dim], dtype);
    let (head, early) = ((head_dim / width) as u32, early::is_wanted(&out.client));
    let lanes = head.min(WARP);
    let sizes = Sizes {
        heads: n_heads as u32,
        kv_heads: n_kv_heads as u32,
        lanes,
        vectors: head / lanes,
        per_position,
        parts: if divided { PARTS } else { 1 },
        appends: places.is_none(),
        early,
        prefetches: early && divided && places.is_none() && rows * n_heads <= PREFETCHED_HEADS,
    };
    let n = (rows * n_heads) as u32;
    let blocks = if divided { n } else { n.div_ceil(THREADS / WARP) };
    let lengths = into_contiguous(lengths);

    // SAFETY: a warp or a block for each row and head, which reads and writes below the row's length; warps beyond do nothing.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        step_kernel::launch_unchecked(
            &out.client,
            CubeCount::Static(blocks, 1, 1),
            CubeDim::new_1d(sizes.threads()),
            width,
            query.into_buffer_arg(),
            key_value.into_buffer_arg(),
            places.map_or_else(|| lengths.clone(), into_contiguous).into_buffer_arg(),
            lengths.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            CallLaunch::new(n, pitch as u32, capacity as u32, scale * LOG2_E),
            sizes,
            dtype_to_storage_type(dtype),
        );
    }
    early::launched(&out, early);
    out
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
        launch(query, into_contiguous(key_value), Some(places), lengths, spec)
    }

    fn append_and_attend(
        qkv: CubeTensor,
        key_value: CubeTensor,
        lengths: CubeTensor,
        spec: StepSpec,
    ) -> (CubeTensor, CubeTensor) {
        let _call = calls::begin(|| calls::of_passes("attention of a step", &qkv, 2));
        let key_value = into_contiguous(key_value);
        (launch(qkv, key_value.clone(), None, lengths, spec), key_value)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::sizes::CallCompilationArg;
    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let kernel = |per_position, parts, appends| {
                let (heads, kv_heads, early) = (8, 8, appends);
                let sizes = Sizes {
                    heads,
                    kv_heads,
                    lanes: 8,
                    vectors: 1,
                    per_position,
                    parts,
                    appends,
                    early,
                    prefetches: early,
                };
                let (launch, properties, target) = settings(sizes.threads());
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
                    8,
                    sizes,
                    dtype,
                )
            };

            vec![
                Compiled::new("step_attention/self-bf16", kernel(true, 1, false)),
                Compiled::new("step_attention/cross-bf16", kernel(false, 1, false)),
                Compiled::new("step_attention/divided-bf16", kernel(false, PARTS, false)),
                Compiled::new("step_attention/appending-bf16", kernel(false, PARTS, true)),
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
