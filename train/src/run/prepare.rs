//! Everything before the first step that needs no device: the lock, the data, the weights or checkpoint to start from.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_data::Position;
use kiln_ranks::{Link, Ranks};

use super::Run;
use super::done::Done;
use super::error::RunError;
use super::evaluate::Scratch;
use super::folder::{take, write_config};
use super::leftovers::{Before, Leftovers};
use super::lock::RunLock;
use super::plan::Plan;
use super::ranks::compare;
use super::resume::{resume_or_begin, vocabulary_of_run};
use super::weights::start_from;
use crate::checkpoint::{CheckpointError, Checkpoints, RUN_CONFIG_FILE, Resume, Weights, read_state};
use crate::config::task::TASKS;
use crate::config::{Config, LostReplicas, Task};
use crate::dataset::labelled::take_classes;
use crate::dataset::mix::ALL_SOURCES_ALIKE;
use crate::dataset::{RunData, check_rows, is_split_by_records};

/// A run that holds its lock and has its data: ready to [`start`](Self::start).
pub struct Prepared {
    /// Held by rank 0 as long as the run trains.
    pub(super) lock: Option<RunLock>,
    /// Removes what was written if the run does not begin.
    pub(super) leftovers: Leftovers,
    pub(super) run: Run,
    pub(super) plan: Plan,
    /// The run's configuration with the vocabulary sizes filled in.
    pub(super) config: Config,
    pub(super) device: Device,
    /// The processes that train together.
    pub(super) ranks: Ranks,
    pub(super) data: RunData,
    /// Weights to start from instead of initial ones.
    pub(super) weights: Option<Weights>,
    /// The checkpoint to continue from.
    pub(super) resume: Option<Resume>,
    /// When the preparation began.
    pub(super) began: Instant,
}

impl Run {
    /// Takes the lock of the run folder, makes or finds the data, reads the weights or the checkpoint to start from,
    /// and writes the configuration.
    ///
    /// # Errors
    /// If the folder is locked or cannot be written, if the data cannot be used, or if the run cannot be resumed.
    pub fn prepare(self, resume: bool) -> Result<Prepared> {
        self.prepare_with(resume, None)
    }

    /// Prepares a run on `data`, or on the data of its configuration.
    pub(super) fn prepare_with(self, resume: bool, data: Option<RunData>) -> Result<Prepared> {
        let began = Instant::now();
        self.config.train.kernels.install();
        self.config.train.f32_products.install_in_backend();
        let device = self.device()?;
        let ranks = self.ranks(&device)?;
        let data = match (data, &self.options.data) {
            (None, Some(own)) => Some(ranks.or_abort(own.make(&self.config))?),
            (data, _) => data,
        };
        ranks.or_abort(self.prepare_on(device, &ranks, resume, data, began))
    }

    /// Joins the other ranks.
    fn ranks(&self, device: &Device) -> Result<Ranks> {
        let Some(link) = self.options.link.clone() else { return Ok(Ranks::alone()) };
        let piece_bytes = self.config.train.piece_bytes();
        if self.config.train.lost_replicas == LostReplicas::End {
            return Ok(Ranks::over(link, device)?.in_pieces_of(piece_bytes));
        }
        // NCCL cannot lose a rank, so weights travel over TCP: once in train.sync_every steps.
        let survives = link.survive();
        survives.map_err(|why| RunError::Config(format!("train.lost_replicas = \"go_on\": {why}")))?;
        Ok(Ranks::over_hosts(Some(link)).in_pieces_of(piece_bytes))
    }

    /// The number of devices that the run is started with.
    fn n_devices(&self) -> usize {
        self.options.link.as_ref().map_or(1, Link::planned_size)
    }

