//! A tile of keys, and the tiles of queries that are streamed past it: 64 queries each, or `rows`.

use cubecl::prelude::*;

use super::arguments::Call;
use super::config::{FlashConfig, TILE};
use super::mask::{Corner, clipped, hide_queries, key_count, queries_end};
use super::position::tiles_of;

/// A tile of keys of a group of heads, and the queries that see it.
#[derive(CubeType)]
pub(crate) struct KeyTile {
    pub(crate) batch: u32,
    pub(crate) group: u32,
    /// The number of the tile, and its first key.
    pub(crate) nth: u32,
    pub(crate) k0: u32,
    /// Keys of the batch row.
    pub(crate) keys: u32,
    /// Tiles of queries from `first` to before `end` see some of the keys.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// Queries from `from_all` to before `until_all` see all of them.
    pub(crate) from_all: u32,
    pub(crate) until_all: u32,
    /// Tiles of queries of all heads of the group.
    pub(crate) blocks: u32,
}

/// Returns tile `nth` of group `row_group`.
#[cube]
pub(crate) fn key_tile(
    row_group: u32,
    nth: u32,
    call: &Call,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) -> KeyTile {
    let (t, s) = (call.lens.t, call.lens.s);
    let group = row_group % comptime![cfg.n_kv_heads as u32];
    let batch = row_group / comptime![cfg.n_kv_heads as u32];
    // Under causality the most queries see early keys, so they go first.
    let k0 = nth * comptime![TILE as u32];
    let keys = key_count(&call.masks, batch, &call.lens, cfg);
    let mut first = 0u32;
    let mut from_all = 0u32;
    if comptime![cfg.causal] {
        first = clipped(k0 + t, s) / comptime![rows as u32];
        from_all = clipped(k0 + comptime![TILE as u32 - 1] + t, s);
    }

    let end = tiles_of(queries_end(k0 + comptime![TILE as u32 - 1], keys, &call.lens, cfg), rows);
    let until_all = queries_end(k0, keys, &call.lens, cfg);
    let mut per_head = 0u32;
    if k0 < keys && first < end {
        per_head = end - first;
    }
    let blocks = per_head * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    KeyTile { batch, group, nth, k0, keys, first, end, from_all, until_all, blocks }
}

/// Hides the scores of queries from `q0` on where the query does not see the key, if there may be such a score.
#[cube]
pub(crate) fn hide_at_edges(
    scores: &mut Array<f32>,
    q0: u32,
    call: &Call,
    block: &KeyTile,
    #[comptime] cfg: FlashConfig,
) {
    let held = scores.len();
    let edge = q0 < block.from_all
        || q0 + comptime![2 * held as u32] > block.until_all
        || block.k0 + comptime![TILE as u32] > block.keys;
    if comptime![cfg.documents] || edge {
        let corner = Corner { batch: block.batch, q0, k0: block.k0 };
        hide_queries(scores, &corner, &call.masks, block.keys, &call.lens, cfg);
    }
}

/// A streamed tile of queries, and its head within the group.
#[derive(CubeType)]
pub(crate) struct Streamed {
    pub(crate) head: u32,
    pub(crate) tile: u32,
}

/// Returns the tile after `streamed`.
#[cube]
pub(crate) fn advanced(streamed: &Streamed, block: &KeyTile) -> Streamed {
    let last = streamed.tile + 1 == block.end;
    Streamed { head: streamed.head + u32::cast_from(last), tile: select(last, block.first, streamed.tile + 1) }
}

/// Moves both tiles on by one.
#[cube]
pub(crate) fn advance(now: &mut Streamed, next: &mut Streamed, block: &KeyTile) {
    now.head = next.head;
    now.tile = next.tile;
    let after = advanced(&*now, block);
    next.head = after.head;
    next.tile = after.tile;
}

/// Returns row and column of a streamed tile in the matrices of queries and of `d_out`.
#[cube]
pub(crate) fn streamed_at(block: &KeyTile, streamed: &Streamed, t: u32, #[comptime] cfg: FlashConfig) -> (u32, u32) {
    let first = block.group * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32] * comptime![cfg.head_dim as u32];
    let row = block.batch * t + streamed.tile * comptime![TILE as u32];
    (row, first + streamed.head * comptime![cfg.head_dim as u32])
}

/// Loads this thread's number of a streamed tile of queries: a log-sum in threads below `rows`, a delta in the others.
#[cube]
pub(crate) fn row_value(
    lse: &[f32],
    delta: &[f32],
    first_row: u32,
    streamed: &Streamed,
    t: u32,
    #[comptime] rows: usize,
) -> f32 {
    let row = streamed.tile * comptime![rows as u32] + UNIT_POS % comptime![rows as u32];
    let at = (first_row + streamed.head * t + row) as usize;
    let mut value = 0.0f32;
    if row < t {
        if UNIT_POS < comptime![rows as u32] {
            value = lse[at];
        } else {
            value = delta[at];
        }
    }
    value
}
