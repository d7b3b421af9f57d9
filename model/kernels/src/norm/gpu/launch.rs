//! Launches of the normalization kernels.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::UNITS;
use super::backward::{
    BackwardConfig, InputsLaunch as BackwardInputs, OutputsLaunch as BackwardOutputs, norm_backward,
};
use super::forward::{
    Addend as Added, ForwardConfig, InputsLaunch as ForwardInputs, OutputsLaunch as ForwardOutputs, norm_forward,
};
use super::parameters::{REDUCE_COLUMNS, REDUCE_UNITS, reduce_partial};
use super::row::{Normalization, Row};
use crate::dropout::kernel::DropArgsLaunch;
use crate::dropout::{Dropping, Mask};
use crate::gpu::early;
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::{empty, empty_like, vector_width};
use crate::gpu::pipeline::can_copy;
use crate::maybe::Maybe;
use crate::norm::ops::{Addend, Kind, NormOps, Remainder, record_backward, record_forward};

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
        let Remainder { sum: x, branch, bias } = branch.multiplied(x, bias, &mask, kind.product);
        let _call = record_forward(&x, branch.is_some());
        let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
        let [branch, bias] = [branch, bias].map(|tensor| tensor.map(into_contiguous));
        let beta = optional(beta);
        let Dropping { state, site, limit, scale } = Dropping::new(mask);

        let (row, width, rows) = row_of(&x);
        let addend = match branch {
            Some(_) => Added::Branch { has_bias: bias.is_some(), is_dropped: state.is_some() },
            None => Added::None,
        };
        let early = early::is_wanted(&x.client);
        let config = ForwardConfig { row, normalization: normalization(kind), addend, early };
        let y = empty_like(&x);
        let sum = if config.has_branch() { empty_like(&x) } else { x.clone() };
        let statistics = empty(&x, [rows, 2], DType::F32);
        let dtype = dtype_to_storage_type(x.dtype);

        // `x` stands in for missing inputs, which the kernel is compiled not to touch.
        let or_x = |tensor: Option<CubeTensor>| tensor.unwrap_or_else(|| x.clone()).into_buffer_arg();
        let inputs = ForwardInputs::new(
            x.clone().into_buffer_arg(),
            or_x(branch),
            or_x(bias),
            or_x(state),
            gamma.into_buffer_arg(),
            or_x(beta),
        );
        let outputs = ForwardOutputs::new(
            sum.clone().into_buffer_arg(),
            y.clone().into_buffer_arg(),
            statistics.clone().into_buffer_arg(),
        );

        // SAFETY: rows are guarded by `rows`, columns by the vectors of a row; all tensors are contiguous.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            norm_forward::launch_unchecked(
                &y.client,
                CubeCount::Static((rows as u32).div_ceil(row.per_cube()), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                inputs,
                outputs,
                rows as u32,
                kind.eps,
                DropArgsLaunch::new(site, limit, scale),
                config,
                dtype,
            );
        }
        early::launched(&y, early);
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
        let _call = record_backward(&sum, matches!(dsum, Maybe::Some(_)), mask.is_some());
        let (x, gamma, dy, dsum) = (into_contiguous(sum), into_contiguous(gamma), into_contiguous(dy), optional(dsum));
        let Dropping { state, site, limit, scale } = Dropping::new(mask);

        let (row, width, rows) = row_of(&x);
        let config = BackwardConfig {
            row,
            normalization: normalization(kind),
            has_residual: dsum.is_some(),
            has_bias: kind.bias,
            is_dropped: state.is_some(),
            is_streamed: can_copy(&x, width) && BackwardConfig::can_stream(row),
        };
        let dx = empty_like(&x);
        let dbranch = if config.is_dropped { empty_like(&x) } else { dx.clone() };
        let (dgamma, dbeta) = (empty_like(&gamma), empty_like(&gamma));
        let dbias = if kind.bias { empty_like(&gamma) } else { gamma.clone() };
        let d = x.meta.shape()[1];
        let dtype = dtype_to_storage_type(x.dtype);
        let client = x.client.clone();
        let cubes = (multiprocessors(&client) * config.cubes()).min((rows as u32).div_ceil(row.per_cube()));
        let sums = (cubes * config.parameters()) as usize * d;
        let partial = client.empty(sums * size_of::<f32>());

        let or_x = |tensor: Option<CubeTensor>| tensor.unwrap_or_else(|| x.clone()).into_buffer_arg();
        let inputs = BackwardInputs::new(
            x.clone().into_buffer_arg(),
            into_contiguous(statistics).into_buffer_arg(),
            gamma.into_buffer_arg(),
            dy.into_buffer_arg(),
            or_x(dsum),
            or_x(state),
        );

        // SAFETY: as in forward; `partial` holds a row of f32 for each block and parameter; a `dbias` that is not
        // wanted is not touched.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            let outputs = BackwardOutputs::new(
                dx.clone().into_buffer_arg(),
                dbranch.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(partial.clone(), sums),
            );
            norm_backward::launch_unchecked(
                &client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                inputs,
                outputs,
                rows as u32,
                DropArgsLaunch::new(site, limit, scale),
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

/// Returns the length of a row in vectors, their width, and the number of rows.
fn row_of(x: &CubeTensor) -> (Row, usize, usize) {
    let [rows, d] = [x.meta.shape()[0], x.meta.shape()[1]];
    let width = vector_width(d, x.dtype);
    (Row { vectors: (d / width) as u32 }, width, rows)
}

fn normalization(kind: Kind) -> Normalization {
    if kind.centered { Normalization::Layer } else { Normalization::RootMeanSquare }
}

fn optional(tensor: Maybe<CubeBackend>) -> Option<CubeTensor> {
    tensor.into_option().map(into_contiguous)
}
