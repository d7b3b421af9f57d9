//! Which keys a tile of queries sees.

use cubecl::prelude::*;

use super::{FlashConfig, Place, TILE};

/// One past the last of `keys` keys that `query` sees.
#[cube]
fn end(query: u32, keys: u32, t: u32, s: u32, #[comptime] cfg: FlashConfig) -> u32 {
    let mut end = keys;
    if comptime![cfg.causal] {
        // Counted from one past T, so that it cannot go below zero.
        end = min(keys, clipped(query + s + 1, t));
    }
    end
}

/// `x - t`, or 0 where that is negative.
#[cube]
pub(super) fn clipped(x: u32, t: u32) -> u32 {
    select(x > t, x - t, 0u32)
}

/// Keys of a batch row.
#[cube]
pub(super) fn key_count(lengths: &[i32], batch: u32, s: u32, #[comptime] cfg: FlashConfig) -> u32 {
    let mut keys = s;
    if comptime![cfg.lengths] {
        keys = u32::cast_from(lengths[batch as usize]);
    }
    keys
}

/// What the unit's two queries see.
#[derive(CubeType)]
pub(super) struct Sight {
    /// One past their last keys.
    end0: u32,
    end1: u32,
    /// Keys before this one are seen by all queries of the tile.
    all_see: u32,
    document0: i32,
    document1: i32,
    /// The batch row's first position, and its last.
    first: u32,
    last: u32,
    /// Streamed blocks of keys that some query of the tile sees.
    pub(super) blocks: u32,
}

#[cube]
pub(super) fn sight(
    lengths: &[i32],
    documents: &[i32],
    batch: u32,
    q0: u32,
    at: &Place,
    t: u32,
    s: u32,
    #[comptime] cfg: FlashConfig,
) -> Sight {
    let keys = key_count(lengths, batch, s, cfg);
    let (first, last) = (batch * t, batch * t + t - 1);
    let mut document0 = 0i32;
    let mut document1 = 0i32;
    if comptime![cfg.documents] {
        document0 = documents[min(first + q0 + at.row, last) as usize];
        document1 = documents[min(first + q0 + at.row + 8, last) as usize];
    }
    Sight {
        end0: end(q0 + at.row, keys, t, s, cfg),
        end1: end(q0 + at.row + 8, keys, t, s, cfg),
        all_see: end(q0, keys, t, s, cfg),
        document0,
        document1,
        first,
        last,
        blocks: (end(q0 + comptime![TILE as u32 - 1], keys, t, s, cfg) + comptime![TILE as u32 - 1])
            / comptime![TILE as u32],
    }
}

/// Writes `hidden` over the values of a 64 x 64 accumulator, queries by keys from `k0` on, whose query does not see the key.
#[cube]
pub(super) fn hide(
    values: &mut Array<f32>,
    hidden: f32,
    sight: &Sight,
    documents: &[i32],
    k0: u32,
    at: &Place,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.documents] || k0 + comptime![TILE as u32] > sight.all_see {
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            let key = k0 + at.column + comptime![(i / 4 * 8 + i % 2) as u32];
            let mut visible = key < if comptime![i % 4 < 2] { sight.end0 } else { sight.end1 };
            if comptime![cfg.documents] {
                let document = if comptime![i % 4 < 2] { sight.document0 } else { sight.document1 };
                visible = visible && documents[min(sight.first + key, sight.last) as usize] == document;
            }
            values[i] = select(visible, values[i], hidden);
        }
    }
}
