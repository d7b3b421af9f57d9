//! Backward where all queries and all keys of a batch row fit into one tile: a block computes the three gradients of a
//! head at once.
//!
//! Scores have a row per key, as in [`super::key_value_gradient`], so that the products for dK and dV read them from
//! registers. The product for dQ sums over keys: the gradient of the scores is transposed through shared memory.
//!
//! Products run one after another, and finished results are stored before the next product is enqueued. A thread then
//! needs 112 registers, 123 with dropout (`ptxas -c`, as the driver assembles), and the products of one block run while
//! two or three others load, store and take exponentials.

use std::f32::consts::LOG2_E;

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
use cubecl_ir::types::MatrixIdent;

use super::lines::{results_memory, row_products, store_rows};
use super::slots::{Slots, fill_slot_both, slots};
use super::tile::{enqueue, left_operand, round_into, scores_of, settle, tile};
use crate::attention::gpu::shared::arguments::{Dropout, Inputs, Lens, Masks, Outputs};
use crate::attention::gpu::shared::bound::{bound, pass_bound};
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::dropout::{KEPT_STRIDE, draw_kept, drawn_bits, kept_values};
use crate::attention::gpu::shared::mask::{Corner, hide_queries, key_count};
use crate::attention::gpu::shared::position::{
    Patch, QueryTile, key_column, place, query_column, query_tile, unit_here, value_column,
};
use crate::attention::gpu::shared::relative::{Scores, add_to_columns};
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::attention::gpu::shared::{Oct, Pair};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{FRAGMENT, K_STEP, commit, describe, fence, multiply_shared, pin, wait, zeros};

/// Returns the layout of 64 queries by 64 keys, summed over the keys.
fn turned_layout() -> WgmmaTileLayout {
    WgmmaTileLayout { major: Major::K, swizzle: Swizzle::B128, rows: TILE, k: TILE }
}

/// Computes the gradients of queries, keys and values, for T and S up to 64 and as many heads of keys as of queries.
#[cube(launch_unchecked)]
pub(super) fn one_tile_gradients<E: Float>(
    inputs: &Inputs<E>,
    outputs: &Outputs<E>,
    masks: &Masks,
    dropout: &Dropout,
    lens: &Lens,
    d_query: &mut [Oct<E>],
    d_key_value: &mut [Oct<E>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.cubes()]);
    let block = query_tile(CUBE_POS_X, 0u32, cfg);
    let (t, s) = (lens.t, lens.s);
    let (query_columns, columns, head_dim) = comptime![(cfg.query_columns(), cfg.key_value_columns(), cfg.head_dim)];
    let queries =
        Patch { first: block.batch * t, row0: 0u32.runtime(), rows: t, column: query_column(block.head, cfg) };
    let keys = Patch { first: block.batch * s, row0: 0u32.runtime(), rows: s, column: key_column(block.head, cfg) };
    let values = Patch { first: block.batch * s, row0: 0u32.runtime(), rows: s, column: value_column(block.head, cfg) };

    let mut memory = Memory::<E> {
        tiles: slots::<E>(2usize, 2usize, cfg),
        results: results_memory::<E>(cfg),
        turned: Shared::<[Oct<E>]>::new_aligned_slice(comptime![TILE * TILE / 8], 1024usize),
        row_values: Shared::<[f32]>::new_slice(comptime![2 * TILE]),
        kept: Shared::<[u32]>::new_slice(comptime![if cfg.dropout { 8 * KEPT_STRIDE as usize } else { 1 }]),
    };
    sync_async_proxy_shared();
    sync_cube();
    request::<E>(&mut memory, inputs, outputs, &queries, &keys, values.column, cfg);
    // While the tiles arrive.
    let kept = prepare::<E>(&mut memory, outputs, dropout, &block, &queries, s, cfg);

    memory.tiles.loaded.index(0usize).wait_parity(0u32);
    memory.tiles.loaded.index(1usize).wait_parity(0u32);
    let p = probabilities::<E>(&memory, masks, &block, lens, cfg);

    // dV = P^T d_out.
    let streamed = describe::<E>(&memory.tiles.tiles, comptime![cfg.columns_layout()]);
    let mut dropped = left_operand::<E>(TILE);
    round_into::<E>(&kept_values(&p, kept[0], dropout.args.scale, cfg), &mut dropped);
    let mut dv = zeros(head_dim);
    enqueue::<E>(&mut dv, &dropped, tile(streamed, 3u32, cfg), comptime![cfg.columns_layout()]);
    settle::<E>(&dv, &dropped, 0usize);
    store_rows::<E>(&dv, &mut memory.results, d_key_value, &values, columns, cfg);

    let d_scores = score_gradient::<E>(&memory, &p, kept, dropout.args.scale, cfg);
    turn::<E>(&d_scores, &mut memory.turned);

    // dK = dS^T Q, and dQ = dS K from the transpose.
    let mut dk = zeros(head_dim);
    enqueue::<E>(&mut dk, &d_scores, tile(streamed, 2u32, cfg), comptime![cfg.columns_layout()]);
    // All warps have transposed their rows.
    sync_async_proxy_shared();
    sync_cube();
    let turned = describe::<Oct<E>>(&memory.turned, comptime![turned_layout()]);
    let mut dq = zeros(head_dim);
    pin(&dq);
    fence();
    #[unroll]
    for step in 0..comptime![TILE / K_STEP] {
        let layout = comptime![cfg.columns_layout()];
        multiply_shared::<E>(&mut dq, turned, streamed, step, comptime![turned_layout()], layout);
    }
    commit();

    // Wait for `dk`, not for `dq`.
    settle::<E>(&dk, &d_scores, 1usize);
    store_rows::<E>(&dk, &mut memory.results, d_key_value, &keys, columns, cfg);
    wait(0usize);
    pin(&dq);
    store_rows::<E>(&dq, &mut memory.results, d_query, &queries, query_columns, cfg);
}

