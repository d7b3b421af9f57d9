//! Backward where all queries and all keys of a batch row fit into one tile: a block computes the three gradients of a
//! head at once.
//!
//! Scores have a row per key, as in [`super::key_value_gradient`], so that the products for dK and dV read them from
//! registers. The product for dQ sums over keys: the gradient of the scores is transposed through shared memory.
//!
//! Products run one after another, and finished results are stored before the next product is enqueued. A thread then
//! needs 114 registers, 137 with dropout (`ptxas -c`, as the driver assembles), and the products of one block run while
//! two or three others load, store and take exponentials.

use std::f32::consts::LOG2_E;

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
use cubecl_ir::types::MatrixIdent;

use super::config::{FlashConfig, TILE};
use super::dropout::{KEPT_STRIDE, draw_kept, drawn_bits, kept_values};
use super::mask::{HIDDEN, hide_queries, key_count};
use super::slots::{fill_slot_both, slots};
use super::softmax::{exponentials, row_pairs, row_products, score_gradients};
use super::tile::{
    left_operand, place, product, product_shared, results_memory, round_into, store_rows, tile, unit_here, zeros,
};
use super::{Oct, Pair};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{FRAGMENT, K_STEP, commit, describe, fence, multiply_shared, pin, pin_all, wait};

/// Returns the layout of 64 queries by 64 keys, summed over the keys.
fn turned_layout() -> WgmmaTileLayout {
    WgmmaTileLayout { major: Major::K, swizzle: Swizzle::B128, rows: TILE, k: TILE }
}

