//! Normalization on CubeCL devices: rows in registers, every byte of the inputs read once and of the results written
//! once.
//!
//! Backward also sums the gradients of the parameters, in registers that leave room for few warps. What the next rows
//! need comes through shared memory therefore, a few turns ahead.

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use crate::dropout::kernel::keep_factors;
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::pipeline::{VECTOR_BYTES, await_turn, barriers};
use crate::gpu::reduce::{One, add_up, cube_sum, sum_of};

/// Units of a cube that works on rows: few, so that several cubes share the registers of a multiprocessor in backward.
pub(super) const UNITS: u32 = 128;
/// Rows of up to this many vectors are taken by one plane each; longer ones by a whole cube.
const PLANE_VECTORS: u32 = 128;
/// Units of [`reduce_partial`]'s cubes: columns times slices of the partial sums.
pub(super) const REDUCE_UNITS: u32 = 1024;
pub(super) const REDUCE_COLUMNS: u32 = 32;
const REDUCE_SLICES: u32 = REDUCE_UNITS / REDUCE_COLUMNS;
/// Partial sums that a unit of [`reduce_partial`] has under way at a time.
const SUMS_AT_ONCE: u32 = 9;
/// Turns of backward whose rows are on their way at a time, and the tensors that they are of.
const STAGES: usize = 3;
const STREAMS: usize = 3;
/// Bytes of shared memory that rows on their way may take, so that two cubes share a multiprocessor's.
const STREAM_BYTES: usize = 96 * 1024;

/// What a launch does; part of the kernel's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RowConfig {
    /// Vectors of a row.
    pub(super) vectors: u32,
    /// Layer normalization, not root mean square.
    pub(super) centered: bool,
    /// There is a branch to add (forward).
    pub(super) branch: bool,
    /// The branch has a bias (forward), whose gradient is wanted (backward).
    pub(super) bias: bool,
    /// There is a shift (forward).
    pub(super) shift: bool,
    /// There is a gradient of the sum (backward).
    pub(super) residual: bool,
    /// The branch is dropped.
    pub(super) dropped: bool,
    /// Rows come through shared memory (backward).
    pub(super) streamed: bool,
}

impl RowConfig {
    /// Units that share a row.
    pub(super) fn row_units(&self) -> u32 {
        if self.vectors <= PLANE_VECTORS { 32 } else { UNITS }
    }

    /// Rows that a cube works on at a time.
    pub(super) fn rows_per_cube(&self) -> u32 {
        UNITS / self.row_units()
    }

    /// Vectors of a row that a unit holds.
    fn slots(&self) -> usize {
        self.vectors.div_ceil(self.row_units()) as usize
    }

    /// Whether the rows of some turns fit into shared memory.
    pub(super) fn can_stream(&self) -> bool {
        STAGES * STREAMS * self.turn_vectors() * VECTOR_BYTES <= STREAM_BYTES
    }

    /// Vectors of the rows that a cube works on at a time.
    fn turn_vectors(&self) -> usize {
        (self.rows_per_cube() * self.vectors) as usize
    }

    /// Cubes of forward on a multiprocessor at a time: units that wait for memory are many.
    fn forward_cubes(&self) -> usize {
        match self.slots() {
            1 | 2 => 10,
            3 => 8,
            _ => 4,
        }
    }

    /// Cubes of backward for each multiprocessor, all at the same time, which bounds registers and partial sums.
    pub(super) fn cubes_at_once(&self) -> u32 {
        match self.slots() {
            1 | 2 => 4,
            3 => 3,
            _ => 2,
        }
    }

    /// Whether backward reads a row in shared memory twice rather than keep it in registers.
    fn reads_again(&self) -> bool {
        self.streamed && self.slots() > 2
    }

    /// Parameters of which backward sums the gradients: gamma, beta, the branch's bias.
    pub(super) fn parameters(&self) -> u32 {
        if self.bias { 3 } else { 2 }
    }
}

/// Sum over the units of a row, the same on each.
#[cube]
fn row_sum(value: f32, #[comptime] config: RowConfig) -> f32 {
    if comptime![config.row_units() == 32] { plane_sum(value) } else { cube_sum(value, UNITS) }
}

/// The unit's number among those of its row.
#[cube]
fn row_unit(#[comptime] config: RowConfig) -> u32 {
    if comptime![config.row_units() == 32] { UNIT_POS_PLANE } else { UNIT_POS }
}

