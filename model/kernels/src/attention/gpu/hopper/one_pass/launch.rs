//! Launches of the pass.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::PassConfig;
use super::column::{KEYS, turns_of_a_head};
use super::gradients::one_pass_gradients;
use super::memory::PANEL;
use super::rows::{one_pass_deltas, one_pass_query_gradient};
use super::sums::SumsLaunch;
use crate::attention::gpu::hopper::key_value_gradient::QueryDataLaunch;
use crate::attention::gpu::shared::arguments::{CallLaunch, InputsLaunch};
use crate::attention::gpu::shared::call::{Call, Forward, buffer, vectors};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::empty;
use crate::gpu::tensor_map::tensor_map;

/// How many times as long as the longest block all blocks of a multiprocessor take: the last one may find all others idle. See
/// `benches/results/2026-11-29-h200-attention-backward.md`.
const BLOCKS_LONG: usize = 6;

/// Returns the turns of a block in the mean from which the pass is faster than two kernels, see
/// `benches/results/2026-11-29-h200-attention-backward.md`. Heads of 64 that see all keys are never faster.
fn turns_that_pay(cfg: &FlashConfig) -> Option<usize> {
    match (cfg.head_dim, cfg.causal) {
        (64, true) => Some(24),
        (128, _) => Some(16),
        _ => None,
    }
}

/// Whether the pass computes the gradients of this call, and is faster than two kernels.
pub(in crate::attention::gpu::hopper) fn serves(call: &Call) -> bool {
    let cfg = PassConfig { flash: call.config };
    let FlashConfig { head_dim, dropout, relative, softcap, n_heads, n_kv_heads, .. } = cfg.flash;
    let computes = matches!(head_dim, 64 | 128) && !dropout && !relative && softcap.is_none();
    #[cfg(test)]
    if let Some(wanted) = crate::attention::tests::one_pass::wanted() {
        return computes && wanted;
    }
    let (longest, all) = turns_of_a_head(&cfg, call.lens);
    let columns = call.lens[1].div_ceil(KEYS);
    let each = multiprocessors(&call.query.client) as usize;
    computes
        && turns_that_pay(&cfg.flash).is_some_and(|least| all >= least * columns)
        && all * call.spec.batch_size * n_heads >= BLOCKS_LONG * longest * (n_heads / n_kv_heads) * each
}

/// Computes the gradients of the queries, and of keys and values.
pub(in crate::attention::gpu::hopper) fn launch<E: Float + CubeElement>(
    call: &Call,
    forward: &Forward,
    d_query: &CubeTensor,
    d_key_value: &CubeTensor,
) {
    let Call { spec, config, lens: [t, s], .. } = call;
    let config = PassConfig { flash: *config };
    let rows = config.rows();
    let heads = spec.batch_size * spec.n_heads;
    let (query_tiles, columns) = (heads * t.div_ceil(rows), spec.batch_size * spec.n_kv_heads * s.div_ceil(KEYS));
    let n_locks = 1 + 2 * query_tiles;
    let delta = empty(&forward.lse, [heads * t], DType::F32);
    let locks = empty(&forward.lse, [n_locks], DType::U32);
    let sums = empty(&forward.lse, [2 * query_tiles * config.part_quads() * 4], DType::F32);
    let client = &forward.out.client;
    let cubes = |n: usize| CubeCount::Static(n as u32, 1, 1);

    let inputs = InputsLaunch::new(tensor_map(&call.query, rows, PANEL), tensor_map(&call.key_value, KEYS, PANEL));
    let data = QueryDataLaunch::new(
        tensor_map(&forward.d_out, rows, PANEL),
        forward.lse.clone().into_buffer_arg(),
        delta.clone().into_buffer_arg(),
    );
    let arguments = CallLaunch::new(call.masks(), heads as u32, call.lens(), call.dropout(), 1, 0);
    let quads = || buffer(&sums, 2 * query_tiles * config.part_quads());

    // SAFETY: TMA clips to the matrices, and everything else is guarded by T and S. The locks are cleared before they are read, and
    // the sums that are read have been written.
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
            delta.into_buffer_arg(),
            locks.clone().into_buffer_arg(),
            config,
        );
        one_pass_gradients::launch_unchecked::<E>(
            client,
            cubes(columns),
            CubeDim::new_1d(2 * UNITS),
            inputs,
            data,
            arguments,
            SumsLaunch::new(quads(), locks.clone().into_buffer_arg()),
            vectors(d_key_value),
            config,
        );
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
