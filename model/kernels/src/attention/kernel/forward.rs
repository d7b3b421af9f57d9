//! Forward: a cube per 64 queries of a head, which stay in shared memory.
//!
//! The product of the values is enqueued behind the scores of the next keys: it runs while their exponentials are taken.

use std::f32::consts::LOG2_E;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::sight::{hide, key_count, sight};
use super::{
    FlashConfig, MASKED, Pair, TILE, arrived_alone, cube_place, drop_values, fetch, fill_alone, fragments, place,
    product, product_shared, quad_max, quad_sum, round_into, store_rows, stream, tile_of, zeros,
};
use crate::instruction::exp2_approx;
use crate::wgmma::{FRAGMENT, commit, describe, fence, pin, pin_all, wait};

/// The softmax so far of the unit's two queries: their largest scores, and sums of exponentials.
#[derive(CubeType)]
struct Running {
    top0: f32,
    top1: f32,
    sum0: f32,
    sum1: f32,
}

/// Makes exponentials of `scores` and counts them in. The results are what everything from before shrinks by.
#[cube]
fn take_exponentials(scores: &mut Array<f32>, running: &mut Running, scale: f32) -> (f32, f32) {
    let mut max0 = running.top0;
    let mut max1 = running.top1;
    #[unroll]
    for i in 0..comptime![TILE / 8] {
        max0 = max(max0, max(scores[comptime![4 * i]], scores[comptime![4 * i + 1]]));
        max1 = max(max1, max(scores[comptime![4 * i + 2]], scores[comptime![4 * i + 3]]));
    }
    max0 = quad_max(max0);
    max1 = quad_max(max1);
    let shrink0 = exp2_approx((running.top0 - max0) * scale);
    let shrink1 = exp2_approx((running.top1 - max1) * scale);
    running.top0 = max0;
    running.top1 = max1;
    let minus0 = max0 * scale;
    let minus1 = max1 * scale;
    let mut sum0 = running.sum0 * shrink0;
    let mut sum1 = running.sum1 * shrink1;
    #[unroll]
    for i in 0..comptime![TILE / 2] {
        if comptime![i % 4 < 2] {
            scores[i] = exp2_approx(scores[i] * scale - minus0);
            sum0 += scores[i];
        } else {
            scores[i] = exp2_approx(scores[i] * scale - minus1);
            sum1 += scores[i];
        }
    }
    running.sum0 = sum0;
    running.sum1 = sum1;
    (shrink0, shrink1)
}

/// Multiplies the rows of an accumulator.
#[cube]
fn shrink(o: &mut Array<f32>, by0: f32, by1: f32) {
    #[unroll]
    for i in 0..o.len() {
        o[i] *= if comptime![i % 4 < 2] { by0 } else { by1 };
    }
}

#[cube]
fn copy_fragments<E: Float>(from: &Sequence<Array<E>>, to: &mut Sequence<Array<E>>) {
    #[unroll]
    for step in 0..to.len() {
        let source = from.index(step);
        let target = to.index_mut(step);
        #[unroll]
        for i in 0..FRAGMENT {
            target[i] = source[i];
        }
    }
}

