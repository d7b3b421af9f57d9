//! Launches of the kernels.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::forward::attention_forward;
use super::key_value_gradient::{QueryDataLaunch, key_value_gradient};
use super::query_gradient::query_gradient;
use super::relative_gradient::{relative_gradient, sum_by_distance};
use super::split_gradient::key_or_value_gradient;
use super::{InputsLaunch, OutputsLaunch, is_wide, owns_one};
use crate::attention::gpu::shared::call::{Call, Forward, vectors};
use crate::attention::gpu::shared::config::{TILE, UNITS};
use crate::dropout::Mask;
use crate::gpu::memory::empty;
use crate::reduce::columns::backward_and_sum;

/// Whether there are kernels for heads of `head_dim` elements of `dtype`. Tiles of longer rows of f32 would not fit into a block's
/// memory.
pub(in crate::attention::gpu) fn serves(dtype: DType, head_dim: usize) -> bool {
    let longest = if dtype == DType::F32 { 128 } else { 256 };
    head_dim > 0 && head_dim.is_multiple_of(8) && head_dim <= longest
}

/// Whether there is a kernel for the gradient of relative positions, whose block holds four tiles and the scores of one.
pub(in crate::attention::gpu) fn serves_relative(dtype: DType, head_dim: usize) -> bool {
    serves(dtype, head_dim) && head_dim <= if dtype == DType::F32 { 64 } else { 128 }
}

/// Returns the tiles of queries of a block of forward. Two read keys and values half as often. Under causality they attend to up to
/// a tile of keys in vain, which costs narrow heads more unless they have many queries.
fn owned(call: &Call) -> usize {
    let t = call.lens[0];
    if owns_one(&call.config) {
        return 1;
    }
    let wasteful = call.spec.causal && call.spec.head_dim <= 64 && t <= 1024;
    if t <= TILE || wasteful { 1 } else { 2 }
}

/// Computes `out` and `lse`.
pub(in crate::attention::gpu) fn launch_forward<E: Float + CubeElement>(
    call: &Call,
    out: &CubeTensor,
    lse: &CubeTensor,
) {
    let owned = owned(call);
    let (cubes, arguments) = call.blocks(call.spec.n_heads, call.lens[0].div_ceil(owned * TILE));
    // SAFETY: copies and stores are guarded by T, S and the columns of a head.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        attention_forward::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(UNITS),
            call.config.arithmetic.vector(),
            inputs(call),
            arguments,
            vectors(out),
            lse.clone().into_buffer_arg(),
            call.config,
            owned,
        );
    }
}

/// Computes the gradients by two kernels, or three for wide heads, which read the deltas that the first one leaves.
pub(in crate::attention::gpu) fn launch_backward<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) {
    let Call { spec, config, lens: [t, s], .. } = call;
    let Forward { out, lse, d_out } = forward;
    let (cubes, query_call) = call.blocks(spec.n_heads, t.div_ceil(TILE));
    let delta = empty(lse, [spec.batch_size * spec.n_heads * t], DType::F32);

    // SAFETY: as in `launch_forward`; all kernels write columns of their own and together fill a common gradient.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        query_gradient::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(UNITS),
            call.config.arithmetic.vector(),
            inputs(call),
            OutputsLaunch::new(vectors(out), vectors(d_out), lse.clone().into_buffer_arg()),
            query_call,
            delta.clone().into_buffer_arg(),
            vectors(d_query),
            *config,
        );
    }
    if is_wide(config) {
        launch_split::<E>(call, forward, &delta, d_key_value);
        return;
    }

    let (cubes, key_call) = call.blocks(spec.n_kv_heads, s.div_ceil(TILE));
    // SAFETY: as above.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        key_value_gradient::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(UNITS),
            call.config.arithmetic.vector(),
            inputs(call),
            query_data(forward, &delta),
            key_call,
            vectors(d_key_value),
            *config,
        );
    }
}

/// Computes the gradient of the keys, and then the gradient of the values.
fn launch_split<E: Float + CubeElement>(call: &Call, forward: &Forward, delta: &CubeTensor, d_key_value: &CubeTensor) {
    for of_keys in [true, false] {
        let (cubes, arguments) = call.blocks(call.spec.n_kv_heads, call.lens[1].div_ceil(TILE));
        // SAFETY: as in `launch_backward`.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            key_or_value_gradient::launch_unchecked::<E>(
                &forward.out.client,
                cubes,
                CubeDim::new_1d(UNITS),
                call.config.arithmetic.vector(),
                inputs(call),
                query_data(forward, delta),
                arguments,
                vectors(d_key_value),
                of_keys,
                call.config,
            );
        }
    }
}

/// Returns the gradient of what relative positions add to the scores, `[H, T + S - 1]`.
pub(in crate::attention::gpu) fn launch_relative_gradient<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
) -> CubeTensor {
    let Call { spec, lens: [t, s], .. } = call;
    let Forward { out, lse, d_out } = forward;
    let (n, tiles) = (t + s - 1, [t.div_ceil(TILE), s.div_ceil(TILE)]);
    let (cubes, arguments) = call.blocks(spec.n_heads, tiles[0]);
    let delta = empty(lse, [spec.batch_size * spec.n_heads * t], DType::F32);
    let sums = empty(lse, [spec.batch_size, spec.n_heads * tiles[0] * tiles[1] * UNITS as usize], DType::F32);
    // SAFETY: as in `launch_backward`; a block writes the sums of its tiles.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        relative_gradient::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(UNITS),
            call.config.arithmetic.vector(),
            inputs(call),
            OutputsLaunch::new(vectors(out), vectors(d_out), lse.clone().into_buffer_arg()),
            arguments,
            delta.into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            call.config,
        );
    }

    let (_, of_batch) = backward_and_sum(None, sums, Mask::None);
    let gradient = empty(&of_batch, [spec.n_heads, n], DType::F32);
    // SAFETY: heads are counted by blocks, distances are guarded.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        sum_by_distance::launch_unchecked(
            &out.client,
            CubeCount::Static((n as u32).div_ceil(UNITS), spec.n_heads as u32, 1),
            CubeDim::new_1d(UNITS),
            of_batch.into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            call.lens(),
        );
    }
    gradient
}

fn query_data<E: Float + CubeElement, N: Size>(forward: &Forward, delta: &CubeTensor) -> QueryDataLaunch<E, N> {
    let (lse, delta) = (forward.lse.clone().into_buffer_arg(), delta.clone().into_buffer_arg());
    QueryDataLaunch::new(vectors(&forward.d_out), lse, delta)
}

fn inputs<E: Float + CubeElement, N: Size>(call: &Call) -> InputsLaunch<E, N> {
    InputsLaunch::new(vectors(&call.query), vectors(&call.key_value))
}
