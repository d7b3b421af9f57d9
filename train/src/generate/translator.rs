//! Translates source lines in batches of similar length and returns target lines in the order of the sources.

use burn::module::Module;
use burn::tensor::Device;
use kiln_data::{PairTokenizers, Rank};
use kiln_model::EncoderDecoder;

use super::batching::{self, SourceBatch, SourceRow};
use super::beam::{BeamConfig, Scored};
use super::error::Interruption;
use super::sample::{SampledRow, Sampling, sample};
use super::sequences::{Begun, Targets, TokenRules};
use super::{GenerateError, beam_search, greedy, steps_per_sync};
use crate::config::GenerateConfig;

/// One translation of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The text.
    pub text: String,
    /// Log-probability divided by the length penalty, the rank of beams: higher is better.
    pub score: f64,
    /// Sum of the log-probabilities of the tokens.
    pub log_prob: f64,
    /// Tokens, the end token not counted.
    pub n_tokens: usize,
}

/// Translates lines with a trained model.
#[derive(Debug)]
pub struct Translator {
    model: EncoderDecoder,
    tokenizers: PairTokenizers,
    config: GenerateConfig,
    device: Device,
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
        Ok(Self { model: model.valid(), tokenizers, config: GenerateConfig { batch_tokens, ..config }, device })
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
        if self.config.beam_size > 1 {
            let best = |found: Vec<Hypothesis>| found.into_iter().next().map(|best| best.text);
            return Ok(self.n_best(lines, 1, share)?.into_iter().map(|found| found.and_then(best)).collect());
        }

        let sampling = Sampling::from(&self.config);
        let chosen_on_host = !sampling.greedy || sampling.repetition_penalty != 1.0;
        let decoded = self.decode(lines, share, |mut begun, rules, numbers| {
            if self.config.force_end {
                begun.limits.iter_mut().for_each(|limit| *limit = limit.saturating_sub(1).max(1));
            }
            if !chosen_on_host {
                return Ok(greedy(begun, rules, steps_per_sync(&self.device))?);
            }
            // As in transformers, the penalty on repetitions counts the start token and the tokens that a target begins with.
            let begin = [&[self.tokenizers.special().bos], self.tokenizers.before_target()].concat();
            let row = |number: &usize| SampledRow { stream: first_row + *number as u64, prompt: begin.clone() };
            let rows: Vec<SampledRow> = numbers.iter().map(row).collect();
            sample(begun, rules, &sampling, &rows, &mut |_, _| Ok(true))
        })?;
        let text = |ids: Option<Vec<u32>>| ids.map(|ids| self.tokenizers.decode(&ids)).transpose();
        Ok(decoded.into_iter().map(text).collect::<Result<_, _>>()?)
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
        let hypothesis = |found: Scored| {
            let text = self.tokenizers.decode(&found.tokens)?;
            Ok(Hypothesis { text, score: found.score, log_prob: found.log_prob, n_tokens: found.tokens.len() })
        };
        let hypotheses = |found: Vec<Scored>| found.into_iter().map(hypothesis).collect::<Result<_, GenerateError>>();
        decoded.into_iter().map(|found| found.map(hypotheses).transpose()).collect()
    }

    /// Runs `search` on batches of similar length, with the numbers of their lines. Returns the results in the order of
    /// `lines`, `None` for empty lines and for the lines of other processes.
    fn decode<S: AsRef<str>, T>(
        &self,
        lines: &[S],
        share: Rank,
        search: impl Fn(Begun<Targets<'_>>, &TokenRules, &[usize]) -> Result<Vec<T>, Interruption>,
    ) -> Result<Vec<Option<T>>, GenerateError> {
        let limit = self.model.config().max_positions;
        let first = self.tokenizers.before_target();
        let (numbers, texts): (Vec<usize>, Vec<&str>) = lines
            .iter()
            .map(AsRef::as_ref)
            .enumerate()
            .filter(|(_, text): &(usize, &str)| !text.trim().is_empty())
            .unzip();

        let mut rows = Vec::with_capacity(texts.len());
        for (ids, &number) in self.tokenizers.encode_sources(&texts)?.into_iter().zip(&numbers) {
            if ids.len() > limit {
                return Err(GenerateError::TooLong { line: number + 1, found: ids.len(), limit });
            }
            rows.push(SourceRow::new(ids, &self.config, limit.saturating_sub(first.len()).max(1)));
        }

        let mut results: Vec<Option<T>> = lines.iter().map(|_| None).collect();
        let special = self.tokenizers.special();
        let rules = TokenRules::of(special).with(self.config.special_tokens);
        let mut rules = rules.banning(&self.config, |token| self.tokenizers.target_id(token))?;
        let n_rows = self.model.config().target_vocab_size;
        rules.never.extend(self.tokenizers.target_vocab_size() as u32..n_rows as u32); // embedding rows without a token

        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let batches = batching::plan(&lengths, &self.config);
        for batch in batches.into_iter().skip(share.rank).step_by(share.world_size) {
            let batch_rows: Vec<_> = batch.iter().map(|&row| &rows[row]).collect();
            let batch_numbers: Vec<_> = batch.iter().map(|&row| numbers[row]).collect();
            let sources = SourceBatch::new(&batch_rows, special.pad, limit, &self.device);
            let source_len = batch_rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
            // As in transformers, the start token and the tokens that a target begins with count as its own.
            let given = [&[special.bos], first].concat();
            let rules = rules.behind(|| vec![given; batch.len()]);
            let found = search(Targets::begin_with(&self.model, &sources, special, first), &rules, &batch_numbers)
                .map_err(|interruption| interruption.on_batch(batch.len(), source_len))?;
            for (number, found) in batch_numbers.into_iter().zip(found) {
                results[number] = Some(found);
            }
        }
        Ok(results)
    }
}
