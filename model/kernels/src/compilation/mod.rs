//! The cache of compiled kernels.
//!
//! A kernel is compiled when it is first launched: one after another, on the device's thread. [`compile_ahead`] compiles
//! the kernels of some work together, on all cores. [`keep_kernels`] keeps compiled kernels between processes,
//! [`export_kernels`] and [`import_kernels`] bring them to another machine, and [`kernel_count`] counts them. All of it is
//! process-wide: CubeCL reads its configuration once, when it opens the first device.

mod ahead;
mod file;

#[cfg(feature = "cuda")]
use std::fs;
use std::path::Path;
#[cfg(feature = "cuda")]
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
#[cfg(feature = "cuda")]
use std::thread;

#[cfg(feature = "cuda")]
use cubecl::config::cache::CacheConfig;
#[cfg(feature = "cuda")]
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
#[cfg(feature = "cuda")]
use cubecl::execution::{ExecutionStatistics, ProcessMode, ProcessModeOverride, StatisticsCollector};
#[cfg(feature = "cuda")]
use cubecl::hash::StableHasher;
#[cfg(feature = "cuda")]
use cubecl_server::compiler::build_id_hash;

#[cfg(feature = "cuda")]
use crate::device_queue::programs;

pub use ahead::{AheadError, compile_ahead};
pub use file::{Exported, Imported, KernelFileError, export_kernels, import_kernels};

/// First launches of kernels and first autotune choices since [`keep_kernels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelCount {
    /// Kernels that this process compiled.
    pub compiled: usize,
    /// Kernels loaded from the cache of an earlier process.
    pub loaded: usize,
    /// Autotune choices between several kernels, made by timing them.
    pub tuned: usize,
}

impl KernelCount {
    /// Returns the number of kernels launched for the first time, compiled or loaded.
    pub fn first_launched(&self) -> usize {
        self.compiled + self.loaded
    }

    /// Returns what was added to the `earlier` count.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            compiled: self.compiled - earlier.compiled,
            loaded: self.loaded - earlier.loaded,
            tuned: self.tuned - earlier.tuned,
        }
    }
}

/// Number of other builds' databases that stay in the folder. This build cannot use their kernels.
#[cfg(feature = "cuda")]
const OTHER_BUILDS: usize = 3;

/// Caches compiled kernels and autotune choices in a file of `folder`, for the next process of the same executable, and
/// starts the counters of [`kernel_count`].
///
/// Call it before the first device is opened: later calls have no effect. The cache belongs to the process, not to a
/// run.
///
/// Each build of an executable has a file of its own, because a kernel's name does not identify the code it was compiled
/// from. The oldest files of other builds are deleted. A `cubecl.toml` that names another location takes precedence. If
/// `folder` cannot be written, kernels are compiled again in the next process. Backends without a compiler cache
/// nothing.
pub fn keep_kernels(folder: &Path) {
    #[cfg(feature = "cuda")]
    {
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        let own = format!("kernels-{}", executable());
        // Counted here: the device's thread may be kept on the cores of one cache, and would count only them.
        let cores = thread::available_parallelism().ok().map(usize::from);
        config.compilation.parallelism = config.compilation.parallelism.or(cores);
        let is_kept_here = matches!(config.environment.path, CacheConfig::Target);
        if is_kept_here {
            config.environment.path = CacheConfig::Directory(folder.to_path_buf());
            config.environment.name = own.clone();
        }
        config.compilation.cache = true;
        if CubeClRuntimeConfig::try_set(config) && is_kept_here {
            forget_others(folder, &own);
            programs::keep(folder.join(programs_of(&own)));
        }
        Counter::started();
    }
    #[cfg(not(feature = "cuda"))]
    let _ = folder;
}

/// Returns what was compiled, loaded and tuned since [`keep_kernels`], or `None` if it was not called or the build has
/// no kernels to compile.
pub fn kernel_count() -> Option<KernelCount> {
    #[cfg(feature = "cuda")]
    {
        Some(COUNTER.get()?.count())
    }
    #[cfg(not(feature = "cuda"))]
    None
}

#[cfg(feature = "cuda")]
static COUNTER: OnceLock<Counter> = OnceLock::new();

/// Counts until the process ends.
#[cfg(feature = "cuda")]
struct Counter {
    collector: StatisticsCollector,
    /// Launches run as usual; CubeCL counts them only under an override. `None` while [`Discarding`] has its own.
    executing: Mutex<Option<ProcessModeOverride>>,
}

