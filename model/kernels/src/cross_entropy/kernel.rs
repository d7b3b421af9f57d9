//! Cross-entropy on CubeCL devices: a row is a cube's at a time, its logits read once forward, read and written once
//! backward. Where nothing else needs the logits any more, their gradient is written over them: of such rows each cube
//! takes many, the next ones on their way through shared memory while it works on one.

use std::f32::consts::LOG2_E;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::ops::CrossEntropyOps;
use crate::gpu::hardware::multiprocessors;
use crate::gpu::instruction::exp2_approx;
use crate::gpu::memory::{empty, in_rows, row_pitch, vector_width};
use crate::gpu::pipeline::{VECTOR_BYTES, await_turn, barriers, can_copy};

/// Units of a cube where logits are only read or only written over.
const UNITS: u32 = 256;
/// Units of a cube that reads its row twice: the second time from shared memory or, of fewer rows under way, from L2.
const UNITS_TWICE: u32 = 1024;
/// Bytes of shared memory for rows on their way, and how many of them pay at most.
const STREAM_BYTES: usize = 208 * 1024;
const MOST_SLOTS: usize = 3;
/// Vectors of a bulk copy.
const COPIED: u32 = 1024;
/// Below every logit, and finite, also times [`LOG2_E`]: differences of it stay numbers.
const LOWEST: f32 = -2e38;

/// The shape of a row and of the cube that goes over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    /// Vectors full of logits.
    vectors: u32,
    /// Logits that begin one more vector.
    rest: usize,
    /// Vectors from the beginning of a row to the next.
    pitch: u32,
    units: u32,
    /// Rows that lie in shared memory at a time: the one that is worked on and those on their way. Or none does.
    slots: usize,
}

impl Row {
    /// Vectors in which there is a logit, from the first to the last.
    fn reach(&self) -> u32 {
        self.vectors + u32::from(self.rest > 0)
    }

    /// This row, if rows come through shared memory where two find room.
    fn streamed(self) -> Self {
        let slots = STREAM_BYTES / (self.reach() as usize * VECTOR_BYTES).max(1);
        Self { slots: if slots < 2 { 0 } else { slots.min(MOST_SLOTS) }, ..self }
    }

    fn vocabulary(&self, width: usize) -> f32 {
        (self.vectors as usize * width + self.rest) as f32
    }
}

/// Reduced over a row.
#[derive(CubeType)]
struct RowSums {
    /// Logarithm of the sum of exponentials.
    log_sum: f32,
    /// Sum of the logits.
    total: f32,
}

/// What a unit saw of a row: the maximum, the sum of exponentials relative to it, and the sum.
#[derive(CubeType)]
struct Seen {
    max: f32,
    exponentials: f32,
    sum: f32,
}

/// Takes in the first `count` logits of `z`.
#[cube]
fn see<N: Size>(seen: &mut Seen, z: Vector<f32, N>, #[comptime] count: usize) {
    let mut top = seen.max;
    #[unroll]
    for i in 0..count {
        top = max(top, z.extract(i));
        seen.sum += z.extract(i);
    }
    let base = top * LOG2_E;
    seen.exponentials *= exp2_approx(seen.max * LOG2_E - base);
    #[unroll]
    for i in 0..count {
        seen.exponentials += exp2_approx(z.extract(i) * LOG2_E - base);
    }
    seen.max = top;
}

/// What the loss needs to know of the row at `base`, the same on every unit.
#[cube]
fn row_sums<F: Float, N: Size>(logits: &[Vector<F, N>], base: usize, #[comptime] row: Row) -> RowSums {
    let width = N::value().comptime();
    let mut seen = Seen { max: LOWEST.runtime(), exponentials: 0.0f32.runtime(), sum: 0.0f32.runtime() };
    let mut at = UNIT_POS;
    while at < row.vectors {
        see::<N>(&mut seen, Vector::cast_from(logits[base + at as usize]), width);
        at += row.units;
    }
    // The unit whose turn it would be.
    if comptime![row.rest > 0] {
        if at == row.vectors {
            see::<N>(&mut seen, Vector::cast_from(logits[base + at as usize]), comptime![row.rest]);
        }
    }
    let planes = comptime![(row.units / 32) as usize];
    let plane_top = plane_max(seen.max);
    let plane_exponentials = plane_sum(seen.exponentials * exponential(seen.max - plane_top));
    let plane_total = plane_sum(seen.sum);
    let mut shared = Shared::<[f32]>::new_slice(comptime![3 * planes]);
    let plane = (UNIT_POS / 32) as usize;
    if UNIT_POS_PLANE == 0 {
        shared[plane] = plane_top;
        shared[planes + plane] = plane_exponentials;
        shared[2 * planes + plane] = plane_total;
    }
    sync_cube();
    // Every plane adds up the planes, one a lane, in the same order.
    let lane = UNIT_POS_PLANE as usize;
    let mut lane_top = LOWEST.runtime();
    let mut lane_exponentials = 0.0f32;
    let mut lane_total = 0.0f32;
    if lane < planes {
        lane_top = shared[lane];
        lane_exponentials = shared[planes + lane];
        lane_total = shared[2 * planes + lane];
    }
    let top = plane_max(lane_top);
    let all = plane_sum(lane_exponentials * exponential(lane_top - top));
    RowSums { log_sum: top + f32::ln(all), total: plane_sum(lane_total) }
}

