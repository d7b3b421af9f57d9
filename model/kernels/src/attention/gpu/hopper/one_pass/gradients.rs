//! The kernel: a block per 128 keys.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::PassConfig;
use super::column::{KEYS, column, origin};
use super::memory::{
    Memory, Operands, STAGES, buffer_of, fill_resident, fill_streamed, key_columns, key_rows, memory, operands,
    panel_of_scores, query_columns, query_rows, slot_of, store_d_scores,
};
use super::sums::{Sums, add_part, pass_lock, sum_of, turn_of};
use crate::attention::gpu::hopper::key_value_gradient::QueryData;
use crate::attention::gpu::hopper::tile::{enqueue, left_operand, round_into, settle};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens};
use crate::attention::gpu::shared::config::TILE;
use crate::attention::gpu::shared::key_tile::{KeyTile, Streamed, advance, advanced, row_value};
use crate::attention::gpu::shared::mask::{Corner, hide_queries};
use crate::attention::gpu::shared::position::{Patch, key_column, place, value_column, warpgroup};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::ordered_sum::settle_reads;
use crate::gpu::pipeline::await_turn;
use crate::gpu::wgmma::{K_STEP, commit, fence, multiply_shared, pin, wait, zeros};

/// Computes the gradients of keys and values, and adds the gradients of the queries to `sums`.
#[cube(launch_unchecked)]
pub(super) fn one_pass_gradients<E: Float>(
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    sums: &mut Sums,
    d_key_value: &mut [Oct<E>],
    #[comptime] cfg: PassConfig,
) {
    cubes_at_once(1usize);
    let mut memory = memory::<E>(cfg);
    let mut ticket = Shared::<[u32]>::new_slice(1usize);
    if UNIT_POS == 0 {
        ticket[0] = sums.locks[0].fetch_add(1u32);
    }
    sync_async_proxy_shared();
    sync_cube();
    let (group, unit) = warpgroup(2usize);
    let column = column(plane_broadcast(ticket[0], 0u32), group, call, cfg);

    let mut gradients = Gradients::<E> {
        dk: zeros(comptime![cfg.flash.head_dim]),
        dv: zeros(comptime![cfg.flash.head_dim]),
        probabilities: left_operand::<E>(comptime![cfg.rows()]),
        d_scores: left_operand::<E>(comptime![cfg.rows()]),
    };
    if column.blocks > 0 {
        accumulate::<E>(&mut gradients, &mut memory, inputs, data, call, sums, &column, cfg);
    }

    let (s, row0, columns) = (call.lens.s, column.k0, comptime![cfg.flash.key_value_columns()]);
    let key = key_column(column.group, comptime![cfg.flash]);
    let value = value_column(column.group, comptime![cfg.flash]);
    let keys = Patch { first: column.batch * s, row0, rows: s, column: key };
    let values = Patch { first: column.batch * s, row0, rows: s, column: value };
    let head_dim = comptime![cfg.flash.head_dim];
    store_rows::<E, Const<8>>(&gradients.dk, 1.0f32, 1.0f32, d_key_value, &keys, unit, columns, head_dim);
    store_rows::<E, Const<8>>(&gradients.dv, 1.0f32, 1.0f32, d_key_value, &values, unit, columns, head_dim);
}

/// A thread's part of the gradients, and the left operands of the products that sum them.
#[derive(CubeType)]
struct Gradients<E: Float> {
    dk: Array<f32>,
    dv: Array<f32>,
    probabilities: Sequence<Array<E>>,
    d_scores: Sequence<Array<E>>,
}

