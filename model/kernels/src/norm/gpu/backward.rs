//! Backward: the gradients of the sum and of the branch, row by row, and each block's sums of the parameter gradients.

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::UNITS;
use super::parameters::{Sums, no_sums, store_sums};
use super::row::{Normalization, Row, row_sum, row_unit};
use crate::dropout::kernel::{DropArgs, keep_factors};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::pipeline::{VECTOR_BYTES, await_turn, barriers};
use crate::gpu::reduce::sum_of;

/// Turns whose rows are in flight (`benches/results/2026-11-22-h200-bbaf122.md`), and the tensors
/// they come from.
const STAGES: usize = 3;
const STREAMS: usize = 3;
/// Bytes of shared memory for the rows in flight, so that two blocks share a multiprocessor
/// (`benches/results/2026-11-22-h200-f0fc519.md`).
const STREAM_BYTES: usize = 96 * 1024;

/// What [`norm_backward`] is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BackwardConfig {
    pub(super) row: Row,
    pub(super) normalization: Normalization,
    /// There is a gradient of the sum.
    pub(super) has_residual: bool,
    /// The gradient of the branch's bias is wanted.
    pub(super) has_bias: bool,
    /// The branch was dropped.
    pub(super) is_dropped: bool,
    /// Rows come through shared memory.
    pub(super) is_streamed: bool,
}

impl BackwardConfig {
    /// Returns whether the rows of the turns in flight fit into shared memory.
    pub(super) fn can_stream(row: Row) -> bool {
        STAGES * STREAMS * row.turn_vectors() * VECTOR_BYTES <= STREAM_BYTES
    }

    /// Returns the blocks per multiprocessor, all resident at once. Their number bounds registers and partial sums.
    pub(super) fn cubes(&self) -> u32 {
        match self.row.slots() {
            1 | 2 => 4,
            3 => 3,
            _ => 2,
        }
    }

    /// Returns whether backward reads a row in shared memory twice instead of keeping it in registers.
    fn reads_again(&self) -> bool {
        self.is_streamed && self.row.slots() > 2
    }

    /// Returns the number of parameters whose gradients are summed: gamma, beta, and the branch's bias.
    pub(super) fn parameters(&self) -> u32 {
        if self.has_bias { 3 } else { 2 }
    }
}

/// Inputs that the configuration does not ask for are not touched.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Inputs<F: Float, N: Size> {
    /// The sum that was normalized.
    pub(super) x: Box<[Vector<F, N>]>,
    pub(super) statistics: Box<[f32]>,
    pub(super) gamma: Box<[Vector<F, N>]>,
    pub(super) dy: Box<[Vector<F, N>]>,
    /// The gradient of the sum.
    pub(super) dsum: Box<[Vector<F, N>]>,
    /// Of the random stream.
    pub(super) state: Box<[i32]>,
}

/// The gradients that are written row by row, and the blocks' sums of parameter gradients.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Outputs<F: Float, N: Size> {
    pub(super) dx: Box<[Vector<F, N>]>,
    pub(super) dbranch: Box<[Vector<F, N>]>,
    pub(super) partial: Box<[Vector<f32, N>]>,
}

/// Rows in flight to shared memory. The rows of a turn are adjacent: one bulk copy per tensor.
#[derive(CubeType)]
struct Stream<F: Float, N: Size> {
    x: Shared<[Vector<F, N>]>,
    dy: Shared<[Vector<F, N>]>,
    dsum: Shared<[Vector<F, N>]>,
    /// Signals per stage that its rows have arrived.
    full: Sequence<Shared<Barrier>>,
}

/// Allocates the stages. Without streaming they are names only.
#[cube]
fn stream<F: Float, N: Size>(#[comptime] config: BackwardConfig) -> Stream<F, N> {
    let stages = comptime![if config.is_streamed { STAGES } else { 0 }];
    let room = comptime![(stages * config.row.turn_vectors()).max(1)];
    let dsum_room = comptime![if config.has_residual { room } else { 1 }];
    Stream::<F, N> {
        x: Shared::<[Vector<F, N>]>::new_aligned_slice(room, 128usize),
        dy: Shared::<[Vector<F, N>]>::new_aligned_slice(room, 128usize),
        dsum: Shared::<[Vector<F, N>]>::new_aligned_slice(dsum_room, 128usize),
        full: barriers(stages),
    }
}

