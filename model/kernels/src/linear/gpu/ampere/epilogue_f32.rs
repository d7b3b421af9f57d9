//! What happens to the results of a tile of f32: bias, residual or activation in the registers, then stores.
//!
//! Of 32 columns of a row a lane stores eight neighbours, two vectors, see [`eight_of_row`]. Where K is split, the results are the
//! partial sums of a slice.

use cubecl::prelude::*;

use super::multiply::{FRAGMENTS, across, warp_origin};
use super::{Results, Sizes};
use crate::activation::gpu::activated;
use crate::gpu::mma::{EDGE, Pair};
use crate::gpu::mma_f32::{eight_of_row, row_across};
use crate::linear::gpu::shared::config::GemmConfig;
use crate::linear::gpu::shared::relu::positive;
use crate::linear::gpu::shared::schedule::WorkTile;

/// Products of 16 x 8 across 32 columns.
const GROUP: usize = 4;
/// Rows whose residuals are in flight together.
const ROWS_IN_FLIGHT: usize = 4;

/// The eight results of a row that a lane stores, and where.
#[derive(CubeType)]
struct Place {
    row: u32,
    col: u32,
    /// Of the first vector, in the output and in the auxiliary matrix.
    to: usize,
    auxiliary: usize,
}

/// Stores the results of a tile, after its epilogue.
#[cube]
pub(super) fn finish_tile<E: Float, N: Size>(
    acc: &Sequence<Array<Pair<f32>>>,
    bias: &[Pair<E>],
    results: &mut Results<E, N>,
    tile: &WorkTile,
    sizes: &Sizes,
    #[comptime] cfg: GemmConfig,
) {
    let (row, col) = warp_origin(cfg);
    // Through a shuffle: nothing computed from it is kept across the products.
    let lane = plane_shuffle(UNIT_POS_PLANE, UNIT_POS_PLANE);
    let (row0, col0) = (tile.row0 + row, tile.col0 + col + lane % 4 * 8);

    #[unroll]
    for group in 0..comptime![across(&cfg) / GROUP] {
        let col = col0 + comptime![(group * GROUP * 8) as u32];
        let added = bias_of_group::<E, N>(bias, col, sizes.product.n, cfg);
        #[unroll]
        for half in 0..comptime![2 * FRAGMENTS / ROWS_IN_FLIGHT] {
            let mut places = Sequence::<Place>::new();
            let mut residual = Sequence::<Array<Vector<f32, N>>>::new();
            #[unroll]
            for nth in 0..ROWS_IN_FLIGHT {
                let r = row_of(lane, comptime![half * ROWS_IN_FLIGHT + nth], cfg);
                let place = place(row0 + r, col, tile.slice, sizes, cfg);
                residual.push(residual_at(&*results, &place, sizes, cfg));
                places.push(place);
            }
            #[unroll]
            for nth in 0..ROWS_IN_FLIGHT {
                let row = comptime![half * ROWS_IN_FLIGHT + nth];
                let mut eight = eight_of_row::<N>(&pairs_of(acc, row, group, cfg), comptime![cfg.b_is_mn_major()]);
                #[unroll]
                for i in 0..2usize {
                    eight[i] += added[i] + residual.index(nth)[i];
                }
                store_eight(&eight, results, places.index(nth), sizes, cfg);
            }
        }
    }
}

/// Returns the row of this lane's results number `row`, counted as an accumulator has them, in the warp's tile.
#[cube]
fn row_of(lane: u32, #[comptime] row: usize, #[comptime] cfg: GemmConfig) -> u32 {
    if comptime![cfg.a_is_mn_major()] {
        row_across(lane, comptime![row / 2], comptime![row % 2]) + comptime![(row / 4 * 2 * EDGE) as u32]
    } else {
        lane / 4 + comptime![(row / 2 * EDGE + row % 2 * 8) as u32]
    }
}

