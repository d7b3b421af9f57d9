//! Which keys a tile of queries sees, and which queries see a tile of keys.

use cubecl::prelude::*;

use super::arguments::{Lens, Masks};
use super::config::{FlashConfig, TILE};
use super::position::{Place, QueryTile, place, tiles, unit_here};

/// A masked score: -2^100. It is finite, so that a row without keys stays finite. It is a power of two, so that its
/// product with the scale is exact and the difference of two masked scores is 0.
pub(crate) const MASKED: f32 = -1_267_650_600_228_229_401_496_703_205_376.0;

/// A score whose exponential is 0 even after a masked score was subtracted: -2^126.
pub(crate) const HIDDEN: f32 = -85_070_591_730_234_615_865_843_651_857_942_052_864.0;

/// Returns one past the last of `keys` keys that `query` sees.
#[cube]
fn end(query: u32, keys: u32, lens: &Lens, #[comptime] cfg: FlashConfig) -> u32 {
    let mut end = keys;
    if comptime![cfg.causal] {
        // Counted from one past T, so that it cannot go below zero.
        end = min(keys, clipped(query + lens.s + 1, lens.t));
    }
    end
}

/// Returns the first key that a query sees, whose last key is the one before `end`.
#[cube]
fn start(end: u32, #[comptime] cfg: FlashConfig) -> u32 {
    let mut start = 0u32;
    if comptime![cfg.window.is_some()] {
        start = clipped(end, comptime![cfg.window_or_0()].runtime());
    }
    start
}

/// Returns `x - t`, or 0 if that is negative.
#[cube]
pub(crate) fn clipped(x: u32, t: u32) -> u32 {
    select(x > t, x - t, 0u32)
}

/// Returns the number of keys of a batch row.
#[cube]
pub(crate) fn key_count(masks: &Masks, batch: u32, lens: &Lens, #[comptime] cfg: FlashConfig) -> u32 {
    let mut keys = lens.s;
    if comptime![cfg.lengths] {
        keys = u32::cast_from(masks.lengths[batch as usize]);
    }
    keys
}

/// The keys that a thread's two queries see.
#[derive(CubeType)]
pub(crate) struct Sight {
    /// One past their last keys.
    end0: u32,
    end1: u32,
    /// All queries of the tile see the keys from `all_from` to before `all_see`.
    all_from: u32,
    all_see: u32,
    document0: i32,
    document1: i32,
    /// The batch row's first position, and its last.
    first: u32,
    last: u32,
    /// The first tile of keys that at least one query of the block sees, and the number of such tiles.
    pub(crate) first_tile: u32,
    pub(crate) blocks: u32,
}

/// Returns the tile of keys of turn `nth`, of those that the block sees.
#[cube]
pub(crate) fn key_tile_of(sight: &Sight, nth: u32, #[comptime] cfg: FlashConfig) -> u32 {
    if comptime![cfg.window.is_some()] { sight.first_tile + nth } else { nth }
}

/// Returns the sight of the thread's queries of a tile.
#[cube]
pub(crate) fn sight(masks: &Masks, block: &QueryTile, at: &Place, lens: &Lens, #[comptime] cfg: FlashConfig) -> Sight {
    let keys = key_count(masks, block.batch, lens, cfg);
    let (first, last) = (block.batch * lens.t, block.batch * lens.t + lens.t - 1);
    let mut document0 = 0i32;
    let mut document1 = 0i32;
    if comptime![cfg.documents] {
        document0 = masks.documents[min(first + block.q0 + at.row, last) as usize];
        document1 = masks.documents[min(first + block.q0 + at.row + 8, last) as usize];
    }
    let last_of_tile = end(block.q0 + comptime![TILE as u32 - 1], keys, lens, cfg);
    let first_of_block = end(block.q0 - block.before, keys, lens, cfg);
    let first_tile = start(first_of_block, cfg) / comptime![TILE as u32];
    Sight {
        end0: end(block.q0 + at.row, keys, lens, cfg),
        end1: end(block.q0 + at.row + 8, keys, lens, cfg),
        all_from: start(last_of_tile, cfg),
        all_see: end(block.q0, keys, lens, cfg),
        document0,
        document1,
        first,
        last,
        first_tile,
        blocks: tiles(end(block.q0 + block.rest, keys, lens, cfg)) - first_tile,
    }
}

