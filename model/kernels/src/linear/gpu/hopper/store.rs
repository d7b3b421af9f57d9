//! Stores: the store warp, which sends panels of results to the output by TMA, and f32 sums, which leave the registers directly.

use cubecl::prelude::*;

use super::accumulator::{pair, thread_in_warpgroup};
use super::memory::Memory;
use super::residual::load_residual;
use crate::gpu::pipeline::{Pipeline, phases, wait_next};
use crate::gpu::wgmma::position;
use crate::linear::gpu::shared::arguments::{GemmSize, Results};
use crate::linear::gpu::shared::config::{GemmConfig, PANEL, PANEL_OCTS, WARPGROUPS};
use crate::linear::gpu::shared::schedule::{Schedule, next_wave, take_tile, tile_origin};
use crate::linear::gpu::shared::vectors::{Oct, Pair};

/// Pairs of f32 sums that are read before any of them is written back, so that their latencies overlap.
const PAIRS_IN_FLIGHT: usize = 8;

/// The store warp: stores the panels of every tile of the schedule, and loads the residual of the next tile into each panel
/// group that has been stored.
#[cube]
pub(crate) fn run<E: Float>(
    memory: &mut Memory<E>,
    results: &mut Results<E>,
    panels: &Pipeline,
    schedule: &mut Schedule,
    #[comptime] cfg: GemmConfig,
) {
    if UNIT_POS_PLANE == 0 {
        let mut loaded = phases(0u32);

        // The residual of the first tile.
        if comptime![cfg.adds_residual()] {
            let (row0, col0) = tile_origin(schedule.next, &*schedule, cfg);
            #[unroll]
            for turn in 0..comptime![cfg.panels_across() / cfg.panels_per_group()] {
                let col = col0 + comptime![(turn * cfg.panels_per_group() * PANEL) as u32];
                load_residual(memory, &results.auxiliary, panels, row0, col, turn, cfg);
            }
        }

        #[unroll]
        for wave in 0..comptime![cfg.waves()] {
            let cfg = comptime![cfg.wave(wave)];
            while schedule.next < schedule.end {
                let tile = take_tile(schedule, cfg);
                let (next_row0, next_col0) = tile_origin(schedule.next, &*schedule, cfg);
                #[unroll]
                for turn in 0..comptime![cfg.panels_across() / cfg.panels_per_group()] {
                    let group = comptime![turn % (cfg.panels / cfg.panels_per_group())];
                    wait_next(panels.loaded.index(group), &mut loaded, group);
                    store_group(memory, results, tile.row0, tile.col0, turn, group, cfg);

                    if comptime![cfg.adds_residual()] {
                        if schedule.next < schedule.end {
                            let col = next_col0 + comptime![(turn * cfg.panels_per_group() * PANEL) as u32];
                            load_residual(memory, &results.auxiliary, panels, next_row0, col, group, cfg);
                        }
                    } else {
                        panels.free.index(group).arrive();
                    }
                }
            }
            next_wave(schedule, cfg);
        }
    }
}

/// Stores panel group `turn` of the tile at (`row0`, `col0`), which lies in group `group` of shared memory, and waits until it has
/// been read.
#[cube]
fn store_group<E: Float>(
    memory: &mut Memory<E>,
    results: &mut Results<E>,
    row0: u32,
    col0: u32,
    #[comptime] turn: usize,
    #[comptime] group: usize,
    #[comptime] cfg: GemmConfig,
) {
    let mut stores = Sequence::<Pending<()>>::new();
    #[unroll]
    for i in 0..comptime![cfg.panels_per_group()] {
        let col = col0 + comptime![((turn * cfg.panels_per_group() + i) * PANEL) as u32];
        let from = comptime![group * cfg.group_octs() + i * WARPGROUPS as usize * PANEL_OCTS];
        let (_first, second) = store_panel_pair(&mut memory.panels, &mut results.c, row0, col, from);
        stores.push(second);
    }
    stores.index(comptime![cfg.panels_per_group() - 1]).wait();
}

/// Stores a panel of each warpgroup, from `from` on in shared memory, at (`row0`, `col`) and 64 rows below. Once the second
/// has been read, so has everything that was stored before.
#[cube]
pub(super) fn store_panel_pair<E: Float>(
    panels: &mut Shared<[Oct<E>]>,
    to: &mut TensorMap<E, Tiled>,
    row0: u32,
    col: u32,
    #[comptime] from: usize,
) -> (Pending<()>, Pending<()>) {
    let middle = comptime![from + PANEL_OCTS];
    let end = comptime![middle + PANEL_OCTS];
    let first = tma_store_2d(&panels[from..middle], to, row0 as i32, col as i32);
    let second = tma_store_2d(&panels[middle..end], to, (row0 + 64) as i32, col as i32);
    (first, second)
}

/// Writes an accumulator of 64 rows as f32 at (`row0`, `col0`) of the matrix that begins at `base`, or adds it to the numbers
/// there.
#[cube]
pub(super) fn store_sums(
    acc: &Array<f32>,
    sums: &mut [Pair<f32>],
    base: usize,
    row0: u32,
    col0: u32,
    size: &GemmSize,
    #[comptime] cfg: GemmConfig,
) {
    let thread = thread_in_warpgroup();
    #[unroll]
    for group in 0..comptime![cfg.tile_n / 4 / PAIRS_IN_FLIGHT] {
        let mut before = Array::<Pair<f32>>::new(PAIRS_IN_FLIGHT);
        if comptime![cfg.accumulates()] {
            #[unroll]
            for i in 0..PAIRS_IN_FLIGHT {
                let (r, c) = position(thread, comptime![2 * (group * PAIRS_IN_FLIGHT + i) as u32]);
                let inside = row0 + r < size.m && col0 + c < size.n;
                let at = base + (row0 + r) as usize * size.pitch as usize + (col0 + c) as usize;
                // Outside the matrix the first pair is read, and not used.
                before[i] = sums[select(inside, at, base) / 2];
            }
        }

        #[unroll]
        for i in 0..PAIRS_IN_FLIGHT {
            let nth = comptime![group * PAIRS_IN_FLIGHT + i];
            let (r, c) = position(thread, comptime![2 * nth as u32]);
            let row = row0 + r;
            let col = col0 + c;
            let mut sum = pair(acc, nth);
            if comptime![cfg.accumulates()] {
                sum += before[i];
            }
            if row < size.m && col < size.n {
                sums[(base + row as usize * size.pitch as usize + col as usize) / 2] = sum;
            }
        }
    }
}
