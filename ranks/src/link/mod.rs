//! The link between the ranks: a star over TCP around rank 0, with two connections for each other rank. Calls use the first;
//! on the second, a thread of each rank watches the others.

mod channel;
mod error;
mod facts;
// The entry point of the fuzzer.
#[doc(hidden)]
pub mod foreign;
mod frame;
mod hello;
mod join;
mod listen;
mod message;
mod met;
mod regroup;
mod shared;
mod star;
mod watch;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result as AnyResult;

use self::channel::Channel;
pub use self::error::LinkError;
use self::frame::{MAX_CALL_BYTES, Op};
pub(super) use self::hello::random;
use self::hello::this_process;
use self::met::Met;
pub(crate) use self::met::ranks_in_words;
use self::shared::{Shared, locked};
use self::star::{Star, Trouble};
use super::limits::Phase;
use super::world::World;

/// A broken data connection waits so long for the watching thread's reason.
const REASON_PATIENCE: Duration = Duration::from_secs(3);

/// The link of a rank to all others. Every rank makes the same calls in the same order. Clones are the same link.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    world: World,
    shared: Arc<Shared>,
    star: Mutex<Star>,
}

impl Link {
    /// Meets all other ranks. `note` gets a message after some seconds of waiting, and one for each refused process.
    ///
    /// Rank 0 listens: on loopback if all ranks are on this machine, else at the master's address. The others try until
    /// the limit of [`Phase::Start`] is over. A process that replaces a lost one meets the next group of ranks.
    ///
    /// # Errors
    /// If the ranks do not meet in time, or do not belong together.
    pub fn connect(world: &World, note: &mut dyn FnMut(&str)) -> Result<Self, LinkError> {
        if let (true, Some(members)) = (world.numbers.replaces, &world.members) {
            let told = members.arrive(world.numbers.own, world.numbers.group);
            told.map_err(|error| LinkError::aborted(world.rank, &this_process(), &error.to_string()))?;
            return regroup::meet(world, note);
        }
        Self::of_group(world, note)
    }

    fn of_group(world: &World, note: &mut dyn FnMut(&str)) -> Result<Self, LinkError> {
        let me = this_process();
        let met = match (world.size, world.rank) {
            (1, _) => Met { peers: vec![me], data: vec![None], watch: vec![None] },
            (_, 0) => listen::listen(world, &me, note)?,
            _ => join::join(world, &me, note)?,
        };
        Self::over(world, met)
    }

    /// The link of a single process, whose calls return at once.
    pub fn alone() -> Self {
        let met = Met { peers: vec![this_process()], data: vec![None], watch: vec![None] };
        let world = World::on_loopback(1, 0).remove(0);
        Self::over(&world, met).expect("no connection, so no error")
    }

    fn over(world: &World, met: Met) -> Result<Self, LinkError> {
        let now = Instant::now();
        let watch = met.watch.into_iter().enumerate();
        let channels = watch.filter_map(|(rank, stream)| Some(Channel::new(rank, stream?, now))).collect();
        let lost = |error: std::io::Error| LinkError::gone(world.rank, &met.peers[world.rank], None, error.to_string());
        let handles = met.data.iter().flatten().map(|stream| stream.try_clone()).collect::<Result<_, _>>();
        let handles = handles.map_err(lost)?;

        let shared = Arc::new(Shared::new(world.rank, met.peers.clone(), channels, handles));
        if world.size > 1 {
            watch::start(shared.clone(), world.clone()).map_err(lost)?;
        }
        let star = Mutex::new(Star::new(world.rank, met.data));
        Ok(Self { inner: Arc::new(Inner { world: world.clone(), shared, star }) })
    }

    /// This process: `0..size`.
    pub fn rank(&self) -> usize {
        self.shared().rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared().peers.len()
    }

    /// Whether this is rank 0, which alone writes files and talks to the user.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The machine of a rank.
    pub fn host_of(&self, rank: usize) -> &str {
        &self.shared().peers[rank].host
    }

