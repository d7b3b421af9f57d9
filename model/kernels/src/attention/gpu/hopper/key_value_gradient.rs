//! The gradients of keys and values: a block owns 64 rows of both, and queries are streamed past them.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::lines::{results_memory, store_rows};
use super::slots::{Slots, arrived, fill_both, fill_slot_both, slots};
use super::tile::{enqueue, left_operand, round_into, scores_and_dp, tile};
use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::{Call, Inputs, Lens};
use crate::attention::gpu::shared::bound::{bound, pass_bound};
use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::dropout::{kept_bits, kept_values};
use crate::attention::gpu::shared::key_tile::{
    KeyTile, Streamed, advance, advanced, hide_at_edges, key_tile, row_value, streamed_at,
};
use crate::attention::gpu::shared::position::{Patch, cube_place, key_column, place, value_column};
use crate::attention::gpu::shared::relative::{Scores, add_to_columns};
use crate::attention::gpu::shared::softmax::{exponentials, row_pairs, score_gradients};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::wgmma::{describe, pin, pin_all, wait, zeros};

/// The gradient of forward's output, and each query's log-sum and delta.
#[derive(CubeType, CubeLaunch)]
pub(super) struct QueryData<E: Float> {
    pub(super) d_out: TensorMap<E, Tiled>,
    pub(super) lse: Box<[f32]>,
    pub(super) delta: Box<[f32]>,
}

/// Computes the gradients of keys and values: a block per 64 keys of a group of heads.
#[cube(launch_unchecked)]
pub(super) fn key_value_gradient<E: Float>(
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    d_key_value: &mut [Oct<E>],
    #[comptime] cfg: FlashConfig,
) {
    cubes_at_once(comptime![if cfg.three_key_value_cubes() { 3usize } else { 2usize }]);
    let (row_group, nth) = cube_place(call);
    if row_group >= call.heads || nth * comptime![TILE as u32] >= call.lens.s {
        terminate!();
    }
    let block = key_tile(row_group, nth, call, TILE, cfg);

    let mut memory = Memory::<E> {
        resident: slots::<E>(1usize, 2usize, cfg),
        streamed: slots::<E>(2usize, 2usize, cfg),
        row_values: Shared::<[f32]>::new_slice(comptime![2 * UNITS as usize]),
    };
    let mut results = results_memory::<E>(cfg);
    sync_async_proxy_shared();
    sync_cube();

    let mut gradients = Gradients::<E> {
        dk: zeros(comptime![cfg.head_dim]),
        dv: zeros(comptime![cfg.head_dim]),
        probabilities: left_operand::<E>(TILE),
        d_scores: left_operand::<E>(TILE),
    };
    accumulate::<E>(&mut gradients, &mut memory, inputs, data, call, &block, cfg);

    let columns = comptime![cfg.key_value_columns()];
    let (s, row0) = (call.lens.s, block.k0);
    let keys = Patch { first: block.batch * s, row0, rows: s, column: key_column(block.group, cfg) };
    let values = Patch { first: block.batch * s, row0, rows: s, column: value_column(block.group, cfg) };
    store_rows::<E>(&gradients.dk, &mut results, d_key_value, &keys, columns, cfg);
    store_rows::<E>(&gradients.dv, &mut results, d_key_value, &values, columns, cfg);
}

/// The tiles of a block: keys and values, and two slots of queries and `d_out`.
#[derive(CubeType)]
struct Memory<E: Float> {
    resident: Slots<E>,
    streamed: Slots<E>,
    /// Log-sums and deltas of the streamed queries: 64 of each per slot.
    row_values: Shared<[f32]>,
}

/// A thread's part of the gradients, and the left operands of the products that sum them.
#[derive(CubeType)]
struct Gradients<E: Float> {
    dk: Array<f32>,
    dv: Array<f32>,
    probabilities: Sequence<Array<E>>,
    d_scores: Sequence<Array<E>>,
}

