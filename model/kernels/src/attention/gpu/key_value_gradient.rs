//! The gradients of keys and values: a block owns 64 rows of both, and queries are streamed past them.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::Oct;
use super::config::{FlashConfig, TILE, UNITS};
use super::dropout::{kept_bits, kept_values};
use super::mask::{HIDDEN, clipped, hide_queries, key_count};
use super::slots::{arrived, fill_both, fill_slot_both, slots};
use super::softmax::{exponentials, row_pairs, score_gradients};
use super::tile::{
    cube_place, left_operand, place, product, results_memory, round_into, scores_and_dp, store_rows, tile, zeros,
};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, pin_all, wait};

/// Computes the gradients of keys and values: a block per 64 keys of a group of heads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(super) fn key_value_gradient<E: Float>(
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
    // Under causality the most queries see early keys, so they go first.
    let k0 = key_tile * comptime![TILE as u32];
    let at = place(UNIT_POS);
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let head_dim = comptime![cfg.head_dim];
    let columns = comptime![cfg.key_value_columns()];
    let per_group = comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];

    let keys = key_count(lengths, batch, s, cfg);
    // Tiles of queries from `first_block` on see some of the keys, queries from `from_all` on see all of them.
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
    // Log-sums and deltas of the streamed queries: 64 of each per slot.
    let mut row_values = Shared::<[f32]>::new_slice(comptime![2 * UNITS as usize]);
    sync_async_proxy_shared();
    sync_cube();

    // Request the first tiles.
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
            // Draw before the products, whose results leave no registers for it. Pinned, or the compiler would draw
            // where the bits are used.
            let mut kept = Array::<u32>::new(1usize);
            kept[0] = 0u32;
            if comptime![cfg.dropout] {
                let row = first_row + now.head * t + q0 + at.column;
                kept[0] = kept_bits(random, site, row, key_tile, &at, s, limit);
                pin(&kept);
            }
            let slot = arrived::<E>(&streamed, block);
            // Wait for the products of the previous turn.
            if comptime![crowded] {
                settled::<E>(&dk, &dv, &probabilities, &d_scores, 0usize);
            }
            let (mut scores, dp) = scores_and_dp::<E>(keys_tile, values_tile, streamed_rows, slot, cfg);
            if comptime![!crowded] {
                settled::<E>(&dk, &dv, &probabilities, &d_scores, 2usize);
            }
            // No thread reads the slot of the previous turn any more, and all see the log-sums and deltas of this one.
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
            advance(&mut now, &mut next, first_block, query_blocks);
            let values_at = slot * UNITS + at.column;
            // Wait for the scores, not for `dp`.
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
            // Wait for `dp`, not for `dv`.
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

/// Waits until at most `running` groups of products are in flight, none of which writes `dk` or `dv` or reads the
/// operands.
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

/// A streamed tile of queries, and its head within the group.
#[derive(CubeType)]
struct Streamed {
    head: u32,
    tile: u32,
}

/// Returns the tile after `block`; each head has the tiles `first..end`.
#[cube]
fn advanced(block: &Streamed, first: u32, end: u32) -> Streamed {
    let last = block.tile + 1 == end;
    Streamed { head: block.head + u32::cast_from(last), tile: select(last, first, block.tile + 1) }
}

/// Moves both tiles on by one.
#[cube]
fn advance(now: &mut Streamed, next: &mut Streamed, first: u32, end: u32) {
    now.head = next.head;
    now.tile = next.tile;
    let after = advanced(&*now, first, end);
    next.head = after.head;
    next.tile = after.tile;
}

/// Loads this thread's number of a streamed tile of queries: a log-sum in threads below 64, a delta in the others.
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
