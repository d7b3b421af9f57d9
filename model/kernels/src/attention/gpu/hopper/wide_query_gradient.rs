//! The gradient of the queries of wide heads: a block is two warpgroups, which own 64 queries each and share the streamed keys and
//! values. Memory holds two tiles of keys and one of values.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::slots::{Slots, arrived, fill, fill_rows, fill_slot, slots};
use super::tile::{enqueue, left_operand, product_shared, round_into, settle, tile};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens, Outputs};
use crate::attention::gpu::shared::bound::{bound, multiply_by_slopes};
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::dropout::drop_values;
use crate::attention::gpu::shared::mask::{HIDDEN, Sight, hide, key_tile_of, sight};
use crate::attention::gpu::shared::position::{
    Patch, Place, QueryTile, cube_place, group_tile, key_column, place, query_column, tiles_of, value_column, warpgroup,
};
use crate::attention::gpu::shared::rows::{row_products, store_rows};
use crate::attention::gpu::shared::softmax::{take_probabilities, take_score_gradients};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, wait, zeros};

/// Computes the gradient of the queries, and `delta`: each query's sum of `out * d_out`, which the gradient of keys and
/// values reads.
#[cube(launch_unchecked)]
pub(super) fn wide_query_gradient<E: Float>(
    inputs: &Inputs<E>,
    outputs: &Outputs<E>,
    call: &Call,
    delta: &mut [f32],
    d_query: &mut [Oct<E>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.cubes()]);
    let (row_head, from_last) = cube_place(call);
    let blocks = tiles_of(call.lens.t, comptime![cfg.groups() * TILE]);
    if row_head >= call.heads || from_last >= blocks {
        terminate!();
    }
    let (group, unit) = warpgroup(comptime![cfg.groups()]);
    let block = group_tile(row_head, blocks - 1 - from_last, group, comptime![cfg.groups()], cfg);
    let sight = sight(&call.masks, &block, &place(unit), &call.lens, cfg);

    let groups = comptime![cfg.groups()];
    let mut memory = Memory::<E> {
        queries: slots::<E>(1usize, groups, cfg),
        gradients: slots::<E>(1usize, groups, cfg),
        keys: slots::<E>(2usize, 1usize, cfg),
        values: slots::<E>(1usize, 1usize, cfg),
    };
    sync_async_proxy_shared();
    sync_cube();
    request_first::<E>(&mut memory, inputs, outputs, &block, &sight, &call.lens, cfg);

    let t = call.lens.t;
    let patch = Patch { first: block.batch * t, row0: block.q0, rows: t, column: query_column(block.head, cfg) };
    let rows = rows_of::<E>(outputs, delta, &block, &patch, unit, cfg);
    let mut dq = zeros(comptime![cfg.head_dim]);
    if sight.blocks > 0 {
        accumulate::<E>(&mut dq, &mut memory, &rows, inputs, call, &block, &sight, cfg);
    }
    let (columns, head_dim) = comptime![(cfg.query_columns(), cfg.head_dim)];
    store_rows::<E, Const<8>>(&dq, 1.0f32, 1.0f32, d_query, &patch, unit, columns, head_dim);
}

/// The tiles of a block: queries and `d_out` of each warpgroup, two slots of keys and one of values.
#[derive(CubeType)]
struct Memory<E: Float> {
    queries: Slots<E>,
    gradients: Slots<E>,
    keys: Slots<E>,
    values: Slots<E>,
}

/// A thread's two queries: their place, log-sums and deltas.
#[derive(CubeType)]
struct Rows {
    at: Place,
    lse0: f32,
    lse1: f32,
    delta0: f32,
    delta1: f32,
}

/// Requests the resident tiles, the first keys and values, and the second keys.
#[cube]
fn request_first<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    outputs: &Outputs<E>,
    block: &QueryTile,
    sight: &Sight,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    let column = query_column(block.head, cfg);
    let (keys, values) = (key_column(block.group, cfg), value_column(block.group, cfg));
    if UNIT_POS == 0 && sight.blocks > 0 {
        let row = block.batch * lens.t + block.q0;
        let from = block.batch * lens.s + key_tile_of(sight, 0u32, cfg) * comptime![TILE as u32];
        let groups = comptime![cfg.groups()];
        fill_rows::<E>(&mut memory.queries, &inputs.query, row, column, groups, cfg);
        fill_slot::<E>(&mut memory.keys, 0usize, &inputs.key_value, from, keys, cfg);
        fill_rows::<E>(&mut memory.gradients, &outputs.d_out_tiles, row, column, groups, cfg);
        fill_slot::<E>(&mut memory.values, 0usize, &inputs.key_value, from, values, cfg);
        if sight.blocks > 1 {
            fill_slot::<E>(&mut memory.keys, 1usize, &inputs.key_value, from + comptime![TILE as u32], keys, cfg);
        }
    }
    sync_plane();
}

