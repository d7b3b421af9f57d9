//! A file of compiled kernels and autotune choices, for the same build of an executable on another machine.
//!
//! The file begins with lines of text, so that `head` shows what it is. The hash covers everything behind its line:
//!
//! ```text
//! kiln kernels 1
//! blake3 HEX
//! build HEX
//! made on NVIDIA H100 80GB HBM3
//!
//! (a bundle of CubeCL, in its flat format)
//! ```
//!
//! Kernels are looked up by their settings, the GPU's architecture and the driver's version of PTX. A file from another GPU or driver
//! is therefore harmless: its kernels are not found, and compiled.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// First line of the file.
#[cfg(any(feature = "cuda", test))]
const MAGIC: &str = "kiln kernels 1";

/// Suffix of the file that says which kernels a database has imported.
#[cfg(feature = "cuda")]
pub(super) const STAMP: &str = ".imported";
/// Suffix of the file that keeps two processes from importing at the same time.
#[cfg(feature = "cuda")]
pub(super) const LOCK: &str = ".lock";

/// Why a file of kernels cannot be written or used.
#[derive(Debug, Error)]
pub enum KernelFileError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// "read", "write", ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{0} is not a file of kernels")]
    Foreign(PathBuf),
    /// The file does not hold what was written.
    #[error("{path} is damaged ({reason}); copy it again, or make it anew")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// Another build wrote it.
    #[error(
        "{0} was made by another build of this program, whose kernels may differ; make it anew with this executable"
    )]
    OtherBuild(PathBuf),
    /// The linker left no identifier.
    #[error(
        "this executable has no build identifier, so a file of kernels could not be matched with it; link it with --build-id"
    )]
    NoBuildId,
    /// The process keeps no kernels, or its cache cannot be used.
    #[error("the cache of compiled kernels {0}")]
    Cache(String),
    /// The build has no kernels.
    #[error("this build compiles no kernels; build with the feature `cuda`")]
    NotBuilt,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Kernels and autotune choices.
    pub entries: usize,
    /// Size of the file.
    pub bytes: u64,
}

/// What was taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Kernels and autotune choices, without those that the cache already had.
    pub entries: usize,
    /// The GPU they were compiled on.
    pub made_on: String,
}

/// Writes all kernels and autotune choices in the cache of this process's build to `path`, replacing an earlier file of
/// kernels. `made_on` names the GPU. Call it after [`keep_kernels`](super::keep_kernels) and the work.
///
/// # Errors
/// If no cache is kept, the executable has no build identifier, another file is at `path`, or it cannot be written.
pub fn export_kernels(path: &Path, made_on: &str) -> Result<Exported, KernelFileError> {
    #[cfg(feature = "cuda")]
    {
        cuda::export(path, made_on)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (path, made_on);
        Err(KernelFileError::NotBuilt)
    }
}

/// Copies the kernels and autotune choices of `path` into the cache of this process. Returns `None` if that was done
/// before: another process or an earlier one has imported the same file, by length and modification time.
///
/// Call it after [`keep_kernels`](super::keep_kernels) and before the first device is opened. Entries that the cache
/// already has stay.
///
/// # Errors
/// If no cache is kept, or if the file cannot be read, is damaged, or was made by another build. The cache is then as before.
pub fn import_kernels(path: &Path) -> Result<Option<Imported>, KernelFileError> {
    #[cfg(feature = "cuda")]
    {
        cuda::import(path)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = path;
        Err(KernelFileError::NotBuilt)
    }
}

/// A read file: the build and the GPU, and the start of the bundle.
#[cfg(any(feature = "cuda", test))]
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    build: String,
    made_on: String,
    at: usize,
}

/// Returns the file of `bundle`.
#[cfg(any(feature = "cuda", test))]
fn assemble(build: &str, made_on: &str, bundle: &[u8]) -> Vec<u8> {
    let made_on = made_on.split_whitespace().collect::<Vec<_>>().join(" ");
    let hashed = [format!("build {build}\nmade on {made_on}\n\n").as_bytes(), bundle].concat();
    let hash = blake3::hash(&hashed).to_hex();
    [format!("{MAGIC}\nblake3 {hash}\n").as_bytes(), &hashed].concat()
}

/// Reads the lines before the bundle and checks the hash.
#[cfg(any(feature = "cuda", test))]
fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed, KernelFileError> {
    let damaged = |reason: &str| KernelFileError::Damaged { path: path.into(), reason: reason.into() };
    let (first, rest) = line(bytes).ok_or_else(|| KernelFileError::Foreign(path.into()))?;
    if first != MAGIC {
        return Err(KernelFileError::Foreign(path.into()));
    }

    let (hash, hashed) = line(rest).ok_or_else(|| damaged("it ends within its first lines"))?;
    let hash = hash.strip_prefix("blake3 ").ok_or_else(|| damaged("its hash is missing"))?;
    if blake3::hash(hashed).to_hex().as_str() != hash {
        return Err(damaged("its hash differs"));
    }

    let field = |rest, name| {
        let (text, rest) = line(rest)?;
        Some((text.strip_prefix(name)?.to_owned(), rest))
    };
    let header = || {
        let (build, rest) = field(hashed, "build ")?;
        let (made_on, rest) = field(rest, "made on ")?;
        let (_, bundle) = field(rest, "")?;
        Some(Parsed { build, made_on, at: bytes.len() - bundle.len() })
    };
    header().ok_or_else(|| damaged("another version wrote its first lines"))
}

