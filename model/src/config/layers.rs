//! Attention: what its scores are, and how it differs from layer to layer.

use kiln_kernels::RotaryWavelengths;

use super::{Architecture, Positions, RopeScaling, TransformerConfig};

impl TransformerConfig {
    /// Whether decoder layer `layer`, counted from 0, sees all positions before its own.
    pub fn is_global(&self, layer: usize) -> bool {
        let is_nth = self.global_layer_every > 0 && (layer + 1).is_multiple_of(self.global_layer_every);
        self.attention_window == 0 || is_nth
    }

    /// The positions that a position of decoder layer `layer` sees, itself included; None: all. For
    /// [`kiln_kernels::AttentionConfig`].
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        (!self.is_global(layer)).then_some(self.attention_window)
    }

    /// The positions that a position sees in layers that do not see all of them; None without such layers.
    pub fn window(&self) -> Option<usize> {
        (self.attention_window > 0).then_some(self.attention_window)
    }

    /// The wavelengths of rotary positions in layer `layer`.
    pub fn rotary_wavelengths(&self, layer: usize) -> RotaryWavelengths {
        match self.local_rope_theta {
            Some(theta) if !self.is_global(layer) => RotaryWavelengths { theta, scaling: None },
            _ => RotaryWavelengths {
                theta: self.rope_theta,
                scaling: self.rope_scaling.as_ref().and_then(RopeScaling::of_wavelengths),
            },
        }
    }

    /// What products of queries and keys are multiplied by in self-attention of layer `layer`; None: `1 / sqrt(K)`. For
    /// [`kiln_kernels::AttentionConfig`].
    ///
    /// Some stretches also multiply sines and cosines by a number, and so the products of rotated queries and keys by its square.
    pub fn score_scale(&self, layer: usize) -> Option<f64> {
        let is_scaled =
            self.positions == Positions::Rotary && (self.local_rope_theta.is_none() || self.is_global(layer));
        match self.rope_scaling.as_ref().filter(|_| is_scaled).map_or(1.0, RopeScaling::attention_factor) {
            1.0 => self.attention_scale,
            factor => {
                let scale = self.attention_scale.unwrap_or_else(|| (self.head_dim() as f64).powf(-0.5));
                Some(scale * factor.powi(2))
            }
        }
    }

    /// The bound of the scores of attention; None: none. For [`kiln_kernels::AttentionConfig`].
    pub fn score_softcap(&self) -> Option<f64> {
        (self.attention_softcap > 0.0).then_some(self.attention_softcap)
    }

    /// The bound of the logits; None: none. For [`kiln_kernels::Projection`].
    pub fn logit_softcap(&self) -> Option<f64> {
        (self.logits_softcap > 0.0).then_some(self.logits_softcap)
    }

    pub(super) fn validate_attention(&self, problems: &mut Vec<String>) {
        for (key, cap) in [("attention_softcap", self.attention_softcap), ("logits_softcap", self.logits_softcap)] {
            if !(cap >= 0.0 && cap.is_finite()) {
                problems.push(format!("model.{key} {cap} is not a finite number of at least 0; 0 sets no bound"));
            }
        }
        if let Some(scale) = self.attention_scale.filter(|scale| !(*scale > 0.0 && scale.is_finite())) {
            problems.push(format!(
                "model.attention_scale {scale} is not a finite number above 0; leave it out for 1 / sqrt(head_dim)"
            ));
        }

        if self.global_layer_every > 0 && self.attention_window == 0 && self.architecture == Architecture::DecoderOnly {
            problems.push(format!(
                "model.global_layer_every {} needs layers with a window; set model.attention_window, or \
                 model.global_layer_every = 0",
                self.global_layer_every
            ));
        }
        if self.global_layer_every == 1 && self.attention_window > 0 {
            problems.push(
                "model.global_layer_every 1 leaves no layer a window; set model.attention_window = 0 and \
                 model.global_layer_every = 0"
                    .to_owned(),
            );
        }

        if let Some(theta) = self.local_rope_theta {
            if !(theta > 1.0 && theta.is_finite()) {
                problems.push(format!("model.local_rope_theta {theta} is not above 1; 10000 is usual"));
            }
            if self.positions != Positions::Rotary || self.attention_window == 0 {
                problems.push(
                    "model.local_rope_theta is set, but only layers with model.attention_window and model.positions = \
                     \"rotary\" have it; leave it out"
                        .to_owned(),
                );
            }
        }
        self.validate_rope_scaling(problems);
        self.validate_relative(problems);
    }

    fn validate_relative(&self, problems: &mut Vec<String>) {
        let (buckets, distance) = (self.relative_buckets, self.relative_max_distance);
        if self.positions != Positions::Relative {
            return;
        }
        if !(4..=1 << 16).contains(&buckets) {
            problems.push(format!("model.relative_buckets {buckets} is not from 4 to 65536; 32 is usual"));
        }
        if distance <= buckets / 2 || distance > 1 << 24 {
            problems.push(format!(
                "model.relative_max_distance {distance} is not above half of model.relative_buckets {buckets} and at most 16777216; \
                 128 is usual"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_kernels::RotaryScaling;

    use super::*;

    /// Gemma 3's text models: five layers with a window, then one without.
    fn gemma_3() -> TransformerConfig {
        TransformerConfig {
            architecture: Architecture::DecoderOnly,
            n_decoder_layers: 12,
            positions: Positions::Rotary,
            rope_theta: 1e6,
            rope_scaling: Some(RopeScaling::linear(8.0)),
            local_rope_theta: Some(1e4),
            attention_window: 512,
            global_layer_every: 6,
            ..TransformerConfig::default()
        }
    }

    #[test]
    fn every_sixth_layer_sees_all_and_has_wavelengths_of_its_own() {
        let config = gemma_3();
        assert_eq!(config.validate(), Vec::<String>::new());
        let global: Vec<usize> = (0..12).filter(|layer| config.window_of(*layer).is_none()).collect();
        assert_eq!(global, [5, 11]);
        assert_eq!(config.rotary_wavelengths(4), 1e4.into());
        let RotaryWavelengths { theta, scaling } = config.rotary_wavelengths(5);
        assert_eq!((theta, scaling), (1e6, Some(RotaryScaling::Linear { factor: 8.0 })));
        let plain = TransformerConfig { attention_window: 0, global_layer_every: 0, ..config };
        assert_eq!((plain.window_of(0), plain.rotary_wavelengths(0).theta), (None, 1e6));
    }

    #[test]
    fn a_factor_alone_is_the_linear_stretch() {
        let found: RopeScaling = serde_json::from_str("{\"factor\": 8.0}").expect("a table");
        assert_eq!(found, RopeScaling::linear(8.0));
        assert_eq!(serde_json::to_string(&found).expect("a table"), "{\"factor\":8.0}");
    }

    #[test]
    fn each_impossible_option_is_one_problem_that_begins_with_its_key() {
        type Change = fn(&mut TransformerConfig);
        let cases: [(&str, Change); 10] = [
            ("model.attention_softcap", |c| c.attention_softcap = -1.0),
            ("model.logits_softcap", |c| c.logits_softcap = f64::INFINITY),
            ("model.attention_scale", |c| c.attention_scale = Some(0.0)),
            ("model.attention_scale", |c| c.attention_scale = Some(f64::NAN)),
            ("model.global_layer_every", |c| (c.attention_window, c.local_rope_theta) = (0, None)),
            ("model.global_layer_every", |c| c.global_layer_every = 1),
            ("model.local_rope_theta", |c| c.local_rope_theta = Some(1.0)),
            ("model.local_rope_theta", |c| (c.attention_window, c.global_layer_every) = (0, 0)),
            ("model.rope_scaling", |c| c.rope_scaling = Some(RopeScaling::linear(0.5))),
            ("model.rope_scaling", |c| {
                let (low_freq_factor, high_freq_factor) = (0.0, 0.0);
                let original_max_positions = 8192;
                c.rope_scaling = Some(RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_positions,
                });
            }),
        ];

        let relative = |buckets: usize, distance: usize| TransformerConfig {
            positions: Positions::Relative,
            relative_buckets: buckets,
            relative_max_distance: distance,
            ..TransformerConfig::default()
        };
        for (key, config) in [
            ("model.relative_buckets", relative(2, 128)),
            ("model.relative_buckets", relative(3, 128)),
            ("model.relative_max_distance", relative(32, 16)),
        ] {
            let problems = config.validate();
            assert!(problems.len() == 1 && problems[0].starts_with(key), "{key}: {problems:#?}");
        }

        for (key, change) in cases {
            let mut config = gemma_3();
            change(&mut config);
            let problems = config.validate();
            assert_eq!(problems.len(), 1, "{key}: {problems:#?}");
            assert!(problems[0].starts_with(key), "{key}: {problems:#?}");
        }
    }
}
