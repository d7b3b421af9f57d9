//! Backward: one kernel owns the rows of the queries' gradient, one those of the keys' and values'.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;
use cubecl::wgmma::{Accumulator, Fragment};
use half::bf16;

use super::forward::clipped;
use super::{
    FlashConfig, Pair, SLOTS, TILE, UNITS, arrived, descriptor, fill, fragment_of, load_fragments, place, quad_sum,
    random_bits, random_pair, slots, store_rows,
};
use crate::instruction::exp2_approx;

/// The gradient of the queries, and `delta`: each query's sum of `out * d_out`, which [`key_value_gradient`] reads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn query_gradient(
    query: &[Pair<bf16>],
    key_value: &TensorMap<bf16, Tiled>,
    out: &[Pair<bf16>],
    d_out: &[Pair<bf16>],
    lse: &[f32],
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    delta: &mut [f32],
    d_query: &mut [Pair<bf16>],
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    #[comptime] cfg: FlashConfig,
) {
    let head = CUBE_POS_X % comptime![cfg.n_heads as u32];
    let batch = CUBE_POS_X / comptime![cfg.n_heads as u32];
    let group = head / comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let q0 = ((t - 1) / comptime![TILE as u32] - CUBE_POS_Y) * comptime![TILE as u32];
    let at = place();
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();

    let mut keys = s;
    if comptime![cfg.lengths] {
        keys = u32::cast_from(lengths[batch as usize]);
    }
    let mut end0 = keys;
    let mut end1 = keys;
    let mut end = keys;
    let mut all_see = keys;
    if comptime![cfg.causal] {
        let shift = s + 1;
        end0 = min(keys, clipped(q0 + at.row + shift, t));
        end1 = min(keys, clipped(q0 + at.row + 8 + shift, t));
        end = min(keys, clipped(q0 + comptime![TILE as u32 - 1] + shift, t));
        all_see = min(keys, clipped(q0 + shift, t));
    }
    let mut document0 = 0i32;
    let mut document1 = 0i32;
    if comptime![cfg.documents] {
        document0 = documents[(batch * t + min(q0 + at.row, t - 1)) as usize];
        document1 = documents[(batch * t + min(q0 + at.row + 8, t - 1)) as usize];
    }
    let blocks = (end + comptime![TILE as u32 - 1]) / comptime![TILE as u32];

    let mut slots = slots(cfg);
    let head_column = head * comptime![cfg.head_dim as u32];
    let out_columns = comptime![cfg.n_heads * cfg.head_dim];
    let columns = comptime![cfg.query_columns()];
    let head_dim = comptime![cfg.head_dim];
    let queries = load_fragments(query, batch * t, q0, t, head_column, &at, columns, head_dim);
    let gradients = load_fragments(d_out, batch * t, q0, t, head_column, &at, out_columns, head_dim);
    let outputs = load_fragments(out, batch * t, q0, t, head_column, &at, out_columns, head_dim);
    let mut delta0 = 0.0f32;
    let mut delta1 = 0.0f32;
    #[unroll]
    for step in 0..comptime![cfg.head_dim / 16] {
        #[unroll]
        for i in 0..8usize {
            let product = f32::cast_from(gradients.index(step).get(i)) * f32::cast_from(outputs.index(step).get(i));
            if comptime![i % 4 < 2] {
                delta0 += product;
            } else {
                delta1 += product;
            }
        }
    }
    delta0 = quad_sum(delta0);
    delta1 = quad_sum(delta1);
    let row0 = CUBE_POS_X * t + min(q0 + at.row, t - 1);
    let row1 = CUBE_POS_X * t + min(q0 + at.row + 8, t - 1);
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

    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    if UNIT_POS == 0 && blocks > 0 {
        fill(&mut slots, 0u32, key_value, key_value, batch * s, key_column, value_column, cfg);
    }
    let mut dq = Accumulator::<f32>::new(comptime![cfg.head_dim]).start();
    for block in 0..blocks {
        let k0 = block * comptime![TILE as u32];
        // No unit reads the slot of two blocks before any more.
        sync_cube();
        let next = block + 1;
        if UNIT_POS == 0 && next < blocks {
            let row = batch * s + next * comptime![TILE as u32];
            fill(&mut slots, next % SLOTS, key_value, key_value, row, key_column, value_column, cfg);
        }
        sync_plane();
        let slot = arrived(&slots, block);
        let keys_tile = descriptor(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let values_tile = descriptor(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let mut scores = Accumulator::<f32>::new(comptime![TILE]).start();
        let mut dp = Accumulator::<f32>::new(comptime![TILE]).start();
        #[unroll]
        for step in 0..comptime![cfg.head_dim / 16] {
            scores.execute_registers(queries.index(step), &keys_tile.at(0usize, comptime![step * 16]));
        }
        #[unroll]
        for step in 0..comptime![cfg.head_dim / 16] {
            dp.execute_registers(gradients.index(step), &values_tile.at(0usize, comptime![step * 16]));
        }
        // Waits for the product of the block before as well.
        let dp = dp.wait();
        let scores = scores.wait();

        let mut ds = Array::<f32>::new(comptime![TILE / 2]);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            if comptime![i % 4 < 2] {
                ds[i] = exp2_approx(scores.get(i) * scale_log2 - lse0);
            } else {
                ds[i] = exp2_approx(scores.get(i) * scale_log2 - lse1);
            }
        }
        if comptime![cfg.documents] || k0 + comptime![TILE as u32] > all_see {
            #[unroll]
            for i in 0..comptime![TILE / 2] {
                let key = k0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
                let mut visible = key < if comptime![i % 4 < 2] { end0 } else { end1 };
                if comptime![cfg.documents] {
                    let document = if comptime![i % 4 < 2] { document0 } else { document1 };
                    visible = visible && documents[(batch * t + min(key, t - 1)) as usize] == document;
                }
                ds[i] = select(visible, ds[i], 0.0f32);
            }
        }
        #[unroll]
        for i in 0..comptime![TILE / 4] {
            let mut even = dp.get(comptime![2 * i]);
            let mut odd = dp.get(comptime![2 * i + 1]);
            if comptime![cfg.dropout] {
                let row = CUBE_POS_X * t + q0 + at.row + comptime![(i % 2 * 8) as u32];
                let key = k0 + at.column + comptime![(i / 2 * 8) as u32];
                let (word_even, word_odd) = random_pair(random, site, row, key, s);
                even = select(word_even >= limit, even * keep, 0.0f32);
                odd = select(word_odd >= limit, odd * keep, 0.0f32);
            }
            let minus = if comptime![i % 2 == 0] { delta0 } else { delta1 };
            ds[comptime![2 * i]] = ds[comptime![2 * i]] * (even - minus) * scale;
            ds[comptime![2 * i + 1]] = ds[comptime![2 * i + 1]] * (odd - minus) * scale;
        }

        let keys_columns = descriptor(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        let mut d_scores = Sequence::<Fragment<bf16>>::new();
        #[unroll]
        for step in 0..comptime![TILE / 16] {
            d_scores.push(fragment_of(&ds, step));
        }
        #[unroll]
        for step in 0..comptime![TILE / 16] {
            dq.execute_registers(d_scores.index(step), &keys_columns.at(0usize, comptime![step * 16]));
        }
    }
    let dq = dq.wait();
    let mut values = Array::<f32>::new(comptime![cfg.head_dim / 2]);
    #[unroll]
    for i in 0..comptime![cfg.head_dim / 2] {
        values[i] = dq.get(i);
    }
    store_rows(&values, 1.0f32, 1.0f32, d_query, batch * t, q0, t, head_column, &at, columns, head_dim);
}

/// The gradients of the keys and values: a cube per 64 keys of a group of heads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn key_value_gradient(
    query: &TensorMap<bf16, Tiled>,
    key_value: &[Pair<bf16>],
    d_out: &TensorMap<bf16, Tiled>,
    lse: &[f32],
    delta: &[f32],
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    d_key_value: &mut [Pair<bf16>],
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    #[comptime] cfg: FlashConfig,
) {
    let group = CUBE_POS_X % comptime![cfg.n_kv_heads as u32];
    let batch = CUBE_POS_X / comptime![cfg.n_kv_heads as u32];
    // Early keys are seen by most queries under causality: they go first.
    let k0 = CUBE_POS_Y * comptime![TILE as u32];
    let at = place();
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let head_dim = comptime![cfg.head_dim];
    let columns = comptime![cfg.key_value_columns()];
    let per_group = comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];

    let mut keys = s;
    if comptime![cfg.lengths] {
        keys = u32::cast_from(lengths[batch as usize]);
    }
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

    let mut slots = slots(cfg);
    // Log-sums and deltas of the streamed queries: 64 and 64 a slot.
    let mut row_values = Shared::<[f32]>::new_slice(comptime![SLOTS as usize * 2 * TILE]);
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    let key_fragments = load_fragments(key_value, batch * s, k0, s, key_column, &at, columns, head_dim);
    let value_fragments = load_fragments(key_value, batch * s, k0, s, value_column, &at, columns, head_dim);

    let first_row = (batch * comptime![cfg.n_heads as u32] + group * per_group) * t;
    let first_column = group * per_group * comptime![cfg.head_dim as u32];
    for block in 0..min(blocks, SLOTS - 1) {
        let (head, q0) = streamed(block, per_head, first_block);
        row_values[(block * UNITS + UNIT_POS) as usize] = row_value(lse, delta, first_row + head * t, q0, t);
        if UNIT_POS == 0 {
            let column = first_column + head * comptime![cfg.head_dim as u32];
            fill(&mut slots, block, query, d_out, batch * t + q0, column, column, cfg);
        }
    }
    sync_cube();

    let mut dk = Accumulator::<f32>::new(comptime![cfg.head_dim]).start();
    let mut dv = Accumulator::<f32>::new(comptime![cfg.head_dim]).start();
    for block in 0..blocks {
        let (head, q0) = streamed(block, per_head, first_block);
        let slot = arrived(&slots, block);
        let query_rows = descriptor(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let d_out_rows = descriptor(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let mut scores = Accumulator::<f32>::new(comptime![TILE]).start();
        let mut dp = Accumulator::<f32>::new(comptime![TILE]).start();
        #[unroll]
        for i in 0..comptime![cfg.head_dim / 16] {
            scores.execute_registers(key_fragments.index(i), &query_rows.at(0usize, comptime![i * 16]));
        }
        #[unroll]
        for i in 0..comptime![cfg.head_dim / 16] {
            dp.execute_registers(value_fragments.index(i), &d_out_rows.at(0usize, comptime![i * 16]));
        }
        // Waits for the products of the block before as well.
        let dp = dp.wait();
        let scores = scores.wait();
        // All units are done with the slot of the block before, which is filled again.
        sync_cube();
        let next = block + comptime![SLOTS - 1];
        let mut next_value = 0.0f32;
        if next < blocks {
            let (next_head, next_q0) = streamed(next, per_head, first_block);
            next_value = row_value(lse, delta, first_row + next_head * t, next_q0, t);
            if UNIT_POS == 0 {
                let column = first_column + next_head * comptime![cfg.head_dim as u32];
                fill(&mut slots, next % SLOTS, query, d_out, batch * t + next_q0, column, column, cfg);
            }
        }
        sync_plane();

        let values_at = (slot * UNITS + at.column) as usize;
        let mut p = Array::<f32>::new(comptime![TILE / 2]);
        let mut ds = Array::<f32>::new(comptime![TILE / 2]);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            let column = values_at + comptime![i / 4 * 8 + i % 2];
            p[i] = exp2_approx(scores.get(i) * scale_log2 - row_values[column]);
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
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            let column = values_at + comptime![TILE + i / 4 * 8 + i % 2];
            let mut d_probability = dp.get(i);
            let probability = p[i];
            if comptime![cfg.dropout] {
                let row = first_row + head * t + q0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
                let key = key0 + comptime![(i % 4 / 2 * 8) as u32];
                let kept = random_bits(random, site, row, key, s) >= limit;
                d_probability = select(kept, d_probability * keep, 0.0f32);
                p[i] = select(kept, probability * keep, 0.0f32);
            }
            ds[i] = probability * (d_probability - row_values[column]) * scale;
        }

        let d_out_columns = descriptor(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        let query_columns = descriptor(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        let mut probabilities = Sequence::<Fragment<bf16>>::new();
        let mut d_scores = Sequence::<Fragment<bf16>>::new();
        #[unroll]
        for i in 0..comptime![TILE / 16] {
            probabilities.push(fragment_of(&p, i));
            d_scores.push(fragment_of(&ds, i));
        }
        #[unroll]
        for i in 0..comptime![TILE / 16] {
            dv.execute_registers(probabilities.index(i), &d_out_columns.at(0usize, comptime![i * 16]));
        }
        #[unroll]
        for i in 0..comptime![TILE / 16] {
            dk.execute_registers(d_scores.index(i), &query_columns.at(0usize, comptime![i * 16]));
        }

        row_values[(next % SLOTS * UNITS + UNIT_POS) as usize] = next_value;
    }
    let dk = dk.wait();
    let dv = dv.wait();
    let mut values = Array::<f32>::new(comptime![cfg.head_dim / 2]);
    #[unroll]
    for i in 0..comptime![cfg.head_dim / 2] {
        values[i] = dk.get(i);
    }
    store_rows(&values, 1.0f32, 1.0f32, d_key_value, batch * s, k0, s, key_column, &at, columns, head_dim);
    #[unroll]
    for i in 0..comptime![cfg.head_dim / 2] {
        values[i] = dv.get(i);
    }
    store_rows(&values, 1.0f32, 1.0f32, d_key_value, batch * s, k0, s, value_column, &at, columns, head_dim);
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
