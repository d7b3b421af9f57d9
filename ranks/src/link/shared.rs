//! What the training thread and the watching thread of a rank share.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::channel::{Beat, Channel, Message};
use super::error::{LinkError, Peer};
use crate::limits::Phase;

/// Called once when the run fails.
pub(super) type Handler = Box<dyn Fn(&LinkError) + Send>;

/// What the training thread and the watching thread share.
pub(super) struct Shared {
    pub(super) rank: usize,
    /// By rank.
    pub(super) peers: Vec<Peer>,
    /// The connections for signs of life.
    pub(super) channels: Mutex<Vec<Channel>>,
    pub(super) handler: Mutex<Option<Handler>>,
    /// Handles of the data connections, to end calls in progress.
    data: Vec<TcpStream>,
    failure: OnceLock<LinkError>,
    progress: Mutex<Progress>,
    /// Counts what the training thread has done.
    advanced: AtomicU64,
    /// The run has ended in order.
    finished: AtomicBool,
    /// The link is not used any more.
    ended: Mutex<bool>,
    wake: Condvar,
}

/// Where the training thread is.
#[derive(Clone, Copy)]
struct Progress {
    phase: Phase,
    is_waiting: bool,
}

impl Shared {
    pub(super) fn new(rank: usize, peers: Vec<Peer>, channels: Vec<Channel>, data: Vec<TcpStream>) -> Self {
        Self {
            rank,
            peers,
            channels: Mutex::new(channels),
            handler: Mutex::default(),
            data,
            failure: OnceLock::new(),
            progress: Mutex::new(Progress { phase: Phase::Start, is_waiting: false }),
            advanced: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            ended: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    /// Why the run has failed, if it has.
    pub(super) fn failure(&self) -> Option<&LinkError> {
        self.failure.get()
    }

    /// Ends the run on every rank with this reason, unless it has ended already.
    pub(super) fn fail(&self, error: LinkError) {
        if self.is_finished() || self.failure.set(error.clone()).is_err() {
            return;
        }

        // The reason goes first: the others take the end of a data connection for a death.
        for channel in locked(&self.channels).iter_mut() {
            channel.send(&Message::Failed(error.clone()));
        }
        for stream in &self.data {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.wake.notify_all();
    }

    /// Says what the training thread begins.
    pub(super) fn enter(&self, phase: Phase) {
        locked(&self.progress).phase = phase;
        self.advanced.fetch_add(1, Ordering::Relaxed);
    }

    /// Says whether the training thread waits for other ranks.
    pub(super) fn wait_for_others(&self, is_waiting: bool) {
        locked(&self.progress).is_waiting = is_waiting;
        self.advanced.fetch_add(1, Ordering::Relaxed);
    }

    /// The next sign of life.
    pub(super) fn beat(&self) -> Beat {
        let Progress { phase, is_waiting } = *locked(&self.progress);
        Beat { phase, is_waiting, advanced: self.advanced.load(Ordering::Relaxed) }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// From here on, the end of a connection is not a failure.
    pub(super) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        for channel in locked(&self.channels).iter_mut() {
            channel.send(&Message::Bye);
        }
    }

    /// Ends the watching thread.
    pub(super) fn end(&self) {
        *locked(&self.ended) = true;
        self.wake.notify_all();
    }

    pub(super) fn is_ended(&self) -> bool {
        *locked(&self.ended)
    }

    /// Sleeps until the time is over, the run fails or the link ends.
    pub(super) fn sleep(&self, time: Duration) {
        let ended = locked(&self.ended);
        if !*ended {
            drop(self.wake.wait_timeout(ended, time));
        }
    }
}

/// A lock whose holder panicked is still good: each holder leaves whole values.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
