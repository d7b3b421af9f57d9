//! The kernel: a block per 128 keys.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::PassConfig;
use super::column::{KEYS, column, origin};
use super::memory::{
    BUFFERS, Memory, Operands, STAGES, buffer_of, fill_resident, fill_streamed, key_columns, key_rows, memory,
    operands, panel_of_scores, query_columns, query_rows, slot_of, store_d_scores,
};
use super::sums::{Sums, add_parts, pass_part};
use crate::attention::gpu::hopper::key_value_gradient::QueryData;
use crate::attention::gpu::hopper::tile::{enqueue, left_operand, round_into, settle};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens};
use crate::attention::gpu::shared::config::TILE;
use crate::attention::gpu::shared::key_tile::{KeyTile, Streamed, advance, advanced};
use crate::attention::gpu::shared::mask::{Corner, hide_queries};
use crate::attention::gpu::shared::position::{Patch, key_column, place, uniform, value_column, warpgroup};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::pipeline::{arrive_at_turn, await_turn};
use crate::gpu::warpgroups::{keep_24_registers, take_240_registers};
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

    let (role, unit) = warpgroup(3usize);
    let (role, ticket) = (uniform(role), uniform(ticket[0]));
    if role == 2 {
        keep_24_registers();
        serve::<E>(&mut memory, inputs, data, call, sums, ticket, unit, cfg);
    } else {
        take_240_registers();
        compute::<E>(&mut memory, call, d_key_value, ticket, role, unit, cfg);
    }
}

/// What the warps of the third warpgroup do: one copies, and two add up.
#[cube]
fn serve<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    sums: &mut Sums,
    ticket: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    let column = column(ticket, 0u32, call, cfg);
    if unit == 0 {
        copy::<E>(memory, inputs, data, &column, &call.lens, cfg);
    } else if unit == 32 {
        add_parts::<E>(memory, sums, &column, call, 0usize, cfg);
    } else if unit == 64 {
        add_parts::<E>(memory, sums, &column, call, 1usize, cfg);
    } else if unit >= 96 {
        load_values::<E>(memory, data, &column, unit - 96, call.lens.t, cfg);
    }
}

/// Loads the log-sums and deltas of the queries of all turns. For one warp.
#[cube]
fn load_values<E: Float>(
    memory: &mut Memory<E>,
    data: &QueryData<E>,
    column: &KeyTile,
    lane: u32,
    t: u32,
    #[comptime] cfg: PassConfig,
) {
    let rows = comptime![cfg.rows()];
    let head = column.group * comptime![(cfg.flash.n_heads / cfg.flash.n_kv_heads) as u32];
    let first_row = (column.batch * comptime![cfg.flash.n_heads as u32] + head) * t;
    let mut now = Streamed { head: 0u32.runtime(), tile: column.first };
    let mut next = advanced(&now, column);
    for nth in 0..column.blocks {
        let mut log_sums = Array::<f32>::new(comptime![rows / 32]);
        let mut deltas = Array::<f32>::new(comptime![rows / 32]);
        #[unroll]
        for i in 0..comptime![rows / 32] {
            let row = now.tile * comptime![rows as u32] + lane + comptime![32 * i as u32];
            let at = (first_row + now.head * t + min(row, t - 1)) as usize;
            log_sums[i] = data.lse[at];
            deltas[i] = data.delta[at];
        }

        let slot = await_turn(&memory.streamed.free, nth + comptime![STAGES as u32], STAGES);
        #[unroll]
        for i in 0..comptime![rows / 32] {
            let at = slot * comptime![2 * rows as u32] + lane + comptime![32 * i as u32];
            memory.row_values[at as usize] = log_sums[i];
            memory.row_values[(at + comptime![rows as u32]) as usize] = deltas[i];
        }
        sync_plane();
        if lane == 0 {
            #[unroll]
            for s in 0..STAGES {
                if slot == comptime![s as u32] {
                    memory.streamed.loaded.index(s).arrive();
                }
            }
        }
        sync_plane();
        advance(&mut now, &mut next, column);
    }
}

/// Requests the keys and values, and the queries and `d_out` of all turns. For one thread.
#[cube]
fn copy<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    column: &KeyTile,
    lens: &Lens,
    #[comptime] cfg: PassConfig,
) {
    let mut now = Streamed { head: 0u32.runtime(), tile: column.first };
    let mut next = advanced(&now, column);
    if column.blocks > 0 {
        fill_resident::<E>(memory, inputs, column, lens.s, cfg);
    }
    for nth in 0..column.blocks {
        // A fresh slot is free, which counts as a phase.
        await_turn(&memory.streamed.free, nth + comptime![STAGES as u32], STAGES);
        let from = origin(column, &now, lens.t, cfg);
        fill_streamed::<E>(memory, &inputs.query, &data.d_out, nth, &from, cfg);
        advance(&mut now, &mut next, column);
    }
}

