//! What training changes: weights, moments, counters; and its way to and from a device-free [`Snapshot`].

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType, TensorData, Transaction};
use kiln_data::Position;
use kiln_kernels::optim::{AdamWState, Counters, LossScaling, Progress};
use kiln_model::{Transformer, TransformerConfig};

use super::provenance::Provenance;
use crate::checkpoint::{
    Best, FORMAT, LossScale, NamedTensor, Snapshot, StoredFile, TrainerState, flat_tensor, named_tensors,
};
use crate::config::{Config, LossScaleConfig, NonFinite};
use crate::eval::Masking;
use crate::optim::{AdamW, AdamWSetup, LearningRate, ParamTable};

/// A run in the making. With its configuration and its data it decides every later weight.
#[derive(Debug)]
pub struct TrainState {
    /// Weights in the compute dtype, tracked by autodiff.
    pub model: Transformer,
    /// f32 master weights and moments.
    pub optimizer: AdamW,
    /// Compute dtype.
    pub dtype: FloatDType,
    /// Where the model lives, without autodiff.
    pub device: Device,
    /// Seed of the dropout and masking streams.
    pub seed: u64,
    /// mlm: how tokens are masked; none to begin with, for only the tokenizer knows the mask.
    pub masking: Option<Masking>,
    /// Label smoothing of the training loss.
    pub label_smoothing: f64,
    /// Optimizer steps done, those that made no update included.
    pub step: u64,
    /// Micro-batches done.
    pub micro_steps: u64,
    /// Where the data continues after the last step.
    pub position: Position,
    /// Source tokens trained on, without padding.
    pub source_tokens: u64,
    /// Target tokens, or tokens of text, trained on, without padding.
    pub target_tokens: u64,
    /// Seconds spent training.
    pub train_secs: f64,
    /// Steps whose loss or gradient norm was not finite, as far as they have been read.
    pub non_finite_steps: u64,
    /// The best validation so far.
    pub best: Option<Best>,
}

/// A state on its way to disk: read from the device, not yet named.
pub struct HostCopy {
    table: ParamTable,
    /// Master weights and both moments, flat.
    flat: Vec<TensorData>,
    state: TrainerState,
    model: TransformerConfig,
    files: Vec<StoredFile>,
}

impl HostCopy {
    /// Names the parts. It copies everything once more: call it where nobody waits.
    pub fn into_snapshot(self) -> Snapshot {
        let named = |part: usize| named_tensors(&self.table, &self.flat[part]);
        let (weights, first_moments, second_moments) = (named(0), named(1), named(2));
        let Self { state, model, files, .. } = self;
        Snapshot { weights, first_moments, second_moments, state, model, files }
    }
}

impl TrainState {
    /// A fresh start. `model` has its vocabulary sizes filled in.
    pub fn new(config: &Config, model: &TransformerConfig, dtype: FloatDType, device: &Device) -> Self {
        let drawn = draw(config, model, device);
        let optimizer = AdamW::new(&drawn, optimizer_setup(config, model, dtype, 0, None), dtype);
        Self::at_step_0(config, drawn, optimizer, dtype, device)
    }

    /// `model` with the weights of `optimizer`.
    fn at_step_0(config: &Config, model: Transformer, optimizer: AdamW, dtype: FloatDType, device: &Device) -> Self {
        Self {
            model: optimizer.attach(model),
            optimizer,
            dtype,
            device: device.clone().inner(),
            seed: config.seed,
            masking: None,
            label_smoothing: config.train.label_smoothing,
            step: 0,
            micro_steps: 0,
            position: Position::default(),
            source_tokens: 0,
            target_tokens: 0,
            train_secs: 0.0,
            non_finite_steps: 0,
            best: None,
        }
    }

