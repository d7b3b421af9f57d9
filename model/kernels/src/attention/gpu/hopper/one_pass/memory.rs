//! The tiles of a block in shared memory: who fills them, and how products read them.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
use cubecl_ir::types::MatrixIdent;

use super::PassConfig;
use super::column::{KEYS, Origin};
use crate::attention::gpu::shared::arguments::Inputs;
use crate::attention::gpu::shared::config::{TILE, UNITS};
use crate::attention::gpu::shared::key_tile::KeyTile;
use crate::attention::gpu::shared::position::{key_column, value_column};
use crate::attention::gpu::shared::{Oct, Pair};
use crate::gpu::pipeline::{Pipeline, loaded_barriers, pipeline};
use crate::gpu::wgmma::describe;

/// Four numbers of a sum, which a thread moves at once.
pub(super) type Quad = Vector<f32, Const<4>>;

/// Slots of queries and of `d_out`: as many as fit, next to [`BUFFERS`]. `benches/results/2026-11-30-h200-attention-programs.md` has no
/// other number.
pub(super) const STAGES: usize = 2;
/// Buffers of the gradients of scores. A warpgroup stores a turn's once the other one has stored the turn before's. The other one has
/// then read what was stored three turns before.
pub(super) const BUFFERS: usize = 3;
/// Columns of a TMA box and of a panel of shared memory: a line of 128 bytes.
pub(super) const PANEL: usize = 64;
/// The tiles of a block.
#[derive(CubeType)]
pub(super) struct Memory<E: Float> {
    pub(super) keys: Shared<[E]>,
    pub(super) values: Shared<[E]>,
    /// [`STAGES`] slots.
    pub(super) queries: Shared<[E]>,
    pub(super) d_out: Shared<[E]>,
    /// [`BUFFERS`] of gradients of scores, keys by queries, in panels of 64 queries.
    pub(super) d_scores: Shared<[Oct<E>]>,
    /// A part of dQ of each warpgroup, in the order of its registers.
    pub(super) parts: Shared<[Quad]>,
    /// Log-sums and deltas of the queries in each slot.
    pub(super) row_values: Shared<[f32]>,
    /// Keys and values are there.
    pub(super) resident: Sequence<Shared<Barrier>>,
    /// Per slot: queries and `d_out` are there, and have been read.
    pub(super) streamed: Pipeline,
    /// Per buffer: the gradients of scores are there.
    pub(super) scores_of: Pipeline,
    /// Per warpgroup: its part of dQ is there, and has been read.
    pub(super) parts_of: Pipeline,
}

/// Allocates the memory of a block. The caller fences and synchronizes before it fills it.
#[cube]
pub(super) fn memory<E: Float>(#[comptime] cfg: PassConfig) -> Memory<E> {
    let rows = comptime![cfg.rows()];
    Memory::<E> {
        keys: Shared::<[E]>::new_aligned_slice(comptime![KEYS * cfg.flash.head_dim], 1024usize),
        values: Shared::<[E]>::new_aligned_slice(comptime![KEYS * cfg.flash.head_dim], 1024usize),
        queries: Shared::<[E]>::new_aligned_slice(comptime![STAGES * rows * cfg.flash.head_dim], 1024usize),
        d_out: Shared::<[E]>::new_aligned_slice(comptime![STAGES * rows * cfg.flash.head_dim], 1024usize),
        d_scores: Shared::<[Oct<E>]>::new_aligned_slice(comptime![BUFFERS * KEYS * rows / 8], 1024usize),
        parts: Shared::<[Quad]>::new_aligned_slice(comptime![2 * cfg.part_quads()], 1024usize),
        row_values: Shared::<[f32]>::new_slice(comptime![STAGES * 2 * rows]),
        resident: loaded_barriers(1usize),
        streamed: pipeline(STAGES, 2u32, 8u32),
        scores_of: pipeline(BUFFERS, 8u32, 1u32),
        parts_of: pipeline(2usize, 4u32, 1u32),
    }
}