/// Requests the rows of a turn, from `first` on, if there are any. For thread 0 only.
#[cube]
fn request<F: Float, N: Size>(
    stream: &mut Stream<F, N>,
    inputs: &Inputs<F, N>,
    first: u32,
    rows: u32,
    #[comptime] slot: usize,
    #[comptime] config: BackwardConfig,
) {
    if first < rows {
        let vectors = min(rows - first, comptime![config.row.per_cube()].runtime()) * comptime![config.row.vectors];
        let bytes = comptime![(if config.has_residual { 3 } else { 2 } * VECTOR_BYTES) as u32];
        let full = stream.full.index(slot);
        full.arrive_and_expect_tx(1u32, vectors * bytes);

        let from = (first * comptime![config.row.vectors]) as usize;
        let to = from + vectors as usize;
        let start = comptime![slot * config.row.turn_vectors()].runtime();
        let end = start + vectors as usize;
        full.memcpy_async_tx(&inputs.x[from..to], &mut stream.x[start..end]);
        full.memcpy_async_tx(&inputs.dy[from..to], &mut stream.dy[start..end]);
        if comptime![config.has_residual] {
            full.memcpy_async_tx(&inputs.dsum[from..to], &mut stream.dsum[start..end]);
        }
    }
}

/// Returns vector `position` of `tensor`, which is `staged[at]` if rows are streamed.
#[cube]
fn fetch<F: Float, N: Size>(
    tensor: &[Vector<F, N>],
    staged: &Shared<[Vector<F, N>]>,
    position: u32,
    at: u32,
    #[comptime] config: BackwardConfig,
) -> Vector<f32, N> {
    if comptime![config.is_streamed] {
        Vector::cast_from(staged[at as usize])
    } else {
        Vector::cast_from(tensor[position as usize])
    }
}

/// The row that a thread works on.
#[derive(CubeType)]
struct Current<N: Size> {
    /// Its number.
    nth: u32,
    /// Where it begins in shared memory.
    staged: u32,
    mean: Vector<f32, N>,
    inverse_root: Vector<f32, N>,
}

/// Returns the normalized vector `at` of the row, and its gradient.
#[cube]
fn row_part<F: Float, N: Size>(
    inputs: &Inputs<F, N>,
    stream: &Stream<F, N>,
    current: &Current<N>,
    at: u32,
    #[comptime] config: BackwardConfig,
) -> (Vector<f32, N>, Vector<f32, N>) {
    let position = current.nth * comptime![config.row.vectors] + at;
    let value = fetch::<F, N>(&inputs.x, &stream.x, position, current.staged + at, config);
    let gradient = fetch::<F, N>(&inputs.dy, &stream.dy, position, current.staged + at, config);
    ((value - current.mean) * current.inverse_root, gradient)
}

/// Writes a row's gradients and adds its part to the sums of the parameter gradients.
#[cube]
fn row_gradient<F: Float, N: Size>(
    inputs: &Inputs<F, N>,
    stream: &Stream<F, N>,
    current: &Current<N>,
    outputs: &mut Outputs<F, N>,
    sums: &mut Sums<N>,
    drop: &DropArgs,
    #[comptime] config: BackwardConfig,
) {
    let row = comptime![config.row];
    let vectors = comptime![config.row.vectors];
    let slots = comptime![config.row.slots()];
    let width = N::value().comptime();
    let n = comptime![(config.row.vectors as usize * width) as f32].runtime();

    // Means over the row.
    let mut normalized = Array::<Vector<f32, N>>::new(slots);
    let mut held = Array::<Vector<f32, N>>::new(slots);
    let mut sum = 0.0f32;
    let mut sum_product = 0.0f32;
    #[unroll]
    for i in 0..slots {
        let at = row_unit(row) + comptime![i as u32 * config.row.units()];
        if at < vectors {
            let (value, gradient) = row_part::<F, N>(inputs, stream, current, at, config);
            normalized[i] = value;
            sums.gamma[i] += gradient * value;
            sums.beta[i] += gradient;
            held[i] = gradient * Vector::<f32, N>::cast_from(inputs.gamma[at as usize]);
            sum += sum_of::<N>(held[i]);
            sum_product += sum_of::<N>(held[i] * normalized[i]);
        }
    }
    let mut mean = Vector::<f32, N>::zeroed();
    if comptime![config.normalization == Normalization::Layer] {
        mean = Vector::<f32, N>::new(row_sum(sum, row) / n);
    }
    let mean_product = Vector::<f32, N>::new(row_sum(sum_product, row) / n);

    // The gradients.
    #[unroll]
    for i in 0..slots {
        let at = row_unit(row) + comptime![i as u32 * config.row.units()];
        if comptime![config.reads_again()] {
            // Otherwise the compiler would keep the values it has read.
            sync_plane();
        }
        if at < vectors {
            let position = current.nth * vectors + at;
            if comptime![config.reads_again()] {
                let (value, gradient) = row_part::<F, N>(inputs, stream, current, at, config);
                normalized[i] = value;
                held[i] = gradient * Vector::<f32, N>::cast_from(inputs.gamma[at as usize]);
            }
            let mut gradient = current.inverse_root * (held[i] - mean - normalized[i] * mean_product);
            if comptime![config.has_residual] {
                gradient += fetch::<F, N>(&inputs.dsum, &stream.dsum, position, current.staged + at, config);
            }
            outputs.dx[position as usize] = Vector::cast_from(gradient);
            if comptime![config.is_dropped] {
                gradient = gradient * keep_factors::<N>(position, drop.site, &inputs.state, drop.limit, drop.scale);
                outputs.dbranch[position as usize] = Vector::cast_from(gradient);
            }
            if comptime![config.has_bias] {
                sums.bias[i] += gradient;
            }
        }
    }
}

