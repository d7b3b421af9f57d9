//! The gradient of the queries: a block owns 64 of its rows, and keys and values are streamed past them.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::tile::{accumulators, add_products, add_scores, readers, request, row_accumulators, tiles_memory};
use super::{Inputs, Outputs, gradient_cubes, is_wide, streamed_rows};
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::bound::{bound, multiply_by_slopes};
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::dropout::drop_values;
use crate::attention::gpu::shared::mask::{HIDDEN, Sight, hide, key_tile_of, sight};
use crate::attention::gpu::shared::position::{
    Patch, QueryTile, cube_place, key_column, place, query_column, query_tile, tiles, value_column,
};
use crate::attention::gpu::shared::relative::{Scores, add_to_rows};
use crate::attention::gpu::shared::rows::{row_products, store_rows};
use crate::attention::gpu::shared::softmax::{take_probabilities, take_score_gradients};
use crate::gpu::async_copy::{commit, wait};
use crate::gpu::occupancy::cubes_at_once;

/// The tiles of queries and `d_out`, and the first of the tiles of keys and values.
const QUERIES: u32 = 0;
const GRADIENTS: u32 = 1;
const STREAMED: u32 = 2;

/// The tile of queries of a block, and the log-sums and deltas of the thread's two.
#[derive(CubeType)]
pub(super) struct Queries {
    pub(super) block: QueryTile,
    pub(super) sight: Sight,
    patch: Patch,
    lse0: f32,
    lse1: f32,
    delta0: f32,
    delta1: f32,
}

/// Computes the gradient of the queries, and `delta`: each query's sum of `out * d_out`, which the gradient of keys and values
/// reads.
#[cube(launch_unchecked)]
pub(super) fn query_gradient<E: Float, N: Size>(
    inputs: &Inputs<E, N>,
    outputs: &Outputs<E, N>,
    call: &Call,
    delta: &mut [f32],
    d_query: &mut [Vector<E, N>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![gradient_cubes(&cfg)]);
    let (row_head, from_last) = cube_place(call);
    let (tiles, t) = (tiles(call.lens.t), call.lens.t);
    if row_head >= call.heads || from_last >= tiles {
        terminate!();
    }

    let block = query_tile(row_head, tiles - 1 - from_last, cfg);
    let patch = Patch { first: block.batch * t, row0: block.q0, rows: t, column: query_column(block.head, cfg) };
    let (query_columns, head_dim) = comptime![(cfg.query_columns(), cfg.head_dim)];
    let rows = comptime![streamed_rows(2, &cfg)];
    let streamed_tiles = comptime![if is_wide(&cfg) { 2usize } else { 4usize }];
    let mut memory = tiles_memory::<E, N>(comptime![2 * TILE / rows + streamed_tiles], rows, cfg);
    request::<E, N>(&mut memory, QUERIES, &inputs.query, &patch, query_columns, TILE, cfg);
    request::<E, N>(&mut memory, GRADIENTS, &outputs.d_out, &patch, comptime![cfg.n_heads * cfg.head_dim], TILE, cfg);

    let queries = rows_of::<E, N>(outputs, delta, call, block, patch, cfg);
    let mut sums = row_accumulators(1usize, cfg);
    if comptime![is_wide(&cfg)] {
        accumulate_in_turn::<E, N>(&mut sums, &queries, &mut memory, inputs, call, cfg);
    } else {
        accumulate::<E, N>(&mut sums, &queries, &mut memory, inputs, call, cfg);
    }
    store_rows::<E, N>(sums.index(0usize), 1.0f32, 1.0f32, d_query, &queries.patch, UNIT_POS, query_columns, head_dim);
}

/// Loads the log-sums of the thread's queries, and computes and stores their deltas.
#[cube]
pub(super) fn rows_of<E: Float, N: Size>(
    outputs: &Outputs<E, N>,
    delta: &mut [f32],
    call: &Call,
    block: QueryTile,
    patch: Patch,
    #[comptime] cfg: FlashConfig,
) -> Queries {
    let at = place(UNIT_POS);
    let t = call.lens.t;
    let row0 = block.row_head * t + min(block.q0 + at.row, t - 1);
    let row1 = block.row_head * t + min(block.q0 + at.row + 8, t - 1);
    let (columns, head_dim) = comptime![(cfg.n_heads * cfg.head_dim, cfg.head_dim)];
    let (delta0, delta1) = row_products::<E, N>(&outputs.d_out, &outputs.out, &patch, UNIT_POS, columns, head_dim);
    if at.column == 0 {
        if block.q0 + at.row < t {
            delta[row0 as usize] = delta0;
        }
        if block.q0 + at.row + 8 < t {
            delta[row1 as usize] = delta1;
        }
    }

    let sight = sight(&call.masks, &block, &at, &call.lens, cfg);
    let (lse0, lse1) = (outputs.lse[row0 as usize], outputs.lse[row1 as usize]);
    Queries { block, sight, patch, lse0, lse1, delta0, delta1 }
}

/// Adds to `sums` what all keys contribute that the queries see.
#[cube]
fn accumulate<E: Float, N: Size>(
    sums: &mut Sequence<Array<f32>>,
    queries: &Queries,
    memory: &mut Shared<[Vector<E, N>]>,
    inputs: &Inputs<E, N>,
    call: &Call,
    #[comptime] cfg: FlashConfig,
) {
    let readers = readers(TILE, cfg);
    let turns = queries.sight.blocks;
    request_keys::<E, N>(memory, inputs, queries, 0u32, call.lens.s, cfg);

    for nth in 0..turns {
        // These keys and values are there, and no warp reads those before them any more.
        wait(0usize);
        sync_cube();
        request_keys::<E, N>(memory, inputs, queries, nth + 1, call.lens.s, cfg);

        let keys = STREAMED + nth % 2 * 2;
        let mut scores = accumulators(1usize, TILE);
        add_scores::<E, N>(&mut scores, &*memory, &readers, QUERIES, keys, TILE, cfg);
        let mut dp = accumulators(1usize, TILE);
        add_scores::<E, N>(&mut dp, &*memory, &readers, GRADIENTS, keys + 1, TILE, cfg);
        let tile = key_tile_of(&queries.sight, nth, cfg);
        take_gradients(scores.index_mut(0usize), dp.index_mut(0usize), queries, call, tile, cfg);
        add_products::<E, N>(sums, &scores, &*memory, &readers, keys, TILE, cfg);
    }
}

