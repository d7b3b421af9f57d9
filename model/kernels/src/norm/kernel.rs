//! Layer normalization on CubeCL devices: one plane per row, the row in registers, every byte of `x` and `dy` read once.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::NormOps;
use crate::device::vector_width;

/// Planes of a cube; each takes every so-manieth row.
const PLANES: u32 = 8;
/// Cubes for each multiprocessor in backward, which bounds the partial sums of the parameter gradients.
const CUBES_PER_MULTIPROCESSOR: u32 = 2;

#[cube]
fn sum_of<N: Size>(v: Vector<f32, N>) -> f32 {
    let mut sum = 0.0f32;
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        sum += v.extract(i);
    }
    sum
}

/// The unit's share of row `row`: vector `unit + 32 * i` in slot `i`, zeros beyond the row.
#[cube]
fn load_row<F: Float, N: Size>(x: &[Vector<F, N>], row: u32, #[comptime] vectors: u32) -> Array<Vector<f32, N>> {
    let slots = comptime![vectors.div_ceil(32) as usize];
    let mut held = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for i in 0..slots {
        let at = UNIT_POS_PLANE + comptime![i as u32 * 32];
        held[i] = Vector::<f32, N>::zeroed();
        if at < vectors {
            held[i] = Vector::cast_from(x[(row * vectors + at) as usize]);
        }
    }
    held
}

/// Subtracts the mean of the row and returns one over the root of its variance plus `eps`.
#[cube]
fn center<N: Size>(held: &mut Array<Vector<f32, N>>, eps: f32, #[comptime] vectors: u32) -> f32 {
    let slots = comptime![vectors.div_ceil(32) as usize];
    let width = N::value().comptime();
    let n = comptime![(vectors as usize * width) as f32].runtime();
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..slots {
        sum += sum_of::<N>(held[i]);
    }
    let mean = Vector::<f32, N>::new(plane_sum(sum) / n);
    let mut square = 0.0f32;
    #[unroll]
    for i in 0..slots {
        if UNIT_POS_PLANE + comptime![i as u32 * 32] < vectors {
            let centered = held[i] - mean;
            held[i] = centered;
            square += sum_of::<N>(centered * centered);
        }
    }
    f32::inverse_sqrt(plane_sum(square) / n + eps)
}

#[cube(launch_unchecked)]
fn forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    gamma: &[Vector<F, N>],
    beta: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    rows: u32,
    eps: f32,
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS as u32 * PLANES + UNIT_POS / 32;
    if row < rows {
        let mut held = load_row::<F, N>(x, row, vectors);
        let inverse = Vector::<f32, N>::new(center::<N>(&mut held, eps, vectors));
        #[unroll]
        for i in 0..comptime![vectors.div_ceil(32) as usize] {
            let at = UNIT_POS_PLANE + comptime![i as u32 * 32];
            if at < vectors {
                let scale = Vector::<f32, N>::cast_from(gamma[at as usize]);
                let shift = Vector::<f32, N>::cast_from(beta[at as usize]);
                y[(row * vectors + at) as usize] = Vector::cast_from(held[i] * inverse * scale + shift);
            }
        }
    }
}

/// `dx`, and each cube's sums of the parameter gradients over its rows in `partial[cube]`: dgamma, then dbeta.
#[cube(launch_unchecked)]
fn backward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    gamma: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    dx: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    rows: u32,
    eps: f32,
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    let slots = comptime![vectors.div_ceil(32) as usize];
    let width = N::value().comptime();
    let n = comptime![(vectors as usize * width) as f32].runtime();
    let plane = UNIT_POS / 32;
    let mut dgamma = Array::<Vector<f32, N>>::new(slots);
    let mut dbeta = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for i in 0..slots {
        dgamma[i] = Vector::<f32, N>::zeroed();
        dbeta[i] = Vector::<f32, N>::zeroed();
    }
    let scale = load_row::<F, N>(gamma, 0u32, vectors);
    let step = CUBE_COUNT as u32 * PLANES;
    let first = CUBE_POS as u32 * PLANES + plane;
    let mine = (rows + step - 1 - first) / step;
    for turn in 0..mine {
        let row = first + turn * step;
        let mut normalized = load_row::<F, N>(x, row, vectors);
        let mut held = load_row::<F, N>(dy, row, vectors);
        let inverse = center::<N>(&mut normalized, eps, vectors);
        let inverse_vector = Vector::<f32, N>::new(inverse);
        let mut sum = 0.0f32;
        let mut sum_product = 0.0f32;
        #[unroll]
        for i in 0..slots {
            normalized[i] = normalized[i] * inverse_vector;
            dgamma[i] += held[i] * normalized[i];
            dbeta[i] += held[i];
            held[i] = held[i] * scale[i];
            sum += sum_of::<N>(held[i]);
            sum_product += sum_of::<N>(held[i] * normalized[i]);
        }
        let mean = Vector::<f32, N>::new(plane_sum(sum) / n);
        let mean_product = Vector::<f32, N>::new(plane_sum(sum_product) / n);
        #[unroll]
        for i in 0..slots {
            let at = UNIT_POS_PLANE + comptime![i as u32 * 32];
            if at < vectors {
                let gradient = inverse_vector * (held[i] - mean - normalized[i] * mean_product);
                dx[(row * vectors + at) as usize] = Vector::cast_from(gradient);
            }
        }
    }
    // The planes of a cube add up in their order, one vector of columns per unit.
    let held_vectors = comptime![(vectors * PLANES) as usize];
    let mut shared_gamma = Shared::<[Vector<f32, N>]>::new_slice(held_vectors);
    let mut shared_beta = Shared::<[Vector<f32, N>]>::new_slice(held_vectors);
    #[unroll]
    for i in 0..slots {
        let at = UNIT_POS_PLANE + comptime![i as u32 * 32];
        if at < vectors {
            shared_gamma[(plane * vectors + at) as usize] = dgamma[i];
            shared_beta[(plane * vectors + at) as usize] = dbeta[i];
        }
    }
    sync_cube();
    let base = CUBE_POS as u32 * vectors * 2;
    let mut at = UNIT_POS;
    while at < vectors {
        let mut sum_gamma = shared_gamma[at as usize];
        let mut sum_beta = shared_beta[at as usize];
        for p in 1..PLANES {
            sum_gamma += shared_gamma[(p * vectors + at) as usize];
            sum_beta += shared_beta[(p * vectors + at) as usize];
        }
        partial[(base + at) as usize] = sum_gamma;
        partial[(base + vectors + at) as usize] = sum_beta;
        at += CUBE_DIM as u32;
    }
}

