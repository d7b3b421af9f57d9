//! Dropout on CubeCL devices: one unit per four elements, which share one Philox block.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::DropoutOps;
use super::philox::{MULTIPLIER, ROUNDS, WEYL};
use super::threshold;

/// [`super::philox::philox`] for (`quad`, `site`) under the seed and draw in `state`.
#[cube]
pub(crate) fn philox(quad: u32, site: u32, state: &[i32]) -> (u32, u32, u32, u32) {
    let mut c0 = quad;
    let mut c1 = site;
    let mut c2 = u32::cast_from(state[2]);
    let mut c3 = u32::cast_from(state[3]);
    let mut k0 = u32::cast_from(state[0]);
    let mut k1 = u32::cast_from(state[1]);
    #[unroll]
    for _ in 0..ROUNDS {
        let hi0 = u32::mul_hi(c0, MULTIPLIER[0]);
        let lo0 = c0 * comptime![MULTIPLIER[0]];
        let hi1 = u32::mul_hi(c2, MULTIPLIER[1]);
        let lo1 = c2 * comptime![MULTIPLIER[1]];
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += comptime![WEYL[0]];
        k1 += comptime![WEYL[1]];
    }
    (c0, c1, c2, c3)
}

/// What dropout multiplies vector number `at` of a tensor with: `scale`, or 0 for what is dropped. The same bits as
/// [`dropout_kernel`]'s for the same elements.
#[cube]
pub(crate) fn keep_factors<N: Size>(at: u32, site: u32, state: &[i32], limit: u32, scale: f32) -> Vector<f32, N> {
    let width = N::value().comptime();
    let mut factors = Vector::<f32, N>::zeroed();
    if comptime![width % 4 == 0] {
        #[unroll]
        for q in 0..comptime![width / 4] {
            let (w0, w1, w2, w3) = philox(at * comptime![(width / 4) as u32] + comptime![q as u32], site, state);
            factors.insert(comptime![4 * q], select(w0 >= limit, scale, 0.0f32));
            factors.insert(comptime![4 * q + 1], select(w1 >= limit, scale, 0.0f32));
            factors.insert(comptime![4 * q + 2], select(w2 >= limit, scale, 0.0f32));
            factors.insert(comptime![4 * q + 3], select(w3 >= limit, scale, 0.0f32));
        }
    } else {
        // Rows that are not a multiple of four: a block of bits may belong to two vectors.
        #[unroll]
        for i in 0..width {
            let element = at * comptime![width as u32] + comptime![i as u32];
            let (w0, w1, w2, w3) = philox(element / 4, site, state);
            let place = element % 4;
            let low = select(place == 0, w0, w1);
            let high = select(place == 2, w2, w3);
            let word = select(place < 2, low, high);
            factors.insert(i, select(word >= limit, scale, 0.0f32));
        }
    }
    factors
}

#[cube]
fn keep_or_zero<F: Float>(x: &[F], out: &mut [F], at: usize, word: u32, limit: u32, scale: f32) {
    if at < out.len() {
        let value = f32::cast_from(x[at]) * scale;
        out[at] = F::cast_from(select(word >= limit, value, 0.0f32));
    }
}

#[cube(launch_unchecked)]
fn dropout_kernel<F: Float>(
    x: &[F],
    state: &[i32],
    out: &mut [F],
    site: u32,
    limit: u32,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS * 4;
    if at < out.len() {
        let (w0, w1, w2, w3) = philox(ABSOLUTE_POS as u32, site, state);
        keep_or_zero::<F>(x, out, at, w0, limit, scale);
        keep_or_zero::<F>(x, out, at + 1, w1, limit, scale);
        keep_or_zero::<F>(x, out, at + 2, w2, limit, scale);
        keep_or_zero::<F>(x, out, at + 3, w3, limit, scale);
    }
}

impl DropoutOps for CubeBackend {
    fn dropout(x: CubeTensor, state: CubeTensor, site: u32, p: f32) -> CubeTensor {
        let (x, state) = (into_contiguous(x), into_contiguous(state));
        let out = empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), x.meta.shape().clone(), x.dtype);
        let quads = out.meta.shape().num_elements().div_ceil(4);
        let dtype = dtype_to_storage_type(out.dtype);
        // SAFETY: every access is guarded by the length of `out`, which is that of `x`; `state` has four words.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            dropout_kernel::launch_unchecked(
                &out.client,
                CubeCount::Static(quads.div_ceil(256) as u32, 1, 1),
                CubeDim::new_1d(256),
                x.into_buffer_arg(),
                state.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                site,
                threshold(p),
                1.0 / (1.0 - p),
                dtype,
            );
        }
        out
    }
}
