//! How a learning rate and a decay that were found on a small model serve a larger one.
//!
//! With `w = tuned width / width` and `d = tuned depth / depth`, the matrices of layers take
//!
//! ```text
//!            rate                 decay of one step
//! AdamW      lr * w * sqrt(d)     lr * weight_decay * w * sqrt(d)
//! Muon       lr * sqrt(w * d)     lr * weight_decay * w * sqrt(d)
//! ```
//!
//! and all other parameters the run's own. An update of AdamW has a root mean square that does not depend on the shape, so that its
//! effect on a sum over `width` inputs grows with the width: the rate falls as `1 / width` (Yang et al. 2022, "Tensor Programs V"). Muon's
//! update, scaled to the same root mean square, has a spectral norm that grows with the root of the width: the rate falls as its
//! inverse. The decay of a step falls as `1 / width` for both (Qiu et al. 2025, arXiv 2512.05620). Branches of a residual stream add up, and
//! their rate falls with the root of the depth (Yang et al. 2023, "Tensor Programs VI").

use crate::config::{Config, OptimConfig};

/// The model that a run's rate and decay were found on, relative to the run's own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transfer {
    /// Tuned width by width.
    width: f64,
    /// Tuned depth by depth.
    depth: f64,
}

impl Transfer {
    /// Takes `optim.tuned_width` and `optim.tuned_depth` of `config`, or nothing if they change nothing.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let OptimConfig { tuned_width, tuned_depth, .. } = config.optim;
        let model = &config.model;
        let by = |tuned: usize, own: usize| if tuned == 0 || own == 0 { 1.0 } else { tuned as f64 / own as f64 };
        let depth = model.n_encoder_layers.max(model.n_decoder_layers);
        let found = Self { width: by(tuned_width, model.d_model), depth: by(tuned_depth, depth) };
        (found != Self { width: 1.0, depth: 1.0 }).then_some(found)
    }

    /// Factor of the rate of matrices that AdamW updates. Their decay has the rate as a factor.
    pub(super) fn adamw_rate(self) -> f64 {
        self.width * self.depth.sqrt()
    }

    /// Factor of the rate of matrices that Muon updates.
    pub(super) fn muon_rate(self) -> f64 {
        (self.width * self.depth).sqrt()
    }

    /// Factor of the weight decay of matrices that Muon updates, next to the rate's.
    pub(super) fn muon_decay(self) -> f64 {
        self.width.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_twice_the_width_and_four_times_the_depth_takes_smaller_steps() {
        let mut config = Config::default();
        (config.model.d_model, config.model.n_encoder_layers, config.model.n_decoder_layers) = (512, 0, 8);
        assert_eq!(Transfer::of(&config), None, "without the keys nothing changes");
        (config.optim.tuned_width, config.optim.tuned_depth) = (512, 8);
        assert_eq!(Transfer::of(&config), None, "the tuned model itself");

        (config.optim.tuned_width, config.optim.tuned_depth) = (256, 2);
        let found = Transfer::of(&config).expect("another model");
        assert_eq!(found.adamw_rate(), 0.25);
        assert!((found.muon_rate() - 0.125f64.sqrt()).abs() < 1e-12);
        // One step's decay falls alike for both.
        assert!((found.muon_rate() * found.muon_decay() - found.adamw_rate()).abs() < 1e-12);
    }
}
