//! Tiles of a matrix product: how they are rounded and multiplied.

use cubecl::prelude::*;
use cubecl::wgmma::WgmmaTileLayout;

use crate::attention::gpu::shared::Pair;
use crate::attention::gpu::shared::config::{FlashConfig, TILE};
use crate::gpu::wgmma::{FRAGMENT, K_STEP, commit, fence, multiply, multiply_shared, pin, pin_all, wait, zeros};

/// Allocates registers for a left operand of 64 x `columns`. Allocate before a loop, not inside it: a product that is still in
/// flight in the next turn reads these registers, and the compiler reuses registers that are not live.
#[cube]
pub(super) fn left_operand<E: Float>(#[comptime] columns: usize) -> Sequence<Array<E>> {
    let mut fragments = Sequence::<Array<E>>::new();
    #[unroll]
    for _ in 0..comptime![columns / K_STEP] {
        let mut fragment = Array::<E>::new(FRAGMENT);
        #[unroll]
        for i in 0..FRAGMENT {
            fragment[i] = E::from_int(0);
        }
        fragments.push(fragment);
    }
    fragments
}

/// Rounds an accumulator to the left operand of the next product.
#[cube]
pub(super) fn round_into<E: Float>(values: &Array<f32>, fragments: &mut Sequence<Array<E>>) {
    #[unroll]
    for step in 0..fragments.len() {
        let fragment = fragments.index_mut(step);
        #[unroll]
        for chunk in 0..4usize {
            let mut pair = Pair::<f32>::empty();
            pair.insert(0usize, values[comptime![step * FRAGMENT + chunk * 2]]);
            pair.insert(1usize, values[comptime![step * FRAGMENT + chunk * 2 + 1]]);
            let rounded = Pair::<E>::cast_from(pair);
            fragment[comptime![chunk * 2]] = rounded.extract(0usize);
            fragment[comptime![chunk * 2 + 1]] = rounded.extract(1usize);
        }
    }
}

/// Copies a left operand.
#[cube]
pub(super) fn copy_operand<E: Float>(from: &Sequence<Array<E>>, to: &mut Sequence<Array<E>>) {
    #[unroll]
    for step in 0..to.len() {
        let source = from.index(step);
        let target = to.index_mut(step);
        #[unroll]
        for i in 0..FRAGMENT {
            target[i] = source[i];
        }
    }
}

/// Enqueues `acc += fragments * tile`, over the tile's whole summed dimension.
#[cube]
pub(super) fn product<E: Float>(
    acc: &mut Array<f32>,
    fragments: &Sequence<Array<E>>,
    tile: u32,
    #[comptime] layout: WgmmaTileLayout,
) {
    #[unroll]
    for step in 0..fragments.len() {
        multiply::<E>(acc, fragments.index(step), tile, step, layout);
    }
}

/// Enqueues `acc += stays * streamed`, both in shared memory, over all columns of a head.
#[cube]
pub(super) fn product_shared<E: Float>(acc: &mut Array<f32>, stays: u32, streamed: u32, #[comptime] cfg: FlashConfig) {
    let layout = comptime![cfg.rows_layout()];
    #[unroll]
    for step in 0..comptime![cfg.head_dim / K_STEP] {
        multiply_shared::<E>(acc, stays, streamed, step, layout, layout);
    }
}

/// Enqueues `acc += fragments * tile` as a group of products, after the thread's writes to `acc` and `fragments`.
#[cube]
pub(super) fn enqueue<E: Float>(
    acc: &mut Array<f32>,
    fragments: &Sequence<Array<E>>,
    tile: u32,
    #[comptime] layout: WgmmaTileLayout,
) {
    pin_all::<E>(fragments);
    pin(&*acc);
    fence();
    product::<E>(acc, fragments, tile, layout);
    commit();
}

/// Waits until at most `pending` groups of products are in flight, none of which writes `acc` or reads `fragments`.
#[cube]
pub(super) fn settle<E: Float>(acc: &Array<f32>, fragments: &Sequence<Array<E>>, #[comptime] pending: usize) {
    wait(pending);
    pin(acc);
    pin_all::<E>(fragments);
}

/// Returns the 64 x 64 product of two tiles in shared memory. No other product may be in flight.
#[cube]
pub(super) fn scores_of<E: Float>(stays: u32, streamed: u32, #[comptime] cfg: FlashConfig) -> Array<f32> {
    let mut scores = zeros(TILE);
    pin(&scores);
    fence();
    product_shared::<E>(&mut scores, stays, streamed, cfg);
    commit();
    wait(0usize);
    pin(&scores);
    scores
}

/// Returns the descriptor of tile `n`, given the descriptor of the first tile.
#[cube]
pub(super) fn tile(first: u32, n: u32, #[comptime] cfg: FlashConfig) -> u32 {
    first + n * comptime![(cfg.tile_len() * 2 / 16) as u32]
}

/// Enqueues the scores and the gradient of the probabilities, each as a group of products. The scores multiply the
/// first resident tile with the first tile of slot `slot`, the gradient the second tiles. Either queries and `d_out`
/// are resident, or keys and values.
#[cube]
pub(super) fn scores_and_dp<E: Float>(
    stays: u32,
    second_stays: u32,
    streamed: u32,
    slot: u32,
    #[comptime] cfg: FlashConfig,
) -> (Array<f32>, Array<f32>) {
    let mut scores = zeros(comptime![TILE]);
    let mut dp = zeros(comptime![TILE]);
    pin(&scores);
    pin(&dp);
    fence();
    product_shared::<E>(&mut scores, stays, tile(streamed, 2 * slot, cfg), cfg);
    commit();
    product_shared::<E>(&mut dp, second_stays, tile(streamed, 2 * slot + 1, cfg), cfg);
    commit();
    (scores, dp)
}
