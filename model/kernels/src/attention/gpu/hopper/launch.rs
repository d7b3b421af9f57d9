//! Launches of the kernels for Hopper.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::forward::attention_forward;
use super::in_turns;
use super::key_value_gradient::{QueryDataLaunch, key_value_gradient};
use super::one_pass;
use super::one_tile::one_tile_gradients;
use super::query_gradient::query_gradient;
use super::wide_key_value_gradient::wide_key_value_gradient;
use super::wide_query_gradient::wide_query_gradient;
use crate::attention::gpu::shared::arguments::{InputsLaunch, OutputsLaunch};
use crate::attention::gpu::shared::call::{Call, Forward, vectors};
use crate::attention::gpu::shared::config::{TILE, UNITS};
use crate::gpu::memory::empty;
use crate::gpu::tensor_map::tensor_map;

/// Whether there are kernels for heads of `head_dim`.
pub(in crate::attention::gpu) fn serves(head_dim: usize) -> bool {
    head_dim.is_multiple_of(16) && (16..=256).contains(&head_dim)
}

/// Computes `out` and `lse`.
pub(in crate::attention::gpu) fn launch_forward<E: Float + CubeElement>(
    call: &Call,
    out: &CubeTensor,
    lse: &CubeTensor,
) {
    if in_turns::serves(call) {
        return in_turns::launch::<E>(call, out, lse);
    }
    let groups = call.config.forward_groups();
    let (cubes, arguments) = call.blocks(call.spec.n_heads, call.lens[0].div_ceil(groups * TILE));
    // SAFETY: TMA clips to the matrix of keys and values; everything else is guarded by T and S.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        attention_forward::launch_unchecked::<E>(
            &out.client,
            cubes,
            CubeDim::new_1d(groups as u32 * UNITS),
            inputs(call),
            arguments,
            vectors(out),
            lse.clone().into_buffer_arg(),
            call.config,
        );
    }
}

/// Computes the gradients of the queries, and of keys and values.
pub(in crate::attention::gpu) fn launch_backward<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) {
    let [t, s] = call.lens;
    match call.config.one_tile(t, s) {
        true => one_tile::<E>(call, forward, d_query, d_key_value),
        false if one_pass::serves(call) => one_pass::launch::<E>(call, forward, d_query, d_key_value),
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
            outputs(call, forward),
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
    let (cubes, query_call) = call.blocks(spec.n_heads, t.div_ceil(config.groups() * TILE));
    let (key_cubes, key_call) = call.blocks(spec.n_kv_heads, s.div_ceil(TILE));
    let delta = empty(&forward.lse, [spec.batch_size * spec.n_heads * t], DType::F32);
    let (client, units) = (&forward.out.client, CubeDim::new_1d(config.groups() as u32 * UNITS));

    let query: unsafe fn(&_, _, _, _, _, _, _, _, _) -> _ = match config.groups() {
        1 => query_gradient::launch_unchecked::<E>,
        _ => wide_query_gradient::launch_unchecked::<E>,
    };
    let key_value: unsafe fn(&_, _, _, _, _, _, _, _) -> _ = match config.groups() {
        1 => key_value_gradient::launch_unchecked::<E>,
        _ => wide_key_value_gradient::launch_unchecked::<E>,
    };
    let to_delta = delta.clone().into_buffer_arg();
    let data = QueryDataLaunch::new(
        tensor_map(&forward.d_out, TILE, config.span()),
        forward.lse.clone().into_buffer_arg(),
        delta.into_buffer_arg(),
    );

    // SAFETY: as in `forward`; both kernels write columns of their own and together fill a common gradient.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        query(
            client,
            cubes,
            units,
            inputs(call),
            outputs(call, forward),
            query_call,
            to_delta,
            vectors(d_query),
            *config,
        );
        key_value(client, key_cubes, units, inputs(call), data, key_call, vectors(d_key_value), *config);
    }
}

fn inputs<E: Float + CubeElement>(call: &Call) -> InputsLaunch<E> {
    let span = call.config.span();
    InputsLaunch::new(tensor_map(&call.query, TILE, span), tensor_map(&call.key_value, TILE, span))
}

fn outputs<E: Float + CubeElement>(call: &Call, forward: &Forward) -> OutputsLaunch<E> {
    let Forward { out, lse, d_out } = forward;
    let d_out_tiles = tensor_map(d_out, TILE, call.config.span());
    OutputsLaunch::new(vectors(out), vectors(d_out), d_out_tiles, lse.clone().into_buffer_arg())
}
