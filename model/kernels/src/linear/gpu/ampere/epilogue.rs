//! What happens to the results of a tile of 16-bit elements: bias, residual or activation in the registers, then stores.
//!
//! Of 16 rows and 32 columns a lane holds two neighbours in four places of a row. Four adjacent lanes exchange theirs, so that each
//! stores eight neighbours at once.

use cubecl::prelude::*;

use super::multiply::{FRAGMENTS, warp_origin};
use super::{Results, Sizes};
use crate::activation::gpu::activated;
use crate::gpu::mma::{EDGE, Pair, quad_transpose};
use crate::linear::gpu::shared::arguments::GemmSize;
use crate::linear::gpu::shared::config::GemmConfig;
use crate::linear::gpu::shared::relu::positive;
use crate::linear::gpu::shared::schedule::WorkTile;

/// Products of 16 x 8 across the results of a warp.
const ACROSS: usize = 8;
/// Products of 16 x 8 whose results are exchanged together.
const GROUP: usize = 4;

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
    let (row0, col0) = (tile.row0 + row + lane / 4, tile.col0 + col);

    if comptime![cfg.writes_sums()] {
        let base = tile.slice as usize * sizes.product.m as usize * sizes.product.pitch as usize;
        store_sums(acc, &mut results.sums, base, row0, col0 + lane % 4 * 2, &sizes.product, cfg);
    } else {
        #[unroll]
        for group in 0..comptime![ACROSS / GROUP] {
            let col0 = col0 + comptime![(group * GROUP * 8) as u32];
            let added = bias_of_group(bias, col0 + lane % 4 * 2, sizes.product.n, cfg);
            #[unroll]
            for row in 0..comptime![2 * FRAGMENTS] {
                let row0 = row0 + comptime![(row / 2 * EDGE + row % 2 * 8) as u32];
                store_group(acc, &added, results, row0, col0 + lane % 4 * 8, sizes, comptime![(row, group)], cfg);
            }
        }
    }
}

/// Returns the bias of this lane's columns of a group.
#[cube]
fn bias_of_group<E: Float>(bias: &[Pair<E>], col: u32, n: u32, #[comptime] cfg: GemmConfig) -> Array<Pair<f32>> {
    let mut added = Array::<Pair<f32>>::new(GROUP);
    #[unroll]
    for i in 0..GROUP {
        added[i] = Pair::zeroed();
        if comptime![cfg.has_bias()] {
            let col = col + comptime![(8 * i) as u32];
            // Columns beyond the matrix are not stored; they read the first bias.
            added[i] = Pair::cast_from(bias[(select(col < n, col, 0u32) / 2) as usize]);
        }
    }
    added
}

/// Stores row and group `place` of the results: this lane's eight, at (`row0`, `col`).
#[cube]
fn store_group<E: Float, N: Size>(
    acc: &Sequence<Array<Pair<f32>>>,
    bias: &Array<Pair<f32>>,
    results: &mut Results<E, N>,
    row0: u32,
    col: u32,
    sizes: &Sizes,
    #[comptime] place: (usize, usize),
    #[comptime] cfg: GemmConfig,
) {
    let (row, group) = comptime![place];
    let pitches = &sizes.pitches;
    let inside = row0 < sizes.product.m && col < sizes.product.n;
    let mut residual = Array::<u32>::new(GROUP);
    if comptime![cfg.adds_residual()] {
        // Outside the matrix the first vector is read, and not used.
        let at = select(inside, row0 as usize * (pitches.auxiliary as usize / 8) + (col / 8) as usize, 0usize);
        let words = Vector::<u32, Const<4>>::reinterpret(results.auxiliary[at]);
        #[unroll]
        for i in 0..GROUP {
            residual[i] = words.extract(i);
        }
        quad_transpose(&mut residual);
    }

    let mut words = Array::<u32>::new(GROUP);
    let mut applied = Array::<u32>::new(GROUP);
    #[unroll]
    for i in 0..GROUP {
        let pairs = acc.index(comptime![row / 2 * ACROSS + group * GROUP + i]);
        let mut result = pairs[comptime![row % 2]];
        if comptime![cfg.has_bias()] {
            result += bias[i];
        }
        if comptime![cfg.adds_residual()] {
            result += Pair::cast_from(Pair::<E>::reinterpret(residual[i]));
        }
        if comptime![cfg.is_relu()] {
            result.insert(0usize, positive(result.extract(0usize)));
            result.insert(1usize, positive(result.extract(1usize)));
        }
        let rounded = Pair::<E>::cast_from(result);
        words[i] = u32::reinterpret(rounded);
        if comptime![cfg.has_epilogue_warps()] {
            let value = activated::<Const<2>>(Pair::cast_from(rounded), comptime![cfg.activation()]);
            applied[i] = u32::reinterpret(Pair::<E>::cast_from(value));
        }
    }

    if comptime![cfg.has_epilogue_warps()] {
        if comptime![cfg.keeps_input()] {
            store_words(&mut words, &mut results.auxiliary, inside, row0, col, pitches.auxiliary);
        }
        store_words(&mut applied, &mut results.c, inside, row0, col, pitches.c);
    } else {
        store_words(&mut words, &mut results.c, inside, row0, col, pitches.c);
    }
}

/// Exchanges `words` with the adjacent lanes and stores this lane's eight results.
#[cube]
fn store_words<E: Float, N: Size>(
    words: &mut Array<u32>,
    to: &mut [Vector<E, N>],
    inside: bool,
    row: u32,
    col: u32,
    pitch: u32,
) {
    quad_transpose(words);
    let mut four = Vector::<u32, Const<4>>::empty();
    #[unroll]
    for i in 0..GROUP {
        four.insert(i, words[i]);
    }
    if inside {
        to[row as usize * (pitch as usize / 8) + (col / 8) as usize] = Vector::<E, N>::reinterpret(four);
    }
}

/// Writes the results as f32 to the matrix that begins at `base`, or adds them to the numbers there. This lane's begin at
/// (`row0`, `col0`).
#[cube]
fn store_sums(
    acc: &Sequence<Array<Pair<f32>>>,
    sums: &mut [Pair<f32>],
    base: usize,
    row0: u32,
    col0: u32,
    size: &GemmSize,
    #[comptime] cfg: GemmConfig,
) {
    #[unroll]
    for row in 0..comptime![2 * FRAGMENTS] {
        let r = row0 + comptime![(row / 2 * EDGE + row % 2 * 8) as u32];
        let first = base + r as usize * size.pitch as usize + col0 as usize;
        let mut before = Array::<Pair<f32>>::new(ACROSS);
        if comptime![cfg.accumulates()] {
            // All are read before the first is written back, so that their latencies overlap.
            #[unroll]
            for i in 0..ACROSS {
                let inside = r < size.m && col0 + comptime![(8 * i) as u32] < size.n;
                before[i] = sums[select(inside, first + comptime![8 * i], base) / 2];
            }
        }

        #[unroll]
        for i in 0..ACROSS {
            let mut sum = acc.index(comptime![row / 2 * ACROSS + i])[comptime![row % 2]];
            if comptime![cfg.accumulates()] {
                sum += before[i];
            }
            if r < size.m && col0 + comptime![(8 * i) as u32] < size.n {
                sums[(first + comptime![8 * i]) / 2] = sum;
            }
        }
    }
}
