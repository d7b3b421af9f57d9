//! Launches of the pass.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::PassConfig;
use super::column::{KEYS, turns_of_a_head};
use super::gradients::one_pass_gradients::OnePassGradients;
use super::rows::{one_pass_deltas, one_pass_query_gradient};
use super::sums::SumsCompilationArg;
use crate::attention::gpu::hopper::key_value_gradient::QueryDataCompilationArg;
use crate::attention::gpu::shared::arguments::InputsCompilationArg;
use crate::attention::gpu::shared::call::{Call, Forward, Places, buffer, vectors};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::program;
use crate::device_queue::programs::Arguments;
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::empty;
use crate::gpu::programs::{add_buffer, add_matrix};

/// How many times as long as the longest block all blocks of a multiprocessor take: the last one may find all others idle. See
/// `benches/results/2026-11-29-h200-attention-backward.md`.
const BLOCKS_LONG: usize = 6;

/// Returns the turns of a block in the mean from which the pass is faster than two kernels, see
/// `benches/results/2026-11-30-h200-attention-programs.md`.
fn turns_that_pay(head_dim: usize) -> usize {
    if head_dim == 64 { 12 } else { 8 }
}

/// Whether the pass computes the gradients of this call, and is faster than two kernels.
pub(in crate::attention::gpu::hopper) fn serves(call: &Call) -> bool {
    let cfg = PassConfig { flash: call.config };
    let FlashConfig { head_dim, dropout, relative, softcap, n_heads, n_kv_heads, .. } = cfg.flash;
    let computes = matches!(head_dim, 64 | 128) && !dropout && !relative && softcap.is_none();
    #[cfg(test)]
    if let Some(wanted) = crate::attention::tests::long_rows::wanted() {
        return computes && wanted;
    }
    let (longest, all) = turns_of_a_head(&cfg, call.lens);
    let columns = call.lens[1].div_ceil(KEYS);
    let each = multiprocessors(&call.query.client) as usize;
    computes
        && all >= turns_that_pay(head_dim) * columns
        && all * call.spec.batch_size * n_heads >= BLOCKS_LONG * longest * (n_heads / n_kv_heads) * each
}

/// Computes the gradients of the queries, and of keys and values.
pub(in crate::attention::gpu::hopper) fn launch<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) {
    let Call { spec, config, lens: [t, _], .. } = call;
    let config = PassConfig { flash: *config };
    let rows = config.rows();
    let heads = spec.batch_size * spec.n_heads;
    let query_tiles = heads * t.div_ceil(rows);
    let n_locks = 1 + 2 * query_tiles;
    let delta = empty(&forward.lse, [heads * t], DType::F32);
    let locks = empty(&forward.lse, [n_locks], DType::U32);
    let sums = empty(&forward.lse, [2 * query_tiles * config.part_quads() * 4], DType::F32);
    let client = &forward.out.client;
    let cubes = |n: usize| CubeCount::Static(n as u32, 1, 1);

    let quads = || buffer(&sums, 2 * query_tiles * config.part_quads());

    // SAFETY: queries are guarded by T, and locks by their number.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        one_pass_deltas::launch_unchecked::<E>(
            client,
            cubes(heads * t.div_ceil(TILE)),
            CubeDim::new_1d(UNITS),
            vectors(&forward.out),
            vectors(&forward.d_out),
            *t as u32,
            n_locks as u32,
            delta.clone().into_buffer_arg(),
            locks.clone().into_buffer_arg(),
            config,
        );
    }
    add_up::<E>(call, &config, forward, [&delta, &sums, &locks], d_key_value);

    // SAFETY: queries are guarded by T, and the sums that are read have been written.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        one_pass_query_gradient::launch_unchecked::<E>(
            client,
            cubes(query_tiles),
            CubeDim::new_1d(2 * UNITS),
            quads(),
            locks.into_buffer_arg(),
            *t as u32,
            vectors(d_query),
            config,
        );
    }
}

/// Computes the gradients of keys and values, and adds the queries' gradients to the cleared `sums`.
fn add_up<E: Float + CubeElement>(
    call: &Call,
    config: &PassConfig,
    forward: &Forward,
    [delta, sums, locks]: [&CubeTensor; 3],
    d_key_value: &CubeTensor,
) {
    let Call { spec, lens: [_, s], .. } = call;
    let blocks = spec.batch_size * spec.n_kv_heads * s.div_ceil(KEYS);
    let heads = (spec.batch_size * spec.n_heads) as u32;
    let rows = config.rows();
    let len = |tensor: &CubeTensor| tensor.meta.shape().num_elements();

    let mut arguments = Arguments::default();
    add_matrix(&mut arguments, &call.query, rows);
    add_matrix(&mut arguments, &call.key_value, KEYS);
    add_matrix(&mut arguments, &forward.d_out, rows);
    add_buffer(&mut arguments, &forward.lse, len(&forward.lse));
    add_buffer(&mut arguments, delta, len(delta));
    program::add_call(&mut arguments, call, Places { heads, heads_at_once: 1, tile_bits: 0 });
    add_buffer(&mut arguments, sums, len(sums) / 4);
    add_buffer(&mut arguments, locks, len(locks));
    add_buffer(&mut arguments, d_key_value, len(d_key_value) / 8);

    let (settings, properties, target) = program::settings(&d_key_value.client, 3 * UNITS);
    let inputs = InputsCompilationArg { query: (), key_value: () };
    let buffer = program::buffer;
    let data = QueryDataCompilationArg { d_out: (), lse: buffer(), delta: buffer() };
    let sums_of = SumsCompilationArg { numbers: buffer(), locks: buffer() };
    let (of_call, config) = (program::call(), *config);
    #[rustfmt::skip]
    let kernel = OnePassGradients::<E>::new(
        settings, properties, target, inputs, data, of_call, sums_of, buffer(), config,
    );
    let written = [d_key_value, sums, locks].map(|tensor| tensor.handle.clone().binding());
    // SAFETY: TMA clips to the matrices, and everything else is guarded by T and S. The locks have been cleared.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        arguments.launch(d_key_value.device.to_id(), kernel, (blocks as u32, 1, 1), written.to_vec());
    }
}
