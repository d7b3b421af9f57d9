//! Translates source lines in batches of similar length and returns target lines in the order of the sources.
//!
//! A line may say how its translation begins. The log-probabilities of the tokens come from [`super::token_scores`].

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use kiln_data::{PairTokenizers, Rank};
use kiln_kernels::int8::{Int8, Int8Guard, Int8Weights};
use kiln_kernels::{Settings, SettingsGuard};
use kiln_model::EncoderDecoder;

use super::batching::{self, SourceBatch, SourceRow};
use super::beam::{BeamConfig, Scored};
use super::error::Interruption;
use super::sample::{SampledRow, Sampling, sample};
use super::sequences::{Begun, Targets, TokenRules};
use super::token_scores::{TokenScore, score};
use super::{GenerateError, beam_search, greedy, int8_weights, steps_per_sync};
use crate::config::GenerateConfig;

/// One translation of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The text.
    pub text: String,
    /// Log-probability divided by the length penalty, the rank of beams: higher is better.
    pub score: f64,
    /// Sum of the log-probabilities of the tokens that were searched.
    pub log_prob: f64,
    /// Tokens, the end token not counted.
    pub tokens: Vec<u32>,
}

/// Translates lines with a trained model.
#[derive(Debug)]
pub struct Translator {
    model: EncoderDecoder,
    tokenizers: PairTokenizers,
    config: GenerateConfig,
    device: Device,
    /// Whether a tab in a line divides the source from the beginning of its translation.
    reads_prefixes: bool,
    int8: Option<Arc<Int8Weights>>,
}

/// A line to translate.
struct Row {
    /// Counted from 0.
    number: usize,
    source: SourceRow,
    /// The tokens that the decoder reads before the first search: the start, the first tokens of every target, and the prefix.
    given: Vec<u32>,
}

/// What a search found for a line.
struct Found<T> {
    found: T,
    /// The tokens that the line's translation begins with.
    prefix: Vec<u32>,
}

impl Translator {
    /// Creates a translator on the device of `model`. The tokenizers must be the ones that the model was trained with.
    ///
    /// # Errors
    /// If a tokenizer has more tokens than the model.
    pub fn new(
        model: &EncoderDecoder,
        tokenizers: PairTokenizers,
        config: GenerateConfig,
    ) -> Result<Self, GenerateError> {
        let shape = model.config();
        for (side, tokenizer, model) in [
            ("source", tokenizers.source_vocab_size(), shape.source_vocab_size),
            ("target", tokenizers.target_vocab_size(), shape.target_vocab_size),
        ] {
            if tokenizer > model {
                return Err(GenerateError::OtherVocabulary { side, tokenizer, model });
            }
        }
        let device = model.devices().into_iter().next().expect("a model has parameters").inner();
        let batch_tokens = batching::size_for_pairs(&config, shape, &device);
        let config = GenerateConfig { batch_tokens, ..config };
        Ok(Self { model: model.valid(), tokenizers, config, device, reads_prefixes: false, int8: None })
    }

    /// Lets a line have the words that its translation begins with, behind a tab. They count as tokens of the translation, and
    /// searches go on behind them: scores and log-probabilities leave them out.
    #[must_use]
    pub fn reading_prefixes(self, reads_prefixes: bool) -> Self {
        Self { reads_prefixes, ..self }
    }

    /// Lets searches multiply in int8, on the CPU only.
    ///
    /// # Errors
    /// If the model lies on a GPU.
    pub fn in_int8(self, kind: Option<Int8>) -> Result<Self, GenerateError> {
        let int8 = int8_weights(kind, &self.device, |kind| self.model.int8_weights(kind))?;
        Ok(Self { int8, ..self })
    }

    /// Returns how many lines to pass in one call: enough to fill a batch with lines of similar length, and few enough that the
    /// first translations come soon.
    pub fn lines_per_call(&self) -> usize {
        batching::lines_for(&self.config)
    }

