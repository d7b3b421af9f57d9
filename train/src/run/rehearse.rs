//! A run whose steps are looked at, and which leaves nothing behind.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::tensor::{Device, Distribution, Tensor};
use kiln_data::Shape;
use kiln_metrics::logging::Logging;
use kiln_metrics::units::thousands;
use kiln_model::Transformer;
use kiln_model::flops::train_flops_per_batch;
use kiln_ranks::Ranks;
use tempfile::TempDir;

use super::Run;
use super::evaluate::Scratch;
use super::plan::Plan;
use super::prepare::Survey;
use super::ranks::compare;
use super::weights::start_from;
use crate::checkpoint::initial_tensors;
use crate::config::Config;
use crate::device::is_cpu;
use crate::eval::{Init, Model};
use crate::metrics::host_sync::waiting;
use crate::optim::Groups;
use crate::train::{Setup, Signals, Trainer, Validation, time_ahead};

/// A trainer with the data, the model and the settings of a run.
pub struct Rehearsal<M: Model = Transformer> {
    /// The trainer.
    pub trainer: Trainer<M>,
    /// The numbers of the run.
    pub plan: Plan,
    /// The configuration of the run.
    pub config: Config,
    /// Takes the place of the run folder.
    _folder: TempDir,
    /// Holds the token caches.
    _scratch: Option<Scratch>,
}

impl Run {
    /// Makes the data and the trainer of the run, with initial weights: their values do not change what a step takes. Token caches
    /// that do not exist yet are made in a temporary folder.
    ///
    /// # Errors
    /// If the data cannot be used, if the largest batch does not fit into memory, if a device fails, or if the ranks differ.
    #[doc(hidden)]
    pub fn rehearsal<M: Model>(&self, ranks: &Ranks, init: &Init<'_, M>) -> Result<Rehearsal<M>> {
        self.config.train.f32_products.install_in_backend();
        let survey = ranks.first_then_others("preparing the data", || self.survey(false))?;
        compare(ranks, &survey.config, &survey.data, None)?;
        self.rehearsed(survey, ranks, init)
    }

    /// Makes the trainer of a run whose data was looked at.
    fn rehearsed<M: Model>(&self, survey: Survey, ranks: &Ranks, init: &Init<'_, M>) -> Result<Rehearsal<M>> {
        let folder = tempfile::tempdir().context("making a temporary folder; TMPDIR names another place")?;

        let config = survey.config.clone();
        // Answers are compared with a model; which one makes no difference to the time.
        let weights = config.compares_with_start().then(|| initial_tensors(&config.model, config.seed));
        let setup = Setup {
            config: survey.config,
            run_dir: folder.path().to_path_buf(),
            device: survey.device,
            vocabulary: survey.data.vocabulary,
            weights,
            train: survey.data.train,
            validation: Validation::default(),
            logging: Logging::silent(),
            signals: Signals::default(),
            checkpointing: survey.plan.checkpointing,
            auto_micro_batch: self.options.auto_micro_batch,
            reference_operators: self.options.reference_operators,
            ranks: ranks.clone(),
            optimizers: Groups::of,
            profiler: None,
        };
        let trainer = Trainer::with_model(setup, None, init)?;
        Ok(Rehearsal { trainer, plan: survey.plan, config, _folder: folder, _scratch: survey._scratch })
    }

    /// Checks what only the start of a training would find out: whether the weights of `--from` fit, and what is frozen. Returns
    /// sentences about it.
    ///
    /// # Errors
    /// As the start of the training.
    #[doc(hidden)]
    pub fn check_start(&self, survey: &Survey) -> Result<Vec<String>> {
        let Survey { config, data, .. } = survey;
        let (weights, mut notes) = match &self.options.from {
            Some(from) => {
                let vocabulary = self.options.new_vocabulary.then_some(&data.vocabulary);
                let (weights, notes) = start_from(from, config, vocabulary, None)?;
                (weights.weights, notes)
            }
            None if config.train.freeze.is_empty() => return Ok(Vec::new()),
            None => (initial_tensors(&config.model, config.seed), Vec::new()),
        };
        let paths: Vec<&str> = weights.iter().map(|tensor| tensor.name.as_str()).collect();
        let frozen = config.frozen(&paths)?;
        let size = |frozen_ones: bool| -> usize {
            let which = weights.iter().zip(&frozen).filter(|(_, frozen)| **frozen == frozen_ones);
            which.map(|(tensor, _)| tensor.values.len()).sum()
        };
        let (trained, left) = (size(false), size(true));
        if left > 0 {
            let [trained, all] = [trained, trained + left].map(|n| thousands(n as f64));
            notes.push(format!("trains {trained} of {all} parameters"));
        }
        Ok(notes)
    }

    /// Says how long the training will take on a CPU: by three of its steps, or for large ones by the speed of the machine's products.
    /// `None` if that is not known.
    ///
    /// # Errors
    /// If a step fails.
    #[doc(hidden)]
    pub fn time_ahead<M: Model>(&self, survey: Survey, init: &Init<'_, M>) -> Result<Option<String>> {
        let Some(shapes) = survey.data.train.shapes().filter(|_| is_cpu(&survey.device)) else { return Ok(None) };
        let (config, train) = (survey.config.clone(), survey.data.train.clone());
        let batches = shapes.values().sum::<usize>().max(1) as f64;
        let flops = |shape: Shape| {
            let Shape { batch_size, source_len, target_len } = shape;
            train_flops_per_batch(&config.model, [batch_size, source_len, target_len], config.masked_share()).total()
        };
        let mean =
            |of: &dyn Fn(Shape) -> f64| shapes.iter().map(|(shape, n)| of(*shape) * *n as f64).sum::<f64>() / batches;
        let (per_batch, tokens) = (mean(&flops), mean(&|shape| shape.padded_tokens() as f64));

        if per_batch * config.train.grad_accum_steps as f64 <= FLOPS_WORTH_A_STEP {
            let mut rehearsal = self.rehearsed(survey, &Ranks::alone(), init)?;
            let taken = rehearsal.trainer.rehearse(1, 2, || Ok(()))?;
            let padded: usize = taken.results.iter().flat_map(|step| &step.shapes).map(Shape::padded_tokens).sum();
            return Ok(time_ahead(&config, &train, taken.ended - taken.started, padded as u64));
        }
        let secs = per_batch / (EFFICIENCY * product_flops_per_sec(&survey.device)?);
        let per_batch = Duration::from_secs_f64(secs.min(1e9));
        Ok(time_ahead(&config, &train, per_batch, tokens as u64).map(|text| format!("roughly {text}")))
    }
}

/// A step with more floating-point operations is not taken to find out how long it takes.
const FLOPS_WORTH_A_STEP: f64 = 3e10;
/// Speed of a training step as a fraction of the speed of products alone, on a CPU.
const EFFICIENCY: f64 = 0.5;

/// Measures products of the size that a layer has.
fn product_flops_per_sec(device: &Device) -> Result<f64> {
    const SIDE: usize = 768;
    let device = device.clone().inner();
    let matrix = || Tensor::<2>::random([SIDE, SIDE], Distribution::Uniform(-1.0, 1.0), &device);
    let (a, b) = (matrix(), matrix());
    let product = || waiting(|| a.clone().matmul(b.clone()).into_data());
    drop(product());
    let (start, mut n) = (Instant::now(), 0);
    while n < 2 || start.elapsed() < Duration::from_millis(200) {
        drop(product());
        n += 1;
    }
    Ok(2.0 * (SIDE as f64).powi(3) * f64::from(n) / start.elapsed().as_secs_f64())
}
