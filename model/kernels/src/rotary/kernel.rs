//! Rotary embedding on CubeCL devices: each byte moves once, and each angle of a row is computed once for all heads.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{RotaryOps, RotarySpec};
use crate::calls;
use crate::gpu::early::{self, begin, changed};
use crate::gpu::memory::{empty_like, vector_width};

const UNITS: u32 = 128;
/// Rows up to which each head has threads of its own: few rows would not fill a GPU (`benches/results/2026-11-29-int8.md`).
const FEW_ROWS: usize = 64;

/// What [`rotate`] is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RotaryConfig {
    /// Vectors of half a head.
    vectors: u32,
    n_rotated_heads: u32,
    /// Heads that a thread rotates: all, or one where there are few rows.
    heads_of_thread: u32,
    /// Vectors of a row.
    row_vectors: u32,
    /// See [`crate::gpu::early`].
    early: bool,
}

impl RotaryConfig {
    /// Threads that share the heads of a row.
    fn threads_of_pair(self) -> u32 {
        self.n_rotated_heads.checked_div(self.heads_of_thread).unwrap_or(1)
    }
}

/// Rotates queries and keys by the angles of their positions. A thread rotates one vector of pairs in all heads of a
/// row, or in one of them. The threads of a row take turns to copy the columns after the rotated heads.
#[cube(launch_unchecked)]
fn rotate<F: Float, N: Size>(
    x: &[Vector<F, N>],
    positions: &[i32],
    frequencies: &[f32],
    y: &mut [Vector<F, N>],
    total: u32,
    direction: f32,
    #[comptime] config: RotaryConfig,
    #[define(F)] _dtype: ElemType,
) {
    let unit = ABSOLUTE_POS as u32;
    let RotaryConfig { vectors, n_rotated_heads, heads_of_thread, row_vectors, early } = comptime![config];
    begin(early);
    changed(x, early);
    changed(positions, early);
    let parts = comptime![config.threads_of_pair()];
    if unit < total {
        let row = unit / comptime![vectors * parts];
        let part = unit / vectors % parts;
        let within = unit % vectors;
        let start = row * row_vectors;

        let position = direction * f32::cast_from(positions[row as usize]);
        let width = N::value().comptime();
        let mut cos = Vector::<f32, N>::zeroed();
        let mut sin = Vector::<f32, N>::zeroed();
        #[unroll]
        for i in 0..width {
            let angle = position * frequencies[within as usize * width + i];
            cos.insert(i, f32::cos(angle));
            sin.insert(i, f32::sin(angle));
        }

        #[unroll]
        for head in 0..heads_of_thread {
            let first = part * comptime![heads_of_thread * 2 * vectors];
            let at = (start + first + comptime![head * 2 * vectors] + within) as usize;
            let a = Vector::<f32, N>::cast_from(x[at]);
            let b = Vector::<f32, N>::cast_from(x[at + comptime![vectors as usize]]);
            y[at] = Vector::cast_from(a * cos - b * sin);
            y[at + comptime![vectors as usize]] = Vector::cast_from(b * cos + a * sin);
        }

        let mut at = comptime![2 * vectors * n_rotated_heads] + part * vectors + within;
        while at < row_vectors {
            y[(start + at) as usize] = x[(start + at) as usize];
            at += comptime![vectors * parts];
        }
    }
}

impl RotaryOps for CubeBackend {
    fn fused_rotary(qkv: CubeTensor, positions: CubeTensor, frequencies: CubeTensor, spec: RotarySpec) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("rotary", &qkv, 2));
        let (x, positions) = (into_contiguous(qkv), into_contiguous(positions));
        let [rows, columns] = [x.meta.shape()[0], x.meta.shape()[1]];
        let half = spec.head_dim / 2;
        let y = empty_like(&x);
        // A vector lies within half a head and within a row.
        let width = vector_width(half, x.dtype).min(vector_width(columns, x.dtype));
        let dtype = dtype_to_storage_type(x.dtype);
        let n_rotated_heads = spec.n_rotated_heads as u32;
        let config = RotaryConfig {
            vectors: (half / width) as u32,
            n_rotated_heads,
            heads_of_thread: if rows <= FEW_ROWS { n_rotated_heads.min(1) } else { n_rotated_heads },
            row_vectors: (columns / width) as u32,
            early: early::is_wanted(&y.client),
        };
        let total = (rows * half / width) as u32 * config.threads_of_pair();
        debug_assert_eq!(positions.dtype, DType::I32);

        // SAFETY: threads beyond the last row do nothing; the table of frequencies has one for each pair of a head.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            rotate::launch_unchecked(
                &y.client,
                CubeCount::Static(total.div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.into_buffer_arg(),
                positions.into_buffer_arg(),
                into_contiguous(frequencies).into_buffer_arg(),
                y.clone().into_buffer_arg(),
                total,
                if spec.back { -1.0 } else { 1.0 },
                config,
                dtype,
            );
        }
        early::launched(&y, config.early);
        y
    }
}
