//! The warpgroups: each computes the results of 64 queries.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::{KEYS, Memory, PANEL, STAGES, Turns, TurnsConfig};
use crate::attention::gpu::hopper::results::{Rows, rows, store};
use crate::attention::gpu::hopper::tile::{left_operand, product, round_into, settle};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::config::TILE;
use crate::attention::gpu::shared::mask::{MASKED, Sight, hide, sight};
use crate::attention::gpu::shared::position::{Place, group_tile, place};
use crate::attention::gpu::shared::softmax::{apply, take_exponentials};
use crate::gpu::pipeline::{arrive_at_turn, await_turn};
use crate::gpu::warpgroups::{await_other, pass_to_other};
use crate::gpu::wgmma::{K_STEP, commit, describe, fence, multiply_shared, pin, pin_all, wait, zeros};

/// Computes the results of warpgroup `group`, of which the thread is number `unit`.
#[cube]
pub(super) fn compute<E: Float>(
    memory: &Memory<E>,
    call: &Call,
    out: &mut [Oct<E>],
    lse: &mut [f32],
    turns: &Turns,
    group: u32,
    unit: u32,
    #[comptime] cfg: TurnsConfig,
) {
    let flash = comptime![cfg.flash];
    let block = group_tile(turns.row_head, turns.nth, group, comptime![cfg.groups()], flash);
    let at = place(unit);
    let mut rows = rows(flash);
    if turns.n > 0 {
        let sight = sight(&call.masks, &block, &at, &call.lens, flash);
        attend::<E>(&mut rows, memory, call, turns, &sight, &at, group, cfg);
    }

    store(&rows, out, lse, call, &block, &at, unit, flash);
}

/// Attends to the keys of all turns, of which there is at least one.
#[cube]
fn attend<E: Float>(
    rows: &mut Rows,
    memory: &Memory<E>,
    call: &Call,
    turns: &Turns,
    sight: &Sight,
    at: &Place,
    group: u32,
    #[comptime] cfg: TurnsConfig,
) {
    let own = group * comptime![(TILE * PANEL * 2 / 16) as u32];
    let queries = describe::<E>(&memory.queries, comptime![cfg.query_rows()]) + own;
    let keys = describe::<E>(&memory.keys, comptime![cfg.key_rows()]);
    let values = describe::<E>(&memory.values, comptime![cfg.value_columns()]);
    let slot_len = comptime![(cfg.slot_len() * 2 / 16) as u32];
    let groups = comptime![cfg.groups() as u32];
    let next_group = select(group + 1 == groups, 0u32, group + 1);
    // The first warpgroup has the first turn.
    if group + 1 == groups {
        pass_to_other(1u32);
    }

    let mut probabilities = left_operand::<E>(KEYS);
    memory.loaded.index(0usize).wait_parity(0u32);
    await_turn(&memory.key_slots.loaded, 0u32, STAGES);
    let mut scores = zeros(KEYS);
    pin(&scores);
    fence();
    multiply_rows::<E>(&mut scores, queries, keys, cfg);
    wait(0usize);
    pin(&scores);
    arrive_at_turn(&memory.key_slots.free, 0u32, STAGES);
    take_probabilities(&mut scores, rows, call, turns.first, sight, at, cfg);
    round_into::<E>(&scores, &mut probabilities);

    for next in 1..turns.n {
        let mut scores = zeros(KEYS);
        let key_slot = await_turn(&memory.key_slots.loaded, next, STAGES);
        await_other(1 + group);
        pin(&scores);
        pin_all::<E>(&probabilities);
        pin(&rows.o);
        fence();
        multiply_rows::<E>(&mut scores, queries, keys + key_slot * slot_len, cfg);
        let value_slot = await_turn(&memory.value_slots.loaded, next - 1, STAGES);
        let value = values + value_slot * slot_len;
        product::<E>(&mut rows.o, &probabilities, value, comptime![cfg.value_columns()]);
        commit();
        pass_to_other(1 + next_group);

        // Wait for the scores, not for the values' product.
        wait(1usize);
        pin(&scores);
        arrive_at_turn(&memory.key_slots.free, next, STAGES);
        take_probabilities(&mut scores, rows, call, turns.first + next, sight, at, cfg);
        settle::<E>(&rows.o, &probabilities, 0usize);
        arrive_at_turn(&memory.value_slots.free, next - 1, STAGES);
        apply(&rows.rescale, &mut rows.o);
        round_into::<E>(&scores, &mut probabilities);
    }

    // The last product with the values.
    let value_slot = await_turn(&memory.value_slots.loaded, turns.n - 1, STAGES);
    pin_all::<E>(&probabilities);
    pin(&rows.o);
    fence();
    let value = values + value_slot * slot_len;
    product::<E>(&mut rows.o, &probabilities, value, comptime![cfg.value_columns()]);
    commit();
    settle::<E>(&rows.o, &probabilities, 0usize);
}

/// Enqueues `scores += queries * keys` over the columns of a head.
#[cube]
fn multiply_rows<E: Float>(scores: &mut Array<f32>, queries: u32, keys: u32, #[comptime] cfg: TurnsConfig) {
    #[unroll]
    for step in 0..comptime![cfg.flash.head_dim / K_STEP] {
        multiply_shared::<E>(scores, queries, keys, step, comptime![cfg.query_rows()], comptime![cfg.key_rows()]);
    }
    commit();
}

/// Replaces the scores of the keys with number `nth`, counted in [`KEYS`], by probabilities, not yet divided by their sum.
#[cube]
fn take_probabilities(
    scores: &mut Array<f32>,
    rows: &mut Rows,
    call: &Call,
    nth: u32,
    sight: &Sight,
    at: &Place,
    #[comptime] cfg: TurnsConfig,
) {
    let scale = comptime![cfg.flash.scale() * LOG2_E].runtime();
    let lowest = f32::cast_from(comptime![MASKED]);
    hide(scores, lowest, sight, &call.masks, nth * comptime![KEYS as u32], at, comptime![cfg.flash]);
    take_exponentials(scores, &mut rows.running, &mut rows.rescale, scale);
}
