//! The arguments of `kiln train`, and the run that they describe.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kiln_lab::profiled::RunProfiler;
use kiln_ranks::Link;
use kiln_train::checkpoint::{Checkpoints, RUN_CONFIG_FILE};
use kiln_train::config::{Base, Config, ConfigError, Resolved, Sources, resolve};
use kiln_train::device::DeviceChoice;
use kiln_train::run::{Options, Run, RunError, TrainedModel, folder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::config_args::ConfigArgs;
use crate::cli::error::Usage;
use crate::cli::import::{imported, is_model_folder};
use crate::cli::lines::{shell_path, shell_word};
use crate::cli::of_run::{base_of, preset_line};
use crate::cli::together::DevicesArgs;

/// Trains a Transformer
///
/// Without arguments it trains a small model on the built-in task, numbers in digits -> English words, in about a
/// minute on a CPU. Every other --task has built-in data, too. A configuration file overrides the preset, and
/// --set overrides both.
///
/// With --devices, a step takes train.grad_accum_steps batches on each device.
///
/// Ctrl-C, SIGTERM or a terminal that closes (SIGHUP) saves a checkpoint and ends the run; --resume continues it. SIGUSR1
/// saves a checkpoint and the run goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln train
  kiln train pairs.tsv
  kiln train --preset base --set data.train=en-it.train.jsonl --set data.valid=en-it.dev.jsonl --run runs/en-it
  kiln train --task lm --set data.train=train.txt --set data.valid=dev.txt --run runs/lm
  kiln train --preset bert-small --set data.train=texts/ --set data.valid=dev.txt
  kiln train --config en-it.toml --set optim.lr=3e-4 --dry-run
  kiln train --from runs/bert --task classification --set data.train=reviews.jsonl --run runs/reviews
  kiln train --from runs/gpt2 --set data.train=texts/ --set optim.lr=1e-4 --run runs/tuned
  kiln train --run runs/en-it --resume
  kiln train --run runs/en-it --resume --set train.steps=9000")]
pub(in crate::cli) struct Args {
    /// Training text, as data.train names it
    #[arg(value_name = "FILE", value_parser = not_a_run)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    /// Run folder [default: runs/ and the name of the configuration file, the preset or the task]
    #[arg(long, value_name = "DIR")]
    pub(super) run: Option<PathBuf>,

    /// Continues the run in the run folder from its newest checkpoint. It keeps its configuration unless another one is
    /// given. With --set train.steps=N it trains longer, also a run that is finished: the schedule stretches
    /// over N steps
    ///
    /// `--resume auto` continues the run if there is one and starts it otherwise, as launchers want that start a job again
    #[arg(long, value_name = "auto", num_args = 0..=1, default_missing_value = "run", value_parser = resume_of)]
    resume: Option<Resume>,

    /// Starts from the weights, the vocabulary and the configuration of another run: imported, averaged or trained, with a lower
    /// learning rate (optim.lr). A model folder of transformers is imported into runs/ first. The
    /// weights are validated before the first step. With --task classification or tagging, the encoder of that run gets
    /// a new head
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    from: Option<PathBuf>,

    /// With --from: makes or reads a vocabulary as tokenizer.* says, instead of taking the one of that run. Tokens that both
    /// have keep their rows of the weights; the others are counted and named
    #[arg(long, requires = "from")]
    new_vocabulary: bool,

    /// With --resume: accepts a different value of this key than in the checkpoint; may be repeated
    #[arg(long, value_name = "KEY", requires = "resume", value_delimiter = ',')]
    allow: Vec<String>,

    /// Checks everything, prints what would be trained: preset, data, epochs, parameters, memory, the first batches and
    /// an example. Stops then and leaves nothing behind
    #[arg(long)]
    pub(super) dry_run: bool,

    /// With --dry-run: prints the whole configuration, too, as a configuration file
    #[arg(long, requires = "dry_run")]
    pub(super) show_config: bool,

    /// If the largest batch does not fit into memory: cuts every batch into 2, 4, ... micro-batches
    /// (train.split_batches) until it fits. An optimizer step still covers the whole batch
    #[arg(long)]
    auto_micro_batch: bool,

    /// Computes every operator by its reference definition instead of its kernel: slow, to compare losses (see `kiln
    /// compare`)
    #[arg(long)]
    reference_operators: bool,

    /// Starts the run again from its newest checkpoint when a process of it dies, up to N times. Ends when the same step fails twice,
    /// when three starts in a row take no step, or when configuration or data are refused
    #[arg(long, value_name = "N", requires = "run", conflicts_with = "dry_run")]
    pub(super) restarts: Option<u32>,

    /// Shows only the result and errors
    #[arg(long, short)]
    pub(super) quiet: bool,

    #[command(flatten)]
    pub(super) devices: DevicesArgs,
}

/// The value of `--resume`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resume {
    /// There must be a run.
    Run,
    /// Continues the run if there is one.
    Auto,
}

