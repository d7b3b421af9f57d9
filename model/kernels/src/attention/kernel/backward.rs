//! Backward: one kernel owns the rows of the queries' gradient, one those of the keys' and values'.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::sight::{clipped, hide, key_count, sight};
use super::{
    FlashConfig, HIDDEN, Oct, TILE, UNITS, arrived, cube_place, drop_values, fill_both, fill_slot_both, kept_bits,
    left_operand, place, product, product_shared, results_memory, round_into, row_products, slots, store_rows, tile,
    unit_here, zeros,
};
use crate::gpu::instruction::exp2_approx;
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, pin_all, wait};

/// Enqueues, each as a group of its own, the scores of the first tile that stays and the first in slot `slot`, and the gradient of
/// probabilities of the second ones: queries and `d_out` stay or are streamed, keys and values the other way.
#[cube]
fn scores_and_dp<E: Float>(
    stays: u32,
    second_stays: u32,
    streamed: u32,
    slot: u32,
    #[comptime] cfg: FlashConfig,
) -> (Array<f32>, Array<f32>) {
    let mut scores = zeros(comptime![TILE]);
    let mut dp = zeros(comptime![TILE]);
    pin(&scores);
    pin(&dp);
    fence();
    product_shared::<E>(&mut scores, stays, tile(streamed, 2 * slot, cfg), cfg);
    commit();
    product_shared::<E>(&mut dp, second_stays, tile(streamed, 2 * slot + 1, cfg), cfg);
    commit();
    (scores, dp)
}

