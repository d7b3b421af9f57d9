//! Launches of the cross-entropy kernels.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::gradient::{ChunkLaunch, cross_entropy_backward, cross_entropy_both};
use super::loss::cross_entropy_forward;
use super::row::Row;
use super::{LossLaunch, UNITS, UNITS_TWICE};
use crate::calls;
use crate::cross_entropy::ops::{CrossEntropyOps, RowLoss};
use crate::gpu::constant::Constant;
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::{empty, in_rows, row_pitch, vector_width};
use crate::gpu::pipeline::can_copy;

/// Returns `logits` in a layout whose rows begin with a vector: contiguous, or padded as the backend pads rows.
fn rows_of(logits: CubeTensor) -> CubeTensor {
    let in_vectors = row_pitch(&logits).is_multiple_of(16 / logits.dtype.size());
    if in_rows(&logits) && in_vectors { logits } else { into_contiguous(logits) }
}

/// Returns the elements of a vector, and the shape of a row.
fn row_shape(logits: &CubeTensor, units: u32, of: RowLoss) -> (usize, Row) {
    let [rows, vocabulary] = [logits.meta.shape()[0], logits.meta.shape()[1]];
    // The stride of a single row is arbitrary.
    let pitch = if rows > 1 { logits.meta.strides()[0] } else { vocabulary };
    let width = vector_width(pitch, logits.dtype);
    let (vectors, pitch) = ((vocabulary / width) as u32, (pitch / width) as u32);
    let softcap = of.softcap.map(Constant::new);
    let row = Row { vectors, rest: vocabulary % width, pitch, units, slots: 0, softcap };
    (width, row)
}

impl CrossEntropyOps for CubeBackend {
    fn cross_entropy_rows(logits: CubeTensor, labels: CubeTensor, of: RowLoss) -> CubeTensor {
        let (logits, labels) = (rows_of(logits), into_contiguous(labels));
        let out = empty(&logits, [3, logits.meta.shape()[0]], DType::F32);
        losses(&logits, &labels, &out, 0, of);
        out
    }

    fn cross_entropy_rows_backward(
        logits: CubeTensor,
        labels: CubeTensor,
        rows: CubeTensor,
        drows: CubeTensor,
        of: RowLoss,
    ) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("cross-entropy backward", &logits, 2));
        let (logits, labels) = (rows_of(logits), into_contiguous(labels));
        let (out, dout) = (into_contiguous(rows), into_contiguous(drows));
        let rows = logits.meta.shape()[0];
        let (width, row) = row_shape(&logits, UNITS, of);
        let dtype = dtype_to_storage_type(logits.dtype);
        // The logits are as large as the rest of the step: overwrite them if this is their last use.
        let dlogits = if logits.can_mut() {
            logits.clone()
        } else {
            let bytes = rows * row.pitch as usize * width * logits.dtype.size();
            CubeTensor { handle: logits.client.empty(bytes), ..logits.clone() }
        };

        // SAFETY: as in `losses`; each thread reads an element before it writes it.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            cross_entropy_backward::launch_unchecked(
                &dlogits.client,
                CubeCount::Static(rows as u32, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                logits.into_buffer_arg(),
                labels.into_buffer_arg(),
                out.into_buffer_arg(),
                dout.into_buffer_arg(),
                dlogits.clone().into_buffer_arg(),
                LossLaunch::new(rows as u32, of.smoothing, of.ignored),
                row,
                dtype,
            );
        }
        dlogits
    }
}

/// Writes the losses of rows `first..` to `out` (`[3, M]`). `logits` has only these rows, `labels` has all rows.
pub(crate) fn losses(logits: &CubeTensor, labels: &CubeTensor, out: &CubeTensor, first: usize, of: RowLoss) {
    let _call = calls::begin(|| calls::of_passes("cross-entropy forward", logits, 1));
    let (width, row) = row_shape(logits, UNITS, of);
    let dtype = dtype_to_storage_type(logits.dtype);

    // SAFETY: one block per row, columns guarded by the vectors of a row; labels are ids of the vocabulary; rows
    // `first..` are rows of `labels` and `out`.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        cross_entropy_forward::launch_unchecked(
            &out.client,
            CubeCount::Static(logits.meta.shape()[0] as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            width,
            logits.clone().into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            first as u32,
            LossLaunch::new(out.meta.shape()[1] as u32, of.smoothing, of.ignored),
            row,
            dtype,
        );
    }
}

/// Writes [`losses`], and overwrites `logits` with `scale` times their gradient. The device reads the logits once.
pub(crate) fn losses_and_gradient(
    logits: &CubeTensor,
    labels: &CubeTensor,
    out: &CubeTensor,
    first: usize,
    scale: f32,
    of: RowLoss,
) {
    let _call = calls::begin(|| calls::of_passes("cross-entropy forward, backward", logits, 2));
    let (width, row) = row_shape(logits, UNITS_TWICE, of);
    let row = if can_copy(logits, width) { row.streamed() } else { row };
    let count = logits.meta.shape()[0] as u32;
    let cubes = if row.slots > 0 { count.min(multiprocessors(&out.client)) } else { count };
    let dtype = dtype_to_storage_type(logits.dtype);
    let loss = LossLaunch::new(out.meta.shape()[1] as u32, of.smoothing, of.ignored);

    // SAFETY: as in `losses`; a row is copied with the vector that it ends in, which lies in its pitch.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        cross_entropy_both::launch_unchecked(
            &out.client,
            CubeCount::Static(cubes, 1, 1),
            CubeDim::new_1d(UNITS_TWICE),
            width,
            logits.clone().into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            logits.clone().into_buffer_arg(),
            ChunkLaunch::new(first as u32, count, loss, scale),
            row,
            dtype,
        );
    }
}
