//! The interface between a search and a model: a batch of unfinished sequences that takes one token per row and returns the
//! logits of the next.

use std::borrow::Cow;

use burn::tensor::{Device, Int, Tensor};
use kiln_data::{SpecialIds, TextTokenizer};
use kiln_kernels::ColumnSet;
use kiln_model::{DecoderCache, DecoderOnly, EncoderDecoder, Prompts};

use super::GenerateError;
use super::bans::Bans;
use super::batching::{SourceBatch, int_tensor, likeliest};
use super::recorded::Replays;
use crate::config::{GenerateConfig, SpecialTokens};

/// A batch of unfinished sequences with their key/value cache. Rows do not influence each other.
///
/// # Shapes
/// B rows, V vocabulary.
pub trait Sequences {
    /// Appends one token to every row (`[B]`) and returns the logits of the next, `[B, V]`.
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2>;

    /// Appends `ids` and then the likeliest token that is not in `never`, `n` times in all, and returns the likeliest tokens, `[B, n]`.
    fn follow(&mut self, ids: Tensor<1, Int>, n: usize, never: &ColumnSet) -> Tensor<2, Int> {
        one_by_one(self, ids, n, never)
    }

    /// Replaces row i by the former row `rows[i]`. This drops rows, and copies a row that occurs several times.
    fn select(&mut self, rows: &[usize]);

    /// Does the same as [`Self::select`] if every row keeps its source or prompt.
    fn reorder_beams(&mut self, rows: &[usize]);
}

/// [`Sequences::follow`] by [`Sequences::step`].
fn one_by_one<S: Sequences + ?Sized>(
    sequences: &mut S,
    mut ids: Tensor<1, Int>,
    n: usize,
    never: &ColumnSet,
) -> Tensor<2, Int> {
    let mut tokens = Vec::with_capacity(n);
    for _ in 0..n {
        ids = likeliest(sequences.step(ids), never);
        tokens.push(ids.clone());
    }
    Tensor::stack(tokens, 1)
}

impl<S: Sequences> Sequences for &mut S {
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2> {
        (**self).step(ids)
    }

    fn follow(&mut self, ids: Tensor<1, Int>, n: usize, never: &ColumnSet) -> Tensor<2, Int> {
        (**self).follow(ids, n, never)
    }

    fn select(&mut self, rows: &[usize]) {
        (**self).select(rows);
    }

    fn reorder_beams(&mut self, rows: &[usize]) {
        (**self).reorder_beams(rows);
    }
}

/// A batch before the first token of each row is chosen.
#[derive(Debug)]
pub struct Begun<S> {
    /// The rows.
    pub sequences: S,
    /// Logits of the first token, `[B, V]`.
    pub logits: Tensor<2>,
    /// Most tokens of each row, end token included; at least 1.
    pub limits: Vec<usize>,
}

/// The tokens that end a sequence, the tokens that are never written, and those that must not follow others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRules {
    /// End tokens: they finish a row and are not part of the result.
    pub ends: Vec<u32>,
    /// Tokens that never occur in a text.
    pub never: Vec<u32>,
    /// What must not follow the tokens of a row.
    pub bans: Bans,
}

impl TokenRules {
    /// Returns the rules of pairs: the end token ends a row; padding and the start token are never written.
    pub fn of(special: SpecialIds) -> Self {
        // Some vocabularies use one token for all three.
        let mut never: Vec<u32> = [special.pad, special.bos].into_iter().filter(|id| *id != special.eos).collect();
        never.dedup();
        Self { ends: vec![special.eos], never, bans: Bans::default() }
    }

    /// Returns the rules of texts: the end token ends a row; the other special tokens are never written.
    pub fn of_text(tokenizer: &TextTokenizer) -> Self {
        let ends: Vec<u32> = tokenizer.special().eos.into_iter().collect();
        let never = tokenizer.ids_outside_text().into_iter().filter(|id| !ends.contains(id)).collect();
        Self { ends, never, bans: Bans::default() }
    }