    /// Prepares a run together with the other ranks. Rank 0 writes, and the others wait for what they read.
    fn prepare_on(
        mut self,
        device: Device,
        ranks: &Ranks,
        resume: bool,
        data: Option<RunData>,
        began: Instant,
    ) -> Result<Prepared> {
        let checkpoints = Checkpoints::of_run(&self.dir);
        let own_folder = || -> Result<(Option<RunLock>, Leftovers)> {
            if !ranks.is_first() {
                return Ok((None, Leftovers::none()));
            }
            if resume {
                refuse_weights_alone(&checkpoints)?;
            }
            let before = Before::of(&self.dir);
            let lock = take(&self.dir, resume)?;
            let leftovers = if resume { Leftovers::of_resumed(&self.dir) } else { before.guard() };
            if resume {
                // A killed run may have left a checkpoint without its name. Only the lock guarantees that no other process
                // is saving it at the moment.
                checkpoints.clean()?;
            }
            Ok((Some(lock), leftovers))
        };
        let (lock, leftovers) = ranks.first_then_others("taking the lock of the run folder", own_folder)?;

        if data.is_none() {
            self.refuse_other_rows(resume)?;
        }
        self.refuse_random_weights()?;
        let (mut config, data) = match data {
            Some(data) => completed(self.config.clone(), data, self.n_devices())?,
            None => ranks.first_then_others("preparing the data", || self.data(resume, &self.dir))?,
        };
        let weights = match &self.options.from {
            Some(from) => {
                let vocabulary = self.options.new_vocabulary.then_some(&data.vocabulary);
                let (weights, notes) = start_from(from, &config, vocabulary, ranks.is_first().then_some(&checkpoints))?;
                self.options.notes.extend(notes);
                Some(weights)
            }
            None => {
                ranks.first_then_others("reading the weights to start from", || Ok(checkpoints.starting_weights()?))?
            }
        };
        let (resume, notes) = match resume {
            true => resume_or_begin(&self, &mut config, ranks.size(), &data, weights.is_some())?,
            false => (None, Vec::new()),
        };
        self.options.notes.extend(notes);
        let weights = match weights {
            None if config.compares_with_start() => {
                Some(ranks.first_then_others("reading the weights to compare with", || reference(&checkpoints))?)
            }
            weights => weights,
        };
        let done = Done::of(resume.as_ref());
        let plan = Plan::of(&config, &data, &device, ranks.size(), self.options.auto_micro_batch, done)?;
        compare(ranks, &config, &data, resume.as_ref())?;

        // A run with nothing left to do stays as it is.
        let is_finished = resume.as_ref().is_some_and(|resume| resume.snapshot.state.step >= config.train.steps);
        if ranks.is_first() && !is_finished {
            write_config(&self.dir, &config)?;
        }
        let ranks = ranks.clone();
        Ok(Prepared { lock, leftovers, run: self, plan, config, device, ranks, data, weights, resume, began })
    }

    /// Refuses rows that another task, format or field reads.
    ///
    /// # Errors
    /// If the rows of a file have a layout that the configuration does not read.
    #[doc(hidden)]
    pub fn refuse_other_rows(&self, resume: bool) -> Result<()> {
        // A run that continues another one keeps its task, or gives its model a head.
        let other_tasks: &[Task] = match &self.options.from {
            _ if resume => &[],
            None => &TASKS,
            Some(from) if from.config.task == Task::Lm => &[Task::Classification],
            Some(from) if from.config.task == Task::Mlm => &[Task::Classification, Task::Tagging],
            Some(_) => &[],
        };
        let data = &self.config.data;
        let key = |key: &'static str| if data.is_mixed() { "data.mix" } else { key };
        for (key, files) in [(key("data.train"), data.train_files()), (key("data.valid"), data.valid_files())] {
            check_rows(&self.config, &files, other_tasks).map_err(|error| of_both(error, key)).context(key)?;
        }
        Ok(())
    }

    /// Refuses to begin with random weights where a model that exists is trained.
    #[doc(hidden)]
    pub fn refuse_random_weights(&self) -> Result<()> {
        let config = &self.config;
        if self.options.from.is_some() || !Checkpoints::of_run(&self.dir).list()?.is_empty() {
            return Ok(());
        }
        let (what, instead) = if config.model.has_adapters() {
            let what = format!("model.lora.rank = {} trains adapters of a model that exists", config.model.lora.rank);
            (what, ", or set model.lora.rank=0")
        } else if config.model.prompt_tokens > 0 {
            let what =
                format!("model.prompt_tokens = {} trains a prompt of a model that exists", config.model.prompt_tokens);
            (what, ", or set model.prompt_tokens=0")
        } else if config.compares_with_start() {
            ("data.text.format = \"preferences\" trains a model that exists".to_owned(), "")
        } else {
            return Ok(());
        };
        Err(RunError::Config(format!(
            "{what}, but this run begins with random weights: name a run with --from (kiln import makes one of a Hugging Face \
             model){instead}"
        ))
        .into())
    }

    /// Warns if `data.split` sets rows aside that the weights to start from were trained on.
    fn trained_validation(&self) -> Option<String> {
        let from = self.options.from.as_ref()?;
        let (before, now) = (&from.config.data, &self.config.data);
        let run = from.path.parent().and_then(Path::parent);
        let otherwise = run.is_some_and(|run| is_split_by_records(&from.config, run));
        now.validates_trained_rows(before, otherwise).then(|| {
            format!(
                "warning: data.split = {} sets rows aside that --from was trained on, so the validation looks too good; the split of that \
                 run was {}",
                now.split, before.split
            )
        })
    }

    /// Whether the folder holds a run on other text, or with another vocabulary: its token caches are not for this one.
    fn reads_another_text(&self) -> bool {
        let of_folder = Config::read(&self.dir.join(RUN_CONFIG_FILE)).ok();
        of_folder.is_some_and(|before| (&before.data, &before.tokenizer) != (&self.config.data, &self.config.tokenizer))
    }

    /// Counts what the run would do, without leaving anything behind: token caches that do not exist yet go into a
    /// temporary folder.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    #[doc(hidden)]
    pub fn survey(&self, resume: bool) -> Result<Survey> {
        let survey = self.survey_any_size(resume)?;
        survey.plan.check_memory(self.options.auto_micro_batch)?;
        Ok(survey)
    }