    /// Returns one translation per line, in order: sampled, greedy if there is one beam, or the best of the beam search. A line
    /// of white space gives an empty line.
    ///
    /// `first_row` is the number of the first line, counted from 0. The tokens sampled for a line depend on its number, so a
    /// caller that passes lines in several calls continues the numbers.
    pub fn translate<S: AsRef<str>>(&self, lines: &[S], first_row: u64) -> Result<Vec<String>, GenerateError> {
        let texts = self.translate_share(lines, first_row, Rank::default())?;
        Ok(texts.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Does the same for one of several processes, which share the batches: `None` for the lines of the others, and for lines
    /// of white space.
    pub fn translate_share<S: AsRef<str>>(
        &self,
        lines: &[S],
        first_row: u64,
        share: Rank,
    ) -> Result<Vec<Option<String>>, GenerateError> {
        let text = |ids: Option<Vec<u32>>| ids.map(|ids| self.tokenizers.decode(&ids)).transpose();
        let found = self.tokens_share(lines, first_row, share)?;
        Ok(found.into_iter().map(text).collect::<Result<_, _>>()?)
    }

    /// Does the same as [`Self::translate_share`], and returns the tokens of the translations, without end tokens.
    pub fn tokens_share<S: AsRef<str>>(
        &self,
        lines: &[S],
        first_row: u64,
        share: Rank,
    ) -> Result<Vec<Option<Vec<u32>>>, GenerateError> {
        if self.config.beam_size > 1 {
            let best = |found: Vec<Hypothesis>| found.into_iter().next().map(|best| best.tokens);
            return Ok(self.n_best(lines, 1, share)?.into_iter().map(|found| found.and_then(best)).collect());
        }

        let sampling = Sampling::from(&self.config);
        let chosen_on_host = !sampling.greedy || sampling.repetition_penalty != 1.0;
        let decoded = self.decode(lines, share, |mut begun, rules, rows| {
            if self.config.force_end {
                begun.limits.iter_mut().for_each(|limit| *limit = limit.saturating_sub(1).max(1));
            }
            if !chosen_on_host {
                return Ok(greedy(begun, rules, steps_per_sync(&self.device))?);
            }
            // As in transformers, the penalty on repetitions counts the start token and the tokens that a target begins with.
            let row = |row: &&Row| SampledRow { stream: first_row + row.number as u64, prompt: row.given.clone() };
            let rows: Vec<SampledRow> = rows.iter().map(row).collect();
            sample(begun, rules, &sampling, &rows, &mut |_, _| Ok(true))
        })?;
        let whole = |Found { found, prefix }: Found<Vec<u32>>| [prefix, found].concat();
        Ok(decoded.into_iter().map(|found| found.map(whole)).collect())
    }

    /// Returns up to `n_best` translations per line, best first, for one of several processes, which share the batches: `None`
    /// for the lines of the others, and for lines of white space.
    pub fn n_best<S: AsRef<str>>(
        &self,
        lines: &[S],
        n_best: usize,
        share: Rank,
    ) -> Result<Vec<Option<Vec<Hypothesis>>>, GenerateError> {
        if n_best > self.config.beam_size {
            return Err(GenerateError::TooFewBeams { n_best, beam_size: self.config.beam_size });
        }
        let n_first = self.tokenizers.before_target().len();
        let config = BeamConfig { n_first, ..BeamConfig::new(&self.config, n_best) };
        let decoded = self.decode(lines, share, |begun, rules, _| Ok(beam_search(begun, rules, &config)?))?;
        let mut decoded: Vec<Option<Vec<Hypothesis>>> =
            decoded.into_iter().map(|found| found.map(hypotheses_without_text)).collect();
        let tokens: Vec<&[u32]> = decoded.iter().flatten().flatten().map(|one| one.tokens.as_slice()).collect();
        let texts = self.tokenizers.decode_batch(&tokens)?;
        decoded.iter_mut().flatten().flatten().zip(texts).for_each(|(one, text)| one.text = text);
        Ok(decoded)
    }

    /// Returns the log-probability of every token of translations of `lines`, and then of the end token, if the model has a position
    /// for it. Several translations of one line repeat the line.
    ///
    /// # Errors
    /// If a line is too long, or the device fails.
    pub fn token_scores<S: AsRef<str>>(
        &self,
        lines: &[S],
        translations: &[Vec<u32>],
    ) -> Result<Vec<Vec<TokenScore>>, GenerateError> {
        let lines: Vec<&str> = lines.iter().map(|line| self.parts(line.as_ref()).0).collect();
        let sources = self.tokenizers.encode_sources(&lines)?;
        let _arithmetic = self.arithmetic();
        score(&self.model, &self.tokenizers, &self.device, &self.rules()?.never, &sources, translations)
    }

    /// Returns the source of a line, and what its translation begins with.
    pub fn parts<'l>(&self, line: &'l str) -> (&'l str, &'l str) {
        line.split_once('\t').filter(|_| self.reads_prefixes).unwrap_or((line, ""))
    }

    /// Lets the products of this thread give a line the same translation in any batch while the guards live, in int8 if that is wanted.
    fn arithmetic(&self) -> (SettingsGuard, Option<Int8Guard>) {
        let settings = Settings { independent_rows: true, ..Settings::current() };
        (settings.install(), self.int8.clone().map(Int8Weights::install))
    }

    fn rules(&self) -> Result<TokenRules, GenerateError> {
        let rules = TokenRules::of(self.tokenizers.special()).with(self.config.special_tokens);
        let mut rules = rules.banning(&self.config, |token| self.tokenizers.target_id(token))?;
        let n_rows = self.model.config().target_vocab_size;
        rules.never.extend(self.tokenizers.target_vocab_size() as u32..n_rows as u32); // embedding rows without a token
        Ok(rules)
    }

    /// Tokenizes lines that are not empty.
    fn rows<S: AsRef<str>>(&self, lines: &[S]) -> Result<Vec<Row>, GenerateError> {
        let positions = self.model.config().max_positions;
        let parts = lines.iter().map(|line| self.parts(line.as_ref())).enumerate();
        let full: Vec<_> = parts.filter(|(_, (source, _))| !source.trim().is_empty()).collect();
        let (sources, prefixes): (Vec<&str>, Vec<&str>) = full.iter().map(|(_, parts)| *parts).unzip();
        let sources = self.tokenizers.encode_sources(&sources)?;
        let targets = self.tokenizers.encode_targets(&prefixes)?;

        let too_long = sources.iter().zip(&full).filter(|(ids, _)| ids.len() > positions);
        let too_long: Vec<_> = too_long.map(|(ids, (number, _))| (number + 1, ids.len())).collect();
        if let [(line, found), others @ ..] = &too_long[..] {
            let others = others.iter().map(|(line, _)| *line).collect();
            return Err(GenerateError::TooLong { line: *line, found: *found, limit: positions, others });
        }

        let n_first = self.tokenizers.before_target().len();
        let mut rows = Vec::with_capacity(full.len());
        for ((ids, target), (number, _)) in sources.into_iter().zip(targets).zip(&full) {
            let given: Vec<u32> = [self.tokenizers.special().bos].into_iter().chain(without_end(target)).collect();
            let (line, limit) = (number + 1, positions);
            if given.len() > limit {
                return Err(GenerateError::PrefixTooLong { line, found: given.len(), limit });
            }
            let mut source = SourceRow::new(ids, &self.config, positions.saturating_sub(n_first).max(1));
            source.limit = source.limit.saturating_sub(given.len() - 1 - n_first).max(1);
            rows.push(Row { number: *number, source, given });
        }
        Ok(rows)
    }

    /// Divides rows into batches of similar sources, whose targets begin with as many tokens.
    fn plan(&self, rows: &[Row]) -> Vec<Vec<usize>> {
        let mut by_given: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        rows.iter().enumerate().for_each(|(i, row)| by_given.entry(row.given.len()).or_default().push(i));
        let plan_of = |alike: &Vec<usize>| {
            let lengths: Vec<usize> = alike.iter().map(|&row| rows[row].source.ids.len()).collect();
            let batches = batching::plan(&lengths, &self.config).into_iter();
            batches.map(|batch| batch.into_iter().map(|i| alike[i]).collect()).collect::<Vec<_>>()
        };
        by_given.values().flat_map(plan_of).collect()
    }

    /// Runs `search` on batches of similar length. Returns the results in the order of `lines`, `None` for empty lines and for the
    /// lines of other processes.
    fn decode<S: AsRef<str>, T>(
        &self,
        lines: &[S],
        share: Rank,
        search: impl Fn(Begun<Targets<'_>>, &TokenRules, &[&Row]) -> Result<Vec<T>, Interruption>,
    ) -> Result<Vec<Option<Found<T>>>, GenerateError> {
        let rows = self.rows(lines)?;
        let (rules, special, first) = (self.rules()?, self.tokenizers.special(), self.tokenizers.before_target());
        let limit = self.model.config().max_positions;
        let batches = self.plan(&rows);
        let _arithmetic = self.arithmetic();

        let mut results: Vec<Option<Found<T>>> = lines.iter().map(|_| None).collect();
        for batch in batches.into_iter().skip(share.rank).step_by(share.world_size) {
            let batch: Vec<&Row> = batch.iter().map(|&row| &rows[row]).collect();
            let batch_sources: Vec<_> = batch.iter().map(|row| &row.source).collect();
            let sources = SourceBatch::new(&batch_sources, special.pad, limit, &self.device);
            let source_len = batch_sources.iter().map(|row| row.ids.len()).max().unwrap_or(0);
            // As in transformers, the start token and the tokens that a target begins with count as its own.
            let given: Vec<Vec<u32>> = batch.iter().map(|row| row.given.clone()).collect();
            // All rows of a batch are given as many tokens.
            let begun = match given[0].len() == 1 + first.len() {
                true => Targets::begin_with(&self.model, &sources, special, first),
                false => Targets::begin_behind(&self.model, &sources, &given),
            };
            let rules = rules.behind(|| given);
            let found =
                search(begun, &rules, &batch).map_err(|interruption| interruption.on_batch(batch.len(), source_len))?;
            for (row, found) in batch.into_iter().zip(found) {
                let prefix = row.given[1 + first.len()..].to_vec();
                results[row.number] = Some(Found { found, prefix });
            }
        }
        Ok(results)
    }
}

fn hypotheses_without_text(Found { found, prefix }: Found<Vec<Scored>>) -> Vec<Hypothesis> {
    let hypothesis = |Scored { tokens, score, log_prob, .. }: Scored| {
        let tokens = [prefix.clone(), tokens].concat();
        Hypothesis { text: String::new(), score, log_prob, tokens }
    };
    found.into_iter().map(hypothesis).collect()
}

/// Returns the tokens of a target without its end token.
fn without_end(mut target: Vec<u32>) -> Vec<u32> {
    target.pop();
    target
}
