//! Launches of the kernels for Hopper.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::arguments::{InputsLaunch, OutputsLaunch};
use super::call::{Call, Forward, vectors};
use super::config::{SPAN, TILE, UNITS};
use super::forward::forward;
use super::key_value_gradient::{QueryDataLaunch, key_value_gradient};
use super::one_tile::one_tile_gradients;
use super::query_gradient::query_gradient;
use crate::gpu::memory::empty;
use crate::gpu::tensor_map::tensor_map;

/// Whether there are kernels for heads of `head_dim`.
pub(super) fn serves(head_dim: usize) -> bool {
    head_dim == 64 || head_dim == 128
}

/// Computes `out` and `lse`.
pub(super) fn launch_forward<E: Float + CubeElement>(call: &Call, out: &CubeTensor, lse: &CubeTensor) {
    let (cubes, arguments) = call.blocks(call.spec.n_heads, call.lens[0].div_ceil(TILE));
    // SAFETY: TMA clips to the matrix of keys and values; everything else is guarded by T and S.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        forward::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(UNITS),
            inputs(call),
            arguments,
            vectors(out),
            lse.clone().into_buffer_arg(),
            call.config,
        );
    }
}

/// Computes the gradients of the queries, and of keys and values.
pub(super) fn launch_backward<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) {
    let [t, s] = call.lens;
    match call.config.one_tile(t, s) {
        true => one_tile::<E>(call, forward, d_query, d_key_value),
        false => tile_by_tile::<E>(call, forward, d_query, d_key_value),
    }
}

/// Computes the gradients of heads whose queries and keys fit into one tile.
fn one_tile<E: Float + CubeElement>(call: &Call, forward: &Forward, d_query: &CubeTensor, d_key_value: &CubeTensor) {
    let heads = call.spec.batch_size * call.spec.n_heads;
    // SAFETY: as in `forward`; the gradients have columns of their own, which together fill the matrix.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        one_tile_gradients::launch_unchecked::<E>(
            &forward.out.client,
            CubeCount::Static(heads as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            inputs(call),
            outputs(forward),
            call.masks(),
            call.dropout(),
            call.lens(),
            vectors(d_query),
            vectors(d_key_value),
            call.config,
        );
    }
}

/// Computes the gradients by two kernels, the second of which reads the deltas that the first one leaves.
fn tile_by_tile<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) {
    let Call { spec, config, lens: [t, s], .. } = call;
    let Forward { out, lse, d_out } = forward;
    let (cubes, query_call) = call.blocks(spec.n_heads, t.div_ceil(TILE));
    let (key_cubes, key_call) = call.blocks(spec.n_kv_heads, s.div_ceil(TILE));
    let delta = empty(lse, [spec.batch_size * spec.n_heads * t], DType::F32);

    // SAFETY: as in `forward`; both kernels write columns of their own and together fill a common gradient.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        query_gradient::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(UNITS),
            inputs(call),
            outputs(forward),
            query_call,
            delta.clone().into_buffer_arg(),
            vectors(d_query),
            *config,
        );
        key_value_gradient::launch_unchecked::<E>(
            &out.client,
            key_cubes,
            CubeDim::new_1d(UNITS),
            inputs(call),
            QueryDataLaunch::new(tensor_map(d_out, TILE, SPAN), lse.clone().into_buffer_arg(), delta.into_buffer_arg()),
            key_call,
            vectors(d_key_value),
            *config,
        );
    }
}

fn inputs<E: Float + CubeElement>(call: &Call) -> InputsLaunch<E> {
    InputsLaunch::new(tensor_map(&call.query, TILE, SPAN), tensor_map(&call.key_value, TILE, SPAN))
}

fn outputs<E: Float + CubeElement>(forward: &Forward) -> OutputsLaunch<E> {
    let Forward { out, lse, d_out } = forward;
    let d_out_tiles = tensor_map(d_out, TILE, SPAN);
    OutputsLaunch::new(vectors(out), vectors(d_out), d_out_tiles, lse.clone().into_buffer_arg())
}
