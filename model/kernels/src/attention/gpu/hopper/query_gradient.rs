//! The gradient of the queries: a block owns 64 of its rows, and keys and values are streamed past them.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::lines::row_products;
use super::slots::{Slots, arrived, fill_both, fill_slot_both, slots};
use super::tile::{enqueue, left_operand, round_into, scores_and_dp, settle, tile};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens, Outputs};
use crate::attention::gpu::shared::bound::{bound, multiply_by_slopes};
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::dropout::drop_values;
use crate::attention::gpu::shared::mask::{HIDDEN, Sight, hide, key_tile_of, sight};
use crate::attention::gpu::shared::position::{
    Patch, Place, QueryTile, cube_place, key_column, place, query_column, query_tile, tiles, unit_here, value_column,
};
use crate::attention::gpu::shared::relative::{Scores, add_to_rows};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{take_probabilities, take_score_gradients};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{describe, pin, wait, zeros};

/// Computes the gradient of the queries, and `delta`: each query's sum of `out * d_out`, which the gradient of keys and
/// values reads.
#[cube(launch_unchecked)]
pub(super) fn query_gradient<E: Float>(
    inputs: &Inputs<E>,
    outputs: &Outputs<E>,
    call: &Call,
    delta: &mut [f32],
    d_query: &mut [Oct<E>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.query_gradient_cubes()]);
    let (row_head, from_last) = cube_place(call);
    let tiles = tiles(call.lens.t);
    if row_head >= call.heads || from_last >= tiles {
        terminate!();
    }
    let block = query_tile(row_head, tiles - 1 - from_last, cfg);
    let sight = sight(&call.masks, &block, &place(UNIT_POS), &call.lens, cfg);

    let mut memory =
        Memory::<E> { resident: slots::<E>(1usize, 2usize, cfg), streamed: slots::<E>(2usize, 2usize, cfg) };
    sync_async_proxy_shared();
    sync_cube();
    request_first::<E>(&mut memory, inputs, outputs, &block, &sight, &call.lens, cfg);

    // These loads are requested after the tiles, not before them.
    let unit = unit_here();
    let at = place(unit);
    let t = call.lens.t;
    let patch = Patch { first: block.batch * t, row0: block.q0, rows: t, column: query_column(block.head, cfg) };
    let rows = row_numbers::<E>(outputs, delta, &block, &patch, unit, at, cfg);

    let mut dq = zeros(comptime![cfg.head_dim]);
    if sight.blocks > 0 {
        accumulate::<E>(&mut dq, &mut memory, &rows, inputs, call, &block, &sight, cfg);
    }
    let columns = comptime![cfg.query_columns()];
    store_rows::<E, Const<8>>(&dq, 1.0f32, 1.0f32, d_query, &patch, unit, columns, comptime![cfg.head_dim]);
}

/// The tiles of a block: queries and `d_out`, and two slots of keys and values.
#[derive(CubeType)]
struct Memory<E: Float> {
    resident: Slots<E>,
    streamed: Slots<E>,
}

/// A thread's two queries: their place, log-sums and deltas.
#[derive(CubeType)]
struct Rows {
    at: Place,
    lse0: f32,
    lse1: f32,
    delta0: f32,
    delta1: f32,
}

/// Requests the resident tiles, and the first two of keys and values.
#[cube]
fn request_first<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    outputs: &Outputs<E>,
    block: &QueryTile,
    sight: &Sight,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    let column = query_column(block.head, cfg);
    let (keys, values) = (key_column(block.group, cfg), value_column(block.group, cfg));
    if UNIT_POS == 0 && sight.blocks > 0 {
        let row = block.batch * lens.t + block.q0;
        let (query, d_out) = (&inputs.query, &outputs.d_out_tiles);
        fill_slot_both::<E>(&mut memory.resident, 0usize, query, d_out, row, column, column, cfg);
        let key_value = &inputs.key_value;
        let from = block.batch * lens.s + key_tile_of(sight, 0u32, cfg) * comptime![TILE as u32];
        fill_slot_both::<E>(&mut memory.streamed, 0usize, key_value, key_value, from, keys, values, cfg);
        if sight.blocks > 1 {
            let from = from + comptime![TILE as u32];
            fill_slot_both::<E>(&mut memory.streamed, 1usize, key_value, key_value, from, keys, values, cfg);
        }
    }
    sync_plane();
}

