//! Verifies the parts of a run folder. Nothing here writes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kiln_data::TokenCache;
use serde_json::Value;

use crate::checkpoint::{self, CheckpointError, Checkpoints, NamedTensor, Pointer, RUN_CONFIG_FILE, folder_name};
use crate::config::Config;
use crate::dataset::Vocabulary;
use crate::logging::METRICS_FILE;
use crate::units::thousands;

/// The verdict on one part.
#[derive(Debug)]
pub(super) struct Finding {
    /// Its path, relative to the run folder if it is inside.
    pub(super) part: String,
    pub(super) verdict: Verdict,
}

#[derive(Debug)]
pub(super) enum Verdict {
    /// As it was written; the text describes its content.
    Sound(String),
    /// Not damaged, but worth knowing.
    Note(String),
    /// Damaged; the text says what is wrong and what to do.
    Damaged(String),
}

/// Verifies every part of the run in `dir`.
pub(super) fn of_run(dir: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let config = read_config(&dir.join(RUN_CONFIG_FILE));
    let cache_dir = config.as_ref().ok().and_then(|config| config.data.cache_dir.clone());
    let advice = "copy config.toml from a sound checkpoint";
    findings.push(finding(
        RUN_CONFIG_FILE,
        config.map(|config| format!("{} steps", config.train.steps)).map_err(|error| error.context(advice)),
    ));
    findings.push(metrics(&dir.join(METRICS_FILE)));
    findings.extend(caches(dir, &cache_dir.unwrap_or_else(|| dir.join("cache"))));
    findings.extend(checkpoints(dir));
    findings
}

fn read_config(path: &Path) -> Result<Config> {
    let text = fs::read_to_string(path).context("it cannot be read")?;
    Config::from_toml(&text).context("it is not a configuration of this version")
}

/// Verifies the metrics: every line is JSON, and the steps follow each other.
fn metrics(path: &Path) -> Finding {
    let read = || -> Result<Verdict> {
        let Ok(file) = fs::File::open(path) else {
            return Ok(Verdict::Note("there is none yet".into()));
        };
        let (mut last_step, mut unfinished) = (0, None);
        for (i, line) in BufReader::new(file).split(b'\n').enumerate() {
            let (number, line) = (i + 1, line.context("it cannot be read")?);
            if let Some(before) = unfinished {
                bail!("line {before} is not JSON; the file can be moved away, training continues without it");
            }
            let Ok(value) = serde_json::from_slice::<Value>(&line) else {
                unfinished = Some(number);
                continue;
            };
            if value["kind"] == "step" {
                let step = value["step"].as_u64().unwrap_or_default();
                ensure!(
                    step == last_step + 1 || last_step == 0,
                    "line {number} is of step {step}, after step {last_step}; the file can be moved away, training \
                     continues without it"
                );
                last_step = step;
            }
        }

        Ok(match unfinished {
            Some(number) => Verdict::Note(format!("line {number} is unfinished; the next start removes it")),
            None => Verdict::Sound(format!("every step up to {last_step} once")),
        })
    };
    let verdict = read().unwrap_or_else(|error| Verdict::Damaged(format!("{error:#}")));
    Finding { part: METRICS_FILE.into(), verdict }
}

/// Verifies the token caches.
fn caches(dir: &Path, cache_dir: &Path) -> Vec<Finding> {
    let mut found = Vec::new();
    for path in entries(cache_dir) {
        if path.extension().is_some_and(|extension| extension == "tokens") {
            found.push(finding(&shown(&path, dir), cache(&path)));
        }
        if path.extension().is_some_and(|extension| extension == "partial") {
            found.push(note(&shown(&path, dir), "left by an interrupted preparation; it can be deleted"));
        }
    }
    if found.is_empty() {
        found.push(note(&shown(cache_dir, dir), "no token cache; the next start builds it from the text"));
    }
    found
}

fn cache(path: &Path) -> Result<String> {
    let check = || -> kiln_data::Result<String> {
        let cache = TokenCache::open(path)?;
        cache.verify()?;
        let (rows, tokens) = (thousands(cache.n_rows() as f64), thousands(cache.n_tokens() as f64));
        Ok(format!("{rows} rows, {tokens} tokens"))
    };
    check().context("delete it; the next start builds it again from the text")
}

