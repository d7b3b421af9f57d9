//! The gradient of keys, or of values: a block owns 64 rows of it, and queries are streamed past them. For heads so wide that a thread
//! has registers for one of the two.
//!
//! The gradient of values needs the scores, the one of keys the scores and the gradient of the probabilities. Queries and `d_out`
//! arrive in turn: one tile during the product with the other.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::key_value_gradient::QueryData;
use super::tile::{accumulators, add_products, add_scores, readers, request, row_accumulators, tiles_memory};
use super::{Inputs, streamed_rows};
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::bound::{bound, pass_bound};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::dropout::{kept_bits, kept_values};
use crate::attention::gpu::shared::key_tile::{
    KeyTile, Streamed, advance, advanced, hide_at_edges, key_tile, row_value,
};
use crate::attention::gpu::shared::position::{Patch, cube_place, key_column, place, query_column, value_column};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::gpu::async_copy::{commit, wait};
use crate::gpu::occupancy::cubes_at_once;

/// The tiles of keys and values.
const KEYS: u32 = 0;
const VALUES: u32 = 1;

/// The tiles of a block, and the log-sums and deltas of the streamed queries, in two slots.
#[derive(CubeType)]
struct Memory<E: Float, N: Size> {
    tiles: Shared<[Vector<E, N>]>,
    row_values: Shared<[f32]>,
}

/// Returns the tiles of 64 rows that a block owns: keys, and for their gradient values.
fn own_tiles(of_keys: bool) -> usize {
    if of_keys { 2 } else { 1 }
}

/// Computes the gradient of the keys, or else of the values: a block per 64 keys of a group of heads.
#[cube(launch_unchecked)]
pub(super) fn key_or_value_gradient<E: Float, N: Size>(
    inputs: &Inputs<E, N>,
    data: &QueryData<E, N>,
    call: &Call,
    d_key_value: &mut [Vector<E, N>],
    #[comptime] of_keys: bool,
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(2usize);
    let (row_group, nth) = cube_place(call);
    if row_group >= call.heads || nth * comptime![TILE as u32] >= call.lens.s {
        terminate!();
    }
    let rows = comptime![streamed_rows(own_tiles(of_keys), &cfg)];
    let block = key_tile(row_group, nth, call, rows, cfg);
    let (columns, head_dim) = comptime![(cfg.key_value_columns(), cfg.head_dim)];
    let (first, row0, s) = (block.batch * call.lens.s, block.k0, call.lens.s);
    let keys = Patch { first, row0, rows: s, column: key_column(block.group, cfg) };
    let values = Patch { first, row0, rows: s, column: value_column(block.group, cfg) };

    let mut memory = Memory::<E, N> {
        tiles: tiles_memory::<E, N>(comptime![own_tiles(of_keys) * TILE / rows + 2], rows, cfg),
        row_values: Shared::<[f32]>::new_slice(comptime![2 * UNITS as usize]),
    };
    if block.blocks > 0 {
        request::<E, N>(&mut memory.tiles, KEYS, &inputs.key_value, &keys, columns, TILE, cfg);
        if comptime![of_keys] {
            request::<E, N>(&mut memory.tiles, VALUES, &inputs.key_value, &values, columns, TILE, cfg);
        }
    }
    let mut sums = row_accumulators(1usize, cfg);
    accumulate::<E, N>(&mut sums, &mut memory, inputs, data, call, &block, of_keys, cfg);

    if comptime![of_keys] {
        store_rows::<E, N>(sums.index(0usize), 1.0f32, 1.0f32, d_key_value, &keys, UNIT_POS, columns, head_dim);
    } else {
        store_rows::<E, N>(sums.index(0usize), 1.0f32, 1.0f32, d_key_value, &values, UNIT_POS, columns, head_dim);
    }
}

