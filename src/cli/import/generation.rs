//! What `generation_config.json` says about generated texts, as settings of the run.

use std::path::{Path, PathBuf};

use kiln_interchange::hugging_face::{CONFIG_FILE, FolderError, GENERATION_CONFIG_FILE, TokenizerFile};
use kiln_metrics::logging::print::stderr_line;
use kiln_model::hf::TokenIds;
use kiln_train::config::{EarlyStopping, GenerateConfig, LengthNormalization, SpecialTokens};
use kiln_train::generate::TokenRules;
use serde_json::{Value, json};

use super::generation_keys::{OF_PAIRS, OF_TEXT, is_off, malformed, unsupported};

/// The most characters of a value that a note shows.
const LONGEST_VALUE: usize = 100;

/// The rules of generation in a model folder.
pub(super) struct Rules<'a> {
    /// The file that has them: `generation_config.json`, or `config.json`.
    path: PathBuf,
    json: &'a Value,
    tokenizer: &'a TokenizerFile,
}

impl<'a> Rules<'a> {
    /// Takes the content of the folder's `generation_config.json`, or of `config.json` if it has none.
    ///
    /// # Errors
    /// If a setting has a value of another kind than it must have.
    pub(super) fn new(dir: &Path, json: &'a Value, tokenizer: &'a TokenizerFile) -> Result<Self, FolderError> {
        let own = dir.join(GENERATION_CONFIG_FILE);
        let path = if own.is_file() { own } else { dir.join(CONFIG_FILE) };
        match malformed(json) {
            Some(reason) => Err(FolderError::BadFile { path, reason }),
            None => Ok(Self { path, json, tokenizer }),
        }
    }

    /// Returns the token that every target must begin with, if there is one.
    pub(super) fn forced_first(&self) -> Option<u32> {
        self.ids("forced_bos_token_id").first().copied()
    }

    /// Returns the token that targets start with, which newer folders name here only.
    pub(super) fn decoder_start(&self) -> Option<u32> {
        self.ids("decoder_start_token_id").first().copied()
    }

    /// Puts the settings of a model that continues texts into `config`. `end` is the end token that Kiln knows, `limits` are
    /// Kiln's own rules, and the model has `positions`.
    ///
    /// # Errors
    /// If a setting has a value that makes no sense.
    pub(super) fn apply_to_text(
        &self,
        end: Option<&str>,
        limits: &TokenRules,
        positions: usize,
        config: &mut GenerateConfig,
    ) -> Result<(), FolderError> {
        let ids = self.ids("eos_token_id");
        let ends: Vec<&str> = ids.iter().filter_map(|id| self.tokenizer.token(*id)).collect();
        if let Some(end) = end.filter(|end| !ends.is_empty() && !ends.contains(end)) {
            note("eos_token_id", &json!(ids), &format!("texts end at {end} too, the tokenizer's end token"));
        }
        config.stop_tokens = ends.into_iter().filter(|token| Some(*token) != end).map(str::to_owned).collect();
        self.apply_bans(limits, config);

        config.stop = self.strings("stop_strings");
        if !config.stop.is_empty() {
            stderr_line!("note: texts end before stop_strings of the model folder; transformers prints them too");
        }
        match (self.size("max_new_tokens"), self.size("max_length")) {
            (Some(limit), _) => config.max_new_tokens = limit,
            (None, Some(limit)) => {
                config.max_new_tokens = limit;
                if limit < positions {
                    stderr_line!(
                        "note: max_length = {limit} of the model folder counts the prompt; generate.max_new_tokens = {limit} counts \
                         only the tokens after it"
                    );
                }
            }
            (None, None) => stderr_line!(
                "note: the model folder limits no text (max_new_tokens): transformers stops after 20 tokens, Kiln after \
                 generate.max_new_tokens = {}",
                config.max_new_tokens
            ),
        }
        if self.size("num_beams").is_some_and(|beams| beams > 1) {
            self.apply_beams(config);
        }
        self.apply_sampling(config);
        self.note_unsupported(&OF_TEXT);
        self.check(config)
    }