    /// Lifts the ban on special tokens if `special_tokens` allows them.
    pub fn with(mut self, special_tokens: SpecialTokens) -> Self {
        if special_tokens == SpecialTokens::Allowed {
            self.never.clear();
        }
        self
    }

    /// Bans what `config` bans. `id` knows the tokens of the vocabulary.
    ///
    /// # Errors
    /// If a bad word has a token that the vocabulary lacks.
    pub fn banning(mut self, config: &GenerateConfig, id: impl Fn(&str) -> Option<u32>) -> Result<Self, GenerateError> {
        let token = |token: &str| id(token).ok_or_else(|| GenerateError::UnknownBadWord(token.to_owned()));
        let word = |word: &String| word.split_whitespace().map(token).collect::<Result<Vec<u32>, _>>();
        self.bans.no_repeat_ngram_size = config.no_repeat_ngram_size;
        self.bans.words = config.bad_words.iter().map(word).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Returns the rules for rows that have the `given` tokens in front, which bans count.
    pub(super) fn behind<'a>(&'a self, given: impl FnOnce() -> Vec<Vec<u32>>) -> Cow<'a, Self> {
        if self.bans.are_none() {
            return Cow::Borrowed(self);
        }
        let bans = Bans { given: given(), ..self.bans.clone() };
        Cow::Owned(Self { bans, ..self.clone() })
    }

    /// Adds an end token.
    pub fn end_at(&mut self, token: u32) {
        self.never.retain(|never| *never != token);
        self.ends.push(token);
    }

    /// Returns whether `token` ends its row.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Returns the tokens of a vocabulary that are never chosen.
    pub(super) fn excluded(&self, vocab_size: usize, device: &Device) -> ColumnSet {
        ColumnSet::new(self.never.iter().copied(), vocab_size, device)
    }
}

/// Targets of an encoder-decoder.
#[derive(Debug)]
pub struct Targets<'a> {
    model: &'a EncoderDecoder,
    cache: DecoderCache,
    device: Device,
}

impl<'a> Targets<'a> {
    /// Encodes `sources` and begins one target for each.
    pub fn begin(model: &'a EncoderDecoder, sources: &SourceBatch, special: SpecialIds) -> Begun<Self> {
        Self::begin_with(model, sources, special, &[])
    }

    /// [`Self::begin`] with the same first tokens in each target. They take positions of the model and are not part of the
    /// results.
    pub fn begin_with(
        model: &'a EncoderDecoder,
        sources: &SourceBatch,
        special: SpecialIds,
        first: &[u32],
    ) -> Begun<Self> {
        let mut targets = Self::empty(model, sources);
        let device = targets.device.clone();
        let mut read = |id: u32| targets.step(int_tensor(vec![id.cast_signed(); sources.batch_size()], &device));
        let logits = first.iter().fold(read(special.bos), |_, id| read(*id));
        Begun { sequences: targets, logits, limits: sources.limits.clone() }
    }

    /// [`Self::begin`] with the first tokens of each target, the start token included, which are as many for each. They take
    /// positions of the model and are not part of the results.
    pub fn begin_behind(model: &'a EncoderDecoder, sources: &SourceBatch, given: &[Vec<u32>]) -> Begun<Self> {
        let mut targets = Self::empty(model, sources);
        let n_first = given[0].len() as i32;
        let ids = given.iter().flatten().map(|id| id.cast_signed()).collect();
        let (ids, lengths) =
            (int_tensor(ids, &targets.device), int_tensor(vec![n_first; given.len()], &targets.device));
        let logits = model.prefill(ids, lengths, &mut targets.cache);
        Begun { sequences: targets, logits, limits: sources.limits.clone() }
    }

    fn empty(model: &'a EncoderDecoder, sources: &SourceBatch) -> Self {
        let memory = model.encode(sources.ids.clone(), sources.lengths.clone(), sources.batch_size(), None);
        Self { model, cache: model.start(&memory), device: sources.ids.device() }
    }
}

