//! How the ranks of a run that goes on without those that it loses meet again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::LinkError;
use super::{Link, this_process};
use crate::limits::Phase;
use crate::members::Members;
use crate::world::World;

const PAUSE: Duration = Duration::from_millis(10);

impl Link {
    /// Says that the run goes on without the ranks that it loses. From now on a failure leaves it to the caller to meet the others
    /// again, see [`Self::meet_again`]; nothing ends this process from outside.
    ///
    /// # Errors
    /// If no launcher of Kiln on this machine has started the ranks, which alone can form another group.
    pub fn survive(&self) -> Result<(), String> {
        let Some(members) = &self.inner.world.members else {
            let launcher = self.inner.world.launcher;
            return Err(format!(
                "the ranks were started by {launcher}, which ends all ranks when one is lost; only `kiln train --devices` starts a lost rank again"
            ));
        };
        members.go_on().map_err(|error| format!("telling the launcher: {error}"))?;
        self.on_failure(Box::new(|_| ()));
        Ok(())
    }

    /// Returns whether the launcher has formed another group of ranks, which this link does not connect.
    pub fn is_superseded(&self) -> bool {
        self.inner.world.is_superseded()
    }

    /// Returns the number of ranks that the run was started with.
    pub fn planned_size(&self) -> usize {
        self.inner.world.numbers.planned
    }

    /// Returns whether the run goes on without the ranks that it loses, see [`Self::survive`].
    pub fn survives(&self) -> bool {
        self.inner.world.members.as_ref().is_some_and(Members::goes_on)
    }

    /// Returns whether the launcher has formed other groups of ranks before this one.
    pub fn is_regrouped(&self) -> bool {
        self.inner.world.numbers.group > 0
    }

    /// Meets the ranks that train on after `error` has ended this link.
    ///
    /// # Errors
    /// If no group with this rank is formed in time.
    pub fn meet_again(&self, error: &LinkError, note: &mut dyn FnMut(&str)) -> Result<Self, LinkError> {
        let world = &self.inner.world;
        if let (Some(rank), Some(members)) = (error.rank(), &world.members) {
            // The launcher sees that a process has ended, but not that it hangs. If this fails, the wait below has an end.
            let _ = members.miss(world.numbers.of_ranks[rank], world.numbers.group);
        }
        meet(world, note)
    }
}

/// Meets the ranks of the next group that has this process.
///
/// # Errors
/// If there is none in time, or its ranks do not meet.
pub(super) fn meet(world: &World, note: &mut dyn FnMut(&str)) -> Result<Link, LinkError> {
    let mut world = next(world)?;
    loop {
        match Link::of_group(&world, note) {
            Err(error) if error.is_loss() => world = next(&world)?,
            link => return link,
        }
    }
}

/// Waits for the next group that has this process.
fn next(world: &World) -> Result<World, LinkError> {
    let (began, me) = (Instant::now(), this_process());
    let limit = world.limits.of(Phase::Start);
    loop {
        if let Some(next) = world.next() {
            return Ok(next);
        }
        if world.launcher_is_gone() {
            return Err(LinkError::aborted(world.rank, &me, "the launcher has ended"));
        }
        if began.elapsed() >= limit {
            let reason = format!("no group of ranks was formed in {} s", limit.as_secs());
            return Err(LinkError::aborted(world.rank, &me, &reason));
        }
        sleep(PAUSE);
    }
}
