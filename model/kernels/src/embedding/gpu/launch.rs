//! Launches of the embedding kernels.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::UNITS;
use super::lookup::{CallLaunch, LookupConfig, look_up};
use super::sort::{begin, count, deal, settle};
use super::sum::{COLUMNS, PLANES, RowsLaunch, SEGMENT, SUM_UNITS, SumsLaunch, accumulate, join};
use crate::dropout::kernel::DropArgsLaunch;
use crate::dropout::{Dropping, Mask};
use crate::embedding::ops::{EmbeddingOps, Lookup, record_gradient, record_lookup};
use crate::gpu::early;
use crate::gpu::memory::{empty, vector_width};
use crate::gpu::scan::SCAN_UNITS;
use crate::maybe::Maybe;
use crate::reduce::columns::backward_and_sum;

impl EmbeddingOps for CubeBackend {
    fn embed(
        table: CubeTensor,
        ids: CubeTensor,
        positions: Maybe<Self>,
        drop: Mask<Self>,
        lookup: Lookup,
    ) -> CubeTensor {
        let _call = record_lookup(&table, &ids);
        let (table, ids) = (into_contiguous(table), integers(ids));
        let positions = positions.into_option().map(into_contiguous);
        let (n, d) = (ids.meta.shape()[0], table.meta.shape()[1]);
        let out = empty(&table, [n, d], table.dtype);
        if n == 0 || d == 0 {
            return out;
        }

        let width = vector_width(d, table.dtype);
        let vectors = (d / width) as u32;
        let Dropping { state, site, limit, scale } = Dropping::new(drop);
        let early = early::is_wanted(&out.client);
        let config = LookupConfig { vectors, has_positions: positions.is_some(), is_dropped: state.is_some(), early };
        let drop = DropArgsLaunch::new(site, limit, scale);
        let call = CallLaunch::new(n as u32, lookup.length as u32, drop, lookup.scale);
        let dtype = dtype_to_storage_type(table.dtype);

        // SAFETY: ids are rows of the table; threads beyond the last vector do nothing; the kernel does not touch
        // arguments that stand in for missing ones.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            look_up::launch_unchecked(
                &out.client,
                CubeCount::Static((n as u32 * vectors).div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                table.clone().into_buffer_arg(),
                ids.clone().into_buffer_arg(),
                positions.unwrap_or(table).into_buffer_arg(),
                state.unwrap_or(ids).into_buffer_arg(),
                out.clone().into_buffer_arg(),
                call,
                config,
                dtype,
            );
        }
        early::launched(&out, early);
        out
    }

    fn position_gradient(dy: CubeTensor, drop: Mask<Self>, lookup: Lookup) -> CubeTensor {
        // View each batch row as one row of T * D columns, and sum the columns.
        let dy = into_contiguous(dy);
        let [n, d] = [dy.meta.shape()[0], dy.meta.shape()[1]];
        let (rows, columns) = (n / lookup.length, lookup.length * d);
        let (_, sum) = backward_and_sum(None, reshape(dy, [rows, columns].into()), drop);
        reshape(sum, [lookup.length, d].into())
    }

    fn table_gradient(dy: CubeTensor, ids: CubeTensor, drop: Mask<Self>, lookup: Lookup) -> CubeTensor {
        let _call = record_gradient(&dy, lookup.rows);
        let (dy, ids) = (into_contiguous(dy), integers(ids));
        let rows = lookup.rows;
        let [n, d] = [dy.meta.shape()[0], dy.meta.shape()[1]];
        let (client, device) = (dy.client.clone(), dy.device.clone());

        // Zeros for ids without tokens. Allocated as one row: the backend would pad rows of odd lengths.
        let zeros = zeros_client(client.clone(), device.clone(), [rows * d].into(), dy.dtype);
        let out = CubeTensor::new_contiguous(client, device, [rows, d].into(), zeros.handle, dy.dtype);
        if n == 0 || d == 0 {
            return out;
        }

        let tokens = SortedTokens::new(&ids, rows);
        sum_rows(dy, ids, tokens, &out, drop, lookup.scale);
        out
    }
}

/// Returns ids as the kernels read them.
fn integers(ids: CubeTensor) -> CubeTensor {
    assert!(ids.dtype == DType::I32, "ids of {:?}", ids.dtype);
    into_contiguous(ids)
}

