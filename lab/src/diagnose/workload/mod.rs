//! The workloads that `kiln bench` times: a model, its optimizer, and synthetic batches of one shape. The PyTorch baseline has
//! the same workloads, so that the figures can be compared.

mod batches;
mod families;
mod named;

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_kernels::{Settings, SettingsGuard};
use kiln_model::flops::n_params;
use kiln_model::mlm::max_labels;
use kiln_model::{ActivationCheckpointing, Architecture, TransformerConfig};
use serde_json::{Value, json};

pub use batches::effective_tokens;
use kiln_train::config::{Config, OptimConfig, Resolved, Schedule, Sources, resolve};
use kiln_train::eval::{Init, Model};
use kiln_train::train::TrainState;
pub use named::NAMES;

use super::measure::Prepared;

/// A shape that a model cannot be timed on; the text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ShapeError(String);

/// A model and the batches it is timed on.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name on the command line: one of [`NAMES`], or the name of a preset, a run or a file.
    pub(crate) name: String,
    /// A description.
    pub title: String,
    /// Optimizer, precision, label smoothing.
    pub config: Config,
    /// The model, with its vocabulary sizes.
    pub model: TransformerConfig,
    /// Rows per batch.
    pub(crate) batch_size: usize,
    /// Positions per row (of source and of target each).
    pub(crate) seq_len: usize,
    /// Batches that steps alternate between.
    pub(crate) n_batches: usize,
    /// The shortest row as a fraction of `seq_len`; 1 for full rows.
    shortest: f64,
}

/// The shape of the batches where none is given: positions per row of text, and of pairs.
const TEXT_LEN: usize = 1024;
const PAIR_LEN: usize = 64;

impl Workload {
    /// Returns the step of a run with `config` on `rows` rows of `len` positions.
    ///
    /// Without `len`, rows have 1,024 positions of text or 64 of a pair, or the model's limit if that is less. Without `rows`, they
    /// fill `loader.batch_tokens`. Vocabulary sizes of 0 become `tokenizer.vocab_size`. Pairs have three quarters of the positions
    /// to all of them; rows of text are full.
    ///
    /// # Errors
    /// If the model has fewer positions, or if there are none.
    pub fn of(name: &str, config: &Config, rows: Option<usize>, len: Option<usize>) -> Result<Self, ShapeError> {
        let mut model = config.model.clone();
        for size in [&mut model.source_vocab_size, &mut model.target_vocab_size] {
            if *size == 0 {
                *size = config.tokenizer.vocab_size;
            }
        }
        // Synthetic rows are padded with 0.
        model.pad_id = 0;
        let is_pairs = model.architecture == Architecture::EncoderDecoder;
        let usual = if is_pairs { PAIR_LEN } else { TEXT_LEN };
        let seq_len = len.unwrap_or(usual.min(model.max_positions));
        let positions = if is_pairs { 2 * seq_len } else { seq_len };
        let batch_size = rows.unwrap_or((config.loader.batch_tokens / positions.max(1)).max(1));

        let mut workload = Self {
            name: name.into(),
            title: String::new(),
            config: Config { optim: constant_rate(config.optim.clone()), ..config.clone() },
            model,
            batch_size,
            seq_len,
            n_batches: if is_pairs { 4 } else { 2 },
            shortest: if is_pairs { 0.75 } else { 1.0 },
        };
        workload.reshape(rows, len)?;
        Ok(workload)
    }

    /// Changes keys of the configuration, each `key=value`. Returns a sentence about each default that gave way.
    ///
    /// # Errors
    /// If a key or a value is wrong.
    pub fn set(&mut self, assignments: &[String]) -> Result<Vec<String>> {
        if assignments.is_empty() {
            return Ok(Vec::new());
        }
        let base = Config { model: self.model.clone(), ..self.config.clone() };
        let sources = Sources { base: Some(base), set: assignments.to_vec(), only_shown: true, ..Sources::default() };
        let Resolved { config, notes, .. } = resolve(&sources)?;
        self.model = config.model.clone();
        self.config = config;
        self.title = format!("{}; {}", self.title, assignments.join(" "));
        Ok(notes)
    }

