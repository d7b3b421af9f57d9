//! From source lines to target lines: batches of similar length, greedy or beam search, order kept.

pub mod batching;
pub mod beam;
pub mod greedy;

use burn::module::Module;
use burn::tensor::{DType, Device, ExecutionError, Tensor, TensorData, TensorReadError};
use kiln_data::{SpecialIds, Tokenizers};
use kiln_model::EncoderDecoder;
use thiserror::Error;

use crate::config::GenerateConfig;
use crate::device::is_cpu;
use batching::{SourceBatch, SourceRow};
use beam::{BeamConfig, Scored};

pub use beam::beam_search;
pub use greedy::greedy;

/// Steps between two looks at the tokens in greedy decoding on a GPU; each look waits for the device.
const GREEDY_STEPS_PER_SYNC: usize = 8;

/// Why lines cannot be translated.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// A source does not fit the model.
    #[error(
        "line {line} has {found} tokens, but the model reads at most {limit} (model.max_positions): split it into sentences"
    )]
    TooLong {
        /// Line number, counted from 1.
        line: usize,
        /// Its tokens, the end token included.
        found: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// More results than beams.
    #[error(
        "{n_best} results per line were asked for, but generate.beam_size is {beam_size}: raise it to at least {n_best}"
    )]
    TooFewBeams {
        /// Results asked for.
        n_best: usize,
        /// Beams there are.
        beam_size: usize,
    },
    /// The tokenizer is not the one that the model was trained with.
    #[error(
        "the tokenizer has {tokenizer} {side} tokens, the model {model}: use the tokenizer that is saved beside the weights"
    )]
    OtherVocabulary {
        /// "source" or "target".
        side: &'static str,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
    /// Text to ids or ids to text.
    #[error(transparent)]
    Tokenizer(#[from] kiln_data::Error),
    /// The device failed, often for want of memory.
    #[error(
        "the device failed while translating {rows} lines of up to {source_len} tokens: {reason}; if memory ran out, lower generate.batch_tokens"
    )]
    Device {
        /// Lines of the batch.
        rows: usize,
        /// Padded source length.
        source_len: usize,
        /// What the device says.
        reason: String,
    },
}

/// One translation of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The text.
    pub text: String,
    /// Log-probability over length penalty: higher is better. What beams are ranked by.
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
    tokenizers: Tokenizers,
    config: GenerateConfig,
    device: Device,
}

impl Translator {
    /// A translator on the device that `model` lives on. The tokenizers must be those it was trained with.
    pub fn new(model: &EncoderDecoder, tokenizers: Tokenizers, config: GenerateConfig) -> Result<Self, GenerateError> {
        let shape = model.config();
        for (side, tokenizer, model) in [
            ("source", tokenizers.source_vocab_size(), shape.source_vocab_size),
            ("target", tokenizers.target_vocab_size(), shape.target_vocab_size),
        ] {
            if tokenizer != model {
                return Err(GenerateError::OtherVocabulary { side, tokenizer, model });
            }
        }
        let device = model.devices().into_iter().next().expect("a model has parameters").inner();
        Ok(Self { model: model.valid(), tokenizers, config, device })
    }

    /// One translation per line, in order: greedy with one beam, else the best of the beam search. Lines of white space give an
    /// empty line.
    pub fn translate<S: AsRef<str>>(&self, lines: &[S]) -> Result<Vec<String>, GenerateError> {
        if self.config.beam_size > 1 {
            let best = |hypotheses: Vec<Hypothesis>| hypotheses.into_iter().next().map(|best| best.text);
            return Ok(self.n_best(lines, 1)?.into_iter().map(|found| best(found).unwrap_or_default()).collect());
        }
        let steps_per_sync = if is_cpu(&self.device) { 1 } else { GREEDY_STEPS_PER_SYNC };
        let special = self.tokenizers.special();
        let decoded = self.decode(lines, |batch| Ok(greedy(&self.model, batch, special, steps_per_sync)?))?;
        let text = |ids: Option<Vec<u32>>| ids.map_or(Ok(String::new()), |ids| self.tokenizers.decode(&ids));
        Ok(decoded.into_iter().map(text).collect::<Result<_, _>>()?)
    }

    /// Up to `n_best` translations per line, best first; an empty line has one, empty.
    pub fn n_best<S: AsRef<str>>(&self, lines: &[S], n_best: usize) -> Result<Vec<Vec<Hypothesis>>, GenerateError> {
        let GenerateConfig { beam_size, length_penalty, .. } = self.config;
        if n_best > beam_size {
            return Err(GenerateError::TooFewBeams { n_best, beam_size });
        }
        let config = BeamConfig { beam_size, length_penalty, n_best };
        let special = self.tokenizers.special();
        let decoded = self.decode(lines, |batch| Ok(beam_search(&self.model, batch, special, &config)?))?;
        let empty = || vec![Hypothesis { text: String::new(), score: 0.0, log_prob: 0.0, n_tokens: 0 }];
        let hypothesis = |found: Scored| {
            let text = self.tokenizers.decode(&found.tokens)?;
            Ok(Hypothesis { text, score: found.score, log_prob: found.log_prob, n_tokens: found.tokens.len() })
        };
        let hypotheses = |found: Option<Vec<Scored>>| match found {
            Some(found) => found.into_iter().map(hypothesis).collect(),
            None => Ok(empty()),
        };
        decoded.into_iter().map(hypotheses).collect()
    }

    /// Runs `search` over batches of similar length and puts the results back in the order of `lines`; `None` for empty
    /// ones.
    fn decode<S: AsRef<str>, T>(
        &self,
        lines: &[S],
        search: impl Fn(&SourceBatch) -> Result<Vec<T>, DeviceFailure>,
    ) -> Result<Vec<Option<T>>, GenerateError> {
        let limit = self.model.config().max_positions;
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
            rows.push(SourceRow::new(ids, &self.config, limit));
        }
        let mut results: Vec<Option<T>> = lines.iter().map(|_| None).collect();
        for batch in batching::plan(&rows, &self.config) {
            let batch_rows: Vec<_> = batch.iter().map(|&row| &rows[row]).collect();
            let sources = SourceBatch::new(&batch_rows, self.tokenizers.special().pad, limit, &self.device);
            let source_len = batch_rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
            let found = search(&sources).map_err(|DeviceFailure(reason)| GenerateError::Device {
                rows: batch.len(),
                source_len,
                reason,
            })?;
            for (row, found) in batch.into_iter().zip(found) {
                results[numbers[row]] = Some(found);
            }
        }
        Ok(results)
    }
}

/// What a search reports when the device fails.
struct DeviceFailure(String);

impl From<ExecutionError> for DeviceFailure {
    fn from(error: ExecutionError) -> Self {
        Self(error.to_string())
    }
}

impl From<TensorReadError> for DeviceFailure {
    fn from(error: TensorReadError) -> Self {
        Self(error.to_string())
    }
}

/// What to add to logits so that padding and the start token, which no target contains, are never chosen: `[1, V]`, f32.
fn forbidden(vocab_size: usize, special: SpecialIds, device: &Device) -> Tensor<2> {
    let mut bias = vec![0.0f32; vocab_size];
    for id in [special.pad, special.bos] {
        bias[id as usize] = f32::NEG_INFINITY;
    }
    Tensor::from_data(TensorData::new(bias, [1, vocab_size]), (&device.clone().inner(), DType::F32))
}

#[cfg(test)]
mod tests;
