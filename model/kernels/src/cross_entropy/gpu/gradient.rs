//! The gradient of the logits: in backward, or together with the losses.

use std::f32::consts::LOG2_E;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::Loss;
use super::loss::write_losses;
use super::row::{Row, bounded, row_sums};
use crate::gpu::instruction::exp2_approx;
use crate::gpu::pipeline::{VECTOR_BYTES, await_turn, barriers};

/// Vectors of a bulk copy.
const COPIED: u32 = 1024;

/// The common part of the gradients of a row's logits.
#[derive(CubeType)]
struct Slope {
    /// `log2` of the sum of `e^logit`.
    log2_sum: f32,
    /// Factor of the probabilities.
    scale: f32,
    /// Subtracted from every gradient: the target probability of label smoothing, scaled.
    spread: f32,
    /// Subtracted from the label's gradient as well: the rest of its target probability, scaled.
    peak: f32,
    label: u32,
}

#[cube]
fn slope<N: Size>(log_sum: f32, label: i32, smoothing: f32, scale: f32, #[comptime] row: Row) -> Slope {
    let width = N::value().comptime();
    let vocabulary = comptime![row.vocabulary(width)];
    Slope {
        log2_sum: log_sum * LOG2_E,
        scale,
        spread: smoothing / vocabulary * scale,
        peak: (1.0f32 - smoothing) * scale,
        label: label as u32,
    }
}

/// Returns the gradient of the first `count` logits of vector `at` of a row, and 0 for the rest of the vector.
#[cube]
fn gradient_of<N: Size>(
    logits: Vector<f32, N>,
    at: u32,
    of: &Slope,
    #[comptime] count: usize,
    #[comptime] row: Row,
) -> Vector<f32, N> {
    let width = N::value().comptime();
    let z = bounded::<N>(logits, row);
    let mut gradient = Vector::<f32, N>::zeroed();
    #[unroll]
    for i in 0..count {
        gradient.insert(i, exp2_approx(z.extract(i) * LOG2_E - of.log2_sum) * of.scale - of.spread);
    }

    if of.label / width as u32 == at {
        #[unroll]
        for i in 0..count {
            let here = of.label % width as u32 == i as u32;
            gradient.insert(i, gradient.extract(i) - select(here, of.peak, 0.0f32));
        }
    }
    if comptime![row.softcap.is_some()] {
        let tanh = z * Vector::new(comptime![1.0 / row.cap()].runtime());
        gradient *= Vector::new(1.0f32) - tanh * tanh;
    }
    gradient
}

/// Writes the gradient of the row whose logits begin at `from` to `base`. A thread reads a vector before it writes
/// there.
#[cube]
fn write_gradient<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    from: usize,
    dlogits: &mut [Vector<F, N>],
    base: usize,
    of: &Slope,
    #[comptime] row: Row,
) {
    let width = N::value().comptime();
    let mut at = UNIT_POS;
    while at < row.vectors {
        let z = Vector::cast_from(logits[from + at as usize]);
        dlogits[base + at as usize] = Vector::cast_from(gradient_of::<N>(z, at, of, width, row));
        at += row.units;
    }

    if comptime![row.rest > 0] {
        if at == row.vectors {
            let z = Vector::cast_from(logits[from + at as usize]);
            dlogits[base + at as usize] = Vector::cast_from(gradient_of::<N>(z, at, of, comptime![row.rest], row));
        }
    }
}

/// Computes the gradient of the logits from the result of forward (`out`) and its gradient (`dout`).
#[cube(launch_unchecked)]
pub(super) fn cross_entropy_backward<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &[f32],
    dout: &[f32],
    dlogits: &mut [Vector<F, N>],
    loss: Loss,
    #[comptime] row: Row,
    #[define(F)] _dtype: ElemType,
) {
    let at_row = CUBE_POS as u32;
    let base = at_row as usize * comptime![row.pitch as usize];
    let label = labels[at_row as usize];
    let scale = select(label == loss.ignored, 0.0f32, dout[at_row as usize]);
    let log_sum = out[(2 * loss.rows + at_row) as usize];
    write_gradient::<F, N>(logits, base, dlogits, base, &slope::<N>(log_sum, label, loss.smoothing, scale, row), row);
}

