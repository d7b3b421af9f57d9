//! Times decoding: translations by greedy and beam search, and continuations of texts.
//!
//! Weights are random, ids go in and ids come out, and no target ends before its limit: a search takes as long as its tokens.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use kiln_data::SpecialIds;
use kiln_kernels::Settings;
use kiln_kernels::int8::Int8;
use kiln_model::{Prompts, TransformerConfig};
use kiln_train::config::GenerateConfig;
use kiln_train::device::is_cpu;
use kiln_train::generate::batching::{self, SourceBatch, SourceRow};
use kiln_train::generate::beam::BeamConfig;
use kiln_train::generate::{Targets, Texts, TokenRules, beam_search, greedy, steps_per_sync};
use serde::Serialize;

use super::measure::{Effort, time};

/// Padding, start, end and unknown token.
const SPECIAL: SpecialIds = SpecialIds { pad: 0, bos: 1, eos: 2, unk: 3 };

/// A search that is timed.
#[derive(Debug, Clone)]
pub struct Decoding {
    /// The model's name.
    pub model: &'static str,
    /// What is decoded.
    pub task: Task,
    int8: Option<Int8>,
    config: TransformerConfig,
}

/// What a [`Decoding`] decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Sources of 9 to 48 tokens.
    Translate {
        /// Sources.
        lines: usize,
        /// 1: greedy search.
        beams: usize,
        /// Tokens of each target.
        target: usize,
    },
    /// Texts that are continued by greedy search in one batch.
    Continue {
        /// Texts.
        rows: usize,
        /// Tokens of each prompt.
        prompt: usize,
        /// Tokens that are written.
        new: usize,
    },
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Translate { lines, beams: 1, target } => write!(f, "{lines} lines of {target} tokens, greedy"),
            Self::Translate { lines, beams, target } => write!(f, "{lines} lines of {target} tokens, {beams} beams"),
            Self::Continue { rows, prompt, new } => write!(f, "{rows} x {new} tokens after {prompt}"),
        }
    }
}

impl Task {
    /// Tokens that are written.
    pub fn n_tokens(&self) -> usize {
        match *self {
            Self::Translate { lines, target, .. } => lines * target,
            Self::Continue { rows, new, .. } => rows * new,
        }
    }
}

/// How long a search took.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodingTime {
    /// Median of the repeats.
    pub time: Duration,
    /// Written tokens per second.
    pub tokens_per_sec: f64,
    /// Bytes that the steps of a text must read: weights once, and keys and values of each position once. `None` for translations, where
    /// memory is not the bound.
    pub least_bytes: Option<f64>,
}

impl Decoding {
    /// The searches of `kiln bench decode` on a device. A CPU gets fewer tokens.
    pub fn all(device: &Device) -> Vec<Self> {
        let base = TransformerConfig::transformer_base().with_vocab_size(37_000);
        let (lines, new) = if is_cpu(device) { (100, 16) } else { (16_000, 512) };
        let translate = |beams| Self {
            model: "transformer-base",
            task: Task::Translate { lines, beams, target: 32 },
            int8: None,
            config: base.clone(),
        };
        let continued = |model, config: &TransformerConfig, rows| Self {
            model,
            task: Task::Continue { rows, prompt: 128, new },
            int8: None,
            config: config.clone(),
        };

        let gpt2 = TransformerConfig::gpt2_124m().with_vocab_size(50_257);
        let mut all = vec![translate(1), translate(4)];
        all.extend([1, 8, 64].map(|rows| continued("gpt2-124m", &gpt2, rows)));
        if !is_cpu(device) {
            let llama = TransformerConfig::llama_1b().with_vocab_size(32_000);
            all.extend([1, 8, 64].map(|rows| continued("llama-1b", &llama, rows)));
        }
        all
    }

    /// Returns the same search in int8, for a CPU.
    #[must_use]
    pub fn in_int8(&self, kind: Int8) -> Self {
        Self { int8: Some(kind), ..self.clone() }
    }

