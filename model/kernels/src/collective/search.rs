//! Where NCCL may lie: the linker's folders and Python environments.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The name under which the linker finds a runtime package. `libnccl.so` belongs to development packages.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// What to open, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidates {
    /// Names for the linker and paths of files that exist.
    pub(super) libraries: Vec<PathBuf>,
    /// Whether `KILN_NCCL` names the only candidate.
    pub(super) named: bool,
    /// The Python environments looked at.
    pub(super) environments: Vec<PathBuf>,
}

/// Lists the candidates: `KILN_NCCL` alone if it is set, else the names that the linker knows, then the packages of
/// Python environments. `variable` reads the process environment, `system` is the root of the file system.
pub(super) fn candidates(variable: &dyn Fn(&str) -> Option<OsString>, system: &Path) -> Candidates {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = set("KILN_NCCL") {
        return Candidates { libraries: vec![path.into()], named: true, environments: Vec::new() };
    }

    let environments = environments(&set, system);
    let mut libraries: Vec<PathBuf> = NAMES.map(PathBuf::from).into();
    libraries.extend(environments.iter().flat_map(|environment| packaged(environment)));
    Candidates { libraries, named: false, environments }
}

/// Returns the prefixes of Python environments: the active ones, that of `python3`, the user's and the system's.
fn environments(set: &dyn Fn(&str) -> Option<OsString>, system: &Path) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| set(name)).map(PathBuf::from);
    let of_python = set("PATH").and_then(|path| {
        let folder = std::env::split_paths(&path).find(|folder| folder.join("python3").exists())?;
        Some(folder.parent()?.to_path_buf())
    });
    let of_user = set("HOME").map(|home| PathBuf::from(home).join(".local"));

    let mut found: Vec<PathBuf> = Vec::new();
    for prefix in active.chain(of_python).chain(of_user).chain([system.join("usr/local"), system.join("usr")]) {
        if !found.contains(&prefix) {
            found.push(prefix);
        }
    }
    found
}

/// Returns the NCCL libraries that packages have put into a Python environment: Conda's in `lib`, PyPI's in
/// `nvidia/nccl/lib` of the folder of packages.
fn packaged(environment: &Path) -> Vec<PathBuf> {
    let mut folders = vec![environment.join("lib")];
    for python in ["lib", "lib64"].iter().flat_map(|lib| entries(&environment.join(lib), "python3")) {
        for packages in ["site-packages", "dist-packages"] {
            folders.extend(entries(&python.join(packages).join("nvidia"), "").iter().map(|part| part.join("lib")));
        }
    }
    folders.iter().map(|folder| folder.join(NAMES[0])).filter(|library| library.is_file()).collect()
}

/// Returns the entries of `folder` whose names begin with `start`, sorted.
fn entries(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(folder: PathBuf) -> PathBuf {
        fs::create_dir_all(&folder).expect("writable");
        let file = folder.join("libnccl.so.2");
        fs::write(&file, "").expect("writable");
        file
    }

    #[test]
    fn the_linkers_names_come_before_python_packages() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let system = library(root.join("usr/lib/python3/dist-packages/nvidia/nccl/lib"));
        let local = library(root.join("usr/local/lib/python3.11/site-packages/nvidia/nccl/lib"));
        let conda = library(root.join("conda/lib"));
        let active = library(root.join("venv/lib/python3.12/site-packages/nvidia/nccl/lib"));
        let on_path = library(root.join("python/lib64/python3.12/site-packages/nvidia/cu13/lib"));
        fs::create_dir_all(root.join("python/bin")).expect("writable");
        fs::write(root.join("python/bin/python3"), "").expect("writable");

        let variable = |name: &str| match name {
            "VIRTUAL_ENV" => Some(root.join("venv").into()),
            "CONDA_PREFIX" => Some(root.join("conda").into()),
            "PATH" => std::env::join_paths([root.join("nothing"), root.join("python/bin")]).ok(),
            "HOME" => Some(root.join("home").into()),
            // A variable that is set to nothing counts as unset.
            "KILN_NCCL" => Some("".into()),
            _ => None,
        };
        let found = candidates(&variable, root);
        let names = NAMES.map(PathBuf::from);
        assert_eq!(found.libraries, [names.to_vec(), vec![active, conda, on_path, local, system]].concat());
        assert!(!found.named);
        let environments = ["venv", "conda", "python", "home/.local", "usr/local", "usr"];
        assert_eq!(found.environments, environments.map(|folder| root.join(folder)));
    }

    #[test]
    fn a_named_library_is_the_only_candidate() {
        let root = tempfile::tempdir().expect("a folder");
        library(root.path().join("usr/lib/python3/dist-packages/nvidia/nccl/lib"));
        let variable = |name: &str| (name == "KILN_NCCL").then(|| OsString::from("/x/libnccl.so.2"));
        let found = candidates(&variable, root.path());
        assert_eq!((found.libraries, found.named), (vec![PathBuf::from("/x/libnccl.so.2")], true));
    }

    #[test]
    fn an_environment_without_packages_leaves_the_linkers_names() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(candidates(&|_| None, root.path()).libraries, NAMES.map(PathBuf::from));
    }
}
