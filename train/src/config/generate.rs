//! Settings of generation.

use serde::{Deserialize, Serialize};

/// Generation of translations and of continuations of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerateConfig {
    /// Sample tokens instead of searching for likely ones.
    pub sample: bool,
    /// Sampling: divisor of the logits. Below 1 sharpens, above 1 flattens; 0: greedy search.
    pub temperature: f64,
    /// Sampling: keep only this many of the likeliest tokens; 0: all.
    pub top_k: usize,
    /// Sampling: keep the likeliest tokens whose probabilities sum to this, in (0, 1]; 1: all.
    pub top_p: f64,
    /// Sampling and greedy search: penalty on tokens that have already occurred (Keskar et al. 2019), above 0. 1: off; above
    /// 1: fewer repetitions.
    pub repetition_penalty: f64,
    /// Seed of sampling.
    pub seed: u64,
    /// Unfinished targets kept per source; 1: greedy search.
    pub beam_size: usize,
    /// Exponent of the length by which beams are compared; 0 compares plain log-probabilities.
    pub length_penalty: f64,
    /// The length of which `length_penalty` is the exponent.
    pub length_normalization: LengthNormalization,
    /// When the beam search of a source stops.
    pub early_stopping: EarlyStopping,
    /// Translations: most tokens, `max_len_ratio * source + max_len_offset`, and never more than the model's positions.
    pub max_len_ratio: f64,
    /// See `max_len_ratio`.
    pub max_len_offset: usize,
    /// Translations: the last token that the limit leaves room for is the end token, whatever the model predicts.
    pub force_end: bool,
    /// Texts: most tokens after the prompt, within the model's positions.
    pub max_new_tokens: usize,
    /// Texts: a text ends before the first of these strings.
    pub stop: Vec<String>,
    /// Texts: a text ends before the first of these tokens of the vocabulary, or at the end token.
    pub stop_tokens: Vec<String>,
    /// No n-gram of this many tokens comes twice in a text, its prompt included; 0: any may.
    pub no_repeat_ngram_size: usize,
    /// Words that a text does not contain, each as tokens of the vocabulary with spaces between them.
    pub bad_words: Vec<String>,
    /// Whether a text may contain special tokens other than the end token. The printed text leaves them out.
    pub special_tokens: SpecialTokens,
    /// Size of one generation batch: padded tokens of its sources or prompts, times `beam_size`. 0: 8192, and for translations on a
    /// GPU what half of its free memory holds.
    pub batch_tokens: usize,
}

/// Special tokens in generated texts: padding, start, mask, turns of a conversation, ...
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpecialTokens {
    /// They are never written. Models that Kiln trains do not learn to write them.
    #[default]
    Never,
    /// They are tokens like others, as in `transformers`. `kiln import` sets this.
    Allowed,
}

/// The length in the score of a beam: `log_prob / length^length_penalty`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LengthNormalization {
    /// `(5 + tokens) / 6` (Wu et al. 2016).
    #[default]
    Wu,
    /// The number of tokens, as in `transformers`. `kiln import` sets this for models that translate.
    Power,
}

/// When the beam search of a source stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStopping {
    /// When no unfinished target can become one of the best, at any length (`early_stopping="never"` in `transformers`).
    #[default]
    Never,
    /// When `beam_size` targets have finished and the likeliest unfinished one, at its current length, scores no higher than the
    /// worst of them (`False`, the default of `transformers`).
    Heuristic,
    /// When `beam_size` targets have finished (`True`).
    First,
}

impl Default for GenerateConfig {
    fn default() -> Self {
        Self {
            sample: false,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            seed: 1,
            beam_size: 1,
            length_penalty: 0.6,
            length_normalization: LengthNormalization::Wu,
            early_stopping: EarlyStopping::Never,
            max_len_ratio: 2.0,
            max_len_offset: 10,
            force_end: false,
            max_new_tokens: 256,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            no_repeat_ngram_size: 0,
            bad_words: Vec::new(),
            special_tokens: SpecialTokens::Never,
            batch_tokens: 0,
        }
    }
}

impl GenerateConfig {
    /// Returns whether tokens are sampled: at temperature 0 only the likeliest one is left.
    pub fn draws(&self) -> bool {
        self.sample && self.temperature != 0.0
    }

    #[doc(hidden)]
    pub fn validate(&self, problems: &mut Vec<String>) {
        if self.beam_size == 0 {
            problems.push("generate.beam_size is 0; set 1 for greedy search, or 4 to 6 for translation".into());
        }
        if !self.length_penalty.is_finite() {
            problems.push(format!(
                "generate.length_penalty {} is not a finite number; 0.6 is usual, 0 switches it off",
                self.length_penalty
            ));
        }
        if !(self.max_len_ratio >= 0.0 && self.max_len_ratio.is_finite()) {
            problems.push(format!(
                "generate.max_len_ratio {} is not a finite number of at least 0; 2 is usual",
                self.max_len_ratio
            ));
        } else if self.max_len_ratio == 0.0 && self.max_len_offset == 0 {
            problems.push(
                "generate.max_len_ratio and generate.max_len_offset are both 0, which leaves no room for a token; 2 and 10 \
                 are usual"
                    .into(),
            );
        }

        self.validate_sampling(problems);

        if self.max_new_tokens == 0 {
            problems.push("generate.max_new_tokens is 0, which leaves no room for a token; 256 is usual".into());
        }
        if self.bad_words.iter().any(|word| word.trim().is_empty()) {
            problems.push("generate.bad_words contains a word without tokens; remove it".into());
        }
        for (key, texts) in [("stop", &self.stop), ("stop_tokens", &self.stop_tokens)] {
            if texts.iter().any(String::is_empty) {
                problems.push(format!(
                    "generate.{key} contains an empty string, which would end every text at once; remove it"
                ));
            }
        }
    }

    fn validate_sampling(&self, problems: &mut Vec<String>) {
        if self.seed > i64::MAX as u64 {
            problems.push(format!(
                "generate.seed {} is above {}, the largest number in TOML; choose a smaller one",
                self.seed,
                i64::MAX
            ));
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            problems.push(format!(
                "generate.temperature {} is not a finite number of at least 0; 0.7 to 1 is usual, 0 takes the likeliest token",
                self.temperature
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            problems.push(format!("generate.top_p {} is outside (0, 1]; 0.9 is usual, 1 switches it off", self.top_p));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            problems.push(format!(
                "generate.repetition_penalty {} is not above 0; 1.1 to 1.3 is usual, 1 switches it off",
                self.repetition_penalty
            ));
        }

        if self.sample && self.beam_size > 1 {
            problems.push(format!(
                "generate.sample = true samples tokens, but generate.beam_size {} searches for likely ones; use one of the two \
                 (--greedy or --beam 1)",
                self.beam_size
            ));
        }
        if self.beam_size > 1 && self.repetition_penalty != 1.0 {
            problems.push(format!(
                "generate.repetition_penalty {} is not supported with beam search; set it to 1, or generate.beam_size to 1",
                self.repetition_penalty
            ));
        }
    }
}