/// The rows of one call, and what to compute for them.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Chunk {
    /// Number of the first row among all rows.
    pub(super) first: u32,
    /// Rows of the call.
    pub(super) count: u32,
    pub(super) loss: Loss,
    /// Factor of the gradient.
    pub(super) scale: f32,
}

/// Requests the copy of row `nth` of `count` to `slot`, if there is such a row. For thread 0 only.
#[cube]
fn request<F: Float, N: Size>(
    full: &Barrier,
    logits: &[Vector<F, N>],
    staged: &mut Shared<[Vector<F, N>]>,
    nth: u32,
    count: u32,
    #[comptime] slot: usize,
    #[comptime] row: Row,
) {
    if nth < count {
        full.arrive_and_expect_tx(1u32, comptime![row.reach() * VECTOR_BYTES as u32]);
        let from = nth as usize * comptime![row.pitch as usize];
        let to = comptime![slot * row.reach() as usize];
        let mut at = 0u32.runtime();
        while at < row.reach() {
            let end = min(at + COPIED, row.reach().runtime());
            let (at_there, end_there) = (from + at as usize, from + end as usize);
            let (at_here, end_here) = (to + at as usize, to + end as usize);
            full.memcpy_async_tx(&logits[at_there..end_there], &mut staged[at_here..end_here]);
            at = end;
        }
    }
}

/// Computes the losses of a chunk of rows and their gradient. `dlogits` may be the buffer of `logits`: no logit is read
/// after it was overwritten.
#[cube(launch_unchecked)]
pub(super) fn cross_entropy_both<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &mut [f32],
    dlogits: &mut [Vector<F, N>],
    chunk: Chunk,
    #[comptime] row: Row,
    #[define(F)] _dtype: ElemType,
) {
    let slots = comptime![row.slots];
    let room = comptime![(slots * row.reach() as usize).max(1)];
    let mut staged = Shared::<[Vector<F, N>]>::new_aligned_slice(room, 128usize);
    let full = barriers(slots);
    let mut nth = CUBE_POS as u32;
    let step = CUBE_COUNT as u32;
    if comptime![slots > 0] {
        if UNIT_POS == 0 {
            #[unroll]
            for slot in 0..slots {
                let then = nth + comptime![slot as u32] * step;
                request::<F, N>(full.index(slot), logits, &mut staged, then, chunk.count, slot, row);
            }
        }
    }

    let mut turn = 0u32.runtime();
    while nth < chunk.count {
        let at_row = chunk.first + nth;
        let base = nth as usize * comptime![row.pitch as usize];
        let label = labels[at_row as usize];
        let kept = select(label == chunk.loss.ignored, 0.0f32, chunk.scale);
        if comptime![slots > 0] {
            let slot = await_turn(&full, turn, slots);
            let from = (slot * row.reach()) as usize;
            let sums = row_sums::<F, N>(&staged[0..room], from, row);
            if UNIT_POS == 0 {
                write_losses::<F, N>(&staged[0..room], from, &sums, label, out, at_row, &chunk.loss, row);
            }
            let slope = slope::<N>(sums.log_sum, label, chunk.loss.smoothing, kept, row);
            write_gradient::<F, N>(&staged[0..room], from, dlogits, base, &slope, row);

            // All threads have read this row, and the sums in shared memory.
            sync_cube();
            if UNIT_POS == 0 {
                #[unroll]
                for s in 0..slots {
                    if slot == comptime![s as u32] {
                        let then = nth + comptime![slots as u32] * step;
                        request::<F, N>(full.index(s), logits, &mut staged, then, chunk.count, s, row);
                    }
                }
            }
            sync_plane();
        } else {
            let sums = row_sums::<F, N>(logits, base, row);
            if UNIT_POS == 0 {
                write_losses::<F, N>(logits, base, &sums, label, out, at_row, &chunk.loss, row);
            }
            // The label's logit has been read before its gradient overwrites it, and the sums before the next row's do.
            sync_cube();
            let slope = slope::<N>(sums.log_sum, label, chunk.loss.smoothing, kept, row);
            write_gradient::<F, N>(logits, base, dlogits, base, &slope, row);
        }
        nth += step;
        turn += 1;
    }
}
