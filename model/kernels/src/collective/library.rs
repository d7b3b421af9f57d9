//! NCCL's shared library, opened when it is first needed.

use std::fmt;
#[cfg(feature = "cuda")]
use std::path::Path;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

use super::error::NcclError;
#[cfg(feature = "cuda")]
use super::functions::Functions;
#[cfg(feature = "cuda")]
use super::search::{Candidates, candidates};

/// The first version whose communicators do not block, so that they can be aborted at any time.
#[cfg(feature = "cuda")]
const OLDEST: (u32, u32, u32) = (2, 14, 0);

/// NCCL's library, opened at run time. A build with CUDA runs on machines without NCCL.
pub struct NcclLibrary {
    path: String,
    version: (u32, u32, u32),
    #[cfg(feature = "cuda")]
    pub(super) functions: Functions,
}

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclLibrary").field("path", &self.path).field("version", &self.version).finish_non_exhaustive()
    }
}

impl NcclLibrary {
    /// Opens the first of these, once per process: the file that `KILN_NCCL` names (no other is tried then),
    /// `libnccl.so.2`, `libnccl.so`, and the packages of Python environments (`VIRTUAL_ENV`, `CONDA_PREFIX`, the one of
    /// `python3`, the user's and the system's).
    ///
    /// # Errors
    /// If none is found, or the one found is older than 2.14 or lacks a function.
    pub fn open() -> Result<&'static Self, NcclError> {
        #[cfg(feature = "cuda")]
        {
            static LIBRARY: OnceLock<Result<NcclLibrary, NcclError>> = OnceLock::new();
            LIBRARY
                .get_or_init(|| Self::first(&candidates(&|name| std::env::var_os(name), Path::new("/"))))
                .as_ref()
                .map_err(Clone::clone)
        }
        #[cfg(not(feature = "cuda"))]
        Err(NcclError::NotBuilt)
    }

    /// Returns the version, such as `(2, 30, 7)`.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Returns the library's file, or its name if the linker does not tell.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Opens the first candidate that is there.
    #[cfg(feature = "cuda")]
    fn first(candidates: &Candidates) -> Result<Self, NcclError> {
        let Candidates { libraries, named, environments } = candidates;
        let mut broken = None;
        for path in libraries {
            let unusable =
                |reason: String| NcclError::Unusable { path: path.display().to_string(), reason, named: *named };
            // The linker does not distinguish a missing file from one that it cannot load. A name without a folder is
            // taken to be missing.
            let is_file = path.components().count() > 1;
            match Functions::open(path) {
                Ok(functions) => return Self::with(functions, path).map_err(unusable),
                Err(reason) if is_file => broken = broken.or(Some(unusable(reason))),
                Err(_) => {}
            }
        }

        let looked_at: Vec<_> = environments.iter().map(|folder| folder.display().to_string()).collect();
        Err(broken.unwrap_or(NcclError::NotFound { looked_at: looked_at.join(", ") }))
    }

    #[cfg(feature = "cuda")]
    fn with(functions: Functions, path: &Path) -> Result<Self, String> {
        let version = functions.version().map_err(|error| error.to_string())?;
        if version < OLDEST {
            let (major, minor, patch) = version;
            return Err(format!("its version is {major}.{minor}.{patch}, and 2.14 is the oldest that can be aborted"));
        }

        let path = if path.components().count() > 1 { path.display().to_string() } else { mapped(path) };
        Ok(Self { path, version, functions })
    }
}

/// Returns the file that the linker has mapped for `name`.
#[cfg(feature = "cuda")]
fn mapped(name: &Path) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    let is_nccl = |file: &&str| file.rsplit('/').next().is_some_and(|name| name.starts_with("libnccl.so"));
    files.into_iter().find(is_nccl).map_or_else(|| name.display().to_string(), str::to_owned)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_library_that_is_named_but_cannot_be_loaded_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libnccl.so.2");
        std::fs::write(&file, "not a library").expect("writable");
        let named = Candidates { libraries: vec![file.clone()], named: true, environments: Vec::new() };
        let text = NcclLibrary::first(&named).expect_err("not a library").to_string();
        assert!(text.contains(&file.display().to_string()) && text.contains("KILN_NCCL names it"), "{text}");
    }

    #[test]
    fn missing_names_are_reported_as_not_found() {
        let missing = Candidates {
            libraries: vec![PathBuf::from("libnccl-which-nobody-has.so")],
            named: false,
            environments: vec![PathBuf::from("/opt/venv")],
        };
        let error = NcclLibrary::first(&missing).expect_err("nobody has it");
        assert_eq!(error, NcclError::NotFound { looked_at: "/opt/venv".into() });
    }
}
