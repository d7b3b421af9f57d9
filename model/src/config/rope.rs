//! How rotary positions were stretched for longer texts.

use kiln_kernels::RotaryScaling;
use serde::{Deserialize, Serialize};

use super::{Positions, TransformerConfig};

/// Stretches wavelengths of rotary positions for longer texts: the configuration table `[model.rope_scaling]`. Its key `kind` has the
/// names of `rope_type` in `transformers`. Without `kind`, `factor` alone is [`Self::Linear`], and the rest [`Self::Llama3`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RopeTable", into = "RopeTable")]
pub enum RopeScaling {
    /// All wavelengths (Gemma 3).
    Linear {
        /// The stretch, at least 1.
        factor: f64,
    },
    /// Long wavelengths (Llama 3.1), see [`RotaryScaling::Llama3`].
    Llama3 {
        /// The largest stretch, at least 1.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are stretched by `factor`.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are not stretched. Above `low_freq_factor`.
        high_freq_factor: f64,
        /// Positions that the model was trained with before its texts were lengthened.
        original_max_positions: usize,
    },
    /// Long wavelengths, and scores of attention (Peng et al. 2023; Qwen 2.5), see [`RotaryScaling::Yarn`].
    Yarn {
        /// The largest stretch, at least 1.
        factor: f64,
        /// Positions that the model was trained with before its texts were lengthened.
        original_max_positions: usize,
        /// Pairs that turn more often within these positions are not stretched. Usually 32.
        beta_fast: f64,
        /// Pairs that turn less often are stretched by `factor`. Usually 1.
        beta_slow: f64,
        /// What sines and cosines are multiplied by. None: `1 + ln(factor) / 10`.
        attention_factor: Option<f64>,
        /// Whether the interpolation begins and ends at a whole pair.
        truncate: bool,
    },
    /// Texts longer than [`TransformerConfig::max_positions`] would have another base (dynamic NTK). Kiln has no such texts, so it computes
    /// unscaled wavelengths, and keeps the number for an export.
    Dynamic {
        /// At least 1.
        factor: f64,
    },
    /// Each wavelength by a number of its own, and scores of attention (Ding et al. 2024, "LongRoPE"; Phi). Kiln computes texts of at most
    /// `original_max_positions`, which have the short stretches, and keeps the long ones for an export.
    Longrope {
        /// How many times longer the longest text is than `original_max_positions`.
        factor: f64,
        /// Positions that the model was trained with before its texts were lengthened; at least `max_positions`.
        original_max_positions: usize,
        /// The stretch of each pair of a head in texts of at most `original_max_positions`.
        short_factor: Vec<f64>,
        /// The stretch of each pair in longer texts.
        long_factor: Vec<f64>,
        /// What sines and cosines are multiplied by. None: `sqrt(1 + ln(factor) / ln(original_max_positions))`.
        attention_factor: Option<f64>,
    },
}

/// The keys of `[model.rope_scaling]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RopeTable {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    factor: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    low_freq_factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    high_freq_factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original_max_positions: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beta_fast: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beta_slow: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attention_factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    truncate: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    short_factor: Option<Vec<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    long_factor: Option<Vec<f64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Linear,
    Llama3,
    Yarn,
    Dynamic,
    Longrope,
}

impl TryFrom<RopeTable> for RopeScaling {
    type Error = String;