/// Loss, negative log-likelihood and log of the sum of exponentials of the row at `base`, to `out` (`[3, rows]`).
#[cube]
fn write_losses<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    base: usize,
    sums: &RowSums,
    label: i32,
    out: &mut [f32],
    at: u32,
    rows: u32,
    smoothing: f32,
    ignored: i32,
    #[comptime] row: Row,
) {
    let width = N::value().comptime();
    let mut loss = 0.0f32;
    let mut nll = 0.0f32;
    if label != ignored {
        let index = label as usize;
        let z = Vector::<f32, N>::cast_from(logits[base + index / width]).extract_dynamic(index % width);
        let mean = sums.total / comptime![row.vocabulary(width)];
        loss = sums.log_sum - (1.0f32 - smoothing) * z - smoothing * mean;
        nll = sums.log_sum - z;
    }
    out[at as usize] = loss;
    out[(rows + at) as usize] = nll;
    out[(2 * rows + at) as usize] = sums.log_sum;
}

/// What the gradients of a row's logits have in common.
#[derive(CubeType)]
struct Slope {
    /// `log2` of the sum of `e^logit`.
    log2_sum: f32,
    /// That times a probability is the gradient where nothing is expected.
    scale: f32,
    /// Of every gradient, what label smoothing expects; of the label's, the rest.
    spread: f32,
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

/// The gradient of the first `count` logits of vector `at` of a row, and 0 behind them, where anything may stand.
#[cube]
fn gradient_of<N: Size>(z: Vector<f32, N>, at: u32, of: &Slope, #[comptime] count: usize) -> Vector<f32, N> {
    let width = N::value().comptime();
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
    gradient
}

/// Writes the gradient of the row whose logits begin at `from` to `base`. A unit reads a vector before it writes there.
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
        dlogits[base + at as usize] = Vector::cast_from(gradient_of::<N>(z, at, of, width));
        at += row.units;
    }
    if comptime![row.rest > 0] {
        if at == row.vectors {
            let z = Vector::cast_from(logits[from + at as usize]);
            dlogits[base + at as usize] = Vector::cast_from(gradient_of::<N>(z, at, of, comptime![row.rest]));
        }
    }
}

/// For rows `first..` of `rows`, whose logits these are.
#[cube(launch_unchecked)]
fn forward<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &mut [f32],
    first: u32,
    rows: u32,
    smoothing: f32,
    ignored: i32,
    #[comptime] row: Row,
    #[define(F)] _dtype: ElemType,
) {
    let at = first + CUBE_POS as u32;
    let base = CUBE_POS * comptime![row.pitch as usize];
    let sums = row_sums::<F, N>(logits, base, row);
    if UNIT_POS == 0 {
        write_losses::<F, N>(logits, base, &sums, labels[at as usize], out, at, rows, smoothing, ignored, row);
    }
}

#[cube(launch_unchecked)]
fn backward<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &[f32],
    dout: &[f32],
    dlogits: &mut [Vector<F, N>],
    rows: u32,
    smoothing: f32,
    ignored: i32,
    #[comptime] row: Row,
    #[define(F)] _dtype: ElemType,
) {
    let at_row = CUBE_POS as u32;
    let base = at_row as usize * comptime![row.pitch as usize];
    let label = labels[at_row as usize];
    let scale = select(label == ignored, 0.0f32, dout[at_row as usize]);
    let log_sum = out[(2 * rows + at_row) as usize];
    write_gradient::<F, N>(logits, base, dlogits, base, &slope::<N>(log_sum, label, smoothing, scale, row), row);
}