/// Computes the gradients of the keys and values of warpgroup `group`, and its parts of dQ.
#[cube]
fn compute<E: Float>(
    memory: &mut Memory<E>,
    call: &Call,
    d_key_value: &mut [Oct<E>],
    ticket: u32,
    group: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    let column = column(ticket, group, call, cfg);
    let mut gradients = Gradients::<E> {
        dk: zeros(comptime![cfg.flash.head_dim]),
        dv: zeros(comptime![cfg.flash.head_dim]),
        probabilities: left_operand::<E>(comptime![cfg.rows()]),
        d_scores: left_operand::<E>(comptime![cfg.rows()]),
    };
    if column.blocks > 0 {
        accumulate::<E>(&mut gradients, memory, call, &column, group, unit, cfg);
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
    call: &Call,
    column: &KeyTile,
    group: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    let mut now = Streamed { head: 0u32.runtime(), tile: column.first };
    let mut next = advanced(&now, column);
    let operands = operands::<E>(&*memory, group, cfg);
    memory.resident.index(0usize).wait_parity(0u32);
    for nth in 0..column.blocks {
        let (mut scores, dp) = scores_and_dp::<E>(&*gradients, &*memory, &operands, nth, cfg);
        let values_at = nth % comptime![STAGES as u32] * comptime![2 * cfg.rows() as u32] + place(unit).column;
        hide(&mut scores, now.tile, call, column, cfg);
        let p = add_to_dv::<E>(gradients, &scores, &*memory, &operands, values_at, nth, cfg);
        take_d_scores::<E>(gradients, &p, &dp, &*memory, values_at, cfg);
        share_d_scores::<E>(&*gradients, memory, nth, group, unit, cfg);

        let right = operands.query_columns + slot_of(nth, cfg);
        enqueue::<E>(&mut gradients.dk, &gradients.d_scores, right, comptime![query_columns(cfg)]);
        // The part of the turn before, of which there is none at first: its sum is not passed on.
        settle::<E>(&gradients.dv, &gradients.probabilities, 1usize);
        let part = part_of_dq::<E>(&operands, nth + comptime![BUFFERS as u32 - 1], cfg);
        settle::<E>(&gradients.dk, &gradients.d_scores, 0usize);
        pin(&part);
        arrive_at_turn(&memory.streamed.free, nth, STAGES);
        if nth > 0 {
            pass_part::<E>(&part, memory, nth - 1, group, unit, cfg);
        }
        advance(&mut now, &mut next, column);
    }

    let last = column.blocks - 1;
    await_turn(&memory.scores_of.loaded, last, BUFFERS);
    let part = part_of_dq::<E>(&operands, last, cfg);
    settle::<E>(&gradients.dk, &gradients.d_scores, 0usize);
    settle::<E>(&gradients.dv, &gradients.probabilities, 0usize);
    pin(&part);
    pass_part::<E>(&part, memory, last, group, unit, cfg);
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
    await_turn(&memory.streamed.loaded, nth, STAGES);
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

/// Waits for `dp`, and takes the gradients of the scores.
#[cube]
fn take_d_scores<E: Float>(
    gradients: &mut Gradients<E>,
    p: &Array<f32>,
    dp: &Array<f32>,
    memory: &Memory<E>,
    values_at: u32,
    #[comptime] cfg: PassConfig,
) {
    // Not for dV.
    wait(1usize);
    pin(dp);
    let deltas = row_pairs(&memory.row_values, values_at + comptime![cfg.rows() as u32], comptime![cfg.rows()]);
    let d_scores = score_gradients(p, dp, &deltas, comptime![cfg.flash.scale()].runtime());
    round_into::<E>(&d_scores, &mut gradients.d_scores);
}

/// Stores the gradients of the scores of turn `nth`, which both warpgroups read.
#[cube]
fn share_d_scores<E: Float>(
    gradients: &Gradients<E>,
    memory: &mut Memory<E>,
    nth: u32,
    group: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    // The other warpgroup has read the buffer of this turn once it has stored the gradients of the turn before.
    if nth > 0 {
        await_turn(&memory.scores_of.loaded, nth - 1, BUFFERS);
    }
    let buffer = nth % comptime![BUFFERS as u32];
    store_d_scores::<E>(&gradients.d_scores, &mut memory.d_scores, buffer, group, unit, cfg);
    sync_async_proxy_shared();
    sync_plane();
    arrive_at_turn(&memory.scores_of.loaded, nth, BUFFERS);
}

/// Returns the warpgroup's part of dQ of turn `nth`, whose product is still in flight.
#[cube]
fn part_of_dq<E: Float>(operands: &Operands, nth: u32, #[comptime] cfg: PassConfig) -> Array<f32> {
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