    fn try_from(table: RopeTable) -> Result<Self, String> {
        let alone = RopeTable { factor: table.factor, kind: table.kind, ..RopeTable::default() } == table;
        let factor = table.factor;
        let original_max_positions = table.original_max_positions.unwrap_or_default();
        let read = match table.kind.unwrap_or(if alone { Kind::Linear } else { Kind::Llama3 }) {
            Kind::Linear => Self::Linear { factor },
            Kind::Dynamic => Self::Dynamic { factor },
            Kind::Llama3 => Self::Llama3 {
                factor,
                low_freq_factor: table.low_freq_factor.unwrap_or_default(),
                high_freq_factor: table.high_freq_factor.unwrap_or_default(),
                original_max_positions,
            },
            Kind::Yarn => Self::Yarn {
                factor,
                original_max_positions,
                beta_fast: table.beta_fast.unwrap_or(Self::BETA_FAST),
                beta_slow: table.beta_slow.unwrap_or(Self::BETA_SLOW),
                attention_factor: table.attention_factor,
                truncate: table.truncate.unwrap_or(true),
            },
            Kind::Longrope => Self::Longrope {
                factor,
                original_max_positions,
                short_factor: table.short_factor.clone().unwrap_or_default(),
                long_factor: table.long_factor.clone().unwrap_or_default(),
                attention_factor: table.attention_factor,
            },
        };

        let keys = |table: &RopeTable| match serde_json::to_value(table) {
            Ok(serde_json::Value::Object(keys)) => keys,
            other => unreachable!("{other:?} is not a table"),
        };
        let understood = keys(&read.clone().into());
        match keys(&table).keys().find(|key| *key != "kind" && !understood.contains_key(*key)) {
            None => Ok(read),
            Some(key) => Err(format!(
                "{key} has no meaning for rope_scaling of kind \"{}\"; leave it out, or set another kind",
                read.name()
            )),
        }
    }
}

impl From<RopeScaling> for RopeTable {
    fn from(scaling: RopeScaling) -> Self {
        let table = Self { factor: scaling.factor(), ..Self::default() };
        match scaling {
            RopeScaling::Linear { .. } => table,
            RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original_max_positions, .. } => Self {
                low_freq_factor: Some(low_freq_factor),
                high_freq_factor: Some(high_freq_factor),
                original_max_positions: Some(original_max_positions),
                ..table
            },
            RopeScaling::Yarn { original_max_positions, beta_fast, beta_slow, attention_factor, truncate, .. } => {
                Self {
                    kind: Some(Kind::Yarn),
                    original_max_positions: Some(original_max_positions),
                    beta_fast: Some(beta_fast),
                    beta_slow: Some(beta_slow),
                    attention_factor,
                    truncate: Some(truncate),
                    ..table
                }
            }

            RopeScaling::Dynamic { .. } => Self { kind: Some(Kind::Dynamic), ..table },
            RopeScaling::Longrope { original_max_positions, short_factor, long_factor, attention_factor, .. } => Self {
                kind: Some(Kind::Longrope),
                original_max_positions: Some(original_max_positions),
                short_factor: Some(short_factor),
                long_factor: Some(long_factor),
                attention_factor,
                ..table
            },
        }
    }
}

impl RopeScaling {
    /// The usual [`Self::Yarn::beta_fast`].
    pub const BETA_FAST: f64 = 32.0;
    /// The usual [`Self::Yarn::beta_slow`].
    pub const BETA_SLOW: f64 = 1.0;

    /// Stretches all wavelengths.
    pub fn linear(factor: f64) -> Self {
        Self::Linear { factor }
    }

    /// The `rope_type` of `transformers`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Llama3 { .. } => "llama3",
            Self::Yarn { .. } => "yarn",
            Self::Dynamic { .. } => "dynamic",
            Self::Longrope { .. } => "longrope",
        }
    }

    /// The largest stretch.
    pub fn factor(&self) -> f64 {
        match *self {
            Self::Linear { factor }
            | Self::Llama3 { factor, .. }
            | Self::Yarn { factor, .. }
            | Self::Dynamic { factor }
            | Self::Longrope { factor, .. } => factor,
        }
    }

    /// What sines and cosines are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match *self {
            Self::Linear { .. } | Self::Llama3 { .. } | Self::Dynamic { .. } => 1.0,
            Self::Yarn { attention_factor: Some(given), .. } | Self::Longrope { attention_factor: Some(given), .. } => {
                given
            }
            Self::Yarn { factor, .. } => 1.0 + 0.1 * factor.max(1.0).ln(),
            Self::Longrope { factor, original_max_positions, .. } => {
                (1.0 + factor.max(1.0).ln() / (original_max_positions as f64).ln()).sqrt()
            }
        }
    }

    /// The stretch of texts of at most `max_positions`; None: none.
    pub(super) fn of_wavelengths(&self) -> Option<RotaryScaling> {
        match self {
            Self::Linear { factor } => Some(RotaryScaling::Linear { factor: *factor }),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                Some(RotaryScaling::Llama3 {
                    factor: *factor,
                    low_freq_factor: *low_freq_factor,
                    high_freq_factor: *high_freq_factor,
                    original_len: *original_max_positions as f64,
                })
            }
            Self::Yarn { factor, original_max_positions, beta_fast, beta_slow, truncate, .. } => {
                Some(RotaryScaling::Yarn {
                    factor: *factor,
                    beta_fast: *beta_fast,
                    beta_slow: *beta_slow,
                    original_len: *original_max_positions as f64,
                    truncate: *truncate,
                })
            }
            Self::Dynamic { .. } => None,
            Self::Longrope { short_factor, .. } => Some(RotaryScaling::Each(short_factor.as_slice().into())),
        }
    }
}

