//! Forward: rows of the table, scaled, with positions and dropout.

use cubecl::prelude::*;

use crate::dropout::kernel::{DropArgs, keep_factors};
use crate::gpu::early::{begin, changed};

/// The numbers of a call.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Call {
    /// Rows of the result.
    pub(super) n: u32,
    /// Number of positions.
    pub(super) length: u32,
    pub(super) drop: DropArgs,
    /// Factor of the table's rows.
    pub(super) scale: f32,
}

/// What [`look_up`] is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LookupConfig {
    /// Vectors of a row.
    pub(super) vectors: u32,
    pub(super) has_positions: bool,
    pub(super) is_dropped: bool,
    /// See [`crate::gpu::early`].
    pub(super) early: bool,
}

/// Computes `dropout(scale * table[ids] + positions)`, one vector per thread. Without positions or dropout, `positions`
/// or `state` is not touched.
#[cube(launch_unchecked)]
pub(super) fn look_up<F: Float, N: Size>(
    table: &[Vector<F, N>],
    ids: &[i32],
    positions: &[Vector<F, N>],
    state: &[i32],
    out: &mut [Vector<F, N>],
    call: Call,
    #[comptime] config: LookupConfig,
    #[define(F)] _dtype: ElemType,
) {
    begin(config.early);
    changed(ids, config.early);
    let at = ABSOLUTE_POS as u32;
    let vectors = comptime![config.vectors];
    let row = at / vectors;
    if row < call.n {
        let column = at % vectors;
        let from = ids[row as usize] as usize * comptime![vectors as usize] + column as usize;

        let mut x = Vector::<f32, N>::cast_from(table[from]) * Vector::new(call.scale);
        if comptime![config.has_positions] {
            x += Vector::<f32, N>::cast_from(positions[(row % call.length * vectors + column) as usize]);
        }
        if comptime![config.is_dropped] {
            x = x * keep_factors::<N>(at, call.drop.site, state, call.drop.limit, call.drop.scale);
        }

        out[at as usize] = Vector::cast_from(x);
    }
}
