//! Forward: a block per one or two tiles of queries of a head.
//!
//! Values arrive while the scores are multiplied, and the next keys during the softmax and the product with the values.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::tile::{accumulators, add_products, add_scores, readers, request, row_accumulators, tiles_memory};
use super::{Inputs, forward_cubes};
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::bound::bound;
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::dropout::drop_values;
use crate::attention::gpu::shared::mask::{MASKED, Sight, hide, key_tile_of, sight};
use crate::attention::gpu::shared::position::{
    Patch, QueryTile, cube_place, key_column, place, query_column, query_tile, tiles, value_column,
};
use crate::attention::gpu::shared::relative::{Scores, add_to_rows};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{Rescale, Running, apply, quad_sum, take_exponentials};
use crate::gpu::async_copy::{commit, wait};
use crate::gpu::instruction::{log2_approx, rcp_approx};
use crate::gpu::occupancy::cubes_at_once;

/// A tile of queries of a block.
#[derive(CubeType)]
struct Queries {
    block: QueryTile,
    sight: Sight,
    running: Running,
}

/// Computes `out` and the binary logarithm of each query's sum of exponentials. A block owns `owned` tiles of queries.
#[cube(launch_unchecked)]
pub(super) fn attention_forward<E: Float, N: Size>(
    inputs: &Inputs<E, N>,
    call: &Call,
    out: &mut [Vector<E, N>],
    lse: &mut [f32],
    #[comptime] cfg: FlashConfig,
    #[comptime] owned: usize,
) {
    cubes_at_once(comptime![forward_cubes(owned, &cfg)]);
    let (row_head, from_last) = cube_place(call);
    let blocks = (tiles(call.lens.t) + comptime![owned as u32 - 1]) / comptime![owned as u32];
    if row_head >= call.heads || from_last >= blocks {
        terminate!();
    }

    // Under causality late tiles see the most keys, so they go first.
    let first = (blocks - 1 - from_last) * comptime![owned as u32];
    let lowest = f32::cast_from(comptime![MASKED]);
    let mut memory = tiles_memory::<E, N>(comptime![owned + 2], TILE, cfg);
    let mut queries = Sequence::<Queries>::new();

    #[unroll]
    for i in 0..owned {
        let mut block = query_tile(row_head, first + comptime![i as u32], cfg);
        block.before = comptime![(i * TILE) as u32].runtime();
        let sight = sight(&call.masks, &block, &place(UNIT_POS), &call.lens, cfg);
        let patch = query_patch(&block, call.lens.t, cfg);
        request::<E, N>(
            &mut memory,
            comptime![i as u32].runtime(),
            &inputs.query,
            &patch,
            comptime![cfg.query_columns()],
            TILE,
            cfg,
        );
        // Assigned to, or they would stay constants.
        let mut running = Running { top0: 0.0f32, top1: 0.0f32, sum0: 0.0f32, sum1: 0.0f32 };
        running.top0 = lowest;
        running.top1 = lowest;
        queries.push(Queries { block, sight, running });
    }
    let mut sums = row_accumulators(owned, cfg);
    attend::<E, N>(&mut sums, &mut queries, &mut memory, inputs, call, cfg);

    #[unroll]
    for i in 0..owned {
        finish::<E, N>(sums.index(i), queries.index(i), out, lse, call.lens.t, cfg);
    }
}

/// Returns where the queries of a tile are.
#[cube]
fn query_patch(block: &QueryTile, t: u32, #[comptime] cfg: FlashConfig) -> Patch {
    Patch { first: block.batch * t, row0: block.q0, rows: t, column: query_column(block.head, cfg) }
}

