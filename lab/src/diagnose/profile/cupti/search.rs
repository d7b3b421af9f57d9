//! Where CUPTI may lie: the linker's folders, the CUDA toolkit, and Python packages.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of the library, newest first.
const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];

/// Returns what to open, in order: the file that `KILN_CUPTI` names, alone; else the names that the linker knows, then files that
/// exist. `variable` reads the process environment, `system` is the root of the file system.
pub(super) fn candidates(variable: &dyn Fn(&str) -> Option<OsString>, system: &Path) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("KILN_CUPTI") {
        return vec![path];
    }

    let mut toolkits: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| set(name)).collect();
    toolkits.extend(["usr/local/cuda", "opt/cuda"].map(|folder| system.join(folder)));
    let mut folders: Vec<PathBuf> =
        toolkits.iter().flat_map(|cuda| [cuda.join("extras/CUPTI/lib64"), cuda.join("lib64")]).collect();

    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| set(name));
    let environments = active.chain([system.join("usr/local"), system.join("usr")]);
    folders.extend(environments.flat_map(|environment| packaged(&environment)));

    let in_folders = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
    NAMES.map(PathBuf::from).into_iter().chain(in_folders.filter(|file| file.is_file())).collect()
}

/// Returns the folders in which packages of a Python environment keep libraries of CUDA.
fn packaged(environment: &Path) -> Vec<PathBuf> {
    let mut folders = vec![environment.join("lib")];
    for python in entries(&environment.join("lib"), "python3") {
        for packages in ["site-packages", "dist-packages"] {
            let parts = entries(&python.join(packages).join("nvidia"), "cu");
            folders.extend(parts.iter().map(|part| part.join("lib")));
        }
    }
    folders
}

/// Returns the entries of `folder` whose names begin with `start`, sorted.
fn entries(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(start);
    let mut found: Vec<_> = entries.filter(is_named).map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(file: PathBuf) -> PathBuf {
        fs::create_dir_all(file.parent().expect("a parent")).expect("writable");
        fs::write(&file, "").expect("writable");
        file
    }

    #[test]
    fn the_linkers_names_come_before_files_of_toolkits_and_packages() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let toolkit = library(root.join("cuda-13/extras/CUPTI/lib64/libcupti.so.13"));
        let usual = library(root.join("usr/local/cuda/lib64/libcupti.so.12"));
        let package = library(root.join("venv/lib/python3.12/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12"));
        let newer = library(root.join("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13"));
        library(root.join("venv/lib/python3.12/site-packages/nvidia/nccl/lib/libcupti.so.13"));

        let variable = |name: &str| match name {
            "CUDA_HOME" => Some(root.join("cuda-13").into()),
            "VIRTUAL_ENV" => Some(root.join("venv").into()),
            "KILN_CUPTI" => Some("".into()),
            _ => None,
        };
        let names = NAMES.map(PathBuf::from);
        assert_eq!(candidates(&variable, root), [names.to_vec(), vec![toolkit, usual, newer, package]].concat());
        let named = |name: &str| (name == "KILN_CUPTI").then(|| OsString::from("/x/libcupti.so"));
        assert_eq!(candidates(&named, root), [PathBuf::from("/x/libcupti.so")]);
    }
}
