//! Bounds of scores and of logits on the CPU.

use super::vector::{tanh, vectorized_fn};

vectorized_fn! {
    /// Replaces each score `x` by `cap * tanh(x / cap)`, if there is a bound.
    pub(crate) fn bound(scores: &mut [f32], cap: Option<f32>) {
        if let Some(cap) = cap {
            let inverse = cap.recip();
            scores.iter_mut().for_each(|score| *score = cap * tanh(*score * inverse));
        }
    }
}

/// Returns the slopes of [`bound`] where it gave `scores`; nothing without a bound.
pub(crate) fn slopes(scores: &[f32], cap: Option<f32>) -> Vec<f32> {
    let Some(cap) = cap else { return Vec::new() };
    scores.iter().map(|score| 1.0 - (score / cap) * (score / cap)).collect()
}

/// Multiplies the gradients of bounded numbers by the [`slopes`] of their bound, if there is one.
pub(crate) fn multiply_by_slopes(gradients: &mut [f32], slopes: &[f32]) {
    gradients.iter_mut().zip(slopes).for_each(|(gradient, slope)| *gradient *= slope);
}