/// Computes the gradients of queries, keys and values, for T and S up to 64 and as many heads of keys as of queries.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(super) fn one_tile_gradients<E: Float>(
    query: &TensorMap<E, Tiled>,
    key_value: &TensorMap<E, Tiled>,
    out: &[Oct<E>],
    d_out: &[Oct<E>],
    d_out_tiles: &TensorMap<E, Tiled>,
    lse: &[f32],
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    d_query: &mut [Oct<E>],
    d_key_value: &mut [Oct<E>],
    t: u32,
    s: u32,
    site: u32,
    limit: u32,
    keep: f32,
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.cubes()]);
    let row_head = CUBE_POS_X;
    let head = row_head % comptime![cfg.n_heads as u32];
    let batch = row_head / comptime![cfg.n_heads as u32];
    let head_dim = comptime![cfg.head_dim];
    let column = head * comptime![cfg.head_dim as u32];
    let key_column = comptime![cfg.first_key_column()] + column;
    let value_column = comptime![cfg.first_value_column()] + column;
    let (query_columns, columns) = comptime![(cfg.query_columns(), cfg.key_value_columns())];

    // Slot 0: keys and values. Slot 1: queries and `d_out`.
    let mut tiles = slots::<E>(2usize, 2usize, cfg);
    let mut results = results_memory::<E>(cfg);
    let mut turned = Shared::<[Oct<E>]>::new_aligned_slice(comptime![TILE * TILE / 8], 1024usize);
    // Log-sums of the queries, then deltas (sums of `out * d_out`).
    let mut row_values = Shared::<[f32]>::new_slice(comptime![2 * TILE]);
    let mut kept_memory = Shared::<[u32]>::new_slice(comptime![if cfg.dropout { 8 * KEPT_STRIDE as usize } else { 1 }]);
    sync_async_proxy_shared();
    sync_cube();
    if UNIT_POS == 0 {
        fill_slot_both::<E>(&mut tiles, 0usize, key_value, key_value, batch * s, key_column, value_column, cfg);
        fill_slot_both::<E>(&mut tiles, 1usize, query, d_out_tiles, batch * t, column, column, cfg);
    }
    sync_plane();

    // Deltas, log-sums and dropout bits, while the tiles arrive.
    let unit = unit_here();
    let at = place(unit);
    let out_columns = comptime![cfg.n_heads * cfg.head_dim];
    let (delta0, delta1) = row_products::<E>(d_out, out, batch * t, 0u32, t, column, unit, out_columns, head_dim);
    if at.column == 0 {
        row_values[(comptime![TILE as u32] + at.row) as usize] = delta0;
        row_values[(comptime![TILE as u32 + 8] + at.row) as usize] = delta1;
    }
    if unit < comptime![TILE as u32] {
        row_values[unit as usize] = lse[(row_head * t + min(unit, t - 1)) as usize];
    }
    let mut kept = Array::<u32>::new(1usize);
    kept[0] = 0u32;
    if comptime![cfg.dropout] {
        draw_kept(&mut kept_memory, random, site, row_head * t, s, limit);
    }
    sync_cube();
    if comptime![cfg.dropout] {
        kept[0] = drawn_bits(&kept_memory, &at);
        pin(&kept);
    }

    let keys = describe::<E>(&tiles.tiles, comptime![cfg.rows_layout()]);
    let columns_from = describe::<E>(&tiles.tiles, comptime![cfg.columns_layout()]);
    let mut probabilities = left_operand::<E>();
    let mut d_scores = left_operand::<E>();
    tiles.full.index(0usize).wait_parity(0u32);
    tiles.full.index(1usize).wait_parity(0u32);

    // Scores and probabilities.
    let mut scores = zeros(comptime![TILE]);
    pin(&scores);
    fence();
    product_shared::<E>(&mut scores, keys, tile(keys, 2u32, cfg), cfg);
    commit();
    wait(0usize);
    pin(&scores);
    let hidden = f32::cast_from(comptime![HIDDEN]);
    hide_queries(&mut scores, hidden, documents, batch, 0u32, 0u32, key_count(lengths, batch, s, cfg), t, s, cfg);
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let log_sums = row_pairs(&row_values, at.column);
    let p = exponentials(&scores, &log_sums, scale_log2);
    round_into::<E>(&kept_values(&p, kept[0], keep, cfg), &mut probabilities);

    // dV = P^T d_out.
    let mut dv = zeros(head_dim);
    pin_all::<E>(&probabilities);
    pin(&dv);
    fence();
    product::<E>(&mut dv, &probabilities, tile(columns_from, 3u32, cfg), comptime![cfg.columns_layout()]);
    commit();
    wait(0usize);
    pin(&dv);
    pin_all::<E>(&probabilities);
    let first = batch * s;
    store_rows::<E>(&dv, 1.0f32, 1.0f32, &mut results, d_key_value, first, 0u32, s, value_column, columns, head_dim);

    // The gradient of the probabilities, then of the scores.
    let mut dp = zeros(comptime![TILE]);
    pin(&dp);
    fence();
    product_shared::<E>(&mut dp, tile(keys, 1u32, cfg), tile(keys, 3u32, cfg), cfg);
    commit();
    wait(0usize);
    pin(&dp);
    if comptime![cfg.dropout] {
        // Through a shuffle, or the compiler would keep the earlier factors in registers.
        kept[0] = plane_shuffle(kept[0], UNIT_POS % 32);
    }
    let deltas = row_pairs(&row_values, place(unit_here()).column + comptime![TILE as u32]);
    let d_probabilities = kept_values(&dp, kept[0], keep, cfg);
    round_into::<E>(&score_gradients(&p, &d_probabilities, &deltas, scale), &mut d_scores);
    turn::<E>(&d_scores, &mut turned);

    // dK = dS^T Q, and dQ = dS K from the transpose.
    let mut dk = zeros(head_dim);
    pin_all::<E>(&d_scores);
    pin(&dk);
    fence();
    product::<E>(&mut dk, &d_scores, tile(columns_from, 2u32, cfg), comptime![cfg.columns_layout()]);
    commit();
    // All warps have transposed their rows.
    sync_async_proxy_shared();
    sync_cube();
    let queries_from = describe::<Oct<E>>(&turned, comptime![turned_layout()]);
    let mut dq = zeros(head_dim);
    pin(&dq);
    fence();
    #[unroll]
    for step in 0..comptime![TILE / K_STEP] {
        let layout = comptime![cfg.columns_layout()];
        multiply_shared::<E>(&mut dq, queries_from, columns_from, step, comptime![turned_layout()], layout);
    }
    commit();

    // Wait for `dk`, not for `dq`.
    wait(1usize);
    pin(&dk);
    pin_all::<E>(&d_scores);
    store_rows::<E>(&dk, 1.0f32, 1.0f32, &mut results, d_key_value, batch * s, 0u32, s, key_column, columns, head_dim);
    wait(0usize);
    pin(&dq);
    store_rows::<E>(&dq, 1.0f32, 1.0f32, &mut results, d_query, batch * t, 0u32, t, column, query_columns, head_dim);
}

/// Writes the transpose of a 64 x 64 left operand as a tile of [`turned_layout`]. Each warp writes its 16 rows, which
/// become columns (`stmatrix`).
#[cube]
fn turn<E: Float>(fragments: &Sequence<Array<E>>, memory: &mut Shared<[Oct<E>]>) {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let lane = UNIT_POS % 32;
    let oct = UNIT_POS / 32 * 2 + lane / 8 % 2;
    #[unroll]
    for step in 0..comptime![TILE / K_STEP] {
        let fragment = fragments.index(step);
        let mut four = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for matrix in 0..comptime![FRAGMENT / 2] {
            let mut pair = Pair::<E>::empty();
            pair.insert(0usize, fragment[comptime![2 * matrix]]);
            pair.insert(1usize, fragment[comptime![2 * matrix + 1]]);
            four[matrix] = pair;
        }
        let row = comptime![(K_STEP * step) as u32] + lane / 16 * 8 + lane % 8;
        let at = (row * comptime![TILE as u32 / 8] + (oct ^ (row % 8))) as usize;
        instruction.store_matrix::<Oct<E>, Const<2>>(
            &mut memory[at..at + 1],
            &four,
            MatrixIdent::Accumulator,
            4usize,
            true,
        );
    }
}
