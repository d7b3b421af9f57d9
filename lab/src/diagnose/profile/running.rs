//! The profile of a step of a run that goes on training.

use std::fmt;

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_data::Shape;
use kiln_model::ActivationCheckpointing;
use kiln_train::device::is_cpu;
use kiln_train::run::need::Need;
use kiln_train::train::{ProfiledRun, Rehearsed};

use super::gpu::Watching;
use super::recording::{MemoryWatch, Predicted, Recorder, Recording};
use super::roofs::Roofs;
use super::{Profile, Subject, Trace, of, of_all_ranks};

/// Records a step of a run, then the memory of the step after it.
#[derive(Default)]
pub struct StepRecorder {
    times: Option<Recorder>,
    memory: Option<MemoryWatch>,
    recording: Option<Recording>,
}

impl fmt::Debug for StepRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepRecorder").finish_non_exhaustive()
    }
}

impl StepRecorder {
    /// Starts to record the times of a step. The device must have nothing to do.
    pub fn begin_times(&mut self, device: &Device) {
        let watched = (!is_cpu(device)).then(Watching::start);
        let mut recorder = Recorder::new(device, watched);
        recorder.begin();
        self.times = Some(recorder);
    }

    /// Stops to record times. `step` is the step, which the device has done.
    ///
    /// # Errors
    /// If nothing was recorded.
    pub fn end_times(&mut self, step: Rehearsed) -> Result<()> {
        let recorder = self.times.take().context("a step that was recorded")?;
        self.recording = Some(recorder.end(Ok(step))?);
        Ok(())
    }

    /// Starts to watch the memory of a step. The device must have nothing to do.
    pub fn begin_memory(&mut self, device: &Device) {
        self.memory = Some(MemoryWatch::begin(device));
    }

    /// Stops to watch the memory. `step` is the step, which the device has done.
    ///
    /// # Errors
    /// If nothing was recorded.
    pub fn end_memory(&mut self, step: Rehearsed, run: &ProfiledRun<'_>) -> Result<()> {
        let watch = self.memory.take().context("a step whose memory was watched")?;
        let recording = self.recording.take().context("a step that was recorded")?;
        // What is kept from step to step does not depend on the batch or on activations.
        let need = Need { dtype: run.dtype, n_devices: run.ranks.size(), checkpointing: ActivationCheckpointing::Off };
        let bytes = need.of(run.config, run.device, Shape::text(1, 1));
        let memory = watch.end(Ok(step), Predicted { bytes: &bytes, dtype: run.dtype })?;
        self.recording = Some(recording.with_memory(memory));
        Ok(())
    }

    /// Returns the profile of what was recorded, with the time line, together with the other ranks. `notes` are added to it.
    ///
    /// # Errors
    /// If nothing was recorded, or if the device or another rank fails.
    pub fn finish(&mut self, run: &ProfiledRun<'_>, notes: &[String]) -> Result<(Profile, Trace)> {
        let mut recording = self.recording.take().context("a step that was recorded")?;
        recording.notes.extend_from_slice(notes);
        let ProfiledRun { n_params, device, dtype, before, .. } = *run;
        let roofs = Roofs::of(device, dtype)?;
        let profile = of(&recording, Subject { n_params, device, dtype, warm_up: before }, roofs);
        of_all_ranks(&recording, profile, run.ranks)
    }
}

impl Drop for StepRecorder {
    /// Stops what a step that has failed has left on.
    fn drop(&mut self) {
        if let Some(recorder) = self.times.take() {
            drop(recorder.end(Err(anyhow::anyhow!("the step has failed"))));
        }
        if self.memory.take().is_some() {
            kiln_kernels::calls::stop();
        }
    }
}