/// Unit 0 asks for row `nth` of `count`, if there is one, to be copied to `slot`.
#[cube]
fn ask<F: Float, N: Size>(
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

/// [`forward`] for rows `first..` of `rows`, of which these are `count`, and `scale` times the gradient of their
/// losses. `dlogits` may be the buffer of `logits`: nothing is read any more that has been written.
#[cube(launch_unchecked)]
fn forward_backward<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &mut [f32],
    dlogits: &mut [Vector<F, N>],
    first: u32,
    count: u32,
    rows: u32,
    smoothing: f32,
    ignored: i32,
    scale: f32,
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
                ask::<F, N>(full.index(slot), logits, &mut staged, then, count, slot, row);
            }
        }
    }
    let mut turn = 0u32.runtime();
    while nth < count {
        let at_row = first + nth;
        let base = nth as usize * comptime![row.pitch as usize];
        let label = labels[at_row as usize];
        let kept = select(label == ignored, 0.0f32, scale);
        if comptime![slots > 0] {
            let slot = await_turn(&full, turn, slots);
            let from = (slot * row.reach()) as usize;
            let sums = row_sums::<F, N>(&staged[0..room], from, row);
            if UNIT_POS == 0 {
                write_losses::<F, N>(&staged[0..room], from, &sums, label, out, at_row, rows, smoothing, ignored, row);
            }
            let slope = slope::<N>(sums.log_sum, label, smoothing, kept, row);
            write_gradient::<F, N>(&staged[0..room], from, dlogits, base, &slope, row);
            // All have read this row, and the sums that went through shared memory.
            sync_cube();
            if UNIT_POS == 0 {
                #[unroll]
                for s in 0..slots {
                    if slot == comptime![s as u32] {
                        let then = nth + comptime![slots as u32] * step;
                        ask::<F, N>(full.index(s), logits, &mut staged, then, count, s, row);
                    }
                }
            }
            sync_plane();
        } else {
            let sums = row_sums::<F, N>(logits, base, row);
            if UNIT_POS == 0 {
                write_losses::<F, N>(logits, base, &sums, label, out, at_row, rows, smoothing, ignored, row);
            }
            // The logit of the label has been read before its gradient takes its place, and the sums before the next
            // row's.
            sync_cube();
            let slope = slope::<N>(sums.log_sum, label, smoothing, kept, row);
            write_gradient::<F, N>(logits, base, dlogits, base, &slope, row);
        }
        nth += step;
        turn += 1;
    }
}

/// `e^x` for an x that is not positive, to a relative 1e-6.
#[cube]
fn exponential(x: f32) -> f32 {
    exp2_approx(x * LOG2_E)
}

/// Matrices whose rows are read in vectors: contiguous ones, and those whose gaps let each row begin with a vector, as
/// the backend allocates them too.
fn rows_of(logits: CubeTensor) -> CubeTensor {
    let in_vectors = row_pitch(&logits).is_multiple_of(16 / logits.dtype.size());
    if in_rows(&logits) && in_vectors { logits } else { into_contiguous(logits) }
}

/// Elements a vector, and the shape of a row.
fn row_shape(logits: &CubeTensor, units: u32) -> (usize, Row) {
    let [rows, vocabulary] = [logits.meta.shape()[0], logits.meta.shape()[1]];
    // The stride of a single row says nothing.
    let pitch = if rows > 1 { logits.meta.strides()[0] } else { vocabulary };
    let width = vector_width(pitch, logits.dtype);
    let (vectors, pitch) = ((vocabulary / width) as u32, (pitch / width) as u32);
    let row = Row { vectors, rest: vocabulary % width, pitch, units, slots: 0 };
    (width, row)
}

impl CrossEntropyOps for CubeBackend {
    fn cross_entropy_rows(logits: CubeTensor, labels: CubeTensor, smoothing: f32, ignored: i32) -> CubeTensor {
        let (logits, labels) = (rows_of(logits), into_contiguous(labels));
        let out = empty(&logits, [3, logits.meta.shape()[0]], DType::F32);
        losses(&logits, &labels, &out, 0, smoothing, ignored);
        out
    }

    fn cross_entropy_rows_backward(
        logits: CubeTensor,
        labels: CubeTensor,
        rows: CubeTensor,
        drows: CubeTensor,
        smoothing: f32,
        ignored: i32,
    ) -> CubeTensor {
        let (logits, labels) = (rows_of(logits), into_contiguous(labels));
        let (out, dout) = (into_contiguous(rows), into_contiguous(drows));
        let rows = logits.meta.shape()[0];
        let (width, row) = row_shape(&logits, UNITS);
        let dtype = dtype_to_storage_type(logits.dtype);
        // As large as everything else of the step: written in place if this is the last use.
        let dlogits = if logits.can_mut() {
            logits.clone()
        } else {
            let bytes = rows * row.pitch as usize * width * logits.dtype.size();
            CubeTensor { handle: logits.client.empty(bytes), ..logits.clone() }
        };
        // SAFETY: as in `losses`; each unit reads an element before it writes it.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            backward::launch_unchecked(
                &dlogits.client,
                CubeCount::Static(rows as u32, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                logits.into_buffer_arg(),
                labels.into_buffer_arg(),
                out.into_buffer_arg(),
                dout.into_buffer_arg(),
                dlogits.clone().into_buffer_arg(),
                rows as u32,
                smoothing,
                ignored,
                row,
                dtype,
            );
        }
        dlogits
    }
}