/// Tokens by id, and the tokens of an id in their order.
struct SortedTokens {
    n: usize,
    /// Number of each token.
    order: Handle,
    /// Id of each token.
    sorted: Handle,
}

impl SortedTokens {
    /// Sorts the tokens of `ids`, which are below `rows`.
    fn new(ids: &CubeTensor, rows: usize) -> Self {
        let (client, n) = (ids.client.clone(), ids.meta.shape()[0]);
        let quads = rows.div_ceil(4);
        let places = zeros_client(client.clone(), ids.device.clone(), [4 * quads].into(), DType::U32).handle;
        let dealt = client.empty(4 * n.next_multiple_of(4));
        let (order, sorted) = (client.empty(4 * n), client.empty(4 * n));
        let each = CubeCount::Static((n as u32).div_ceil(UNITS), 1, 1);

        // SAFETY: ids are below `rows`, tokens are guarded by `n`; `dealt` has room for whole quads.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            count::launch_unchecked(
                &client,
                each.clone(),
                CubeDim::new_1d(UNITS),
                ids.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(places.clone(), rows),
                n as u32,
            );
            begin::launch_unchecked(
                &client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(SCAN_UNITS),
                BufferArg::from_raw_parts(places.clone(), quads),
                quads as u32,
            );
            deal::launch_unchecked(
                &client,
                each.clone(),
                CubeDim::new_1d(UNITS),
                ids.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(places.clone(), rows),
                BufferArg::from_raw_parts(dealt.clone(), n),
                n as u32,
            );
            settle::launch_unchecked(
                &client,
                each,
                CubeDim::new_1d(UNITS),
                ids.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(places, rows),
                BufferArg::from_raw_parts(dealt.clone(), n),
                BufferArg::from_raw_parts(dealt, n.div_ceil(4)),
                BufferArg::from_raw_parts(order.clone(), n),
                BufferArg::from_raw_parts(sorted.clone(), n),
                n as u32,
            );
        }
        Self { n, order, sorted }
    }
}

/// Writes to the rows of `out` the sums of `factor * drop(dy)` over the tokens of each id.
fn sum_rows(
    dy: CubeTensor,
    ids: CubeTensor,
    tokens: SortedTokens,
    out: &CubeTensor,
    drop: Mask<CubeBackend>,
    factor: f32,
) {
    let (client, d) = (dy.client.clone(), dy.meta.shape()[1]);
    let SortedTokens { n, order, sorted } = tokens;
    let width = vector_width(d, dy.dtype);
    let vectors = (d / width) as u32;
    let dtype = dtype_to_storage_type(dy.dtype);
    let segments = n.div_ceil(SEGMENT as usize);
    let (head, tail) = (client.empty(4 * segments * d), client.empty(4 * segments * d));
    let cubes = CubeCount::Static((segments as u32).div_ceil(PLANES), vectors.div_ceil(COLUMNS), 1);
    let Dropping { state, site, limit, scale } = Dropping::new(drop);
    let is_dropped = state.is_some();

    // SAFETY: `order` is a permutation of the tokens, ids are rows of the table, columns and tokens are guarded; every
    // segment has its place in `head` and `tail`.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        accumulate::launch_unchecked(
            &client,
            cubes.clone(),
            CubeDim::new_1d(SUM_UNITS),
            width,
            RowsLaunch::new(
                dy.into_buffer_arg(),
                BufferArg::from_raw_parts(order, n),
                BufferArg::from_raw_parts(sorted.clone(), n),
                state.unwrap_or(ids).into_buffer_arg(),
            ),
            SumsLaunch::new(
                out.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(head.clone(), segments * d),
                BufferArg::from_raw_parts(tail.clone(), segments * d),
            ),
            n as u32,
            DropArgsLaunch::new(site, limit, scale * factor),
            vectors,
            is_dropped,
            dtype,
        );
        join::launch_unchecked(
            &client,
            cubes,
            CubeDim::new_1d(SUM_UNITS),
            width,
            BufferArg::from_raw_parts(sorted, n),
            BufferArg::from_raw_parts(head, segments * d),
            BufferArg::from_raw_parts(tail, segments * d),
            out.clone().into_buffer_arg(),
            n as u32,
            vectors,
            dtype,
        );
    }
}