/// The unit's share of row `row`: vector `unit + row_units * i` in slot `i`, zeros beyond the row.
#[cube]
fn load_row<F: Float, N: Size>(
    x: &[Vector<F, N>],
    row: u32,
    held: &mut Array<Vector<F, N>>,
    #[comptime] config: RowConfig,
) {
    #[unroll]
    for i in 0..comptime![config.slots()] {
        let at = row_unit(config) + comptime![i as u32 * config.row_units()];
        held[i] = Vector::<F, N>::zeroed();
        if at < comptime![config.vectors] {
            held[i] = x[(row * comptime![config.vectors] + at) as usize];
        }
    }
}

/// Subtracts the mean of the row (if any is subtracted) and returns it, and one over the root of the mean square plus
/// `eps`.
#[cube]
fn center<N: Size>(held: &mut Array<Vector<f32, N>>, eps: f32, #[comptime] config: RowConfig) -> (f32, f32) {
    let slots = comptime![config.slots()];
    let width = N::value().comptime();
    let n = comptime![(config.vectors as usize * width) as f32].runtime();
    let mut square = 0.0f32;
    let mut mean = 0.0f32;
    if comptime![config.centered] {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..slots {
            sum += sum_of::<N>(held[i]);
        }
        mean = row_sum(sum, config) / n;
        let subtracted = Vector::<f32, N>::new(mean);
        #[unroll]
        for i in 0..slots {
            if row_unit(config) + comptime![i as u32 * config.row_units()] < comptime![config.vectors] {
                let centered = held[i] - subtracted;
                held[i] = centered;
                square += sum_of::<N>(centered * centered);
            }
        }
    } else {
        #[unroll]
        for i in 0..slots {
            square += sum_of::<N>(held[i] * held[i]);
        }
    }
    (mean, f32::inverse_sqrt(row_sum(square, config) / n + eps))
}

/// Arguments that `config` does not ask for are never touched.
#[cube(launch_unchecked)]
pub(super) fn forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    branch: &[Vector<F, N>],
    bias: &[Vector<F, N>],
    state: &[i32],
    gamma: &[Vector<F, N>],
    beta: &[Vector<F, N>],
    sum: &mut [Vector<F, N>],
    y: &mut [Vector<F, N>],
    statistics: &mut [f32],
    rows: u32,
    eps: f32,
    site: u32,
    limit: u32,
    scale: f32,
    #[comptime] config: RowConfig,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![config.forward_cubes()]);
    let vectors = comptime![config.vectors];
    let row = CUBE_POS as u32 * comptime![config.rows_per_cube()] + UNIT_POS / comptime![config.row_units()];
    if row < rows {
        let mut loaded = Array::<Vector<F, N>>::new(comptime![config.slots()]);
        let mut added = Array::<Vector<F, N>>::new(comptime![config.slots()]);
        load_row::<F, N>(x, row, &mut loaded, config);
        if comptime![config.branch] {
            load_row::<F, N>(branch, row, &mut added, config);
        }
        let mut held = Array::<Vector<f32, N>>::new(comptime![config.slots()]);
        #[unroll]
        for i in 0..comptime![config.slots()] {
            held[i] = Vector::cast_from(loaded[i]);
        }
        if comptime![config.branch] {
            #[unroll]
            for i in 0..comptime![config.slots()] {
                let at = row_unit(config) + comptime![i as u32 * config.row_units()];
                if at < vectors {
                    let position = row * vectors + at;
                    let mut addend = Vector::<f32, N>::cast_from(added[i]);
                    if comptime![config.bias] {
                        addend += Vector::<f32, N>::cast_from(bias[at as usize]);
                    }
                    if comptime![config.dropped] {
                        addend = addend * keep_factors::<N>(position, site, state, limit, scale);
                    }
                    // The norm is that of the sum as it is stored: backward has no other.
                    let stored = Vector::<F, N>::cast_from(held[i] + addend);
                    sum[position as usize] = stored;
                    held[i] = Vector::cast_from(stored);
                }
            }
        }
        let (mean, inverse_root) = center::<N>(&mut held, eps, config);
        if row_unit(config) == 0 {
            statistics[(row * 2) as usize] = mean;
            statistics[(row * 2 + 1) as usize] = inverse_root;
        }
        let inverse = Vector::<f32, N>::new(inverse_root);
        #[unroll]
        for i in 0..comptime![config.slots()] {
            let at = row_unit(config) + comptime![i as u32 * config.row_units()];
            if at < vectors {
                let mut normed = held[i] * inverse * Vector::<f32, N>::cast_from(gamma[at as usize]);
                if comptime![config.shift] {
                    normed += Vector::<f32, N>::cast_from(beta[at as usize]);
                }
                y[(row * vectors + at) as usize] = Vector::cast_from(normed);
            }
        }
    }
}

