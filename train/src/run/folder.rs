//! The folder that a run lives in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::files::replace::replace_file;

use super::error::RunError;
use super::lock::{LOCK_FILE, RunLock};
use crate::checkpoint::{CHECKPOINTS, RUN_CONFIG_FILE};
use crate::config::Config;

/// Parent of the run folders that are not named with `--run`.
const RUNS: &str = "runs";

/// What a folder may hold before its run starts: the token caches, the lock of a process that stopped early, and a
/// configuration whose writing was interrupted.
const BEFORE_THE_RUN: [&str; 3] = ["cache", LOCK_FILE, "config.toml.tmp"];

/// Returns `runs/NAME`.
pub fn default_for(name: &str) -> PathBuf {
    Path::new(RUNS).join(name)
}

/// Returns the folder of a new run. A folder that is named or follows from a name must not hold a run yet; only the run
/// without any arguments takes the next free number, so that it always works.
pub fn for_new_run(named: Option<&Path>, name: &str, any_arguments: bool) -> Result<PathBuf, RunError> {
    let dir = named.map_or_else(|| default_for(name), Path::to_path_buf);
    refuse_checkpoint(&dir)?;
    if is_free(&dir)? {
        return Ok(dir);
    }
    if named.is_none() && !any_arguments {
        return next_free(&dir);
    }
    let remedy = match dir.join(RUN_CONFIG_FILE).is_file() {
        true => "continue it with --resume, or choose another one with --run",
        false => "it holds other files and not a run; choose another one with --run",
    };
    Err(RunError::Exists { dir, remedy: remedy.into() })
}

/// Takes the lock of the folder for this process. Unless the run is `resumed`, the folder must still be free: since it
/// was chosen, another process may have started and finished a run there.
pub fn take(dir: &Path, resumed: bool) -> Result<RunLock> {
    let lock = RunLock::take(dir)?;
    if !resumed {
        free(dir.to_path_buf(), "--run")?;
    }
    Ok(lock)
}

/// Returns the folder of a run that is made from another one: the one that `option` names, or `from` with an ending.
pub fn for_result(named: Option<&Path>, from: &Path, ending: &str, option: &str) -> Result<PathBuf, RunError> {
    let name = from.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    free(named.map_or_else(|| from.with_file_name(format!("{name}-{ending}")), Path::to_path_buf), option)
}

/// Returns the folder of a run that is made from another program's model: the named one, or `runs/NAME`.
pub fn for_import(named: Option<&Path>, name: &str) -> Result<PathBuf, RunError> {
    free(named.map_or_else(|| default_for(name), Path::to_path_buf), "--out")
}

/// Returns the folder of a run to continue: the named one, or the newest that [`for_new_run`] would have made.
pub fn to_resume(named: Option<&Path>, name: &str) -> Result<PathBuf, RunError> {
    let first = named.map_or_else(|| default_for(name), Path::to_path_buf);
    refuse_checkpoint(&first)?;
    let newest = match named {
        Some(_) => first,
        None => (2..).map(|n| numbered(&first, n)).take_while(|dir| dir.exists()).last().unwrap_or(first),
    };
    match newest.join(RUN_CONFIG_FILE).is_file() {
        true => Ok(newest),
        false => Err(RunError::NothingToResume { others: newest_next_to(&newest), dir: newest }),
    }
}

/// Names the run in the folder of `dir` that was saved last; empty if there is none.
fn newest_next_to(dir: &Path) -> String {
    let Some(entries) = dir.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return String::new() };
    let saved = |run: PathBuf| {
        let time =
            [run.join(CHECKPOINTS), run.clone()].iter().find_map(|path| fs::metadata(path).ok()?.modified().ok());
        (time, run)
    };
    let runs = entries.flatten().map(|entry| entry.path()).filter(|path| path.join(RUN_CONFIG_FILE).is_file());
    runs.map(saved).max().map_or(String::new(), |(_, run)| format!(" (the newest run there is {})", run.display()))
}