/// Loads the log-sums of the thread's queries, and computes and stores their deltas.
#[cube]
fn rows_of<E: Float>(
    outputs: &Outputs<E>,
    delta: &mut [f32],
    block: &QueryTile,
    patch: &Patch,
    unit: u32,
    #[comptime] cfg: FlashConfig,
) -> Rows {
    let at = place(unit);
    let t = patch.rows;
    let row0 = block.row_head * t + min(block.q0 + at.row, t - 1);
    let row1 = block.row_head * t + min(block.q0 + at.row + 8, t - 1);
    let (lse0, lse1) = (outputs.lse[row0 as usize], outputs.lse[row1 as usize]);

    let (columns, head_dim) = comptime![(cfg.n_heads * cfg.head_dim, cfg.head_dim)];
    let (delta0, delta1) = row_products::<E, Const<8>>(&outputs.d_out, &outputs.out, patch, unit, columns, head_dim);
    if at.column == 0 {
        if block.q0 + at.row < t {
            delta[row0 as usize] = delta0;
        }
        if block.q0 + at.row + 8 < t {
            delta[row1 as usize] = delta1;
        }
    }
    Rows { at, lse0, lse1, delta0, delta1 }
}

/// Adds to `dq` what all keys contribute that the queries see, at least one tile of them.
#[cube]
fn accumulate<E: Float>(
    dq: &mut Array<f32>,
    memory: &mut Memory<E>,
    rows: &Rows,
    inputs: &Inputs<E>,
    call: &Call,
    block: &QueryTile,
    sight: &Sight,
    #[comptime] cfg: FlashConfig,
) {
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let hidden = f32::cast_from(comptime![HIDDEN]);
    let (group, _) = warpgroup(comptime![cfg.groups()]);
    let queries = tile(describe::<E>(&memory.queries.tiles, comptime![cfg.rows_layout()]), group, cfg);
    let gradients = tile(describe::<E>(&memory.gradients.tiles, comptime![cfg.rows_layout()]), group, cfg);
    let key_rows = describe::<E>(&memory.keys.tiles, comptime![cfg.rows_layout()]);
    let key_columns = describe::<E>(&memory.keys.tiles, comptime![cfg.columns_layout()]);
    let value_rows = describe::<E>(&memory.values.tiles, comptime![cfg.rows_layout()]);
    let mut d_scores = left_operand::<E>(TILE);
    memory.queries.loaded.index(0usize).wait_parity(0u32);
    memory.gradients.loaded.index(0usize).wait_parity(0u32);

    for nth in 0..sight.blocks {
        let slot = arrived::<E>(&memory.keys, nth);
        // Wait for the product of the previous turn.
        settle::<E>(&*dq, &d_scores, 0usize);
        let mut scores = zeros(TILE);
        let mut dp = zeros(TILE);
        pin(&scores);
        pin(&dp);
        fence();
        product_shared::<E>(&mut scores, queries, tile(key_rows, slot, cfg), cfg);
        commit();
        memory.values.loaded.index(0usize).wait_parity(nth % 2);
        product_shared::<E>(&mut dp, gradients, value_rows, cfg);
        commit();

        // No thread reads the keys of the previous turn any more.
        sync_cube();
        if UNIT_POS == 0 && nth > 0 && nth + 1 < sight.blocks {
            let from = block.batch * call.lens.s + key_tile_of(sight, nth + 1, cfg) * comptime![TILE as u32];
            fill::<E>(&mut memory.keys, 1 - slot, &inputs.key_value, from, key_column(block.group, cfg), cfg);
        }
        sync_plane();

        // Wait for the scores, not for `dp`.
        wait(1usize);
        pin(&scores);
        let key_tile = key_tile_of(sight, nth, cfg);
        bound(&mut scores, cfg);
        hide(&mut scores, hidden, sight, &call.masks, key_tile * comptime![TILE as u32], &rows.at, cfg);
        take_probabilities(&mut scores, rows.lse0, rows.lse1, scale_log2);
        multiply_by_slopes(&mut scores, rows.lse0, rows.lse1, cfg);

        // No thread reads the values of this turn any more.
        wait(0usize);
        pin(&dp);
        sync_cube();
        if UNIT_POS == 0 && nth + 1 < sight.blocks {
            let from = block.batch * call.lens.s + key_tile_of(sight, nth + 1, cfg) * comptime![TILE as u32];
            fill_slot::<E>(&mut memory.values, 0usize, &inputs.key_value, from, value_column(block.group, cfg), cfg);
        }
        sync_plane();

        if comptime![cfg.dropout] {
            let row = block.row_head * call.lens.t + block.q0 + rows.at.row;
            drop_values(&mut dp, &call.dropout, row, key_tile, rows.at.column, call.lens.s);
        }
        take_score_gradients(&mut scores, &dp, rows.delta0, rows.delta1, scale);
        round_into::<E>(&scores, &mut d_scores);
        enqueue::<E>(dq, &d_scores, tile(key_columns, slot, cfg), comptime![cfg.columns_layout()]);
    }
    settle::<E>(&*dq, &d_scores, 0usize);
}
