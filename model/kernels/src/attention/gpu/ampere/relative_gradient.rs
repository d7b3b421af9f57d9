//! The gradient of what relative positions add to the scores: a block owns 64 queries of a head, and keys and values are streamed past
//! them.
//!
//! The gradients of a tile of scores lie in shared memory. A distance between key and query is one of its diagonals, which one thread
//! adds up. Each tile has its sums in memory, so that batch rows and tiles are added in a fixed order.

use cubecl::prelude::*;

use super::query_gradient::{Queries, rows_of, take_gradients};
use super::tile::{Readers, accumulators, add_scores, readers, request, tiles_memory};
use super::{Inputs, Outputs};
use crate::attention::gpu::shared::arguments::{Call, Lens};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::position::{
    Patch, Place, cube_place, key_column, place, query_column, query_tile, tiles, value_column,
};
use crate::gpu::async_copy::{commit, wait};

/// The tiles of queries, `d_out`, keys and values.
const QUERIES: u32 = 0;
const GRADIENTS: u32 = 1;
const KEYS: u32 = 2;
const VALUES: u32 = 3;

/// Distance of a row of scores in shared memory from the next: the threads of a warp write to different banks.
const PITCH: usize = TILE + 8;
/// Numbers of a diagonal that a thread has in flight.
const IN_FLIGHT: u32 = 8;

/// Writes to `sums`, `[B * H, query tiles, key tiles, 128]`, the gradients of the scores of each tile, summed over pairs with the same
/// distance: 63 more than `key - query`, each counted from the tile's first. `delta` is left as the gradient of the queries leaves it.
#[cube(launch_unchecked)]
pub(super) fn relative_gradient<E: Float, N: Size>(
    inputs: &Inputs<E, N>,
    outputs: &Outputs<E, N>,
    call: &Call,
    delta: &mut [f32],
    sums: &mut [f32],
    #[comptime] cfg: FlashConfig,
) {
    let (row_head, nth) = cube_place(call);
    let (query_tiles, t) = (tiles(call.lens.t), call.lens.t);
    if row_head >= call.heads || nth >= query_tiles {
        terminate!();
    }

    let block = query_tile(row_head, nth, cfg);
    let patch = Patch { first: block.batch * t, row0: block.q0, rows: t, column: query_column(block.head, cfg) };
    let mut memory = Memory::<E, N> {
        tiles: tiles_memory::<E, N>(4usize, TILE, cfg),
        scores: Shared::<[f32]>::new_slice(comptime![TILE * PITCH]),
    };
    request::<E, N>(&mut memory.tiles, QUERIES, &inputs.query, &patch, comptime![cfg.query_columns()], TILE, cfg);
    let columns = comptime![cfg.n_heads * cfg.head_dim];
    request::<E, N>(&mut memory.tiles, GRADIENTS, &outputs.d_out, &patch, columns, TILE, cfg);
    let queries = rows_of::<E, N>(outputs, delta, call, block, patch, cfg);

    let readers = readers(TILE, cfg);
    let first_tile = if comptime![cfg.window.is_some()] { queries.sight.first_tile } else { 0u32.runtime() };
    let key_tiles = tiles(call.lens.s);
    for tile in 0..key_tiles {
        let mut sum = 0.0f32;
        if tile >= first_tile && tile < first_tile + queries.sight.blocks {
            sum = diagonal_of::<E, N>(&mut memory, &readers, inputs, &queries, call, tile, cfg);
        }
        let at = ((row_head * query_tiles + nth) * key_tiles + tile) * UNITS + UNIT_POS;
        sums[at as usize] = sum * comptime![cfg.scale().recip()].runtime();
    }
}

/// Four tiles, and the gradients of a tile of scores.
#[derive(CubeType)]
struct Memory<E: Float, N: Size> {
    tiles: Shared<[Vector<E, N>]>,
    scores: Shared<[f32]>,
}

