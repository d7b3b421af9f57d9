//! Forward: the sum, its statistics and its normalization, a row at a time.

use cubecl::prelude::*;

use super::row::{Normalization, Row, center, load_row, row_unit};
use crate::dropout::kernel::{DropArgs, keep_factors};
use crate::gpu::early::{begin, changed};
use crate::gpu::occupancy::cubes_at_once;

/// What is added before the normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Addend {
    None,
    Branch { has_bias: bool, is_dropped: bool },
}

/// What [`norm_forward`] is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ForwardConfig {
    pub(super) row: Row,
    pub(super) normalization: Normalization,
    pub(super) addend: Addend,
    /// See [`crate::gpu::early`].
    pub(super) early: bool,
}

impl ForwardConfig {
    pub(super) fn has_branch(&self) -> bool {
        self.addend != Addend::None
    }

    fn has_bias(&self) -> bool {
        matches!(self.addend, Addend::Branch { has_bias: true, .. })
    }

    fn is_dropped(&self) -> bool {
        matches!(self.addend, Addend::Branch { is_dropped: true, .. })
    }

    /// Returns the blocks on a multiprocessor at a time: the threads that wait for memory should be many.
    fn cubes(&self) -> usize {
        match self.row.slots() {
            1 | 2 => 10,
            3 => 8,
            _ => 4,
        }
    }
}

/// Inputs that the configuration does not ask for are not touched.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Inputs<F: Float, N: Size> {
    pub(super) x: Box<[Vector<F, N>]>,
    pub(super) branch: Box<[Vector<F, N>]>,
    pub(super) bias: Box<[Vector<F, N>]>,
    /// Of the random stream.
    pub(super) state: Box<[i32]>,
    pub(super) gamma: Box<[Vector<F, N>]>,
    pub(super) beta: Box<[Vector<F, N>]>,
}

#[derive(CubeType, CubeLaunch)]
pub(super) struct Outputs<F: Float, N: Size> {
    /// What is normalized. Not touched where nothing is added.
    pub(super) sum: Box<[Vector<F, N>]>,
    pub(super) y: Box<[Vector<F, N>]>,
    /// Mean and inverse root of each row.
    pub(super) statistics: Box<[f32]>,
}

/// Adds the branch to the thread's vectors of row number `nth`, and stores the sum. The norm is taken of the sum as it
/// is stored, because backward has no other.
#[cube]
fn add_branch<F: Float, N: Size>(
    held: &mut Array<Vector<f32, N>>,
    added: &Array<Vector<F, N>>,
    inputs: &Inputs<F, N>,
    sum: &mut [Vector<F, N>],
    nth: u32,
    drop: &DropArgs,
    #[comptime] config: ForwardConfig,
) {
    let vectors = comptime![config.row.vectors];
    #[unroll]
    for i in 0..comptime![config.row.slots()] {
        let at = row_unit(config.row) + comptime![i as u32 * config.row.units()];
        if at < vectors {
            let position = nth * vectors + at;
            let mut addend = Vector::<f32, N>::cast_from(added[i]);
            if comptime![config.has_bias()] {
                addend += Vector::<f32, N>::cast_from(inputs.bias[at as usize]);
            }
            if comptime![config.is_dropped()] {
                addend = addend * keep_factors::<N>(position, drop.site, &inputs.state, drop.limit, drop.scale);
            }

            let stored = Vector::<F, N>::cast_from(held[i] + addend);
            sum[position as usize] = stored;
            held[i] = Vector::cast_from(stored);
        }
    }
}

/// Computes the sum, its normalization and the statistics of each row.
#[cube(launch_unchecked)]
pub(super) fn norm_forward<F: Float, N: Size>(
    inputs: &Inputs<F, N>,
    outputs: &mut Outputs<F, N>,
    rows: u32,
    eps: f32,
    drop: &DropArgs,
    #[comptime] config: ForwardConfig,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![config.cubes()]);
    begin(config.early);
    changed(&inputs.x, config.early);
    changed(&inputs.branch, config.early);
    let row = comptime![config.row];
    let vectors = comptime![config.row.vectors];
    let nth = CUBE_POS as u32 * comptime![config.row.per_cube()] + UNIT_POS / comptime![config.row.units()];
    if nth < rows {
        // All loads are in flight before the first is needed.
        let mut loaded = Array::<Vector<F, N>>::new(comptime![config.row.slots()]);
        let mut added = Array::<Vector<F, N>>::new(comptime![config.row.slots()]);
        load_row::<F, N>(&inputs.x, nth, &mut loaded, row);
        if comptime![config.has_branch()] {
            load_row::<F, N>(&inputs.branch, nth, &mut added, row);
        }

        let mut held = Array::<Vector<f32, N>>::new(comptime![config.row.slots()]);
        #[unroll]
        for i in 0..comptime![config.row.slots()] {
            held[i] = Vector::cast_from(loaded[i]);
        }
        if comptime![config.has_branch()] {
            add_branch::<F, N>(&mut held, &added, inputs, &mut outputs.sum, nth, drop, config);
        }

        let (mean, inverse_root) = center::<N>(&mut held, eps, config.normalization, row);
        if row_unit(row) == 0 {
            outputs.statistics[(nth * 2) as usize] = mean;
            outputs.statistics[(nth * 2 + 1) as usize] = inverse_root;
        }

        let inverse = Vector::<f32, N>::new(inverse_root);
        #[unroll]
        for i in 0..comptime![config.row.slots()] {
            let at = row_unit(row) + comptime![i as u32 * config.row.units()];
            if at < vectors {
                let mut normed = held[i] * inverse * Vector::<f32, N>::cast_from(inputs.gamma[at as usize]);
                if comptime![config.normalization == Normalization::Layer] {
                    normed += Vector::<f32, N>::cast_from(inputs.beta[at as usize]);
                }
                outputs.y[(nth * vectors + at) as usize] = Vector::cast_from(normed);
            }
        }
    }
}