/// Requests the keys and values of a block. For one thread.
#[cube]
pub(super) fn fill_resident<E: Float>(
    memory: &mut Memory<E>,
    inputs: &Inputs<E>,
    column: &KeyTile,
    s: u32,
    #[comptime] cfg: PassConfig,
) {
    let row = column.batch * s + column.nth * comptime![KEYS as u32];
    let barrier = memory.resident.index(0usize);
    barrier.arrive_and_expect_tx(1, comptime![(2 * 2 * KEYS * cfg.flash.head_dim) as u32]);
    #[unroll]
    for panel in 0..comptime![cfg.flash.head_dim / PANEL] {
        let from = comptime![panel * KEYS * PANEL];
        let to = comptime![from + KEYS * PANEL];
        let key = key_column(column.group, comptime![cfg.flash]) + comptime![(panel * PANEL) as u32];
        let value = value_column(column.group, comptime![cfg.flash]) + comptime![(panel * PANEL) as u32];
        barrier.tma_load_2d(&inputs.key_value, &mut memory.keys[from..to], row as i32, key as i32);
        barrier.tma_load_2d(&inputs.key_value, &mut memory.values[from..to], row as i32, value as i32);
    }
}

/// Requests the queries and `d_out` that begin at `from` in their matrices for the slot of turn `turn`. For one thread.
#[cube]
pub(super) fn fill_streamed<E: Float>(
    memory: &mut Memory<E>,
    query: &TensorMap<E, Tiled>,
    d_out: &TensorMap<E, Tiled>,
    turn: u32,
    from: &Origin,
    #[comptime] cfg: PassConfig,
) {
    let rows = comptime![cfg.rows()];
    #[unroll]
    for slot in 0..STAGES {
        if turn % comptime![STAGES as u32] == comptime![slot as u32] {
            let barrier = memory.streamed.loaded.index(slot);
            barrier.arrive_and_expect_tx(1, comptime![(2 * 2 * rows * cfg.flash.head_dim) as u32]);
            #[unroll]
            for panel in 0..comptime![cfg.flash.head_dim / PANEL] {
                let start = comptime![(slot * cfg.flash.head_dim + panel * PANEL) * rows];
                let end = comptime![start + rows * PANEL];
                let column = from.column + comptime![(panel * PANEL) as u32];
                barrier.tma_load_2d(query, &mut memory.queries[start..end], from.row as i32, column as i32);
                barrier.tma_load_2d(d_out, &mut memory.d_out[start..end], from.row as i32, column as i32);
            }
        }
    }
}

/// Stores the gradients of the scores of a warpgroup's 64 keys, which the left operand `d_scores` holds, in buffer `buffer` of two.
/// Each warp transposes its registers (`stmatrix`), in the swizzle that products read.
#[cube]
pub(super) fn store_d_scores<E: Float>(
    d_scores: &Sequence<Array<E>>,
    memory: &mut Shared<[Oct<E>]>,
    buffer: u32,
    group: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let lane = unit % 32;
    let row = group * comptime![TILE as u32] + unit / 32 * 16 + lane % 16;
    let buffer = buffer * comptime![(KEYS * cfg.rows() / 8) as u32];

    #[unroll]
    for step in 0..d_scores.len() {
        let fragment = d_scores.index(step);
        let mut four = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for matrix in 0..4usize {
            let mut pair = Pair::<E>::empty();
            pair.insert(0usize, fragment[comptime![2 * matrix]]);
            pair.insert(1usize, fragment[comptime![2 * matrix + 1]]);
            four[matrix] = pair;
        }

        let panel = comptime![(step / 4 * KEYS * PANEL / 8) as u32];
        let oct = lane / 16 + comptime![(step % 4 * 2) as u32];
        let at = (buffer + panel + row * comptime![PANEL as u32 / 8] + (oct ^ (row % 8))) as usize;
        instruction.store_matrix::<Oct<E>, Const<2>>(
            &mut memory[at..at + 1],
            &four,
            MatrixIdent::Accumulator,
            4usize,
            false,
        );
    }
}

/// Stores a warpgroup's part of dQ, each thread its own numbers.
#[cube]
pub(super) fn store_part(
    part: &Array<f32>,
    parts: &mut Shared<[Quad]>,
    group: u32,
    unit: u32,
    #[comptime] cfg: PassConfig,
) {
    #[unroll]
    for i in 0..comptime![cfg.part_quads() / UNITS as usize] {
        let mut quad = Quad::empty();
        #[unroll]
        for j in 0..4usize {
            quad.insert(j, part[comptime![4 * i + j]]);
        }
        parts[(group * comptime![cfg.part_quads() as u32] + comptime![i as u32 * UNITS] + unit) as usize] = quad;
    }
}

