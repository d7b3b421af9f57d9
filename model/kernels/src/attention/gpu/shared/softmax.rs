//! The softmax of scores tile by tile, and its gradient.

use cubecl::prelude::*;

use crate::gpu::instruction::exp2_approx;

/// Exponentials stay below 2 to this power.
const MOST_GROWTH: f32 = 8.0;

/// Returns the sum over the four threads that share a row.
#[cube]
pub(crate) fn quad_sum(value: f32) -> f32 {
    let pair = value + plane_shuffle_xor(value, 1u32);
    pair + plane_shuffle_xor(pair, 2u32)
}

/// Returns the maximum over the four threads that share a row.
#[cube]
fn quad_max(value: f32) -> f32 {
    let pair = max(value, plane_shuffle_xor(value, 1u32));
    max(pair, plane_shuffle_xor(pair, 2u32))
}

/// The running softmax of a thread's two queries: the value subtracted from their scores, and the sums of exponentials.
#[derive(CubeType)]
pub(crate) struct Running {
    pub(crate) top0: f32,
    pub(crate) top1: f32,
    pub(crate) sum0: f32,
    pub(crate) sum1: f32,
}

/// The factors of the results so far, if any thread of the warp needs to rescale.
#[derive(CubeType)]
pub(crate) struct Rescale {
    pub(crate) needed: bool,
    pub(crate) by0: f32,
    pub(crate) by1: f32,
}

/// Replaces `scores` by their exponentials and adds these to the running sums.
#[cube]
pub(crate) fn take_exponentials(scores: &mut Array<f32>, running: &mut Running, rescale: &mut Rescale, scale: f32) {
    let held = scores.len();
    let mut max0 = running.top0;
    let mut max1 = running.top1;
    #[unroll]
    for i in 0..comptime![held / 4] {
        max0 = max(max0, max(scores[comptime![4 * i]], scores[comptime![4 * i + 1]]));
        max1 = max(max1, max(scores[comptime![4 * i + 2]], scores[comptime![4 * i + 3]]));
    }
    max0 = quad_max(max0);
    max1 = quad_max(max1);

    let growth = max(max0 - running.top0, max1 - running.top1) * scale;
    rescale.needed = plane_any(growth > comptime![MOST_GROWTH].runtime());
    if rescale.needed {
        rescale.by0 = exp2_approx((running.top0 - max0) * scale);
        rescale.by1 = exp2_approx((running.top1 - max1) * scale);
        running.top0 = max0;
        running.top1 = max1;
        running.sum0 *= rescale.by0;
        running.sum1 *= rescale.by1;
    }

    let minus0 = running.top0 * scale;
    let minus1 = running.top1 * scale;
    let mut sum0 = running.sum0;
    let mut sum1 = running.sum1;
    #[unroll]
    for i in 0..held {
        if comptime![i % 4 < 2] {
            scores[i] = exp2_approx(scores[i] * scale - minus0);
            sum0 += scores[i];
        } else {
            scores[i] = exp2_approx(scores[i] * scale - minus1);
            sum1 += scores[i];
        }
    }
    running.sum0 = sum0;
    running.sum1 = sum1;
}

/// Rescales the rows of an accumulator if necessary.
#[cube]
pub(crate) fn apply(rescale: &Rescale, o: &mut Array<f32>) {
    if rescale.needed {
        #[unroll]
        for i in 0..o.len() {
            o[i] *= if comptime![i % 4 < 2] { rescale.by0 } else { rescale.by1 };
        }
    }
}

/// Replaces `scores`, queries by keys, by probabilities: 2 to the power of the scores minus the log-sums of the
/// thread's two queries.
#[cube]
pub(crate) fn take_probabilities(scores: &mut Array<f32>, lse0: f32, lse1: f32, scale_log2: f32) {
    #[unroll]
    for i in 0..scores.len() {
        let minus = if comptime![i % 4 < 2] { lse0 } else { lse1 };
        scores[i] = exp2_approx(scores[i] * scale_log2 - minus);
    }
}

/// Replaces probabilities, queries by keys, by the gradient of their scores, given the gradient `dp` of the
/// probabilities.
#[cube]
pub(crate) fn take_score_gradients(p: &mut Array<f32>, dp: &Array<f32>, delta0: f32, delta1: f32, scale: f32) {
    #[unroll]
    for i in 0..p.len() {
        let minus = if comptime![i % 4 < 2] { delta0 } else { delta1 };
        p[i] = p[i] * (dp[i] - minus) * scale;
    }
}

/// Returns the numbers of the thread's columns, of `columns`: two adjacent ones of every eight, from `at` on.
#[cube]
pub(crate) fn row_pairs(row_values: &Shared<[f32]>, at: u32, #[comptime] columns: usize) -> Array<f32> {
    let mut pairs = Array::<f32>::new(comptime![columns / 4]);
    #[unroll]
    for i in 0..comptime![columns / 4] {
        pairs[i] = row_values[(at + comptime![(i / 2 * 8 + i % 2) as u32]) as usize];
    }
    pairs
}

/// Returns probabilities, keys by queries: 2 to the power of the scores minus each query's log-sum.
#[cube]
pub(crate) fn exponentials(scores: &Array<f32>, log_sums: &Array<f32>, scale_log2: f32) -> Array<f32> {
    let mut p = Array::<f32>::new(scores.len());
    #[unroll]
    for i in 0..scores.len() {
        p[i] = exp2_approx(scores[i] * scale_log2 - log_sums[comptime![i / 4 * 2 + i % 2]]);
    }
    p
}

/// Returns the gradient of the scores, keys by queries, given the results `p` of their softmax.
#[cube]
pub(crate) fn score_gradients(p: &Array<f32>, dp: &Array<f32>, deltas: &Array<f32>, scale: f32) -> Array<f32> {
    let mut gradients = Array::<f32>::new(p.len());
    #[unroll]
    for i in 0..p.len() {
        gradients[i] = p[i] * (dp[i] - deltas[comptime![i / 4 * 2 + i % 2]]) * scale;
    }
    gradients
}
