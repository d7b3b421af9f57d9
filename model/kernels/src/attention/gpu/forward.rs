//! Forward: a block per 64 queries of a head.
//!
//! The product with the values is enqueued behind the scores of the next keys and runs during their softmax. The value
//! subtracted from the scores follows their maximum only when that has grown by much, as in FlashAttention-4, so that
//! most tiles need no rescaling.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::Oct;
use super::config::{FlashConfig, TILE};
use super::dropout::drop_values;
use super::mask::{MASKED, hide, sight};
use super::slots::{arrived, fill, fill_slot, slots};
use super::softmax::{Rescale, Running, apply, quad_sum, take_exponentials};
use super::tile::{
    copy_operand, cube_place, left_operand, place, product, product_shared, results_memory, round_into, store_rows,
    tile, zeros,
};
use crate::gpu::instruction::{log2_approx, rcp_approx};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, pin_all, wait};

/// Computes `out` and the binary logarithm of each query's sum of exponentials.
///
/// There are `t` queries and `s` keys per batch row. Probabilities whose random bits are below `limit` are dropped, the
/// others multiplied by `keep`.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(super) fn forward<E: Float>(
    query: &TensorMap<E, Tiled>,
    key_value: &TensorMap<E, Tiled>,
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    out: &mut [Oct<E>],
    lse: &mut [f32],
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
    cubes_at_once(comptime![cfg.cubes()]);
    let (row_head, from_last) = cube_place(heads_at_once, tile_bits);
    let tiles = (t + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    if row_head >= heads || from_last >= tiles {
        terminate!();
    }
    let head = row_head % comptime![cfg.n_heads as u32];
    let batch = row_head / comptime![cfg.n_heads as u32];
    let group = head / comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    // Under causality late tiles see the most keys, so they go first.
    let q0 = (tiles - 1 - from_last) * comptime![TILE as u32];
    let at = place(UNIT_POS);
    let scale = comptime![cfg.scale() * LOG2_E].runtime();

    let sight = sight(lengths, documents, batch, q0, &at, t, s, cfg);
    let blocks = sight.blocks;

    let mut query_slot = slots::<E>(1usize, 1usize, cfg);
    let mut key_slots = slots::<E>(2usize, 1usize, cfg);
    let mut value_slots = slots::<E>(2usize, 1usize, cfg);
    let mut results = results_memory::<E>(cfg);
    sync_async_proxy_shared();
    sync_cube();

    // Request the first tiles.
    let column = head * comptime![cfg.head_dim as u32];
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];
    if UNIT_POS == 0 && blocks > 0 {
        fill_slot::<E>(&mut query_slot, 0usize, query, batch * t + q0, column, cfg);
        fill_slot::<E>(&mut key_slots, 0usize, key_value, batch * s, key_column, cfg);
        fill_slot::<E>(&mut value_slots, 0usize, key_value, batch * s, value_column, cfg);
        if blocks > 1 {
            fill_slot::<E>(&mut key_slots, 1usize, key_value, batch * s + comptime![TILE as u32], key_column, cfg);
        }
    }
    sync_plane();

    let queries = describe::<E>(&query_slot.tiles, comptime![cfg.rows_layout()]);
    let keys = describe::<E>(&key_slots.tiles, comptime![cfg.rows_layout()]);
    let values = describe::<E>(&value_slots.tiles, comptime![cfg.columns_layout()]);
    let row = row_head * t + q0 + at.row;
    let lowest = f32::cast_from(comptime![MASKED]);
    let mut running = Running { top0: lowest, top1: lowest, sum0: 0.0f32, sum1: 0.0f32 };
    let mut rescale = Rescale { needed: false.runtime(), by0: 1.0f32, by1: 1.0f32 };
    let mut o = zeros(comptime![cfg.head_dim]);
    let mut probabilities = left_operand::<E>();
    if blocks > 0 {
        // The first scores.
        query_slot.full.index(0usize).wait_parity(0u32);
        key_slots.full.index(0usize).wait_parity(0u32);
        let mut scores = zeros(TILE);
        pin(&scores);
        fence();
        product_shared::<E>(&mut scores, queries, keys, cfg);
        commit();
        wait(0usize);
        pin(&scores);
        hide(&mut scores, lowest, &sight, documents, 0u32, &at, cfg);
        take_exponentials(&mut scores, &mut running, &mut rescale, scale);
        if comptime![cfg.dropout] {
            drop_values(&mut scores, random, site, row, 0u32, at.column, s, limit, keep);
        }
        // The next left operand, while a product still reads the previous one.
        let mut rounded = left_operand::<E>();
        round_into::<E>(&scores, &mut rounded);
        for next in 1..blocks {
            let block = next - 1;
            let key_slot = arrived::<E>(&key_slots, next);
            let value_slot = arrived::<E>(&value_slots, block);
            // Wait for the previous product with the values, which ran during the softmax. The assembler would move a
            // wait in the same turn before the softmax.
            wait(0usize);
            pin(&o);
            pin_all::<E>(&probabilities);
            apply(&rescale, &mut o);
            copy_operand::<E>(&rounded, &mut probabilities);

            let mut scores = zeros(TILE);
            pin(&scores);
            pin_all::<E>(&probabilities);
            pin(&o);
            fence();
            product_shared::<E>(&mut scores, queries, tile(keys, key_slot, cfg), cfg);
            commit();
            let values = tile(values, value_slot, cfg);
            product::<E>(&mut o, &probabilities, values, comptime![cfg.columns_layout()]);
            commit();

            // No thread reads the keys of this turn or the values of the previous one any more: refill their slots.
            sync_cube();
            if UNIT_POS == 0 {
                let from = batch * s + next * comptime![TILE as u32];
                fill::<E>(&mut value_slots, key_slot, key_value, from, value_column, cfg);
                if next + 1 < blocks {
                    let from = from + comptime![TILE as u32];
                    fill::<E>(&mut key_slots, value_slot, key_value, from, key_column, cfg);
                }
            }
            sync_plane();

            // Wait for the scores, not for the values' product.
            wait(1usize);
            pin(&scores);
            hide(&mut scores, lowest, &sight, documents, next * comptime![TILE as u32], &at, cfg);
            take_exponentials(&mut scores, &mut running, &mut rescale, scale);
            if comptime![cfg.dropout] {
                drop_values(&mut scores, random, site, row, next, at.column, s, limit, keep);
            }
            round_into::<E>(&scores, &mut rounded);
        }

        // The last product with the values.
        let value_slot = arrived::<E>(&value_slots, blocks - 1);
        wait(0usize);
        pin(&o);
        pin_all::<E>(&probabilities);
        apply(&rescale, &mut o);
        copy_operand::<E>(&rounded, &mut probabilities);
        pin_all::<E>(&probabilities);
        pin(&o);
        fence();
        let values = tile(values, value_slot, cfg);
        product::<E>(&mut o, &probabilities, values, comptime![cfg.columns_layout()]);
        commit();
        wait(0usize);
        pin(&o);
        pin_all::<E>(&probabilities);
    }

    // A query without keys has a sum of 0. Its row is finite but undefined.
    let total0 = max(quad_sum(running.sum0), 1e-30f32);
    let total1 = max(quad_sum(running.sum1), 1e-30f32);
    let (columns, head_dim) = comptime![(cfg.n_heads * cfg.head_dim, cfg.head_dim)];
    let (by0, by1) = (rcp_approx(total0), rcp_approx(total1));
    store_rows::<E>(&o, by0, by1, &mut results, out, batch * t, q0, t, column, columns, head_dim);
    if at.column == 0 {
        let row = q0 + at.row;
        if row < t {
            lse[(row_head * t + row) as usize] = running.top0 * scale + log2_approx(total0);
        }
        if row + 8 < t {
            lse[(row_head * t + row + 8) as usize] = running.top1 * scale + log2_approx(total1);
        }
    }
}
