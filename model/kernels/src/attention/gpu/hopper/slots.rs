//! Tiles on their way from memory to shared memory: TMA copies into slots, and barriers that say when a slot is loaded.

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::gpu::pipeline::loaded_barriers;

/// Tiles in shared memory, one or more per slot, and the barriers that signal a loaded slot.
#[derive(CubeType)]
pub(super) struct Slots<E: Float> {
    pub(super) tiles: Shared<[E]>,
    pub(super) loaded: Sequence<Shared<Barrier>>,
}

/// Allocates `n` slots of `per_slot` tiles. The caller fences and synchronizes before it fills them.
#[cube]
pub(super) fn slots<E: Float>(
    #[comptime] n: usize,
    #[comptime] per_slot: usize,
    #[comptime] cfg: FlashConfig,
) -> Slots<E> {
    let tiles = Shared::<[E]>::new_aligned_slice(comptime![n * per_slot * cfg.tile_len()], 1024usize);
    Slots::<E> { tiles, loaded: loaded_barriers(n) }
}

/// Requests the tile of slot `slot` of two, from matrix row `row` and column `column` of `map`. For thread 0 only. Rows
/// of the next sequence, behind the end of this one, give results that are never stored.
#[cube]
pub(super) fn fill<E: Float>(
    slots: &mut Slots<E>,
    slot: u32,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    if slot == 0 {
        fill_slot::<E>(slots, 0usize, map, row, column, cfg);
    } else {
        fill_slot::<E>(slots, 1usize, map, row, column, cfg);
    }
}

/// [`fill`] for a slot that is known at compile time.
#[cube]
pub(super) fn fill_slot<E: Float>(
    slots: &mut Slots<E>,
    #[comptime] slot: usize,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    slots.loaded.index(slot).arrive_and_expect_tx(1, comptime![(2 * cfg.tile_len()) as u32]);
    load::<E>(slots, slot, slot, map, row, column, cfg);
}

/// Requests the tiles of slot 0, one below the other, from matrix row `row` on. For thread 0 only.
#[cube]
pub(super) fn fill_rows<E: Float>(
    slots: &mut Slots<E>,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] tiles: usize,
    #[comptime] cfg: FlashConfig,
) {
    slots.loaded.index(0usize).arrive_and_expect_tx(1, comptime![(2 * tiles * cfg.tile_len()) as u32]);
    #[unroll]
    for i in 0..tiles {
        load::<E>(slots, 0usize, i, map, row + comptime![(i * TILE) as u32], column, cfg);
    }
}

/// [`fill`] for slots of two tiles, one from each map.
#[cube]
pub(super) fn fill_both<E: Float>(
    slots: &mut Slots<E>,
    slot: u32,
    map_a: &TensorMap<E, Tiled>,
    map_b: &TensorMap<E, Tiled>,
    row: u32,
    column_a: u32,
    column_b: u32,
    #[comptime] cfg: FlashConfig,
) {
    if slot == 0 {
        fill_slot_both::<E>(slots, 0usize, map_a, map_b, row, column_a, column_b, cfg);
    } else {
        fill_slot_both::<E>(slots, 1usize, map_a, map_b, row, column_a, column_b, cfg);
    }
}

/// [`fill_both`] for a slot that is known at compile time.
#[cube]
pub(super) fn fill_slot_both<E: Float>(
    slots: &mut Slots<E>,
    #[comptime] slot: usize,
    map_a: &TensorMap<E, Tiled>,
    map_b: &TensorMap<E, Tiled>,
    row: u32,
    column_a: u32,
    column_b: u32,
    #[comptime] cfg: FlashConfig,
) {
    slots.loaded.index(slot).arrive_and_expect_tx(1, comptime![(4 * cfg.tile_len()) as u32]);
    load::<E>(slots, slot, comptime![2 * slot], map_a, row, column_a, cfg);
    load::<E>(slots, slot, comptime![2 * slot + 1], map_b, row, column_b, cfg);
}

/// Waits until the tiles of turn `block` have arrived in their slot of two, and returns the slot.
#[cube]
pub(super) fn arrived<E: Float>(slots: &Slots<E>, block: u32) -> u32 {
    let slot = block % 2;
    let parity = block / 2 % 2;
    if slot == 0 {
        slots.loaded.index(0usize).wait_parity(parity);
    } else {
        slots.loaded.index(1usize).wait_parity(parity);
    }
    slot
}

/// Copies the columns of a head to tile `tile`, in boxes of [`FlashConfig::span`] columns.
#[cube]
fn load<E: Float>(
    slots: &mut Slots<E>,
    #[comptime] slot: usize,
    #[comptime] tile: usize,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    let columns = comptime![cfg.span()];
    #[unroll]
    for span in 0..comptime![cfg.spans()] {
        let from = comptime![tile * cfg.tile_len() + span * TILE * columns];
        let column = column + comptime![(span * columns) as u32];
        slots.loaded.index(slot).tma_load_2d(
            map,
            &mut slots.tiles[from..comptime![from + TILE * columns]],
            row as i32,
            column as i32,
        );
    }
}