/// The gradient of the queries, and `delta`: each query's sum of `out * d_out`, which [`key_value_gradient`] reads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn query_gradient<E: Float>(
    query: &TensorMap<E, Tiled>,
    key_value: &TensorMap<E, Tiled>,
    out: &[Oct<E>],
    d_out: &[Oct<E>],
    d_out_tiles: &TensorMap<E, Tiled>,
    lse: &[f32],
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    delta: &mut [f32],
    d_query: &mut [Oct<E>],
    heads: u32,
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    heads_at_once: u32,
    tile_bits: u32,
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.query_gradient_cubes()]);
    let (row_head, from_last) = cube_place(heads_at_once, tile_bits);
    let tiles = (t + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    if row_head >= heads || from_last >= tiles {
        terminate!();
    }
    let head = row_head % comptime![cfg.n_heads as u32];
    let batch = row_head / comptime![cfg.n_heads as u32];
    let group = head / comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let q0 = (tiles - 1 - from_last) * comptime![TILE as u32];
    let at = place(UNIT_POS);
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();

    let sight = sight(lengths, documents, batch, q0, &at, t, s, cfg);
    let blocks = sight.blocks;

    let mut stays = slots::<E>(1usize, 2usize, cfg);
    let mut streamed = slots::<E>(2usize, 2usize, cfg);
    let mut results = results_memory::<E>(cfg);
    sync_async_proxy_shared();
    sync_cube();
    let head_column = head * comptime![cfg.head_dim as u32];
    let out_columns = comptime![cfg.n_heads * cfg.head_dim];
    let columns = comptime![cfg.query_columns()];
    let head_dim = comptime![cfg.head_dim];
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    if UNIT_POS == 0 && blocks > 0 {
        fill_slot_both::<E>(&mut stays, 0usize, query, d_out_tiles, batch * t + q0, head_column, head_column, cfg);
        let from = batch * s;
        fill_slot_both::<E>(&mut streamed, 0usize, key_value, key_value, from, key_column, value_column, cfg);
        if blocks > 1 {
            let from = from + comptime![TILE as u32];
            fill_slot_both::<E>(&mut streamed, 1usize, key_value, key_value, from, key_column, value_column, cfg);
        }
    }
    sync_plane();
    // What follows is asked for behind the tiles, not before them.
    let unit = unit_here();
    let at = place(unit);
    let row0 = row_head * t + min(q0 + at.row, t - 1);
    let row1 = row_head * t + min(q0 + at.row + 8, t - 1);
    let lse0 = lse[row0 as usize];
    let lse1 = lse[row1 as usize];
    let (delta0, delta1) = row_products::<E>(d_out, out, batch * t, q0, t, head_column, unit, out_columns, head_dim);
    if at.column == 0 {
        if q0 + at.row < t {
            delta[row0 as usize] = delta0;
        }
        if q0 + at.row + 8 < t {
            delta[row1 as usize] = delta1;
        }
    }
    let rows = comptime![cfg.rows_layout()];
    let queries = describe::<E>(&stays.tiles, rows);
    let gradients = tile(queries, 1u32, cfg);
    let streamed_rows = describe::<E>(&streamed.tiles, rows);
    let streamed_columns = describe::<E>(&streamed.tiles, comptime![cfg.columns_layout()]);
    let hidden = f32::cast_from(comptime![HIDDEN]);
    let mut dq = zeros(comptime![cfg.head_dim]);
    let mut d_scores = left_operand::<E>();
    if blocks > 0 {
        stays.full.index(0usize).wait_parity(0u32);
        for block in 0..blocks {
            let slot = arrived::<E>(&streamed, block);
            // For the product of the block before.
            wait(0usize);
            pin(&dq);
            pin_all::<E>(&d_scores);
            let (mut scores, mut dp) = scores_and_dp::<E>(queries, gradients, streamed_rows, slot, cfg);
            // No unit reads the slot of the block before any more.
            sync_cube();
            if UNIT_POS == 0 && block > 0 && block + 1 < blocks {
                let from = batch * s + (block + 1) * comptime![TILE as u32];
                fill_both::<E>(&mut streamed, 1 - slot, key_value, key_value, from, key_column, value_column, cfg);
            }
            sync_plane();
            // Not for `dp`.
            wait(1usize);
            pin(&scores);
            hide(&mut scores, hidden, &sight, documents, block * comptime![TILE as u32], &at, cfg);
            #[unroll]
            for i in 0..comptime![TILE / 2] {
                let minus = if comptime![i % 4 < 2] { lse0 } else { lse1 };
                scores[i] = exp2_approx(scores[i] * scale_log2 - minus);
            }
            wait(0usize);
            pin(&dp);
            if comptime![cfg.dropout] {
                let row = row_head * t + q0 + at.row;
                drop_values(&mut dp, random, site, row, block, at.column, s, limit, keep);
            }
            #[unroll]
            for i in 0..comptime![TILE / 2] {
                let minus = if comptime![i % 4 < 2] { delta0 } else { delta1 };
                scores[i] = scores[i] * (dp[i] - minus) * scale;
            }
            round_into::<E>(&scores, &mut d_scores);
            pin_all::<E>(&d_scores);
            pin(&dq);
            fence();
            let keys = tile(streamed_columns, 2 * slot, cfg);
            product::<E>(&mut dq, &d_scores, keys, comptime![cfg.columns_layout()]);
            commit();
        }
        wait(0usize);
        pin(&dq);
        pin_all::<E>(&d_scores);
    }
    store_rows::<E>(&dq, 1.0f32, 1.0f32, &mut results, d_query, batch * t, q0, t, head_column, columns, head_dim);
}