    /// Changes the shape of the batches.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn reshape(&mut self, rows: Option<usize>, len: Option<usize>) -> Result<(), ShapeError> {
        self.batch_size = rows.unwrap_or(self.batch_size);
        self.seq_len = len.unwrap_or(self.seq_len);
        let limit = self.model.max_positions;
        let lacks_head = self.model.architecture == Architecture::EncoderOnly && !self.model.mlm_head;
        let refused = |problem: String| Err(ShapeError(problem));
        if lacks_head {
            return refused(format!("{} has no head for masked tokens, so there is nothing to train", self.name));
        }
        if self.batch_size == 0 || self.seq_len == 0 {
            return refused("--rows and --len must be at least 1".into());
        }
        if self.seq_len > limit {
            let (len, name) = (self.seq_len, &self.name);
            return refused(format!(
                "--len {len}: {name} has at most {limit} positions; add --set model.max_positions={len}"
            ));
        }

        if self.title.is_empty() || rows.is_some() || len.is_some() {
            self.describe(n_params(&self.model).total());
        }
        Ok(())
    }

    /// Describes a model with so many parameters and the shape of its batches.
    pub fn describe(&mut self, n_params: u64) {
        let shape = if self.is_pairs() {
            format!("{} x ({1} + {1}) padded", self.batch_size, self.seq_len)
        } else {
            format!("{} x {}", self.batch_size, self.seq_len)
        };
        self.title = format!("{}, {:.1} M parameters, {shape}", self.name, n_params as f64 / 1e6);
    }

    /// Whether nothing was changed since [`Self::named`].
    pub fn is_as_named(&self) -> bool {
        Self::named(&self.name).is_some_and(|named| named.as_json() == self.as_json())
    }

    /// Whether batches have sources and targets.
    fn is_pairs(&self) -> bool {
        self.model.architecture == Architecture::EncoderDecoder
    }

    /// Returns the floating-point operations of a step, as the baseline counts them: 6 per parameter and position (of the target,
    /// for pairs). Attention over text adds `12 * T * D` per position and layer, half of it if causal. The table of a model that
    /// predicts masked tokens counts at the positions that the head reads.
    pub fn flops(&self) -> f64 {
        let parameters = n_params(&self.model).total() as f64;
        let n_positions = self.batch_size * self.seq_len;
        let positions = n_positions as f64;
        let skipped = self.max_labels().map_or(0, |labels| n_positions - labels);
        let table = (self.model.vocab_size() * self.model.d_model) as f64;
        let square = self.seq_len * self.model.d_model;
        let attention = match self.model.architecture {
            Architecture::EncoderDecoder => 0,
            Architecture::DecoderOnly => self.model.n_decoder_layers * square,
            Architecture::EncoderOnly => 2 * self.model.n_encoder_layers * square,
        };
        6.0 * ((parameters + attention as f64) * positions - table * skipped as f64)
    }

    /// Returns the share of the tokens that are labels, if the model predicts masked tokens.
    pub fn masked_share(&self) -> Option<f64> {
        (self.model.architecture == Architecture::EncoderOnly).then_some(self.config.train.masked_share)
    }

    /// Returns the most labels that a batch may have, if the model predicts masked tokens: the positions that its head reads.
    pub fn max_labels(&self) -> Option<usize> {
        self.masked_share().map(|share| max_labels(self.batch_size * self.seq_len, share))
    }

    /// Returns the padded shape of a batch, `[B, S, T]`; S is 0 for text.
    pub fn shape(&self) -> [usize; 3] {
        [self.batch_size, if self.is_pairs() { self.seq_len } else { 0 }, self.seq_len]
    }

    /// Returns the positions of a batch, source and target together.
    pub fn n_positions(&self) -> usize {
        let [b, s, t] = self.shape();
        b * (s + t)
    }

    /// Returns which activations a step keeps; `auto` keeps all.
    pub fn checkpointing(&self) -> ActivationCheckpointing {
        self.config.train.activation_checkpointing.chosen().unwrap_or_default()
    }

    /// Returns the model that `init` makes, with initial weights and its optimizer.
    ///
    /// # Errors
    /// If the device fails.
    pub fn state<M: Model>(&self, init: &Init<'_, M>, dtype: FloatDType, device: &Device) -> Result<TrainState<M>> {
        let (config, model, checkpointing) = (&self.config, &self.model, self.checkpointing());
        Prepared { config, model, vocabulary: None, checkpointing, dtype, device }.state(init)
    }

    /// Makes operators compute as the configuration says: kernels in this process, products of f32 on this thread until the guard is
    /// dropped.
    pub fn install(&self) -> SettingsGuard {
        self.config.train.kernels.install();
        self.config.train.f32_products.within(Settings::current()).install()
    }

    /// Returns what another program needs to run the same steps; `benches/pytorch/README.md` describes it.
    pub fn as_json(&self) -> Value {
        // The loss reaches neither of these parts.
        let trained = TransformerConfig { pooler: false, final_logits_bias: false, ..self.model.clone() };
        json!({
            "name": self.name,
            "title": self.title,
            "model": self.model,
            "rows": self.batch_size,
            "len": self.seq_len,
            "shortest": self.shortest,
            "n_batches": self.n_batches,
            "activation_checkpointing": self.checkpointing(),
            "max_labels": self.max_labels(),
            "label_smoothing": self.config.train.label_smoothing,
            "f32_products": self.config.train.f32_products,
            "parameters": n_params(&trained).total(),
            "flops": self.flops(),
        })
    }
}

