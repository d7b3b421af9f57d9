//! The copying warp: it runs ahead of the warpgroups as far as there are free slots.

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::{KEYS, Memory, PANEL, STAGES, Turns, TurnsConfig};
use crate::attention::gpu::shared::arguments::{Call, Inputs};
use crate::attention::gpu::shared::position::{group_tile, key_column, query_column, value_column};
use crate::gpu::pipeline::{Pipeline, await_turn};

/// Requests the queries, and the keys and values of all turns. For one thread.
#[cube]
pub(super) fn copy<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    call: &Call,
    turns: &Turns,
    #[comptime] cfg: TurnsConfig,
) {
    let flash = comptime![cfg.flash];
    let block = group_tile(turns.row_head, turns.nth, 0u32, comptime![cfg.groups()], flash);
    let from = block.batch * call.lens.s + turns.first * comptime![KEYS as u32];
    let (key, value) = (key_column(block.group, flash), value_column(block.group, flash));

    if turns.n > 0 {
        let loaded = memory.loaded.index(0usize);
        let row = block.batch * call.lens.t + block.q0;
        let column = query_column(block.head, flash);
        loaded.arrive_and_expect_tx(1, comptime![(2 * cfg.queries() * flash.head_dim) as u32]);
        load::<E>(&inputs.query, &mut memory.queries, loaded, row, column, 0usize, comptime![cfg.queries()], cfg);
        fill::<E>(&mut memory.keys, &memory.key_slots, &inputs.key_value, 0u32, from, key, cfg);
    }
    for next in 1..turns.n {
        let row = from + next * comptime![KEYS as u32];
        fill::<E>(&mut memory.keys, &memory.key_slots, &inputs.key_value, next, row, key, cfg);
        let row = row - comptime![KEYS as u32];
        fill::<E>(&mut memory.values, &memory.value_slots, &inputs.key_value, next - 1, row, value, cfg);
    }
    if turns.n > 0 {
        let last = turns.n - 1;
        let row = from + last * comptime![KEYS as u32];
        fill::<E>(&mut memory.values, &memory.value_slots, &inputs.key_value, last, row, value, cfg);
    }
}

/// Requests the keys or values of turn `turn` once their slot is free.
#[cube]
fn fill<E: Float>(
    tiles: &mut Shared<[E]>,
    slots: &Pipeline,
    map: &TensorMap<E, Tiled>,
    turn: u32,
    row: u32,
    column: u32,
    #[comptime] cfg: TurnsConfig,
) {
    // A fresh slot is free, which counts as a phase.
    await_turn(&slots.free, turn + comptime![STAGES as u32], STAGES);
    #[unroll]
    for slot in 0..STAGES {
        if turn % comptime![STAGES as u32] == comptime![slot as u32] {
            let loaded = slots.loaded.index(slot);
            loaded.arrive_and_expect_tx(1, comptime![(2 * cfg.slot_len()) as u32]);
            load::<E>(map, tiles, loaded, row, column, comptime![slot * cfg.slot_len()], KEYS, cfg);
        }
    }
}

/// Requests `rows` rows of a head, which go to `tiles` from element `at` on.
#[cube]
fn load<E: Float>(
    map: &TensorMap<E, Tiled>,
    tiles: &mut Shared<[E]>,
    loaded: &Barrier,
    row: u32,
    column: u32,
    #[comptime] at: usize,
    #[comptime] rows: usize,
    #[comptime] cfg: TurnsConfig,
) {
    #[unroll]
    for panel in 0..comptime![cfg.flash.head_dim / PANEL] {
        let from = comptime![at + panel * rows * PANEL];
        let column = column + comptime![(panel * PANEL) as u32];
        loaded.tma_load_2d(map, &mut tiles[from..comptime![from + rows * PANEL]], row as i32, column as i32);
    }
}
