//! A kernel is compiled when it is first launched. Here compiled kernels are kept between processes, and counted.

#[cfg(feature = "cuda")]
use std::fs;
use std::path::Path;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use cubecl::config::cache::CacheConfig;
#[cfg(feature = "cuda")]
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
#[cfg(feature = "cuda")]
use cubecl::execution::{ProcessMode, ProcessModeOverride, StatisticsCollector};

/// Kernels that were launched for the first time, and choices between kernels that were made for the first time, since
/// [`keep_kernels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelCount {
    /// Kernels that had to be compiled.
    pub compiled: usize,
    /// Kernels that an earlier process had compiled.
    pub loaded: usize,
    /// Choices between several kernels that were made by timing them.
    pub tuned: usize,
}

impl KernelCount {
    /// Kernels that were launched for the first time, wherever they came from.
    pub fn first_launched(&self) -> usize {
        self.compiled + self.loaded
    }
}

/// Databases of other builds that are left in the folder: their kernels are of no use to this build.
#[cfg(feature = "cuda")]
const OTHER_BUILDS: usize = 3;

/// Keeps compiled kernels and the choices of autotune in a file of `folder`, so that the next process of the same executable
/// finds them, and begins to count, see [`kernel_count`]. Call it before the first device is opened; later it does nothing.
///
/// Each executable has a file of its own: a kernel's name does not tell which code it was compiled from. Of other
/// executables' files the oldest are deleted. A `cubecl.toml` that names another place is obeyed. A folder that cannot be
/// written costs the compilation and nothing else. Backends that compile nothing keep nothing.
pub fn keep_kernels(folder: &Path) {
    #[cfg(feature = "cuda")]
    {
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        let own = format!("kernels-{}", executable());
        let is_kept_here = matches!(config.environment.path, CacheConfig::Target);
        if is_kept_here {
            config.environment.path = CacheConfig::Directory(folder.to_path_buf());
            config.environment.name = own.clone();
        }
        config.compilation.cache = true;
        if CubeClRuntimeConfig::try_set(config) && is_kept_here {
            forget_others(folder, &own);
        }
        COUNTER.get_or_init(Counter::start);
    }
    #[cfg(not(feature = "cuda"))]
    let _ = folder;
}

/// What was compiled, loaded and tuned since [`keep_kernels`]; `None` if it was not called or nothing compiles.
pub fn kernel_count() -> Option<KernelCount> {
    #[cfg(feature = "cuda")]
    {
        let statistics = COUNTER.get()?.collector.statistics();
        let (kernels, tunes) = (statistics.compilation, statistics.autotune);
        Some(KernelCount { compiled: kernels.compiled, loaded: kernels.loaded, tuned: tunes.measured })
    }
    #[cfg(not(feature = "cuda"))]
    None
}

#[cfg(feature = "cuda")]
static COUNTER: OnceLock<Counter> = OnceLock::new();

/// Counts for as long as it is there: to the end of the process.
#[cfg(feature = "cuda")]
struct Counter {
    collector: StatisticsCollector,
    /// Launches run as ever; only under an override are they counted.
    _counted: ProcessModeOverride,
}

#[cfg(feature = "cuda")]
impl Counter {
    fn start() -> Self {
        let collector = StatisticsCollector::new();
        let counted = ProcessModeOverride::new(ProcessMode::Execute, &collector);
        Self { collector, _counted: counted }
    }
}

/// A name for this executable that another build of it does not have: its length and when it was written.
#[cfg(feature = "cuda")]
fn executable() -> String {
    let metadata = std::env::current_exe().and_then(fs::metadata);
    let written = metadata.as_ref().ok().and_then(|metadata| metadata.modified().ok());
    let since = written.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let nanos = since.map_or(0, |since| since.as_nanos());
    format!("{:x}-{nanos:x}", metadata.map_or(0, |metadata| metadata.len()))
}

/// Deletes all but the newest databases of other executables.
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
        for suffix in ["", "-wal", "-shm", "-tshm"] {
            // Whoever still has it open keeps it; what cannot be deleted stays.
            let _ = fs::remove_file(folder.join(format!("{name}{suffix}")));
        }
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
        forget_others(&folder, "kernels-5");
        let mut left: Vec<_> =
            fs::read_dir(&folder).expect("there").map(|entry| entry.expect("there").file_name()).collect();
        left.sort();
        fs::remove_dir_all(&folder).expect("there");
        assert_eq!(left, ["a.db", "kernels-2.db", "kernels-3.db", "kernels-4.db", "kernels-5.db"]);
    }
}
