//! Continues prompts: in batches of similar length, or one prompt whose text is streamed.

use std::io;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use kiln_data::{DecodeStream, TextTokenizer};
use kiln_kernels::int8::{Int8, Int8Guard, Int8Weights};
use kiln_model::{DecoderOnly, Prompts};

use super::batching;
use super::beam::BeamConfig;
use super::error::Interruption;
use super::greedy::greedy_with;
use super::sample::{SampledRow, Sampling, sample};
use super::sequences::{Begun, Sequences, Texts, TokenRules};
use super::stop::StopWatch;
use super::{GenerateError, beam_search, int8_weights, steps_per_sync};
use crate::config::GenerateConfig;

/// The continuation of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// The text without the prompt and without the stop string or end token.
    pub text: String,
    /// Tokens written, the end token not counted.
    pub n_tokens: usize,
    /// The reason why the text ended.
    pub ended: EndedBy,
}

/// The reason why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// The model wrote the end token or one of `generate.stop_tokens`.
    Token,
    /// A string of `generate.stop` occurred.
    StopString,
    /// The text reached `generate.max_new_tokens` or the last position of the model.
    Limit,
}

impl EndedBy {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::StopString => "stop_string",
            Self::Limit => "limit",
        }
    }
}

/// Continues prompts with a trained language model.
#[derive(Debug)]
pub struct TextGenerator {
    pub(super) model: DecoderOnly,
    tokenizer: TextTokenizer,
    pub(super) config: GenerateConfig,
    rules: TokenRules,
    device: Device,
    int8: Option<Arc<Int8Weights>>,
}

/// Bits of a random stream's number that hold the row; the others hold the sample.
const ROW_BITS: u32 = 32;

/// A prompt in tokens.
pub(super) struct PromptRow {
    pub(super) ids: Vec<u32>,
    /// Most tokens of the continuation.
    pub(super) limit: usize,
}

impl TextGenerator {
    /// Creates a generator on the device of `model`. The tokenizer must be the one that the model was trained with.
    ///
    /// # Errors
    /// If the tokenizer has more tokens than the model, or a stop token is unknown.
    pub fn new(model: &DecoderOnly, tokenizer: TextTokenizer, config: GenerateConfig) -> Result<Self, GenerateError> {
        let (found, wanted) = (tokenizer.vocab_size(), model.config().vocab_size());
        if found > wanted {
            return Err(GenerateError::OtherVocabulary { side: "text", tokenizer: found, model: wanted });
        }
        let rules = TokenRules::of_text(&tokenizer).with(config.special_tokens);
        let mut rules = rules.banning(&config, |token| tokenizer.id(token))?;
        rules.never.extend(found as u32..wanted as u32); // embedding rows without a token
        for token in &config.stop_tokens {
            let id = tokenizer.id(token).ok_or_else(|| GenerateError::UnknownStopToken(token.clone()))?;
            rules.end_at(id);
        }
        let device = model.devices().into_iter().next().expect("a model has parameters").inner();
        Ok(Self { model: model.valid(), tokenizer, config, rules, device, int8: None })
    }

    /// Lets searches multiply in int8, on the CPU only.
    ///
    /// # Errors
    /// If the model lies on a GPU.
    pub fn in_int8(self, kind: Option<Int8>) -> Result<Self, GenerateError> {
        let int8 = int8_weights(kind, &self.device, |kind| self.model.int8_weights(kind))?;
        Ok(Self { int8, ..self })
    }

    /// Returns the tokenizer of the model.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Returns one continuation per prompt, in order. A continuation does not depend on the other prompts.
    ///
    /// `first_row` is the number of the first prompt, counted from 0. The tokens sampled for a prompt depend on its number, so
    /// a caller that passes prompts in several calls continues the numbers.
    pub fn generate<S: AsRef<str>>(&self, prompts: &[S], first_row: u64) -> Result<Vec<Continuation>, GenerateError> {
        self.samples(prompts, first_row, 1)
    }