/// Reads the value of `--resume`: a folder belongs to `--run`.
fn resume_of(text: &str) -> Result<Resume, String> {
    match text {
        "run" => Ok(Resume::Run),
        "auto" => Ok(Resume::Auto),
        other => {
            let path = Path::new(other);
            let of_config = path.parent().filter(|run| path.ends_with(RUN_CONFIG_FILE) && run.is_dir());
            let path = of_config.unwrap_or(path);
            if let Some(way) = way_of_no_run(path) {
                return Err(format!("--resume takes auto or nothing, and {other} is not a run: {way}"));
            }
            let of_checkpoint = folder::run_of_checkpoint(path);
            let run = shell_path(of_checkpoint.unwrap_or(path));
            let apart = format!("--resume takes auto or nothing, and the run is named apart: --run {run} --resume");
            Err(match of_checkpoint {
                Some(_) => format!(
                    "{apart} continues from its newest checkpoint, --from {} starts a new run",
                    shell_path(path)
                ),
                None => apart,
            })
        }
    }
}

/// Says what to do with a path that is there and not a run. A checkpoint belongs to one.
fn way_of_no_run(path: &Path) -> Option<String> {
    let word = shell_path(path);
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    match path.is_file() {
        true if ending == "toml" => Some(format!("--config {word} begins a run with these keys")),
        true => Some(format!("kiln train {word} learns a text; --run RUN --resume continues a run")),
        false
            if !path.is_dir() || path.join(RUN_CONFIG_FILE).is_file() || folder::run_of_checkpoint(path).is_some() =>
        {
            None
        }
        false if is_model_folder(path) => Some(format!("--from {word} starts from its model")),
        false => Some("--run RUN --resume continues a run".into()),
    }
}

/// Reads the name of a text, and refuses a run folder.
fn not_a_run(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let (is_run, word) = (path.join(RUN_CONFIG_FILE).is_file(), shell_path(&path));
    match is_run {
        true => {
            Err(format!("this is a run and not text: --run {word} --resume continues it, --from {word} starts from it"))
        }
        false => Ok(path),
    }
}

