//! Runs that a command only looks at: a run that exists, one that would start from another, or a new one.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use kiln_metrics::logging::print::stderr_line;
use kiln_metrics::units::thousands;
use kiln_train::checkpoint::{Checkpoints, RUN_CONFIG_FILE};
use kiln_train::config::task::{TASKS, traits_of};
use kiln_train::config::{Base, Chosen, Config, DecayEnd, MANY_EPOCHS, Resolved, Shortened, Sources, resolve};
use kiln_train::device::DeviceChoice;
use kiln_train::run::{Options, Run, TrainedModel};

use super::config_args::ConfigArgs;
use super::error::Usage;
use super::import::is_model_folder;
use super::lines::shell_path;

/// The run to look at, unless the configuration describes a new one.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct OfRunArgs {
    /// Run folder whose configuration, vocabulary and caches are taken; --set changes single keys
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "task", "preset", "from"])]
    pub run: Option<PathBuf>,

    /// Looks at a new run that starts from this one, as kiln train --from does
    #[arg(long, value_name = "RUN", conflicts_with = "preset")]
    pub from: Option<PathBuf>,
}

impl ConfigArgs {
    /// Returns a run that is only looked at: the one that is named, with the keys of `--set` changed, or a new one.
    pub(super) fn of_run(&self, named: &OfRunArgs, device: DeviceChoice) -> Result<Run> {
        if let Some(dir) = &named.run {
            // A run without a checkpoint has no vocabulary of its own yet.
            let is_begun = dir.join(RUN_CONFIG_FILE).is_file() && Checkpoints::of_run(dir).list()?.is_empty();
            let mut run = match is_begun {
                true => Run::in_folder(dir.clone(), Run::open(dir)?.config().with_keys(&self.set)?),
                false => of_trained(dir, &self.set)?,
            };
            run.options.device = device;
            return Ok(run);
        }

        if let Some(from) = named.from.as_deref().filter(|from| is_model_folder(from)) {
            let text = format!(
                "{}: a model folder of transformers; import it first: kiln import {}",
                from.display(),
                shell_path(from)
            );
            return Err(Usage(text).into());
        }
        let from = named.from.as_deref().map(|from| TrainedModel::find(from, None)).transpose()?;
        let task = self.named_task();
        let base = from.as_ref().map(|from| base_of(from, task.as_deref())).transpose()?;
        let fine_tunes = base.is_some();
        let Resolved { config, base, notes, .. } = resolve(&Sources { base, fine_tunes, ..self.sources(&[], device) })?;
        preset_line(&base).into_iter().chain(notes).for_each(|note| stderr_line!("{note}"));
        // A folder that holds nothing: the token caches go into a temporary one.
        let mut run = Run::in_folder(PathBuf::from("runs").join(self.name()).join("not-kept"), config);
        run.options = Options { device, from, ..Options::default() };
        Ok(run)
    }
}

/// Returns the run in `dir`, which has a model and a vocabulary.
fn of_trained(dir: &Path, set: &[String]) -> Result<Run> {
    let model = TrainedModel::find(dir, None)?;
    let file = dir.join(RUN_CONFIG_FILE);
    // A checkpoint's own folder has the configuration, too.
    let config = if file.is_file() { Config::read(&file)? } else { model.config.clone() };
    let mut run = Run::in_folder(dir.to_path_buf(), config.with_keys(set)?);
    run.options.from = Some(model);
    Ok(run)
}

/// Returns the configuration that a run from `run` starts with. With a `task`, its encoder gets a head for classes.
pub(super) fn base_of(run: &TrainedModel, task: Option<&str>) -> Result<Config> {
    let mut config = run.config.clone();
    config.optim.decay_end = DecayEnd::AfterLastStep; // this is a new run, whatever its origin did
    let Some(name) = task else { return Ok(config) };
    // An unknown name is reported with the other mistakes of the configuration.
    let Some(task) = TASKS.into_iter().find(|task| traits_of(*task).name == name) else {
        return Ok(config);
    };
    if task == run.config.task && traits_of(task).classes.is_none() {
        return Ok(config);
    }
    config.fine_tuned(&run.model, task).map_err(|problem| Usage(problem).into())
}

/// Says which preset the configuration starts from, and why.
pub(super) fn preset_line(base: &Base) -> Option<String> {
    match base {
        Base::Named(preset) => Some(format!("preset {preset}")),
        Base::Chosen(Chosen { preset, why, shortened: None }) => {
            Some(format!("preset {preset}, for {why} (--preset NAME takes another)"))
        }
        Base::Chosen(Chosen { preset, why, shortened: Some(Shortened { from, to }) }) => Some(format!(
            "preset {preset}, for {why}, with {} of its {} steps: about {MANY_EPOCHS} epochs at most (--preset NAME and \
             train.steps decide otherwise)",
            thousands(*to as f64),
            thousands(*from as f64)
        )),
        Base::Run => None,
    }
}