/// Writes the configuration into the run folder: with this file it is a run.
pub(crate) fn write_config(dir: &Path, config: &Config) -> Result<()> {
    let path = dir.join(RUN_CONFIG_FILE);
    let advice =
        || format!("{}: cannot be written; fix permissions, or choose another folder with --run", path.display());
    fs::create_dir_all(dir).with_context(advice)?;
    replace_file(&path, config.to_toml().as_bytes()).with_context(advice)
}

/// Returns the run among whose checkpoints a folder lies.
pub fn run_of_checkpoint(dir: &Path) -> Option<&Path> {
    let checkpoints = dir.parent().filter(|parent| parent.ends_with(CHECKPOINTS))?;
    checkpoints.parent().filter(|run| run.join(RUN_CONFIG_FILE).is_file())
}

/// Refuses a folder among the checkpoints of a run: it would be removed with its checkpoint.
fn refuse_checkpoint(dir: &Path) -> Result<(), RunError> {
    match run_of_checkpoint(dir) {
        Some(run) => Err(RunError::Checkpoint { dir: dir.to_path_buf(), run: run.to_path_buf() }),
        None => Ok(()),
    }
}

pub(super) fn free(dir: PathBuf, option: &str) -> Result<PathBuf, RunError> {
    refuse_checkpoint(&dir)?;
    match is_free(&dir)? {
        true => Ok(dir),
        false => Err(RunError::Exists { dir, remedy: format!("choose another one with {option}") }),
    }
}

/// Returns whether the folder is missing or holds nothing but caches.
pub(super) fn is_free(dir: &Path) -> Result<bool, RunError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => {
            let is_before = |name: &str| BEFORE_THE_RUN.contains(&name);
            Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(is_before))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(RunError::Unusable { dir: dir.to_path_buf(), source }),
    }
}

fn next_free(first: &Path) -> Result<PathBuf, RunError> {
    for n in 2.. {
        let dir = numbered(first, n);
        if is_free(&dir)? {
            return Ok(dir);
        }
    }
    unreachable!("numbers do not end")
}

/// `runs/numbers` -> `runs/numbers-2`.
fn numbered(first: &Path, n: usize) -> PathBuf {
    let name = first.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    first.with_file_name(format!("{name}-{n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_run_without_arguments_takes_another_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("numbers");
        assert_eq!(for_new_run(Some(&dir), "x", true).expect("free"), dir);
        fs::create_dir(&dir).expect("writable");
        assert_eq!(for_new_run(Some(&dir), "x", true).expect("empty is free"), dir);
        fs::create_dir(dir.join("cache")).expect("writable");
        assert_eq!(for_new_run(Some(&dir), "x", true).expect("prepared is free"), dir);
        drop(take(&dir, false).expect("prepared is free"));
        assert_eq!(for_new_run(Some(&dir), "x", true).expect("still free"), dir);
        fs::write(dir.join("config.toml"), "").expect("writable");
        assert!(take(&dir, false).is_err() && take(&dir, true).is_ok(), "somebody was faster");
        let notes = folder.path().join("notes");
        fs::create_dir(&notes).expect("writable");
        fs::write(notes.join("notes.txt"), "").expect("writable");
        let other = for_new_run(Some(&notes), "x", true).expect_err("somebody's notes").to_string();
        assert!(other.contains("it holds other files and not a run") && !other.contains("--resume"), "{other}");
        let error = for_new_run(Some(&dir), "x", true).expect_err("taken").to_string();
        assert!(error.contains("--resume") && error.contains("--run"), "{error}");
        assert_eq!(next_free(&dir).expect("free"), folder.path().join("numbers-2"));
    }

    #[test]
    fn a_file_in_the_way_is_an_error_with_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("writable");
        let error = for_new_run(Some(&file), "x", true).expect_err("a file").to_string();
        assert!(error.contains("cannot be used as run folder") && error.contains("--run"), "{error}");
    }

    #[test]
    fn only_a_folder_with_a_configuration_can_be_resumed() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = to_resume(Some(folder.path()), "x").expect_err("empty").to_string();
        assert!(error.contains("no run to resume") && error.contains("without --resume"), "{error}");
        fs::write(folder.path().join("config.toml"), "").expect("writable");
        assert_eq!(to_resume(Some(folder.path()), "x").expect("there"), folder.path());
    }
}
