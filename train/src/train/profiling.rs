//! `train.profile_at`: steps of a run that are measured while it trains.
//!
//! The measurement is not part of this crate: the program passes one on, as the command does with `kiln-lab`'s. The step that is profiled
//! is the run's own, and so is the next one, whose memory is watched. Neither computes anything else than without a profile.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_ranks::Ranks;

use super::rehearsed::Rehearsed;
use crate::config::Config;

/// The folder of the profile of a step begins with this, in the run folder; the number of the step follows.
pub const PROFILE_FOLDER: &str = "profile-step-";

/// What is recorded of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// Where its time goes.
    Times,
    /// The memory in use. Nothing of the step is replayed.
    Memory,
}

/// Measures steps of a run that goes on. The device has nothing to do whenever a function is called.
pub trait StepProfiler: fmt::Debug + Send {
    /// Starts to record the next step.
    fn begin(&mut self, watched: Watched, device: &Device);

    /// Stops to record `step`.
    ///
    /// # Errors
    /// If nothing was recorded.
    fn end(&mut self, watched: Watched, step: Rehearsed, run: &ProfiledRun<'_>) -> Result<()>;

    /// Writes what was recorded, together with the other ranks, and returns a sentence about it. `notes` belong to it.
    ///
    /// # Errors
    /// If a file cannot be written, or if the device or another rank fails.
    fn write(&mut self, run: &ProfiledRun<'_>, notes: &[String]) -> Result<String>;
}

/// The run that a profiled step belongs to.
#[derive(Debug, Clone, Copy)]
pub struct ProfiledRun<'a> {
    /// The step.
    pub step: u64,
    /// Steps that this process has taken before.
    pub before: u64,
    /// The folder of the profile.
    pub folder: &'a Path,
    /// The configuration.
    pub config: &'a Config,
    /// Parameters that are trained.
    pub n_params: usize,
    /// The device.
    pub device: &'a Device,
    /// The compute dtype.
    pub dtype: FloatDType,
    /// The processes that take part in the profile.
    pub ranks: &'a Ranks,
}

/// The steps of a run that are profiled.
#[derive(Debug)]
pub(super) struct Profiling {
    pub(super) profiler: Option<Box<dyn StepProfiler>>,
    pub(super) steps: Vec<u64>,
    run_dir: PathBuf,
    /// The step that this process goes on from.
    pub(super) start_step: u64,
    /// What is being recorded.
    pub(super) begun: Option<Begun>,
    /// The step whose times are recorded and not written.
    pub(super) pending: Option<u64>,
}

/// A step that is being recorded.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) watched: Watched,
    pub(super) started: Instant,
    /// Micro-batches before it: replayed ones and all.
    pub(super) counted: Option<[u64; 2]>,
}

impl Profiling {
    pub(super) fn new(
        profiler: Option<Box<dyn StepProfiler>>,
        config: &Config,
        run_dir: &Path,
        start_step: u64,
    ) -> Self {
        let steps = config.train.profile_at.steps().to_vec();
        Self { profiler, steps, run_dir: run_dir.to_path_buf(), start_step, begun: None, pending: None }
    }

    /// Returns what is recorded of step `next`.
    pub(super) fn watched(&self, next: u64) -> Option<Watched> {
        match self.pending {
            _ if self.profiler.is_none() => None,
            Some(_) => Some(Watched::Memory),
            None => self.steps.contains(&next).then_some(Watched::Times),
        }
    }

    pub(super) fn folder(&self, step: u64) -> PathBuf {
        self.run_dir.join(format!("{PROFILE_FOLDER}{step}"))
    }

    /// Says at the start what will not be profiled.
    pub(super) fn left_out(&self) -> Option<String> {
        if self.steps.is_empty() {
            return None;
        }
        if self.profiler.is_none() {
            return Some("train.profile_at: this program does not profile steps, kiln train does".into());
        }
        let is_missed = |step: &&u64| **step <= self.start_step && !self.folder(**step).exists();
        let missed = listed(self.steps.iter().filter(is_missed))?;
        Some(format!("train.profile_at: {missed} not profiled, because the run goes on from step {}", self.start_step))
    }

    /// Says at the end which steps the run has not reached.
    pub(super) fn not_reached(&self, last: u64) -> Option<String> {
        self.profiler.as_ref()?;
        let missed = listed(self.steps.iter().filter(|step| **step > last))?;
        Some(format!("train.profile_at: {missed} not profiled, because the run ended with step {last}"))
    }
}

/// `step 5 was`, `steps 5, 10 were`.
fn listed<'a>(steps: impl Iterator<Item = &'a u64>) -> Option<String> {
    let steps: Vec<String> = steps.map(ToString::to_string).collect();
    match steps.len() {
        0 => None,
        1 => Some(format!("step {} was", steps[0])),
        _ => Some(format!("steps {} were", steps.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_named_that_a_run_cannot_profile() {
        #[derive(Debug)]
        struct Idle;

        impl StepProfiler for Idle {
            fn begin(&mut self, _: Watched, _: &Device) {}

            fn end(&mut self, _: Watched, _: Rehearsed, _: &ProfiledRun<'_>) -> Result<()> {
                Ok(())
            }

            fn write(&mut self, _: &ProfiledRun<'_>, _: &[String]) -> Result<String> {
                Ok(String::new())
            }
        }

        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::default();
        let profiling =
            |config: &Config, start_step| Profiling::new(Some(Box::new(Idle)), config, folder.path(), start_step);
        assert_eq!(profiling(&config, 3).left_out(), None);
        config.train.profile_at = [2, 3, 9].into();
        let found = profiling(&config, 3);
        assert!(
            found
                .left_out()
                .expect("a note")
                .contains("steps 2, 3 were not profiled, because the run goes on from step 3")
        );
        std::fs::create_dir(folder.path().join("profile-step-2")).expect("a folder");
        assert!(found.left_out().expect("a note").contains("step 3 was not profiled"));
        assert!(
            found
                .not_reached(8)
                .expect("a note")
                .contains("step 9 was not profiled, because the run ended with step 8")
        );
        assert_eq!(found.not_reached(9), None);
        assert_eq!([3, 9, 10].map(|step| found.watched(step)), [Some(Watched::Times), Some(Watched::Times), None]);
        let alone = Profiling::new(None, &config, folder.path(), 0);
        assert!(alone.left_out().expect("a note").contains("kiln train does") && alone.watched(3).is_none());
    }
}