fn checkpoints(dir: &Path) -> Vec<Finding> {
    let checkpoints = Checkpoints::of_run(dir);
    let all = match checkpoints.list() {
        Ok(all) => all,
        Err(error) => return vec![finding("checkpoints", Err(error.into()))],
    };
    let mut found: Vec<_> = all.iter().map(|(_, path)| checkpoint(path, dir)).collect();
    if all.is_empty() {
        found.push(note("checkpoints", "there is none yet"));
    }

    for pointer in [Pointer::Last, Pointer::Best] {
        let part = shown(&checkpoints.dir().join(pointer.name()), dir);
        let wanted = fs::read_to_string(checkpoints.dir().join(pointer.name()));
        found.push(match (checkpoints.pointed(pointer), wanted) {
            (Some(path), _) => finding(&part, Ok(shown(&path, checkpoints.dir()))),
            (None, Ok(name)) => {
                let text = format!("it names {:?}, which does not exist; the next start sets it again", name.trim());
                finding(&part, Err(anyhow::anyhow!(text)))
            }
            (None, Err(_)) if all.is_empty() => continue,
            (None, Err(_)) => note(&part, "there is none"),
        });
    }

    for path in entries(checkpoints.dir()) {
        if path.extension().is_some_and(|extension| extension == "tmp" || extension == "stale") {
            found.push(note(&shown(&path, dir), "left by an interrupted run; the next start removes it"));
        }
    }
    found
}

/// Verifies the checkpoint in `path`, which is shown relative to `dir`.
pub(super) fn checkpoint(path: &Path, dir: &Path) -> Finding {
    let part = shown(path, dir);
    finding(&if part.is_empty() { path.display().to_string() } else { part }, read_checkpoint(path))
}

fn read_checkpoint(path: &Path) -> Result<String> {
    let (step, weights, what, files, model) = match checkpoint::read(path) {
        Ok(snapshot) => {
            let moments = snapshot.first_moments.iter().chain(&snapshot.second_moments);
            ensure_finite("moments of the optimizer", moments)?;
            (snapshot.state.step, snapshot.weights, "weights, optimizer and state", snapshot.files, snapshot.model)
        }
        Err(CheckpointError::WeightsOnly(_)) => {
            let read = checkpoint::read_weights(path)?;
            (read.step, read.weights, "weights only", read.files, read.model)
        }
        Err(error) => return Err(error.into()),
    };

    ensure_finite("weights", weights.iter())?;
    if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with("step-")) {
        ensure!(name == folder_name(step), "it holds step {step}, but it was renamed; name it {}", folder_name(step));
    }

    let config = files.iter().find(|file| file.name == RUN_CONFIG_FILE).context("it has no configuration")?;
    let config = Config::from_toml(&String::from_utf8_lossy(&config.bytes))
        .context("its config.toml is not a configuration of this version")?;
    let vocabulary = Vocabulary::load_dir(path, config.task).context("its tokenizer cannot be loaded")?;
    vocabulary.check(&model)?;
    let n_weights: usize = weights.iter().map(|tensor| tensor.values.len()).sum();
    Ok(format!("{what}, {} numbers in {} tensors", thousands(n_weights as f64), weights.len()))
}

/// Refuses numbers that are not finite: training never saves them, because it skips such updates.
fn ensure_finite<'a>(what: &str, tensors: impl Iterator<Item = &'a NamedTensor>) -> Result<()> {
    for tensor in tensors {
        let n = tensor.values.iter().filter(|value| !value.is_finite()).count();
        ensure!(n == 0, "{n} of its {what} in {} are not finite; use an older checkpoint", tensor.name);
    }
    Ok(())
}

fn finding(part: &str, result: Result<String>) -> Finding {
    let verdict = match result {
        Ok(what) => Verdict::Sound(what),
        Err(error) => Verdict::Damaged(format!("{error:#}")),
    };
    Finding { part: part.to_string(), verdict }
}

fn note(part: &str, what: &str) -> Finding {
    Finding { part: part.to_string(), verdict: Verdict::Note(what.to_string()) }
}

/// Returns the entries of a folder by name; none if it cannot be listed.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn shown(path: &Path, dir: &Path) -> String {
    path.strip_prefix(dir).unwrap_or(path).display().to_string()
}