#[cfg(feature = "cuda")]
impl Counter {
    /// Returns the counter of this process, which counts from the first call.
    fn started() -> &'static Self {
        COUNTER.get_or_init(|| {
            let collector = StatisticsCollector::new();
            let executing = Mutex::new(Some(ProcessModeOverride::new(ProcessMode::Execute, &collector)));
            Self { collector, executing }
        })
    }

    fn statistics(&self) -> ExecutionStatistics {
        self.collector.statistics()
    }

    fn count(&self) -> KernelCount {
        let ExecutionStatistics { compilation: kernels, autotune } = self.statistics();
        let (compiled, loaded) = programs::counts();
        KernelCount { compiled: kernels.compiled + compiled, loaded: kernels.loaded + loaded, tuned: autotune.measured }
    }

    /// Discards all launches of this process, and queues their kernels instead, until the result is dropped.
    fn discard(&self) -> Discarding<'_> {
        let mut executing = self.executing.lock().unwrap_or_else(PoisonError::into_inner);
        drop(executing.take()); // one override is open at a time
        programs::collect(true);
        let queueing = Some(ProcessModeOverride::new(ProcessMode::CompileOnly, &self.collector));
        Discarding { counter: self, executing, queueing }
    }
}

/// The time in which launches are discarded.
#[cfg(feature = "cuda")]
struct Discarding<'a> {
    counter: &'a Counter,
    executing: MutexGuard<'a, Option<ProcessModeOverride>>,
    queueing: Option<ProcessModeOverride>,
}

#[cfg(feature = "cuda")]
impl Drop for Discarding<'_> {
    fn drop(&mut self) {
        drop(self.queueing.take());
        programs::collect(false);
        *self.executing = Some(ProcessModeOverride::new(ProcessMode::Execute, &self.counter.collector));
    }
}

/// Returns the linker's identifier of this build, hashed as CubeCL hashes it for the keys of its cache; `None` if the
/// linker wrote none. It is equal wherever the executable is copied to.
#[cfg(feature = "cuda")]
fn build_id() -> Option<u128> {
    let id = build_id_hash();
    (id != StableHasher::hash_one(&None::<&'static [u8]>)).then_some(id)
}

/// Returns a name that distinguishes this executable from other builds of it: its build identifier, or else its length
/// and modification time.
#[cfg(feature = "cuda")]
fn executable() -> String {
    if let Some(id) = build_id() {
        return format!("{id:032x}");
    }
    let metadata = std::env::current_exe().and_then(fs::metadata);
    let written = metadata.as_ref().ok().and_then(|metadata| metadata.modified().ok());
    let since = written.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let nanos = since.map_or(0, |since| since.as_nanos());
    format!("{:x}-{nanos:x}", metadata.map_or(0, |metadata| metadata.len()))
}

/// Returns the name of the folder with the programs of executable `name`, next to its database.
#[cfg(feature = "cuda")]
fn programs_of(name: &str) -> String {
    format!("{name}.programs")
}

/// Deletes all but the newest [`OTHER_BUILDS`] databases of other executables.
#[cfg(feature = "cuda")]
fn forget_others(folder: &Path, own: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut others: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let is_other = name.starts_with("kernels-") && name.ends_with(".db") && !name.starts_with(own);
            is_other.then_some((entry.metadata().ok()?.modified().ok()?, name))
        })
        .collect();

    others.sort();
    others.truncate(others.len().saturating_sub(OTHER_BUILDS));
    for (_, name) in others {
        for suffix in ["", "-wal", "-shm", "-tshm", file::STAMP, file::LOCK] {
            // A process that has the file open keeps its contents; a file that cannot be deleted stays.
            let _ = fs::remove_file(folder.join(format!("{name}{suffix}")));
        }
        let _ = fs::remove_dir_all(folder.join(programs_of(name.trim_end_matches(".db"))));
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_oldest_databases_of_other_builds_are_deleted() {
        let folder = std::env::temp_dir().join(format!("kiln-kernels-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("writable");
        for (age, name) in
            ["kernels-1.db", "kernels-2.db", "kernels-3.db", "kernels-4.db", "kernels-5.db", "a.db"].iter().enumerate()
        {
            let file = fs::File::create(folder.join(name)).expect("writable");
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(100 - age as u64);
            file.set_modified(then).expect("a time");
        }
        fs::write(folder.join("kernels-1.db-wal"), "").expect("writable");
        for name in ["kernels-1", "kernels-5"] {
            fs::create_dir(folder.join(programs_of(name))).expect("writable");
        }
        forget_others(&folder, "kernels-5");
        let mut left: Vec<_> =
            fs::read_dir(&folder).expect("there").map(|entry| entry.expect("there").file_name()).collect();
        left.sort();
        fs::remove_dir_all(&folder).expect("there");
        let others = ["a.db", "kernels-2.db", "kernels-3.db", "kernels-4.db", "kernels-5.db", "kernels-5.programs"];
        assert_eq!(left, others);
    }
}
