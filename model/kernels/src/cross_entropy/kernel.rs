//! Cross-entropy on CubeCL devices: one cube per row, the logits read once forward, read and written once backward. Where
//! nothing else needs the logits any more, their gradient is written over them.

use std::f32::consts::LOG2_E;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::CrossEntropyOps;
use crate::device::vector_width;
use crate::instruction::exp2_approx;

const UNITS: u32 = 256;
const PLANES: usize = UNITS as usize / 32;
/// Below every logit, and finite: differences of it stay numbers.
const LOWEST: f32 = -3e38;

#[cube(launch_unchecked)]
fn forward<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &mut [f32],
    rows: u32,
    smoothing: f32,
    ignored: i32,
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS as u32;
    let base = row as usize * comptime![vectors as usize];
    let width = N::value().comptime();
    // Each unit keeps the maximum of what it saw and the sum of exponentials relative to it.
    let mut max = LOWEST.runtime();
    let mut exponentials = 0.0f32;
    let mut sum = 0.0f32;
    let mut at = UNIT_POS;
    while at < vectors {
        let z = Vector::<f32, N>::cast_from(logits[base + at as usize]);
        let mut seen = max;
        #[unroll]
        for i in 0..width {
            seen = max_of(seen, z.extract(i));
            sum += z.extract(i);
        }
        exponentials *= exponential(max - seen);
        #[unroll]
        for i in 0..width {
            exponentials += exponential(z.extract(i) - seen);
        }
        max = seen;
        at += UNITS;
    }
    let plane_top = plane_max(max);
    let plane_exponentials = plane_sum(exponentials * exponential(max - plane_top));
    let plane_total = plane_sum(sum);
    let mut shared = Shared::<[f32]>::new_slice(comptime![3 * PLANES]);
    let plane = (UNIT_POS / 32) as usize;
    if UNIT_POS_PLANE == 0 {
        shared[plane] = plane_top;
        shared[comptime![PLANES] + plane] = plane_exponentials;
        shared[comptime![2 * PLANES] + plane] = plane_total;
    }
    sync_cube();
    if UNIT_POS == 0 {
        let mut top = shared[0usize];
        #[unroll]
        for p in 1..PLANES {
            top = max_of(top, shared[p]);
        }
        let mut total_exponentials = 0.0f32;
        let mut total = 0.0f32;
        #[unroll]
        for p in 0..PLANES {
            total_exponentials += shared[comptime![PLANES + p]] * exponential(shared[p] - top);
            total += shared[comptime![2 * PLANES + p]];
        }
        let log_sum = top + f32::ln(total_exponentials);
        let label = labels[row as usize];
        let mut loss = 0.0f32;
        let mut nll = 0.0f32;
        if label != ignored {
            let index = label as usize;
            let z = Vector::<f32, N>::cast_from(logits[base + index / width]).extract_dynamic(index % width);
            let mean = total / comptime![vectors as usize * width] as f32;
            loss = log_sum - (1.0f32 - smoothing) * z - smoothing * mean;
            nll = log_sum - z;
        }
        out[row as usize] = loss;
        out[(rows + row) as usize] = nll;
        out[(2 * rows + row) as usize] = log_sum;
    }
}

/// `e^x` for an x that is not positive, to a relative 1e-6.
#[cube]
fn exponential(x: f32) -> f32 {
    exp2_approx(x * LOG2_E)
}

#[cube]
fn max_of(a: f32, b: f32) -> f32 {
    select(a > b, a, b)
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
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS as u32;
    let base = row as usize * comptime![vectors as usize];
    let width = N::value().comptime();
    let label = labels[row as usize];
    let scale = select(label == ignored, 0.0f32, dout[row as usize]);
    let log_sum = out[(2 * rows + row) as usize];
    let spread = smoothing / comptime![vectors as usize * width] as f32;
    let mut at = UNIT_POS;
    while at < vectors {
        let z = Vector::<f32, N>::cast_from(logits[base + at as usize]);
        let mut gradient = Vector::<f32, N>::empty();
        #[unroll]
        for i in 0..width {
            let column = at * comptime![width as u32] + comptime![i as u32];
            let target = spread + select(column as i32 == label, 1.0f32 - smoothing, 0.0f32);
            let g = (exponential(z.extract(i) - log_sum) - target) * scale;
            gradient.insert(i, g);
        }
        dlogits[base + at as usize] = Vector::cast_from(gradient);
        at += UNITS;
    }
}

impl CrossEntropyOps for CubeBackend {
    fn cross_entropy_rows(logits: CubeTensor, labels: CubeTensor, smoothing: f32, ignored: i32) -> CubeTensor {
        let (logits, labels) = (into_contiguous(logits), into_contiguous(labels));
        let [rows, vocabulary] = [logits.meta.shape()[0], logits.meta.shape()[1]];
        let width = vector_width(vocabulary, logits.dtype);
        let dtype = dtype_to_storage_type(logits.dtype);
        let (client, device) = (logits.client.clone(), logits.device.clone());
        let out = empty_device_contiguous_dtype(client, device, [3, rows].into(), DType::F32);
        // SAFETY: one cube per row, columns guarded by `vectors`; labels are ids of the vocabulary.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            forward::launch_unchecked(
                &out.client,
                CubeCount::Static(rows as u32, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                logits.into_buffer_arg(),
                labels.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                rows as u32,
                smoothing,
                ignored,
                (vocabulary / width) as u32,
                dtype,
            );
        }
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
        let (logits, labels) = (into_contiguous(logits), into_contiguous(labels));
        let (out, dout) = (into_contiguous(rows), into_contiguous(drows));
        let [rows, vocabulary] = [logits.meta.shape()[0], logits.meta.shape()[1]];
        let width = vector_width(vocabulary, logits.dtype);
        let dtype = dtype_to_storage_type(logits.dtype);
        // As large as everything else of the step: written in place if this is the last use.
        let dlogits = if logits.can_mut() {
            logits.clone()
        } else {
            let (client, device) = (logits.client.clone(), logits.device.clone());
            empty_device_contiguous_dtype(client, device, logits.meta.shape().clone(), logits.dtype)
        };
        // SAFETY: as in forward; each unit reads an element before it writes it.
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
                (vocabulary / width) as u32,
                dtype,
            );
        }
        dlogits
    }
}