/// The shared memory of a block.
#[derive(CubeType)]
struct Memory<E: Float> {
    /// Slot 0: keys and values. Slot 1: queries and `d_out`.
    tiles: Slots<E>,
    results: Shared<[Oct<E>]>,
    /// The gradient of the scores, transposed.
    turned: Shared<[Oct<E>]>,
    /// Log-sums of the queries, then deltas (sums of `out * d_out`).
    row_values: Shared<[f32]>,
    /// Bits of the probabilities that are kept.
    kept: Shared<[u32]>,
}

/// Requests the four tiles.
#[cube]
fn request<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    outputs: &Outputs<E>,
    queries: &Patch,
    keys: &Patch,
    value_column: u32,
    #[comptime] cfg: FlashConfig,
) {
    if UNIT_POS == 0 {
        let (key_value, tiles) = (&inputs.key_value, &mut memory.tiles);
        fill_slot_both::<E>(tiles, 0usize, key_value, key_value, keys.first, keys.column, value_column, cfg);
        let (query, d_out) = (&inputs.query, &outputs.d_out_tiles);
        fill_slot_both::<E>(tiles, 1usize, query, d_out, queries.first, queries.column, queries.column, cfg);
    }
    sync_plane();
}

/// Puts log-sums and deltas into shared memory, and returns the bits of the probabilities that the thread keeps, in one
/// word.
#[cube]
fn prepare<E: Float>(
    memory: &mut Memory<E>,
    outputs: &Outputs<E>,
    dropout: &Dropout,
    block: &QueryTile,
    queries: &Patch,
    keys: u32,
    #[comptime] cfg: FlashConfig,
) -> Array<u32> {
    let unit = unit_here();
    let at = place(unit);
    let t = queries.rows;
    let columns = comptime![cfg.n_heads * cfg.head_dim];
    let (delta0, delta1) = row_products::<E>(&outputs.d_out, &outputs.out, queries, unit, columns, cfg);
    if at.column == 0 {
        memory.row_values[(comptime![TILE as u32] + at.row) as usize] = delta0;
        memory.row_values[(comptime![TILE as u32 + 8] + at.row) as usize] = delta1;
    }
    if unit < comptime![TILE as u32] {
        memory.row_values[unit as usize] = outputs.lse[(block.row_head * t + min(unit, t - 1)) as usize];
    }

    let mut kept = Array::<u32>::new(1usize);
    kept[0] = 0u32;
    if comptime![cfg.dropout] {
        draw_kept(&mut memory.kept, dropout, block.row_head * t, keys);
    }
    sync_cube();
    if comptime![cfg.dropout] {
        kept[0] = drawn_bits(&memory.kept, &at);
        pin(&kept);
    }
    kept
}

/// Returns the probabilities, before dropout.
#[cube]
fn probabilities<E: Float>(
    memory: &Memory<E>,
    masks: &Masks,
    block: &QueryTile,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) -> Array<f32> {
    let keys = describe::<E>(&memory.tiles.tiles, comptime![cfg.rows_layout()]);
    let mut scores = scores_of::<E>(keys, tile(keys, 2u32, cfg), cfg);
    let corner = Corner { batch: block.batch, q0: 0u32.runtime(), k0: 0u32.runtime() };
    bound(&mut scores, cfg);
    let whole = Scores { head: block.head, q0: corner.q0, k0: corner.k0 };
    add_to_columns(&mut scores, masks, &whole, &place(unit_here()), lens, cfg);
    hide_queries(&mut scores, &corner, masks, key_count(masks, block.batch, lens, cfg), lens, cfg);
    let log_sums = row_pairs(&memory.row_values, place(unit_here()).column, TILE);
    exponentials(&scores, &log_sums, comptime![cfg.scale() * LOG2_E].runtime())
}

/// Returns the gradient of the scores, given the probabilities before dropout.
#[cube]
fn score_gradient<E: Float>(
    memory: &Memory<E>,
    p: &Array<f32>,
    mut kept: Array<u32>,
    keep: f32,
    #[comptime] cfg: FlashConfig,
) -> Sequence<Array<E>> {
    let keys = describe::<E>(&memory.tiles.tiles, comptime![cfg.rows_layout()]);
    let dp = scores_of::<E>(tile(keys, 1u32, cfg), tile(keys, 3u32, cfg), cfg);
    if comptime![cfg.dropout] {
        // Through a shuffle, or the compiler would keep the earlier factors in registers.
        kept[0] = plane_shuffle(kept[0], UNIT_POS % 32);
    }
    let deltas = row_pairs(&memory.row_values, place(unit_here()).column + comptime![TILE as u32], TILE);
    let d_probabilities = kept_values(&dp, kept[0], keep, cfg);
    let mut d_scores = left_operand::<E>(TILE);
    let mut gradients = score_gradients(p, &d_probabilities, &deltas, comptime![cfg.scale()].runtime());
    pass_bound(&mut gradients, p, &memory.row_values, place(unit_here()).column, cfg);
    round_into::<E>(&gradients, &mut d_scores);
    d_scores
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
