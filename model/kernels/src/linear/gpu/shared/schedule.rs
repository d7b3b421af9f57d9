//! Which output tiles a block computes, and in which order.
//!
//! The grid is persistent: block `b` of `g` computes tiles `b`, `b + g`, `b + 2 g`, ... A last wave in which most blocks would
//! have no tile is cut into half tiles. Where there are fewer tiles than blocks, K is split, see [`super::split_k`].

use cubecl::prelude::*;

use super::arguments::{GemmSize, SplitKSize};
use super::config::{GemmConfig, TILE_M};
use super::split_k::{Slice, take_slice, turns};

/// A tile, or the half of one, and the K tiles over which it is summed.
#[derive(CubeType)]
pub(crate) struct WorkTile {
    /// Where it begins in the output.
    pub(crate) row0: u32,
    pub(crate) col0: u32,
    /// Its first K tile, and the one after its last.
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Which of the output tile's partial sums this is.
    pub(crate) slice: u32,
}

/// The tiles that a block has before it.
#[derive(CubeType)]
pub(crate) struct Schedule {
    /// The number of the next tile; of the next half tile, counted from `whole` on; or, where K is split, of the block's turn.
    pub(crate) next: u32,
    pub(crate) end: u32,
    /// Tiles that are not halved.
    whole: u32,
    /// Blocks.
    grid: u32,
    tiles_m: u32,
    tiles_n: u32,
    k_tiles: u32,
    split_k: SplitKSize,
}

/// Returns the block's schedule, at its first wave.
#[cube]
pub(crate) fn first_wave(size: &GemmSize, split_k: SplitKSize, #[comptime] cfg: GemmConfig) -> Schedule {
    let tiles_m = (size.m + comptime![TILE_M as u32 - 1]) / comptime![TILE_M as u32];
    let tiles_n = (size.n + comptime![cfg.tile_n as u32 - 1]) / comptime![cfg.tile_n as u32];
    let tiles = tiles_m * tiles_n;
    let grid = CUBE_COUNT as u32;

    let mut next = CUBE_POS as u32;
    let mut whole = tiles;
    if comptime![cfg.half_tiles] {
        whole -= tiles % grid;
    }
    let mut end = whole;
    if comptime![cfg.splits_k()] {
        next = 0u32;
        end = turns(tiles, grid, &split_k);
    }
    Schedule { next, end, whole, grid, tiles_m, tiles_n, k_tiles: size.k_tiles, split_k }
}

/// Moves on to the wave after the one that `cfg` describes, if there is one.
#[cube]
pub(crate) fn next_wave(schedule: &mut Schedule, #[comptime] cfg: GemmConfig) {
    if comptime![cfg.half_tiles && !cfg.is_half()] {
        schedule.next = CUBE_POS as u32;
        schedule.end = 2 * (schedule.tiles_m * schedule.tiles_n - schedule.whole);
    }
}

/// Returns the next tile of the schedule, which moves on.
#[cube]
pub(crate) fn take_tile(schedule: &mut Schedule, #[comptime] cfg: GemmConfig) -> WorkTile {
    let mut work = Slice { tile: schedule.next, from: 0u32.runtime(), to: schedule.k_tiles, slice: 0u32.runtime() };
    if comptime![cfg.splits_k()] {
        let tiles = schedule.tiles_m * schedule.tiles_n;
        take_slice(&mut work, schedule.next, tiles, schedule.grid, schedule.k_tiles, &schedule.split_k);
        schedule.next += 1;
    } else {
        schedule.next += schedule.grid;
    }

    let (from, to, slice) = (work.from, work.to, work.slice);
    if comptime![cfg.is_half()] {
        let half = work.tile;
        let (row0, col0) = tile_origin(schedule.whole + half / 2, &*schedule, cfg);
        WorkTile { row0, col0: col0 + half % 2 * comptime![cfg.columns as u32], from, to, slice }
    } else {
        let (row0, col0) = tile_origin(work.tile, &*schedule, cfg);
        WorkTile { row0, col0, from, to, slice }
    }
}

/// Returns where tile `tile` begins in the output.
#[cube]
pub(crate) fn tile_origin(tile: u32, schedule: &Schedule, #[comptime] cfg: GemmConfig) -> (u32, u32) {
    let (tm, tn) = tile_coordinates(tile, schedule.tiles_m, schedule.tiles_n, cfg.group_m);
    (tm * comptime![TILE_M as u32], tn * comptime![cfg.tile_n as u32])
}

/// Returns row and column of tile `tile`: groups of `group_m` rows of tiles, each walked column by column.
#[cube]
fn tile_coordinates(tile: u32, tiles_m: u32, tiles_n: u32, #[comptime] group_m: u32) -> (u32, u32) {
    let per_group = tiles_n * group_m;
    let group = tile / per_group;
    let first = group * group_m;
    let left = tiles_m - first;
    let within = tile - group * per_group;
    // The multiply warps wait for this between tiles: division by a constant is cheap.
    let mut row = within % group_m;
    let mut column = within / group_m;
    if left < group_m {
        row = within % left;
        column = within / left;
    }
    (first + row, column)
}

/// Returns the number of the tile at row `tm` and column `tn`: the inverse of [`tile_coordinates`].
#[cube]
pub(crate) fn tile_number(tm: u32, tn: u32, tiles_m: u32, tiles_n: u32, #[comptime] group_m: u32) -> u32 {
    let first = tm / group_m * group_m;
    let left = tiles_m - first;
    let rows = select(left < group_m, left, group_m.runtime());
    first * tiles_n + tn * rows + tm - first
}