/// Adds to all gradients what the pairs of the block's keys and their queries contribute, of which there is at least one.
#[cube]
fn accumulate<E: Float>(
    gradients: &mut Gradients<E>,
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    sums: &mut Sums,
    column: &KeyTile,
    #[comptime] cfg: PassConfig,
) {
    let values = comptime![2 * cfg.rows() as u32];
    let t = call.lens.t;
    let (group, unit) = warpgroup(2usize);
    let head = column.group * comptime![(cfg.flash.n_heads / cfg.flash.n_kv_heads) as u32];
    let first_row = (column.batch * comptime![cfg.flash.n_heads as u32] + head) * t;
    let mut now = Streamed { head: 0u32.runtime(), tile: column.first };
    let mut next = advanced(&now, column);
    request_first::<E>(memory, inputs, data, column, &call.lens, cfg);
    if UNIT_POS < values {
        memory.row_values[UNIT_POS as usize] =
            row_value(&data.lse, &data.delta, first_row, &now, t, comptime![cfg.rows()]);
    }
    sync_cube();

    let operands = operands::<E>(&*memory, group, cfg);
    memory.resident.index(0usize).wait_parity(0u32);
    let mut sum_before = 0u32.runtime();
    for nth in 0..column.blocks {
        let mut next_value = 0.0f32;
        if nth + 1 < column.blocks {
            next_value = row_value(&data.lse, &data.delta, first_row, &next, t, comptime![cfg.rows()]);
        }
        let values_at = nth % 2 * values + place(unit).column;
        let (mut scores, dp) = scores_and_dp::<E>(&*gradients, &*memory, &operands, nth, cfg);
        hide(&mut scores, now.tile, call, column, cfg);
        let p = add_to_dv::<E>(gradients, &scores, &*memory, &operands, values_at, nth, cfg);
        add_to_dk::<E>(gradients, &p, &dp, memory, &operands, values_at, nth, cfg);
        if UNIT_POS < values {
            memory.row_values[((nth + 1) % 2 * values + UNIT_POS) as usize] = next_value;
        }
        if unit == 0 {
            settle_reads();
        }
        sync_plane();
        sync_async_proxy_shared();
        sync_cube();

        // No thread reads the slots of the turn before any more, nor the memory of its parts.
        request_later::<E>(memory, inputs, data, column, &next, nth, t, cfg);
        let sum = sum_of(column, &now, t, group, cfg);
        let mut added = 0u32.runtime();
        if unit == 0 {
            added = sums.locks[(1 + sum) as usize].load();
        }
        let part = part_of_dq::<E>(&*gradients, &operands, nth, cfg);
        if unit == 0 && nth > 0 {
            pass_lock(&*sums, sum_before);
        }
        sync_plane();
        wait(0usize);
        pin(&part);
        let mut turn = 0u32.runtime();
        if unit == 0 {
            turn = turn_of(now.tile, column, call, cfg);
        }
        add_part::<E>(&part, memory, sums, sum, turn, added, cfg);
        sum_before = sum;
        advance(&mut now, &mut next, column);
    }

    settle::<E>(&gradients.dk, &gradients.d_scores, 0usize);
    settle::<E>(&gradients.dv, &gradients.probabilities, 0usize);
    if unit == 0 {
        pass_lock(&*sums, sum_before);
    }
    sync_plane();
}

/// Requests the keys and values, and the queries and `d_out` of the first two turns.
#[cube]
fn request_first<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    column: &KeyTile,
    lens: &Lens,
    #[comptime] cfg: PassConfig,
) {
    let t = lens.t;
    if UNIT_POS == 0 {
        let first = Streamed { head: 0u32.runtime(), tile: column.first };
        fill_resident::<E>(memory, inputs, column, lens.s, cfg);
        fill_streamed::<E>(memory, &inputs.query, &data.d_out, 0u32, &origin(column, &first, t, cfg), cfg);
        if column.blocks > 1 {
            let at = origin(column, &advanced(&first, column), t, cfg);
            fill_streamed::<E>(memory, &inputs.query, &data.d_out, 1u32, &at, cfg);
        }
    }
    sync_plane();
}

/// Requests the queries and `d_out` of the turn after `next`, which is turn `nth + 1`, if there is one.
#[cube]
fn request_later<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    column: &KeyTile,
    next: &Streamed,
    nth: u32,
    t: u32,
    #[comptime] cfg: PassConfig,
) {
    if UNIT_POS == 0 && nth + 2 < column.blocks {
        let at = origin(column, &advanced(next, column), t, cfg);
        fill_streamed::<E>(memory, &inputs.query, &data.d_out, nth + 2, &at, cfg);
    }
    sync_plane();
}

/// Returns the scores of turn `nth`, and the gradient of their probabilities, whose product is still in flight.
#[cube]
fn scores_and_dp<E: Float>(
    gradients: &Gradients<E>,
    memory: &Memory<E>,
    operands: &Operands,
    nth: u32,
    #[comptime] cfg: PassConfig,
) -> (Array<f32>, Array<f32>) {
    let slot = slot_of(nth, cfg);
    let mut scores = zeros(comptime![cfg.rows()]);
    let mut dp = zeros(comptime![cfg.rows()]);
    await_turn(&memory.loaded, nth, STAGES);
    pin(&scores);
    pin(&dp);
    fence();
    multiply_rows::<E>(&mut scores, operands.keys, operands.query_rows + slot, cfg);
    multiply_rows::<E>(&mut dp, operands.values, operands.d_out_rows + slot, cfg);
    settle::<E>(&gradients.dk, &gradients.d_scores, 1usize);
    pin(&scores);
    (scores, dp)
}

