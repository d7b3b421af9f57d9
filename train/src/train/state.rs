//! The state that training changes: weights, the optimizer's state and counters; and how it begins, or goes on from a [`Snapshot`].

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use kiln_data::{Position, Shape};
use kiln_kernels::optim::{Counters, LossScaling};
use kiln_model::{ActivationCheckpointing, Transformer, TransformerConfig};
use kiln_ranks::Ranks;

use super::exchange::{Exchange, LocalSteps};
use crate::checkpoint::{
    Best, CheckpointError, LossScale, NamedTensor, Patience, Replicas, Snapshot, flat_states, flat_tensor, load_model,
};
use crate::config::{Config, LossScaleConfig, LostReplicas, NonFinite};
use crate::device::fp8_layers;
use crate::eval::{Hiding, Init, Masking, Model};
use crate::metrics::SourceMetrics;
use crate::optim::{Ema, FlatOptimizer, Frozen, Groups, LearningRate, ParamTable, Setup, Slices};

/// The state of a run. Together with the configuration and the data it determines every later weight.
#[derive(Debug)]
pub struct TrainState<M = Transformer> {
    /// Weights in the compute dtype, tracked by autodiff.
    pub model: M,
    /// The configured shape of the model, for the checkpoints.
    pub shape: TransformerConfig,
    /// Master weights and the state of their optimizers.
    pub optimizer: FlatOptimizer,
    /// Averaged weights, if the run keeps them.
    pub ema: Option<Ema>,
    /// The parameters that are not trained.
    pub frozen: Frozen,
    /// Compute dtype.
    pub dtype: FloatDType,
    /// The model's device, without autodiff.
    pub device: Device,
    /// Seed of the dropout and masking streams.
    pub seed: u64,
    /// mlm: how tokens are masked. The constructors leave it empty, because only the tokenizer knows the mask token.
    pub masking: Option<Masking>,
    /// How tokens that are only read are hidden. The constructors leave it empty, too.
    pub hiding: Option<Hiding>,
    /// Label smoothing of the training loss.
    pub label_smoothing: f64,
    /// Whether the data is a mixture, whose sources have losses of their own.
    pub is_mixed: bool,
    /// Identifies the run in its checkpoints. The constructors leave it empty for a run that begins.
    pub run: Option<String>,
    /// Optimizer steps done, including steps without an update.
    pub step: u64,
    /// Micro-batches done.
    pub micro_steps: u64,
    /// Position in the data after the last step.
    pub position: Position,
    /// Non-padding source tokens trained on.
    pub source_tokens: u64,
    /// Non-padding target tokens, or tokens of text, trained on.
    pub target_tokens: u64,
    /// A mixture: what was trained on of each source.
    pub sources: SourceMetrics,
    /// Seconds spent training.
    pub train_secs: f64,
    /// Steps with a loss or gradient norm that was not finite, among the steps whose metrics have been read.
    pub non_finite_steps: u64,
    /// The best validation so far.
    pub best: Option<Best>,
    /// How long the run has waited for a better validation, if it may end early.
    pub patience: Option<Patience>,
    /// The processes that train this model together.
    pub ranks: Ranks,
    /// What they exchange.
    pub(super) exchange: Exchange,
    /// Batches of an optimizer step over all ranks, if the data is ordered by them.
    pub group_size: Option<u64>,
}

/// What decides how a state begins, apart from its weights.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Which optimizer updates which parameters.
    pub groups: &'a Groups,
    /// The compute dtype.
    pub dtype: FloatDType,
}

impl TrainState {
    /// Starts from initial weights. `model` has its vocabulary sizes filled in.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn new(config: &Config, model: &TransformerConfig, dtype: FloatDType, device: &Device) -> Result<Self> {
        let start = Start { config, groups: &Groups::of(config, dtype), dtype };
        Self::begin(start, model, Init::transformer().make(model, config.seed, device))
    }
}

impl<M: Model> TrainState<M> {
    /// Starts from the weights of `module`, which are in f32 and tracked by autodiff.
    ///
    /// # Errors
    /// If a pattern of `train.freeze` matches nothing, or nothing is left to train.
    pub fn begin(start: Start<'_>, shape: &TransformerConfig, module: M) -> Result<Self> {
        let Start { config, dtype, .. } = start;
        let table = ParamTable::trained(&module, |paths| config.frozen(paths))?;
        let frozen = Frozen::of(&module, &table);
        let optimizer = FlatOptimizer::with_table(&module, table, optimizer_setup(start, shape, 0, None), dtype);
        Ok(Self::at_step_0(config, shape, module, (optimizer, frozen), dtype))
    }

