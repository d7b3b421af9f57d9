//! The gradients of keys and values of wide heads: a block owns 64 rows of both, and queries are streamed past them.
//!
//! Of its two warpgroups one sums dV and the other dK. The first multiplies keys and queries and takes exponentials, the second
//! multiplies values and `d_out`, and reads the exponentials of the first:
//!
//! ```text
//!   warpgroup 0   scores = K Q^T      P = exp(scores)  ->  memory        dV += P^T d_out
//!   warpgroup 1   dP = V d_out^T                 memory  ->  dS(P, dP)   dK += dS^T Q
//! ```

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::key_value_gradient::QueryData;
use super::slots::{Slots, arrived, fill_both, fill_slot_both, slots};
use super::tile::{enqueue, left_operand, product_shared, round_into, settle, tile};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens};
use crate::attention::gpu::shared::bound::{bound, pass_bound};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::dropout::{kept_bits, kept_values};
use crate::attention::gpu::shared::key_tile::{
    KeyTile, Streamed, advance, advanced, hide_at_edges, key_tile, row_value, streamed_at,
};
use crate::attention::gpu::shared::position::{Patch, cube_place, key_column, place, value_column, warpgroup};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{commit, describe, fence, pin, wait, zeros};

/// Computes the gradients of keys and values: a block per 64 keys of a group of heads.
#[cube(launch_unchecked)]
pub(super) fn wide_key_value_gradient<E: Float>(
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    d_key_value: &mut [Oct<E>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![cfg.cubes()]);
    let (row_group, nth) = cube_place(call);
    if row_group >= call.heads || nth * comptime![TILE as u32] >= call.lens.s {
        terminate!();
    }
    let block = key_tile(row_group, nth, call, TILE, cfg);

    let mut memory = Memory::<E> {
        resident: slots::<E>(1usize, 2usize, cfg),
        streamed: slots::<E>(2usize, 2usize, cfg),
        row_values: Shared::<[f32]>::new_slice(comptime![2 * UNITS as usize]),
        probabilities: Shared::<[f32]>::new_slice(comptime![2 * TILE * TILE]),
    };
    sync_async_proxy_shared();
    sync_cube();
    let mut gradient = Gradient::<E> { sum: zeros(comptime![cfg.head_dim]), left: left_operand::<E>(TILE) };
    accumulate::<E>(&mut gradient, &mut memory, inputs, data, call, &block, cfg);

    let (group, unit) = warpgroup(comptime![cfg.groups()]);
    let (columns, head_dim) = comptime![(cfg.key_value_columns(), cfg.head_dim)];
    let column = select(group == 0, value_column(block.group, cfg), key_column(block.group, cfg));
    let patch = Patch { first: block.batch * call.lens.s, row0: block.k0, rows: call.lens.s, column };
    store_rows::<E, Const<8>>(&gradient.sum, 1.0f32, 1.0f32, d_key_value, &patch, unit, columns, head_dim);
}

/// The tiles of a block: keys and values, and two slots of queries and `d_out`.
#[derive(CubeType)]
struct Memory<E: Float> {
    resident: Slots<E>,
    streamed: Slots<E>,
    /// Log-sums and deltas of the streamed queries: 64 of each per slot.
    row_values: Shared<[f32]>,
    /// Probabilities before dropout, of each slot: 32 per thread of a warpgroup.
    probabilities: Shared<[f32]>,
}

/// A thread's part of its warpgroup's gradient, and the left operand of the product that sums it.
#[derive(CubeType)]
struct Gradient<E: Float> {
    sum: Array<f32>,
    left: Sequence<Array<E>>,
}

