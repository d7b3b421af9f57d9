//! The checkpoint that a run continues from.

use std::path::Path;

use anyhow::{Result, bail};

use super::weights::fits;
use super::{Run, RunError};
use crate::checkpoint::{Checkpoints, RUN_CONFIG_FILE, Resume, find_resume};
use crate::config::{Config, LostReplicas, Task};
use crate::dataset::{RunData, Vocabulary};
use crate::optim::LearningRate;

/// Returns the vocabulary of the run's newest checkpoint that has a sound one, if there is any.
pub(super) fn vocabulary_of_run(dir: &Path, task: Task) -> Result<Option<Vocabulary>> {
    let sound = Checkpoints::of_run(dir).newest_with_vocabulary()?;
    Ok(sound.map(|path| Vocabulary::load_dir(&path, task)).transpose()?)
}

/// Returns the checkpoint to continue from. `None` if the run was interrupted before its first save: with only the
/// weights that it starts from, or with nothing.
///
/// An optimizer step keeps its number of batches over all devices: on another number of devices, `train.grad_accum_steps`
/// changes.
pub(super) fn resume_or_begin(
    run: &Run,
    config: &mut Config,
    n_devices: usize,
    data: &RunData,
    has_weights: bool,
) -> Result<Option<Resume>> {
    if has_weights || Checkpoints::of_run(&run.dir).list()?.is_empty() {
        run.note("this run has no checkpoint of its own yet: starting it from the beginning");
        return Ok(None);
    }

    let (train, tokenizer) = (data.train.fingerprint(), data.vocabulary.fingerprint());
    let resume = find_resume(&run.dir, config, &train, &tokenizer, &run.options.allow)?;
    if !fits(&resume.snapshot.model, &config.model) {
        return Err(RunError::Config(format!(
            "{} holds a model of another shape than model.* now: a run keeps its model, whatever --allow names; start a new run in \
             another folder",
            resume.path.display()
        ))
        .into());
    }
    resume.damaged.iter().for_each(|error| run.note(&format!("skipped a damaged checkpoint: {error}")));
    let (done, wanted) = (resume.snapshot.state.step, config.train.steps);
    let saved = resume.snapshot.file(RUN_CONFIG_FILE).map(String::from_utf8_lossy);
    let saved = saved.and_then(|text| Config::from_toml(&text).ok());
    if done > wanted {
        let longer = 2 * saved.map_or(done, |saved| saved.train.steps.max(done));
        bail!(RunError::TrainedFurther { dir: run.dir.clone(), done, wanted, longer });
    }
    run.note(&format!("resuming from {}, {} of {wanted} steps left", resume.path.display(), wanted - done));
    if let Some(saved) = saved {
        if config.optim.decay_end != saved.optim.decay_end {
            config.optim.decay_end = saved.optim.decay_end;
            run.note("optim.decay_end stays as this run began");
        }
        let notes = [other_length(&resume, &saved, config), share_out(&resume, &saved, config, n_devices)?];
        notes.iter().flatten().for_each(|note| run.note(note));
    }
    Ok(Some(resume))
}

/// Shares the batches of a step out over the devices. Returns a sentence if that changes `train.grad_accum_steps`.
///
/// # Errors
/// [`RunError::Config`] if the devices cannot share them evenly.
fn share_out(
    resume: &Resume,
    saved: &Config,
    config: &mut Config,
    n_devices: usize,
) -> Result<Option<String>, RunError> {
    let accum = config.train.grad_accum_steps;
    if config.train.lost_replicas == LostReplicas::GoOn {
        return Ok(None); // each device that is there takes as many batches as before
    }
    if accum != saved.train.grad_accum_steps {
        return Ok(None); // allowed explicitly: another number of batches
    }

    let n_replicas = resume.snapshot.state.replicas.len();
    if config.train.sync_every > 1 && n_replicas > 0 && n_replicas != n_devices {
        return Err(RunError::Config(format!(
            "this run takes steps alone on each of its devices (train.sync_every = {}), which have optimizer states of their own: resume it on \
             {n_replicas} devices, not on {n_devices}",
            config.train.sync_every
        )));
    }

    let batches = resume.snapshot.state.group_size.map_or(accum, |size| size as usize);
    if !batches.is_multiple_of(n_devices) {
        return Err(RunError::Config(format!(
            "a step of this run takes {batches} batch(es), which {n_devices} devices cannot share evenly: resume on a number of \
             devices that divides {batches}, or accept another batch size with --set train.grad_accum_steps=N --allow \
             train.grad_accum_steps"
        )));
    }
    config.train.grad_accum_steps = batches / n_devices;
    Ok((config.train.grad_accum_steps != accum).then(|| {
        format!(
            "a step of this run takes {batches} batches: train.grad_accum_steps = {} instead of {accum} on {n_devices} device(s)",
            config.train.grad_accum_steps
        )
    }))
}

/// Says what another `train.steps` does to the learning rate, if the run was saved with another one.
fn other_length(resume: &Resume, saved: &Config, config: &Config) -> Option<String> {
    let (before, now) = (saved.train.steps, config.train.steps);
    if before == now {
        return None;
    }
    let next = resume.snapshot.state.step + 1;
    let rate = |config: &Config| LearningRate::new(&config.optim, config.train.steps, config.model.d_model).at(next);
    let rates = [config, saved].map(|config| format!("{:.2e}", rate(config)));
    let how = if now > before { "stretches" } else { "shrinks" };
    let effect = match &rates {
        [now, before] if now == before => String::new(),
        [now, before] => {
            format!("; the schedule {how}, so the learning rate of step {next} is {now} instead of {before}")
        }
    };
    Some(format!("train.steps: {now} instead of {before}{effect}"))
}