/// Rows of backward on their way through shared memory. Those of a turn lie side by side: a bulk copy for each tensor.
#[derive(CubeType)]
struct Stream<F: Float, N: Size> {
    x: Shared<[Vector<F, N>]>,
    dy: Shared<[Vector<F, N>]>,
    dsum: Shared<[Vector<F, N>]>,
    /// Of the turns' slots: what was asked for is there.
    full: Sequence<Shared<Barrier>>,
}

/// Nothing but names where rows are not streamed.
#[cube]
fn stream<F: Float, N: Size>(#[comptime] config: RowConfig) -> Stream<F, N> {
    let stages = comptime![if config.streamed { STAGES } else { 0 }];
    let room = comptime![(stages * config.turn_vectors()).max(1)];
    let dsum_room = comptime![if config.residual { room } else { 1 }];
    Stream::<F, N> {
        x: Shared::<[Vector<F, N>]>::new_aligned_slice(room, 128usize),
        dy: Shared::<[Vector<F, N>]>::new_aligned_slice(room, 128usize),
        dsum: Shared::<[Vector<F, N>]>::new_aligned_slice(dsum_room, 128usize),
        full: barriers(stages),
    }
}

/// Unit 0 asks for the rows of a turn, those from `first` on, if there are any.
#[cube]
fn ask<F: Float, N: Size>(
    stream: &mut Stream<F, N>,
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    dsum: &[Vector<F, N>],
    first: u32,
    rows: u32,
    #[comptime] slot: usize,
    #[comptime] config: RowConfig,
) {
    if first < rows {
        let vectors = min(rows - first, comptime![config.rows_per_cube()].runtime()) * comptime![config.vectors];
        let bytes = comptime![(if config.residual { 3 } else { 2 } * VECTOR_BYTES) as u32];
        let full = stream.full.index(slot);
        full.arrive_and_expect_tx(1u32, vectors * bytes);
        let from = (first * comptime![config.vectors]) as usize;
        let to = from + vectors as usize;
        let start = comptime![slot * config.turn_vectors()].runtime();
        let end = start + vectors as usize;
        full.memcpy_async_tx(&x[from..to], &mut stream.x[start..end]);
        full.memcpy_async_tx(&dy[from..to], &mut stream.dy[start..end]);
        if comptime![config.residual] {
            full.memcpy_async_tx(&dsum[from..to], &mut stream.dsum[start..end]);
        }
    }
}

/// Vector `position` of `tensor`, which is `staged[at]` where rows are streamed.
#[cube]
fn fetch<F: Float, N: Size>(
    tensor: &[Vector<F, N>],
    staged: &Shared<[Vector<F, N>]>,
    position: u32,
    at: u32,
    #[comptime] config: RowConfig,
) -> Vector<f32, N> {
    if comptime![config.streamed] {
        Vector::cast_from(staged[at as usize])
    } else {
        Vector::cast_from(tensor[position as usize])
    }
}

/// The normalized vector `position` and its gradient, `staged[at]` where rows are streamed.
#[cube]
fn row_part<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    stream: &Stream<F, N>,
    position: u32,
    at: u32,
    mean: Vector<f32, N>,
    inverse_root: Vector<f32, N>,
    #[comptime] config: RowConfig,
) -> (Vector<f32, N>, Vector<f32, N>) {
    let value = fetch::<F, N>(x, &stream.x, position, at, config);
    let gradient = fetch::<F, N>(dy, &stream.dy, position, at, config);
    ((value - mean) * inverse_root, gradient)
}