    /// Puts the settings of a model that translates into `config`. Each target begins with `n_first` given tokens; `limits` are
    /// Kiln's own rules.
    ///
    /// # Errors
    /// If a setting has a value that makes no sense.
    pub(super) fn apply_to_pairs(
        &self,
        tokens: &TokenIds,
        n_first: usize,
        limits: &TokenRules,
        config: &mut GenerateConfig,
    ) -> Result<(), FolderError> {
        self.apply_bans(limits, config);
        self.apply_beams(config);
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
            let forced = self.ids("forced_eos_token_id");
            config.force_end = !forced.is_empty() && forced.first() == tokens.eos.as_ref();
            if !forced.is_empty() && !config.force_end {
                note("forced_eos_token_id", &json!(forced), "at the limit of tokens, the model chooses the last one");
            }
        } else {
            stderr_line!(
                "note: the model folder limits no translation (max_length): transformers cuts each after 20 tokens, Kiln by the length of its \
                 source (generate.max_len_ratio)"
            );
        }
        self.note_start(tokens);
        for (key, used) in [("eos_token_id", tokens.eos), ("decoder_start_token_id", tokens.decoder_start)] {
            if self.ids(key).iter().any(|id| Some(*id) != used) {
                let token = used.and_then(|id| self.tokenizer.token(id)).unwrap_or("none");
                let does = if key == "eos_token_id" { "end at" } else { "begin with" };
                note(key, &self.json[key], &format!("translations {does} {token}, the token of {CONFIG_FILE}"));
            }
        }
        self.apply_sampling(config);
        self.note_unsupported(&OF_PAIRS);
        self.check(config)
    }

    /// Says that `transformers` begins translations with another token, where `generation_config.json` names none.
    fn note_start(&self, tokens: &TokenIds) {
        let is_own = self.path.ends_with(GENERATION_CONFIG_FILE);
        let theirs = self.ids("bos_token_id").first().copied();
        if is_own && self.ids("decoder_start_token_id").is_empty() && theirs != tokens.decoder_start {
            let [theirs, ours] = [theirs, tokens.decoder_start].map(|id| id.and_then(|id| self.tokenizer.token(id)));
            stderr_line!(
                "note: {GENERATION_CONFIG_FILE} has no decoder_start_token_id: transformers begins translations with {}, Kiln with {}, as \
                 {CONFIG_FILE} says",
                theirs.unwrap_or("no token, and fails"),
                ours.unwrap_or("none")
            );
        }
    }

    /// Which tokens, words and repetitions texts do not contain. Kiln's own rules, `limits`, forbid the special tokens.
    fn apply_bans(&self, limits: &TokenRules, config: &mut GenerateConfig) {
        let mut ends = self.ids("eos_token_id");
        if ends.is_empty() {
            ends.clone_from(&limits.ends);
        }
        let suppressed = self.ids("suppress_tokens");
        let words: Vec<Vec<u32>> = self.json["bad_words_ids"].as_array().into_iter().flatten().map(ids_of).collect();
        // As in transformers, an end token is not a bad word.
        let words: Vec<Vec<u32>> = words.into_iter().filter(|word| !ends.iter().any(|end| *word == [*end])).collect();

        let forbidden = |id: &u32| suppressed.contains(id) || words.iter().any(|word| *word == [*id]);
        let mut own = limits.never.iter().filter(|id| !ends.contains(id)).peekable();
        let never = own.peek().is_some() && own.all(forbidden);
        // Kiln never writes ids without a token.
        let allowed = |id: u32| self.tokenizer.token(id).is_some() && !(never && limits.never.contains(&id));

        config.special_tokens = if never { SpecialTokens::Never } else { SpecialTokens::Allowed };
        config.no_repeat_ngram_size = self.size("no_repeat_ngram_size").unwrap_or(0);
        let words = words.into_iter().filter(|word| word.iter().all(|id| allowed(*id)));
        let suppressed = suppressed.iter().copied().filter(|id| allowed(*id)).map(|id| vec![id]);
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for word in words.chain(suppressed).filter(|word| !word.is_empty()) {
            match self.in_tokens(&word) {
                Some(tokens) => known.push(tokens),
                None => unknown.push(word),
            }
        }
        known.dedup();
        config.bad_words = known;
        if !unknown.is_empty() {
            note("bad_words_ids", &json!(unknown), "texts may contain these words");
        }
        let bans = config.no_repeat_ngram_size > 0 || !config.bad_words.is_empty();
        if bans && self.json["renormalize_logits"] == true && self.size("num_beams").is_some_and(|beams| beams > 1) {
            stderr_line!(
                "note: the model folder has renormalize_logits; scores of beams keep the probability of n-grams and words that are banned, \
                 which transformers leaves out"
            );
        }
    }

    /// Returns the tokens of a word with spaces between them. `None` if one of them has a space, or none is known.
    fn in_tokens(&self, word: &[u32]) -> Option<String> {
        let tokens =
            word.iter().map(|id| self.tokenizer.token(*id).filter(|token| !token.contains(char::is_whitespace)));
        Some(tokens.collect::<Option<Vec<_>>>()?.join(" "))
    }

    /// How beams are searched.
    fn apply_beams(&self, config: &mut GenerateConfig) {
        config.length_normalization = LengthNormalization::Power;
        config.length_penalty = self.number("length_penalty").unwrap_or(1.0);
        config.early_stopping = match &self.json["early_stopping"] {
            Value::Bool(true) => EarlyStopping::First,
            Value::String(rule) if rule == "never" => EarlyStopping::Never,
            _ => EarlyStopping::Heuristic,
        };
        config.beam_size = self.size("num_beams").unwrap_or(1);
    }

    /// Whether and how tokens are sampled. As in `transformers`, a folder without `do_sample` is searched for likely tokens, and one
    /// without `top_k` samples among 50.
    fn apply_sampling(&self, config: &mut GenerateConfig) {
        config.sample = false;
        if config.beam_size > 1 {
            let beams = config.beam_size;
            for (key, off) in [("repetition_penalty", "1.0"), ("do_sample", "false")] {
                let value = &self.json[key];
                if !is_off(value, &[off]) {
                    note(key, value, &format!("num_beams = {beams} searches without it"));
                }
            }
            return;
        }
        config.repetition_penalty = self.number("repetition_penalty").unwrap_or(1.0);
        config.sample = self.json["do_sample"] == true;
        if config.sample {
            config.temperature = self.number("temperature").unwrap_or(1.0);
            config.top_k = self.json["top_k"].as_u64().map_or(50, |k| k as usize);
            config.top_p = self.number("top_p").unwrap_or(1.0);
        }
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
        for (key, value, effect) in unsupported(self.json, acted, of_model) {
            note(key, value, effect);
        }
    }

    /// Refuses values with which nothing can be generated.
    fn check(&self, config: &GenerateConfig) -> Result<(), FolderError> {
        let mut problems = Vec::new();
        config.validate(&mut problems);
        if problems.is_empty() {
            return Ok(());
        }
        Err(FolderError::BadFile { path: self.path.clone(), reason: problems.join("; ") })
    }

    /// A number of tokens or beams.
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

    fn ids(&self, key: &str) -> Vec<u32> {
        ids_of(&self.json[key])
    }
}

/// Reads one id or a list of ids.
fn ids_of(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// Says what Kiln does instead of what `transformers` does at `key`.
fn note(key: &str, value: &Value, effect: &str) {
    let mut value = value.to_string();
    if value.chars().count() > LONGEST_VALUE {
        value = value.chars().take(LONGEST_VALUE).chain("...".chars()).collect();
    }
    stderr_line!("note: {key} = {value} of the model folder is not supported: {effect}");
}
