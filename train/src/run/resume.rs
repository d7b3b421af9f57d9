//! The checkpoint that a run continues from.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_data::Position;

use super::weights::fits;
use super::{Run, RunError};
use crate::checkpoint::{
    Checkpoints, Difference, RUN_CONFIG_FILE, Resume, TrainerState, all_differences, find_resume, is_within,
};
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
/// changes. Returns sentences about what is not as before, too.
pub(super) fn resume_or_begin(
    run: &Run,
    config: &mut Config,
    n_devices: usize,
    data: &RunData,
    has_weights: bool,
) -> Result<(Option<Resume>, Vec<String>)> {
    if has_weights || Checkpoints::of_run(&run.dir).list()?.is_empty() {
        run.note("this run has no checkpoint of its own yet: starting it from the beginning");
        return Ok((None, Vec::new()));
    }

    let (train, tokenizer) = (data.train.fingerprint(), data.vocabulary.fingerprint());
    let mut resume = find_resume(&run.dir, config, &train, &tokenizer, &run.options.allow)?;
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
        // A run that was stopped goes on to its own number of steps.
        let planned = saved.map_or(done, |saved| saved.train.steps.max(done));
        let longer = if planned > done { planned } else { 2 * done };
        bail!(RunError::TrainedFurther { dir: run.dir.clone(), done, wanted, longer });
    }
    run.note(&format!("resuming from {}, {} of {wanted} steps left", resume.path.display(), wanted - done));
    let mut notes = Vec::new();
    if let Some(saved) = saved {
        notes.extend(kept_keys(&saved, config));
        notes.extend(changed_keys(&saved, config));
        notes.extend(other_length(&resume, &saved, config));
        notes.extend(share_out(&resume, &saved, config, n_devices)?);
    }
    let state = &mut resume.snapshot.state;
    notes.extend(other_epoch(state, data.train.batches_per_epoch()));
    notes.extend(other_validation(state, data.valid.as_ref().map(|valid| valid.fingerprint())));
    Ok((Some(resume), notes))
}

/// Sets back the keys that a run keeps. Returns a sentence about them.
fn kept_keys(saved: &Config, config: &mut Config) -> Vec<String> {
    let mut notes = Vec::new();
    if config.optim.decay_end != saved.optim.decay_end {
        config.optim.decay_end = saved.optim.decay_end;
        notes.push("optim.decay_end stays as this run began".into());
    }
    let changed = all_differences(saved, config).into_iter().filter(|it| is_within(&it.field, "tokenizer"));
    let keys: Vec<String> = changed.map(|it| it.field).collect();
    if !keys.is_empty() {
        config.tokenizer = saved.tokenizer.clone();
        let (keys, stay) = (keys.join(", "), if keys.len() == 1 { "stays" } else { "stay" });
        notes.push(format!("{keys} {stay} as this run began: a run keeps its vocabulary; --from with --new-vocabulary takes another one"));
    }
    notes
}

/// Names the keys with other values than in the checkpoint, except those that have a sentence of their own.
fn changed_keys(saved: &Config, config: &Config) -> Option<String> {
    const OWN: [&str; 1] = ["train.steps"];
    let changed = all_differences(saved, config).into_iter().filter(|it| !OWN.contains(&it.field.as_str()));
    let keys: Vec<String> =
        changed.map(|Difference { field, saved, now }| format!("{field} = {now} (was {saved})")).collect();
    (!keys.is_empty()).then(|| format!("changed from here on: {}", keys.join(", ")))
}

/// Moves the position of a run to an epoch with another number of batches, at the same share of it. Returns a sentence about it.
fn other_epoch(state: &mut TrainerState, now: u64) -> Option<String> {
    let Position { epoch, batch } = state.position;
    let before = state.epoch_batches.filter(|before| *before > 0);
    state.epoch_batches = Some(now);
    match before {
        _ if batch == 0 => None,
        Some(before) if before != now => {
            state.position.batch = (u128::from(batch) * u128::from(now) / u128::from(before)) as u64;
            let at = state.position.batch;
            Some(format!(
                "epoch {epoch} now has {now} batches instead of {before}: it goes on behind batch {at}, at the same share of it, in an \
                 order of its own; some rows come again in this epoch and others are left out"
            ))
        }
        None if batch >= now => {
            state.position = Position { epoch: epoch + 1, batch: 0 };
            Some(format!(
                "the checkpoint stands behind batch {batch} of epoch {epoch}, which now has {now}: the run goes on with epoch {}",
                epoch + 1
            ))
        }
        _ => None,
    }
}

/// Forgets the best validation if it was measured on other rows. Returns a sentence about it.
fn other_validation(state: &mut TrainerState, now: Option<String>) -> Option<String> {
    let before = state.validation_fingerprint.as_ref()?;
    if now.is_none() || now.as_ref() == Some(before) {
        return None;
    }
    let forgotten = state.best.take();
    state.patience = None;
    forgotten.map(|best| {
        format!(
            "the validation text is another one (data.valid): its scores cannot be compared with those before, so `best` is chosen \
             anew and no longer step {}",
            best.step
        )
    })
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
