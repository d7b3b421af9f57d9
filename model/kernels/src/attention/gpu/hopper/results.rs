//! The results of forward: 64 queries of a warpgroup.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use crate::attention::gpu::shared::Oct;
use crate::attention::gpu::shared::arguments::Call;
use crate::attention::gpu::shared::config::FlashConfig;
use crate::attention::gpu::shared::mask::MASKED;
use crate::attention::gpu::shared::position::{Patch, Place, QueryTile, query_column};
use crate::attention::gpu::shared::rows::store_rows;
use crate::attention::gpu::shared::softmax::{Rescale, Running, quad_sum};
use crate::gpu::instruction::{log2_approx, rcp_approx};
use crate::gpu::wgmma::zeros;

/// A thread's part of the results, and its softmax so far.
#[derive(CubeType)]
pub(super) struct Rows {
    pub(super) o: Array<f32>,
    pub(super) running: Running,
    pub(super) rescale: Rescale,
}

/// Returns the rows of queries that have seen no key.
#[cube]
pub(super) fn rows(#[comptime] cfg: FlashConfig) -> Rows {
    let lowest = f32::cast_from(comptime![MASKED]);
    Rows {
        o: zeros(comptime![cfg.head_dim]),
        running: Running { top0: lowest, top1: lowest, sum0: 0.0f32, sum1: 0.0f32 },
        rescale: Rescale { needed: false.runtime(), by0: 1.0f32, by1: 1.0f32 },
    }
}

/// Stores the results of the queries of `block`, and the binary logarithms of their sums of exponentials.
#[cube]
pub(super) fn store<E: Float>(
    rows: &Rows,
    out: &mut [Oct<E>],
    lse: &mut [f32],
    call: &Call,
    block: &QueryTile,
    at: &Place,
    unit: u32,
    #[comptime] cfg: FlashConfig,
) {
    // A query without keys has a sum of 0. Its row is finite but undefined.
    let total0 = max(quad_sum(rows.running.sum0), 1e-30f32);
    let total1 = max(quad_sum(rows.running.sum1), 1e-30f32);
    let columns = comptime![cfg.n_heads * cfg.head_dim];
    let (by0, by1) = (rcp_approx(total0), rcp_approx(total1));
    let t = call.lens.t;
    let patch = Patch { first: block.batch * t, row0: block.q0, rows: t, column: query_column(block.head, cfg) };
    store_rows::<E, Const<8>>(&rows.o, by0, by1, out, &patch, unit, columns, comptime![cfg.head_dim]);

    if at.column == 0 {
        let scale = comptime![cfg.scale() * LOG2_E].runtime();
        let row = block.q0 + at.row;
        if row < t {
            lse[(block.row_head * t + row) as usize] = rows.running.top0 * scale + log2_approx(total0);
        }
        if row + 8 < t {
            lse[(block.row_head * t + row + 8) as usize] = rows.running.top1 * scale + log2_approx(total1);
        }
    }
}
