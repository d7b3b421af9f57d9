//! The validation rows of `data.split` for a run that is made of the checkpoints of another one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::Origins;

use super::split::VALID;
use crate::config::Config;

/// Copies the validation rows of `data.split` from the run in `from` to the run in `to`, which was made of its checkpoints. Returns whether
/// `to` has them, if the run of this `config` has a split.
///
/// # Errors
/// If a file cannot be copied.
#[doc(hidden)]
pub fn copy_split(config: &Config, from: &Path, to: &Path) -> Result<bool> {
    // A folder of its own serves both.
    if config.data.split == 0.0 || config.is_built_in_task() || config.data.cache_dir.is_some() {
        return Ok(true);
    }
    let [from, to] = [from, to].map(|run| run.join("cache").join(VALID));
    if to.is_file() || !from.is_file() {
        return Ok(to.is_file());
    }
    let copy = |from: &Path, to: &Path| {
        let partial = to.with_extension("partial");
        let written = fs::copy(from, &partial).map(|_| ()).and_then(|()| fs::rename(&partial, to));
        written.with_context(|| format!("{}: cannot be copied to {}", from.display(), to.display()))
    };
    let folder = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot make this folder", folder.display()))?;
    if Origins::path_of(&from).is_file() {
        copy(&Origins::path_of(&from), &Origins::path_of(&to))?;
    }
    copy(&from, &to)?;
    Ok(true)
}