/// Computes the gradients of `rows` rows, and each block's sums of the parameter gradients over its rows.
#[cube(launch_unchecked)]
pub(super) fn norm_backward<F: Float, N: Size>(
    inputs: &Inputs<F, N>,
    outputs: &mut Outputs<F, N>,
    rows: u32,
    drop: &DropArgs,
    #[comptime] config: BackwardConfig,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![config.cubes() as usize]);
    let vectors = comptime![config.row.vectors];
    let mut sums = no_sums::<N>(config.row);
    let step = CUBE_COUNT as u32 * comptime![config.row.per_cube()];
    let mut first = CUBE_POS as u32 * comptime![config.row.per_cube()];
    let mut stream = stream::<F, N>(config);
    if comptime![config.is_streamed] {
        if UNIT_POS == 0 {
            #[unroll]
            for slot in 0..STAGES {
                request::<F, N>(&mut stream, inputs, first + comptime![slot as u32] * step, rows, slot, config);
            }
        }
    }

    // Statistics are loaded one turn ahead.
    let row_of_turn = UNIT_POS / comptime![config.row.units()];
    let mut next = 2 * min(first + row_of_turn, rows - 1) as usize;
    let mut next_mean = inputs.statistics[next];
    let mut next_inverse = inputs.statistics[next + 1];
    let mut turn = 0u32.runtime();
    while first < rows {
        let mean = Vector::<f32, N>::new(next_mean);
        let inverse_root = Vector::<f32, N>::new(next_inverse);
        next = 2 * min(first + step + row_of_turn, rows - 1) as usize;
        next_mean = inputs.statistics[next];
        next_inverse = inputs.statistics[next + 1];

        let mut slot = 0u32.runtime();
        if comptime![config.is_streamed] {
            slot = await_turn(&stream.full, turn, STAGES);
        }
        let nth = first + row_of_turn;
        if nth < rows {
            let staged = slot * comptime![config.row.turn_vectors() as u32] + row_of_turn * vectors;
            let current = Current::<N> { nth, staged, mean, inverse_root };
            row_gradient::<F, N>(inputs, &stream, &current, outputs, &mut sums, drop, config);
        }

        if comptime![config.is_streamed || config.row.units() == UNITS] {
            // All threads have read these rows, and the sums in shared memory.
            sync_cube();
        }
        if comptime![config.is_streamed] {
            if UNIT_POS == 0 {
                #[unroll]
                for s in 0..STAGES {
                    if slot == comptime![s as u32] {
                        let then = first + comptime![STAGES as u32] * step;
                        request::<F, N>(&mut stream, inputs, then, rows, s, config);
                    }
                }
            }
            sync_plane();
        }
        first += step;
        turn += 1;
    }

    store_sums::<N>(&sums, &mut outputs.partial, comptime![config.parameters()], config.row);
}