/// Splits the first line off, if it is text of a reasonable length.
#[cfg(any(feature = "cuda", test))]
fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().take(256).position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::ffi::OsString;
    use std::fs::{self, File};
    use std::io::{self, Write};
    use std::path::{Path, PathBuf};
    use std::time::UNIX_EPOCH;

    use cubecl_environment::bundle::{self, BundleFormat, EmbeddedBundle, ExportOptions};
    use cubecl_environment::bytes::Bytes;
    use cubecl_environment::environment;

    use super::super::{COUNTER, build_id};
    use super::{Exported, Imported, KernelFileError, LOCK, STAMP, assemble, parse};

    pub(super) fn export(path: &Path, made_on: &str) -> Result<Exported, KernelFileError> {
        let (build, database) = (own_build()?, database()?);
        if let Ok(mut file) = File::open(path) {
            // Only a file of kernels is replaced.
            let mut start = [0; super::MAGIC.len()];
            let is_ours = io::Read::read_exact(&mut file, &mut start).is_ok() && start == *super::MAGIC.as_bytes();
            if !is_ours {
                return Err(KernelFileError::Foreign(path.into()));
            }
        }
        if !database.is_file() {
            return Err(KernelFileError::Cache(format!("holds nothing yet: {} is missing", database.display())));
        }

        // CubeCL writes a file of its own.
        let bundled = with_suffix(path, ".bundle.tmp");
        let _ = fs::remove_file(&bundled);
        let excluded_namespaces = vec!["records".into()];
        let options = ExportOptions {
            format: BundleFormat::Flat,
            name: build.clone(),
            excluded_namespaces,
            ..Default::default()
        };
        let collected = bundle::export(&[&database], &bundled, &options)
            .map_err(|error| KernelFileError::Cache(format!("cannot be read: {error}")))
            .and_then(|_| fs::read(&bundled).map_err(io_error("read", &bundled)));
        let _ = fs::remove_file(&bundled);
        let bundle = collected?;
        let entries = open(path, bundle.clone())?.len();

        let temporary = with_suffix(path, ".tmp");
        let bytes = assemble(&build, made_on, &bundle);
        let written = write_synced(&temporary, &bytes).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(io_error("write", path))?;
        Ok(Exported { entries, bytes: bytes.len() as u64 })
    }

    pub(super) fn import(path: &Path) -> Result<Option<Imported>, KernelFileError> {
        let (build, database) = (own_build()?, database()?);
        let stamp = stamp_of(path).map_err(io_error("read", path))?;
        let stamp_file = with_suffix(&database, STAMP);
        let is_done = || database.is_file() && fs::read_to_string(&stamp_file).is_ok_and(|done| done == stamp);
        if is_done() {
            return Ok(None);
        }

        // Another rank may be importing. A folder that cannot be written has no lock; the import then fills the memory.
        let lock = File::create(with_suffix(&database, LOCK)).and_then(|file| file.lock().map(|()| file));
        if is_done() {
            return Ok(None);
        }
        let mut bytes = fs::read(path).map_err(io_error("read", path))?;
        let parsed = parse(path, &bytes)?;
        if parsed.build != build {
            return Err(KernelFileError::OtherBuild(path.into()));
        }
        bytes.drain(..parsed.at);
        let report = bundle::import(&open(path, bytes)?);
        if report.failed > 0 {
            let reason =
                format!("took {} of the entries of {} and refused {}", report.imported, path.display(), report.failed);
            return Err(KernelFileError::Cache(reason));
        }

        // Without its stamp the file is imported again, which changes nothing.
        let _ = fs::write(&stamp_file, stamp);
        drop(lock);
        Ok(Some(Imported { entries: report.imported, made_on: parsed.made_on }))
    }

    fn own_build() -> Result<String, KernelFileError> {
        build_id().map(|id| format!("{id:032x}")).ok_or(KernelFileError::NoBuildId)
    }

    /// Returns the database of this process.
    fn database() -> Result<PathBuf, KernelFileError> {
        match COUNTER.get() {
            Some(_) => Ok(environment::path()),
            None => Err(KernelFileError::Cache("is not kept: neither XDG_CACHE_HOME nor HOME is set".into())),
        }
    }

    /// Identifies a file on this machine.
    fn stamp_of(path: &Path) -> io::Result<String> {
        let metadata = fs::metadata(path)?;
        let since = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{} {} {}", metadata.len(), since.as_nanos(), path.display()))
    }

    fn open(path: &Path, bundle: Vec<u8>) -> Result<EmbeddedBundle, KernelFileError> {
        let damaged = |reason: String| KernelFileError::Damaged { path: path.into(), reason };
        EmbeddedBundle::open(Bytes::from_bytes_vec(bundle)).map_err(|error| damaged(error.to_string()))
    }

    fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
        let mut name = OsString::from(path);
        name.push(suffix);
        name.into()
    }

    fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KernelFileError {
        let path = path.to_path_buf();
        move |source| KernelFileError::Io { action, path, source }
    }
}

#[cfg(test)]
mod tests;