    /// Returns `n_samples` continuations per prompt, all of the first prompt first. The first one of each prompt is the one
    /// that [`Self::generate`] returns.
    pub fn samples<S: AsRef<str>>(
        &self,
        prompts: &[S],
        first_row: u64,
        n_samples: u32,
    ) -> Result<Vec<Continuation>, GenerateError> {
        let rows = self.rows(prompts, first_row)?;
        let texts: Vec<(&PromptRow, u64)> = (first_row..)
            .zip(&rows)
            .flat_map(|(number, row)| (0..n_samples).map(move |sample| (row, stream(number, sample))))
            .collect();

        let mut results: Vec<Option<Continuation>> = texts.iter().map(|_| None).collect();
        let lengths: Vec<usize> = texts.iter().map(|(row, _)| row.ids.len()).collect();
        for batch in batching::plan(&lengths, &self.config) {
            let (of_batch, streams): (Vec<&PromptRow>, Vec<u64>) = batch.iter().map(|&text| texts[text]).unzip();
            let found = self.continue_batch(&of_batch, &streams, &mut |_, _| Ok(()))?;
            for (text, found) in batch.into_iter().zip(found) {
                results[text] = Some(found);
            }
        }
        Ok(results.into_iter().map(|found| found.expect("every text is in one batch")).collect())
    }