/// Enqueues what the queries of turn `nth` add to dV, and returns their probabilities.
#[cube]
fn add_to_dv<E: Float>(
    gradients: &mut Gradients<E>,
    scores: &Array<f32>,
    memory: &Memory<E>,
    operands: &Operands,
    values_at: u32,
    nth: u32,
    #[comptime] cfg: PassConfig,
) -> Array<f32> {
    let log_sums = row_pairs(&memory.row_values, values_at, comptime![cfg.rows()]);
    let p = exponentials(scores, &log_sums, comptime![cfg.flash.scale() * LOG2_E].runtime());
    round_into::<E>(&p, &mut gradients.probabilities);
    let right = operands.d_out_columns + slot_of(nth, cfg);
    enqueue::<E>(&mut gradients.dv, &gradients.probabilities, right, comptime![query_columns(cfg)]);
    p
}

/// Waits for `dp`, enqueues what the queries of turn `nth` add to dK, and stores the gradients of the scores.
#[cube]
fn add_to_dk<E: Float>(
    gradients: &mut Gradients<E>,
    p: &Array<f32>,
    dp: &Array<f32>,
    memory: &mut Memory<E>,
    operands: &Operands,
    values_at: u32,
    nth: u32,
    #[comptime] cfg: PassConfig,
) {
    // Not for dV.
    wait(1usize);
    pin(dp);
    let deltas = row_pairs(&memory.row_values, values_at + comptime![cfg.rows() as u32], comptime![cfg.rows()]);
    let d_scores = score_gradients(p, dp, &deltas, comptime![cfg.flash.scale()].runtime());
    round_into::<E>(&d_scores, &mut gradients.d_scores);
    let right = operands.query_columns + slot_of(nth, cfg);
    enqueue::<E>(&mut gradients.dk, &gradients.d_scores, right, comptime![query_columns(cfg)]);
    let (group, unit) = warpgroup(2usize);
    store_d_scores::<E>(&gradients.d_scores, &mut memory.d_scores, nth % 2, group, unit, cfg);
}

/// Returns the warpgroup's part of dQ of turn `nth`, whose product is still in flight.
#[cube]
fn part_of_dq<E: Float>(
    gradients: &Gradients<E>,
    operands: &Operands,
    nth: u32,
    #[comptime] cfg: PassConfig,
) -> Array<f32> {
    // Not for dK.
    settle::<E>(&gradients.dv, &gradients.probabilities, 1usize);
    let mut part = zeros(comptime![cfg.part_columns()]);
    pin(&part);
    fence();
    let (left, right) = (operands.d_scores + buffer_of(nth, cfg), operands.key_columns);
    let (scores, keys) = comptime![(panel_of_scores(), key_columns(cfg))];
    #[unroll]
    for step in 0..comptime![KEYS / K_STEP] {
        multiply_shared::<E>(&mut part, left, right, step, scores, keys);
    }
    commit();
    part
}

/// Hides the scores of tile `tile` of queries where the query does not see the key.
#[cube]
fn hide(scores: &mut Array<f32>, tile: u32, call: &Call, column: &KeyTile, #[comptime] cfg: PassConfig) {
    let q0 = tile * comptime![cfg.rows() as u32];
    let edge = q0 < column.from_all
        || q0 + comptime![cfg.rows() as u32] > column.until_all
        || column.k0 + comptime![TILE as u32] > column.keys;
    if comptime![cfg.flash.documents] || edge {
        // Threads of the second warpgroup count 64 rows more.
        let corner = Corner { batch: column.batch, q0, k0: column.nth * comptime![KEYS as u32] };
        hide_queries(scores, &corner, &call.masks, column.keys, &call.lens, comptime![cfg.flash]);
    }
}

/// Enqueues `acc += own * streamed`, of 64 keys or values and the rows of a streamed tile, over the columns of a head.
#[cube]
fn multiply_rows<E: Float>(acc: &mut Array<f32>, own: u32, streamed: u32, #[comptime] cfg: PassConfig) {
    #[unroll]
    for step in 0..comptime![cfg.flash.head_dim / K_STEP] {
        multiply_shared::<E>(acc, own, streamed, step, comptime![key_rows(cfg)], comptime![query_rows(cfg)]);
    }
    commit();
}
