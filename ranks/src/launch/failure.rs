//! The rank that has ended a run.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::was_killed;

/// A killed process can be seen to end after the ranks that miss it. The launcher waits so long for it before it names a rank.
const CAUSE: Duration = Duration::from_millis(500);

/// A rank that has failed, and that the launcher has perhaps named to the user.
pub(super) struct Failure {
    pub(super) rank: usize,
    pub(super) status: ExitStatus,
    since: Instant,
    pub(super) is_named: bool,
}

impl Failure {
    pub(super) fn new(rank: usize, status: ExitStatus) -> Self {
        Self { rank, status, since: Instant::now(), is_named: false }
    }

    /// Takes another failed rank for the cause, if a signal has ended that one and none this one.
    pub(super) fn or(&mut self, rank: usize, status: ExitStatus) {
        if !self.is_named && !was_killed(self.status) && was_killed(status) {
            (self.rank, self.status) = (rank, status);
        }
    }

    /// The time since the first failure.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether no later rank can be the cause.
    pub(super) fn is_certain(&self) -> bool {
        was_killed(self.status) || self.age() >= CAUSE
    }
}