    /// A fresh start from `weights` instead of drawn ones: imported, averaged, or of another run.
    pub fn from_weights(
        config: &Config,
        model: &TransformerConfig,
        weights: &[NamedTensor],
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self> {
        let drawn = draw(config, model, device);
        let table = ParamTable::of(&drawn);
        let master = flat_tensor(&table, weights, &device.clone().inner())?;
        let moments = || master.zeros_like();
        let setup = optimizer_setup(config, model, dtype, 0, None);
        let optimizer = AdamW::restored(table, [master.clone(), moments(), moments()], setup, dtype);
        Ok(Self::at_step_0(config, drawn, optimizer, dtype, device))
    }

    /// Continues from `snapshot`.
    pub fn restore(config: &Config, snapshot: &Snapshot, dtype: FloatDType, device: &Device) -> Result<Self> {
        let drawn = draw(config, &snapshot.model, device);
        let table = ParamTable::of(&drawn);
        let tensors = [&snapshot.weights, &snapshot.first_moments, &snapshot.second_moments];
        let [master, m, v] = tensors.map(|tensors| flat_tensor(&table, tensors, &device.clone().inner()));
        let saved = snapshot.state.clone();
        let updates = saved.step.saturating_sub(saved.skipped_steps);
        let setup = optimizer_setup(config, &snapshot.model, dtype, updates, saved.loss_scale);
        let optimizer = AdamW::restored(table, [master?, m?, v?], setup, dtype);
        Ok(Self {
            step: saved.step,
            micro_steps: saved.micro_steps,
            position: saved.position,
            source_tokens: saved.source_tokens,
            target_tokens: saved.target_tokens,
            train_secs: saved.train_secs,
            non_finite_steps: saved.non_finite_steps,
            best: saved.best,
            ..Self::at_step_0(config, drawn, optimizer, dtype, device)
        })
    }

    /// Whether the model drops anything while it trains.
    pub(super) fn has_dropout(&self) -> bool {
        let config = self.model.config();
        config.dropout > 0.0 || config.attention_dropout > 0.0 || config.activation_dropout.is_some_and(|p| p > 0.0)
    }

    /// Copies everything to the host, in one transaction, and names it.
    pub fn snapshot(&self, provenance: &Provenance) -> Result<Snapshot> {
        Ok(self.host_copy(provenance)?.into_snapshot())
    }

    /// Copies everything to the host, in one transaction.
    pub fn host_copy(&self, provenance: &Provenance) -> Result<HostCopy> {
        let AdamWState { master, m, v, .. } = self.optimizer.state();
        let read = [master, m, v, self.optimizer.progress().values()]
            .into_iter()
            .fold(Transaction::default(), |transaction, tensor| transaction.register(tensor.clone()));
        // Host sync: master weights, moments and counters.
        let mut flat = read.try_execute().context("reading weights and moments from the device")?;
        let counters = Progress::counters(&flat.pop().expect("four tensors were asked for"));
        Ok(HostCopy {
            table: self.optimizer.table().clone(),
            flat,
            state: TrainerState {
                format: FORMAT,
                step: self.step,
                skipped_steps: self.step - counters.updates,
                loss_scale: self
                    .optimizer
                    .is_scaled()
                    .then_some(LossScale { scale: counters.loss_scale, good_steps: counters.good_steps }),
                micro_steps: self.micro_steps,
                position: self.position,
                data_fingerprint: provenance.data_fingerprint.clone(),
                tokenizer_fingerprint: provenance.tokenizer_fingerprint.clone(),
                source_tokens: self.source_tokens,
                target_tokens: self.target_tokens,
                train_secs: self.train_secs,
                non_finite_steps: self.non_finite_steps,
                best: self.best,
            },
            model: self.model.config().clone(),
            files: provenance.files.clone(),
        })
    }
}

/// Drawn in f32: the master weights of a fresh run are the drawn ones, whatever the compute dtype.
fn draw(config: &Config, model: &TransformerConfig, device: &Device) -> Transformer {
    model.init(config.seed, FloatDType::F32, &device.clone().inner().autodiff())
}

/// An optimizer that has made `updates`; `loss_scale` is a saved one.
fn optimizer_setup<'a>(
    config: &'a Config,
    model: &TransformerConfig,
    dtype: FloatDType,
    updates: u64,
    loss_scale: Option<LossScale>,
) -> AdamWSetup<'a> {
    let LossScaleConfig { init, growth_factor, backoff_factor, growth_interval, floor } = config.train.loss_scale;
    // The loss that is differentiated is a sum over the labels of a micro-batch, and a scale is made for means. A power of two costs
    // no digit.
    let unit = config.loader.batch_tokens.next_power_of_two() as f32;
    let scaling = LossScaling { unit, growth_factor, growth_interval, backoff_factor, floor };
    let scaling = (dtype == FloatDType::F16).then_some(scaling);
    let LossScale { scale, good_steps } = match scaling {
        Some(_) => loss_scale.unwrap_or(LossScale { scale: init, good_steps: 0 }),
        None => LossScale { scale: 1.0, good_steps: 0 },
    };
    AdamWSetup {
        config: &config.optim,
        learning_rate: LearningRate::new(&config.optim, config.train.steps, model.d_model),
        scaling,
        stops: config.train.non_finite == NonFinite::Stop,
        counters: Counters { updates, loss_scale: scale, good_steps },
    }
}
