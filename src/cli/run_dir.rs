//! Which folder a run lives in.

use std::path::{Path, PathBuf};

use anyhow::Result as AnyResult;

use super::exit::Usage;
use crate::checkpoint::{LOCK_FILE, MANIFEST_FILE, RUN_CONFIG_FILE, Run, RunLock};

/// Where runs go unless `--run` says otherwise.
const RUNS: &str = "runs";

/// What a folder may hold before the run: the token caches, the lock of a process that did not come far, and a configuration that
/// a kill left unfinished.
const BEFORE_THE_RUN: [&str; 3] = ["cache", LOCK_FILE, "config.toml.tmp"];

/// `runs/NAME`.
pub(super) fn default_for(name: &str) -> PathBuf {
    Path::new(RUNS).join(name)
}

/// Opens a run to use it; a folder that is none is a mistake of the command line.
pub(super) fn open_run(dir: &Path, checkpoint: Option<&str>) -> AnyResult<Run> {
    if !dir.join(RUN_CONFIG_FILE).is_file() && !dir.join(MANIFEST_FILE).is_file() {
        return Err(Usage(format!(
            "{}: there is no run here (no {RUN_CONFIG_FILE}); name a run folder, kiln train makes runs/NAME",
            dir.display()
        ))
        .into());
    }
    Run::open(dir, checkpoint)
}

/// The folder of a new run. A folder that is named or follows from a name must not hold a run yet; only the run without
/// any arguments takes the next free number, so that it always works.
pub(super) fn for_new_run(named: Option<&Path>, name: &str, any_arguments: bool) -> Result<PathBuf, Usage> {
    let dir = named.map_or_else(|| default_for(name), Path::to_path_buf);
    if is_free(&dir)? {
        return Ok(dir);
    }
    if named.is_none() && !any_arguments {
        return next_free(&dir);
    }
    Err(Usage(format!(
        "{}: this run folder exists already; continue it with --resume, or choose another one with --run",
        dir.display()
    )))
}

/// Takes the folder for this process. Unless it is `resumed`, it must still be a free one: another process may have begun and ended
/// a run there since it was chosen.
pub(super) fn take(dir: &Path, resumed: bool) -> AnyResult<RunLock> {
    let lock = RunLock::take(dir)?;
    if !resumed {
        free(dir.to_path_buf(), "--run")?;
    }
    Ok(lock)
}

/// The folder of a run that is made from another one: the one that `option` names, or `from` with an ending.
pub(super) fn for_result(named: Option<&Path>, from: &Path, ending: &str, option: &str) -> Result<PathBuf, Usage> {
    let name = from.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    free(named.map_or_else(|| from.with_file_name(format!("{name}-{ending}")), Path::to_path_buf), option)
}

/// The folder of a run that is made from another program's model: the named one, or `runs/NAME`.
pub(super) fn for_import(named: Option<&Path>, name: &str) -> Result<PathBuf, Usage> {
    free(named.map_or_else(|| default_for(name), Path::to_path_buf), "--out")
}

fn free(dir: PathBuf, option: &str) -> Result<PathBuf, Usage> {
    if is_free(&dir)? {
        return Ok(dir);
    }
    Err(Usage(format!("{}: this run folder exists already; choose another one with {option}", dir.display())))
}

/// The folder of a run to continue: the named one, or the newest of those that [`for_new_run`] would have made.
pub(super) fn to_resume(named: Option<&Path>, name: &str) -> Result<PathBuf, Usage> {
    let first = named.map_or_else(|| default_for(name), Path::to_path_buf);
    let newest = match named {
        Some(_) => first.clone(),
        None => {
            (2..).map(|n| numbered(&first, n)).take_while(|dir| dir.exists()).last().unwrap_or_else(|| first.clone())
        }
    };
    if newest.join(RUN_CONFIG_FILE).is_file() {
        return Ok(newest);
    }
    Err(Usage(format!(
        "{}: there is no run to resume here (no {}); name its folder with --run, or start anew without --resume",
        newest.display(),
        RUN_CONFIG_FILE
    )))
}

/// A missing folder is free, and one with nothing but caches.
fn is_free(dir: &Path) -> Result<bool, Usage> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => {
            let is_before = |name: &str| BEFORE_THE_RUN.contains(&name);
            Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(is_before))))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Usage(format!(
            "{}: cannot be used as run folder: {error}; choose another one with --run",
            dir.display()
        ))),
    }
}

fn next_free(first: &Path) -> Result<PathBuf, Usage> {
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
    use std::fs;

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
