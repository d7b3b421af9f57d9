//! The gradients of keys and values: a block owns 64 rows of both, and queries are streamed past them.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::tile::{Readers, accumulators, add_products, add_scores, readers, request, row_accumulators, tiles_memory};
use super::{Inputs, gradient_cubes};
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::bound::{bound, pass_bound};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::dropout::{kept_bits, kept_values};
use crate::attention::gpu::shared::key_tile::{
    KeyTile, Streamed, advance, advanced, hide_at_edges, key_tile, row_value, streamed_at,
};
use crate::attention::gpu::shared::position::{Patch, cube_place, key_column, place, value_column};
use crate::attention::gpu::shared::relative::{Scores, add_to_columns};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::gpu::async_copy::{commit, wait};
use crate::gpu::occupancy::cubes_at_once;

/// The tiles of keys and values, and the first of the tiles of queries and `d_out`.
const KEYS: u32 = 0;
const VALUES: u32 = 1;
const STREAMED: u32 = 2;

/// The gradient of forward's output, and each query's log-sum and delta.
#[derive(CubeType, CubeLaunch)]
pub(super) struct QueryData<E: Float, N: Size> {
    pub(super) d_out: Box<[Vector<E, N>]>,
    pub(super) lse: Box<[f32]>,
    pub(super) delta: Box<[f32]>,
}

/// The tiles of a block, and the log-sums and deltas of the streamed queries: 64 of each per slot.
#[derive(CubeType)]
struct Memory<E: Float, N: Size> {
    tiles: Shared<[Vector<E, N>]>,
    row_values: Shared<[f32]>,
}

/// A thread's part of the gradients.
#[derive(CubeType)]
struct Gradients {
    dk: Sequence<Array<f32>>,
    dv: Sequence<Array<f32>>,
}

/// Computes the gradients of keys and values: a block per 64 keys of a group of heads.
#[cube(launch_unchecked)]
pub(super) fn key_value_gradient<E: Float, N: Size>(
    inputs: &Inputs<E, N>,
    data: &QueryData<E, N>,
    call: &Call,
    d_key_value: &mut [Vector<E, N>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![gradient_cubes(&cfg)]);
    let (row_group, nth) = cube_place(call);
    if row_group >= call.heads || nth * comptime![TILE as u32] >= call.lens.s {
        terminate!();
    }
    let block = key_tile(row_group, nth, call, TILE, cfg);
    let (columns, head_dim) = comptime![(cfg.key_value_columns(), cfg.head_dim)];
    let (first, row0, s) = (block.batch * call.lens.s, block.k0, call.lens.s);
    let keys = Patch { first, row0, rows: s, column: key_column(block.group, cfg) };
    let values = Patch { first, row0, rows: s, column: value_column(block.group, cfg) };

    let mut memory = Memory::<E, N> {
        tiles: tiles_memory::<E, N>(6usize, TILE, cfg),
        row_values: Shared::<[f32]>::new_slice(comptime![2 * UNITS as usize]),
    };
    if block.blocks > 0 {
        request::<E, N>(&mut memory.tiles, KEYS, &inputs.key_value, &keys, columns, TILE, cfg);
        request::<E, N>(&mut memory.tiles, VALUES, &inputs.key_value, &values, columns, TILE, cfg);
    }
    let mut gradients = Gradients { dk: row_accumulators(1usize, cfg), dv: row_accumulators(1usize, cfg) };
    accumulate::<E, N>(&mut gradients, &mut memory, inputs, data, call, &block, cfg);

    store_rows::<E, N>(gradients.dk.index(0usize), 1.0f32, 1.0f32, d_key_value, &keys, UNIT_POS, columns, head_dim);
    store_rows::<E, N>(gradients.dv.index(0usize), 1.0f32, 1.0f32, d_key_value, &values, UNIT_POS, columns, head_dim);
}

