//! Scores with a bound `c`, which become `c * tanh(score / c)`, and the slopes of the bound in backward.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::config::FlashConfig;
use super::softmax::row_pairs;
use crate::gpu::instruction::{exp2_approx, log2_approx, rcp_approx};

/// Probabilities below this one count as it. It is finite in base-2 logarithms, and its gradients vanish.
const LEAST: f32 = 1e-37;

/// Bounds scores that have not been multiplied by their factor.
#[cube]
pub(crate) fn bound(scores: &mut Array<f32>, #[comptime] cfg: FlashConfig) {
    if comptime![cfg.softcap.is_some()] {
        let cap = comptime![cfg.softcap_of_products()].runtime();
        let twice = comptime![2.0 * LOG2_E / cfg.softcap_of_products()].runtime();
        #[unroll]
        for i in 0..scores.len() {
            // tanh(x) is 1 - 2 / (exp(2 x) + 1).
            scores[i] = cap - 2.0f32 * cap * rcp_approx(exp2_approx(scores[i] * twice) + 1.0f32);
        }
    }
}

/// Returns the slope of the bound at the score of a key that has probability `p` for a query with log-sum `log_sum`.
///
/// The score comes back from the probability: a thread has no registers to keep both.
#[cube]
fn slope(p: f32, log_sum: f32, #[comptime] cfg: FlashConfig) -> f32 {
    let per_cap = comptime![1.0 / (cfg.softcap_of_products() * cfg.scale() * LOG2_E)].runtime();
    let tanh = (log2_approx(max(p, f32::cast_from(comptime![LEAST]))) + log_sum) * per_cap;
    1.0f32 - tanh * tanh
}

/// Multiplies probabilities, queries by keys, by the slopes of their scores' bound, given the log-sums of the thread's two queries.
#[cube]
pub(crate) fn multiply_by_slopes(p: &mut Array<f32>, lse0: f32, lse1: f32, #[comptime] cfg: FlashConfig) {
    if comptime![cfg.softcap.is_some()] {
        #[unroll]
        for i in 0..p.len() {
            let log_sum = if comptime![i % 4 < 2] { lse0 } else { lse1 };
            p[i] *= slope(p[i], log_sum, cfg);
        }
    }
}

/// Multiplies gradients of scores, keys by queries, by the slopes of the scores' bound, given the results `p` of their softmax. The
/// log-sums of the thread's columns begin at `at`.
#[cube]
pub(crate) fn pass_bound(
    gradients: &mut Array<f32>,
    p: &Array<f32>,
    row_values: &Shared<[f32]>,
    at: u32,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.softcap.is_some()] {
        let held = p.len();
        let log_sums = row_pairs(row_values, at, comptime![2 * held]);
        #[unroll]
        for i in 0..held {
            gradients[i] *= slope(p[i], log_sums[comptime![i / 4 * 2 + i % 2]], cfg);
        }
    }
}
