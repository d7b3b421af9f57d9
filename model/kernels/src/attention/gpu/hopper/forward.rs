//! Forward: a warpgroup per 64 queries of a head. Two share keys and values of some heads, see [`FlashConfig::forward_groups`].
//!
//! The product with the values is enqueued behind the scores of the next keys and runs during their softmax. The value
//! subtracted from the scores follows their maximum only when that has grown by much, as in FlashAttention-4, so that
//! most tiles need no rescaling.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::results::{Rows, rows, store};
use super::slots::{Slots, arrived, fill, fill_rows, fill_slot, slots};
use super::tile::{copy_operand, enqueue, left_operand, product, product_shared, round_into, scores_of, settle, tile};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens};
use crate::attention::gpu::shared::bound::bound;
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::attention::gpu::shared::dropout::drop_values;
use crate::attention::gpu::shared::mask::{MASKED, Sight, hide, key_tile_of, sight};
use crate::attention::gpu::shared::position::{
    Place, QueryTile, cube_place, group_tile, key_column, place, query_column, tiles_of, value_column, warpgroup,
};
use crate::attention::gpu::shared::relative::{Scores, add_to_rows};
use crate::attention::gpu::shared::softmax::{apply, take_exponentials};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, pin_all, wait, zeros};

/// Computes `out` and the binary logarithm of each query's sum of exponentials.
#[cube(launch_unchecked)]
pub(super) fn attention_forward<E: Float>(
    inputs: &Inputs<E>,
    call: &Call,
    out: &mut [Oct<E>],
    lse: &mut [f32],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.forward_cubes()]);
    let (row_head, from_last) = cube_place(call);
    let blocks = tiles_of(call.lens.t, comptime![cfg.forward_groups() * TILE]);
    if row_head >= call.heads || from_last >= blocks {
        terminate!();
    }
    // Under causality late tiles see the most keys, so they go first.
    let (group, unit) = warpgroup(comptime![cfg.forward_groups()]);
    let block = group_tile(row_head, blocks - 1 - from_last, group, comptime![cfg.forward_groups()], cfg);
    let at = place(unit);
    let sight = sight(&call.masks, &block, &at, &call.lens, cfg);

    let mut memory = Memory::<E> {
        queries: slots::<E>(1usize, comptime![cfg.forward_groups()], cfg),
        keys: slots::<E>(2usize, 1usize, cfg),
        values: slots::<E>(2usize, 1usize, cfg),
    };
    sync_async_proxy_shared();
    sync_cube();
    request_first::<E>(&mut memory, inputs, &block, &sight, &call.lens, cfg);

    let mut rows = rows(cfg);
    if sight.blocks > 0 {
        attend::<E>(&mut rows, &mut memory, inputs, call, &block, &sight, &at, cfg);
    }

    store(&rows, out, lse, call, &block, &at, unit, cfg);
}

/// The tiles of a block: its queries, and two slots each for keys and values.
#[derive(CubeType)]
struct Memory<E: Float> {
    queries: Slots<E>,
    keys: Slots<E>,
    values: Slots<E>,
}

/// Requests the queries, the first keys and values, and the second keys.
#[cube]
fn request_first<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    block: &QueryTile,
    sight: &Sight,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    let column = query_column(block.head, cfg);
    let (keys, values) = (key_column(block.group, cfg), value_column(block.group, cfg));
    if UNIT_POS == 0 && sight.blocks > 0 {
        let from = block.batch * lens.s + key_tile_of(sight, 0u32, cfg) * comptime![TILE as u32];
        let row = block.batch * lens.t + block.q0;
        fill_rows::<E>(&mut memory.queries, &inputs.query, row, column, comptime![cfg.forward_groups()], cfg);
        fill_slot::<E>(&mut memory.keys, 0usize, &inputs.key_value, from, keys, cfg);
        fill_slot::<E>(&mut memory.values, 0usize, &inputs.key_value, from, values, cfg);
        if sight.blocks > 1 {
            fill_slot::<E>(&mut memory.keys, 1usize, &inputs.key_value, from + comptime![TILE as u32], keys, cfg);
        }
    }
    sync_plane();
}