/// Attends to all keys that the queries see.
#[cube]
fn attend<E: Float, N: Size>(
    sums: &mut Sequence<Array<f32>>,
    queries: &mut Sequence<Queries>,
    memory: &mut Shared<[Vector<E, N>]>,
    inputs: &Inputs<E, N>,
    call: &Call,
    #[comptime] cfg: FlashConfig,
) {
    let owned = queries.len();
    let (key_tile, value_tile) = (comptime![owned as u32].runtime(), comptime![owned as u32 + 1].runtime());
    let columns = comptime![cfg.key_value_columns()];
    let readers = readers(TILE, cfg);
    // The last tile sees the last keys.
    let last = queries.index(comptime![owned - 1]);
    let (turns, first_tile) = (last.sight.blocks, key_tile_of(&last.sight, 0u32, cfg));
    let (batch, group) = (last.block.batch, last.block.group);
    let (first, rows, row0) = (batch * call.lens.s, call.lens.s, first_tile * comptime![TILE as u32]);
    let mut keys = Patch { first, row0, rows, column: key_column(group, cfg) };
    let mut values = Patch { first, row0, rows, column: value_column(group, cfg) };
    if turns > 0 {
        request::<E, N>(memory, key_tile, &inputs.key_value, &keys, columns, TILE, cfg);
    }
    commit();

    for nth in 0..turns {
        // These keys are there, and no warp reads the values before these any more.
        wait(0usize);
        sync_cube();
        let nth_keys = first_tile + nth;
        values.row0 = nth_keys * comptime![TILE as u32];
        request::<E, N>(memory, value_tile, &inputs.key_value, &values, columns, TILE, cfg);
        commit();
        let mut scores = accumulators(owned, TILE);
        add_scores::<E, N>(&mut scores, &*memory, &readers, 0u32, key_tile, TILE, cfg);

        wait(0usize);
        sync_cube();
        if nth + 1 < turns {
            keys.row0 = (nth_keys + 1) * comptime![TILE as u32];
            request::<E, N>(memory, key_tile, &inputs.key_value, &keys, columns, TILE, cfg);
        }
        commit();
        #[unroll]
        for i in 0..owned {
            take_probabilities(scores.index_mut(i), sums.index_mut(i), queries.index_mut(i), call, nth_keys, cfg);
        }
        add_products::<E, N>(sums, &scores, &*memory, &readers, value_tile, TILE, cfg);
    }
}

/// Replaces the scores of key tile `nth` by probabilities, not yet divided by their sum, and rescales the results so far.
#[cube]
fn take_probabilities(
    scores: &mut Array<f32>,
    sums: &mut Array<f32>,
    queries: &mut Queries,
    call: &Call,
    nth: u32,
    #[comptime] cfg: FlashConfig,
) {
    let at = place(UNIT_POS);
    let scale = comptime![cfg.scale() * LOG2_E].runtime();
    let lowest = f32::cast_from(comptime![MASKED]);
    bound(scores, cfg);
    let block = &queries.block;
    let corner = Scores { head: block.head, q0: block.q0, k0: nth * comptime![TILE as u32] };
    add_to_rows(scores, &call.masks, &corner, &at, &call.lens, cfg);
    hide(scores, lowest, &queries.sight, &call.masks, nth * comptime![TILE as u32], &at, cfg);
    let mut rescale = Rescale { needed: false.runtime(), by0: 1.0f32, by1: 1.0f32 };
    take_exponentials(scores, &mut queries.running, &mut rescale, scale);
    apply(&rescale, sums);
    if comptime![cfg.dropout] {
        let row = queries.block.row_head * call.lens.t + queries.block.q0 + at.row;
        drop_values(scores, &call.dropout, row, nth, at.column, call.lens.s);
    }
}

/// Stores the results of a tile of queries.
#[cube]
fn finish<E: Float, N: Size>(
    sums: &Array<f32>,
    queries: &Queries,
    out: &mut [Vector<E, N>],
    lse: &mut [f32],
    t: u32,
    #[comptime] cfg: FlashConfig,
) {
    // A query without keys has a sum of 0. Its row is finite but undefined.
    let total0 = max(quad_sum(queries.running.sum0), 1e-30f32);
    let total1 = max(quad_sum(queries.running.sum1), 1e-30f32);
    let (columns, head_dim) = comptime![(cfg.n_heads * cfg.head_dim, cfg.head_dim)];
    let patch = query_patch(&queries.block, t, cfg);
    store_rows::<E, N>(sums, rcp_approx(total0), rcp_approx(total1), out, &patch, UNIT_POS, columns, head_dim);

    let at = place(UNIT_POS);
    if at.column == 0 {
        let scale = comptime![cfg.scale() * LOG2_E].runtime();
        let row = queries.block.q0 + at.row;
        let to = queries.block.row_head * t + row;
        if row < t {
            lse[to as usize] = queries.running.top0 * scale + log2_approx(total0);
        }
        if row + 8 < t {
            lse[(to + 8) as usize] = queries.running.top1 * scale + log2_approx(total1);
        }
    }
}