/// Adds to the gradients what all queries contribute that see the keys.
#[cube]
fn accumulate<E: Float>(
    gradients: &mut Gradients<E>,
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    data: &QueryData<E>,
    call: &Call,
    block: &KeyTile,
    #[comptime] cfg: FlashConfig,
) {
    let t = call.lens.t;
    let head = block.group * comptime![(cfg.n_heads / cfg.n_kv_heads) as u32];
    let first_row = (block.batch * comptime![cfg.n_heads as u32] + head) * t;
    let mut now = Streamed { head: 0u32.runtime(), tile: block.first };
    let mut next = advanced(&now, block);
    request_first::<E>(memory, inputs, data, block, &now, &next, &call.lens, cfg);
    memory.row_values[UNIT_POS as usize] = row_value(&data.lse, &data.delta, first_row, &now, t, TILE);

    let keys = describe::<E>(&memory.resident.tiles, comptime![cfg.rows_layout()]);
    let values = tile(keys, 1u32, cfg);
    let streamed_rows = describe::<E>(&memory.streamed.tiles, comptime![cfg.rows_layout()]);
    if block.blocks > 0 {
        memory.resident.loaded.index(0usize).wait_parity(0u32);
        for turn in 0..block.blocks {
            let q0 = now.tile * comptime![TILE as u32];
            let corner = Scores { head: head + now.head, q0, k0: block.k0 };
            let at = place(UNIT_POS);
            // Draw before the products, whose results leave no registers for it. Pinned, or the compiler would draw
            // where the bits are used.
            let mut kept = Array::<u32>::new(1usize);
            kept[0] = 0u32;
            if comptime![cfg.dropout] {
                let row = first_row + now.head * t + q0 + at.column;
                kept[0] = kept_bits(&call.dropout, row, block.nth, &at, call.lens.s, TILE);
                pin(&kept);
            }

            let slot = arrived::<E>(&memory.streamed, turn);
            // Wait for the products of the previous turn.
            if comptime![cfg.three_key_value_cubes()] {
                settled::<E>(&*gradients, 0usize);
            }
            let (mut scores, dp) = scores_and_dp::<E>(keys, values, streamed_rows, slot, cfg);
            if comptime![!cfg.three_key_value_cubes()] {
                settled::<E>(&*gradients, 2usize);
            }

            // No thread reads the slot of the previous turn any more, and all see the log-sums and deltas of this one.
            sync_cube();
            let mut next_value = 0.0f32;
            if turn + 1 < block.blocks {
                next_value = row_value(&data.lse, &data.delta, first_row, &next, t, TILE);
                if UNIT_POS == 0 && turn > 0 {
                    let (row, column) = streamed_at(block, &next, t, cfg);
                    let (query, d_out) = (&inputs.query, &data.d_out);
                    fill_both::<E>(&mut memory.streamed, 1 - slot, query, d_out, row, column, column, cfg);
                }
            }
            sync_plane();
            advance(&mut now, &mut next, block);

            // Wait for the scores, not for `dp`.
            wait(1usize);
            pin(&scores);
            bound(&mut scores, cfg);
            add_to_columns(&mut scores, &call.masks, &corner, &at, &call.lens, cfg);
            hide_at_edges(&mut scores, q0, call, block, cfg);
            add_products::<E>(gradients, &scores, &dp, &*memory, slot, kept[0], call, cfg);
            memory.row_values[((1 - slot) * UNITS + UNIT_POS) as usize] = next_value;
        }
        settled::<E>(&*gradients, 0usize);
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

/// Enqueues what the queries and `d_out` in slot `slot` add to the gradients: `P^T d_out` to dV, then `dS^T Q` to dK.
#[cube]
fn add_products<E: Float>(
    gradients: &mut Gradients<E>,
    scores: &Array<f32>,
    dp: &Array<f32>,
    memory: &Memory<E>,
    slot: u32,
    kept: u32,
    call: &Call,
    #[comptime] cfg: FlashConfig,
) {
    let keep = call.dropout.args.scale;
    let values_at = slot * UNITS + place(UNIT_POS).column;
    let streamed_columns = describe::<E>(&memory.streamed.tiles, comptime![cfg.columns_layout()]);
    let log_sums = row_pairs(&memory.row_values, values_at, TILE);
    let p = exponentials(scores, &log_sums, comptime![cfg.scale() * LOG2_E].runtime());
    round_into::<E>(&kept_values(&p, kept, keep, cfg), &mut gradients.probabilities);
    let d_out_columns = tile(streamed_columns, 2 * slot + 1, cfg);
    enqueue::<E>(&mut gradients.dv, &gradients.probabilities, d_out_columns, comptime![cfg.columns_layout()]);

    let deltas = row_pairs(&memory.row_values, values_at + comptime![TILE as u32], TILE);
    // Wait for `dp`, not for `dv`.
    wait(1usize);
    pin(dp);
    let d_probabilities = kept_values(dp, kept, keep, cfg);
    let mut d_scores = score_gradients(&p, &d_probabilities, &deltas, comptime![cfg.scale()].runtime());
    pass_bound(&mut d_scores, &p, &memory.row_values, values_at, cfg);
    round_into::<E>(&d_scores, &mut gradients.d_scores);
    let query_columns = tile(streamed_columns, 2 * slot, cfg);
    enqueue::<E>(&mut gradients.dk, &gradients.d_scores, query_columns, comptime![cfg.columns_layout()]);
}

/// Waits until at most `running` groups of products are in flight, none of which writes the gradients or reads their
/// operands.
#[cube]
fn settled<E: Float>(gradients: &Gradients<E>, #[comptime] running: usize) {
    wait(running);
    pin(&gradients.dk);
    pin(&gradients.dv);
    pin_all::<E>(&gradients.probabilities);
    pin_all::<E>(&gradients.d_scores);
}