/// Adds to the gradients what all queries contribute that see the keys.
#[cube]
fn accumulate<E: Float, N: Size>(
    gradients: &mut Gradients,
    memory: &mut Memory<E, N>,
    inputs: &Inputs<E, N>,
    data: &QueryData<E, N>,
    call: &Call,
    block: &KeyTile,
    #[comptime] cfg: FlashConfig,
) {
    let t = call.lens.t;
    let head = block.group * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let first_row = (block.batch * comptime![cfg.n_heads as u32] + head) * t;
    let readers = readers(TILE, cfg);
    let mut now = Streamed { head: 0u32.runtime(), tile: block.first };
    let mut next = advanced(&now, block);
    if block.blocks > 0 {
        request_queries::<E, N>(memory, inputs, data, block, &now, t, 0u32, cfg);
        memory.row_values[UNIT_POS as usize] = row_value(&data.lse, &data.delta, first_row, &now, t, TILE);
    }
    commit();

    for turn in 0..block.blocks {
        let slot = turn % 2;
        let q0 = now.tile * comptime![TILE as u32];
        // These queries are there, and no warp reads those before them any more.
        wait(0usize);
        sync_cube();
        if turn + 1 < block.blocks {
            request_queries::<E, N>(memory, inputs, data, block, &next, t, 1 - slot, cfg);
            let value = row_value(&data.lse, &data.delta, first_row, &next, t, TILE);
            memory.row_values[((1 - slot) * UNITS + UNIT_POS) as usize] = value;
        }
        commit();

        let mut streamed = Turn { head: head + now.head, q0, slot, kept: 0u32.runtime() };
        if comptime![cfg.dropout] {
            let at = place(UNIT_POS);
            let row = first_row + now.head * t + q0 + at.column;
            streamed.kept = kept_bits(&call.dropout, row, block.nth, &at, call.lens.s, TILE);
        }
        add_gradients::<E, N>(gradients, &*memory, &readers, call, block, &streamed, cfg);
        advance(&mut now, &mut next, block);
    }
}

/// Starts to copy a tile of queries and its `d_out` to slot `slot`.
#[cube]
fn request_queries<E: Float, N: Size>(
    memory: &mut Memory<E, N>,
    inputs: &Inputs<E, N>,
    data: &QueryData<E, N>,
    block: &KeyTile,
    streamed: &Streamed,
    t: u32,
    slot: u32,
    #[comptime] cfg: FlashConfig,
) {
    let (_, column) = streamed_at(block, streamed, t, cfg);
    let patch = Patch { first: block.batch * t, row0: streamed.tile * comptime![TILE as u32], rows: t, column };
    let tile = STREAMED + 2 * slot;
    request::<E, N>(&mut memory.tiles, tile, &inputs.query, &patch, comptime![cfg.query_columns()], TILE, cfg);
    let columns = comptime![cfg.n_heads * cfg.head_dim];
    request::<E, N>(&mut memory.tiles, tile + 1, &data.d_out, &patch, columns, TILE, cfg);
}

/// The queries of a turn.
#[derive(CubeType)]
struct Turn {
    /// Their head.
    head: u32,
    /// The first of them.
    q0: u32,
    slot: u32,
    /// A bit per probability, set if dropout keeps it.
    kept: u32,
}

/// Adds what the queries of a turn contribute: `P^T d_out` to dV, then `dS^T Q` to dK.
#[cube]
fn add_gradients<E: Float, N: Size>(
    gradients: &mut Gradients,
    memory: &Memory<E, N>,
    readers: &Readers,
    call: &Call,
    block: &KeyTile,
    turn: &Turn,
    #[comptime] cfg: FlashConfig,
) {
    let (kept, keep) = (turn.kept, call.dropout.args.scale);
    let queries = STREAMED + 2 * turn.slot;
    let values_at = turn.slot * UNITS + place(UNIT_POS).column;

    let mut scores = accumulators(1usize, TILE);
    add_scores::<E, N>(&mut scores, &memory.tiles, readers, KEYS, queries, TILE, cfg);
    bound(scores.index_mut(0usize), cfg);
    let corner = Scores { head: turn.head, q0: turn.q0, k0: block.k0 };
    add_to_columns(scores.index_mut(0usize), &call.masks, &corner, &place(UNIT_POS), &call.lens, cfg);
    hide_at_edges(scores.index_mut(0usize), turn.q0, call, block, cfg);
    let log_sums = row_pairs(&memory.row_values, values_at, TILE);
    let p = exponentials(scores.index(0usize), &log_sums, comptime![cfg.scale() * LOG2_E].runtime());
    let mut dropped = Sequence::<Array<f32>>::new();
    dropped.push(kept_values(&p, kept, keep, cfg));
    add_products::<E, N>(&mut gradients.dv, &dropped, &memory.tiles, readers, queries + 1, TILE, cfg);

    let mut dp = accumulators(1usize, TILE);
    add_scores::<E, N>(&mut dp, &memory.tiles, readers, VALUES, queries + 1, TILE, cfg);
    let deltas = row_pairs(&memory.row_values, values_at + comptime![TILE as u32], TILE);
    let d_probabilities = kept_values(dp.index(0usize), kept, keep, cfg);
    let mut d_scores = Sequence::<Array<f32>>::new();
    d_scores.push(score_gradients(&p, &d_probabilities, &deltas, comptime![cfg.scale()].runtime()));
    pass_bound(d_scores.index_mut(0usize), &p, &memory.row_values, values_at, cfg);
    add_products::<E, N>(&mut gradients.dk, &d_scores, &memory.tiles, readers, queries, TILE, cfg);
}
