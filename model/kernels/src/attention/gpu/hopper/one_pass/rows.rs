//! What each query brings to the pass, and the sums that it takes from it.

use cubecl::prelude::*;

use super::PassConfig;
use super::memory::Quad;
use crate::attention::gpu::hopper::lines::row_products;
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::config::{TILE, UNITS};
use crate::attention::gpu::shared::position::{Patch, place, query_column, query_tile, tiles, tiles_of, warpgroup};
use crate::attention::gpu::shared::rows::store_rows;

/// Computes `delta`, each query's sum of `out * d_out`, and clears the `n_locks` locks: a block per 64 queries of a head.
#[cube(launch_unchecked)]
pub(super) fn one_pass_deltas<E: Float>(
    out: &[Oct<E>],
    d_out: &[Oct<E>],
    t: u32,
    n_locks: u32,
    delta: &mut [f32],
    locks: &mut [u32],
    #[comptime] cfg: PassConfig,
) {
    let lock = CUBE_POS_X * UNITS + UNIT_POS;
    if lock < n_locks {
        locks[lock as usize] = 0u32;
    }
    let row_head = CUBE_POS_X / tiles(t);
    let block = query_tile(row_head, CUBE_POS_X % tiles(t), comptime![cfg.flash]);
    let patch = Patch {
        first: block.batch * t,
        row0: block.q0,
        rows: t,
        column: query_column(block.head, comptime![cfg.flash]),
    };
    let (delta0, delta1) = row_products::<E>(
        out,
        d_out,
        &patch,
        UNIT_POS,
        comptime![cfg.flash.n_heads * cfg.flash.head_dim],
        comptime![cfg.flash],
    );

    let at = place(UNIT_POS);
    if at.column == 0 {
        let row = block.q0 + at.row;
        if row < t {
            delta[(row_head * t + row) as usize] = delta0;
        }
        if row + 8 < t {
            delta[(row_head * t + row + 8) as usize] = delta1;
        }
    }
}

/// Rounds the sums of dQ: a block per tile of queries of a head. Sums that no block has added to count as 0.
#[cube(launch_unchecked)]
pub(super) fn one_pass_query_gradient<E: Float>(
    sums: &[Quad],
    locks: &[u32],
    t: u32,
    d_query: &mut [Oct<E>],
    #[comptime] cfg: PassConfig,
) {
    let rows = comptime![cfg.rows()];
    let tiles = tiles_of(t, rows);
    let (row_head, tile) = (CUBE_POS_X / tiles, CUBE_POS_X % tiles);
    let head = row_head % comptime![cfg.flash.n_heads as u32];
    let (group, unit) = warpgroup(2usize);

    let mut values = Array::<f32>::new(comptime![4 * cfg.part_quads() / UNITS as usize]);
    let added = locks[(1 + 2 * CUBE_POS_X + group) as usize];
    #[unroll]
    for i in 0..comptime![cfg.part_quads() / UNITS as usize] {
        let at = (2 * CUBE_POS_X + group) as usize * comptime![cfg.part_quads()]
            + (comptime![i as u32 * UNITS] + unit) as usize;
        let mut quad = Quad::zeroed();
        if added > 0 {
            quad = sums[at];
        }
        #[unroll]
        for j in 0..4usize {
            values[comptime![4 * i + j]] = quad.extract(j);
        }
    }

    // The warpgroups have other queries, or other columns.
    let mut row0 = tile * comptime![rows as u32];
    let mut column = query_column(head, comptime![cfg.flash]);
    if comptime![cfg.parts_have_all_columns()] {
        row0 += group * comptime![TILE as u32];
    } else {
        column += group * comptime![cfg.part_columns() as u32];
    }
    let batch = row_head / comptime![cfg.flash.n_heads as u32];
    let patch = Patch { first: batch * t, row0, rows: t, column };
    store_rows::<E, Const<8>>(
        &values,
        1.0f32,
        1.0f32,
        d_query,
        &patch,
        unit,
        comptime![cfg.flash.query_columns()],
        comptime![cfg.part_columns()],
    );
}