/// `out` and the binary logarithm of each query's sum of exponentials.
///
/// `t` queries and `s` keys per batch row; probabilities whose random bits are below `limit` are dropped, the others times
/// `keep`.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn forward<E: Float>(
    query: &TensorMap<E, Tiled>,
    key_value: &TensorMap<E, Tiled>,
    lengths: &[i32],
    documents: &[i32],
    random: &[i32],
    out: &mut [Pair<E>],
    lse: &mut [f32],
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
    // Late tiles see most keys under causality: they go first.
    let q0 = (tiles - 1 - tile) * comptime![TILE as u32];
    let at = place();
    let scale = comptime![cfg.scale() * LOG2_E].runtime();

    let keys = key_count(lengths, batch, s, cfg);
    let sight = sight(documents, batch, q0, &at, keys, t, s, cfg);

    let mut queries = Shared::<[E]>::new_aligned_slice(comptime![cfg.tile_len()], 1024usize);
    let queries_arrived = Barrier::shared_uninit();
    if UNIT_POS == 0 {
        queries_arrived.init_manual(1u32);
    }
    let mut keys_stream = stream::<E>(cfg);
    let mut values_stream = stream::<E>(cfg);
    sync_async_proxy_shared();
    sync_cube();
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];

    let mut o = zeros(comptime![cfg.head_dim]);
    let lowest = f32::cast_from(comptime![MASKED]);
    let mut running = Running { top0: lowest, top1: lowest, sum0: 0.0f32, sum1: 0.0f32 };

    let blocks = sight.blocks;
    if UNIT_POS == 0 && blocks > 0 {
        queries_arrived.arrive_and_expect_tx(1, comptime![(2 * cfg.tile_len()) as u32]);
        let column = head * comptime![cfg.head_dim as u32];
        fetch::<E>(&queries_arrived, query, &mut queries, batch * t + q0, column, cfg);
        fill_alone::<E>(&mut keys_stream, 0u32, key_value, batch * s, key_column, cfg);
        fill_alone::<E>(&mut values_stream, 0u32, key_value, batch * s, value_column, cfg);
        if blocks > 1 {
            fill_alone::<E>(&mut keys_stream, 1u32, key_value, batch * s + comptime![TILE as u32], key_column, cfg);
        }
    }
    let mut probabilities = fragments::<E>();
    sync_plane();
    if blocks > 0 {
        let row = row_head * t + q0 + at.row;
        let queries_tile = describe::<E>(&queries, comptime![cfg.rows_layout()]);
        queries_arrived.wait_parity(0u32);
        let slot = arrived_alone::<E>(&keys_stream, 0u32);
        let keys_tile = tile_of::<E>(&keys_stream.tiles, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let mut p = zeros(TILE);
        pin(&p);
        fence();
        product_shared::<E>(&mut p, queries_tile, keys_tile, comptime![cfg.rows_layout()], cfg);
        commit();
        wait(0usize);
        pin(&p);
        hide(&mut p, lowest, &sight, documents, 0u32, &at, cfg);
        // What the values' products before the youngest scores shrink by.
        let (mut shrink0, mut shrink1) = take_exponentials(&mut p, &mut running, scale);
        if comptime![cfg.dropout] {
            drop_values(&mut p, random, site, row, 0u32, at.column, s, limit, keep);
        }
        // The next left operand, while a product still reads the last one.
        let mut rounded = fragments::<E>();
        round_into::<E>(&p, &mut rounded);
        for next in 1..blocks {
            let block = next - 1;
            // For the values' product of the block before this one. It ran while exponentials were taken; a wait in the same
            // turn the assembler would move before them.
            wait(0usize);
            pin(&o);
            pin_all::<E>(&probabilities);
            // No unit reads the keys of this block any more, nor the values of the one before.
            sync_cube();
            if UNIT_POS == 0 {
                let row = batch * s + next * comptime![TILE as u32];
                fill_alone::<E>(&mut values_stream, next % 2, key_value, row, value_column, cfg);
                if next + 1 < blocks {
                    let row = row + comptime![TILE as u32];
                    fill_alone::<E>(&mut keys_stream, block % 2, key_value, row, key_column, cfg);
                }
            }
            sync_plane();
            shrink(&mut o, shrink0, shrink1);
            copy_fragments::<E>(&rounded, &mut probabilities);
            let slot = arrived_alone::<E>(&keys_stream, next);
            let keys_tile =
                tile_of::<E>(&keys_stream.tiles, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
            let slot = arrived_alone::<E>(&values_stream, block);
            let values_tile =
                tile_of::<E>(&values_stream.tiles, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
            let mut scores = zeros(TILE);
            pin(&scores);
            pin_all::<E>(&probabilities);
            pin(&o);
            fence();
            product_shared::<E>(&mut scores, queries_tile, keys_tile, comptime![cfg.rows_layout()], cfg);
            commit();
            product::<E>(&mut o, &probabilities, values_tile, comptime![cfg.columns_layout()]);
            commit();
            // For the scores.
            wait(1usize);
            pin(&scores);
            hide(&mut scores, lowest, &sight, documents, next * comptime![TILE as u32], &at, cfg);
            let (by0, by1) = take_exponentials(&mut scores, &mut running, scale);
            shrink0 = by0;
            shrink1 = by1;
            if comptime![cfg.dropout] {
                drop_values(&mut scores, random, site, row, next, at.column, s, limit, keep);
            }
            round_into::<E>(&scores, &mut rounded);
        }
        wait(0usize);
        pin(&o);
        pin_all::<E>(&probabilities);
        shrink(&mut o, shrink0, shrink1);
        copy_fragments::<E>(&rounded, &mut probabilities);
        let slot = arrived_alone::<E>(&values_stream, blocks - 1);
        let values_tile =
            tile_of::<E>(&values_stream.tiles, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        pin_all::<E>(&probabilities);
        pin(&o);
        fence();
        product::<E>(&mut o, &probabilities, values_tile, comptime![cfg.columns_layout()]);
        commit();
        wait(0usize);
        pin(&o);
        pin_all::<E>(&probabilities);
    }

    // A query without keys has a sum of 0: its row is finite, and means nothing.
    let total0 = max(quad_sum(running.sum0), 1e-30f32);
    let total1 = max(quad_sum(running.sum1), 1e-30f32);
    store_rows::<E>(
        &o,
        1.0 / total0,
        1.0 / total1,
        out,
        batch * t,
        q0,
        t,
        head * comptime![cfg.head_dim as u32],
        &at,
        comptime![cfg.n_heads * cfg.head_dim],
        comptime![cfg.head_dim],
    );
    if at.column == 0 {
        let row = q0 + at.row;
        if row < t {
            lse[(row_head * t + row) as usize] = running.top0 * scale + f32::ln(total0) * comptime![LOG2_E];
        }
        if row + 8 < t {
            lse[(row_head * t + row + 8) as usize] = running.top1 * scale + f32::ln(total1) * comptime![LOG2_E];
        }
    }
}
