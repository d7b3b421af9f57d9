//! Launches of the normalization kernels.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::kernel::{REDUCE_COLUMNS, REDUCE_UNITS, RowConfig, UNITS, backward, forward, reduce_partial};
use super::ops::{Addend, Kind, NormOps, Remainder};
use crate::dropout::{Dropping, Mask};
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::{empty, empty_like, vector_width};
use crate::gpu::pipeline::can_copy;
use crate::maybe::Maybe;

impl NormOps for CubeBackend {
    fn add_norm_with_statistics(
        x: CubeTensor,
        branch: Addend<Self>,
        bias: Maybe<Self>,
        mask: Mask<Self>,
        gamma: CubeTensor,
        beta: Maybe<Self>,
        kind: Kind,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let Remainder { sum: x, branch, bias } = branch.multiplied(x, bias, &mask);
        let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
        let [branch, bias] = [branch, bias].map(|tensor| tensor.map(into_contiguous));
        let beta = optional(beta);
        let dropping = Dropping::new(mask);
        let (config, width, rows) = plan(&x, kind);
        let config = RowConfig {
            branch: branch.is_some(),
            bias: bias.is_some(),
            shift: beta.is_some(),
            dropped: branch.is_some() && dropping.state.is_some(),
            ..config
        };
        let y = empty_like(&x);
        let sum = if config.branch { empty_like(&x) } else { x.clone() };
        let statistics = empty(&x, [rows, 2], DType::F32);
        let dtype = dtype_to_storage_type(x.dtype);
        // Arguments that the kernel is compiled not to touch are represented by `x`.
        let or_x = |tensor: Option<CubeTensor>| tensor.unwrap_or_else(|| x.clone()).into_buffer_arg();
        // SAFETY: rows are guarded by `rows`, columns by the vectors of a row; all tensors are contiguous.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            forward::launch_unchecked(
                &y.client,
                CubeCount::Static((rows as u32).div_ceil(config.rows_per_cube()), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.clone().into_buffer_arg(),
                or_x(branch),
                or_x(bias),
                or_x(dropping.state),
                gamma.into_buffer_arg(),
                or_x(beta),
                sum.clone().into_buffer_arg(),
                y.clone().into_buffer_arg(),
                statistics.clone().into_buffer_arg(),
                rows as u32,
                kind.eps,
                dropping.site,
                dropping.limit,
                dropping.scale,
                config,
                dtype,
            );
        }
        (sum, y, statistics)
    }

    fn add_norm_backward(
        sum: CubeTensor,
        statistics: CubeTensor,
        gamma: CubeTensor,
        dy: CubeTensor,
        dsum: Maybe<Self>,
        mask: Mask<Self>,
        kind: Kind,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let (x, gamma, dy) = (into_contiguous(sum), into_contiguous(gamma), into_contiguous(dy));
        let dsum = optional(dsum);
        let dropping = Dropping::new(mask);
        let (config, width, rows) = plan(&x, kind);
        let config = RowConfig {
            residual: dsum.is_some(),
            dropped: dropping.state.is_some(),
            streamed: can_copy(&x, width) && config.can_stream(),
            ..config
        };
        let dx = empty_like(&x);
        let dbranch = if config.dropped { empty_like(&x) } else { dx.clone() };
        let (dgamma, dbeta) = (empty_like(&gamma), empty_like(&gamma));
        let dbias = if kind.bias { empty_like(&gamma) } else { gamma.clone() };
        let d = x.meta.shape()[1];
        let dtype = dtype_to_storage_type(x.dtype);
        let client = x.client.clone();
        let cubes =
            (multiprocessors(&client) * config.cubes_at_once()).min((rows as u32).div_ceil(config.rows_per_cube()));
        let sums = (cubes * config.parameters()) as usize * d;
        let partial = client.empty(sums * size_of::<f32>());
        let or_x = |tensor: Option<CubeTensor>| tensor.unwrap_or_else(|| x.clone()).into_buffer_arg();
        // SAFETY: as in forward; `partial` holds a row of f32 for each cube and parameter; a `dbias` that is not wanted
        // is not touched.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            backward::launch_unchecked(
                &client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.clone().into_buffer_arg(),
                into_contiguous(statistics).into_buffer_arg(),
                gamma.into_buffer_arg(),
                dy.into_buffer_arg(),
                or_x(dsum),
                or_x(dropping.state),
                dx.clone().into_buffer_arg(),
                dbranch.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(partial.clone(), sums),
                rows as u32,
                dropping.site,
                dropping.limit,
                dropping.scale,
                config,
                dtype,
            );
            reduce_partial::launch_unchecked(
                &client,
                CubeCount::Static((d as u32).div_ceil(REDUCE_COLUMNS), config.parameters(), 1),
                CubeDim::new_1d(REDUCE_UNITS),
                BufferArg::from_raw_parts(partial, sums),
                dgamma.clone().into_buffer_arg(),
                dbeta.clone().into_buffer_arg(),
                dbias.clone().into_buffer_arg(),
                d as u32,
                cubes,
                config.parameters(),
                dtype,
            );
        }
        (dx, dbranch, dgamma, dbeta, dbias)
    }
}

/// What does not depend on the optional tensors, the width of vectors, and the number of rows.
fn plan(x: &CubeTensor, kind: Kind) -> (RowConfig, usize, usize) {
    let [rows, d] = [x.meta.shape()[0], x.meta.shape()[1]];
    let width = vector_width(d, x.dtype);
    let vectors = (d / width) as u32;
    let Kind { centered, bias, .. } = kind;
    let config = RowConfig {
        vectors,
        centered,
        bias,
        branch: false,
        shift: false,
        residual: false,
        dropped: false,
        streamed: false,
    };
    (config, width, rows)
}

fn optional(tensor: Maybe<CubeBackend>) -> Option<CubeTensor> {
    tensor.into_option().map(into_contiguous)
}