/// `dx` and `dbranch`, and each cube's sums of the parameter gradients over its rows in `partial[cube]`: dgamma, dbeta,
/// and the gradient of the branch's bias if it is wanted.
#[cube(launch_unchecked)]
pub(super) fn backward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    statistics: &[f32],
    gamma: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    dsum: &[Vector<F, N>],
    state: &[i32],
    dx: &mut [Vector<F, N>],
    dbranch: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    rows: u32,
    site: u32,
    limit: u32,
    scale: f32,
    #[comptime] config: RowConfig,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![config.cubes_at_once() as usize]);
    let vectors = comptime![config.vectors];
    let slots = comptime![config.slots()];
    let width = N::value().comptime();
    let n = comptime![(config.vectors as usize * width) as f32].runtime();
    let mut dgamma = Array::<Vector<f32, N>>::new(slots);
    let mut dbeta = Array::<Vector<f32, N>>::new(slots);
    let mut dbias = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for i in 0..slots {
        dgamma[i] = Vector::<f32, N>::zeroed();
        dbeta[i] = Vector::<f32, N>::zeroed();
        dbias[i] = Vector::<f32, N>::zeroed();
    }
    let step = CUBE_COUNT as u32 * comptime![config.rows_per_cube()];
    let mut first = CUBE_POS as u32 * comptime![config.rows_per_cube()];
    let mut stream = stream::<F, N>(config);
    if comptime![config.streamed] {
        if UNIT_POS == 0 {
            #[unroll]
            for slot in 0..STAGES {
                ask::<F, N>(&mut stream, x, dy, dsum, first + comptime![slot as u32] * step, rows, slot, config);
            }
        }
    }
    let row_of_turn = UNIT_POS / comptime![config.row_units()];
    let mut next = 2 * min(first + row_of_turn, rows - 1) as usize;
    let mut next_mean = statistics[next];
    let mut next_inverse = statistics[next + 1];
    let mut turn = 0u32.runtime();
    while first < rows {
        let subtracted = Vector::<f32, N>::new(next_mean);
        let inverse_vector = Vector::<f32, N>::new(next_inverse);
        next = 2 * min(first + step + row_of_turn, rows - 1) as usize;
        next_mean = statistics[next];
        next_inverse = statistics[next + 1];
        let mut slot = 0u32.runtime();
        if comptime![config.streamed] {
            slot = await_turn(&stream.full, turn, STAGES);
        }
        let row = first + row_of_turn;
        if row < rows {
            let staged = slot * comptime![config.turn_vectors() as u32] + row_of_turn * vectors;
            let mut normalized = Array::<Vector<f32, N>>::new(slots);
            let mut held = Array::<Vector<f32, N>>::new(slots);
            let mut sum = 0.0f32;
            let mut sum_product = 0.0f32;
            #[unroll]
            for i in 0..slots {
                let at = row_unit(config) + comptime![i as u32 * config.row_units()];
                if at < vectors {
                    let position = row * vectors + at;
                    let (value, gradient) =
                        row_part::<F, N>(x, dy, &stream, position, staged + at, subtracted, inverse_vector, config);
                    normalized[i] = value;
                    dgamma[i] += gradient * value;
                    dbeta[i] += gradient;
                    held[i] = gradient * Vector::<f32, N>::cast_from(gamma[at as usize]);
                    sum += sum_of::<N>(held[i]);
                    sum_product += sum_of::<N>(held[i] * normalized[i]);
                }
            }
            let mut mean = Vector::<f32, N>::zeroed();
            if comptime![config.centered] {
                mean = Vector::<f32, N>::new(row_sum(sum, config) / n);
            }
            let mean_product = Vector::<f32, N>::new(row_sum(sum_product, config) / n);
            #[unroll]
            for i in 0..slots {
                let at = row_unit(config) + comptime![i as u32 * config.row_units()];
                if comptime![config.reads_again()] {
                    // Or the compiler would keep what it has read.
                    sync_plane();
                }
                if at < vectors {
                    let position = row * vectors + at;
                    if comptime![config.reads_again()] {
                        let (value, gradient) =
                            row_part::<F, N>(x, dy, &stream, position, staged + at, subtracted, inverse_vector, config);
                        normalized[i] = value;
                        held[i] = gradient * Vector::<f32, N>::cast_from(gamma[at as usize]);
                    }
                    let mut gradient = inverse_vector * (held[i] - mean - normalized[i] * mean_product);
                    if comptime![config.residual] {
                        gradient += fetch::<F, N>(dsum, &stream.dsum, position, staged + at, config);
                    }
                    dx[position as usize] = Vector::cast_from(gradient);
                    if comptime![config.dropped] {
                        gradient = gradient * keep_factors::<N>(position, site, state, limit, scale);
                        dbranch[position as usize] = Vector::cast_from(gradient);
                    }
                    if comptime![config.bias] {
                        dbias[i] += gradient;
                    }
                }
            }
        }
        if comptime![config.streamed || config.row_units() == UNITS] {
            // All have read these rows, and the sums that went through shared memory.
            sync_cube();
        }
        if comptime![config.streamed] {
            if UNIT_POS == 0 {
                #[unroll]
                for s in 0..STAGES {
                    if slot == comptime![s as u32] {
                        ask::<F, N>(&mut stream, x, dy, dsum, first + comptime![STAGES as u32] * step, rows, s, config);
                    }
                }
            }
            sync_plane();
        }
        first += step;
        turn += 1;
    }
    let base = CUBE_POS as u32 * vectors * comptime![config.parameters()];
    if comptime![config.row_units() == UNITS] {
        // A unit has its columns to itself.
        #[unroll]
        for i in 0..slots {
            let at = UNIT_POS + comptime![i as u32 * UNITS];
            if at < vectors {
                partial[(base + at) as usize] = dgamma[i];
                partial[(base + vectors + at) as usize] = dbeta[i];
                if comptime![config.bias] {
                    partial[(base + 2 * vectors + at) as usize] = dbias[i];
                }
            }
        }
    } else {
        // The planes of a cube add up in their order, one vector of columns per unit; the parameters take turns in the
        // same shared memory.
        let planes = comptime![UNITS / 32];
        let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime![(config.vectors * planes) as usize]);
        #[unroll]
        for part in 0..comptime![config.parameters()] {
            sync_cube();
            #[unroll]
            for i in 0..slots {
                let at = UNIT_POS_PLANE + comptime![i as u32 * 32];
                if at < vectors {
                    let mut held = dgamma[i];
                    if comptime![part == 1] {
                        held = dbeta[i];
                    } else if comptime![part == 2] {
                        held = dbias[i];
                    }
                    shared[(UNIT_POS / 32 * vectors + at) as usize] = held;
                }
            }
            sync_cube();
            let mut at = UNIT_POS;
            while at < vectors {
                let mut total = shared[at as usize];
                #[unroll]
                for p in 1..planes {
                    total += shared[(p * vectors + at) as usize];
                }
                partial[(base + part * vectors + at) as usize] = total;
                at += UNITS;
            }
        }
    }
}

