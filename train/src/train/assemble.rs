//! The steps from a [`Setup`] to a [`Trainer`]: the state to start from, the preflight, and the parts of the loop.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_data::{BatchSource, Loader, Rank};
use kiln_kernels::Settings;
use kiln_metrics::units::thousands;
use kiln_model::{TransformerConfig, is_adapter, is_learned_prompt};
use kiln_ranks::Ranks;

use super::capture::CapturedSteps;
use super::due::Saving;
use super::feed::GroupFeed;
use super::forecast::Forecast;
use super::lines::Reporting;
use super::outcome::Outcome;
use super::preflight::Preflight;
use super::profiling::Profiling;
use super::provenance::Provenance;
use super::setup::Setup;
use super::state::{Start, TrainState};
use super::trainer::Trainer;
use crate::checkpoint::{Checkpoints, NamedTensor, Resume, lasting_fields, run_of};
use crate::config::task::traits_of;
use crate::config::{Config, LostReplicas, Precision};
use crate::dataset::Vocabulary;
use crate::device::{fp8_layers, peak_flops_per_sec, training_dtype};
use crate::eval::{Hiding, Init, Masking, Model};
use crate::optim::ParamEntry;

impl Trainer {
    /// Prepares a new run of the configured Transformer, or continues one, see [`Self::with_model`].
    ///
    /// # Errors
    /// As [`Self::with_model`].
    pub fn new(setup: Setup, resume: Option<Resume>) -> Result<Self> {
        Self::with_model(setup, resume, &Init::transformer())
    }
}

impl<M: Model> Trainer<M> {
    /// Prepares a new run, or continues one. A run must be resumed with the configuration, data and vocabulary it was
    /// started with, see [`find_resume`](crate::checkpoint::find_resume).
    ///
    /// The model is made again if an attempt to fit the largest batch into memory fails.
    ///
    /// # Errors
    /// If the run folder cannot be written, the largest batch does not fit into memory, or the device fails.
    pub fn with_model(setup: Setup, resume: Option<Resume>, init: &Init<'_, M>) -> Result<Self> {
        let Setup { mut config, run_dir, device, vocabulary, weights, train, validation, mut logging, ranks, .. } =
            setup;
        let dtype = dtype_of::<M>(&config, &device)?;
        let operators = Settings { reference_operators: setup.reference_operators, ..Settings::default() };
        let operators = config.train.f32_products.within(operators);
        let _installed = operators.install();

        let checkpoints = opened(&run_dir, &config, resume.as_ref(), &ranks)?;
        let resume = resume.map(|resume| match config.train.sync_every {
            ..=1 => resume,
            _ => Resume { snapshot: resume.snapshot.as_replica(ranks.rank()), ..resume },
        });
        let has_weights = weights.is_some() && resume.is_none();
        let saved_step = resume.as_ref().map(|resume| resume.snapshot.state.step);

        // The state to start from.
        let (masking, hiding) = (masking::<M>(&config, &vocabulary)?, hiding::<M>(&config, &vocabulary)?);
        let (fresh, groups) = (config.clone(), (setup.optimizers)(&config, dtype));
        let begin = |checkpointing| -> Result<TrainState<M>> {
            let init = |shape: &TransformerConfig| init.make(shape, fresh.seed, &device);
            let (shape, start) = (&fresh.model, Start { config: &fresh, groups: &groups, dtype });
            let state = match (&resume, &weights) {
                (None, None) => TrainState::begin(start, shape, init(shape))?,
                (None, Some(weights)) => TrainState::begin_from(start, shape, init(shape), weights)?,
                (Some(resume), _) => TrainState::restore(start, &resume.snapshot, init(&resume.snapshot.model))
                    .with_context(|| format!("resuming from {}", resume.path.display()))?,
            };
            let reference = weights.as_deref().filter(|_| fresh.compares_with_start());
            let mut state = state.compared_with(reference)?.with_checkpointing(checkpointing)?;
            (state.masking, state.hiding) = (masking.clone(), hiding.clone());
            // The data of a run keeps its order: one that did not depend on the size of a step never will.
            let is_grouped = resume.as_ref().is_none_or(|resume| resume.snapshot.state.group_size.is_some());
            state.group_size = group_size(&fresh, &ranks).filter(|_| is_grouped);
            let replicas = resume.as_ref().and_then(|resume| resume.snapshot.replicas.as_ref());
            state.join(&ranks, &fresh, replicas)
        };
        let mut state = if saved_step.is_some_and(|step| step >= config.train.steps) {
            begin(setup.checkpointing)?
        } else {
            let (valid, auto_micro_batch) = (validation.source.as_ref(), setup.auto_micro_batch);
            let checkpointing = setup.checkpointing;
            let preflight =
                Preflight { device: &device, train: &train, valid, checkpointing, auto_micro_batch, ranks: &ranks };
            preflight.run(&mut config.train, begin, &mut logging)?
        };
        name_run(&mut state, &config, (&*train, &vocabulary), (resume, weights)); // the state has copies
        if let (_, Some(note)) = fp8_layers(&config.train, &state.shape, &device) {
            logging.note(&note)?;
        }
        if let Some(note) = frozen_note(&state) {
            logging.note(&note)?;
        }

        // The parts of the loop.
        let provenance = provenance(&config, &run_dir, (&*train, validation.source.as_deref(), &vocabulary), &ranks)?;
        let group_size = state.group_size.map_or(1, |size| size as usize);
        let rank = Rank { rank: ranks.rank(), world_size: ranks.size(), group_size };
        let loader = Loader::for_rank(train.clone(), &config.loader, config.seed, state.position, rank)?;
        let forecast = Forecast::new(&config, &train, ranks.size());
        let peak = peak_flops_per_sec(&device, dtype).map(|peak| peak * ranks.size() as f64);
        Ok(Self {
            operators,
            feed: GroupFeed::new(loader, state.position, &config.train, rank, device.clone())?,
            gradients: CapturedSteps::new(config.train.capture, &device),
            reporting: Reporting::new(logging, &config, &run_dir, train, rank, peak, &device),
            profiling: Profiling::new(setup.profiler, &config, &run_dir, state.step),
            saving: Saving::new(checkpoints, config.train.keep_last, provenance, saved_step),
            outcome: Outcome::before_training(state.step, state.train_secs, state.best.clone()),
            signals: setup.signals,
            forecast,
            has_weights,
            end_is_deferred: false,
            held: None,
            config,
            state,
            vocabulary,
            validation,
        })
    }
}

