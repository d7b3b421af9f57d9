//! The keys of a block, the queries that see them, and how long each block takes.

use cubecl::prelude::*;

use super::PassConfig;
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::config::TILE;
use crate::attention::gpu::shared::key_tile::{KeyTile, Streamed};
use crate::attention::gpu::shared::mask::{clipped, key_count, queries_end};
use crate::attention::gpu::shared::position::tiles_of;

/// Keys of a block.
pub(super) const KEYS: usize = 128;

/// Returns the 64 keys of warpgroup `group` in the block with number `ticket`. Its tiles of queries see keys of the whole block.
#[cube]
pub(super) fn column(ticket: u32, group: u32, call: &Call, #[comptime] cfg: PassConfig) -> KeyTile {
    let rows = comptime![cfg.rows()];
    let flash = comptime![cfg.flash];
    let (t, s) = (call.lens.t, call.lens.s);
    let columns = tiles_of(s, KEYS);
    let row_group = ticket / columns;
    let nth = columns - 1 - ticket % columns;
    let batch = row_group / comptime![flash.n_kv_heads as u32];
    let keys = key_count(&call.masks, batch, &call.lens, flash);

    let block_k0 = nth * comptime![KEYS as u32];
    let k0 = block_k0 + group * comptime![TILE as u32];
    let mut first = 0u32;
    let mut from_all = 0u32;
    if comptime![flash.causal] {
        first = clipped(block_k0 + t, s) / comptime![rows as u32];
        from_all = clipped(k0 + comptime![TILE as u32 - 1] + t, s);
    }
    let end = tiles_of(queries_end(block_k0 + comptime![KEYS as u32 - 1], keys, &call.lens, flash), rows);
    let mut per_head = 0u32;
    if block_k0 < keys && first < end {
        per_head = end - first;
    }
    KeyTile {
        batch,
        group: row_group % comptime![flash.n_kv_heads as u32],
        nth,
        k0,
        keys,
        first,
        end,
        from_all,
        until_all: queries_end(k0, keys, &call.lens, flash),
        blocks: per_head * comptime![(flash.n_heads / flash.n_kv_heads) as u32],
    }
}

/// Where a tile begins in a matrix.
#[derive(CubeType)]
pub(super) struct Origin {
    pub(super) row: u32,
    pub(super) column: u32,
}

/// Returns where a streamed tile begins in the matrices of queries and of `d_out`.
#[cube]
pub(super) fn origin(column: &KeyTile, streamed: &Streamed, t: u32, #[comptime] cfg: PassConfig) -> Origin {
    let head = column.group * comptime![(cfg.flash.n_heads / cfg.flash.n_kv_heads) as u32] + streamed.head;
    let row = column.batch * t + streamed.tile * comptime![cfg.rows() as u32];
    Origin { row, column: head * comptime![cfg.flash.head_dim as u32] }
}

/// Returns the turns of the longest block and of all blocks of one head, of `t` queries and `s` keys that are all there.
pub(super) fn turns_of_a_head(cfg: &PassConfig, [t, s]: [usize; 2]) -> (usize, usize) {
    let (mut longest, mut all) = (0, 0);
    for nth in 0..s.div_ceil(KEYS) {
        let first = if cfg.flash.causal { (nth * KEYS + t).saturating_sub(s) / cfg.rows() } else { 0 };
        let last_key = (nth * KEYS + KEYS).min(s) - 1;
        let end = match cfg.flash.window {
            // Windows that end with the last key are seen by all queries from there on.
            Some(window) if cfg.flash.causal && last_key + (window as usize) < s => {
                (last_key + window as usize + t).saturating_sub(s).min(t).div_ceil(cfg.rows())
            }
            _ => t.div_ceil(cfg.rows()),
        };
        let turns = end.saturating_sub(first);
        longest = longest.max(turns);
        all += turns;
    }
    (longest, all)
}