/// Attends to all keys that the queries see, at least one tile of them.
#[cube]
fn attend<E: Float>(
    rows: &mut Rows,
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    call: &Call,
    block: &QueryTile,
    sight: &Sight,
    at: &Place,
    #[comptime] cfg: FlashConfig,
) {
    let (group, _) = warpgroup(comptime![cfg.forward_groups()]);
    let queries = tile(describe::<E>(&memory.queries.tiles, comptime![cfg.rows_layout()]), group, cfg);
    let keys = describe::<E>(&memory.keys.tiles, comptime![cfg.rows_layout()]);
    let values = describe::<E>(&memory.values.tiles, comptime![cfg.columns_layout()]);
    let mut probabilities = left_operand::<E>(TILE);
    memory.queries.loaded.index(0usize).wait_parity(0u32);
    memory.keys.loaded.index(0usize).wait_parity(0u32);
    let mut scores = scores_of::<E>(queries, keys, cfg);
    take_probabilities(&mut scores, rows, call, block, sight, 0u32, at, cfg);
    // The next left operand, while a product still reads the previous one.
    let mut rounded = left_operand::<E>(TILE);
    round_into::<E>(&scores, &mut rounded);

    for next in 1..sight.blocks {
        let key_slot = arrived::<E>(&memory.keys, next);
        let value_slot = arrived::<E>(&memory.values, next - 1);
        // Wait for the previous product with the values, which ran during the softmax. The assembler would move a
        // wait in the same turn before the softmax.
        settle::<E>(&rows.o, &probabilities, 0usize);
        apply(&rows.rescale, &mut rows.o);
        copy_operand::<E>(&rounded, &mut probabilities);

        let mut scores = zeros(TILE);
        pin(&scores);
        pin_all::<E>(&probabilities);
        pin(&rows.o);
        fence();
        product_shared::<E>(&mut scores, queries, tile(keys, key_slot, cfg), cfg);
        commit();
        let value_tile = tile(values, value_slot, cfg);
        product::<E>(&mut rows.o, &probabilities, value_tile, comptime![cfg.columns_layout()]);
        commit();
        refill::<E>(memory, inputs, block, key_slot, next, sight, &call.lens, cfg);

        // Wait for the scores, not for the values' product.
        wait(1usize);
        pin(&scores);
        take_probabilities(&mut scores, rows, call, block, sight, next, at, cfg);
        round_into::<E>(&scores, &mut rounded);
    }

    // The last product with the values.
    let value_slot = arrived::<E>(&memory.values, sight.blocks - 1);
    settle::<E>(&rows.o, &probabilities, 0usize);
    apply(&rows.rescale, &mut rows.o);
    copy_operand::<E>(&rounded, &mut probabilities);
    enqueue::<E>(&mut rows.o, &probabilities, tile(values, value_slot, cfg), comptime![cfg.columns_layout()]);
    settle::<E>(&rows.o, &probabilities, 0usize);
}

/// Replaces the scores of turn `nth` by probabilities, not yet divided by their sum.
#[cube]
fn take_probabilities(
    scores: &mut Array<f32>,
    rows: &mut Rows,
    call: &Call,
    block: &QueryTile,
    sight: &Sight,
    nth: u32,
    at: &Place,
    #[comptime] cfg: FlashConfig,
) {
    let scale = comptime![cfg.scale() * LOG2_E].runtime();
    let lowest = f32::cast_from(comptime![MASKED]);
    let tile = key_tile_of(sight, nth, cfg);
    bound(scores, cfg);
    let corner = Scores { head: block.head, q0: block.q0, k0: tile * comptime![TILE as u32] };
    add_to_rows(scores, &call.masks, &corner, at, &call.lens, cfg);
    hide(scores, lowest, sight, &call.masks, tile * comptime![TILE as u32], at, cfg);
    take_exponentials(scores, &mut rows.running, &mut rows.rescale, scale);
    if comptime![cfg.dropout] {
        let row = block.row_head * call.lens.t + block.q0 + at.row;
        drop_values(scores, &call.dropout, row, tile, at.column, call.lens.s);
    }
}

/// Requests the values of turn `next`, whose keys are in slot `key_slot`, and the keys of the turn after it.
#[cube]
fn refill<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    block: &QueryTile,
    key_slot: u32,
    next: u32,
    sight: &Sight,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    // No thread reads the keys before these or the values of the previous turn any more.
    sync_cube();
    if UNIT_POS == 0 {
        let from = block.batch * lens.s + key_tile_of(sight, next, cfg) * comptime![TILE as u32];
        fill::<E>(&mut memory.values, key_slot, &inputs.key_value, from, value_column(block.group, cfg), cfg);
        if next + 1 < sight.blocks {
            let from = from + comptime![TILE as u32];
            fill::<E>(&mut memory.keys, 1 - key_slot, &inputs.key_value, from, key_column(block.group, cfg), cfg);
        }
    }
    sync_plane();
}