/// [`accumulate`] with one tile of keys and one of values in memory: keys arrive during the product with the values, and the next
/// values during the products with the keys.
#[cube]
fn accumulate_in_turn<E: Float, N: Size>(
    sums: &mut Sequence<Array<f32>>,
    queries: &Queries,
    memory: &mut Shared<[Vector<E, N>]>,
    inputs: &Inputs<E, N>,
    call: &Call,
    #[comptime] cfg: FlashConfig,
) {
    let rows = comptime![streamed_rows(2, &cfg)];
    let key_tile = comptime![(2 * TILE / rows) as u32].runtime();
    let value_tile = key_tile + 1;
    let columns = comptime![cfg.key_value_columns()];
    let (first, s, group) = (queries.block.batch * call.lens.s, call.lens.s, queries.block.group);
    let first_tile = key_tile_of(&queries.sight, 0u32, cfg) * comptime![(TILE / rows) as u32];
    let row0 = first_tile * comptime![rows as u32];
    let mut keys = Patch { first, row0, rows: s, column: key_column(group, cfg) };
    let mut values = Patch { first, row0, rows: s, column: value_column(group, cfg) };
    let readers = readers(rows, cfg);
    let turns = queries.sight.blocks * comptime![(TILE / rows) as u32];
    if turns > 0 {
        request::<E, N>(memory, value_tile, &inputs.key_value, &values, columns, rows, cfg);
    }
    commit();

    for nth in 0..turns {
        // These values are there, and no warp reads the keys before these any more.
        wait(0usize);
        sync_cube();
        let tile = first_tile + nth;
        keys.row0 = tile * comptime![rows as u32];
        request::<E, N>(memory, key_tile, &inputs.key_value, &keys, columns, rows, cfg);
        commit();
        let mut dp = accumulators(1usize, rows);
        add_scores::<E, N>(&mut dp, &*memory, &readers, GRADIENTS, value_tile, rows, cfg);

        wait(0usize);
        sync_cube();
        if nth + 1 < turns {
            values.row0 = (tile + 1) * comptime![rows as u32];
            request::<E, N>(memory, value_tile, &inputs.key_value, &values, columns, rows, cfg);
        }
        commit();
        let mut scores = accumulators(1usize, rows);
        add_scores::<E, N>(&mut scores, &*memory, &readers, QUERIES, key_tile, rows, cfg);
        take_gradients(scores.index_mut(0usize), dp.index_mut(0usize), queries, call, tile, cfg);
        add_products::<E, N>(sums, &scores, &*memory, &readers, key_tile, rows, cfg);
    }
}

/// Starts to copy the keys and values of turn `nth`, if there are as many, to the two tiles of their slot.
#[cube]
fn request_keys<E: Float, N: Size>(
    memory: &mut Shared<[Vector<E, N>]>,
    inputs: &Inputs<E, N>,
    queries: &Queries,
    nth: u32,
    s: u32,
    #[comptime] cfg: FlashConfig,
) {
    let (block, sight) = (&queries.block, &queries.sight);
    if nth < sight.blocks {
        let tile = STREAMED + nth % 2 * 2;
        let (first, row0) = (block.batch * s, key_tile_of(sight, nth, cfg) * comptime![TILE as u32]);
        let columns = comptime![cfg.key_value_columns()];
        let keys = Patch { first, row0, rows: s, column: key_column(block.group, cfg) };
        request::<E, N>(memory, tile, &inputs.key_value, &keys, columns, TILE, cfg);
        let values = Patch { first, row0, rows: s, column: value_column(block.group, cfg) };
        request::<E, N>(memory, tile + 1, &inputs.key_value, &values, columns, TILE, cfg);
    }
    commit();
}

/// Replaces the scores of key tile `nth` by their gradients, given the gradients `dp` of the probabilities.
#[cube]
pub(super) fn take_gradients(
    scores: &mut Array<f32>,
    dp: &mut Array<f32>,
    queries: &Queries,
    call: &Call,
    nth: u32,
    #[comptime] cfg: FlashConfig,
) {
    let at = place(UNIT_POS);
    let hidden = f32::cast_from(comptime![HIDDEN]);
    let held = scores.len();
    bound(scores, cfg);
    let block = &queries.block;
    let corner = Scores { head: block.head, q0: block.q0, k0: nth * comptime![2 * held as u32] };
    add_to_rows(scores, &call.masks, &corner, &at, &call.lens, cfg);
    hide(scores, hidden, &queries.sight, &call.masks, nth * comptime![2 * held as u32], &at, cfg);
    take_probabilities(scores, queries.lse0, queries.lse1, comptime![cfg.scale() * LOG2_E].runtime());
    multiply_by_slopes(scores, queries.lse0, queries.lse1, cfg);
    if comptime![cfg.dropout] {
        let row = queries.block.row_head * call.lens.t + queries.block.q0 + at.row;
        drop_values(dp, &call.dropout, row, nth, at.column, call.lens.s);
    }
    take_score_gradients(scores, &*dp, queries.delta0, queries.delta1, comptime![cfg.scale()].runtime());
}
