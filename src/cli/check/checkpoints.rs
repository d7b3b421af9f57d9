//! Verifies the checkpoints of a run, and the files that point to them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kiln_data::files::read_text;
use kiln_model::TransformerConfig;

use super::findings::{Finding, Findings, entries};
use crate::checkpoint::{
    self, Best, Checkpoints, MANIFEST_FILE, NamedTensor, OpenCheckpoint, Pointer, RUN_CONFIG_FILE, folder_name,
};
use crate::config::Config;
use crate::dataset::Vocabulary;
use crate::units::thousands;

/// Verifies one checkpoint on its own.
pub(super) fn of_checkpoint(dir: &Path) -> Vec<Finding> {
    let mut findings = Findings::of(dir);
    checkpoint(dir, &mut findings);
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
    let mut best = None;
    for (_, path) in &all {
        best = checkpoint(path, findings).or(best);
    }
    if all.is_empty() {
        findings.note(checkpoints.dir(), "there is none yet");
    }

    pointer(Pointer::Last, &checkpoints, all.last().map(|(step, _)| *step), findings);
    pointer(Pointer::Best, &checkpoints, best.map(|best| best.step), findings);
    for path in entries(checkpoints.dir()) {
        if path.extension().is_some_and(|extension| extension == "tmp" || extension == "stale") {
            findings.note(&path, "left by an interrupted run; the next start removes it");
        }
    }
}

/// Verifies a pointer that should name the checkpoint of step `wanted`.
fn pointer(pointer: Pointer, checkpoints: &Checkpoints, wanted: Option<u64>, findings: &mut Findings) {
    let path = checkpoints.dir().join(pointer.name());
    let Ok(text) = read_text(&path) else {
        if checkpoints.list().is_ok_and(|all| !all.is_empty()) {
            findings.note(&path, "there is none");
        }
        return;
    };

    let name = text.strip_suffix('\n').unwrap_or(&text);
    let wanted = wanted.map(folder_name);
    let exists = checkpoints.pointed(pointer).is_some_and(|path| path.ends_with(name));
    match wanted {
        _ if !exists => {
            let error = anyhow::anyhow!("it names {name:?}, which does not exist; the next start sets it again");
            findings.add(&path, Err(error));
        }
        Some(wanted) if wanted != name => {
            let what = if pointer == Pointer::Last { "is newer" } else { "has the best validation" };
            findings.note(&path, &format!("it names {name}, but {wanted} {what}; the next start sets it again"));
        }
        Some(_) => findings.add(&path, Ok(name.to_owned())),
        None => {
            return findings.note(&path, &format!("it names {name}; no sound checkpoint says whether that is right"));
        }
    }
    findings.vouch_for(path);
}

/// Verifies the checkpoint in `path`. Returns the best validation that it knows of.
fn checkpoint(path: &Path, findings: &mut Findings) -> Option<Best> {
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

    let (described, best) = match opened.map_err(Into::into).and_then(|opened| check_content(path, &opened)) {
        Ok((described, best)) => (Ok(described), best),
        Err(error) => {
            let remedy = "restore a copy, or delete this folder: --resume goes on from the newest sound checkpoint";
            (Err(anyhow::anyhow!("{error:#}; {remedy}")), None)
        }
    };
    findings.add(path, described);
    best
}

/// Checks what the files of a sound checkpoint hold. Reads one tensor after the other.
fn check_content(path: &Path, opened: &OpenCheckpoint) -> Result<(String, Option<Best>)> {
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
    let sizes = |model: &TransformerConfig| [model.d_model, model.d_ff, model.n_encoder_layers, model.n_decoder_layers];
    ensure!(
        sizes(&config.model) == sizes(model),
        "its config.toml describes a model of another shape than its weights have"
    );
    let vocabulary = Vocabulary::load_dir(path, config.task).context("its tokenizer cannot be loaded")?;
    vocabulary.check(model)?;
    let what = if state.is_some() { "weights, optimizer and state" } else { "weights only" };
    let best = state.as_ref().and_then(|state| state.best.clone());
    Ok((format!("{what}, {} numbers in {n_tensors} tensors", thousands(n_weights as f64)), best))
}

/// Refuses numbers that are not finite: training never saves them, because it skips such updates.
fn ensure_finite(what: &str, tensors: impl Iterator<Item = NamedTensor>) -> Result<()> {
    for tensor in tensors {
        let n = tensor.values.iter().filter(|value| !value.is_finite()).count();
        ensure!(n == 0, "{n} of its {what} in {} are not finite; use an older checkpoint", tensor.name);
    }
    Ok(())
}
