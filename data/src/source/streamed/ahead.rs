//! Windows of shards, opened before they are needed by a thread of their own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Result};
use crate::jobs;
use crate::sampler::Order;

/// A window of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) order: Order,
    pub(super) window: usize,
}

/// What can be opened window by window.
pub(super) trait Windows: Send + Sync + 'static {
    type Open: Send + Sync;

    /// Returns the window that is read after `key`; `None` if it is not worth opening ahead.
    fn next(&self, key: Key) -> Option<Key>;

    /// Opens a window while those `kept` are in use. Ends with an error soon after `stops` says so.
    fn open(&self, key: Key, kept: &[Key], stops: &(dyn Fn() -> bool + Sync)) -> Result<Self::Open>;
}

/// Opens windows, at most one ahead of the window that is read.
///
/// A loader has at most `in_flight` batches in work. So when a window has been asked for as often, nobody reads the one before: it is
/// closed, and the next window is opened. A window that was not expected, as at the start of a run, is opened when somebody asks for it.
pub(super) struct Ahead<W: Windows> {
    shared: Arc<Shared<W>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<W: Windows> {
    windows: Arc<W>,
    in_flight: usize,
    state: Mutex<State<W::Open>>,
    /// The state changed.
    changed: Condvar,
    closing: AtomicBool,
    /// Nobody needs the window that is being opened.
    cancelled: AtomicBool,
}

struct State<T> {
    /// Open windows, in the order in which they were opened.
    open: Vec<Held<T>>,
    /// The window that is being opened.
    wanted: Option<Key>,
    /// Windows that callers wait for.
    awaited: Vec<Key>,
    failed: Option<Failure>,
}

struct Held<T> {
    key: Key,
    window: Arc<T>,
    /// How often it was asked for.
    reads: usize,
}

struct Failure {
    text: String,
    /// For the first caller.
    error: Option<Error>,
}

impl<W: Windows> Ahead<W> {
    pub(super) fn new(windows: Arc<W>, in_flight: usize) -> Self {
        let state = State { open: Vec::new(), wanted: None, awaited: Vec::new(), failed: None };
        let shared = Shared {
            windows,
            in_flight,
            state: Mutex::new(state),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Returns an open window. Waits until it is open.
    ///
    /// # Errors
    ///
    /// If this window, or one ahead of it, cannot be opened. Every later call fails too.
    pub(super) fn get(&self, key: Key) -> Result<Arc<W::Open>> {
        self.start()?;
        let mut state = self.shared.lock();
        state.awaited.push(key);
        let found = loop {
            if let Some(failure) = &mut state.failed {
                break Err(failure.error.take().unwrap_or_else(|| Error::Stopped(failure.text.clone())));
            }
            if let Some(window) = self.shared.read(&mut state, key) {
                break Ok(window);
            }
            self.shared.want(&mut state, key);
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let at = state.awaited.iter().position(|awaited| *awaited == key).expect("added above");
        state.awaited.swap_remove(at);
        found
    }

    /// Starts the thread, unless it runs.
    fn start(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("kiln-shards".into()).spawn(move || shared.open_windows());
            *thread = Some(started.map_err(|e| Error::Invalid(format!("cannot start the thread of shards ({e})")))?);
        }
        Ok(())
    }
}

impl<W: Windows> Shared<W> {
    fn lock(&self) -> MutexGuard<'_, State<W::Open>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a window if it is open, and lets the thread go on where that is due.
    fn read(&self, state: &mut State<W::Open>, key: Key) -> Option<Arc<W::Open>> {
        let at = state.open.iter().position(|held| held.key == key)?;
        let held = &mut state.open[at];
        held.reads += 1;
        let (window, reads) = (held.window.clone(), held.reads);

        let is_newest = at + 1 == state.open.len();
        if is_newest && state.wanted.is_none() && (at == 0 || reads >= self.in_flight) {
            let next = self.windows.next(key);
            if let Some(next) = next.filter(|next| state.open.iter().all(|held| held.key != *next)) {
                state.open.drain(..at);
                state.wanted = Some(next);
                self.changed.notify_all();
            }
        }
        Some(window)
    }

    /// Asks the thread for a window that is not open.
    fn want(&self, state: &mut State<W::Open>, key: Key) {
        match state.wanted {
            Some(wanted) if wanted == key || state.awaited.contains(&wanted) => {}
            Some(_) => self.cancelled.store(true, Ordering::Relaxed),
            None => {
                let newest = state.open.last().map(|held| held.key);
                if newest.is_some_and(|newest| self.windows.next(newest) == Some(key)) {
                    state.open.drain(..state.open.len() - 1);
                } else {
                    let State { open, awaited, .. } = state;
                    open.retain(|held| awaited.contains(&held.key));
                }
                state.wanted = Some(key);
                self.changed.notify_all();
            }
        }
    }

    /// Opens wanted windows until the end.
    fn open_windows(&self) {
        let stops = || self.closing.load(Ordering::Relaxed) || self.cancelled.load(Ordering::Relaxed);
        let mut state = self.lock();
        while !self.closing.load(Ordering::Relaxed) {
            let Some(key) = state.wanted else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let kept: Vec<Key> = state.open.iter().map(|held| held.key).collect();
            drop(state);

            let open = || jobs::timed("shards", || self.windows.open(key, &kept, &stops));
            let opened = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|panic| Err(Error::from_panic(panic)));

            state = self.lock();
            state.wanted = None;
            let was_cancelled = self.cancelled.swap(false, Ordering::Relaxed);
            match opened {
                Ok(window) => state.open.push(Held { key, window: Arc::new(window), reads: 0 }),
                Err(_) if was_cancelled || self.closing.load(Ordering::Relaxed) => {}
                Err(error) => state.failed = Some(Failure { text: error.to_string(), error: Some(error) }),
            }
            self.changed.notify_all();
        }
    }
}

impl<W: Windows> Drop for Ahead<W> {
    fn drop(&mut self) {
        {
            // Under the lock, so that the thread does not miss it between its check and its wait.
            let _state = self.shared.lock();
            self.shared.closing.store(true, Ordering::Relaxed);
            self.shared.changed.notify_all();
        }
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl<W: Windows> fmt::Debug for Ahead<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("in_flight", &self.shared.in_flight).finish_non_exhaustive()
    }
}
