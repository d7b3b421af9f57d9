//! From a prepared run to its training.

use std::time::Duration;

use anyhow::Result;
use burn::tensor::Device;
use kiln_kernels::{is_cuda, product_kernels};
use kiln_metrics::logging::{Extent, Logging};
use kiln_model::{Transformer, TransformerConfig};

use super::Run;
use super::folder::write_config;
use super::leftovers::Leftovers;
use super::lock::RunLock;
use super::plan::Plan;
use super::prepare::Prepared;
use crate::config::{Config, F32Products, Kernels, Precision};
use crate::dataset::RunData;
use crate::device::{device_name, is_cpu, plain_hint, take_kernel_notes};
use crate::eval::{Init, Model};
use crate::metrics::{SCHEMA, StartMetrics};
use crate::optim::Groups;
use crate::train::{Held, Outcome, Setup, Signals, Trainer, Validation};

/// A run that is ready to train. It holds the lock of its folder.
pub struct Session<M: Model = Transformer> {
    trainer: Trainer<M>,
    leftovers: Leftovers,
    _lock: Option<RunLock>,
}

impl Prepared {
    /// Opens the sinks and runs the preflight. `signals` stop or save the run while it trains.
    ///
    /// # Errors
    /// If a sink cannot be written, if the largest batch does not fit into memory, or if the device fails.
    pub fn start(self, signals: Signals) -> Result<Session> {
        self.start_as(signals, &Init::transformer())
    }

    /// Starts the run with another model than Kiln's own, see [`Run::train_model`](super::Run::train_model).
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_model<M: Model>(
        self,
        signals: Signals,
        init: impl Fn(&TransformerConfig, &Device) -> M,
    ) -> Result<Session<M>> {
        self.start_as(signals, &Init::own(init))
    }

    /// Starts the run with the model that `init` makes.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[doc(hidden)]
    pub fn start_as<M: Model>(self, signals: Signals, init: &Init<'_, M>) -> Result<Session<M>> {
        let Self { lock, leftovers, mut run, plan, config, device, ranks, data, weights, resume, began } = self;
        let model_lines = model_lines(&plan, &run, init.is_own())?;
        config.check_figure(M::FIGURES)?;
        let computes_on_cpu = is_cpu(&device);
        let start_step = resume.as_ref().map_or(0, |resume| resume.snapshot.state.step);
        let extent = Extent { start_step, total_steps: config.train.steps, max_time: max_time(&config) };
        let mut logging = if ranks.is_first() { Logging::for_run(&run.dir, extent)? } else { Logging::silent() };
        if run.options.console && ranks.is_first() {
            logging.add_console(extent, signals.stop.clone());
        }
        if ranks.is_first() {
            logging.add_trackers(&run.dir, &serde_json::to_value(&config).unwrap_or_default())?;
        }
        logging.start(&StartMetrics {
            schema: SCHEMA,
            kiln: env!("CARGO_PKG_VERSION").into(),
            step: start_step,
            steps: config.train.steps,
            device: device_name(&device),
            devices: ranks.size() as u64,
            lengths: if ranks.is_first() { data.train.lengths() } else { Vec::new() },
        })?;
        let start = run.options.from.as_ref().map(|from| {
            let (path, step) = (from.path.display(), from.step);
            format!("starting from the weights, the vocabulary and the configuration of {path} (step {step})")
        });
        let notes = start.iter().chain(&run.options.notes);
        notes.chain(&plan.data_lines()).chain(&model_lines).try_for_each(|note| logging.note(note))?;
        take_kernel_notes().iter().try_for_each(|note| logging.note(note))?;
        if config.train.kernels != Kernels::Auto && is_cuda(&device) {
            let set = product_kernels(&device).map_or("Burn's own".into(), |set| format!("Kiln's for {set}"));
            logging.note(&format!("products and attention: kernels {set} (train.kernels)"))?;
        }
        let is_f32 = config.train.precision == Precision::F32;
        if is_f32 && is_cuda(&device) {
            let how = match config.train.f32_products {
                F32Products::F32 => "with the accuracy of f32; \"tf32\" is faster",
                F32Products::Tf32 => "rounded to TF32",
            };
            logging.note(&format!("products in f32: {how} (train.f32_products)"))?;
        }
        plain_hint(&device).map_or(Ok(()), |note| logging.note(&note))?;
        if run.options.reference_operators {
            logging.note("every operator is computed by its reference definition (--reference-operators)")?;
        }

        let given = config.clone();
        let chosen = config.train.activation_checkpointing.chosen().unwrap_or_default();
        let validation = validation_of(&data);
        let RunData { vocabulary, train, .. } = data;
        let setup = Setup {
            config,
            run_dir: run.dir.clone(),
            device,
            vocabulary,
            weights: weights.map(|weights| weights.weights),
            train,
            validation,
            logging,
            signals,
            checkpointing: if M::HAS_CHECKPOINTING { plan.checkpointing } else { chosen },
            auto_micro_batch: run.options.auto_micro_batch,
            reference_operators: run.options.reference_operators,
            ranks: ranks.clone(),
            optimizers: Groups::of,
            profiler: run.options.profiler.take(),
        };
        let mut trainer = ranks.or_abort(Trainer::with_model(setup, resume, init))?;
        if !computes_on_cpu {
            trainer.note_ready(began)?;
        }
        if trainer.config() != &given && ranks.is_first() {
            write_config(&run.dir, trainer.config())?;
        }
        Ok(Session { trainer, leftovers, _lock: lock })
    }
}

/// Says what is trained. Refuses a largest batch that does not fit; the plan knows this of Kiln's own model only.
fn model_lines(plan: &Plan, run: &Run, is_own: bool) -> Result<Vec<String>> {
    let folder = run.dir.display();
    if is_own {
        return Ok(vec![format!("training on {}; run folder {folder}", plan.device)]);
    }
    plan.check_memory(run.options.auto_micro_batch)?;
    Ok(vec![format!("training {}; run folder {folder}", plan.model_line()), plan.memory_line()])
}

impl<M: Model> Session<M> {
    /// Trains to the end, or until stopped.
    ///
    /// # Errors
    /// If data cannot be read, a file cannot be written, the device fails, or a loss is not finite.
    pub fn train(&mut self) -> Result<Outcome> {
        self.leftovers.keep();
        let ranks = self.trainer.state().ranks.clone();
        ranks.or_abort(self.trainer.run())
    }

    /// Takes this process's state after the last exchange, after a failure of a run that goes on without a device that is lost
    /// (`train.lost_replicas`).
    pub fn take_held(&mut self) -> Option<Held> {
        self.trainer.take_held()
    }

    /// Returns the trainer, with the model and the validation text.
    pub fn trainer(&self) -> &Trainer<M> {
        &self.trainer
    }

    /// Returns words of the validation text to try a model of text with: to continue, or to fill in a mask.
    pub fn prompt(&self) -> Option<&str> {
        self.trainer.validation().prompt.as_deref()
    }
}

fn max_time(config: &Config) -> Option<Duration> {
    (config.train.max_minutes > 0.0).then(|| Duration::from_secs_f64(config.train.max_minutes * 60.0))
}

/// Returns the data that a run is validated on.
fn validation_of(data: &RunData) -> Validation {
    Validation {
        source: data.valid.clone(),
        parts: data.valid_parts.clone(),
        n_bytes: data.valid_bytes,
        examples: data.valid_examples.clone(),
        prompt: data.prompt.clone(),
    }
}