/// The recipe without a schedule, so that the first steps learn as much as later ones.
fn constant_rate(optim: OptimConfig) -> OptimConfig {
    OptimConfig { lr: 1e-4, schedule: Schedule::Constant, warmup_steps: 0, ..optim }
}

#[cfg(test)]
mod tests {
    use kiln_model::{Batch, TextBatch};
    use kiln_train::config::presets;

    use super::*;

    #[test]
    fn workloads_are_the_workloads_of_the_baseline() {
        for name in NAMES {
            let workload = Workload::named(name).expect("a listed name");
            assert_eq!(workload.name, name);
            assert_eq!(workload.model.validate(), Vec::<String>::new(), "{name}");
            assert_eq!(workload.config.validate(), Vec::<String>::new(), "{name}");
        }
        // The baseline's figures: 124.5 M parameters, 6 P + 6 * 12 * T * 768 operations per token.
        let gpt = Workload::named("gpt").expect("a listed name");
        let per_token = gpt.flops() / (16.0 * 1024.0);
        assert!((per_token / 6.0 - 124.48e6 - 12.0 * 1024.0 * 768.0).abs() < 0.1e6, "{per_token}");
        assert!(Workload::named("gtp").is_none());
    }

    #[test]
    fn batches_have_the_padding_of_the_baseline() {
        let mt = Workload { batch_size: 100, n_batches: 1, ..Workload::named("mt").expect("a listed name") };
        let batch = mt.batches(&Device::flex()).remove(0);
        let share = effective_tokens(&batch) as f64 / (100.0 * 128.0);
        assert!((0.85..0.90).contains(&share), "about an eighth is padding, not {share}");
        let Batch::Pairs(pairs) = batch else { panic!("pairs") };
        let data = pairs.source.into_data().try_to_vec::<i32>().expect("ids");
        let real = data.iter().filter(|&&id| id != 0).count();
        assert_eq!(real as u64, pairs.source_tokens);
    }

    #[test]
    fn an_encoder_has_labels_at_some_positions() {
        let mut bert = Workload::of("bert-tiny", &presets::bert_tiny(), Some(8), Some(128)).expect("a shape that fits");
        bert.n_batches = 1;
        let Batch::Text(text) = bert.batches(&Device::flex()).remove(0) else { panic!("text") };
        let labels = text.labels.into_data().try_to_vec::<i32>().expect("ids");
        let share = labels.iter().filter(|&&id| id != TextBatch::NOT_COUNTED).count() as f64 / labels.len() as f64;
        assert!((0.1..0.2).contains(&share), "{share}");
    }

    #[test]
    fn a_configuration_is_a_workload_of_its_own_shape() {
        let llama = Workload::of("llama-125m", &presets::llama_125m(), None, None).expect("a shape that fits");
        assert_eq!([llama.batch_size, llama.seq_len, llama.model.target_vocab_size], [64, 1024, 32_000]);
        assert_eq!(llama.title, "llama-125m, 124.6 M parameters, 64 x 1024");

        let pairs = Workload::of("base", &presets::base(), Some(10), None).expect("a shape that fits");
        assert_eq!(pairs.shape(), [10, 64, 64]);
        let error = Workload::of("base", &presets::base(), None, Some(600)).expect_err("too long").to_string();
        assert_eq!(error, "--len 600: base has at most 512 positions; add --set model.max_positions=600");
        assert!(Workload::of("base", &presets::base(), Some(0), None).is_err());
    }

    #[test]
    fn keys_change_a_named_workload() {
        let mut gpt = Workload::named("gpt").expect("a listed name");
        gpt.set(&["model.n_heads=8".into()]).expect("a key");
        assert_eq!([gpt.model.n_heads, gpt.model.target_vocab_size, gpt.model.head_dim()], [8, 50_304, 96]);
        assert!(gpt.title.ends_with("; model.n_heads=8"), "{}", gpt.title);
        let error = gpt.set(&["model.n_headz=8".into()]).expect_err("no such key").to_string();
        assert!(error.contains("n_headz"), "{error}");
    }
}