/// Adds to `sums` what all queries contribute that see the keys.
#[cube]
fn accumulate<E: Float, N: Size>(
    sums: &mut Sequence<Array<f32>>,
    memory: &mut Memory<E, N>,
    inputs: &Inputs<E, N>,
    data: &QueryData<E, N>,
    call: &Call,
    block: &KeyTile,
    #[comptime] of_keys: bool,
    #[comptime] cfg: FlashConfig,
) {
    let rows = comptime![streamed_rows(own_tiles(of_keys), &cfg)];
    let early = comptime![(own_tiles(of_keys) * TILE / rows) as u32].runtime();
    let t = call.lens.t;
    let head = block.group * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let first_row = (block.batch * comptime![cfg.n_heads as u32] + head) * t;
    let readers = readers(rows, cfg);
    let mut now = Streamed { head: 0u32.runtime(), tile: block.first };
    let mut next = advanced(&now, block);
    if block.blocks > 0 {
        let patch = patch_of(block, &now, t, rows, cfg);
        request_half::<E, N>(&mut memory.tiles, early, inputs, data, &patch, of_keys, rows, cfg);
        memory.row_values[UNIT_POS as usize] = row_value(&data.lse, &data.delta, first_row, &now, t, rows);
    }
    commit();

    for turn in 0..block.blocks {
        // The early tile is there, and no warp reads the late one of the previous turn any more.
        wait(0usize);
        sync_cube();
        let patch = patch_of(block, &now, t, rows, cfg);
        request_half::<E, N>(&mut memory.tiles, early + 1, inputs, data, &patch, comptime![!of_keys], rows, cfg);
        commit();
        if turn + 1 < block.blocks {
            let value = row_value(&data.lse, &data.delta, first_row, &next, t, rows);
            memory.row_values[((turn + 1) % 2 * UNITS + UNIT_POS) as usize] = value;
        }
        let q0 = now.tile * comptime![rows as u32];
        let mut streamed = Turn { q0, values_at: turn % 2 * UNITS + place(UNIT_POS).column, kept: 0u32.runtime() };
        if comptime![cfg.dropout] {
            let at = place(UNIT_POS);
            let row = first_row + now.head * t + q0 + at.column;
            streamed.kept = kept_bits(&call.dropout, row, block.nth, &at, call.lens.s, rows);
        }
        let mut product = accumulators(1usize, rows);
        let own = comptime![if of_keys { VALUES } else { KEYS }].runtime();
        add_scores::<E, N>(&mut product, &memory.tiles, &readers, own, early, rows, cfg);

        wait(0usize);
        sync_cube();
        if turn + 1 < block.blocks {
            let patch = patch_of(block, &next, t, rows, cfg);
            request_half::<E, N>(&mut memory.tiles, early, inputs, data, &patch, of_keys, rows, cfg);
        }
        commit();
        let mut lefts = Sequence::<Array<f32>>::new();
        if comptime![of_keys] {
            let mut scores = accumulators(1usize, rows);
            add_scores::<E, N>(&mut scores, &memory.tiles, &readers, KEYS, early + 1, rows, cfg);
            let p = probabilities::<E, N>(scores.index_mut(0usize), &*memory, call, block, &streamed, rows, cfg);
            let dp = kept_values(product.index(0usize), streamed.kept, call.dropout.args.scale, cfg);
            let deltas = row_pairs(&memory.row_values, streamed.values_at + comptime![rows as u32], rows);
            lefts.push(score_gradients(&p, &dp, &deltas, comptime![cfg.scale()].runtime()));
            pass_bound(lefts.index_mut(0usize), &p, &memory.row_values, streamed.values_at, cfg);
        } else {
            let p = probabilities::<E, N>(product.index_mut(0usize), &*memory, call, block, &streamed, rows, cfg);
            lefts.push(kept_values(&p, streamed.kept, call.dropout.args.scale, cfg));
        }
        add_products::<E, N>(sums, &lefts, &memory.tiles, &readers, early + 1, rows, cfg);
        advance(&mut now, &mut next, block);
    }
}

/// The queries of a turn.
#[derive(CubeType)]
struct Turn {
    /// The first of them.
    q0: u32,
    /// Where the thread's log-sums begin.
    values_at: u32,
    /// A bit per probability, set if dropout keeps it.
    kept: u32,
}

/// Returns where a streamed tile of `rows` queries, or their `d_out`, lies.
#[cube]
fn patch_of(
    block: &KeyTile,
    streamed: &Streamed,
    t: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) -> Patch {
    let head = block.group * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32] + streamed.head;
    let row0 = streamed.tile * comptime![rows as u32];
    Patch { first: block.batch * t, row0, rows: t, column: query_column(head, cfg) }
}

/// Starts to copy the queries at `patch`, or else their `d_out`, to tile `tile`.
#[cube]
fn request_half<E: Float, N: Size>(
    memory: &mut Shared<[Vector<E, N>]>,
    tile: u32,
    inputs: &Inputs<E, N>,
    data: &QueryData<E, N>,
    patch: &Patch,
    #[comptime] d_out: bool,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![d_out] {
        let columns = comptime![cfg.n_heads * cfg.head_dim];
        request::<E, N>(memory, tile, &data.d_out, patch, columns, rows, cfg);
    } else {
        request::<E, N>(memory, tile, &inputs.query, patch, comptime![cfg.query_columns()], rows, cfg);
    }
}

/// Returns the probabilities of `scores`.
#[cube]
fn probabilities<E: Float, N: Size>(
    scores: &mut Array<f32>,
    memory: &Memory<E, N>,
    call: &Call,
    block: &KeyTile,
    streamed: &Turn,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) -> Array<f32> {
    bound(scores, cfg);
    hide_at_edges(scores, streamed.q0, call, block, cfg);
    let log_sums = row_pairs(&memory.row_values, streamed.values_at, rows);
    exponentials(&*scores, &log_sums, comptime![cfg.scale() * LOG2_E].runtime())
}