fn layout(major: Major, rows: usize, k: usize) -> WgmmaTileLayout {
    WgmmaTileLayout { major, swizzle: Swizzle::B128, rows, k }
}

/// Keys or values, which a product sums over the columns of.
pub(super) fn key_rows(cfg: PassConfig) -> WgmmaTileLayout {
    layout(Major::K, KEYS, cfg.flash.head_dim)
}

/// Queries or `d_out`, which a product sums over the columns of.
pub(super) fn query_rows(cfg: PassConfig) -> WgmmaTileLayout {
    layout(Major::K, cfg.rows(), cfg.flash.head_dim)
}

/// Queries or `d_out`, which a product sums over the rows of.
pub(super) fn query_columns(cfg: PassConfig) -> WgmmaTileLayout {
    layout(Major::MN, cfg.flash.head_dim, cfg.rows())
}

/// Where products find the tiles of a warpgroup: halves of descriptors, see [`describe`].
#[derive(CubeType)]
pub(super) struct Operands {
    /// Its keys and its values, 64 of each.
    pub(super) keys: u32,
    pub(super) values: u32,
    /// Slot 0 of queries and `d_out`, for sums over columns and over rows.
    pub(super) query_rows: u32,
    pub(super) query_columns: u32,
    pub(super) d_out_rows: u32,
    pub(super) d_out_columns: u32,
    /// For its part of dQ: the gradients of scores in buffer 0, and columns of all keys.
    pub(super) d_scores: u32,
    pub(super) key_columns: u32,
}

/// Returns the operands of warpgroup `group`.
#[cube]
pub(super) fn operands<E: Float>(memory: &Memory<E>, group: u32, #[comptime] cfg: PassConfig) -> Operands {
    let own = group * comptime![(TILE * PANEL * 2 / 16) as u32];
    // A warpgroup computes dQ of its queries, or of its columns.
    let panel = group * comptime![(KEYS * PANEL * 2 / 16) as u32];
    let (mut d_scores, mut key_columns) = (
        describe::<Oct<E>>(&memory.d_scores, comptime![panel_of_scores()]),
        describe::<E>(&memory.keys, comptime![key_columns(cfg)]),
    );
    if comptime![cfg.parts_have_all_columns()] {
        d_scores += panel;
    } else {
        key_columns += panel;
    }
    Operands {
        keys: describe::<E>(&memory.keys, comptime![key_rows(cfg)]) + own,
        values: describe::<E>(&memory.values, comptime![key_rows(cfg)]) + own,
        query_rows: describe::<E>(&memory.queries, comptime![query_rows(cfg)]),
        query_columns: describe::<E>(&memory.queries, comptime![query_columns(cfg)]),
        d_out_rows: describe::<E>(&memory.d_out, comptime![query_rows(cfg)]),
        d_out_columns: describe::<E>(&memory.d_out, comptime![query_columns(cfg)]),
        d_scores,
        key_columns,
    }
}

/// Returns what the slot of turn `turn` adds to the descriptors of slot 0.
#[cube]
pub(super) fn slot_of(turn: u32, #[comptime] cfg: PassConfig) -> u32 {
    turn % comptime![STAGES as u32] * comptime![(cfg.rows() * cfg.flash.head_dim * 2 / 16) as u32]
}

/// Returns what the buffer of turn `turn` adds to the descriptor of the gradients of scores.
#[cube]
pub(super) fn buffer_of(turn: u32, #[comptime] cfg: PassConfig) -> u32 {
    turn % comptime![BUFFERS as u32] * comptime![(KEYS * cfg.rows() * 2 / 16) as u32]
}

/// A panel of the gradients of scores, which a product sums over the keys of.
pub(super) fn panel_of_scores() -> WgmmaTileLayout {
    layout(Major::MN, PANEL, KEYS)
}

/// The columns of keys that a warpgroup's part of dQ has, which a product sums over the rows of.
pub(super) fn key_columns(cfg: PassConfig) -> WgmmaTileLayout {
    layout(Major::MN, cfg.part_columns(), KEYS)
}