impl TransformerConfig {
    pub(super) fn validate_rope_scaling(&self, problems: &mut Vec<String>) {
        let Some(scaling) = &self.rope_scaling else { return };
        if self.positions != Positions::Rotary {
            problems.push(
                "model.rope_scaling is set, but model.positions is not \"rotary\"; remove it, or set model.positions = \"rotary\""
                    .to_owned(),
            );
        }
        let factor = scaling.factor();
        let is_longrope = matches!(scaling, RopeScaling::Longrope { .. });
        if !(factor.is_finite() && (factor >= 1.0 || is_longrope && factor > 0.0)) {
            problems.push(format!("model.rope_scaling has factor {factor}, which is below 1; Llama 3.1 has 8"));
        }
        let attention = scaling.attention_factor();
        if !(attention > 0.0 && attention.is_finite()) {
            problems.push(format!(
                "model.rope_scaling has attention_factor {attention}, which is not a finite number above 0; leave it out for the usual one"
            ));
        }

        match scaling {
            RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => {}
            RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, original_max_positions, .. } => {
                if !(*low > 0.0 && high > low && high.is_finite()) {
                    problems.push(format!(
                        "model.rope_scaling has low_freq_factor {low} and high_freq_factor {high}, which are not above 0 and ascending; \
                         Llama 3.1 has 1 and 4; leave out everything but factor to stretch all wavelengths"
                    ));
                }
                if *original_max_positions == 0 {
                    problems.push("model.rope_scaling has original_max_positions 0; Llama 3.1 has 8192".to_owned());
                }
            }
            RopeScaling::Yarn { beta_fast: fast, beta_slow: slow, original_max_positions, .. } => {
                if !(*slow > 0.0 && fast >= slow && fast.is_finite()) {
                    problems.push(format!(
                        "model.rope_scaling has beta_slow {slow} and beta_fast {fast}, which are not above 0 and ascending; 1 and 32 are usual"
                    ));
                }
                if *original_max_positions == 0 {
                    problems.push("model.rope_scaling has original_max_positions 0; Qwen 2.5 has 32768".to_owned());
                }
            }
            RopeScaling::Longrope { original_max_positions, short_factor, long_factor, .. } => {
                self.validate_longrope(*original_max_positions, [short_factor, long_factor], problems);
            }
        }
    }

    fn validate_longrope(&self, original: usize, [short, long]: [&[f64]; 2], problems: &mut Vec<String>) {
        if original < 2 || self.max_positions > original {
            problems.push(format!(
                "model.rope_scaling of kind \"longrope\" has original_max_positions {original}, and model.max_positions is {}: longer texts \
                 would have other wavelengths than shorter ones, which Kiln does not compute; set model.max_positions to {original} or less",
                self.max_positions
            ));
        }
        let pairs = if self.n_heads == 0 { 0 } else { self.head_dim() / 2 };
        for (key, stretches) in [("short_factor", short), ("long_factor", long)] {
            if stretches.len() != pairs || !stretches.iter().all(|x| *x > 0.0 && x.is_finite()) {
                problems.push(format!(
                    "model.rope_scaling has a {key} of {} numbers, wanted {pairs} finite numbers above 0, one for each pair of a head",
                    stretches.len()
                ));
            }
        }
    }
}