/// Adds the cubes' sums in their order: one unit per column.
#[cube(launch_unchecked)]
fn reduce_partial<F: Float>(
    partial: &[f32],
    dgamma: &mut [F],
    dbeta: &mut [F],
    cubes: u32,
    #[define(F)] _dtype: ElemType,
) {
    let d = dgamma.len();
    if ABSOLUTE_POS < d {
        let mut sum_gamma = 0.0f32;
        let mut sum_beta = 0.0f32;
        for cube in 0..cubes as usize {
            sum_gamma += partial[cube * 2 * d + ABSOLUTE_POS];
            sum_beta += partial[(cube * 2 + 1) * d + ABSOLUTE_POS];
        }
        dgamma[ABSOLUTE_POS] = F::cast_from(sum_gamma);
        dbeta[ABSOLUTE_POS] = F::cast_from(sum_beta);
    }
}

impl NormOps for CubeBackend {
    fn fused_layer_norm(x: CubeTensor, gamma: CubeTensor, beta: CubeTensor, eps: f32) -> CubeTensor {
        let (x, gamma, beta) = (into_contiguous(x), into_contiguous(gamma), into_contiguous(beta));
        let y = empty_like(&x);
        let [rows, d] = [x.meta.shape()[0], x.meta.shape()[1]];
        let width = vector_width(d, x.dtype);
        let dtype = dtype_to_storage_type(x.dtype);
        // SAFETY: rows are guarded by `rows`, columns by `vectors`; all four tensors are contiguous.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            forward::launch_unchecked(
                &y.client,
                CubeCount::Static(rows.div_ceil(PLANES as usize) as u32, 1, 1),
                CubeDim::new_1d(PLANES * 32),
                width,
                x.into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                rows as u32,
                eps,
                (d / width) as u32,
                dtype,
            );
        }
        y
    }

    fn fused_layer_norm_backward(
        x: CubeTensor,
        gamma: CubeTensor,
        dy: CubeTensor,
        eps: f32,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let (x, gamma, dy) = (into_contiguous(x), into_contiguous(gamma), into_contiguous(dy));
        let (dx, dgamma, dbeta) = (empty_like(&x), empty_like(&gamma), empty_like(&gamma));
        let [rows, d] = [x.meta.shape()[0], x.meta.shape()[1]];
        let width = vector_width(d, x.dtype);
        let dtype = dtype_to_storage_type(x.dtype);
        let client = x.client.clone();
        let multiprocessors = client.properties().hardware.num_streaming_multiprocessors.unwrap_or(64);
        let cubes = (multiprocessors * CUBES_PER_MULTIPROCESSOR).min(rows.div_ceil(PLANES as usize) as u32);
        let partial = client.empty(cubes as usize * 2 * d * size_of::<f32>());
        // SAFETY: as in forward; `partial` holds two rows of f32 for each cube.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            backward::launch_unchecked(
                &client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(PLANES * 32),
                width,
                x.into_buffer_arg(),
                gamma.into_buffer_arg(),
                dy.into_buffer_arg(),
                dx.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(partial.clone(), cubes as usize * 2 * d),
                rows as u32,
                eps,
                (d / width) as u32,
                dtype,
            );
            reduce_partial::launch_unchecked(
                &client,
                CubeCount::Static(d.div_ceil(128) as u32, 1, 1),
                CubeDim::new_1d(128),
                BufferArg::from_raw_parts(partial, cubes as usize * 2 * d),
                dgamma.clone().into_buffer_arg(),
                dbeta.clone().into_buffer_arg(),
                cubes,
                dtype,
            );
        }
        (dx, dgamma, dbeta)
    }
}

fn empty_like(x: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), x.meta.shape().clone(), x.dtype)
}
