//! Steps of the loop that are looked at: taken like the steps of a run, without validation and checkpoints.

use std::time::Instant;

use anyhow::Result;
use kiln_ranks::Phase;

use super::capture::Replayed;
use super::rehearsed::{Rehearsed, RehearsedStep};
use super::trainer::Trainer;
use crate::device::limited_to;
use crate::eval::Model;
use crate::metrics::Round;

impl<M: Model> Trainer<M> {
    /// Takes `n_before` steps, waits for the device, calls `begin`, takes `n_steps` more, waits for the device again, and returns
    /// those.
    ///
    /// The steps are the loop's own: they take their batches from the loader, upload one group ahead, replay what the run would
    /// replay, and read their lines of metrics when `train.log_every` says so. Nothing is validated or saved.
    ///
    /// # Errors
    /// If data cannot be read, the device fails, or a loss is not finite.
    pub fn rehearse(&mut self, n_before: u64, n_steps: u64, begin: impl FnOnce() -> Result<()>) -> Result<Rehearsed> {
        let (_installed, _limited) = (self.operators.install(), limited_to(self.config.train.limit_bytes()));
        self.reporting.measured.restart();
        self.round(n_before)?; // host sync
        self.gradients.take_replayed();

        begin()?;
        let round = self.round(n_steps)?; // host sync

        self.reporting.end_line(self.state.step, Replayed::default());
        self.reporting.read_lines(&mut self.state, true)?; // host sync: finds losses that are not finite
        Ok(round)
    }

    /// Takes one more step, of which nothing is replayed. Calls `begin` when the device has done everything before, and returns when it has
    /// done the step.
    ///
    /// # Errors
    /// As [`Self::rehearse`].
    pub fn rehearse_eagerly(&mut self, begin: impl FnOnce()) -> Result<Rehearsed> {
        let (_installed, _limited) = (self.operators.install(), limited_to(self.config.train.limit_bytes()));
        self.gradients.pause(true);
        self.round(0)?; // host sync

        begin();
        let round = self.round(1)?; // host sync

        self.gradients.pause(false);
        self.reporting.end_line(self.state.step, Replayed::default());
        self.reporting.read_lines(&mut self.state, true)?; // host sync: finds losses that are not finite
        Ok(round)
    }

    fn rehearse_step(&mut self) -> Result<RehearsedStep> {
        let started = Instant::now();
        self.state.ranks.enter(Phase::Step);
        let group = self.feed.next_group(&mut self.reporting.measured.clock)?;
        let facts = self.step(&group)?.facts;

        let replayed = self.gradients.take_replayed();
        if self.state.step.is_multiple_of(self.config.train.log_every.max(1)) {
            self.reporting.end_line(self.state.step, replayed);
        }
        self.reporting.read_lines(&mut self.state, false)?; // host sync
        Ok(RehearsedStep {
            facts,
            shapes: group.shapes().collect(),
            replayed_share: replayed.share,
            started,
            ended: Instant::now(),
        })
    }

    /// Takes steps until the device is done with them.
    fn round(&mut self, n_steps: u64) -> Result<Rehearsed> {
        let device = self.state.device.clone();
        Round::of(&device, n_steps as usize, |_| self.rehearse_step())
    }
}