/// Computes the gradients of the scores of key tile `tile`, and returns the sum of the thread's diagonal.
#[cube]
fn diagonal_of<E: Float, N: Size>(
    memory: &mut Memory<E, N>,
    readers: &Readers,
    inputs: &Inputs<E, N>,
    queries: &Queries,
    call: &Call,
    tile: u32,
    #[comptime] cfg: FlashConfig,
) -> f32 {
    let (batch, group, s) = (queries.block.batch, queries.block.group, call.lens.s);
    let (first, row0) = (batch * s, tile * comptime![TILE as u32]);
    let columns = comptime![cfg.key_value_columns()];
    let keys = Patch { first, row0, rows: s, column: key_column(group, cfg) };
    let values = Patch { first, row0, rows: s, column: value_column(group, cfg) };

    // No warp reads the tiles or the scores of the previous turn any more.
    sync_cube();
    request::<E, N>(&mut memory.tiles, KEYS, &inputs.key_value, &keys, columns, TILE, cfg);
    request::<E, N>(&mut memory.tiles, VALUES, &inputs.key_value, &values, columns, TILE, cfg);
    commit();
    wait(0usize);
    sync_cube();

    let mut scores = accumulators(1usize, TILE);
    add_scores::<E, N>(&mut scores, &memory.tiles, readers, QUERIES, KEYS, TILE, cfg);
    let mut dp = accumulators(1usize, TILE);
    add_scores::<E, N>(&mut dp, &memory.tiles, readers, GRADIENTS, VALUES, TILE, cfg);
    take_gradients(scores.index_mut(0usize), dp.index_mut(0usize), queries, call, tile, cfg);

    // Queries beyond the last one count for nothing.
    store(&mut memory.scores, scores.index(0usize), &place(UNIT_POS), call.lens.t - queries.block.q0);
    sync_cube();
    diagonal(&memory.scores)
}

/// Writes the first `rows` rows of an accumulator to shared memory, and zeros below them.
#[cube]
fn store(memory: &mut Shared<[f32]>, values: &Array<f32>, at: &Place, rows: u32) {
    #[unroll]
    for i in 0..values.len() {
        let (row, column) = comptime![((i % 4 / 2 * 8) as u32, (i / 4 * 8 + i % 2) as u32)];
        let to = (at.row + row) * comptime![PITCH as u32] + at.column + column;
        memory[to as usize] = select(at.row + row < rows, values[i], 0.0f32);
    }
}

/// Returns the sum of a diagonal of the scores in shared memory: thread 0 has the last query and the first key, thread 63 the main
/// diagonal, and thread 127 none.
#[cube]
fn diagonal(memory: &Shared<[f32]>) -> f32 {
    let middle = comptime![TILE as u32 - 1].runtime();
    let (behind, ahead) = (middle - min(UNIT_POS, middle), max(UNIT_POS, middle) - middle);
    let (n, first) = (comptime![TILE as u32] - behind - ahead, behind * comptime![PITCH as u32] + ahead);
    let mut sum = 0.0f32;
    let mut next = 0u32.runtime();
    while next < n {
        let mut read = Array::<f32>::new(comptime![IN_FLIGHT as usize]);
        #[unroll]
        for i in 0..IN_FLIGHT {
            let here = min(next + i, n - 1);
            read[comptime![i as usize]] = memory[(first + here * comptime![PITCH as u32 + 1]) as usize];
        }
        #[unroll]
        for i in 0..IN_FLIGHT {
            if next + i < n {
                sum += read[comptime![i as usize]];
            }
        }
        next += IN_FLIGHT;
    }
    sum
}

/// Adds up the sums of all tiles, `[H, query tiles, key tiles, 128]`, by distance: `[H, T + S - 1]`. A thread has one distance.
#[cube(launch_unchecked)]
pub(super) fn sum_by_distance(sums: &[f32], gradient: &mut [f32], lens: &Lens) {
    let (head, place) = (CUBE_POS_Y, CUBE_POS_X * UNITS + UNIT_POS);
    let n = lens.t + lens.s - 1;
    if place < n {
        let (query_tiles, key_tiles) = (tiles(lens.t), tiles(lens.s));
        let mut total = 0.0f32;
        for query_tile in 0..query_tiles {
            // Counted from the first key, a distance of this tile of queries; 64 of them reach into the tile before.
            let from_first = place + query_tile * comptime![TILE as u32] + comptime![TILE as u32];
            if from_first >= lens.t {
                let ahead = from_first - lens.t;
                let row = (head * query_tiles + query_tile) * key_tiles;
                let (tile, rest) = (ahead / comptime![TILE as u32], ahead % comptime![TILE as u32]);
                if tile > 0 && tile <= key_tiles {
                    total += sums[((row + tile - 1) * UNITS + comptime![TILE as u32] + rest) as usize];
                }
                if tile < key_tiles {
                    total += sums[((row + tile) * UNITS + rest) as usize];
                }
            }
        }
        gradient[(head * n + place) as usize] = total;
    }
}
