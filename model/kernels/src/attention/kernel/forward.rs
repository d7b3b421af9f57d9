//! Forward: a cube per 64 queries of a head, which stay in shared memory.

use std::f32::consts::LOG2_E;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::sight::{hide, key_count, sight};
use super::{
    FlashConfig, MASKED, Pair, TILE, arrived, drop_values, fetch, fill, fragments, place, product, product_shared,
    quad_max, quad_sum, round_into, slots, store_rows, tile_of, zeros,
};
use crate::instruction::exp2_approx;
use crate::wgmma::{commit, describe, fence, pin, pin_all, wait};

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
    #[comptime] cfg: FlashConfig,
) {
    let head = CUBE_POS_X % comptime![cfg.n_heads as u32];
    let batch = CUBE_POS_X / comptime![cfg.n_heads as u32];
    let group = head / comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    // Late tiles see most keys under causality: they go first.
    let q0 = ((t - 1) / comptime![TILE as u32] - CUBE_POS_Y) * comptime![TILE as u32];
    let at = place();
    let scale = comptime![cfg.scale() * LOG2_E].runtime();

    let keys = key_count(lengths, batch, s, cfg);
    let sight = sight(documents, batch, q0, &at, keys, t, s, cfg);

    let mut queries = Shared::<[E]>::new_aligned_slice(comptime![cfg.tile_len()], 1024usize);
    let queries_arrived = Barrier::shared_uninit();
    if UNIT_POS == 0 {
        queries_arrived.init_manual(1u32);
    }
    let mut slots = slots::<E>(2u32, cfg);
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];

    let mut o = zeros(comptime![cfg.head_dim]);
    let mut top0 = f32::cast_from(comptime![MASKED]);
    let mut top1 = f32::cast_from(comptime![MASKED]);
    let mut sum0 = 0.0f32;
    let mut sum1 = 0.0f32;

    if UNIT_POS == 0 {
        queries_arrived.arrive_and_expect_tx(1, comptime![(2 * cfg.tile_len()) as u32]);
        let column = head * comptime![cfg.head_dim as u32];
        fetch::<E>(&queries_arrived, query, &mut queries, batch * t + q0, column, cfg);
    }
    if UNIT_POS == 0 && sight.blocks > 0 {
        fill::<E>(&mut slots, 0u32, key_value, key_value, batch * s, key_column, value_column, cfg);
        if sight.blocks > 1 {
            let row = batch * s + comptime![TILE as u32];
            fill::<E>(&mut slots, 1u32, key_value, key_value, row, key_column, value_column, cfg);
        }
    }
    let mut probabilities = fragments::<E>();
    sync_plane();
    queries_arrived.wait_parity(0u32);
    let queries_tile = describe::<E>(&queries, comptime![cfg.rows_layout()]);
    for block in 0..sight.blocks {
        let k0 = block * comptime![TILE as u32];
        let slot = arrived::<E>(&slots, block);
        let keys_tile = tile_of::<E>(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let mut p = zeros(TILE);
        pin(&p);
        fence();
        product_shared::<E>(&mut p, queries_tile, keys_tile, comptime![cfg.rows_layout()], cfg);
        commit();
        // For the values' product of the block before as well.
        wait(0usize);
        pin(&p);
        pin(&o);
        pin_all::<E>(&probabilities);
        // No unit reads the slot of the block before any more: it is filled while this one is worked on.
        sync_cube();
        let next = block + 1;
        if UNIT_POS == 0 && block > 0 && next < sight.blocks {
            let row = batch * s + next * comptime![TILE as u32];
            fill::<E>(&mut slots, next % 2, key_value, key_value, row, key_column, value_column, cfg);
        }
        sync_plane();

        hide(&mut p, f32::cast_from(comptime![MASKED]), &sight, documents, k0, &at, cfg);
        let mut max0 = top0;
        let mut max1 = top1;
        #[unroll]
        for i in 0..comptime![TILE / 8] {
            max0 = max(max0, max(p[comptime![4 * i]], p[comptime![4 * i + 1]]));
            max1 = max(max1, max(p[comptime![4 * i + 2]], p[comptime![4 * i + 3]]));
        }
        max0 = quad_max(max0);
        max1 = quad_max(max1);
        let shrink0 = exp2_approx((top0 - max0) * scale);
        let shrink1 = exp2_approx((top1 - max1) * scale);
        top0 = max0;
        top1 = max1;
        let minus0 = max0 * scale;
        let minus1 = max1 * scale;
        sum0 *= shrink0;
        sum1 *= shrink1;
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            if comptime![i % 4 < 2] {
                p[i] = exp2_approx(p[i] * scale - minus0);
                sum0 += p[i];
            } else {
                p[i] = exp2_approx(p[i] * scale - minus1);
                sum1 += p[i];
            }
        }
        if comptime![cfg.dropout] {
            let row = CUBE_POS_X * t + q0 + at.row;
            drop_values(&mut p, random, site, row, block, at.column, s, limit, keep);
        }

        #[unroll]
        for i in 0..comptime![cfg.head_dim / 2] {
            o[i] *= if comptime![i % 4 < 2] { shrink0 } else { shrink1 };
        }
        let values_tile = tile_of::<E>(&slots.b, slot, comptime![cfg.tile_len()], comptime![cfg.columns_layout()]);
        round_into::<E>(&p, &mut probabilities);
        pin_all::<E>(&probabilities);
        pin(&o);
        fence();
        product::<E>(&mut o, &probabilities, values_tile, comptime![cfg.columns_layout()]);
        commit();
    }
    wait(0usize);
    pin(&o);
    pin_all::<E>(&probabilities);

    // A query without keys has a sum of 0: its row is finite, and means nothing.
    let total0 = max(quad_sum(sum0), 1e-30f32);
    let total1 = max(quad_sum(sum1), 1e-30f32);
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
            lse[(CUBE_POS_X * t + row) as usize] = top0 * scale + f32::ln(total0) * comptime![LOG2_E];
        }
        if row + 8 < t {
            lse[(CUBE_POS_X * t + row + 8) as usize] = top1 * scale + f32::ln(total1) * comptime![LOG2_E];
        }
    }
}
