//! The angles of rotary positions.

use std::f64::consts::TAU;
use std::sync::Arc;

/// The wavelengths of the pairs of a head, of which pair `i` of `K / 2` rotates by `theta^(-2 i / K)` radians per position.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryWavelengths {
    /// The base.
    pub theta: f64,
    /// How the wavelengths were stretched for longer texts.
    pub scaling: Option<RotaryScaling>,
}

/// How wavelengths are stretched, by the names of `rope_type` in `transformers`.
#[derive(Debug, Clone, PartialEq)]
pub enum RotaryScaling {
    /// All are multiplied by `factor`.
    Linear {
        /// The stretch.
        factor: f64,
    },
    /// Stretches long wavelengths and leaves short ones alone (Llama 3.1).
    ///
    /// A wavelength above `original_len / low_freq_factor` positions is multiplied by `factor`, one below `original_len /
    /// high_freq_factor` by 1. Between them, the angles are interpolated linearly in `original_len / wavelength`.
    Llama3 {
        /// The largest stretch.
        factor: f64,
        /// See above; below `high_freq_factor`.
        low_freq_factor: f64,
        /// See above.
        high_freq_factor: f64,
        /// Positions that the model was trained with before.
        original_len: f64,
    },
    /// Stretches long wavelengths and leaves short ones alone (Peng et al. 2023, "YaRN").
    ///
    /// A pair that turns more than `beta_fast` times within `original_len` positions is left alone, one that turns less than `beta_slow`
    /// times is stretched by `factor`. Between them, the angles are interpolated linearly in the number of the pair.
    Yarn {
        /// The largest stretch.
        factor: f64,
        /// See above; above `beta_slow`.
        beta_fast: f64,
        /// See above.
        beta_slow: f64,
        /// Positions that the model was trained with before.
        original_len: f64,
        /// Whether the interpolation begins and ends at a whole pair.
        truncate: bool,
    },
    /// The wavelength of each pair has a stretch of its own ("longrope").
    Each(Arc<[f64]>),
}

impl From<f64> for RotaryWavelengths {
    fn from(theta: f64) -> Self {
        Self { theta, scaling: None }
    }
}

impl RotaryWavelengths {
    /// Returns the angle in radians by which one position rotates each pair of a head of `head_dim` features.
    ///
    /// # Panics
    /// If pairs have a stretch each, and there are not as many as pairs.
    pub(crate) fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let mut angles: Vec<f64> =
            (0..head_dim / 2).map(|i| self.theta.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        match &self.scaling {
            None => {}
            Some(RotaryScaling::Linear { factor }) => angles.iter_mut().for_each(|angle| *angle /= factor),
            Some(RotaryScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_len }) => {
                for angle in &mut angles {
                    let turns = original_len * *angle / TAU;
                    *angle = interpolated(*angle, *factor, ((turns - low) / (high - low)).clamp(0.0, 1.0));
                }
            }

            Some(RotaryScaling::Yarn { factor, beta_fast, beta_slow, original_len, truncate }) => {
                // The pair, as a fraction, that turns so many times within `original_len`.
                let pair = |turns: f64| head_dim as f64 * (original_len / (turns * TAU)).ln() / (2.0 * self.theta.ln());
                let [first, last] = [pair(*beta_fast), pair(*beta_slow)];
                let [first, last] = if *truncate { [first.floor(), last.ceil()] } else { [first, last] };
                let (first, last) = (first.max(0.0), last.min(head_dim as f64 - 1.0));
                // As in transformers: no division by 0.
                let width = if first == last { 0.001 } else { last - first };
                for (i, angle) in angles.iter_mut().enumerate() {
                    *angle = interpolated(*angle, *factor, 1.0 - ((i as f64 - first) / width).clamp(0.0, 1.0));
                }
            }
            Some(RotaryScaling::Each(stretches)) => {
                assert_eq!(stretches.len(), angles.len(), "one stretch for each pair of a head");
                angles.iter_mut().zip(&**stretches).for_each(|(angle, stretch)| *angle /= stretch);
            }
        }

        angles.into_iter().map(|angle| angle as f32).collect()
    }
}

/// Keeps a share of an angle, and divides the rest by `factor`.
fn interpolated(angle: f64, factor: f64, kept: f64) -> f64 {
    angle * kept + angle / factor * (1.0 - kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"]` (5.24) with the numbers of Llama 3.1: base 500,000,
    /// factor 8, low 1, high 4, 8192 positions, heads of 128.
    #[test]
    fn llama_3_angles_equal_those_of_transformers() {
        let scaling =
            RotaryScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_len: 8192.0 };
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
