//! The sums of dQ: a part of each pair of a tile of queries and a block of keys, added in a fixed order.

use cubecl::prelude::*;

use super::PassConfig;
use super::column::KEYS;
use super::memory::{Memory, Quad, store_part};
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::key_tile::{KeyTile, Streamed};
use crate::attention::gpu::shared::position::{tiles_of, warpgroup};
use crate::gpu::ordered_sum::{add_bulk, await_turn, commit, pass_turn, settle, store_bulk, sync_warpgroup};

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

/// Adds a warpgroup's part to sum `sum` once it is the block's turn, which may be known already from `added`, a count of parts. The
/// move is still in flight when this returns.
#[cube]
pub(super) fn add_part<E: Float>(
    part: &Array<f32>,
    memory: &mut Memory<E>,
    sums: &mut Sums,
    sum: u32,
    turn: u32,
    added: u32,
    #[comptime] cfg: PassConfig,
) {
    let (group, unit) = warpgroup(2usize);
    store_part(part, &mut memory.parts, group, unit, cfg);
    sync_async_proxy_shared();
    sync_warpgroup(1 + group);

    if unit == 0 {
        let quads = comptime![cfg.part_quads()];
        let lock = (1 + sum) as usize;
        let from = group as usize * quads;
        let to = sum as usize * quads;
        if added != turn {
            await_turn(&sums.locks[lock..lock + 1], turn);
        }

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
    }
    sync_plane();
}

/// Waits until this thread's last part has been added to sum `sum`, and passes its lock on.
#[cube]
pub(super) fn pass_lock(sums: &Sums, sum: u32) {
    settle();
    let lock = (1 + sum) as usize;
    pass_turn(&sums.locks[lock..lock + 1]);
}