/// Loads the log-sums of the thread's queries, and computes and stores their deltas.
#[cube]
fn row_numbers<E: Float>(
    outputs: &Outputs<E>,
    delta: &mut [f32],
    block: &QueryTile,
    patch: &Patch,
    unit: u32,
    at: Place,
    #[comptime] cfg: FlashConfig,
) -> Rows {
    let t = patch.rows;
    let row0 = block.row_head * t + min(block.q0 + at.row, t - 1);
    let row1 = block.row_head * t + min(block.q0 + at.row + 8, t - 1);
    let lse0 = outputs.lse[row0 as usize];
    let lse1 = outputs.lse[row1 as usize];

    let columns = comptime![cfg.n_heads * cfg.head_dim];
    let (delta0, delta1) = row_products::<E>(&outputs.d_out, &outputs.out, patch, unit, columns, cfg);
    if at.column == 0 {
        if block.q0 + at.row < t {
            delta[row0 as usize] = delta0;
        }
        if block.q0 + at.row + 8 < t {
            delta[row1 as usize] = delta1;
        }
    }
    Rows { at, lse0, lse1, delta0, delta1 }
}

/// Adds to `dq` what all keys contribute that the queries see, at least one tile of them.
#[cube]
fn accumulate<E: Float>(
    dq: &mut Array<f32>,
    memory: &mut Memory<E>,
    rows: &Rows,
    inputs: &Inputs<E>,
    call: &Call,
    block: &QueryTile,
    sight: &Sight,
    #[comptime] cfg: FlashConfig,
) {
    let scale = comptime![cfg.scale()].runtime();
    let scale_log2 = comptime![cfg.scale() * LOG2_E].runtime();
    let hidden = f32::cast_from(comptime![HIDDEN]);
    let queries = describe::<E>(&memory.resident.tiles, comptime![cfg.rows_layout()]);
    let gradients = tile(queries, 1u32, cfg);
    let streamed_rows = describe::<E>(&memory.streamed.tiles, comptime![cfg.rows_layout()]);
    let streamed_columns = describe::<E>(&memory.streamed.tiles, comptime![cfg.columns_layout()]);
    let mut d_scores = left_operand::<E>(TILE);
    memory.resident.loaded.index(0usize).wait_parity(0u32);

    for nth in 0..sight.blocks {
        let slot = arrived::<E>(&memory.streamed, nth);
        // Wait for the product of the previous turn.
        settle::<E>(&*dq, &d_scores, 0usize);
        let (mut scores, mut dp) = scores_and_dp::<E>(queries, gradients, streamed_rows, slot, cfg);

        // No thread reads the slot of the previous turn any more: refill it.
        sync_cube();
        if UNIT_POS == 0 && nth > 0 && nth + 1 < sight.blocks {
            let from = block.batch * call.lens.s + key_tile_of(sight, nth + 1, cfg) * comptime![TILE as u32];
            let (keys, values) = (key_column(block.group, cfg), value_column(block.group, cfg));
            let key_value = &inputs.key_value;
            fill_both::<E>(&mut memory.streamed, 1 - slot, key_value, key_value, from, keys, values, cfg);
        }
        sync_plane();

        // Wait for the scores, not for `dp`.
        wait(1usize);
        pin(&scores);
        let key_tile = key_tile_of(sight, nth, cfg);
        bound(&mut scores, cfg);
        let corner = Scores { head: block.head, q0: block.q0, k0: key_tile * comptime![TILE as u32] };
        add_to_rows(&mut scores, &call.masks, &corner, &rows.at, &call.lens, cfg);
        hide(&mut scores, hidden, sight, &call.masks, key_tile * comptime![TILE as u32], &rows.at, cfg);
        take_probabilities(&mut scores, rows.lse0, rows.lse1, scale_log2);
        multiply_by_slopes(&mut scores, rows.lse0, rows.lse1, cfg);

        wait(0usize);
        pin(&dp);
        if comptime![cfg.dropout] {
            let row = block.row_head * call.lens.t + block.q0 + rows.at.row;
            drop_values(&mut dp, &call.dropout, row, key_tile, rows.at.column, call.lens.s);
        }
        take_score_gradients(&mut scores, &dp, rows.delta0, rows.delta1, scale);

        round_into::<E>(&scores, &mut d_scores);
        let keys = tile(streamed_columns, 2 * slot, cfg);
        enqueue::<E>(dq, &d_scores, keys, comptime![cfg.columns_layout()]);
    }
    settle::<E>(&*dq, &d_scores, 0usize);
}
