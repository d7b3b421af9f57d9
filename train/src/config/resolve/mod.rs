//! The way of a value from its source into the configuration, in five stages. Each is a function from one type to the next, and hands on
//! the mistakes and notes that it found, so that one call reports all of them.
//!
//! ```text
//! Sources -read-> Given -choose-> Based -merge-> Merged -adjust-> Adjusted -check-> Resolved
//! ```
//!
//! The given values win over the preset: preset < file < `--set`.

mod adjust;
mod check;
mod choose;
mod dotted;
mod epochs;
mod file_paths;
mod keys;
mod lines;
mod lists;
mod meant;
mod merge;
mod mistakes;
mod other_names;
mod other_values;
mod read;
mod report;
mod sources;
mod syntax;

pub use check::Resolved;
pub use choose::{Base, Chosen};
pub(super) use dotted::lookup;
#[doc(hidden)]
pub use meant::meant_by;
pub use report::ConfigError;
pub use sources::Sources;

use super::Config;

/// Merges the layers and validates the result.
///
/// # Errors
/// If a source cannot be read, or a key or value is wrong; the error lists all mistakes.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    resolve(sources).map(|resolved| resolved.config)
}

/// Merges the layers, lets defaults give way to the keys that are set, and validates the result.
///
/// # Errors
/// As [`load`].
pub fn resolve(sources: &Sources) -> Result<Resolved, ConfigError> {
    let given = read::read(sources);
    let based = choose::choose(given, sources);
    let merged = merge::merge(based);
    let adjusted = adjust::adjust(merged, sources);
    check::check(adjusted, sources)
}

/// Returns the task that the sources name, as they spell it.
#[doc(hidden)]
pub fn named_task(sources: &Sources) -> Option<String> {
    let given = read::read(sources).values.into_iter().rev();
    given.into_iter().find(|(key, _)| key == "task").and_then(|(_, task)| task.as_str().map(str::to_owned))
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
