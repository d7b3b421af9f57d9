//! The gradient of the queries: a block owns 64 of its rows, and keys and values are streamed past them.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::Oct;
use super::config::{FlashConfig, TILE};
use super::dropout::drop_values;
use super::mask::{HIDDEN, hide, sight};
use super::slots::{arrived, fill_both, fill_slot_both, slots};
use super::softmax::{row_products, take_probabilities, take_score_gradients};
use super::tile::{
    cube_place, left_operand, place, product, results_memory, round_into, scores_and_dp, store_rows, tile, unit_here,
    zeros,
};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, pin_all, wait};

/// Computes the gradient of the queries, and `delta`: each query's sum of `out * d_out`, which the gradient of keys and
/// values reads.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(super) fn query_gradient<E: Float>(
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

    // These loads are requested after the tiles, not before them.
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
            // Wait for the product of the previous turn.
            wait(0usize);
            pin(&dq);
            pin_all::<E>(&d_scores);
            let (mut scores, mut dp) = scores_and_dp::<E>(queries, gradients, streamed_rows, slot, cfg);

            // No thread reads the slot of the previous turn any more: refill it.
            sync_cube();
            if UNIT_POS == 0 && block > 0 && block + 1 < blocks {
                let from = batch * s + (block + 1) * comptime![TILE as u32];
                fill_both::<E>(&mut streamed, 1 - slot, key_value, key_value, from, key_column, value_column, cfg);
            }
            sync_plane();

            // Wait for the scores, not for `dp`.
            wait(1usize);
            pin(&scores);
            hide(&mut scores, hidden, &sight, documents, block * comptime![TILE as u32], &at, cfg);
            take_probabilities(&mut scores, lse0, lse1, scale_log2);

            wait(0usize);
            pin(&dp);
            if comptime![cfg.dropout] {
                let row = row_head * t + q0 + at.row;
                drop_values(&mut dp, random, site, row, block, at.column, s, limit, keep);
            }
            take_score_gradients(&mut scores, &dp, delta0, delta1, scale);

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
