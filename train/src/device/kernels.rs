//! Kernels that a process need not compile: the cache of earlier processes, and a file of kernels from another machine.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Name of the file of kernels that is used if it lies next to the executable.
pub const KERNEL_FILE: &str = "kiln.kernels";
/// The environment variable that names another file of kernels.
pub const KERNEL_FILE_VARIABLE: &str = "KILN_KERNEL_FILE";

/// Notes on the file of kernels that nobody has taken yet.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The folder of compiled kernels that later processes reuse: `kiln` in the user's cache folder, if there is one.
pub fn kernel_folder() -> Option<PathBuf> {
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("kiln"))
}

/// Returns notes on the file of kernels, each once.
pub fn take_kernel_notes() -> Vec<String> {
    std::mem::take(&mut NOTES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps compiled kernels for later processes and imports the kernels of a file, once per process.
#[cfg(feature = "cuda")]
pub(super) fn keep() {
    use kiln_kernels::compilation::{Imported, import_kernels, keep_kernels};

    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if let Some(folder) = kernel_folder() {
            keep_kernels(&folder);
        }
        let Some(file) = kernel_file() else { return };
        let note = match import_kernels(&file) {
            Ok(None) => return,
            Ok(Some(Imported { entries, made_on })) => {
                format!("{entries} kernels and choices from {}, made on {made_on}", file.display())
            }
            Err(error) => format!("kernels are compiled anew, because {error}"),
        };
        NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    });
}

/// Returns the file of kernels: the one that the environment names, or the one next to the executable if there is one.
#[cfg(feature = "cuda")]
fn kernel_file() -> Option<PathBuf> {
    let neighbour = || Some(std::env::current_exe().ok()?.with_file_name(KERNEL_FILE)).filter(|file| file.is_file());
    set(KERNEL_FILE_VARIABLE).or_else(neighbour)
}

/// Returns the path in an environment variable that is not empty.
fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
