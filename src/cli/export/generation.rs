//! What `kiln export` writes into `generation_config.json`: how the run generates.

use kiln_data::TextTokenizer;
use kiln_metrics::logging::print::stderr_line;
use kiln_train::config::{EarlyStopping, GenerateConfig, LengthNormalization, SpecialTokens};
use kiln_train::dataset::Vocabulary;
use kiln_train::generate::TokenRules;
use kiln_train::run::TrainedModel;
use serde_json::{Value, json};

/// Adds to `generation_config.json` how the run generates: the tokens that end a text, those that it never contains, and
/// those that a translation begins with; how many tokens it has at most, and how they are chosen.
pub(super) fn describe(run: &TrainedModel, generation: &mut Value) {
    let settings = &run.config.generate;
    let never = settings.special_tokens == SpecialTokens::Never;
    match &run.vocabulary {
        Vocabulary::Pairs(tokenizers) => {
            let rules = TokenRules::of(tokenizers.special()).with(settings.special_tokens);
            let mut words: Vec<Vec<u32>> = rules.never.iter().filter(|_| never).map(|id| vec![*id]).collect();
            words.extend(bad_words(rules, settings, |token| tokenizers.target_id(token)));
            generation["bad_words_ids"] = if words.is_empty() { Value::Null } else { json!(words) };
            if let [first] = tokenizers.before_target() {
                generation["forced_bos_token_id"] = json!(first);
            }
            if !settings.force_end {
                generation["forced_eos_token_id"] = Value::Null;
            }
            generation["max_length"] = json!(longest_translation(run, tokenizers.before_target().len()));
        }
        Vocabulary::Text(tokenizer) => {
            let mut rules = TokenRules::of_text(tokenizer).with(settings.special_tokens);
            settings.stop_tokens.iter().filter_map(|token| tokenizer.id(token)).for_each(|id| rules.end_at(id));

            if run.config.data.text.is_chat()
                && let Ok(Some(token)) = tokenizer.end_of_turn()
                && let Some(id) = tokenizer.id(&token).filter(|id| !rules.is_end(*id))
            {
                rules.end_at(id);
            }
            note_spelled_end(run, tokenizer);

            if rules.ends.len() > 1 {
                generation["eos_token_id"] = json!(rules.ends);
            }
            if !rules.never.is_empty() {
                generation["suppress_tokens"] = json!(rules.never);
            }
            let words = bad_words(rules, settings, |token| tokenizer.id(token));
            if !words.is_empty() {
                generation["bad_words_ids"] = json!(words);
            }
            describe_limit(settings.max_new_tokens, run.model.text_positions(), generation);
            if !settings.stop.is_empty() {
                stderr_line!(
                    "note: generate.stop is not exported: transformers ends texts at strings only in programs that pass its \
                     tokenizer to generate()"
                );
            }
        }
    }
    if settings.no_repeat_ngram_size > 0 {
        generation["no_repeat_ngram_size"] = json!(settings.no_repeat_ngram_size);
    }
    // Texts of other models are sampled.
    if matches!(run.vocabulary, Vocabulary::Pairs(_)) && settings.length_normalization != LengthNormalization::Power {
        stderr_line!(
            "note: generate.length_normalization = \"wu\" is not exported, because transformers has none: it scores beams with the power of \
             the length, so that beams can choose other texts than here"
        );
    }
    describe_beams(settings, generation);
    if settings.beam_size == 1 {
        describe_sampling(settings, generation);
    }
}

/// Says how a text ends at the end of a turn that several tokens spell: `transformers` knows ends that are one token.
fn note_spelled_end(run: &TrainedModel, tokenizer: &TextTokenizer) {
    if run.config.data.text.is_chat()
        && let Ok(Some(end)) = tokenizer.spelled_end_of_turn()
    {
        stderr_line!(
            "note: {end} ends a turn and is not a token of this vocabulary: pass stop_strings=[\"{end}\"] and the tokenizer to generate(), or \
             transformers writes beyond the answer"
        );
    }
}

/// Says the same for llama.cpp.
pub(super) fn note_spelled_end_for_llama(run: &TrainedModel, tokenizer: &TextTokenizer) {
    if run.config.data.text.is_chat()
        && let Ok(Some(end)) = tokenizer.spelled_end_of_turn()
    {
        stderr_line!(
            "note: {end} ends a turn and is not a token of this vocabulary: pass --reverse-prompt '{end}' to llama.cpp, or it writes beyond \
             the answer"
        );
    }
}

/// The most tokens of a translation, the start token included. `transformers` knows no limit that depends on the source, and without
/// one it ends each translation after 20 tokens.
fn longest_translation(run: &TrainedModel, n_first: usize) -> usize {
    let (settings, positions) = (&run.config.generate, run.model.max_positions);
    match settings.max_len_ratio == 0.0 {
        true => (settings.max_len_offset + n_first + 1).min(positions),
        false => positions,
    }
}

/// The ids of `generate.bad_words`. One that the vocabulary lacks cannot occur.
fn bad_words(rules: TokenRules, settings: &GenerateConfig, id: impl Fn(&str) -> Option<u32>) -> Vec<Vec<u32>> {
    rules.banning(settings, id).map_or(Vec::new(), |rules| rules.bans.words)
}

/// Adds the most tokens of a text. Where the positions alone limit it, it says so: `transformers` would run beyond them.
fn describe_limit(max_new_tokens: usize, positions: usize, generation: &mut Value) {
    if max_new_tokens + 1 < positions {
        generation["max_new_tokens"] = json!(max_new_tokens);
    } else {
        generation["max_length"] = json!(positions);
    }
}

/// Adds how tokens are chosen without beams.
fn describe_sampling(settings: &GenerateConfig, generation: &mut Value) {
    generation["do_sample"] = json!(settings.draws());
    if settings.draws() {
        generation["temperature"] = json!(settings.temperature);
        generation["top_k"] = json!(settings.top_k);
        generation["top_p"] = json!(settings.top_p);
    }
    if settings.repetition_penalty != 1.0 {
        generation["repetition_penalty"] = json!(settings.repetition_penalty);
    }
}

/// Adds how beams are searched, if they are scored as in `transformers`.
fn describe_beams(settings: &GenerateConfig, generation: &mut Value) {
    if settings.length_normalization != LengthNormalization::Power {
        if settings.beam_size > 1 {
            stderr_line!(
                "note: generate.beam_size = {} is not exported, because transformers has no generate.length_normalization = \"wu\": it \
                 takes the likeliest token each time, unless a program passes num_beams to generate()",
                settings.beam_size
            );
        }
        return;
    }
    generation["num_beams"] = json!(settings.beam_size);
    generation["length_penalty"] = json!(settings.length_penalty);
    generation["early_stopping"] = match settings.early_stopping {
        EarlyStopping::Never => json!("never"),
        EarlyStopping::Heuristic => json!(false),
        EarlyStopping::First => json!(true),
    };

    // Kiln never scores the tokens that it never writes.
    if !(generation["bad_words_ids"].is_array() || generation["suppress_tokens"].is_array()) {
        return;
    }
    generation["renormalize_logits"] = json!(true);
    let bans = settings.no_repeat_ngram_size > 0 || !settings.bad_words.is_empty();
    if bans && settings.beam_size > 1 {
        stderr_line!(
            "note: transformers leaves out the probability of n-grams and words that generate.no_repeat_ngram_size and \
             generate.bad_words ban, so that its beams have other scores"
        );
    }
}
