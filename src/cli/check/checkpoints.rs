//! Verifies the checkpoints of a run, and the files that point to them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use kiln_metrics::units::thousands;
use kiln_model::TransformerConfig;
use kiln_train::checkpoint::{
    self, CheckpointError, Checkpoints, MANIFEST_FILE, NamedTensor, OpenCheckpoint, Pointer, RUN_CONFIG_FILE,
    folder_name,
};
use kiln_train::config::Config;
use kiln_train::dataset::Vocabulary;

use super::findings::{Finding, Findings, entries};

/// Verifies one checkpoint on its own.
pub(super) fn of_checkpoint(dir: &Path) -> Vec<Finding> {
    let mut findings = Findings::of(dir);
    let own = Checkpoints::around(dir).map_or(Ok(()), |checkpoints| checkpoints.ensure_own(dir));
    checkpoint(dir, own, &mut findings);
    findings.name_the_rest();
    findings.into_vec()
}

/// Verifies all checkpoints of the run in `dir`.
pub(super) fn checkpoints(dir: &Path, findings: &mut Findings) {
    let checkpoints = Checkpoints::of_run(dir);
    let all = match checkpoints.list() {
        Ok(all) => all,
        Err(error) => return findings.add(checkpoints.dir(), Err(error.into())),
    };
    let is_one_run = run_file(&checkpoints, &all, findings);
    for (_, path) in &all {
        let own = if is_one_run { checkpoints.ensure_own(path) } else { Ok(()) };
        checkpoint(path, own, findings);
    }
    if all.is_empty() {
        findings.note(checkpoints.dir(), "there is none yet");
    }

    pointer(Pointer::Last, &checkpoints, findings);
    pointer(Pointer::Best, &checkpoints, findings);
    for path in entries(checkpoints.dir()) {
        if path.extension().is_some_and(|extension| extension == "tmp" || extension == "stale") {
            findings.note(&path, "left by an interrupted run; the next start removes it");
        }
    }
}

/// Verifies a pointer: it names the checkpoint that the checkpoints themselves make it name.
fn pointer(pointer: Pointer, checkpoints: &Checkpoints, findings: &mut Findings) {
    let path = checkpoints.dir().join(pointer.name());
    match checkpoints.agreed(pointer) {
        Err(CheckpointError::Missing { .. }) => {
            if checkpoints.list().is_ok_and(|all| !all.is_empty()) {
                findings.note(&path, "there is none");
            }
            return;
        }
        Err(CheckpointError::Pointer { problem, .. }) => {
            findings.add(&path, Err(anyhow!("{problem}; the next start sets it again")));
        }
        Err(error) => findings.add(&path, Err(error.into())),
        Ok(found) => {
            findings.add(&path, Ok(found.file_name().unwrap_or_default().to_string_lossy().into_owned()));
        }
    }
    findings.vouch_for(path);
}

/// Verifies the file that says which run the checkpoints belong to. Returns whether it may speak about each of them.
fn run_file(checkpoints: &Checkpoints, all: &[(u64, PathBuf)], findings: &mut Findings) -> bool {
    let path = checkpoints.run_file();
    let recorded = match checkpoints.recorded_run() {
        Ok(None) => return true,
        Ok(Some(recorded)) => recorded,
        Err(error) => {
            findings.add(&path, Err(error.into()));
            return false;
        }
    };
    findings.vouch_for(&path);
    let runs: Vec<_> = all.iter().filter_map(|(_, path)| checkpoint::read_state(path).ok()??.run).collect();
    let n_own = runs.iter().filter(|run| **run == recorded).count();
    let finding = match n_own {
        0 => Err(anyhow!("no checkpoint is of the run that it names; delete it if all are of one run")),
        n => Ok(format!("{n} of {} checkpoints are of this run", runs.len())),
    };
    findings.add(&path, finding);
    n_own > 0
}

/// Verifies the checkpoint in `path`.
fn checkpoint(path: &Path, own: Result<(), CheckpointError>, findings: &mut Findings) {
    let opened = OpenCheckpoint::open(path);
    let listed = match &opened {
        Ok(opened) => Some(opened.listed.clone()),
        Err(_) => checkpoint::verify(path).ok().map(|manifest| manifest.files),
    };
    match listed {
        Some(files) => files.iter().for_each(|file| findings.vouch_for(path.join(&file.name))),
        None => entries(path).into_iter().for_each(|file| findings.vouch_for(file)),
    }
    findings.vouch_for(path.join(MANIFEST_FILE));

    let remedy = "restore a copy, or delete this folder: --resume goes on from the newest sound checkpoint";
    let described = opened.map_err(Into::into).and_then(|opened| check_content(path, &opened));
    let described = described.map_err(|error| anyhow!("{error:#}; {remedy}"));
    findings.add(path, described.and_then(|described| own.map(|()| described).map_err(Into::into)));
}

/// Checks what the files of a sound checkpoint hold. Reads one tensor after the other.
fn check_content(path: &Path, opened: &OpenCheckpoint) -> Result<String> {
    let OpenCheckpoint { step, model, files, state, .. } = opened;
    ensure_finite("numbers of the optimizer's state", opened.optimizer_states())?;
    let (mut n_weights, mut n_tensors) = (0, 0);
    let counted = opened.weights().inspect(|tensor| {
        n_weights += tensor.values.len();
        n_tensors += 1;
    });
    ensure_finite("weights", counted)?;
    if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with("step-")) {
        ensure!(name == folder_name(*step), "it holds step {step}, but it was renamed; name it {}", folder_name(*step));
    }

    let config = files.iter().find(|file| file.name == RUN_CONFIG_FILE).context("it has no configuration")?;
    let config = Config::from_toml(&String::from_utf8_lossy(&config.bytes))
        .context("its config.toml is not a configuration of this version")?;
    let problems = config.problems_when_read();
    ensure!(problems.is_empty(), "its config.toml has values outside their limits: {}", problems.join("; "));
    let sizes = |model: &TransformerConfig| [model.d_model, model.d_ff, model.n_encoder_layers, model.n_decoder_layers];
    ensure!(
        sizes(&config.model) == sizes(model),
        "its config.toml describes a model of another shape than its weights have"
    );
    let vocabulary = Vocabulary::load_dir(path, config.task).context("its tokenizer cannot be loaded")?;
    vocabulary.check(model)?;
    let what = if state.is_some() { "weights, optimizer and state" } else { "weights only" };
    Ok(format!("{what}, {} numbers in {n_tensors} tensors", thousands(n_weights as f64)))
}

/// Refuses numbers that are not finite: training never saves them, because it skips such updates.
fn ensure_finite(what: &str, tensors: impl Iterator<Item = NamedTensor>) -> Result<()> {
    for tensor in tensors {
        let n = tensor.values.iter().filter(|value| !value.is_finite()).count();
        ensure!(n == 0, "{n} of its {what} in {} are not finite; use an older checkpoint", tensor.name);
    }
    Ok(())
}