/// Overwrites the values of an accumulator, 64 queries by the keys from `k0` on, with `hidden` where the query does not see
/// the key.
#[cube]
pub(crate) fn hide(
    values: &mut Array<f32>,
    hidden: f32,
    sight: &Sight,
    masks: &Masks,
    k0: u32,
    at: &Place,
    #[comptime] cfg: FlashConfig,
) {
    let held = values.len();
    let mut some_hidden = k0 + comptime![2 * held as u32] > sight.all_see;
    if comptime![cfg.window.is_some()] {
        some_hidden = some_hidden || k0 < sight.all_from;
    }

    if comptime![cfg.documents] || some_hidden {
        #[unroll]
        for i in 0..held {
            let key = k0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
            let end = if comptime![i % 4 < 2] { sight.end0 } else { sight.end1 };
            let mut visible = key < end;
            if comptime![cfg.window.is_some()] {
                visible = visible && key >= start(end, cfg);
            }
            if comptime![cfg.documents] {
                let document = if comptime![i % 4 < 2] { sight.document0 } else { sight.document1 };
                visible = visible && masks.documents[min(sight.first + key, sight.last) as usize] == document;
            }
            values[i] = select(visible, values[i], hidden);
        }
    }
}

/// Returns one past the last query that sees `key`, of a batch row of `keys` keys: later ones have windows that begin after it.
#[cube]
pub(crate) fn queries_end(key: u32, keys: u32, lens: &Lens, #[comptime] cfg: FlashConfig) -> u32 {
    let mut end = lens.t;
    if comptime![cfg.window.is_some()] {
        let key_end = key + comptime![cfg.window_or_0()];
        let mut before_last = 0u32;
        if comptime![cfg.causal] {
            before_last = min(clipped(key_end + lens.t, lens.s), lens.t);
        }
        // A window that ends with the batch row's last key is the window of all queries from there on.
        end = select(key_end >= keys, lens.t, before_last);
    }
    end
}

/// Where an accumulator of 64 keys by queries begins.
#[derive(CubeType)]
pub(crate) struct Corner {
    pub(crate) batch: u32,
    pub(crate) q0: u32,
    pub(crate) k0: u32,
}

/// Overwrites the values of the accumulator at `corner` with [`HIDDEN`] where the query does not see the key. The batch
/// row has `keys` keys.
#[cube]
pub(crate) fn hide_queries(
    values: &mut Array<f32>,
    corner: &Corner,
    masks: &Masks,
    keys: u32,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    // The thread's two keys, and the first and last queries that see them.
    let at = place(unit_here());
    let key0 = corner.k0 + at.row;
    let key1 = key0 + 8;
    let mut from0 = 0u32;
    let mut from1 = 0u32;
    if comptime![cfg.causal] {
        from0 = clipped(key0 + lens.t, lens.s);
        from1 = clipped(key1 + lens.t, lens.s);
    }
    from0 = select(key0 < keys, from0, lens.t);
    from1 = select(key1 < keys, from1, lens.t);
    let (to0, to1) = (queries_end(key0, keys, lens, cfg), queries_end(key1, keys, lens, cfg));
    let mut document0 = 0i32;
    let mut document1 = 0i32;
    if comptime![cfg.documents] {
        document0 = masks.documents[(corner.batch * lens.t + min(key0, lens.t - 1)) as usize];
        document1 = masks.documents[(corner.batch * lens.t + min(key1, lens.t - 1)) as usize];
    }

    #[unroll]
    for i in 0..values.len() {
        let row = corner.q0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
        let from = if comptime![i % 4 < 2] { from0 } else { from1 };
        let to = if comptime![i % 4 < 2] { to0 } else { to1 };
        let mut visible = row >= from && row < to;
        if comptime![cfg.documents] {
            let document = if comptime![i % 4 < 2] { document0 } else { document1 };
            visible = visible && masks.documents[(corner.batch * lens.t + min(row, lens.t - 1)) as usize] == document;
        }
        values[i] = select(visible, values[i], f32::cast_from(comptime![HIDDEN]));
    }
}
