//! Forward: a cube per 64 queries of a head.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::sight::{hide, key_count, sight};
use super::{
    FlashConfig, MASKED, Pair, SLOTS, TILE, arrived, drop_values, fill, fragments, load_fragments, place, product,
    quad_max, quad_sum, round_into, slots, store_rows, tile_of, zeros,
};
use crate::instruction::exp2_approx;
use crate::wgmma::{commit, fence, pin, pin_all, wait};

/// `out` and the binary logarithm of each query's sum of exponentials.
///
/// `t` queries and `s` keys per batch row; probabilities whose random bits are below `limit` are dropped, the others times
/// `keep`.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments are its launch signature")]
pub(crate) fn forward<E: Float>(
    query: &[Pair<E>],
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
    let blocks = sight.blocks;

    let mut slots = slots::<E>(cfg);
    let columns = comptime![cfg.query_columns()];
    let queries = load_fragments::<E>(
        query,
        batch * t,
        q0,
        t,
        head * comptime![cfg.head_dim as u32],
        &at,
        columns,
        comptime![cfg.head_dim],
    );
    let key_column = comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32];
    let value_column = comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32];

    let mut o = zeros(comptime![cfg.head_dim]);
    let mut top0 = f32::cast_from(comptime![MASKED]);
    let mut top1 = f32::cast_from(comptime![MASKED]);
    let mut sum0 = 0.0f32;
    let mut sum1 = 0.0f32;

    if UNIT_POS == 0 && blocks > 0 {
        fill::<E>(&mut slots, 0u32, key_value, key_value, batch * s, key_column, value_column, cfg);
    }
    let mut probabilities = fragments::<E>();
    for block in 0..blocks {
        let k0 = block * comptime![TILE as u32];
        // No unit reads the slot of two blocks before any more.
        sync_cube();
        let next = block + 1;
        if UNIT_POS == 0 && next < blocks {
            let row = batch * s + next * comptime![TILE as u32];
            fill::<E>(&mut slots, next % SLOTS, key_value, key_value, row, key_column, value_column, cfg);
        }
        sync_plane();
        let slot = arrived::<E>(&slots, block);
        let keys_tile = tile_of::<E>(&slots.a, slot, comptime![cfg.tile_len()], comptime![cfg.rows_layout()]);
        let mut p = zeros(comptime![TILE]);
        pin(&p);
        fence();
        product::<E>(&mut p, &queries, keys_tile, comptime![cfg.rows_layout()]);
        commit();
        // For the values' product of the block before as well.
        wait(0usize);
        pin(&p);
        pin(&o);
        pin_all::<E>(&probabilities);

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