    /// Starts from `weights` instead of the weights of `module`: imported, averaged, or of another run.
    ///
    /// # Errors
    /// If the weights are not the parameters of the module; and as [`Self::begin`].
    pub fn begin_from(start: Start<'_>, shape: &TransformerConfig, module: M, weights: &[NamedTensor]) -> Result<Self> {
        let Start { config, dtype, .. } = start;
        let setup = optimizer_setup(start, shape, 0, None);
        let table = setup.groups.lay_out(ParamTable::trained(&module, |paths| config.frozen(paths))?);
        let master = flat_tensor(&table, weights, &device_of(&module))?;
        let frozen = chosen(weights, &table)?;
        let optimizer = FlatOptimizer::started(table, master, setup, dtype);
        Ok(Self::at_step_0(config, shape, module, (optimizer, frozen), dtype))
    }

    /// Continues from `snapshot`; `module` is a model of its shape.
    ///
    /// # Errors
    /// If the snapshot does not hold the parameters of the module, or other ones were frozen.
    pub fn restore(start: Start<'_>, snapshot: &Snapshot, module: M) -> Result<Self> {
        let Start { config, dtype, .. } = start;
        let table = ParamTable::trained(&module, |paths| config.frozen(paths))?;
        ensure!(
            table.frozen_paths() == snapshot.state.frozen,
            "train.freeze chooses {} parameters, but this run has frozen {}: a run keeps what it freezes; start a new one from it \
             with kiln train --from",
            table.frozen().count(),
            snapshot.state.frozen.len()
        );
        let saved = snapshot.state.clone();
        let updates = saved.step.saturating_sub(saved.skipped_steps);
        let setup = optimizer_setup(start, &snapshot.model, updates, saved.loss_scale);
        let (table, device) = (setup.groups.lay_out(table), device_of(&module));
        let master = flat_tensor(&table, &snapshot.weights, &device)?;
        let states = flat_states(&setup.groups, &table, &snapshot.optimizer, &device)?;
        let average = snapshot.ema.as_ref().map(|tensors| flat_tensor(&table, tensors, &device)).transpose()?;

        let optimizer = FlatOptimizer::restored(table, (master, states), setup, dtype);
        let frozen = chosen(&snapshot.weights, optimizer.table())?;
        let begun = Self::at_step_0(config, &snapshot.model, module, (optimizer, frozen), dtype);
        // A run that has kept no average so far starts one.
        let decay = config.train.ema_decay;
        let ema = begun.ema.map(|ema| average.map_or(ema, |average| Ema::new(decay, &average)));
        Ok(Self {
            ema,
            run: saved.run,
            step: saved.step,
            micro_steps: saved.micro_steps,
            position: saved.position,
            source_tokens: saved.source_tokens,
            target_tokens: saved.target_tokens,
            sources: saved.sources,
            train_secs: saved.train_secs,
            non_finite_steps: saved.non_finite_steps,
            best: saved.best,
            patience: saved.patience,
            group_size: saved.group_size,
            ..begun
        })
    }

    /// Returns the floating-point operations of forward and backward on batches of these shapes, if the model knows them.
    #[doc(hidden)]
    pub fn flops(&self, shapes: impl Iterator<Item = Shape>) -> Option<f64> {
        let masked_share = self.masking.as_ref().map(Masking::share);
        shapes.map(|shape| self.model.train_flops(shape, masked_share)).sum()
    }

    /// Gives `module` the weights of `optimizer`.
    fn at_step_0(
        config: &Config,
        shape: &TransformerConfig,
        module: M,
        (optimizer, frozen): (FlatOptimizer, Frozen),
        dtype: FloatDType,
    ) -> Self {
        let (fp8, _) = fp8_layers(&config.train, shape, &device_of(&module));
        let module = frozen.put(module, optimizer.table(), dtype).with_fp8_layers(fp8);
        let decay = config.train.ema_decay;
        let ema = (decay > 0.0).then(|| Ema::new(decay, &optimizer.state().master));

        Self {
            device: device_of(&module),
            model: optimizer.attach(module),
            shape: shape.clone(),
            ema,
            optimizer,
            frozen,
            dtype,
            seed: config.seed,
            masking: None,
            hiding: None,
            label_smoothing: config.train.label_smoothing,
            is_mixed: config.data.is_mixed(),

            run: None,
            step: 0,
            micro_steps: 0,
            position: Position::default(),
            source_tokens: 0,
            target_tokens: 0,
            sources: SourceMetrics::default(),
            train_secs: 0.0,
            non_finite_steps: 0,
            best: None,
            patience: None,
            ranks: Ranks::alone(),
            exchange: Exchange::Nothing,
            group_size: None,
        }
    }

    /// Compares answers with a model of the same shape that has these weights, in the compute dtype; with nothing if there are none.
    ///
    /// # Errors
    /// If the weights belong to another model, or the model has no such comparison.
    pub fn compared_with(mut self, weights: Option<&[NamedTensor]>) -> Result<Self> {
        let Some(weights) = weights else { return Ok(self) };
        let reference = load_model(&self.shape, weights, self.dtype, &self.device)?;
        self.model = self.model.with_reference(reference).context("this model cannot be compared with another one")?;
        Ok(self)
    }