    /// Continues one prompt, number `row` of the input, and passes the text to `write` piece by piece. Beam search passes it
    /// in one piece, because the text is known only at the end.
    pub fn stream(
        &self,
        prompt: &str,
        row: u64,
        write: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<Continuation, GenerateError> {
        let rows = self.rows(&[prompt], row)?;
        let found = self.continue_batch(&[&rows[0]], &[row], &mut |_, piece| Ok(write(piece)?))?;
        Ok(found.into_iter().next().expect("one row"))
    }

    /// Continues a prompt in tokens, such as a rendered conversation, as [`Self::stream`] does with text. A
    /// [`Conversation`](super::Conversation) does so turn by turn.
    ///
    /// # Errors
    /// [`GenerateError::EmptyPrompt`] or [`GenerateError::PromptTooLong`]; or if the device fails.
    pub fn stream_ids(
        &self,
        ids: Vec<u32>,
        row: u64,
        write: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<Continuation, GenerateError> {
        let row_of_prompt = self.row(ids, row as usize + 1)?;
        let found = self.continue_batch(&[&row_of_prompt], &[row], &mut |_, piece| Ok(write(piece)?))?;
        Ok(found.into_iter().next().expect("one row"))
    }

    /// Checks a prompt, number `number` of the input.
    pub(super) fn row(&self, ids: Vec<u32>, number: usize) -> Result<PromptRow, GenerateError> {
        let positions = self.model.config().text_positions();
        if ids.is_empty() {
            return Err(GenerateError::EmptyPrompt { prompt: number });
        }
        if ids.len() >= positions {
            return Err(GenerateError::PromptTooLong { prompt: number, found: ids.len(), limit: positions });
        }
        Ok(PromptRow { limit: self.config.max_new_tokens.min(positions - ids.len()), ids })
    }

    /// Tokenizes and checks the prompts.
    fn rows<S: AsRef<str>>(&self, prompts: &[S], first_row: u64) -> Result<Vec<PromptRow>, GenerateError> {
        let mut rows = Vec::with_capacity(prompts.len());
        for (row, prompt) in (first_row as usize + 1..).zip(prompts) {
            let ids = self.tokenizer.encode_prompt(prompt.as_ref())?;
            if prompt.as_ref().is_empty() {
                return Err(GenerateError::EmptyPrompt { prompt: row });
            }
            rows.push(self.row(ids, row)?);
        }
        Ok(rows)
    }

    /// Continues a batch of prompts and passes the pieces of each to `write` as they are known.
    fn continue_batch(
        &self,
        rows: &[&PromptRow],
        streams: &[u64],
        write: &mut dyn FnMut(usize, &str) -> Result<(), GenerateError>,
    ) -> Result<Vec<Continuation>, GenerateError> {
        let (lengths, limits) = rows.iter().map(|row| (row.ids.len(), row.limit)).unzip();
        let _precision = self.precision();
        let begun = Texts::begin(&self.model, &self.prompts(rows)?, lengths, limits);
        Ok(self.write_texts(begun, rows, streams, write)?.into_iter().map(|(found, _)| found).collect())
    }

    /// Lets the products of this thread take the weights in int8 while the guard lives, if they are wanted.
    pub(super) fn precision(&self) -> Option<Int8Guard> {
        self.int8.clone().map(Int8Weights::install)
    }

    /// Copies prompts to the device.
    pub(super) fn prompts(&self, rows: &[&PromptRow]) -> Result<Prompts, GenerateError> {
        let ids: Vec<Vec<u32>> = rows.iter().map(|row| row.ids.clone()).collect();
        Prompts::new(&ids, self.model.config(), &self.device)
            .map_err(|problem| kiln_data::Error::Invalid(problem.to_string()).into())
    }

    /// [`Self::continue_batch`] of prompts that the model has read. Returns the tokens of each continuation too.
    pub(super) fn write_texts(
        &self,
        begun: Begun<impl Sequences>,
        rows: &[&PromptRow],
        streams: &[u64],
        write: &mut dyn FnMut(usize, &str) -> Result<(), GenerateError>,
    ) -> Result<Vec<(Continuation, Vec<u32>)>, GenerateError> {
        let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or_default();
        let mut texts = Vec::with_capacity(rows.len());
        for row in rows {
            texts.push(RowText::behind(&row.ids, &self.tokenizer, &self.config.stop)?);
        }

        let sampling = Sampling::from(&self.config);
        let tokens = self
            .search(begun, &sampling, rows, streams, &mut |row, token| {
                let piece = texts[row].push(token)?;
                write(row, &piece)?;
                Ok(!texts[row].stopped())
            })
            .map_err(|interruption| interruption.on_batch(rows.len(), longest))?;

        let mut results = Vec::with_capacity(rows.len());
        for (number, ((row, text), tokens)) in rows.iter().zip(texts).zip(tokens).enumerate() {
            let ended = match text.stopped() {
                true => EndedBy::StopString,
                false if tokens.len() < row.limit => EndedBy::Token,
                false => EndedBy::Limit,
            };
            let (text, rest) = text.finish()?;
            write(number, &rest)?;
            results.push((Continuation { text, n_tokens: tokens.len(), ended }, tokens));
        }
        Ok(results)
    }

    /// Chooses tokens as the configuration says and passes each to `accept` with its row.
    fn search(
        &self,
        begun: Begun<impl Sequences>,
        sampling: &Sampling,
        rows: &[&PromptRow],
        streams: &[u64],
        accept: &mut dyn FnMut(usize, u32) -> Result<bool, GenerateError>,
    ) -> Result<Vec<Vec<u32>>, Interruption> {
        let rules = self.rules.behind(|| rows.iter().map(|row| row.ids.clone()).collect());
        if self.config.beam_size == 1 && sampling.greedy && sampling.repetition_penalty == 1.0 {
            return greedy_with(begun, &rules, steps_per_sync(&self.device), &mut |row, token| Ok(accept(row, token)?));
        }
        if self.config.beam_size == 1 {
            let row = |(row, stream): (&&PromptRow, &u64)| SampledRow { stream: *stream, prompt: row.ids.clone() };
            let sampled: Vec<SampledRow> = rows.iter().zip(streams).map(row).collect();
            return sample(begun, &rules, sampling, &sampled, accept);
        }
        let found = beam_search(begun, &rules, &BeamConfig::new(&self.config, 1))?;
        let found = found.into_iter().map(|best| best.into_iter().next().map_or(Vec::new(), |best| best.tokens));

        // The texts are known only now, and one may end before its last token.
        let mut kept: Vec<Vec<u32>> = Vec::with_capacity(found.len());
        for (row, tokens) in found.into_iter().enumerate() {
            let mut n = 0;
            for token in &tokens {
                n += 1;
                if !accept(row, *token)? {
                    break;
                }
            }
            kept.push(tokens[..n].to_vec());
        }
        Ok(kept)
    }
}

/// Returns the number of the random stream of a sample: the row's own for the first one.
fn stream(row: u64, sample: u32) -> u64 {
    row | u64::from(sample) << ROW_BITS
}

/// The unfinished text of one row.
struct RowText<'a> {
    decoder: DecodeStream,
    watch: StopWatch<'a>,
    text: String,
}

impl<'a> RowText<'a> {
    /// Begins a text after `prompt`. The prompt decides whether the first word begins with a space.
    fn behind(prompt: &[u32], tokenizer: &TextTokenizer, stops: &'a [String]) -> Result<Self, GenerateError> {
        let mut decoder = tokenizer.decode_stream();
        for id in prompt {
            decoder.push(*id)?;
        }
        Ok(Self { decoder, watch: StopWatch::new(stops), text: String::new() })
    }

    /// Adds a token and returns the text that has become certain.
    fn push(&mut self, token: u32) -> Result<String, GenerateError> {
        let piece = self.decoder.push(token)?;
        let certain = self.watch.push(&piece);
        self.text.push_str(&certain);
        Ok(certain)
    }

    fn stopped(&self) -> bool {
        self.watch.stopped()
    }

    /// Returns the whole text, and its last part, which had been held back.
    fn finish(mut self) -> Result<(String, String), GenerateError> {
        let mut rest = self.watch.push(&self.decoder.finish()?);
        if !self.watch.stopped() {
            rest.push_str(&self.watch.finish());
        }
        self.text.push_str(&rest);
        Ok((self.text, rest))
    }
}