    /// Gives bytes to all ranks and returns the bytes of each, by rank. `what` names the call in messages.
    ///
    /// # Errors
    /// If the run fails, or the ranks are in different calls.
    pub fn all_gather(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, LinkError> {
        self.call(Op::Gather, what, vec![bytes], || ())
    }

    /// Gives `parts[p]` to rank `p` and returns what each rank gave to this one, by rank.
    ///
    /// All bytes pass through rank 0, which holds them at once.
    ///
    /// # Errors
    /// If the run fails, or the ranks are in different calls.
    ///
    /// # Panics
    /// If there is not one part for each rank.
    pub fn exchange(&self, what: &'static str, parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, LinkError> {
        assert_eq!(parts.len(), self.size(), "`{what}` needs one part for each rank");
        self.call(Op::Exchange, what, parts, || ())
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// If the run fails, or the ranks are in different calls.
    pub fn barrier(&self, what: &'static str) -> Result<(), LinkError> {
        self.all_gather(what, Vec::new()).map(drop)
    }

    /// Runs `work` on rank 0 first, then on the others: for files and kernels that the others reuse. A failure ends all
    /// ranks with its reason.
    ///
    /// # Errors
    /// If `work` fails here or on rank 0, or the run fails.
    pub fn first_then_others<T>(&self, what: &'static str, work: impl FnOnce() -> AnyResult<T>) -> AnyResult<T> {
        if !self.is_first() {
            self.barrier(what)?;
        }
        let done = work().inspect_err(|error| self.abort(&format!("{error:#}")))?;
        if self.is_first() {
            self.barrier(what)?;
        }
        Ok(done)
    }

    /// Compares facts, as name and value, over the ranks.
    ///
    /// # Errors
    /// [`LinkError::DifferentFacts`] on every rank, with each difference, or a failure of the run.
    pub fn compare(&self, facts: &[(String, String)]) -> Result<(), LinkError> {
        let all = self.all_gather("facts of the run", facts::encode(facts))?;
        let differences = facts::differences(&all, |rank| self.host_of(rank));
        if differences.is_empty() { Ok(()) } else { Err(LinkError::DifferentFacts(differences)) }
    }

    /// Announces what this rank does next. If it stays there longer than the phase's limit without another call of this
    /// link, the run ends. A long phase may be entered again and again to show that it advances.
    pub fn enter(&self, phase: Phase) {
        self.shared().enter(phase);
    }

    /// Ends all ranks, because this one fails. Pending and later calls of every rank return [`LinkError::Aborted`].
    pub fn abort(&self, reason: &str) {
        let shared = self.shared();
        shared.fail(LinkError::aborted(shared.rank, &shared.peers[shared.rank], reason));
    }

    /// Why the run has failed, if it has.
    pub fn failure(&self) -> Option<LinkError> {
        self.shared().failure().cloned()
    }

    /// Sets what the watching thread calls, once, when the run fails on this rank or another: the training thread may hang
    /// in a driver meanwhile.
    pub fn on_failure(&self, handler: Box<dyn Fn(&LinkError) + Send>) {
        *locked(&self.shared().handler) = Some(handler);
    }

    /// Ends the link in order, together with all ranks. The end of a connection is not a failure afterwards.
    ///
    /// # Errors
    /// If the run fails before all ranks are here.
    pub fn finish(&self) -> Result<(), LinkError> {
        self.call(Op::Gather, "finish", vec![Vec::new()], || self.shared().finish())?;
        self.shared().finish();
        Ok(())
    }

    fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    fn call(
        &self,
        op: Op,
        what: &'static str,
        parts: Vec<Vec<u8>>,
        complete: impl FnOnce(),
    ) -> Result<Vec<Vec<u8>>, LinkError> {
        let shared = self.shared();
        if shared.is_finished() {
            return Err(LinkError::Finished(what.into()));
        }
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        if bytes > MAX_CALL_BYTES {
            return Err(LinkError::TooLarge { what: what.into(), bytes, limit: MAX_CALL_BYTES });
        }

        let mut star = locked(&self.inner.star);
        if let Some(error) = shared.failure() {
            return Err(error.clone());
        }
        shared.wait_for_others(true);
        let result = star.call(op, what, parts, complete);
        shared.wait_for_others(false);
        result.map_err(|trouble| self.reason(trouble))
    }

    /// Returns why a call failed: the reason that ends the run, rather than the broken connection that it leaves.
    fn reason(&self, trouble: Trouble) -> LinkError {
        let shared = self.shared();
        let error = match trouble {
            Trouble::Different(calls) => LinkError::DifferentCalls(calls),
            Trouble::Connection(rank, error) => {
                let started = Instant::now();
                while shared.failure().is_none() && started.elapsed() < REASON_PATIENCE {
                    std::thread::sleep(Duration::from_millis(5));
                }
                LinkError::gone(rank, &shared.peers[rank], None, error.to_string())
            }
        };
        shared.fail(error.clone());
        shared.failure().cloned().unwrap_or(error)
    }
}

impl Drop for Inner {
    /// A link that ends before its run ends all other ranks.
    fn drop(&mut self) {
        self.shared.end();
        if self.shared.peers.len() > 1 {
            let reason = if std::thread::panicking() { "it panicked" } else { "it ended before the run did" };
            let rank = self.shared.rank;
            self.shared.fail(LinkError::aborted(rank, &self.shared.peers[rank], reason));
        }
    }
}

#[cfg(test)]
mod tests;
