//! Launches of the kernels.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::UNITS;
use super::backward::{CUBES, norm_heads_backward};
use super::forward::norm_heads_forward;
use super::heads::{HeadsConfig, ScalesLaunch};
use crate::calls;
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::{empty_like, vector_width};
use crate::head_norm::ops::{HeadNormOps, HeadNorms};
use crate::norm::{REDUCE_COLUMNS, REDUCE_UNITS, reduce_partial};

impl HeadNormOps for CubeBackend {
    fn norm_heads(qkv: CubeTensor, query_gamma: CubeTensor, key_gamma: CubeTensor, spec: HeadNorms) -> CubeTensor {
        let _call = calls::begin(|| calls::of_passes("norm of heads forward", &qkv, 2));
        let x = into_contiguous(qkv);
        let y = empty_like(&x);
        let Heads { config, width, n } = Heads::of(&x, spec);
        // SAFETY: heads and vectors are guarded.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            norm_heads_forward::launch_unchecked(
                &y.client,
                CubeCount::Static((n * config.lanes()).div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.clone().into_buffer_arg(),
                scales_of(query_gamma, key_gamma),
                y.clone().into_buffer_arg(),
                n,
                spec.eps,
                config,
                dtype_to_storage_type(x.dtype),
            );
        }
        y
    }

    fn norm_heads_backward(
        qkv: CubeTensor,
        query_gamma: CubeTensor,
        key_gamma: CubeTensor,
        dy: CubeTensor,
        spec: HeadNorms,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let _call = calls::begin(|| calls::of_passes("norm of heads backward", &qkv, 3));
        let (x, dy) = (into_contiguous(qkv), into_contiguous(dy));
        let (dx, d_query, d_key) = (empty_like(&x), empty_like(&query_gamma), empty_like(&key_gamma));

        let Heads { config, width, n } = Heads::of(&x, spec);
        let (client, dtype, k) = (x.client.clone(), dtype_to_storage_type(x.dtype), spec.head_dim);
        let cubes = (multiprocessors(&client) * CUBES).min((n * config.lanes()).div_ceil(UNITS)).max(1);
        let sums = 2 * cubes as usize * k;
        let partial = client.empty(sums * size_of::<f32>());

        // SAFETY: as in forward; `partial` holds a row for each block and scale.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            norm_heads_backward::launch_unchecked(
                &client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.clone().into_buffer_arg(),
                scales_of(query_gamma, key_gamma),
                dy.into_buffer_arg(),
                dx.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(partial.clone(), sums),
                n,
                spec.eps,
                config,
                dtype,
            );

            reduce_partial::launch_unchecked(
                &client,
                CubeCount::Static((k as u32).div_ceil(REDUCE_COLUMNS), 2, 1),
                CubeDim::new_1d(REDUCE_UNITS),
                BufferArg::from_raw_parts(partial, sums),
                d_query.clone().into_buffer_arg(),
                d_key.clone().into_buffer_arg(),
                d_key.clone().into_buffer_arg(),
                k as u32,
                cubes,
                2,
                dtype,
            );
        }
        (dx, d_query, d_key)
    }
}

/// What the kernels are compiled for, the width of a vector, and the heads of all rows.
struct Heads {
    config: HeadsConfig,
    width: usize,
    n: u32,
}

impl Heads {
    fn of(x: &CubeTensor, spec: HeadNorms) -> Self {
        let ([rows, columns], k) = ([x.meta.shape()[0], x.meta.shape()[1]], spec.head_dim);
        let width = vector_width(k, x.dtype);
        let config = HeadsConfig {
            vectors: (k / width) as u32,
            n_query_heads: spec.n_query_heads as u32,
            n_key_heads: spec.n_key_heads as u32,
            n_heads: (columns / k) as u32,
        };
        Self { config, width, n: (rows * columns / k) as u32 }
    }
}

fn scales_of<F: Float, N: Size>(query: CubeTensor, key: CubeTensor) -> ScalesLaunch<F, N> {
    ScalesLaunch::new(into_contiguous(query).into_buffer_arg(), into_contiguous(key).into_buffer_arg())
}