/// The gradients of the keys and values: a cube per 64 keys of a group of heads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn key_value_gradient<E: Float>(
    query: &TensorMap<E, Tiled>,
    key_value: &TensorMap<E, Tiled>,
    d_out: &TensorMap<E, Tiled>,
    lse: &[f32],
    delta: &[f32],
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    d_key_value: &mut [Oct<E>],
    heads: u32,
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    heads_at_once: u32,
    tile_bits: u32,
    #[comptime] cfg: FlashConfig,
) {
    let crowded = comptime![cfg.three_key_value_cubes()];
    cubes_at_once(comptime![if crowded { 3usize } else { 2usize }]);
    let (row_group, key_tile) = cube_place(heads_at_once, tile_bits);
    if row_group >= heads || key_tile * comptime![TILE as u32] >= s {
        terminate!();
    }
    let group = row_group % comptime![cfg.n_kv_heads as u32];
    let batch = row_group / comptime![cfg.n_kv_heads as u32];
    // Early keys are seen by most queries under causality: they go first.
    let k0 = key_tile * comptime![TILE as u32];
    let at = place(UNIT_POS);
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let head_dim = comptime![cfg.head_dim];
    let columns = comptime![cfg.key_value_columns()];
    let per_group = comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];

    let keys = key_count(lengths, batch, s, cfg);
    // Queries from `first_block` on see some of the keys, those from `from_all` on all of them.
    let mut first_block = 0u32;
    let mut from_all = 0u32;
    if comptime![cfg.causal] {
        first_block = clipped(k0 + t, s) / comptime![TILE as u32];
        from_all = clipped(k0 + comptime![TILE as u32 - 1] + t, s);
    }
    let query_blocks = (t + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    let mut per_head = 0u32;
    if k0 < keys && first_block < query_blocks {
        per_head = query_blocks - first_block;
    }
    let blocks = per_head * per_group;

    let mut stays = slots::<E>(1usize, 2usize, cfg);
    let mut streamed = slots::<E>(2usize, 2usize, cfg);
    let mut results = results_memory::<E>(cfg);
    // Log-sums and deltas of the streamed queries: 64 and 64 a slot.
    let mut row_values = Shared::<[f32]>::new_slice(comptime![2 * UNITS as usize]);
    sync_async_proxy_shared();
    sync_cube();
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    let first_row = (batch * comptime![cfg.n_heads as u32] + group * per_group) * t;
    let first_column = group * per_group * comptime![cfg.head_dim as u32];
    let mut now = Streamed { head: 0u32.runtime(), tile: first_block };
    let mut next = advanced(&now, first_block, query_blocks);
    if UNIT_POS == 0 && blocks > 0 {
        let row = batch * t + now.tile * comptime![TILE as u32];
        fill_slot_both::<E>(&mut stays, 0usize, key_value, key_value, batch * s + k0, key_column, value_column, cfg);
        fill_slot_both::<E>(&mut streamed, 0usize, query, d_out, row, first_column, first_column, cfg);
        if blocks > 1 {
            let row = batch * t + next.tile * comptime![TILE as u32];
            let column = first_column + next.head * comptime![cfg.head_dim as u32];
            fill_slot_both::<E>(&mut streamed, 1usize, query, d_out, row, column, column, cfg);
        }
    }
    sync_plane();
    row_values[UNIT_POS as usize] = row_value(lse, delta, first_row, &now, t);

    let rows = comptime![cfg.rows_layout()];
    let keys_tile = describe::<E>(&stays.tiles, rows);
    let values_tile = tile(keys_tile, 1u32, cfg);
    let streamed_rows = describe::<E>(&streamed.tiles, rows);
    let streamed_columns = describe::<E>(&streamed.tiles, comptime![cfg.columns_layout()]);
    let hidden = f32::cast_from(comptime![HIDDEN]);
    let mut probabilities = left_operand::<E>();
    let mut d_scores = left_operand::<E>();
    let mut dk = zeros(head_dim);
    let mut dv = zeros(head_dim);
    if blocks > 0 {
        stays.full.index(0usize).wait_parity(0u32);
        for block in 0..blocks {
            let q0 = now.tile * comptime![TILE as u32];
            // Before the products, whose results leave no registers for it; pinned, or it would be worked out where it is used.
            let mut kept = Array::<u32>::new(1usize);
            kept[0] = 0u32;
            if comptime![cfg.dropout] {
                let row = first_row + now.head * t + q0 + at.column;
                kept[0] = kept_bits(random, site, row, key_tile, &at, s, limit);
                pin(&kept);
            }
            let slot = arrived::<E>(&streamed, block);
            // For the products of the block before.
            if comptime![crowded] {
                settled::<E>(&dk, &dv, &probabilities, &d_scores, 0usize);
            }
            let (mut scores, dp) = scores_and_dp::<E>(keys_tile, values_tile, streamed_rows, slot, cfg);
            if comptime![!crowded] {
                settled::<E>(&dk, &dv, &probabilities, &d_scores, 2usize);
            }
            // No unit reads the slot of the block before any more, and all see the log-sums and deltas of this one.
            sync_cube();
            let mut next_value = 0.0f32;
            if block + 1 < blocks {
                next_value = row_value(lse, delta, first_row, &next, t);
                if UNIT_POS == 0 && block > 0 {
                    let column = first_column + next.head * comptime![cfg.head_dim as u32];
                    let row = batch * t + next.tile * comptime![TILE as u32];
                    fill_both::<E>(&mut streamed, 1 - slot, query, d_out, row, column, column, cfg);
                }
            }
            sync_plane();
            now.head = next.head;
            now.tile = next.tile;
            let after = advanced(&now, first_block, query_blocks);
            next.head = after.head;
            next.tile = after.tile;
            let values_at = slot * UNITS + at.column;
            // Not for `dp`.
            wait(1usize);
            pin(&scores);
            let edge = q0 < from_all || q0 + comptime![TILE as u32] > t || k0 + comptime![TILE as u32] > keys;
            if comptime![cfg.documents] || edge {
                hide_queries(&mut scores, hidden, documents, batch, q0, k0, keys, t, s, cfg);
            }
            let log_sums = row_pairs(&row_values, values_at);
            let p = exponentials(&scores, &log_sums, scale_log2);
            round_into::<E>(&kept_values(&p, kept[0], keep, cfg), &mut probabilities);
            pin_all::<E>(&probabilities);
            pin(&dv);
            fence();
            let d_out_columns = tile(streamed_columns, 2 * slot + 1, cfg);
            product::<E>(&mut dv, &probabilities, d_out_columns, comptime![cfg.columns_layout()]);
            commit();
            let deltas = row_pairs(&row_values, values_at + comptime![TILE as u32]);
            // For `dp`, not for `dv`.
            wait(1usize);
            pin(&dp);
            let d_probabilities = kept_values(&dp, kept[0], keep, cfg);
            round_into::<E>(&score_gradients(&p, &d_probabilities, &deltas, scale), &mut d_scores);
            pin_all::<E>(&d_scores);
            pin(&dk);
            fence();
            let query_columns = tile(streamed_columns, 2 * slot, cfg);
            product::<E>(&mut dk, &d_scores, query_columns, comptime![cfg.columns_layout()]);
            commit();

            row_values[((1 - slot) * UNITS + UNIT_POS) as usize] = next_value;
        }
        settled::<E>(&dk, &dv, &probabilities, &d_scores, 0usize);
    }
    store_rows::<E>(&dk, 1.0f32, 1.0f32, &mut results, d_key_value, batch * s, k0, s, key_column, columns, head_dim);
    store_rows::<E>(&dv, 1.0f32, 1.0f32, &mut results, d_key_value, batch * s, k0, s, value_column, columns, head_dim);
}