/// The losses of rows `first..` to `out` (`[3, M]`). `logits` are those of these rows alone, `labels` those of all.
pub(crate) fn losses(
    logits: &CubeTensor,
    labels: &CubeTensor,
    out: &CubeTensor,
    first: usize,
    smoothing: f32,
    ignored: i32,
) {
    let (width, row) = row_shape(logits, UNITS);
    let dtype = dtype_to_storage_type(logits.dtype);
    // SAFETY: one cube per row, columns guarded by the vectors of a row; labels are ids of the vocabulary; rows
    // `first..` are rows of `labels` and `out`.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        forward::launch_unchecked(
            &out.client,
            CubeCount::Static(logits.meta.shape()[0] as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            width,
            logits.clone().into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            first as u32,
            out.meta.shape()[1] as u32,
            smoothing,
            ignored,
            row,
            dtype,
        );
    }
}

/// [`losses`] and `scale` times their gradient over `logits`, which the device
/// reads once.
pub(crate) fn losses_and_gradient(
    logits: &CubeTensor,
    labels: &CubeTensor,
    out: &CubeTensor,
    first: usize,
    (smoothing, ignored, scale): (f32, i32, f32),
) {
    let (width, row) = row_shape(logits, UNITS_TWICE);
    let row = if can_copy(logits, width) { row.streamed() } else { row };
    let count = logits.meta.shape()[0] as u32;
    let cubes = if row.slots > 0 { count.min(multiprocessors(&out.client)) } else { count };
    let dtype = dtype_to_storage_type(logits.dtype);
    // SAFETY: as in `losses`; a row is copied with the vector that it ends in, which lies in its pitch.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        forward_backward::launch_unchecked(
            &out.client,
            CubeCount::Static(cubes, 1, 1),
            CubeDim::new_1d(UNITS_TWICE),
            width,
            logits.clone().into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            logits.clone().into_buffer_arg(),
            first as u32,
            count,
            out.meta.shape()[1] as u32,
            smoothing,
            ignored,
            scale,
            row,
            dtype,
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let b = buffer;
            let mut kernels = Vec::new();
            for (name, dtype) in [("bf16", DType::BF16), ("f16", DType::F16)] {
                let dtype = dtype_to_storage_type(dtype);
                for (vectors, rest, streamed) in [(6288, 0, true), (6282, 1, true), (4000, 0, true), (6288, 0, false)] {
                    let row = |units| Row { vectors, rest, pitch: vectors + 16, units, slots: 0 };
                    let both = if streamed { row(UNITS_TWICE).streamed() } else { row(UNITS_TWICE) };
                    assert_eq!(both.slots > 0, streamed);
                    let rest = if rest > 0 { "-and-rest" } else { "" };
                    let case = format!("{vectors}-vectors{rest}");

                    let (launch, properties, target) = settings(UNITS_TWICE);
                    #[rustfmt::skip]
                    let kernel = forward_backward::ForwardBackward::new(
                        launch, properties, target, b(), b(), b(), b(), (), (), (), (), (), (), 8, both, dtype,
                    );
                    let streaming = if streamed { "-streamed" } else { "" };
                    kernels.push(Compiled::new(format!("cross_entropy/both/{case}{streaming}-{name}"), kernel));
                    if !streamed {
                        continue;
                    }
                    let (launch, properties, target) = settings(UNITS);
                    #[rustfmt::skip]
                    let kernel = forward::Forward::new(
                        launch, properties, target, b(), b(), b(), (), (), (), (), 8, row(UNITS), dtype,
                    );
                    kernels.push(Compiled::new(format!("cross_entropy/forward/{case}-{name}"), kernel));
                    let (launch, properties, target) = settings(UNITS);
                    #[rustfmt::skip]
                    let kernel = backward::Backward::new(
                        launch, properties, target, b(), b(), b(), b(), b(), (), (), (), 8, row(UNITS), dtype,
                    );
                    kernels.push(Compiled::new(format!("cross_entropy/backward/{case}-{name}"), kernel));
                }
            }
            kernels
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        // Kernels that need libdevice for a logarithm are skipped where there is none; the others must be there.
        let compiled = offline_kernels().iter().filter(|kernel| kernel.ptx.is_some());
        assert!(compiled.count() > 0);
    }

    #[test]
    fn rows_stream_where_two_fit() {
        let slots =
            |vectors, rest| Row { vectors, rest, pitch: vectors + 1, units: UNITS_TWICE, slots: 0 }.streamed().slots;
        // The vocabularies of GPT-2 and of the translator, one too long for two rows, and one of a few tokens.
        assert_eq!([slots(6288, 0), slots(6282, 1), slots(4000, 0), slots(6656, 1), slots(0, 3)], [2, 2, 3, 0, 3]);
    }
}
