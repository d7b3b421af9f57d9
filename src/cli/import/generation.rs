//! What `generation_config.json` says about generated texts, as settings of the run.

use kiln_model::hf::TokenIds;
use serde_json::Value;

use super::generation_keys::{OF_PAIRS, OF_TEXT, is_off, unsupported};
use crate::config::{EarlyStopping, GenerateConfig, LengthNormalization, SpecialTokens};
use crate::hugging_face::TokenizerFile;

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
        if self.suppresses_all_special_tokens() {
            config.special_tokens = SpecialTokens::Never;
        }

        config.stop = self.strings("stop_strings");
        if !config.stop.is_empty() {
            eprintln!("note: texts end before stop_strings of the model folder; transformers prints them too");
        }
        match (self.size("max_new_tokens"), self.size("max_length")) {
            (Some(limit), _) => config.max_new_tokens = limit,
            (None, Some(limit)) => {
                config.max_new_tokens = limit;
                eprintln!(
                    "note: max_length = {limit} of the model folder counts the prompt; generate.max_new_tokens = {limit} counts only \
                     the tokens after it"
                );
            }
            (None, None) => (),
        }
        self.apply_sampling(config);
        self.note_unsupported(&OF_TEXT);
    }

    /// Whether exactly the special tokens that end no text are suppressed, as in an export of Kiln.
    fn suppresses_all_special_tokens(&self) -> bool {
        let ends = self.ids("eos_token_id");
        let mut suppressed = self.ids("suppress_tokens");
        let special = self.tokenizer.special_ids();
        let mut special: Vec<u32> = special.into_iter().filter(|id| !ends.contains(id)).collect();
        suppressed.sort_unstable();
        special.sort_unstable();
        let all = !suppressed.is_empty() && suppressed == special;
        if !all && !suppressed.is_empty() {
            eprintln!(
                "note: suppress_tokens = {suppressed:?} of the model folder is not supported: Kiln generates without it"
            );
        }
        all
    }

    /// Whether and how tokens are sampled. As in `transformers`, a folder without `do_sample` is searched for likely tokens, and one
    /// without `top_k` samples among 50.
    fn apply_sampling(&self, config: &mut GenerateConfig) {
        config.repetition_penalty = self.number("repetition_penalty").unwrap_or(1.0);
        config.sample = self.json["do_sample"] == true;
        if config.sample {
            config.temperature = self.number("temperature").unwrap_or(1.0);
            config.top_k = self.json["top_k"].as_u64().map_or(50, |k| k as usize);
            config.top_p = self.number("top_p").unwrap_or(1.0);
        }
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
            eprintln!(
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
            eprintln!(
                "note: the model folder has bad_words_ids without renormalize_logits; scores of beams leave out the probability of \
                 these words, which transformers includes"
            );
        }

        if let Some(limit) = self.limit() {
            (config.max_len_ratio, config.max_len_offset) = (0.0, limit.saturating_sub(n_first).max(1));
            config.force_end = !self.ids("forced_eos_token_id").is_empty();
        }
        if config.beam_size == 1 {
            self.apply_sampling(config);
        } else {
            config.sample = false;
            for (key, off) in [("repetition_penalty", "1.0"), ("do_sample", "false")] {
                self.note_key(key, &[off]);
            }
        }
        self.note_unsupported(&OF_PAIRS);
    }

    /// Returns the most tokens of a translation. `transformers` counts the start token in `max_length`.
    fn limit(&self) -> Option<usize> {
        let new_tokens = self.json["max_new_tokens"].as_u64();
        let limit = new_tokens.or_else(|| self.json["max_length"].as_u64()?.checked_sub(1))?;
        Some(limit.max(1) as usize)
    }

    /// Names the settings with which `transformers` generates other texts.
    fn note_unsupported(&self, acted: &[&str]) {
        let of_model = self.json["model_type"].is_string(); // config.json, which has keys of other kinds too
        for (key, value) in unsupported(self.json, acted, of_model) {
            eprintln!("note: {key} = {value} of the model folder is not supported: Kiln generates without it");
        }
    }

    fn note_key(&self, key: &str, off: &[&str]) {
        let value = &self.json[key];
        if !is_off(value, off) {
            eprintln!(
                "note: {key} = {value} of the model folder is not supported with beams: Kiln searches without it"
            );
        }
    }

    /// A number of tokens.
    fn size(&self, key: &str) -> Option<usize> {
        self.json[key].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
    }

    /// Reads one string or a list of strings.
    fn strings(&self, key: &str) -> Vec<String> {
        match &self.json[key] {
            Value::Array(texts) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            one => one.as_str().map(str::to_owned).into_iter().collect(),
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