/// Waits until but `running` products run, and none that writes `dk` or `dv` or reads the operands.
#[cube]
fn settled<E: Float>(
    dk: &Array<f32>,
    dv: &Array<f32>,
    probabilities: &Sequence<Array<E>>,
    d_scores: &Sequence<Array<E>>,
    #[comptime] running: usize,
) {
    wait(running);
    pin(dk);
    pin(dv);
    pin_all::<E>(probabilities);
    pin_all::<E>(d_scores);
}

/// Writes `hidden` over the values of a 64 x 64 accumulator, keys from `k0` on by queries from `q0` on, whose query does not see the
/// key.
#[cube]
#[expect(clippy::too_many_arguments, reason = "where the tile lies, and what bounds it")]
pub(super) fn hide_queries(
    values: &mut Array<f32>,
    hidden: f32,
    documents: &[i32],
    batch: u32,
    q0: u32,
    k0: u32,
    keys: u32,
    t: u32,
    s: u32,
    #[comptime] cfg: FlashConfig,
) {
    // The unit's two keys, and the queries from which on they are seen.
    let at = place(unit_here());
    let key0 = k0 + at.row;
    let key1 = key0 + 8;
    let mut from0 = 0u32;
    let mut from1 = 0u32;
    if comptime![cfg.causal] {
        from0 = clipped(key0 + t, s);
        from1 = clipped(key1 + t, s);
    }
    from0 = select(key0 < keys, from0, t);
    from1 = select(key1 < keys, from1, t);
    let mut document0 = 0i32;
    let mut document1 = 0i32;
    if comptime![cfg.documents] {
        document0 = documents[(batch * t + min(key0, t - 1)) as usize];
        document1 = documents[(batch * t + min(key1, t - 1)) as usize];
    }
    #[unroll]
    for i in 0..comptime![TILE / 2] {
        let row = q0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
        let from = if comptime![i % 4 < 2] { from0 } else { from1 };
        let mut visible = row >= from && row < t;
        if comptime![cfg.documents] {
            let document = if comptime![i % 4 < 2] { document0 } else { document1 };
            visible = visible && documents[(batch * t + min(row, t - 1)) as usize] == document;
        }
        values[i] = select(visible, values[i], hidden);
    }
}