    /// Looks at a run as [`Self::survey`] does, also at one that does not fit into the memory.
    ///
    /// # Errors
    /// If the data cannot be used, or if the run cannot be resumed.
    #[doc(hidden)]
    pub fn survey_any_size(&self, resume: bool) -> Result<Survey> {
        self.config.train.kernels.install();
        let n_devices = self.options.link.as_ref().map_or(1, Link::size);
        let device = self.device()?;
        let is_new =
            self.config.data.cache_dir.is_none() && (!self.dir.join("cache").is_dir() || self.reads_another_text());
        let scratch = is_new.then(Scratch::new).transpose()?;
        let dir = scratch.as_ref().map_or(self.dir.clone(), |scratch| scratch.path(""));
        let (mut config, data) = self.data(resume, &dir)?;
        let (resume, notes) = match resume {
            true => {
                let has_weights = Checkpoints::of_run(&self.dir).starting_weights()?.is_some();
                resume_or_begin(self, &mut config, n_devices, &data, has_weights)?
            }
            false => (None, Vec::new()),
        };
        notes.iter().for_each(|note| self.note(note));
        let done = Done::of(resume.as_ref());
        let plan = Plan::of(&config, &data, &device, n_devices, self.options.auto_micro_batch, done)?;
        let position = resume.map_or(Position::default(), |resume| resume.snapshot.state.position);
        let cache_dir = config.data.cache_dir.clone().unwrap_or_else(|| dir.join("cache"));
        Ok(Survey { config, data, plan, position, device, cache_dir, _scratch: scratch })
    }

    /// Makes or finds the data of the run, with token caches in `dir` unless the configuration names their folder. Returns
    /// it with the configuration, whose vocabulary sizes are filled in. A run that is resumed uses the vocabulary of its
    /// newest sound checkpoint.
    fn data(&self, resume: bool, dir: &Path) -> Result<(Config, RunData)> {
        if let Some(own) = &self.options.data {
            return completed(self.config.clone(), own.make(&self.config)?, self.n_devices());
        }
        self.refuse_other_rows(resume)?;
        self.trained_validation().iter().for_each(|warning| self.note(warning));
        let mut config = self.config.clone();
        if let Some(from) = &self.options.from
            && take_classes(&mut config, &from.config, dir)?
        {
            self.note("--from: the head for classes is kept, because the rows have the same classes");
        }
        let vocabulary = match &self.options.from {
            Some(from) if !self.options.new_vocabulary => Some(from.vocabulary.clone()),
            Some(_) => None,
            None if resume => vocabulary_of_run(&self.dir, config.task)?,
            None => None,
        };
        // The user did not name a temporary folder and cannot find it again.
        let temporary = format!("{}/", dir.join("cache").display());
        let shown = |line: &str| if dir == self.dir { line.to_owned() } else { line.replace(&temporary, "") };
        let data = RunData::open(&config, dir, vocabulary, &mut |line| self.note(&shown(line)))?;
        completed(config, data, self.n_devices())
    }
}

/// Adds to a problem with the validation text that the training text, which has none, is read in the same way.
fn of_both(error: kiln_data::Error, key: &str) -> kiln_data::Error {
    match error {
        kiln_data::Error::BadRows(found) if key == "data.valid" => kiln_data::Error::BadRows(format!(
            "{found}\nbut the same keys read data.train, whose rows are read without these flags: give the rows of both the same form"
        )),
        kiln_data::Error::BadRows(found) if key == "data.mix" && found.contains("data.corpus.") => {
            kiln_data::Error::BadRows(format!("{found}\n{ALL_SOURCES_ALIKE}"))
        }
        other => other,
    }
}

/// Refuses to resume a run that was averaged. The weights that a run starts from are its checkpoint of step 0: it begins with them.
fn refuse_weights_alone(checkpoints: &Checkpoints) -> Result<()> {
    match checkpoints.list()?.pop() {
        Some((step, path)) if step > 0 && matches!(read_state(&path), Ok(None)) => {
            Err(CheckpointError::WeightsOnly(path).into())
        }
        _ => Ok(()),
    }
}

/// A run as `--dry-run` sees it.
#[doc(hidden)]
pub struct Survey {
    /// The configuration, complete.
    pub config: Config,
    /// Vocabulary and data.
    pub data: RunData,
    /// Its numbers.
    pub plan: Plan,
    /// The position at which the data begins.
    pub position: Position,
    /// The first device.
    pub device: Device,
    /// The folder of the token caches.
    pub cache_dir: PathBuf,
    /// Holds the token caches.
    pub(super) _scratch: Option<Scratch>,
}

/// Fills in the vocabulary sizes of the model, and its classes.
fn completed(mut config: Config, data: RunData, n_devices: usize) -> Result<(Config, RunData)> {
    config.take_epochs(data.train.batches_per_epoch(), n_devices);
    if !data.labels.is_empty() {
        config.model.n_classes = data.labels.len();
        config.data.labels.names.clone_from(&data.labels);
    }
    data.vocabulary.complete(&mut config.model).map_err(|problems| RunError::Config(format!("{problems:#}")))?;
    Ok((config, data))
}

/// Reads the model that answers are compared with.
fn reference(checkpoints: &Checkpoints) -> Result<Weights> {
    checkpoints.weights_before_training().context("answers are compared with the model that the run began with")
}