/// Adds to the gradients what all queries contribute that see the keys.
#[cube]
fn accumulate<E: Float>(
    gradient: &mut Gradient<E>,
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    block: &KeyTile,
    #[comptime] cfg: FlashConfig,
) {
    let t = call.lens.t;
    let (group, unit) = warpgroup(comptime![cfg.groups()]);
    let head = block.group * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let first_row = (block.batch * comptime![cfg.n_heads as u32] + head) * t;
    let mut now = Streamed { head: 0u32.runtime(), tile: block.first };
    let mut next = advanced(&now, block);
    request_first::<E>(memory, inputs, data, block, &now, &next, &call.lens, cfg);
    if group == 0 {
        memory.row_values[unit as usize] = row_value(&data.lse, &data.delta, first_row, &now, t, TILE);
    }

    // Keys in the first warpgroup, values in the second.
    let own = tile(describe::<E>(&memory.resident.tiles, comptime![cfg.rows_layout()]), group, cfg);
    let streamed_rows = describe::<E>(&memory.streamed.tiles, comptime![cfg.rows_layout()]);
    let streamed_columns = describe::<E>(&memory.streamed.tiles, comptime![cfg.columns_layout()]);
    if block.blocks > 0 {
        memory.resident.loaded.index(0usize).wait_parity(0u32);
        for nth in 0..block.blocks {
            let q0 = now.tile * comptime![TILE as u32];
            let at = place(unit);
            // Draw before the products. Pinned, or the compiler would draw where the bits are used.
            let mut kept = Array::<u32>::new(1usize);
            kept[0] = 0u32;
            if comptime![cfg.dropout] {
                let row = first_row + now.head * t + q0 + at.column;
                kept[0] = kept_bits(&call.dropout, row, block.nth, &at, call.lens.s, TILE);
                pin(&kept);
            }

            let slot = arrived::<E>(&memory.streamed, nth);
            let mut product = zeros(TILE);
            pin(&product);
            fence();
            product_shared::<E>(&mut product, own, tile(streamed_rows, 2 * slot + group, cfg), cfg);
            commit();
            // Wait for the product of the previous turn.
            settle::<E>(&gradient.sum, &gradient.left, 1usize);

            // No thread reads the slot of the previous turn any more, and all see the log-sums and deltas of this one.
            sync_cube();
            let mut next_value = 0.0f32;
            if nth + 1 < block.blocks {
                next_value = row_value(&data.lse, &data.delta, first_row, &next, t, TILE);
                if UNIT_POS == 0 && nth > 0 {
                    let (row, column) = streamed_at(block, &next, t, cfg);
                    let (query, d_out) = (&inputs.query, &data.d_out);
                    fill_both::<E>(&mut memory.streamed, 1 - slot, query, d_out, row, column, column, cfg);
                }
            }
            sync_plane();
            advance(&mut now, &mut next, block);

            wait(0usize);
            pin(&product);
            let turn = Turn { group, unit, q0, slot, kept: kept[0] };
            take_operands::<E>(&mut product, memory, &turn, call, block, cfg);
            round_into::<E>(&product, &mut gradient.left);
            let right = tile(streamed_columns, 2 * slot + 1 - group, cfg);
            enqueue::<E>(&mut gradient.sum, &gradient.left, right, comptime![cfg.columns_layout()]);
            if group == 0 {
                memory.row_values[((1 - slot) * UNITS + unit) as usize] = next_value;
            }
        }
        settle::<E>(&gradient.sum, &gradient.left, 0usize);
    }
}

/// Requests the resident tiles, and the first two of queries and `d_out`.
#[cube]
fn request_first<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    block: &KeyTile,
    now: &Streamed,
    next: &Streamed,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    let (keys, values) = (key_column(block.group, cfg), value_column(block.group, cfg));
    if UNIT_POS == 0 && block.blocks > 0 {
        let (key_value, query, d_out) = (&inputs.key_value, &inputs.query, &data.d_out);
        let from = block.batch * lens.s + block.k0;
        let (row, column) = streamed_at(block, now, lens.t, cfg);
        fill_slot_both::<E>(&mut memory.resident, 0usize, key_value, key_value, from, keys, values, cfg);
        fill_slot_both::<E>(&mut memory.streamed, 0usize, query, d_out, row, column, column, cfg);
        if block.blocks > 1 {
            let (row, column) = streamed_at(block, next, lens.t, cfg);
            fill_slot_both::<E>(&mut memory.streamed, 1usize, query, d_out, row, column, column, cfg);
        }
    }
    sync_plane();
}

/// A thread's place, and the queries of a turn.
#[derive(CubeType)]
struct Turn {
    group: u32,
    unit: u32,
    /// The first of them.
    q0: u32,
    slot: u32,
    /// A bit per probability, set if dropout keeps it.
    kept: u32,
}

/// Replaces scores by probabilities in the first warpgroup, and in the second the gradients of probabilities by the gradients of
/// scores.
#[cube]
fn take_operands<E: Float>(
    product: &mut Array<f32>,
    memory: &mut Memory<E>,
    turn: &Turn,
    call: &Call,
    block: &KeyTile,
    #[comptime] cfg: FlashConfig,
) {
    let keep = call.dropout.args.scale;
    let values_at = turn.slot * UNITS + place(turn.unit).column;
    let first = turn.slot * comptime![(TILE * TILE) as u32] + turn.unit;
    if turn.group == 0 {
        bound(product, cfg);
        hide_at_edges(product, turn.q0, call, block, cfg);
        let log_sums = row_pairs(&memory.row_values, values_at, TILE);
        let p = exponentials(&*product, &log_sums, comptime![cfg.scale() * LOG2_E].runtime());
        let dropped = kept_values(&p, turn.kept, keep, cfg);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            memory.probabilities[(first + comptime![i as u32 * UNITS]) as usize] = p[i];
            product[i] = dropped[i];
        }
    }

    // The probabilities are there. They stay until the second turn from now, which begins after the next of these barriers.
    sync_cube();
    if turn.group == 1 {
        let mut p = Array::<f32>::new(comptime![TILE / 2]);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            p[i] = memory.probabilities[(first + comptime![i as u32 * UNITS]) as usize];
        }
        let dp = kept_values(&*product, turn.kept, keep, cfg);
        let deltas = row_pairs(&memory.row_values, values_at + comptime![TILE as u32], TILE);
        let mut d_scores = score_gradients(&p, &dp, &deltas, comptime![cfg.scale()].runtime());
        pass_bound(&mut d_scores, &p, &memory.row_values, values_at, cfg);
        #[unroll]
        for i in 0..comptime![TILE / 2] {
            product[i] = d_scores[i];
        }
    }
}