    /// Chooses the activations that the model keeps for backward.
    ///
    /// # Errors
    /// If the model has no choice but to keep all.
    pub fn with_checkpointing(mut self, checkpointing: ActivationCheckpointing) -> Result<Self> {
        ensure!(
            checkpointing == ActivationCheckpointing::Off || M::HAS_CHECKPOINTING,
            "train.activation_checkpointing: this model keeps all activations; \"off\" is the only choice"
        );
        self.model = self.model.with_checkpointing(checkpointing);
        Ok(self)
    }

    /// Joins the other ranks, which have the same weights, to exchange what `config` says. With `train.shard_optimizer`, each keeps
    /// only its slice of master weights and optimizer state, if there are enough for all; with `train.sync_every` above 1, each keeps a state of its own,
    /// and also a single rank takes outer steps.
    ///
    /// # Errors
    /// If the outer momentum of `replicas`, which the run is continued with, does not fit the weights.
    pub fn join(mut self, ranks: &Ranks, config: &Config, replicas: Option<&Replicas>) -> Result<Self> {
        if !ranks.are_many() && config.train.sync_every <= 1 {
            return Ok(self);
        }
        let (table, train) = (self.optimizer.table(), &config.train);
        // A rank that may be lost is not the only one that has something.
        let slices = match train.lost_replicas {
            LostReplicas::End => Slices::new,
            LostReplicas::GoOn => Slices::whole,
        };
        let slices = slices(table, ranks.rank(), ranks.size(), &self.device);

        let exchange = if train.sync_every > 1 {
            let momentum = replicas.map(|replicas| flat_tensor(table, &replicas.momentum, &self.device)).transpose()?;
            // Nothing travels from a rank that is alone.
            let dtype = if ranks.are_many() { self.dtype } else { FloatDType::F32 };
            Exchange::Weights(Box::new(LocalSteps::new(config, dtype, &self.optimizer, momentum.as_ref(), slices)))
        } else {
            if train.shard_optimizer && !slices.are_whole() {
                self.optimizer = self.optimizer.sharded(&slices);
                self.ema = self.ema.map(|ema| ema.sharded(&slices));
                self.model = self.optimizer.attach(self.model);
            }
            Exchange::Gradients(Box::new(slices))
        };
        Ok(Self { ranks: ranks.clone(), exchange, ..self })
    }

    /// Returns the model without autodiff: with the averaged weights if `averaged` and the run keeps them, else with the trained ones.
    /// All ranks must call it.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn for_validation(&self, averaged: bool) -> Result<M> {
        let Some(ema) = self.ema.as_ref().filter(|_| averaged) else { return Ok(self.model.valid()) };
        let own = ema.weights().clone().cast(self.dtype);
        let weights = match &self.exchange {
            Exchange::Gradients(slices) if self.optimizer.is_sharded() => {
                self.ranks.concatenate(own, slices.bounds())?
            }
            _ => own,
        };
        Ok(self.optimizer.table().attach(self.model.clone(), &weights).valid())
    }
}

/// Takes the frozen parameters of a saved model.
fn chosen(weights: &[NamedTensor], table: &ParamTable) -> Result<Frozen, CheckpointError> {
    Frozen::chosen(weights, table)
        .map_err(|path| CheckpointError::Mismatch(format!("{path} is missing or has another shape")))
}

/// The device of a module's parameters, without autodiff.
fn device_of(module: &impl Module) -> Device {
    module.devices().into_iter().next().expect("a model has parameters").inner()
}

/// Sets up an optimizer that has made `updates`. `loss_scale` is the saved one of a run that continues.
fn optimizer_setup(
    Start { config, groups, dtype }: Start<'_>,
    shape: &TransformerConfig,
    updates: u64,
    loss_scale: Option<LossScale>,
) -> Setup {
    let LossScaleConfig { init, growth_factor, backoff_factor, growth_interval, floor } = config.train.loss_scale;
    // Backward differentiates the sum of the losses, but loss scales are chosen for their mean. The difference is
    // corrected with a power of two near the batch size, because multiplying by it is exact.
    let unit = config.loader.batch_tokens.next_power_of_two() as f32;
    let scaling = LossScaling { unit, growth_factor, growth_interval, backoff_factor, floor };
    let scaling = (dtype == FloatDType::F16).then_some(scaling);
    let LossScale { scale, good_steps } = match scaling {
        Some(_) => loss_scale.unwrap_or(LossScale { scale: init, good_steps: 0 }),
        None => LossScale { scale: 1.0, good_steps: 0 },
    };
    Setup {
        groups: groups.clone(),
        max_grad_norm: config.optim.max_grad_norm,
        learning_rate: LearningRate::new(&config.optim, config.train.steps, shape.d_model),
        scaling,
        stops: config.train.non_finite == NonFinite::Stop,
        counters: Counters { updates, loss_scale: scale, good_steps },
    }
}