/// Returns where the results at (`row`, `col`) go.
#[cube]
fn place(row: u32, col: u32, slice: u32, sizes: &Sizes, #[comptime] cfg: GemmConfig) -> Place {
    let vector = comptime![cfg.vector()];
    let pitch = if comptime![cfg.splits_k()] { sizes.product.pitch } else { sizes.pitches.c };
    let mut to = row as usize * (pitch as usize / vector) + col as usize / vector;
    if comptime![cfg.splits_k()] {
        to += slice as usize * sizes.product.m as usize * (pitch as usize / vector);
    }
    let auxiliary = row as usize * (sizes.pitches.auxiliary as usize / vector) + col as usize / vector;
    Place { row, col, to, auxiliary }
}

/// Returns whether vector `nth` of the results at `place` lies in the matrix.
#[cube]
fn is_inside(place: &Place, sizes: &Sizes, #[comptime] nth: usize, #[comptime] cfg: GemmConfig) -> bool {
    place.row < sizes.product.m && place.col + comptime![(nth * cfg.vector()) as u32] < sizes.product.n
}

/// Returns the bias of eight columns.
#[cube]
fn bias_of_group<E: Float, N: Size>(
    bias: &[Pair<E>],
    col: u32,
    n: u32,
    #[comptime] cfg: GemmConfig,
) -> Array<Vector<f32, N>> {
    let mut added = Array::<Vector<f32, N>>::new(2usize);
    #[unroll]
    for i in 0..2usize {
        let mut four = Vector::<f32, N>::zeroed();
        if comptime![cfg.has_bias()] {
            #[unroll]
            for pair in 0..2usize {
                let col = col + comptime![(4 * i + 2 * pair) as u32];
                // Columns beyond the matrix are not stored; they read the first bias.
                let two = Pair::<f32>::cast_from(bias[(select(col < n, col, 0u32) / 2) as usize]);
                four.insert(comptime![2 * pair], two.extract(0usize));
                four.insert(comptime![2 * pair + 1], two.extract(1usize));
            }
        }
        added[i] = four;
    }
    added
}

/// Returns what is added to the results at `place`.
#[cube]
fn residual_at<E: Float, N: Size>(
    results: &Results<E, N>,
    place: &Place,
    sizes: &Sizes,
    #[comptime] cfg: GemmConfig,
) -> Array<Vector<f32, N>> {
    let mut residual = Array::<Vector<f32, N>>::new(2usize);
    #[unroll]
    for i in 0..2usize {
        residual[i] = Vector::<f32, N>::zeroed();
        if comptime![cfg.adds_residual()] {
            // Outside the matrix the first vector is read, and not used.
            let at = select(is_inside(place, sizes, i, cfg), place.auxiliary + i, 0usize);
            residual[i] = Vector::<f32, N>::cast_from(results.auxiliary[at]);
        }
    }
    residual
}

/// Returns this lane's results of row `row` in the four products of group `group`.
#[cube]
fn pairs_of(
    acc: &Sequence<Array<Pair<f32>>>,
    #[comptime] row: usize,
    #[comptime] group: usize,
    #[comptime] cfg: GemmConfig,
) -> Array<Pair<f32>> {
    let mut pairs = Array::<Pair<f32>>::new(GROUP);
    #[unroll]
    for i in 0..GROUP {
        pairs[i] = acc.index(comptime![row / 2 * across(&cfg) + group * GROUP + i])[comptime![row % 2]];
    }
    pairs
}

/// Applies the activation to eight results and stores them, or both them and their activation.
#[cube]
fn store_eight<E: Float, N: Size>(
    eight: &Array<Vector<f32, N>>,
    results: &mut Results<E, N>,
    place: &Place,
    sizes: &Sizes,
    #[comptime] cfg: GemmConfig,
) {
    #[unroll]
    for i in 0..2usize {
        let mut four = eight[i];
        if comptime![cfg.is_relu()] {
            #[unroll]
            for nth in 0..comptime![cfg.vector()] {
                four.insert(nth, positive(four.extract(nth)));
            }
        }

        let mut applied = four;
        if comptime![cfg.has_epilogue_warps()] {
            applied = activated::<N>(four, comptime![cfg.activation()]);
        }
        if is_inside(place, sizes, i, cfg) {
            if comptime![cfg.keeps_input()] {
                results.auxiliary[place.auxiliary + i] = Vector::<E, N>::cast_from(four);
            }
            results.c[place.to + i] = Vector::<E, N>::cast_from(applied);
        }
    }
}
