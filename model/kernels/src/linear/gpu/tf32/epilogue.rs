//! What happens to the results of a warpgroup in its registers: bias, residual, activation, and stores of pairs. The four pairs that
//! adjacent lanes store fill a sector of 32 bytes.

use cubecl::prelude::*;

use super::Results;
use crate::activation::gpu::activated;
use crate::gpu::wgmma::position;
use crate::linear::gpu::hopper::accumulator::{pair, thread_in_warpgroup};
use crate::linear::gpu::shared::arguments::GemmSize;
use crate::linear::gpu::shared::config::GemmConfig;
use crate::linear::gpu::shared::relu::positive;
use crate::linear::gpu::shared::schedule::WorkTile;
use crate::linear::gpu::shared::vectors::Pair;

/// Pairs of a residual that are read before any of them is used, so that their latencies overlap.
const PAIRS_IN_FLIGHT: usize = 4;

/// Stores an accumulator of 64 rows, which are the rows of `tile` from `first_row` on, after its epilogue.
#[cube]
pub(super) fn store_results(
    acc: &Array<f32>,
    results: &mut Results,
    tile: &WorkTile,
    first_row: u32,
    size: &GemmSize,
    #[comptime] cfg: GemmConfig,
) {
    let thread = thread_in_warpgroup();
    let row0 = tile.row0 + first_row;
    let base = tile.slice as usize * size.m as usize * size.pitch as usize;

    #[unroll]
    for group in 0..comptime![cfg.columns / 4 / PAIRS_IN_FLIGHT] {
        let mut added = Array::<Pair<f32>>::new(PAIRS_IN_FLIGHT);
        #[unroll]
        for i in 0..PAIRS_IN_FLIGHT {
            let (r, c) = position(thread, comptime![2 * (group * PAIRS_IN_FLIGHT + i) as u32]);
            added[i] = addend(&*results, row0 + r, tile.col0 + c, size, cfg);
        }

        #[unroll]
        for i in 0..PAIRS_IN_FLIGHT {
            let nth = comptime![group * PAIRS_IN_FLIGHT + i];
            let (r, c) = position(thread, comptime![2 * nth as u32]);
            let (row, col) = (row0 + r, tile.col0 + c);
            if row < size.m && col < size.n {
                let to = (base + row as usize * size.pitch as usize + col as usize) / 2;
                store_pair(pair(acc, nth) + added[i], results, row, col, to, cfg);
            }
        }
    }
}

/// Returns the bias and the residual of two neighbours. Outside the matrix the first ones are read, and not used.
#[cube]
fn addend(results: &Results, row: u32, col: u32, size: &GemmSize, #[comptime] cfg: GemmConfig) -> Pair<f32> {
    let mut sum = Pair::<f32>::zeroed();
    if comptime![cfg.has_bias()] {
        sum += results.bias[(select(col < size.n, col, 0u32) / 2) as usize];
    }
    if comptime![cfg.adds_residual()] {
        let at = row as usize * results.auxiliary_pitch as usize + col as usize;
        sum += results.auxiliary[select(row < size.m && col < size.n, at, 0usize) / 2];
    }
    sum
}

/// Applies the activation to two neighbours and stores them, or both them and their activation.
#[cube]
fn store_pair(x: Pair<f32>, results: &mut Results, row: u32, col: u32, to: usize, #[comptime] cfg: GemmConfig) {
    let mut stored = x;
    if comptime![cfg.is_relu()] {
        stored.insert(0usize, positive(x.extract(0usize)));
        stored.insert(1usize, positive(x.extract(1usize)));
    }
    if comptime![cfg.has_epilogue_warps()] {
        stored = activated::<Const<2>>(x, comptime![cfg.activation()]);
    }
    if comptime![cfg.keeps_input()] {
        results.auxiliary[(row as usize * results.auxiliary_pitch as usize + col as usize) / 2] = x;
    }
    results.c[to] = stored;
}