    /// Runs the search once to compile its kernels, then `repeats` times.
    ///
    /// # Errors
    /// If the device fails, or a target ends too early.
    pub fn measure(&self, dtype: FloatDType, device: &Device, repeats: usize) -> Result<DecodingTime> {
        match self.task {
            Task::Translate { lines, beams, target } => {
                let model = self.config.init_encoder_decoder(1, dtype, device).valid();
                let _installed = self.int8.map(|kind| Arc::new(model.int8_weights(kind)).install());
                let _independent = Settings { independent_rows: true, ..Settings::current() }.install();
                let rows = sources(lines, self.config.source_vocab_size, target);
                let config = GenerateConfig { beam_size: beams, ..GenerateConfig::default() };
                let config =
                    GenerateConfig { batch_tokens: batching::size_for_pairs(&config, &self.config, device), ..config };
                let search = BeamConfig::new(&config, 1);
                let rules = without_end(self.config.target_vocab_size);
                let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
                let time = median(device, repeats, || {
                    for batch in batching::plan(&lengths, &config) {
                        let batch: Vec<&SourceRow> = batch.into_iter().map(|row| &rows[row]).collect();
                        let sources = SourceBatch::new(&batch, SPECIAL.pad, self.config.max_positions, device);
                        let begun = Targets::begin(&model, &sources, SPECIAL);
                        let shortest = match beams {
                            1 => greedy(begun, &rules, steps_per_sync(device))?.iter().map(Vec::len).min(),
                            _ => beam_search(begun, &rules, &search)?.iter().map(|found| found[0].tokens.len()).min(),
                        };
                        ensure!(shortest == Some(target), "a target of {shortest:?} tokens instead of {target}");
                    }
                    Ok(())
                })?;
                Ok(self.timed(time, None))
            }
            Task::Continue { rows, prompt, new } => {
                let model = self.config.init_decoder_only(1, dtype, device).valid();
                let _installed = self.int8.map(|kind| Arc::new(model.int8_weights(kind)).install());
                let ids: Vec<Vec<u32>> = (0..rows)
                    .map(|row| (0..prompt).map(|i| token(row, i, self.config.vocab_size())).collect())
                    .collect();
                let prompts = Prompts::new(&ids, &self.config, device)?;
                let rules = without_end(self.config.vocab_size());
                let time = median(device, repeats, || {
                    let begun = Texts::begin(&model, &prompts, vec![prompt; rows], vec![new; rows]);
                    let found = greedy(begun, &rules, steps_per_sync(device))?;
                    ensure!(found.iter().all(|tokens| tokens.len() == new), "a text of other than {new} tokens");
                    Ok(())
                })?;

                let size = if dtype == FloatDType::F32 { 4.0 } else { 2.0 };
                let per_position = 2 * self.config.n_decoder_layers * self.config.kv_heads() * self.config.head_dim();
                let positions = (rows * new) as f64 * (prompt as f64 + new as f64 / 2.0);
                // The table of tokens is read a row at a time, unless it is also the projection.
                let table = self.config.vocab_size() * self.config.d_model;
                let read = model.num_params() - if self.config.tie_embeddings.ties_output() { 0 } else { table };
                Ok(self.timed(time, Some(size * (new as f64 * read as f64 + positions * per_position as f64))))
            }
        }
    }

    fn timed(&self, time: Duration, least_bytes: Option<f64>) -> DecodingTime {
        DecodingTime { time, tokens_per_sec: self.task.n_tokens() as f64 / time.as_secs_f64(), least_bytes }
    }
}

/// The rules of a search in which nothing ends before its limit.
fn without_end(vocab_size: usize) -> TokenRules {
    let rules = TokenRules::of(SPECIAL);
    TokenRules { ends: vec![vocab_size as u32], never: vec![SPECIAL.pad, SPECIAL.bos, SPECIAL.eos], ..rules }
}

fn token(row: usize, i: usize, vocab_size: usize) -> u32 {
    4 + ((row * 31 + i) * 7919 % (vocab_size - 4)) as u32
}

/// Sources of 9 to 48 tokens with their ends.
fn sources(lines: usize, vocab_size: usize, target: usize) -> Vec<SourceRow> {
    let source = |line: usize| {
        let ids = (0..8 + line * 17 % 40).map(|i| token(line, i, vocab_size)).chain([SPECIAL.eos]).collect();
        SourceRow { ids, limit: target }
    };
    (0..lines).map(source).collect()
}

/// Runs `work` once, and returns the median of `repeats` further runs.
fn median(device: &Device, repeats: usize, mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    let effort = Effort { steps: 1, repeats: repeats.max(1), warm_up: 1 };
    let paced = time(device, effort, || Ok(()), |_| work())?;
    Ok(Duration::from_secs_f64(paced.device.median()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_search_writes_all_of_its_tokens() {
        let device = Device::flex();
        let small = |config: TransformerConfig| TransformerConfig {
            d_model: 16,
            n_heads: 2,
            d_ff: 32,
            n_encoder_layers: config.n_encoder_layers.min(1),
            n_decoder_layers: 1,
            ..config.with_vocab_size(50)
        };
        for decoding in Decoding::all(&device) {
            let task = match decoding.task {
                Task::Translate { beams, .. } => Task::Translate { lines: 5, beams, target: 6 },
                Task::Continue { rows, .. } => Task::Continue { rows, prompt: 7, new: 3 },
            };
            let decoding = Decoding { config: small(decoding.config), task, ..decoding };
            let found = decoding.measure(FloatDType::F32, &device, 1).expect("a CPU");
            assert!(found.tokens_per_sec > 0.0 && found.time > Duration::ZERO, "{decoding:?}: {found:?}");
            let is_text = matches!(task, Task::Continue { .. });

            for int8 in [Int8::Weights, Int8::Both] {
                assert!(
                    decoding.in_int8(int8).measure(FloatDType::F32, &device, 1).expect("a CPU").tokens_per_sec > 0.0
                );
            }
            assert_eq!(found.least_bytes.is_some_and(|bytes| bytes > 1000.0), is_text, "{found:?}");
        }
    }
}
