//! Verifies the parts of a run folder. Nothing here writes.

use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kiln_data::files::{MOST_LINE_BYTES, open_file, read_file, read_line};
use kiln_metrics::logging::METRICS_FILE;
use kiln_train::checkpoint::{Checkpoints, RUN_CONFIG_FILE, all_differences};
use kiln_train::config::Config;
use serde_json::Value;

use super::caches::caches;
use super::checkpoints::checkpoints;
use super::findings::{Finding, Findings};

/// Verifies every part of the run in `dir`.
pub(super) fn of_run(dir: &Path) -> Vec<Finding> {
    let mut findings = Findings::of(dir);
    let config = config(dir, &mut findings);
    metrics(&dir.join(METRICS_FILE), &mut findings);
    caches(dir, config.as_ref(), &mut findings);
    checkpoints(dir, &mut findings);
    findings.name_the_rest();
    findings.into_vec()
}

/// Verifies the configuration, and compares it with the one in the newest checkpoint.
fn config(dir: &Path, findings: &mut Findings) -> Option<Config> {
    let path = dir.join(RUN_CONFIG_FILE);
    let newest = Checkpoints::of_run(dir).newest_verified().ok().flatten();
    let config = match Config::read(&path) {
        Ok(config) => config,
        Err(error) => {
            findings.vouch_for(&path);
            let advice = match &newest {
                Some(newest) => format!("copy {} over it", newest.join(RUN_CONFIG_FILE).display()),
                None => "no checkpoint has a sound copy of it; start a new run".into(),
            };
            findings.add(&path, Err(anyhow::Error::from(error).context(advice)));
            return None;
        }
    };
    findings.add(&path, Ok(format!("{} steps", config.train.steps)));

    if let Some(newest) = newest {
        let saved = newest.join(RUN_CONFIG_FILE);
        if read_file(&path).ok() == read_file(&saved).ok() {
            findings.vouch_for(&path);
        } else if let Ok(there) = Config::read(&saved) {
            let differences: Vec<_> = all_differences(&there, &config).iter().map(ToString::to_string).collect();
            let which = if differences.is_empty() { "its spelling".into() } else { differences.join("; ") };
            findings.note(&path, &format!("differs from {}: {which}", findings.shown(&saved)));
        }
    }
    Some(config)
}

/// Verifies the metrics: every line is JSON, and the steps follow each other.
fn metrics(path: &Path, findings: &mut Findings) {
    let Ok(file) = open_file(path) else {
        return findings.note(path, "there is none yet");
    };
    let read = || -> Result<(u64, Option<usize>)> {
        let (mut last_step, mut unfinished) = (0, None);
        let (mut file, mut line, mut number) = (BufReader::new(file), Vec::new(), 0);
        while read_line(&mut file, &mut line, MOST_LINE_BYTES).context("it cannot be read")? {
            number += 1;
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
        Ok((last_step, unfinished))
    };

    match read() {
        Ok((_, Some(number))) => {
            findings.note(path, &format!("line {number} is unfinished; the next start removes it"));
        }
        Ok((last_step, None)) => findings.add(path, Ok(format!("every step up to {last_step} once"))),
        Err(error) => findings.add(path, Err(error)),
    }
}