impl Args {
    /// Returns the run: its folder, its validated configuration and its options; and whether it is resumed. Ranks take the
    /// folder that rank 0 has chosen.
    pub(super) fn run(&self, link: Option<Link>, device: DeviceChoice) -> Result<(Run, bool)> {
        let preset = &self.config.preset;
        if self.from.is_some() && preset.is_some() {
            let text = "--from takes model, vocabulary and settings from that run, so --preset has no place; change keys with --set or \
                        --config";
            return Err(Usage(text.into()).into());
        }
        if self.resume == Some(Resume::Run) && preset.is_some() {
            let text = "--resume continues the run with its own configuration, so --preset has no place; change single keys with --set";
            return Err(Usage(text.into()).into());
        }
        // Rank 0 is alone in a dry run.
        let ranks = link.as_ref().filter(|_| !self.dry_run);
        let origin = of_first(ranks, || self.origin())?;
        let from = origin.as_deref().map(|from| TrainedModel::find(from, None)).transpose()?;
        let continued = of_first(ranks, || self.run_to_continue())?;

        let mut config = self.config.clone();
        if continued.is_some() && self.resume == Some(Resume::Auto) {
            config.preset = None; // it was for a run that begins
        }
        let mut allow = self.allow.clone();
        let base = if let Some(dir) = &continued {
            let of_run = dir.join(RUN_CONFIG_FILE);
            let only_keys = config.config.is_none() && config.task.is_none();
            if config.preset.is_none() && only_keys {
                config.config = Some(of_run.clone());
            }
            // Another configuration keeps what the run has chosen.
            match Config::file(&of_run).validate() {
                // As the checkpoint has it: a key that is unset there has no value, whatever the preset of the task says.
                Ok(_) => {
                    let saved = Config::read(&of_run)?;
                    let shorter = shorter_warmup(&config.set, &saved);
                    allow.extend(shorter.iter().map(|_| "optim.warmup_steps".to_owned()));
                    config.set.extend(shorter);
                    Some(saved)
                }
                Err(problems) if config.config.as_ref() == Some(&of_run) => return Err(or_its_copy(problems, dir)?),
                Err(_) => None,
            }
        } else {
            let task = self.config.named_task();
            let mut base = from.as_ref().map(|run| base_of(run, task.as_deref())).transpose()?;
            if let Some(base) = base.as_mut().filter(|_| self.new_vocabulary) {
                (base.model.source_vocab_size, base.model.target_vocab_size) = (0, 0);
            }
            base
        };
        let Resolved { config, base, notes, set } =
            resolve(&Sources { base, fine_tunes: from.is_some(), ..config.sources(&self.files, device) })?;
        if let Some(from) = &from {
            self.check_vocabulary(from, &config)?;
        }

        let resume = continued.is_some();
        let dir = match continued {
            Some(dir) => dir,
            None => of_first(ranks, || self.new_folder(&base))?,
        };

        allow.extend(resume.then(|| self.allowed_by_length()).into_iter().flatten());

        let of_origin = from.as_ref().and_then(|from| valid_of_origin(from, &config, &set));
        let mut run = Run::in_folder(dir, config);
        run.options = Options {
            device,
            from,
            new_vocabulary: self.new_vocabulary,
            allow,
            notes: preset_line(&base).into_iter().chain(notes).chain(of_origin).collect(),
            auto_micro_batch: self.auto_micro_batch,
            reference_operators: self.reference_operators,
            console: !self.quiet,
            link,
            profiler: Some(Box::<RunProfiler>::default()),
            ..Options::default()
        };
        Ok((run, resume))
    }

    /// Continues the run in `dir`, if one has begun there, as this process or another one has begun it.
    pub(super) fn continue_in(&mut self, dir: Option<PathBuf>) {
        self.run = dir.or(self.run.take());
        if self.run.as_ref().is_some_and(|dir| dir.join(RUN_CONFIG_FILE).is_file()) {
            self.resume = Some(Resume::Auto);
            (self.from, self.new_vocabulary) = (None, false);
        }
    }

    /// Returns the keys that may differ from the checkpoint because the length of the run is set: naming it is enough to train longer.
    fn allowed_by_length(&self) -> Vec<String> {
        let sets = |key: &str| self.config.set.iter().any(|set| set.trim_start().starts_with(key));
        let (length, warmup) = (sets("train.steps=") || sets("train.epochs="), sets("optim.warmup_steps="));
        let keys = [("train.steps", length), ("optim.warmup_steps", length && !warmup)]; // the warm-up may follow the steps
        keys.into_iter().filter(|(_, may)| *may).map(|(key, _)| key.to_owned()).collect()
    }

    /// Refuses settings of a tokenizer that would do nothing, and new rows that would never be trained.
    fn check_vocabulary(&self, from: &TrainedModel, config: &Config) -> Result<(), Usage> {
        if !self.new_vocabulary && config.tokenizer != from.config.tokenizer {
            let text = "--from takes the vocabulary of that run, so tokenizer.* would do nothing; add --new-vocabulary to make another one \
                        and keep the rows of tokens that both have";
            return Err(Usage(text.into()));
        }
        if self.new_vocabulary && config.model.trains_additions() {
            let (key, what) = match config.model.prompt_tokens {
                0 => ("model.lora.rank", "adapters"),
                _ => ("model.prompt_tokens", "a prompt"),
            };
            return Err(Usage(format!(
                "--new-vocabulary adds rows that must be trained, and {key} trains {what} alone; train all weights first, and {what} \
                 with --from that run"
            )));
        }
        Ok(())
    }

