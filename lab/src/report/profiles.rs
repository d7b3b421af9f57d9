//! The profiles of steps that a run has taken (`train.profile_at`), for its page.

use std::fs;
use std::path::Path;

use kiln_data::files::read_file;
use kiln_data::terminal::in_one_line;
use kiln_metrics::units::thousands;
use kiln_train::train::PROFILE_FOLDER;

use crate::diagnose::profile::{Profile, sums};

/// The file with all rows of all tables of a profile.
pub const PROFILE_FILE: &str = "profile.json";
/// Profiles that are shown, from the first step.
const MOST_PROFILES: usize = 20;
/// Operators of a profile that are shown.
const MOST_OPERATORS: usize = 12;
/// Notes of a profile that are shown.
const MOST_NOTES: usize = 8;

/// The profile of a step.
#[derive(Debug, Clone)]
pub struct StepProfile {
    /// The step.
    pub(crate) step: u64,
    /// What was found, or why it cannot be shown.
    pub(crate) found: Result<Profile, String>,
}

impl StepProfile {
    /// Reads the profiles in the folder of a run, in the order of their steps.
    pub(crate) fn all(run: &Path) -> Vec<Self> {
        let entries = fs::read_dir(run).into_iter().flatten().flatten();
        let steps = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(PROFILE_FOLDER)?.parse().ok());
        let mut steps: Vec<u64> = steps.collect();
        steps.sort_unstable();
        steps.truncate(MOST_PROFILES);
        let read = |step: u64| {
            let bytes = read_file(&run.join(format!("{PROFILE_FOLDER}{step}")).join(PROFILE_FILE));
            let found = bytes.map_err(|error| format!("{PROFILE_FILE} cannot be read: {error}"));
            let parsed = |bytes: Vec<u8>| {
                serde_json::from_slice(&bytes)
                    .map_err(|error| format!("{PROFILE_FILE} is not a profile of this version: {error}"))
            };
            Self { step, found: found.and_then(parsed) }
        };
        steps.into_iter().map(read).collect()
    }

    /// Returns sentences about the step.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let profile = match &self.found {
            Ok(profile) => profile,
            Err(why) => return vec![in_one_line(why)],
        };
        let mut sentences = vec![format!(
            "{:.2} ms on {}, {} tokens per second, padding {:.0} %.",
            profile.step_ms(),
            in_one_line(&profile.device),
            thousands(profile.tokens_per_sec),
            100.0 * profile.padding_ratio
        )];
        sentences.extend(profile.memory.as_ref().map(|memory| {
            let mib = memory.peak.total() as f64 / f64::from(1 << 20);
            let operator = in_one_line(&memory.peak.operator);
            format!("In the step after it, memory in use was at most {} MiB, at {operator}.", thousands(mib))
        }));
        sentences.extend(profile.notes.iter().take(MOST_NOTES).map(|note| format!("Note: {}.", in_one_line(note))));
        sentences
    }

    /// Returns the operators that took most time, each with its cells: name, calls, milliseconds, share and part of the roof.
    pub(crate) fn operators(&self) -> Vec<Vec<String>> {
        let Ok(profile) = &self.found else { return Vec::new() };
        let cells = |sum: crate::diagnose::profile::Sum<'_>| {
            let roof = sum.least_ms.map_or(String::new(), |least| format!("{:.0} %", 100.0 * least / sum.total_ms));
            vec![
                in_one_line(sum.name),
                sum.calls.to_string(),
                format!("{:.3}", sum.total_ms),
                format!("{:.1} %", 100.0 * sum.share),
                roof,
            ]
        };
        sums(&profile.operators).into_iter().take(MOST_OPERATORS).map(cells).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_come_in_the_order_of_their_steps_and_a_damaged_one_says_so() {
        let run = tempfile::tempdir().expect("a folder");
        assert!(StepProfile::all(run.path()).is_empty() && StepProfile::all(&run.path().join("missing")).is_empty());
        for (folder, text) in [("profile-step-20", Some("{")), ("profile-step-3", None), ("profile-step-x", None)] {
            fs::create_dir(run.path().join(folder)).expect("a folder");
            if let Some(text) = text {
                fs::write(run.path().join(folder).join(PROFILE_FILE), text).expect("writable");
            }
        }
        let found = StepProfile::all(run.path());
        assert_eq!(found.iter().map(|profile| profile.step).collect::<Vec<_>>(), [3, 20]);
        assert!(found[0].sentences()[0].contains("cannot be read"), "{:?}", found[0].sentences());
        assert!(found[1].sentences()[0].contains("is not a profile"), "{:?}", found[1].sentences());
        assert!(found[1].operators().is_empty());
    }
}
