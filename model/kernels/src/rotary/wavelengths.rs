//! The angles of rotary positions.

use std::f64::consts::TAU;

/// The wavelengths of the pairs of a head, of which pair `i` of `K / 2` rotates by `theta^(-2 i / K)` radians per position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryWavelengths {
    /// The base.
    pub theta: f64,
    /// How the wavelengths were stretched for longer texts.
    pub scaling: Option<RotaryScaling>,
}

/// Stretches long wavelengths and leaves short ones alone (Llama 3.1; `rope_type = "llama3"` in `transformers`).
///
/// A wavelength above `original_len / low_freq_factor` positions is multiplied by `factor`, one below `original_len /
/// high_freq_factor` by 1. Between them, the angles are interpolated linearly in `original_len / wavelength`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryScaling {
    /// The largest stretch.
    pub factor: f64,
    /// See above; below `high_freq_factor`.
    pub low_freq_factor: f64,
    /// See above.
    pub high_freq_factor: f64,
    /// Positions that the model was trained with before.
    pub original_len: f64,
}

impl From<f64> for RotaryWavelengths {
    fn from(theta: f64) -> Self {
        Self { theta, scaling: None }
    }
}

impl RotaryWavelengths {
    /// Returns the angle in radians by which one position rotates each pair of a head of `head_dim` features.
    pub(crate) fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let unscaled = |i: usize| self.theta.powf(-2.0 * i as f64 / head_dim as f64);
        let scaled = |angle: f64| self.scaling.map_or(angle, |scaling| scaling.scaled(angle));
        (0..head_dim / 2).map(|i| scaled(unscaled(i)) as f32).collect()
    }
}

impl RotaryScaling {
    fn scaled(&self, angle: f64) -> f64 {
        let Self { factor, low_freq_factor: low, high_freq_factor: high, original_len } = *self;
        let turns = original_len * angle / TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        angle * kept + angle / factor * (1.0 - kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"]` (5.24) with the numbers of Llama 3.1: base 500,000,
    /// factor 8, low 1, high 4, 8192 positions, heads of 128.
    #[test]
    fn llama_3_angles_equal_those_of_transformers() {
        let scaling = RotaryScaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_len: 8192.0 };
        let found = RotaryWavelengths { theta: 500_000.0, scaling: Some(scaling) }.frequencies(128);
        assert_eq!(found.len(), 64);
        for (i, wanted) in LLAMA_3_1 {
            let error = (found[i] / wanted - 1.0).abs();
            assert!(error < 2e-6, "pair {i}: {} instead of {wanted}", found[i]);
        }
    }

    const LLAMA_3_1: [(usize, f32); 8] = [
        (0, 1.0),
        (1, 8.146_172e-1),
        (20, 1.656_044e-2),
        (28, 3.211_446e-3),
        (30, 1.371_893_7e-3),
        (32, 5.248_46e-4),
        (35, 9.556_212e-5),
        (63, 3.068_926e-7),
    ];
}
