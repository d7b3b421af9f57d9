//! Backward: one kernel owns the rows of the queries' gradient, one those of the keys' and values'.

use std::f32::consts::LOG2_E;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::sight::{clipped, hide, key_count, sight};
use super::{
    FlashConfig, Pair, TILE, UNITS, arrived, cube_place, drop_values, fetch, fill, fragments, kept_bits,
    load_fragments, place, product, product_shared, quad_sum, round_into, slots, store_rows, tile_of, zeros,
};
use crate::instruction::exp2_approx;
use crate::wgmma::{commit, describe, fence, pin, pin_all, wait};

/// The gradient of the queries, and `delta`: each query's sum of `out * d_out`, which [`key_value_gradient`] reads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn query_gradient<E: Float>(
    query: &TensorMap<E, Tiled>,
    key_value: &TensorMap<E, Tiled>,
    out: &[Pair<E>],
    d_out: &[Pair<E>],
    d_out_tiles: &TensorMap<E, Tiled>,
    lse: &[f32],
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    delta: &mut [f32],
    d_query: &mut [Pair<E>],
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    heads_at_once: u32,
    tiles_at_once: u32,
    #[comptime] cfg: FlashConfig,
) {
    let tiles = (t + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    let (row_head, tile) = cube_place(tiles, heads_at_once, tiles_at_once);
    let head = row_head % comptime![cfg.n_heads as u32];
    let batch = row_head / comptime![cfg.n_heads as u32];
    let group = head / comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let q0 = (tiles - 1 - tile) * comptime![TILE as u32];
    let at = place();
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();

    let keys = key_count(lengths, batch, s, cfg);
    let sight = sight(documents, batch, q0, &at, keys, t, s, cfg);
    let blocks = sight.blocks;

    let mut queries = Shared::<[E]>::new_aligned_slice(comptime![cfg.tile_len()], 1024usize);
    let mut gradients = Shared::<[E]>::new_aligned_slice(comptime![cfg.tile_len()], 1024usize);
    let stay_arrived = Barrier::shared_uninit();
    if UNIT_POS == 0 {
        stay_arrived.init_manual(1u32);
    }
    let mut slots = slots::<E>(2u32, cfg);
    let head_column = head * comptime![cfg.head_dim as u32];
    let out_columns = comptime![cfg.n_heads * cfg.head_dim];
    let columns = comptime![cfg.query_columns()];
    let head_dim = comptime![cfg.head_dim];
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    if UNIT_POS == 0 {
        stay_arrived.arrive_and_expect_tx(1, comptime![(4 * cfg.tile_len()) as u32]);
        fetch::<E>(&stay_arrived, query, &mut queries, batch * t + q0, head_column, cfg);
        fetch::<E>(&stay_arrived, d_out_tiles, &mut gradients, batch * t + q0, head_column, cfg);
    }
    if UNIT_POS == 0 && blocks > 0 {
        fill::<E>(&mut slots, 0u32, key_value, key_value, batch * s, key_column, value_column, cfg);
        if blocks > 1 {
            let row = batch * s + comptime![TILE as u32];
            fill::<E>(&mut slots, 1u32, key_value, key_value, row, key_column, value_column, cfg);
        }
    }
    sync_plane();
    let d_outputs = load_fragments::<E>(d_out, batch * t, q0, t, head_column, &at, out_columns, head_dim);
    let outputs = load_fragments::<E>(out, batch * t, q0, t, head_column, &at, out_columns, head_dim);
    let mut delta0 = 0.0f32;
    let mut delta1 = 0.0f32;
    #[unroll]
    for step in 0..comptime![cfg.head_dim / 16] {
        #[unroll]
        for i in 0..8usize {
            let product = f32::cast_from(d_outputs.index(step)[i]) * f32::cast_from(outputs.index(step)[i]);
            if comptime![i % 4 < 2] {
                delta0 += product;
            } else {
                delta1 += product;
            }
        }
    }
    delta0 = quad_sum(delta0);
    delta1 = quad_sum(delta1);
    let row0 = row_head * t + min(q0 + at.row, t - 1);
    let row1 = row_head * t + min(q0 + at.row + 8, t - 1);
    if at.column == 0 {
        if q0 + at.row < t {
            delta[row0 as usize] = delta0;
        }
        if q0 + at.row + 8 < t {
            delta[row1 as usize] = delta1;
        }
    }
    let lse0 = lse[row0 as usize];
    let lse1 = lse[row1 as usize];

    stay_arrived.wait_parity(0u32);
    let queries_tile = describe::<E>(&queries, comptime![cfg.rows_layout()]);
    let gradients_tile = describe::<E>(&gradients, comptime![cfg.rows_layout()]);
    let mut dq = zeros(comptime![cfg.head_dim]);
    let mut d_scores = fragments::<E>();
    for block in 0..blocks {
        let k0 = block * comptime![TILE as u32];
        let slot = arrived::<E>(&slots, block);
        let keys_tile = tile_of::<E>(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let values_tile = tile_of::<E>(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        // For the product of the block before: it reads registers that the next ones are given.
        wait(0usize);
        pin(&dq);
        pin_all::<E>(&d_scores);
        // No unit reads the slot of the block before any more: it is filled while this one is worked on.
        sync_cube();
        let next = block + 1;
        if UNIT_POS == 0 && block > 0 && next < blocks {
            let row = batch * s + next * comptime![TILE as u32];
            fill::<E>(&mut slots, next % 2, key_value, key_value, row, key_column, value_column, cfg);
        }
        sync_plane();
        let mut scores = zeros(comptime![TILE]);
        let mut dp = zeros(comptime![TILE]);
        pin(&scores);
        pin(&dp);
        fence();
        product_shared::<E>(&mut scores, queries_tile, keys_tile, comptime![cfg.rows_layout()], cfg);
        commit();
        product_shared::<E>(&mut dp, gradients_tile, values_tile, comptime![cfg.rows_layout()], cfg);
        commit();
        // Not for `dp`.
        wait(1usize);
        pin(&scores);

        let mut ds = Array::<f32>::new(comptime![TILE / 2]);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            if comptime![i % 4 < 2] {
                ds[i] = exp2_approx(scores[i] * scale_log2 - lse0);
            } else {
                ds[i] = exp2_approx(scores[i] * scale_log2 - lse1);
            }
        }
        hide(&mut ds, 0.0f32, &sight, documents, k0, &at, cfg);
        wait(0usize);
        pin(&dp);
        if comptime![cfg.dropout] {
            let row = row_head * t + q0 + at.row;
            drop_values(&mut dp, random, site, row, block, at.column, s, limit, keep);
        }
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            let minus = if comptime![i % 4 < 2] { delta0 } else { delta1 };
            ds[i] = ds[i] * (dp[i] - minus) * scale;
        }

        let keys_columns = tile_of::<E>(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        round_into::<E>(&ds, &mut d_scores);
        pin_all::<E>(&d_scores);
        pin(&dq);
        fence();
        product::<E>(&mut dq, &d_scores, keys_columns, comptime![cfg.columns_layout()]);
        commit();
    }
    wait(0usize);
    pin(&dq);
    pin_all::<E>(&d_scores);
    store_rows::<E>(&dq, 1.0f32, 1.0f32, d_query, batch * t, q0, t, head_column, &at, columns, head_dim);
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
    d_key_value: &mut [Pair<E>],
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    heads_at_once: u32,
    tiles_at_once: u32,
    #[comptime] cfg: FlashConfig,
) {
    let (row_group, tile) =
        cube_place((s + comptime![TILE as u32 - 1]) / comptime![TILE as u32], heads_at_once, tiles_at_once);
    let group = row_group % comptime![cfg.n_kv_heads as u32];
    let batch = row_group / comptime![cfg.n_kv_heads as u32];
    // Early keys are seen by most queries under causality: they go first.
    let k0 = tile * comptime![TILE as u32];
    let at = place();
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let head_dim = comptime![cfg.head_dim];
    let columns = comptime![cfg.key_value_columns()];
    let per_group = comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];

    let keys = key_count(lengths, batch, s, cfg);
    let key0 = k0 + at.row;
    let key1 = key0 + 8;
    // The unit's two keys are seen by queries from these on.
    let mut from0 = 0u32;
    let mut from1 = 0u32;
    let mut first_block = 0u32;
    let mut from_all = 0u32;
    if comptime![cfg.causal] {
        from0 = clipped(key0 + t, s);
        from1 = clipped(key1 + t, s);
        first_block = clipped(k0 + t, s) / comptime![TILE as u32];
        from_all = clipped(k0 + comptime![TILE as u32 - 1] + t, s);
    }
    if key0 >= keys {
        from0 = t;
    }
    if key1 >= keys {
        from1 = t;
    }
    let mut document0 = 0i32;
    let mut document1 = 0i32;
    if comptime![cfg.documents] {
        document0 = documents[(batch * t + min(key0, t - 1)) as usize];
        document1 = documents[(batch * t + min(key1, t - 1)) as usize];
    }
    let query_blocks = (t + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    let mut per_head = 0u32;
    if k0 < keys && first_block < query_blocks {
        per_head = query_blocks - first_block;
    }
    let blocks = per_head * per_group;

    let n_slots = comptime![cfg.query_slots()];
    let mut key_rows = Shared::<[E]>::new_aligned_slice(comptime![cfg.tile_len()], 1024usize);
    let mut value_rows = Shared::<[E]>::new_aligned_slice(comptime![cfg.tile_len()], 1024usize);
    let stay_arrived = Barrier::shared_uninit();
    if UNIT_POS == 0 {
        stay_arrived.init_manual(1u32);
    }
    let mut slots = slots::<E>(n_slots, cfg);
    // Log-sums and deltas of the streamed queries: 64 and 64 a slot.
    let mut row_values = Shared::<[f32]>::new_slice(comptime![n_slots as usize * 2 * TILE]);
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    if UNIT_POS == 0 {
        stay_arrived.arrive_and_expect_tx(1, comptime![(4 * cfg.tile_len()) as u32]);
        fetch::<E>(&stay_arrived, key_value, &mut key_rows, batch * s + k0, key_column, cfg);
        fetch::<E>(&stay_arrived, key_value, &mut value_rows, batch * s + k0, value_column, cfg);
    }

    let first_row = (batch * comptime![cfg.n_heads as u32] + group * per_group) * t;
    let first_column = group * per_group * comptime![cfg.head_dim as u32];
    for block in 0..min(blocks, comptime![n_slots - 1]) {
        let (head, q0) = streamed(block, per_head, first_block);
        row_values[(block * UNITS + UNIT_POS) as usize] = row_value(lse, delta, first_row + head * t, q0, t);
        if UNIT_POS == 0 {
            let column = first_column + head * comptime![cfg.head_dim as u32];
            fill::<E>(&mut slots, block, query, d_out, batch * t + q0, column, column, cfg);
        }
    }
    sync_cube();

    stay_arrived.wait_parity(0u32);
    let keys_tile = describe::<E>(&key_rows, comptime![cfg.rows_layout()]);
    let values_tile = describe::<E>(&value_rows, comptime![cfg.rows_layout()]);
    let mut probabilities = fragments::<E>();
    let mut d_scores = fragments::<E>();
    let mut dk = zeros(head_dim);
    let mut dv = zeros(head_dim);
    for block in 0..blocks {
        let (head, q0) = streamed(block, per_head, first_block);
        let slot = arrived::<E>(&slots, block);
        let query_rows = tile_of::<E>(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let d_out_rows = tile_of::<E>(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let mut scores = zeros(comptime![TILE]);
        let mut dp = zeros(comptime![TILE]);
        pin(&scores);
        pin(&dp);
        fence();
        product_shared::<E>(&mut scores, keys_tile, query_rows, comptime![cfg.rows_layout()], cfg);
        commit();
        product_shared::<E>(&mut dp, values_tile, d_out_rows, comptime![cfg.rows_layout()], cfg);
        commit();
        // For the products of the block before as well, not for `dp`.
        wait(1usize);
        pin(&scores);
        pin(&dk);
        pin(&dv);
        pin_all::<E>(&probabilities);
        pin_all::<E>(&d_scores);
        // All units are done with the slot of the block before, which is filled again.
        sync_cube();
        let next = block + comptime![n_slots - 1];
        let mut next_value = 0.0f32;
        if next < blocks {
            let (next_head, next_q0) = streamed(next, per_head, first_block);
            next_value = row_value(lse, delta, first_row + next_head * t, next_q0, t);
            if UNIT_POS == 0 {
                let column = first_column + next_head * comptime![cfg.head_dim as u32];
                fill::<E>(&mut slots, next % n_slots, query, d_out, batch * t + next_q0, column, column, cfg);
            }
        }
        sync_plane();

        let values_at = (slot * UNITS + at.column) as usize;
        let mut p = Array::<f32>::new(comptime![TILE / 2]);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            let column = values_at + comptime![i / 4 * 8 + i % 2];
            p[i] = exp2_approx(scores[i] * scale_log2 - row_values[column]);
        }
        let edge = q0 < from_all || q0 + comptime![TILE as u32] > t || k0 + comptime![TILE as u32] > keys;
        if comptime![cfg.documents] || edge {
            #[unroll]
            for i in 0..comptime![TILE / 2] {
                let row = q0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
                let from = if comptime![i % 4 < 2] { from0 } else { from1 };
                let mut visible = row >= from && row < t;
                if comptime![cfg.documents] {
                    let document = if comptime![i % 4 < 2] { document0 } else { document1 };
                    visible = visible && documents[(batch * t + min(row, t - 1)) as usize] == document;
                }
                p[i] = select(visible, p[i], 0.0f32);
            }
        }
        let d_out_columns = tile_of::<E>(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        let query_columns = tile_of::<E>(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        let mut kept = 0u32;
        let mut dropped = Array::<f32>::new(comptime![TILE / 2]);
        if comptime![cfg.dropout] {
            let row = first_row + head * t + q0 + at.column;
            kept = kept_bits(random, site, row, k0 / comptime![TILE as u32], &at, s, limit);
        }
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            dropped[i] = p[i];
            if comptime![cfg.dropout] {
                dropped[i] = select(kept & comptime![1u32 << i as u32] != 0, p[i] * keep, 0.0f32);
            }
        }
        round_into::<E>(&dropped, &mut probabilities);
        pin_all::<E>(&probabilities);
        pin(&dv);
        fence();
        product::<E>(&mut dv, &probabilities, d_out_columns, comptime![cfg.columns_layout()]);
        commit();
        // For `dp`, not for `dv`.
        wait(1usize);
        pin(&dp);
        let mut ds = Array::<f32>::new(comptime![TILE / 2]);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            let column = values_at + comptime![TILE + i / 4 * 8 + i % 2];
            let mut d_probability = dp[i];
            if comptime![cfg.dropout] {
                d_probability = select(kept & comptime![1u32 << i as u32] != 0, d_probability * keep, 0.0f32);
            }
            ds[i] = p[i] * (d_probability - row_values[column]) * scale;
        }
        round_into::<E>(&ds, &mut d_scores);
        pin_all::<E>(&d_scores);
        pin(&dk);
        fence();
        product::<E>(&mut dk, &d_scores, query_columns, comptime![cfg.columns_layout()]);
        commit();

        row_values[(next % n_slots * UNITS + UNIT_POS) as usize] = next_value;
    }
    wait(0usize);
    pin(&dk);
    pin(&dv);
    pin_all::<E>(&probabilities);
    pin_all::<E>(&d_scores);
    store_rows::<E>(&dk, 1.0f32, 1.0f32, d_key_value, batch * s, k0, s, key_column, &at, columns, head_dim);
    store_rows::<E>(&dv, 1.0f32, 1.0f32, d_key_value, batch * s, k0, s, value_column, &at, columns, head_dim);
}

/// The head within its group and the first query of streamed block `block`, when each head has `per_head` of them.
#[cube]
fn streamed(block: u32, per_head: u32, first_block: u32) -> (u32, u32) {
    (block / per_head, (first_block + block % per_head) * comptime![TILE as u32])
}

/// What this unit brings of a streamed tile of queries: units below 64 a log-sum, the others a delta.
#[cube]
fn row_value(lse: &[f32], delta: &[f32], first_row: u32, q0: u32, t: u32) -> f32 {
    let row = q0 + UNIT_POS % comptime![TILE as u32];
    let mut value = 0.0f32;
    if row < t {
        if UNIT_POS < comptime![TILE as u32] {
            value = lse[(first_row + row) as usize];
        } else {
            value = delta[(first_row + row) as usize];
        }
    }
    value
}
