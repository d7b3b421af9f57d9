//! Where a block's tile lies, and where a thread stands in it.

use cubecl::prelude::*;

use super::arguments::Call;
use super::config::{FlashConfig, TILE, UNITS};
use crate::gpu::traversal::from_last;

/// A thread's place in a 64-row accumulator: it holds rows `row` and `row + 8`, and columns `column + 8 n` and
/// `column + 8 n + 1`.
#[derive(CubeType)]
pub(crate) struct Place {
    pub(crate) row: u32,
    pub(crate) column: u32,
}

/// Returns the place of thread `unit`.
#[cube]
pub(crate) fn place(unit: u32) -> Place {
    Place { row: unit / 32 * 16 + unit % 32 / 4, column: unit % 4 * 2 }
}

/// Returns `UNIT_POS` through a shuffle, so that the compiler recomputes values derived from it where they are needed,
/// instead of keeping them across a loop.
#[cube]
pub(crate) fn unit_here() -> u32 {
    plane_shuffle(UNIT_POS, UNIT_POS % 32)
}

/// Returns the warpgroup of this thread in a block of `groups`, and the thread's number there.
#[cube]
pub(crate) fn warpgroup(#[comptime] groups: usize) -> (u32, u32) {
    if comptime![groups == 1] {
        (0u32.runtime(), UNIT_POS)
    } else {
        // The same number on every lane; the broadcast tells the assembler so.
        (plane_broadcast(UNIT_POS / comptime![UNITS], 0u32), UNIT_POS % comptime![UNITS])
    }
}

/// Returns `x`, which is the same on all lanes, so that the assembler knows it: loops that it bounds then count once for a warp, and
/// compute descriptors there.
#[cube]
pub(crate) fn uniform(x: u32) -> u32 {
    plane_ballot(x >> UNIT_POS_PLANE & 1 == 1).extract(0usize)
}

/// Returns the block's head (counted over all batch rows) and tile, which may lie beyond the last.
///
/// Blocks start in the order X, Y, Z. Z counts groups of heads, the last first; a group's keys and values stay in L2
/// until its last tile. Y counts groups of tiles. X counts the heads of a group, and the `1 << tile_bits` adjacent
/// tiles of a head.
#[cube]
pub(crate) fn cube_place(call: &Call) -> (u32, u32) {
    let head = from_last(CUBE_POS_Z, CUBE_COUNT_Z) * call.heads_at_once + (CUBE_POS_X >> call.tile_bits);
    let tile = (CUBE_POS_Y << call.tile_bits) + (CUBE_POS_X & ((1u32 << call.tile_bits) - 1));
    (head, tile)
}

/// Returns the number of tiles of `len` rows.
#[cube]
pub(crate) fn tiles(len: u32) -> u32 {
    tiles_of(len, TILE)
}

/// Returns the number of tiles of `rows` rows that `len` rows fill.
#[cube]
pub(crate) fn tiles_of(len: u32, #[comptime] rows: usize) -> u32 {
    (len + comptime![rows as u32 - 1]) / comptime![rows as u32]
}

/// A tile of queries of a head.
#[derive(CubeType)]
pub(crate) struct QueryTile {
    /// The head, counted over all batch rows.
    pub(crate) row_head: u32,
    pub(crate) batch: u32,
    pub(crate) head: u32,
    /// The group of heads that shares keys and values.
    pub(crate) group: u32,
    /// The first query of the tile, counted from the batch row's first.
    pub(crate) q0: u32,
    /// The queries of the block before that one, and from the next one on. Warpgroups of a block share their turns.
    pub(crate) before: u32,
    pub(crate) rest: u32,
}

/// Returns tile `tile` of head `row_head`.
#[cube]
pub(crate) fn query_tile(row_head: u32, tile: u32, #[comptime] cfg: FlashConfig) -> QueryTile {
    let head = row_head % comptime![cfg.n_heads as u32];
    QueryTile {
        row_head,
        batch: row_head / comptime![cfg.n_heads as u32],
        head,
        group: head / comptime![(cfg.n_heads / cfg.n_kv_heads) as u32],
        q0: tile * comptime![TILE as u32],
        before: 0u32.runtime(),
        rest: comptime![TILE as u32 - 1].runtime(),
    }
}

/// Returns the tile of warpgroup `group` of block `nth` of head `row_head`, where the `groups` warpgroups of a block own
/// successive tiles.
#[cube]
pub(crate) fn group_tile(
    row_head: u32,
    nth: u32,
    group: u32,
    #[comptime] groups: usize,
    #[comptime] cfg: FlashConfig,
) -> QueryTile {
    let groups = comptime![groups as u32];
    if comptime![groups == 1] {
        query_tile(row_head, nth, cfg)
    } else {
        let tile = query_tile(row_head, nth * groups + group, cfg);
        QueryTile {
            row_head: tile.row_head,
            batch: tile.batch,
            head: tile.head,
            group: tile.group,
            q0: tile.q0,
            before: group * comptime![TILE as u32],
            rest: comptime![groups * TILE as u32 - 1] - group * comptime![TILE as u32],
        }
    }
}

/// Returns the first column of head `head` in a matrix of queries or results.
#[cube]
pub(crate) fn query_column(head: u32, #[comptime] cfg: FlashConfig) -> u32 {
    head * comptime![cfg.head_dim as u32]
}

/// Returns the first column of the keys of group `group`.
#[cube]
pub(crate) fn key_column(group: u32, #[comptime] cfg: FlashConfig) -> u32 {
    comptime![cfg.first_key_column()] + group * comptime![cfg.head_dim as u32]
}

/// Returns the first column of the values of group `group`.
#[cube]
pub(crate) fn value_column(group: u32, #[comptime] cfg: FlashConfig) -> u32 {
    comptime![cfg.first_value_column()] + group * comptime![cfg.head_dim as u32]
}

/// Where 64 rows of a head lie in a matrix of all heads.
#[derive(CubeType)]
pub(crate) struct Patch {
    /// The matrix row of the batch row's first position.
    pub(crate) first: u32,
    /// The first of the 64 rows, counted from there.
    pub(crate) row0: u32,
    /// Rows of the batch row. The 64 may reach beyond.
    pub(crate) rows: u32,
    pub(crate) column: u32,
}
