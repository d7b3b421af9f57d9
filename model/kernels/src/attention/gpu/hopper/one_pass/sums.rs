//! The sums of dQ: a part of each pair of a tile of queries and a block of keys, added in a fixed order.

use cubecl::prelude::*;

use super::PassConfig;
use super::column::KEYS;
use super::memory::{Memory, Quad, store_part};
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::key_tile::{KeyTile, Streamed, advance, advanced};
use crate::attention::gpu::shared::position::tiles_of;
use crate::gpu::ordered_sum::{add_bulk, await_turn, commit, pass_turn, settle, settle_reads, store_bulk};
use crate::gpu::pipeline;

/// The sums of dQ in f32. A tile of queries of a head has one for each warpgroup, in the order of its registers.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Sums {
    pub(super) numbers: Box<[Quad]>,
    /// How many blocks have started, then a lock for each sum.
    pub(super) locks: Box<[Atomic<u32>]>,
}

/// Returns the number of this warpgroup's sum of a tile of queries.
#[cube]
pub(super) fn sum_of(column: &KeyTile, streamed: &Streamed, t: u32, group: u32, #[comptime] cfg: PassConfig) -> u32 {
    let head = column.group * comptime![(cfg.flash.n_heads / cfg.flash.n_kv_heads) as u32] + streamed.head;
    let row_head = column.batch * comptime![cfg.flash.n_heads as u32] + head;
    2 * (row_head * tiles_of(t, comptime![cfg.rows()]) + streamed.tile) + group
}

/// Returns how many blocks add to the sums of tile `tile` of queries before the block of `column` does: all blocks of later keys that they see.
#[cube]
pub(super) fn turn_of(tile: u32, column: &KeyTile, call: &Call, #[comptime] cfg: PassConfig) -> u32 {
    let mut last_key = column.keys - 1;
    if comptime![cfg.flash.causal] {
        let end = (tile + 1) * comptime![cfg.rows() as u32] + call.lens.s;
        last_key = min(last_key, end - 1 - call.lens.t);
    }
    last_key / comptime![KEYS as u32] - column.nth
}

/// Passes the part of warpgroup `group` of turn `nth` to the warp that adds it.
#[cube]
pub(super) fn pass_part<E: Float>(
    part: &Array<f32>,
    memory: &mut Memory<E>,
    nth: u32,
    group: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    // A fresh memory is free, which counts as a phase.
    pipeline::await_turn(&memory.parts_of.free, 2 * (nth + 1) + group, 2usize);
    store_part(part, &mut memory.parts, group, unit, cfg);
    sync_async_proxy_shared();
    sync_plane();
    if UNIT_POS_PLANE == 0 {
        #[unroll]
        for g in 0..2usize {
            if group == comptime![g as u32] {
                memory.parts_of.loaded.index(g).arrive();
            }
        }
    }
    sync_plane();
}

/// Adds the parts of warpgroup `group` to their sums, each once it is the block's turn. For one thread.
#[cube]
pub(super) fn add_parts<E: Float>(
    memory: &mut Memory<E>,
    sums: &mut Sums,
    column: &KeyTile,
    call: &Call,
    #[comptime] group: usize,
    #[comptime] cfg: PassConfig,
) {
    let quads = comptime![cfg.part_quads()];
    let from = comptime![group * cfg.part_quads()];
    let mut now = Streamed { head: 0u32.runtime(), tile: column.first };
    let mut next = advanced(&now, column);

    for nth in 0..column.blocks {
        let sum = sum_of(column, &now, call.lens.t, comptime![group as u32].runtime(), cfg);
        let turn = turn_of(now.tile, column, call, cfg);
        let lock = (1 + sum) as usize;
        let to = sum as usize * quads;

        memory.parts_of.loaded.index(group).wait_parity(nth % 2);
        await_turn(&sums.locks[lock..lock + 1], turn);
        if turn == 0 {
            store_bulk(
                &memory.parts[from..from + quads],
                &mut sums.numbers[to..to + quads],
                comptime![quads as u32 * 16],
            );
        } else {
            add_bulk(
                &memory.parts[from..from + quads],
                &mut sums.numbers[to..to + quads],
                comptime![quads as u32 * 16],
            );
        }

        commit();
        settle_reads();
        memory.parts_of.free.index(group).arrive();
        settle();
        pass_turn(&sums.locks[lock..lock + 1]);
        advance(&mut now, &mut next, column);
    }
}