    /// Returns the run of `--from`. A model folder of `transformers` is imported first.
    fn origin(&self) -> Result<Option<PathBuf>> {
        let Some(from) = &self.from else { return Ok(None) };
        if !is_model_folder(from) {
            return Ok(Some(from.clone()));
        }
        if self.dry_run {
            let command = format!("kiln import {}", shell_path(from));
            let text = format!(
                "{}: a model folder of transformers; a dry run leaves nothing behind, so import it first: {command}",
                from.display()
            );
            return Err(Usage(text).into());
        }
        imported(from.clone()).map(Some)
    }

    /// Returns the folder of the run to continue; `None` for a new run.
    fn run_to_continue(&self) -> Result<Option<PathBuf>> {
        let Some(wanted) = self.resume else { return Ok(None) };
        match folder::to_resume(self.run.as_deref(), &self.config.name()) {
            Ok(dir) => Ok(Some(dir)),
            Err(RunError::NothingToResume { .. }) if wanted == Resume::Auto => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Chooses the folder of a new run whose configuration starts from `base`.
    fn new_folder(&self, base: &Base) -> Result<PathBuf> {
        let named = self.run.as_deref();
        // A configuration file gives its name.
        if let (Some(path), None) = (&self.from, &self.config.config) {
            // Not next to a model folder, which is not a run.
            let path = if is_model_folder(path) {
                &folder::default_for(&path.file_name().unwrap_or_default().to_string_lossy())
            } else {
                path
            };
            return Ok(folder::for_result(named, path, "tuned", "--run")?);
        }

        let name = self.config.run_name(base);
        // A dry run shows the data also where a run of this name exists.
        let must_be_new = named.is_some() || !(self.config.is_empty() || self.dry_run);
        Ok(folder::for_new_run(named, &name, must_be_new)?)
    }
}

/// Says that new text is validated on the text of the run that it starts from, unless `set`, the keys that were given, names it.
fn valid_of_origin(from: &TrainedModel, config: &Config, set: &BTreeSet<String>) -> Option<String> {
    let [before, now] = [&from.config.data, &config.data];
    let is_taken =
        before.train != now.train && before.valid == now.valid && !now.valid.is_empty() && !set.contains("data.valid");
    let files = || now.valid.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    is_taken.then(|| format!("--from: validated on {}, the text of that run (data.valid names another one)", files()))
}

/// Returns the `--set` that gives a resumed run a warm-up which fits `train.steps` of `set`, if the one that it has does not fit.
fn shorter_warmup(set: &[String], saved: &Config) -> Option<String> {
    let value = |key: &str| {
        let given = set.iter().rev().filter_map(|set| set.split_once('=')).find(|(given, _)| given.trim() == key);
        given.map(|(_, value)| value.trim().to_owned())
    };
    let steps: u64 = value("train.steps")?.parse().ok()?;
    let fits = steps == 0 || saved.optim.warmup_steps < steps || value("optim.warmup_steps").is_some();
    (!fits).then(|| format!("optim.warmup_steps={}", steps / 10))
}

/// Returns what rank 0 has chosen.
fn of_first<T: Serialize + DeserializeOwned>(link: Option<&Link>, choose: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(link) = link else { return choose() };
    let own = match link.is_first() {
        true => serde_json::to_vec(&choose().inspect_err(|error| link.abort(&format!("{error:#}")))?)?,
        false => Vec::new(),
    };
    let all = link.all_gather("choosing the run folder", own)?;
    Ok(serde_json::from_slice(&all[0])?)
}

/// Adds to the `problems` of a run's own configuration the command that brings back its copy, if there is a sound one.
fn or_its_copy(problems: ConfigError, dir: &Path) -> Result<anyhow::Error> {
    let newest = Checkpoints::of_run(dir).newest_verified()?.map(|newest| newest.join(RUN_CONFIG_FILE));
    let Some(copy) = newest.filter(|copy| Config::file(copy).validate().is_ok()) else { return Ok(problems.into()) };
    let restored = dir.join(RUN_CONFIG_FILE);
    let [copy, restored] = [&copy, &restored].map(|path| shell_word(&path.display().to_string()));
    let text = format!(
        "{problems}\nIt was damaged or changed since the run began. The newest checkpoint has a sound copy:\n  cp {copy} \
         {restored}"
    );
    Ok(anyhow::Error::from(problems).context(text))
}