/// Adds the cubes' sums of a parameter's gradient in a fixed order: 32 columns a cube, every 32nd partial sum a unit,
/// then the
/// 32. `CUBE_POS_Y` is the parameter's number.
#[cube(launch_unchecked)]
pub(super) fn reduce_partial<F: Float>(
    partial: &[One],
    dgamma: &mut [F],
    dbeta: &mut [F],
    dbias: &mut [F],
    d: u32,
    cubes: u32,
    #[comptime] parameters: u32,
    #[define(F)] _dtype: ElemType,
) {
    let column = CUBE_POS_X * REDUCE_COLUMNS + UNIT_POS % REDUCE_COLUMNS;
    let mut sum = One::zeroed();
    if column < d {
        let (base, stride) = ((CUBE_POS_Y * d + column) as usize, (parameters * d) as usize);
        sum = add_up(sum, partial, base, stride, UNIT_POS / REDUCE_COLUMNS, cubes, REDUCE_SLICES, SUMS_AT_ONCE);
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime![REDUCE_UNITS as usize]);
    shared[UNIT_POS as usize] = sum.extract(0usize);
    sync_cube();
    if UNIT_POS < REDUCE_COLUMNS && column < d {
        let mut total = 0.0f32;
        #[unroll]
        for i in 0..REDUCE_SLICES {
            total += shared[(i * REDUCE_COLUMNS + UNIT_POS) as usize];
        }
        let at = column as usize;
        if CUBE_POS_Y == 0 {
            dgamma[at] = F::cast_from(total);
        } else if CUBE_POS_Y == 1 {
            dbeta[at] = F::cast_from(total);
        } else {
            dbias[at] = F::cast_from(total);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::backend::cubecl::dtype_to_storage_type;
    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    /// Rows of one, two and three vectors a unit, and one that takes a whole cube; through shared memory and not.
    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let rows = [(32, false, true), (64, true, true), (96, false, true), (256, true, true), (64, true, false)];
            let mut kernels = Vec::new();
            for (vectors, dropped, streamed) in rows {
                let config = RowConfig {
                    vectors,
                    centered: true,
                    branch: true,
                    bias: true,
                    shift: true,
                    residual: true,
                    dropped,
                    streamed,
                };
                let dropout = if dropped { "-dropout" } else { "" };
                let case = format!("{vectors}-vectors{dropout}{}", if streamed { "-streamed" } else { "" });

                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let there = forward::Forward::new(
                    launch, properties, target, b(), b(), b(), b(), b(), b(), b(), b(), b(), (), (), (), (), (), 8, config, dtype,
                );
                kernels.push(Compiled::new(format!("norm/forward/{case}"), there));
                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let back = backward::Backward::new(
                    launch, properties, target, b(), b(), b(), b(), b(), b(), b(), b(), b(), (), (), (), (), 8, config, dtype,
                );
                kernels.push(Compiled::new(format!("norm/backward/{case}"), back));
            }

            let (launch, properties, target) = settings(REDUCE_UNITS);
            let sums = reduce_partial::ReducePartial::new(launch, properties, target, b(), b(), b(), b(), (), (), 3, dtype);
            kernels.push(Compiled::new("norm/backward/parameters", sums));
            kernels
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
