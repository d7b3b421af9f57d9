//! What is done to results between the accumulator and the output.
//!
//! There are two places, and a new epilogue goes to one of them:
//!
//! - **In the registers**, by the multiply warps, in [`rounded`]: bias, ReLU, residual. It delays the next products, so it is for
//!   a few instructions per result. What it reads besides the accumulator must be there in time: [`lane_bias`] is read before a
//!   tile is multiplied, residuals arrive by TMA ([`super::residual`]).
//! - **In shared memory**, by the epilogue warps, in [`activate_vectors`]: activations. They run while the multiply warps work on
//!   the next tile, and may cost as much time as that takes.
//!
//! Either way it is a variant of [`Epilogue`](crate::linear::gpu::shared::config::Epilogue), which decides the warps of a block and its buffers in
//! shared memory, and of [`EpilogueArguments`](crate::linear::gpu::EpilogueArguments), which carries its tensors. An epilogue in
//! registers also goes into `shared/split_k_sum.rs`; `Plan::with_epilogue_warps` keeps split products away from
//! the epilogue warps.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl_ir::types::MatrixIdent;

use super::accumulator::{pair, thread_in_warpgroup};
use super::memory::Memory;
use super::store::store_panel_pair;
use crate::activation::gpu::activated;
use crate::gpu::pipeline::{Phases, Pipeline, phases, wait_next};
use crate::linear::gpu::shared::arguments::Results;
use crate::linear::gpu::shared::config::{EPILOGUE_THREADS, GemmConfig, PANEL, PANEL_OCTS, WARPGROUPS};
use crate::linear::gpu::shared::relu::positive;
use crate::linear::gpu::shared::schedule::{Schedule, WorkTile, take_tile};
use crate::linear::gpu::shared::vectors::{Oct, Pair};

/// Vectors that an epilogue thread has in flight.
const OCTS_IN_FLIGHT: usize = 5;

/// Reads the bias of the columns from `col0` on, distributed over the warp: each lane holds one pair of every panel. Read before
/// a tile is multiplied, it is there when the tile is done.
#[cube]
pub(crate) fn lane_bias<E: Float>(bias: &[Pair<E>], col0: u32, n: u32, #[comptime] cfg: GemmConfig) -> Array<Pair<E>> {
    let panels = comptime![cfg.panels_across()];
    let mut held = Array::<Pair<E>>::new(panels);
    #[unroll]
    for panel in 0..panels {
        let col = col0 + comptime![(panel * PANEL) as u32] + 2 * UNIT_POS_PLANE;
        // Columns beyond the matrix are not stored; they read the first bias.
        held[panel] = bias[(select(col < n, col, 0u32) / 2) as usize];
    }
    held
}

/// Returns the bias of the thread's results in columns `8 group` of a panel, from the lane that holds it.
#[cube]
fn bias_of_columns<E: Float>(held: Pair<E>, #[comptime] group: usize) -> Pair<f32> {
    let bits = plane_shuffle(u32::reinterpret(held), comptime![4 * group as u32] + UNIT_POS_PLANE % 4);
    Pair::cast_from(Pair::<E>::reinterpret(bits))
}

