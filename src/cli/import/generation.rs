//! What `generation_config.json` says about generated texts, as settings of the run.

use kiln_model::hf::TokenIds;
use serde_json::Value;

use crate::config::{EarlyStopping, GenerateConfig, LengthNormalization, SpecialTokens};
use crate::hugging_face::TokenizerFile;
use crate::logging::print::stderr_line;

/// Settings that change the text and that Kiln does not have, with the value that switches each off.
const UNSUPPORTED: [(&str, f64); 8] = [
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("min_p", 0.0),
    ("typical_p", 1.0),
    ("guidance_scale", 1.0),
];

/// The rules of generation in a model folder.
pub(super) struct Rules<'a> {
    /// `generation_config.json`, or `config.json`.
    json: &'a Value,
    tokenizer: &'a TokenizerFile,
}

impl<'a> Rules<'a> {
    pub(super) fn new(json: &'a Value, tokenizer: &'a TokenizerFile) -> Self {
        Self { json, tokenizer }
    }

    /// Returns the token that every target must begin with, if there is one.
    pub(super) fn forced_first(&self) -> Option<u32> {
        self.ids("forced_bos_token_id").first().copied()
    }

    /// Puts the settings of a model that continues texts into `config`. `end` is the end token that Kiln knows.
    pub(super) fn apply_to_text(&self, end: Option<&str>, config: &mut GenerateConfig) {
        config.special_tokens = SpecialTokens::Allowed;
        let ends = self.ids("eos_token_id");
        let ends = ends.iter().filter_map(|id| self.tokenizer.token(*id)).filter(|token| Some(*token) != end);
        config.stop_tokens = ends.map(str::to_owned).collect();
        let suppressed = self.ids("suppress_tokens");
        if !suppressed.is_empty() {
            config.special_tokens = SpecialTokens::Never;
        }

        config.repetition_penalty = self.number("repetition_penalty").unwrap_or(config.repetition_penalty);
        if self.json["do_sample"] == true {
            config.sample = true;
            config.temperature = self.number("temperature").unwrap_or(1.0);
            config.top_k = self.json["top_k"].as_u64().map_or(0, |k| k as usize);
            config.top_p = self.number("top_p").unwrap_or(1.0);
        }
        self.note_unsupported();
    }

    /// Puts the settings of a model that translates into `config`. Each target begins with `n_first` given tokens.
    pub(super) fn apply_to_pairs(&self, tokens: &TokenIds, n_first: usize, config: &mut GenerateConfig) {
        let banned = self.json["bad_words_ids"].as_array().map_or(&[][..], Vec::as_slice);
        let pads = |word: &Value| {
            word.as_array().is_some_and(|ids| ids.len() == 1 && ids[0].as_u64() == tokens.pad.map(u64::from))
        };
        config.special_tokens = if banned.iter().any(pads) { SpecialTokens::Never } else { SpecialTokens::Allowed };
        let others = banned.iter().filter(|word| !pads(word)).count();
        if others > 0 {
            stderr_line!(
                "note: bad_words_ids of the model folder has {others} words besides padding, which Kiln does not avoid"
            );
        }

        config.length_normalization = LengthNormalization::Power;
        config.length_penalty = self.number("length_penalty").unwrap_or(1.0);
        config.early_stopping = match &self.json["early_stopping"] {
            Value::Bool(true) => EarlyStopping::First,
            Value::String(rule) if rule == "never" => EarlyStopping::Never,
            _ => EarlyStopping::Heuristic,
        };
        if let Some(beams) = self.json["num_beams"].as_u64().filter(|beams| *beams > 0) {
            config.beam_size = beams as usize;
        }
        if config.beam_size > 1
            && config.special_tokens == SpecialTokens::Never
            && self.json["renormalize_logits"] != true
        {
            stderr_line!(
                "note: the model folder has bad_words_ids without renormalize_logits; scores of beams leave out the probability of \
                 these words, which transformers includes"
            );
        }

        if let Some(limit) = self.limit() {
            (config.max_len_ratio, config.max_len_offset) = (0.0, limit.saturating_sub(n_first).max(1));
            config.force_end = !self.ids("forced_eos_token_id").is_empty();
        }
        self.note_unsupported();
    }

    /// Returns the most tokens of a translation. `transformers` counts the start token in `max_length`.
    fn limit(&self) -> Option<usize> {
        let new_tokens = self.json["max_new_tokens"].as_u64();
        let limit = new_tokens.or_else(|| self.json["max_length"].as_u64()?.checked_sub(1))?;
        Some(limit.max(1) as usize)
    }

    fn note_unsupported(&self) {
        for (key, off) in UNSUPPORTED {
            if let Some(value) = self.number(key).filter(|value| *value != off) {
                stderr_line!("note: {key} = {value} of the model folder is not supported: Kiln generates without it");
            }
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.json[key].as_f64()
    }

    /// Reads one id or a list of ids.
    fn ids(&self, key: &str) -> Vec<u32> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match &self.json[key] {
            Value::Array(ids) => ids.iter().filter_map(id).collect(),
            one => id(one).into_iter().collect(),
        }
    }
}
