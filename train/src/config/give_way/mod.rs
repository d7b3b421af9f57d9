//! Defaults give way to the keys that a user set: a default that collides with a set key follows it, and a note says so. Only
//! two set keys can contradict each other, which `validate` refuses.

mod model;

use kiln_data::Packing;
use serde::Serialize;

use super::set_keys::SetKeys;
use super::task::{Reads, traits_of};
use super::{Config, Schedule};

/// Changes the defaults in `config` that collide with the keys that are `set`. `base` has the values of all
/// defaults. Returns a sentence about each change.
pub(super) fn give_way(config: &mut Config, base: &Config, set: &SetKeys) -> Vec<String> {
    let mut follower = Follower { config, base, set, notes: Vec::new() };
    follower.model();
    follower.data();
    follower.optim();
    follower.generate();
    follower.notes
}

/// Lets defaults follow.
struct Follower<'a> {
    config: &'a mut Config,
    base: &'a Config,
    set: &'a SetKeys,
    notes: Vec<String>,
}

impl Follower<'_> {
    fn is_set(&self, key: &str) -> bool {
        self.set.contains(key)
    }

    /// Returns whether `key` may change.
    fn is_default(&self, key: &str) -> bool {
        !self.is_set(key)
    }

    /// Gives the default `key` another value, and notes why. Leaves a set key alone.
    fn follow<T: PartialEq + Serialize>(
        &mut self,
        key: &str,
        field: impl FnOnce(&mut Config) -> &mut T,
        value: T,
        because: &str,
    ) {
        if self.is_set(key) {
            return;
        }
        let field = field(self.config);
        let before = std::mem::replace(field, value);
        if before != *field {
            let note = format!("{key} = {} instead of {}, because {because}", written(field), written(&before));
            self.notes.push(note);
        }
    }

    /// The text: its fields, its lengths, and the batches that hold it.
    fn data(&mut self) {
        // Source and target exchanged: the other side takes the default that became free.
        let (corpus, before) = (self.config.data.corpus.clone(), self.base.data.corpus.clone());
        if corpus.source_field == corpus.target_field {
            let [source, target] = ["data.corpus.source_field", "data.corpus.target_field"];
            let because = format!("{} has its name", if self.is_set(source) { source } else { target });
            self.follow(target, |c| &mut c.data.corpus.target_field, before.source_field, &because);
            self.follow(source, |c| &mut c.data.corpus.source_field, before.target_field, &because);
        }
        if corpus.source_column == corpus.target_column {
            let [source, target] = ["data.corpus.source_column", "data.corpus.target_column"];
            let because = format!("{} has its column", if self.is_set(source) { source } else { target });
            self.follow(target, |c| &mut c.data.corpus.target_column, before.source_column, &because);
            self.follow(source, |c| &mut c.data.corpus.source_column, before.target_column, &because);
        }

        let Config { loader, tokenizer, task, .. } = self.config.clone();
        let is_text = traits_of(task).reads == Reads::Text;
        let reserved = tokenizer.reserved_entries(is_text);
        if tokenizer.path.is_none() && tokenizer.vocab_size <= reserved {
            let because = format!("{reserved} entries are special and byte tokens");
            let room = reserved + self.base.tokenizer.vocab_size;
            self.follow("tokenizer.vocab_size", |c| &mut c.tokenizer.vocab_size, room, &because);
            if self.is_set("tokenizer.vocab_size") {
                let because = "the bytes take 256 entries of tokenizer.vocab_size";
                self.follow("tokenizer.byte_fallback", |c| &mut c.tokenizer.byte_fallback, false, because);
            }
        }
        if loader.num_workers > 0 && loader.prefetch_factor == 0 {
            let because = "workers need a loader.prefetch_factor of at least 1";
            self.follow("loader.num_workers", |c| &mut c.loader.num_workers, 0, because);
            self.follow("loader.prefetch_factor", |c| &mut c.loader.prefetch_factor, 1, because);
        }
        if is_text { self.text_lengths() } else { self.pair_lengths() }
    }

    /// Positions, length of a row and size of a batch of plain text.
    fn text_lengths(&mut self) {
        self.packing();
        self.learned_prompt();
        let (max_positions, seq_len) = (self.config.model.text_positions(), self.config.data.text.seq_len);
        if seq_len > max_positions {
            let because = format!("data.text.seq_len = {seq_len}");
            let wanted = seq_len.saturating_add(self.config.model.prompt_tokens);
            self.follow("model.max_positions", |c| &mut c.model.max_positions, wanted, &because);
            let because = format!("model.max_positions = {max_positions}");
            self.follow("data.text.seq_len", |c| &mut c.data.text.seq_len, 0, &because);
        }

        let seq_len = self.config.data.text.resolved(self.config.model.text_positions()).seq_len;
        let batch_tokens = self.config.loader.batch_tokens;
        if batch_tokens < seq_len {
            let because = format!("a row has {seq_len} tokens");
            self.follow("loader.batch_tokens", |c| &mut c.loader.batch_tokens, seq_len, &because);
            let because = format!("loader.batch_tokens = {batch_tokens}");
            if self.is_set("loader.batch_tokens") && batch_tokens > 1 {
                self.follow("data.text.seq_len", |c| &mut c.data.text.seq_len, batch_tokens, &because);
            }
        }
    }

    /// Rows of another run are packed as its text was; conversations and answers to compare do not take each packing.
    fn packing(&mut self) {
        let text = &self.config.data.text;
        let because = match text.packing {
            Packing::Sentences if text.is_preferences() => "answers to compare have rows of their own anyway",
            Packing::Stream if text.is_chat() => "conversations do not see each other",
            _ => return,
        };
        self.follow("data.text.packing", |c| &mut c.data.text.packing, Packing::Documents, because);
    }

    /// A prompt in front of each text takes rows of one text, and positions from it.
    fn learned_prompt(&mut self) {
        let (p, text) = (self.config.model.prompt_tokens, &self.config.data.text);
        if p == 0 {
            return;
        }
        let is_packed = text.packing == Packing::Documents && !text.is_preferences();
        let is_too_long = text.seq_len > self.config.model.text_positions();
        let because = format!("model.prompt_tokens = {p} stands in front of each text");
        if is_packed {
            self.follow("data.text.packing", |c| &mut c.data.text.packing, Packing::Sentences, &because);
        }
        if is_too_long {
            self.follow("data.text.seq_len", |c| &mut c.data.text.seq_len, 0, &because);
        }
    }

    /// Positions, lengths of rows and size of a batch of pairs.
    fn pair_lengths(&mut self) {
        let corpus = &self.config.data.corpus;
        let (max_positions, longest) =
            (self.config.model.max_positions, corpus.max_source_len.max(corpus.max_target_len));
        if longest > max_positions {
            let because =
                format!("rows may have {longest} tokens (data.corpus.max_source_len, data.corpus.max_target_len)");
            self.follow("model.max_positions", |c| &mut c.model.max_positions, longest, &because);
            if self.is_set("model.max_positions") {
                self.limit_rows(max_positions, &format!("model.max_positions = {max_positions}"));
            }
        }

        let (batch_tokens, multiple) = (self.config.loader.batch_tokens, self.config.loader.bucket_multiple.max(1));
        if batch_tokens > 0 && batch_tokens < multiple && self.is_set("loader.batch_tokens") {
            let because = format!("loader.batch_tokens = {batch_tokens}");
            self.follow("loader.bucket_multiple", |c| &mut c.loader.bucket_multiple, batch_tokens, &because);
        }
        let multiple = self.config.loader.bucket_multiple.max(1);
        let corpus = self.config.data.corpus.resolved(self.config.model.max_positions);
        let padded = corpus.max_source_len.max(corpus.max_target_len).next_multiple_of(multiple);
        if batch_tokens < padded {
            let because = format!("a row may have {padded} tokens");
            self.follow("loader.batch_tokens", |c| &mut c.loader.batch_tokens, padded, &because);
            let fitting = batch_tokens / multiple * multiple;
            if self.is_set("loader.batch_tokens") && fitting > 1 {
                self.limit_rows(fitting, &format!("loader.batch_tokens = {batch_tokens}"));
            }
        }
    }

    /// Limits the rows of both sides to `most` tokens.
    fn limit_rows(&mut self, most: usize, because: &str) {
        let lens = self.config.data.corpus.resolved(self.config.model.max_positions);
        if lens.max_source_len > most {
            self.follow("data.corpus.max_source_len", |c| &mut c.data.corpus.max_source_len, most, because);
        }
        if lens.max_target_len > most {
            self.follow("data.corpus.max_target_len", |c| &mut c.data.corpus.max_target_len, most, because);
        }
    }

    /// Steps, warm-up, schedule and loss scale.
    fn optim(&mut self) {
        let (steps, before) = (self.config.train.steps, self.base.optim.clone());
        if self.config.optim.schedule == Schedule::Noam && self.config.optim.warmup_steps == 0 {
            let because = "\"noam\" divides by optim.warmup_steps = 0";
            self.follow("optim.schedule", |c| &mut c.optim.schedule, Schedule::Cosine, because);
        }

        // `noam` reads optim.lr as a factor, the other schedules as the peak.
        let schedule = self.config.optim.schedule;
        let d_model_and_warmup = self.config.model.d_model as f64 * before.warmup_steps.max(1) as f64;
        let lr = match (before.schedule == Schedule::Noam, schedule == Schedule::Noam) {
            (true, false) => rounded(before.lr * d_model_and_warmup.powf(-0.5)),
            (false, true) => 1.0,
            _ => self.config.optim.lr,
        };
        let because = format!("optim.schedule = {}, whose optim.lr means something else", written(&schedule));
        self.follow("optim.lr", |c| &mut c.optim.lr, lr, &because);

        let decays = matches!(schedule, Schedule::Cosine | Schedule::Linear | Schedule::WarmupStableDecay);
        let warmup = self.config.optim.warmup_steps;
        if decays && steps > 0 && self.is_set("train.steps") && warmup > steps / 2 {
            let because = format!("train.steps = {steps}");
            let tenth = (steps / 10).max(1).min(steps - 1);
            self.follow("optim.warmup_steps", |c| &mut c.optim.warmup_steps, tenth, &because);
        }
        if decays && steps > 0 && warmup >= steps && self.is_default("train.steps") {
            let because = format!("optim.warmup_steps = {warmup}");
            self.follow("train.steps", |c| &mut c.train.steps, warmup.saturating_add(steps), &because);
        }

        let (init, floor) = (self.config.train.loss_scale.init, self.config.train.loss_scale.floor);
        if init < floor {
            let because = format!("train.loss_scale.floor = {}", written(&floor));
            self.follow("train.loss_scale.init", |c| &mut c.train.loss_scale.init, floor, &because);
            if self.is_set("train.loss_scale.init") && init > 0.0 {
                let because = format!("train.loss_scale.init = {}", written(&init));
                self.follow("train.loss_scale.floor", |c| &mut c.train.loss_scale.floor, init, &because);
            }
        }
    }

    /// Sampling against searching.
    fn generate(&mut self) {
        if self.config.generate.sample && self.config.generate.beam_size > 1 {
            let because = format!("generate.beam_size = {} searches", self.config.generate.beam_size);
            self.follow("generate.sample", |c| &mut c.generate.sample, false, &because);
            if self.is_set("generate.sample") {
                let because = "generate.sample is set";
                self.follow("generate.beam_size", |c| &mut c.generate.beam_size, 1, because);
            }
        }

        let penalty = self.config.generate.repetition_penalty;
        if self.config.generate.beam_size > 1 && penalty != 1.0 {
            let because = format!("generate.beam_size = {}", self.config.generate.beam_size);
            self.follow("generate.repetition_penalty", |c| &mut c.generate.repetition_penalty, 1.0, &because);
            if self.is_set("generate.repetition_penalty") {
                let because = format!("generate.repetition_penalty = {}", written(&penalty));
                self.follow("generate.beam_size", |c| &mut c.generate.beam_size, 1, &because);
            }
        }
    }
}

/// Returns a value as a configuration file has it.
fn written(value: &impl Serialize) -> String {
    toml::Value::try_from(value).map_or("unset".into(), |value| value.to_string())
}

/// Rounds to two digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.1e}").parse().expect("a number")
}

#[cfg(test)]
mod tests;