/// Applies the epilogue in registers to an accumulator of 64 rows per warpgroup, and passes the results on to the warps that
/// store them or have another epilogue to apply, in panels of 64 columns.
///
/// Each warp writes its 16 rows, four 8 x 8 matrices at a time: `stmatrix`, whose registers are laid out as an accumulator's.
/// A thread gives the address of one of their rows.
#[cube]
pub(crate) fn write_panels<E: Float>(
    acc: &Array<f32>,
    memory: &mut Memory<E>,
    panels: &Pipeline,
    free: &mut Phases,
    warpgroup: u32,
    bias: &Array<Pair<E>>,
    #[comptime] cfg: GemmConfig,
) {
    let thread = thread_in_warpgroup();
    let layout = comptime![cfg.panel()];
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let row = thread / 32 * 16 + thread % 16;
    let col = thread % 32 / 16 * 8;
    #[unroll]
    for turn in 0..comptime![cfg.panels_across() / cfg.panels_per_group()] {
        let group = comptime![turn % (cfg.panels / cfg.panels_per_group())];
        wait_next(panels.free.index(group), free, group);

        // All residuals are read before the first is written over, so that their latencies overlap.
        let first = warpgroup as usize * comptime![PANEL_OCTS] + comptime![group * cfg.group_octs()];
        let mut places = Array::<usize>::new(comptime![4 * cfg.panels_per_group()]);
        let mut residual = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for nth in 0..comptime![4 * cfg.panels_per_group()] {
            let within = layout.offset(row as usize, (col + comptime![16 * (nth % 4) as u32]) as usize, 2usize) / 8;
            let at = first + comptime![nth / 4 * WARPGROUPS as usize * PANEL_OCTS] + within;
            places[nth] = at;
            if comptime![cfg.adds_residual()] {
                let ident = MatrixIdent::Accumulator;
                residual.push(instruction.load_matrix::<Oct<E>, Const<2>>(
                    &memory.panels[at..at + 1],
                    ident,
                    4usize,
                    false,
                ));
            }
        }

        #[unroll]
        for nth in 0..comptime![4 * cfg.panels_per_group()] {
            let results = rounded::<E>(acc, bias, &residual, turn, nth, cfg);
            let at = places[nth];
            instruction.store_matrix::<Oct<E>, Const<2>>(
                &mut memory.panels[at..at + 1],
                &results,
                MatrixIdent::Accumulator,
                4usize,
                false,
            );
        }

        sync_async_proxy_shared();
        sync_plane();
        if UNIT_POS_PLANE == 0 {
            panels.loaded.index(group).arrive();
        }
    }
}

/// Returns the thread's results in the four 8 x 8 matrices number `nth` of panel group `turn`, after the epilogue in registers.
#[cube]
fn rounded<E: Float>(
    acc: &Array<f32>,
    bias: &Array<Pair<E>>,
    residual: &Sequence<Array<Pair<E>>>,
    #[comptime] turn: usize,
    #[comptime] nth: usize,
    #[comptime] cfg: GemmConfig,
) -> Array<Pair<E>> {
    let panel = comptime![turn * cfg.panels_per_group() + nth / 4];
    let mut results = Array::<Pair<E>>::new(4usize);

    #[unroll]
    for half in 0..2usize {
        let mut added = Pair::<f32>::zeroed();
        if comptime![cfg.has_bias()] {
            added = bias_of_columns::<E>(bias[panel], comptime![nth % 4 * 2 + half]);
        }
        #[unroll]
        for i in 0..2usize {
            let mut result = pair(acc, comptime![panel * 16 + nth % 4 * 4 + half * 2 + i]);
            if comptime![cfg.has_bias()] {
                result += added;
            }
            if comptime![cfg.adds_residual()] {
                result += Pair::cast_from(residual.index(nth)[comptime![half * 2 + i]]);
            }
            if comptime![cfg.is_relu()] {
                result.insert(0usize, positive(result.extract(0usize)));
                result.insert(1usize, positive(result.extract(1usize)));
            }
            results[comptime![half * 2 + i]] = Pair::cast_from(result);
        }
    }
    results
}

/// The epilogue warps: apply the activation to every panel of the schedule's tiles, and store it. Threads wait for each other
/// at `done`.
#[cube]
pub(crate) fn run<E: Float>(
    memory: &mut Memory<E>,
    results: &mut Results<E>,
    panels: &Pipeline,
    done: &Barrier,
    schedule: &mut Schedule,
    #[comptime] cfg: GemmConfig,
) {
    let mut loaded = phases(0u32);
    while schedule.next < schedule.end {
        let tile = take_tile(schedule, cfg);
        #[unroll]
        for panel in 0..comptime![cfg.panels_across()] {
            let group = comptime![panel % cfg.panels / cfg.panels_per_group()];
            if comptime![panel % cfg.panels_per_group() == 0] {
                wait_next(panels.loaded.index(group), &mut loaded, group);
            }
            activate_panel(memory, results, panels, done, &tile, panel, cfg);
        }
    }
}

