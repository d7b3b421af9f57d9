//! Forward of long rows: a warp copies, and two or three warpgroups take turns at the tensor cores.
//!
//! ```text
//!   copying warp   queries; keys n + 1, values n  --TMA-->  slots
//!   warpgroup 0    | scores n, out += P(n-1) V(n-1) |  softmax of scores n  -->  P(n)           |
//!   warpgroup 1                                     | scores n, out += P(n-1) V(n-1) |  softmax ...
//! ```
//!
//! A warpgroup owns 64 queries. While one computes exponentials, the products of another run: they pass the tensor cores on by barriers,
//! as in FlashAttention-3. The copying warp leaves its registers to them, so the kernel is a
//! [program](crate::device_queue::programs).
//!
//! | barrier | waits | signals |
//! |---|---|---|
//! | `queries` | warpgroups, for their queries | TMA |
//! | `keys.loaded`, `values.loaded` | warpgroups, for a slot | TMA |
//! | `keys.free`, `values.free` | the copying warp, before it fills a slot again | each warp, when its product has read the slot |
//! | 1 + g | warpgroup g, before its products of a turn | the warpgroup before, behind its own |

mod compute;
mod copy;
mod launch;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
pub(super) use launch::{launch, serves};

use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs};
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::mask::sight;
use crate::attention::gpu::shared::position::{cube_place, group_tile, place, tiles_of, warpgroup};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::pipeline::{Pipeline, loaded_barriers, pipeline};
use crate::gpu::warpgroups::{keep_24_registers, keep_32_registers, take_160_registers, take_240_registers};

/// Keys of a turn.
const KEYS: usize = 128;
/// Slots of keys, and of values. `benches/results/2026-11-30-h200-attention-programs.md` has no other number.
const STAGES: usize = 2;
/// Columns of a TMA box and of a panel of shared memory: a line of 128 bytes.
const PANEL: usize = 64;

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TurnsConfig {
    pub(super) flash: FlashConfig,
}

impl TurnsConfig {
    /// Returns the warpgroups that multiply: as many as have registers for their sums.
    pub(super) fn groups(&self) -> usize {
        if self.flash.head_dim == 64 { 3 } else { 2 }
    }

    /// Returns the queries of a block.
    fn queries(&self) -> usize {
        self.groups() * TILE
    }

    /// Queries, which a product sums over the columns of.
    fn query_rows(&self) -> WgmmaTileLayout {
        layout(Major::K, self.queries(), self.flash.head_dim)
    }

    /// Keys, which a product sums over the columns of.
    fn key_rows(&self) -> WgmmaTileLayout {
        layout(Major::K, KEYS, self.flash.head_dim)
    }

    /// Values, which a product sums over the rows of.
    fn value_columns(&self) -> WgmmaTileLayout {
        layout(Major::MN, self.flash.head_dim, KEYS)
    }

    /// Returns the elements of a slot.
    fn slot_len(&self) -> usize {
        KEYS * self.flash.head_dim
    }
}

fn layout(major: Major, rows: usize, k: usize) -> WgmmaTileLayout {
    WgmmaTileLayout { major, swizzle: Swizzle::B128, rows, k }
}

/// Computes `out` and the binary logarithm of each query's sum of exponentials.
#[cube(launch_unchecked)]
pub(super) fn attention_in_turns<E: Float>(
    inputs: &Inputs<E>,
    call: &Call,
    out: &mut [Oct<E>],
    lse: &mut [f32],
    #[comptime] cfg: TurnsConfig,
) {
    cubes_at_once(1usize);
    let (row_head, from_last) = cube_place(call);
    let blocks = tiles_of(call.lens.t, comptime![cfg.queries()]);
    if row_head >= call.heads || from_last >= blocks {
        terminate!();
    }
    // Under causality late tiles see the most keys, so they go first.
    let turns = turns(row_head, blocks - 1 - from_last, call, cfg);

    let groups = comptime![cfg.groups()];
    let mut memory = memory::<E>(cfg);
    sync_async_proxy_shared();
    sync_cube();
    let (role, unit) = warpgroup(comptime![groups + 1]);
    if role == comptime![groups as u32] {
        if comptime![groups == 2] {
            keep_24_registers();
        } else {
            keep_32_registers();
        }
        if unit == 0 {
            copy::copy::<E>(&mut memory, inputs, call, &turns, cfg);
        }
    } else {
        if comptime![groups == 2] {
            take_240_registers();
        } else {
            take_160_registers();
        }
        compute::compute::<E>(&memory, call, out, lse, &turns, role, unit, cfg);
    }
}

/// The tiles of a block.
#[derive(CubeType)]
struct Memory<E: Float> {
    queries: Shared<[E]>,
    /// [`STAGES`] slots.
    keys: Shared<[E]>,
    values: Shared<[E]>,
    /// The queries are there.
    loaded: Sequence<Shared<Barrier>>,
    key_slots: Pipeline,
    value_slots: Pipeline,
}

/// Allocates the memory of a block. The caller fences and synchronizes before it is filled.
#[cube]
fn memory<E: Float>(#[comptime] cfg: TurnsConfig) -> Memory<E> {
    let warps = comptime![4 * cfg.groups() as u32];
    Memory::<E> {
        queries: Shared::<[E]>::new_aligned_slice(comptime![cfg.queries() * cfg.flash.head_dim], 1024usize),
        keys: Shared::<[E]>::new_aligned_slice(comptime![STAGES * cfg.slot_len()], 1024usize),
        values: Shared::<[E]>::new_aligned_slice(comptime![STAGES * cfg.slot_len()], 1024usize),
        loaded: loaded_barriers(1usize),
        key_slots: pipeline(STAGES, 1u32, warps),
        value_slots: pipeline(STAGES, 1u32, warps),
    }
}

/// The turns of a block.
#[derive(CubeType)]
struct Turns {
    /// The block's head, counted over all batch rows, and its number there.
    row_head: u32,
    nth: u32,
    /// The first turn's keys, counted in [`KEYS`], and the number of turns. They do not depend on the thread, so that the assembler keeps the
    /// numbers of turns and slots once for a warp.
    first: u32,
    n: u32,
}

#[cube]
fn turns(row_head: u32, nth: u32, call: &Call, #[comptime] cfg: TurnsConfig) -> Turns {
    let flash = comptime![cfg.flash];
    let block = group_tile(row_head, nth, 0u32, comptime![cfg.groups()], flash);
    let sight = sight(&call.masks, &block, &place(0u32), &call.lens, flash);
    let first = sight.first_tile / 2;
    let end = (sight.first_tile + sight.blocks + 1) / 2;
    Turns { row_head, nth, first, n: select(sight.blocks > 0, end - first, 0u32) }
}