/// A streamed block: its head within the group, and its tile of queries.
#[derive(CubeType)]
struct Streamed {
    head: u32,
    tile: u32,
}

/// The block after `block`, when each head's are those from `first` to `end`.
#[cube]
fn advanced(block: &Streamed, first: u32, end: u32) -> Streamed {
    let last = block.tile + 1 == end;
    Streamed { head: block.head + u32::cast_from(last), tile: select(last, first, block.tile + 1) }
}

/// The numbers of the unit's columns: two that are neighbours, every eight columns, from `at` on.
#[cube]
pub(super) fn row_pairs(row_values: &Shared<[f32]>, at: u32) -> Array<f32> {
    let mut pairs = Array::<f32>::new(comptime![TILE / 4]);
    #[unroll]
    for i in 0..comptime![TILE / 4] {
        pairs[i] = row_values[(at + comptime![(i / 2 * 8 + i % 2) as u32]) as usize];
    }
    pairs
}

/// Probabilities of keys by queries: `scores` in powers of two, less each query's log-sum.
#[cube]
pub(super) fn exponentials(scores: &Array<f32>, log_sums: &Array<f32>, scale_log2: f32) -> Array<f32> {
    let mut p = Array::<f32>::new(comptime![TILE / 2]);
    #[unroll]
    for i in 0..comptime![TILE / 2] {
        p[i] = exp2_approx(scores[i] * scale_log2 - log_sums[comptime![i / 4 * 2 + i % 2]]);
    }
    p
}

/// `values` times `keep` where dropout keeps them, bit by bit of `kept`, and 0 elsewhere; without dropout, `values`.
#[cube]
pub(super) fn kept_values(values: &Array<f32>, kept: u32, keep: f32, #[comptime] cfg: FlashConfig) -> Array<f32> {
    let mut result = Array::<f32>::new(comptime![TILE / 2]);
    #[unroll]
    for i in 0..comptime![TILE / 2] {
        result[i] = values[i];
        if comptime![cfg.dropout] {
            result[i] = values[i] * select(kept & comptime![1u32 << i as u32] != 0, keep, 0.0f32);
        }
    }
    result
}

/// The gradient of the scores of keys by queries: that of their softmax, whose results are `p`.
#[cube]
pub(super) fn score_gradients(p: &Array<f32>, dp: &Array<f32>, deltas: &Array<f32>, scale: f32) -> Array<f32> {
    let mut gradients = Array::<f32>::new(comptime![TILE / 2]);
    #[unroll]
    for i in 0..comptime![TILE / 2] {
        gradients[i] = p[i] * (dp[i] - deltas[comptime![i / 4 * 2 + i % 2]]) * scale;
    }
    gradients
}

/// What this unit brings of a streamed tile of queries: units below 64 a log-sum, the others a delta.
#[cube]
fn row_value(lse: &[f32], delta: &[f32], first_row: u32, block: &Streamed, t: u32) -> f32 {
    let row = block.tile * comptime![TILE as u32] + UNIT_POS % comptime![TILE as u32];
    let at = (first_row + block.head * t + row) as usize;
    let mut value = 0.0f32;
    if row < t {
        if UNIT_POS < comptime![TILE as u32] {
            value = lse[at];
        } else {
            value = delta[at];
        }
    }
    value
}