/// Applies the activation to panel `panel` of a tile, in both warpgroups' rows, and stores the results, with the arguments of
/// the activation if they are kept.
#[cube]
fn activate_panel<E: Float>(
    memory: &mut Memory<E>,
    results: &mut Results<E>,
    panels: &Pipeline,
    done: &Barrier,
    tile: &WorkTile,
    #[comptime] panel: usize,
    #[comptime] cfg: GemmConfig,
) {
    let col = tile.col0 + comptime![(panel * PANEL) as u32];
    let slot = comptime![panel % cfg.panels];
    let octs = comptime![WARPGROUPS as usize * PANEL_OCTS];
    let from = comptime![slot * octs];
    // The first epilogue thread is a multiple of their number.
    let thread = UNIT_POS % EPILOGUE_THREADS;
    if comptime![cfg.keeps_input()] {
        if thread == 0 {
            let (_first, _second) = store_panel_pair(&mut memory.panels, &mut results.auxiliary, tile.row0, col, from);
        }
    }

    // Unrolled whole, the loop would not fit the instruction cache.
    let turns = comptime![octs / (OCTS_IN_FLIGHT * EPILOGUE_THREADS as usize)];
    for turn in 0..turns {
        let nth = thread + turn as u32 * comptime![OCTS_IN_FLIGHT as u32 * EPILOGUE_THREADS];
        activate_vectors(memory, nth, OCTS_IN_FLIGHT, from, cfg);
    }
    let behind = comptime![(turns * OCTS_IN_FLIGHT) as u32 * EPILOGUE_THREADS];
    if thread < comptime![octs as u32 - behind] {
        activate_vectors(memory, thread + behind, 1usize, from, cfg);
    }

    sync_async_proxy_shared();
    done.arrive();
    done.wait_parity(comptime![if cfg.keeps_input() { 0u32 } else { panel as u32 % 2 }]);
    if thread == 0 {
        if comptime![cfg.keeps_input()] {
            let (_first, second) = store_panel_pair(&mut memory.activated, &mut results.c, tile.row0, col, 0usize);
            second.wait();
        } else {
            let (_first, second) = store_panel_pair(&mut memory.panels, &mut results.c, tile.row0, col, from);
            second.wait();
        }
        if comptime![(panel + 1) % cfg.panels_per_group() == 0] {
            panels.free.index(comptime![slot / cfg.panels_per_group()]).arrive();
        }
    }
    if comptime![cfg.keeps_input()] {
        // The buffer of activated results has been read.
        done.arrive();
        done.wait_parity(1u32);
    }
}

/// Applies the activation to `count` vectors of eight results, [`EPILOGUE_THREADS`] apart, from vector `nth` of the panel at
/// `from` on.
#[cube]
fn activate_vectors<E: Float>(
    memory: &mut Memory<E>,
    nth: u32,
    #[comptime] count: usize,
    #[comptime] from: usize,
    #[comptime] cfg: GemmConfig,
) {
    let layout = comptime![cfg.panel()];
    let mut places = Array::<usize>::new(count);
    let mut values = Array::<Vector<f32, Const<8>>>::new(count);
    #[unroll]
    for i in 0..count {
        let nth = nth + comptime![i as u32 * EPILOGUE_THREADS];
        let row = nth / 8;
        let within = layout.offset((row % 64) as usize, (nth % 8 * 8) as usize, 2usize) / 8;
        places[i] = (row / 64) as usize * comptime![PANEL_OCTS] + within;
        let argument = Vector::<f32, Const<8>>::cast_from(memory.panels[from + places[i]]);
        values[i] = activated::<Const<8>>(argument, comptime![cfg.activation()]);
    }

    #[unroll]
    for i in 0..count {
        if comptime![cfg.keeps_input()] {
            memory.activated[places[i]] = Vector::cast_from(values[i]);
        } else {
            memory.panels[from + places[i]] = Vector::cast_from(values[i]);
        }
    }
}