impl Sequences for Targets<'_> {
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.model.decode_step(ids, &mut self.cache)
    }

    fn select(&mut self, rows: &[usize]) {
        self.cache.select(&row_tensor(rows, &self.device));
    }

    fn reorder_beams(&mut self, rows: &[usize]) {
        self.cache.reorder_beams(&row_tensor(rows, &self.device));
    }
}

/// Texts of a decoder-only model.
#[derive(Debug)]
pub struct Texts<'a> {
    model: &'a DecoderOnly,
    cache: DecoderCache,
    device: Device,
    /// Positions of each row, with a learned prompt.
    lengths: Vec<usize>,
    replays: Replays,
    /// Tokens that the model has computed, padding included.
    pub(super) n_computed: usize,
}

impl<'a> Texts<'a> {
    /// Reads `prompts`, which have `lengths` tokens, and begins one continuation for each.
    pub fn begin(model: &'a DecoderOnly, prompts: &Prompts, lengths: Vec<usize>, limits: Vec<usize>) -> Begun<Self> {
        let (logits, cache) = model.prefill(prompts.ids.clone(), prompts.lengths.clone());
        let lengths: Vec<usize> = lengths.into_iter().map(|len| len + model.config().prompt_tokens).collect();
        let [n_computed] = prompts.ids.dims();
        let device = prompts.ids.device();
        let replays = Replays::on(&device, &lengths, &limits);
        Begun { sequences: Self { model, cache, replays, device, lengths, n_computed }, logits, limits }
    }

    /// [`Self::begin`] with a single prompt, of which `cache` has computed the first `keep` tokens.
    pub(super) fn resume(
        model: &'a DecoderOnly,
        mut cache: DecoderCache,
        prompt: &Prompts,
        keep: usize,
        limit: usize,
    ) -> Begun<Self> {
        let n_computed = prompt.len - keep;
        let before = model.config().prompt_tokens;
        let logits = model.extend(prompt.ids.clone().narrow(0, keep, n_computed), before + keep, &mut cache);
        let lengths = vec![before + prompt.len];
        let device = prompt.ids.device();
        let replays = Replays::on(&device, &lengths, &[limit]);
        Begun { sequences: Self { model, cache, replays, device, lengths, n_computed }, logits, limits: vec![limit] }
    }

    /// The keys and values so far.
    pub(super) fn cache(&mut self) -> &DecoderCache {
        self.replays.leave(&self.lengths, &mut self.cache);
        &self.cache
    }
}

impl Sequences for Texts<'_> {
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2> {
        let replayed = self.replays.step(self.model, &ids, &self.lengths, &mut self.cache);
        self.lengths.iter_mut().for_each(|len| *len += 1);
        self.n_computed += self.lengths.len();
        replayed.unwrap_or_else(|| self.model.decode_step(ids, &mut self.cache))
    }

    fn follow(&mut self, ids: Tensor<1, Int>, n: usize, never: &ColumnSet) -> Tensor<2, Int> {
        let replays = &mut self.replays;
        if let Some(tokens) = replays.follow(self.model, &ids, n, &self.lengths, &mut self.cache, never) {
            self.lengths.iter_mut().for_each(|len| *len += n);
            self.n_computed += n * self.lengths.len();
            return tokens;
        }
        one_by_one(self, ids, n, never)
    }

    fn select(&mut self, rows: &[usize]) {
        let is_done = self.replays.select(rows, &self.lengths, &mut self.cache);
        self.lengths = rows.iter().map(|&row| self.lengths[row]).collect();
        if !is_done {
            self.cache.select(&row_tensor(rows, &self.device));
            self.cache.shorten(self.lengths.iter().copied().max().expect("rows are left"));
        }
    }

    fn reorder_beams(&mut self, rows: &[usize]) {
        self.replays.never(&self.lengths, &mut self.cache);
        self.cache.reorder_beams(&row_tensor(rows, &self.device));
        self.lengths = rows.iter().map(|&row| self.lengths[row]).collect();
    }
}

fn row_tensor(rows: &[usize], device: &Device) -> Tensor<1, Int> {
    int_tensor(rows.iter().map(|&row| row as i32).collect(), device)
}