/// Returns the compute dtype of a run that trains `M`.
fn dtype_of<M: Model>(config: &Config, device: &Device) -> Result<FloatDType> {
    ensure!(
        config.train.precision != Precision::Fp8 || M::HAS_FP8,
        "train.precision = \"fp8\": this model does not say which of its layers can (kiln::Model::with_fp8_layers); use \"bf16\""
    );
    Ok(training_dtype(&config.train, device)?)
}

/// Returns where the checkpoints come from. Rank 0 alone writes them, unless another one may have to.
fn provenance(
    config: &Config,
    run_dir: &Path,
    (train, validation, vocabulary): (&dyn BatchSource, Option<&dyn BatchSource>, &Vocabulary),
    ranks: &Ranks,
) -> Result<Provenance> {
    let own = match config.train.lost_replicas {
        LostReplicas::GoOn if !ranks.is_first() => Some(tempfile::tempdir().context("making a temporary folder")?),
        _ => None,
    };
    let dir = own.as_ref().map(|dir| dir.path()).or_else(|| ranks.is_first().then_some(run_dir));
    Provenance::new(config, train, validation, vocabulary, dir)
}

/// Returns how tokens are hidden that are only read.
///
/// # Errors
/// If the model predicts hidden tokens, and therefore reads none alone.
fn hiding<M: Model>(config: &Config, vocabulary: &Vocabulary) -> Result<Option<Hiding>> {
    let share = config.train.hidden_share;
    ensure!(
        share == 0.0 || !M::HIDES_TOKENS || !traits_of(config.task).hides_tokens,
        "train.hidden_share = {share} hides tokens that are only read, and task = \"mlm\" learns those that it hides; set \
         train.hidden_share=0, or train.masked_share={share}"
    );
    Hiding::of(config, vocabulary)
}

/// Returns how tokens are masked, if the task and the model want it.
fn masking<M: Model>(config: &Config, vocabulary: &Vocabulary) -> Result<Option<Masking>> {
    if M::HIDES_TOKENS { Masking::of(config, vocabulary) } else { Ok(None) }
}

/// Says how many parameters are not trained, if there are any.
fn frozen_note<M: Model>(state: &TrainState<M>) -> Option<String> {
    let table = state.optimizer.table();
    let n_frozen: usize = table.frozen().map(ParamEntry::len).sum();
    let n_trained = table.n_params();
    (n_frozen > 0).then(|| {
        let has = |is: fn(&str) -> bool| table.entries().iter().any(|entry| is(&entry.path));
        let why = match (has(is_adapter), has(is_learned_prompt)) {
            (true, _) => "model.lora",
            (_, true) => "model.prompt_tokens",
            _ => "train.freeze",
        };
        format!(
            "{} of {} parameters are trained; {} tensors are frozen ({why})",
            thousands(n_trained as f64),
            thousands((n_trained + n_frozen) as f64),
            table.frozen().count()
        )
    })
}

/// Opens the checkpoints of a run, which begins or goes on with `resume`.
fn opened(run_dir: &Path, config: &Config, resume: Option<&Resume>, ranks: &Ranks) -> Result<Checkpoints> {
    let checkpoints = Checkpoints::of_run(run_dir).keeping_start(config.compares_with_start());
    if ranks.is_first() {
        checkpoints.clean()?;
        match resume {
            Some(resume) => checkpoints.point_to(&resume.path, &resume.snapshot)?,
            None => checkpoints.forget_run()?,
        }
        return Ok(checkpoints.held()?);
    }
    Ok(checkpoints)
}

/// Names a run that begins, by what its weights depend on. A run that goes on keeps its name.
fn name_run<M>(
    state: &mut TrainState<M>,
    config: &Config,
    (train, vocabulary): (&dyn BatchSource, &Vocabulary),
    (resume, weights): (Option<Resume>, Option<Vec<NamedTensor>>),
) {
    if resume.is_some() {
        return;
    }
    let mut hasher = blake3::Hasher::new();
    for tensor in weights.iter().flatten() {
        hasher.update(tensor.name.as_bytes()).update(bytemuck::cast_slice(&tensor.values));
    }
    let weights = hasher.finalize();
    let settings = serde_json::to_vec(&lasting_fields(config)).expect("plain values");
    let (data, tokenizer) = (train.fingerprint(), vocabulary.fingerprint());
    state.run = Some(run_of(
        [data.as_bytes(), tokenizer.as_bytes(), settings.as_slice(), weights.as_bytes().as_slice()].into_iter(),
    ));
}

/// Returns the batches of an optimizer step over all ranks, if there are several: the data is then ordered by them.
fn group_size(config: &Config, ranks: &Ranks) -> Option<u64> {
    if config.train.lost_replicas == LostReplicas::GoOn {
        return None; // the order of the data must not depend on the ranks that are left
    }
    let size = (config.train.grad_accum_steps.max(1) * ranks.size()) as u64;
    (size > 1).then_some(size)
}
