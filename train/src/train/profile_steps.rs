//! The trainer's part of `train.profile_at`: it lets the device come to rest around a step, and has the step measured.

use std::time::Instant;

use anyhow::{Context, Result};
use kiln_metrics::logging::Activity;
use kiln_ranks::Ranks;

use super::feed::Group;
use super::profiling::{Begun, ProfiledRun, StepProfiler, Watched};
use super::rehearsed::RehearsedStep;
use super::trainer::Trainer;
use crate::eval::Model;
use crate::metrics::deferred::StepFacts;
use crate::metrics::{Round, host_sync};

impl<M: Model> Trainer<M> {
    /// Starts to record the next step, if it is profiled.
    pub(super) fn begin_profile(&mut self) -> Result<()> {
        let Some(watched) = self.profiling.watched(self.state.step + 1) else { return Ok(()) };
        // Where replicas take steps alone, rank 0 speaks for all.
        if self.state.exchange.replicas().is_some() && !self.state.ranks.is_first() {
            return Ok(());
        }
        let device = self.state.device.clone();
        host_sync::waiting(|| device.sync()).context("waiting for the device before a step that is profiled")?; // host sync
        self.gradients.pause(watched == Watched::Memory);
        let Some(profiler) = &mut self.profiling.profiler else { return Ok(()) };
        profiler.begin(watched, &device);
        self.profiling.begun = Some(Begun { watched, started: Instant::now(), counted: self.gradients.counted() });
        Ok(())
    }

    /// Stops to record the step that was just enqueued, and writes its profile once its memory is known, too.
    pub(super) fn end_profile(&mut self, group: &Group, facts: &StepFacts) -> Result<()> {
        let Some(Begun { watched, started, counted }) = self.profiling.begun.take() else { return Ok(()) };
        let enqueued = Instant::now();
        let device = self.state.device.clone();
        host_sync::waiting(|| device.sync()).context("waiting for the device after a step that is profiled")?; // host sync
        let ended = Instant::now();

        let replayed = self.gradients.counted().zip(counted).map(|(now, then)| [now[0] - then[0], now[1] - then[1]]);
        let step = RehearsedStep {
            facts: facts.clone(),
            shapes: group.shapes().collect(),
            replayed_share: replayed.map(|[replayed, all]| replayed as f64 / all.max(1) as f64),
            started,
            ended: enqueued,
        };
        self.gradients.pause(false);
        self.with_profiler(|profiler, run| {
            profiler.end(watched, Round { started, enqueued, ended, results: vec![step] }, run).map(|()| String::new())
        })?;
        match watched {
            Watched::Memory => self.write_profile(),
            Watched::Times => {
                self.profiling.pending = Some(self.state.step);
                let is_next = self.profiling.steps.contains(&(self.state.step + 1));
                if is_next { self.write_profile() } else { Ok(()) }
            }
        }
    }

    /// Writes the profile of the step that is recorded and not written, if there is one. The time for it is not training time.
    pub(super) fn write_profile(&mut self) -> Result<()> {
        let Some(step) = self.profiling.pending else { return Ok(()) };
        let started = Instant::now();
        self.reporting.logging.begin(Activity::Work("writing the profile"))?;
        let mut notes = Vec::new();
        if self.state.step == step {
            let why = match self.profiling.steps.contains(&(step + 1)) {
                true => "the next step is profiled, too",
                false => "the run ended with this step",
            };
            notes.push(format!(
                "the memory in use is not known, because it is watched in the step after this one, and {why}"
            ));
        }

        // A profile that cannot be written does not end the run.
        let note = match self.with_profiler(|profiler, run| profiler.write(run, &notes)) {
            Ok(note) => note,
            // Other ranks would wait for this one.
            Err(error) if self.state.ranks.are_many() => return Err(error),
            Err(error) => format!("train.profile_at: the profile of step {step} was not written: {error:#}"),
        };
        self.profiling.pending = None;
        self.reporting.logging.note(&note)?;
        self.reporting.measured.exclude(started.elapsed());
        self.reporting.device_clock.exclude_pause();
        Ok(())
    }

    /// Notes at the start which steps of `train.profile_at` are not profiled.
    pub(super) fn note_profiles(&mut self) -> Result<()> {
        self.profiling.left_out().map_or(Ok(()), |note| self.reporting.logging.note(&note))
    }

    /// Notes at the end which steps of `train.profile_at` the run has not reached.
    pub(super) fn note_missed_profiles(&mut self) -> Result<()> {
        self.profiling.not_reached(self.state.step).map_or(Ok(()), |note| self.reporting.logging.note(&note))
    }

    /// Makes a call of the profiler, for the step that is recorded.
    fn with_profiler(
        &mut self,
        call: impl FnOnce(&mut dyn StepProfiler, &ProfiledRun<'_>) -> Result<String>,
    ) -> Result<String> {
        let Self { state, config, profiling, reporting, .. } = self;
        let step = profiling.pending.unwrap_or(state.step);
        let folder = profiling.folder(step);
        let alone = Ranks::alone();
        let Some(profiler) = &mut profiling.profiler else { return Ok(String::new()) };
        let run = ProfiledRun {
            step,
            before: (step - 1).saturating_sub(profiling.start_step),
            folder: &folder,
            config,
            n_params: state.optimizer.table().n_params(),
            device: &state.device,
            dtype: state.dtype,
            ranks: if state.exchange.replicas().is_some() { &alone } else { &state.ranks },
        };
        reporting.measured.new_kernels.without(|| call(&mut **profiler, &run))
    }
}
