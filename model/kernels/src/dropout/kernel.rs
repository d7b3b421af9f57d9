//! Dropout on CubeCL devices: one thread per 16 bytes of input.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::DropoutOps;
use super::philox::{MULTIPLIER, ROUNDS, WEYL};
use super::threshold_16;
use crate::calls;
use crate::gpu::memory::{empty_like, vector_width};

/// The numeric arguments of dropout, see [`Dropping`](super::Dropping).
#[derive(CubeType, CubeLaunch)]
pub(crate) struct DropArgs {
    pub(crate) site: u32,
    pub(crate) limit: u32,
    pub(crate) scale: f32,
}

/// Computes [`super::philox::philox`] for (`quad`, `site`) under the seed and draw in `state`.
#[cube]
pub(crate) fn philox(quad: u32, site: u32, state: &[i32]) -> (u32, u32, u32, u32) {
    philox_of(
        quad,
        site,
        u32::cast_from(state[2]),
        u32::cast_from(state[3]),
        u32::cast_from(state[0]),
        u32::cast_from(state[1]),
    )
}

/// Computes [`super::philox::philox`] for a counter of four words under a key of two.
#[cube]
pub(crate) fn philox_of(
    first: u32,
    second: u32,
    third: u32,
    fourth: u32,
    key_low: u32,
    key_high: u32,
) -> (u32, u32, u32, u32) {
    let mut c0 = first;
    let mut c1 = second;
    let mut c2 = third;
    let mut c3 = fourth;
    let mut k0 = key_low;
    let mut k1 = key_high;

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

/// Returns `scale`, or 0 if 16 bits of `word`, its `upper` or lower ones, say that the element is dropped. The bits are
/// compared in the upper half of the word, so that the upper ones need no shift.
#[cube]
fn factor(word: u32, #[comptime] upper: bool, limit: u32, scale: f32) -> f32 {
    let weighed = if comptime![upper] { word } else { word << 16 };
    select(weighed >= limit << 16, scale, 0.0f32)
}

/// Returns the dropout factors of vector number `at` of a tensor: `scale`, or 0 for dropped elements. One Philox block
/// serves eight elements.
#[cube]
pub(crate) fn keep_factors<N: Size>(at: u32, site: u32, state: &[i32], limit: u32, scale: f32) -> Vector<f32, N> {
    let width = N::value().comptime();
    let mut factors = Vector::<f32, N>::zeroed();
    if comptime![width % 8 == 0] {
        #[unroll]
        for q in 0..comptime![width / 8] {
            let (w0, w1, w2, w3) = philox(at * comptime![(width / 8) as u32] + comptime![q as u32], site, state);
            factors.insert(comptime![8 * q], factor(w0, false, limit, scale));
            factors.insert(comptime![8 * q + 1], factor(w0, true, limit, scale));
            factors.insert(comptime![8 * q + 2], factor(w1, false, limit, scale));
            factors.insert(comptime![8 * q + 3], factor(w1, true, limit, scale));
            factors.insert(comptime![8 * q + 4], factor(w2, false, limit, scale));
            factors.insert(comptime![8 * q + 5], factor(w2, true, limit, scale));
            factors.insert(comptime![8 * q + 6], factor(w3, false, limit, scale));
            factors.insert(comptime![8 * q + 7], factor(w3, true, limit, scale));
        }
    } else {
        // A block serves several vectors. If rows are not a multiple of eight, a vector needs two blocks.
        #[unroll]
        for i in 0..width {
            let element = at * comptime![width as u32] + comptime![i as u32];
            let (w0, w1, w2, w3) = philox(element / 8, site, state);
            let place = element % 8;
            let first = select(place < 2, w0, w1);
            let second = select(place < 6, w2, w3);
            let word = select(place < 4, first, second);
            factors.insert(i, factor(select(place % 2 == 0, word << 16, word), true, limit, scale));
        }
    }
    factors
}

/// Drops elements of `vectors` vectors.
#[cube(launch_unchecked)]
fn dropout_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    state: &[i32],
    out: &mut [Vector<F, N>],
    vectors: u32,
    drop: DropArgs,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < vectors {
        let kept = Vector::<f32, N>::cast_from(x[at as usize])
            * keep_factors::<N>(at, drop.site, state, drop.limit, drop.scale);
        out[at as usize] = Vector::cast_from(kept);
    }
}

/// The four words of a stream's state.
#[derive(CubeType, CubeLaunch)]
struct Words {
    seed_low: i32,
    seed_high: i32,
    draw_low: i32,
    draw_high: i32,
}

#[cube(launch_unchecked)]
fn set_words(state: &mut [i32], words: Words) {
    if ABSOLUTE_POS == 0 {
        state[0] = words.seed_low;
        state[1] = words.seed_high;
        state[2] = words.draw_low;
        state[3] = words.draw_high;
    }
}

impl DropoutOps for CubeBackend {
    fn dropout(x: CubeTensor, state: CubeTensor, site: u32, p: f32) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("dropout", &x, 2));
        let (x, state) = (into_contiguous(x), into_contiguous(state));
        let out = empty_like(&x);
        let n = out.meta.shape().num_elements();
        let width = vector_width(n, x.dtype);
        let vectors = (n / width) as u32;
        let dtype = dtype_to_storage_type(out.dtype);

        // SAFETY: threads beyond the last vector do nothing; `out` has the shape of `x`, `state` four words.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            dropout_kernel::launch_unchecked(
                &out.client,
                CubeCount::Static(vectors.div_ceil(256), 1, 1),
                CubeDim::new_1d(256),
                width,
                x.into_buffer_arg(),
                state.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                vectors,
                DropArgsLaunch::new(site, threshold_16(p), 1.0 / (1.0 - p)),
                dtype,
            );
        }
        out
    }

    fn dropout_words(target: CubeTensor, [seed_low, seed_high, draw_low, draw_high]: [i32; 4]) -> CubeTensor {
        // SAFETY: the caller's tensor has four words.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            set_words::launch_unchecked(
                &target.client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(1),
                target.clone().into_buffer_arg(),
                WordsLaunch::new(seed_low, seed_high, draw_low, draw_high),
            );
        }
        target
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let drop = DropArgsCompilationArg { site: (), limit: (), scale: () };
            let (launch, properties, target) = settings(256);
            #[rustfmt::skip]
            let kernel = dropout_kernel::DropoutKernel::new(
                launch, properties, target, b(), b(), b(), (), drop, 8, dtype,
            );
            let (launch, properties, target) = settings(1);
            let words = WordsCompilationArg { seed_low: (), seed_high: (), draw_low: (), draw_high: () };
            let words = set_words::SetWords::new(launch, properties, target, b(), words);
            vec![Compiled::new("dropout/forward/bf16", kernel), Compiled::new("dropout/words", words)]
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
