//! When the spans of the training thread were, recorded while a profile is taken. Otherwise a span costs one more load of a flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

static IS_ON: AtomicBool = AtomicBool::new(false);
static SPANS: Mutex<Vec<TimedSpan>> = Mutex::new(Vec::new());

/// A span with its place in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedSpan {
    /// What the thread did, the name of a span.
    pub name: &'static str,
    /// When it began.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// Starts to record the spans of this process. Forgets earlier ones.
pub fn start() {
    lock().clear();
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops recording, and returns the spans that ended since [`start`].
pub fn stop() -> Vec<TimedSpan> {
    IS_ON.store(false, Ordering::Relaxed);
    std::mem::take(&mut *lock())
}

/// Runs `work`, which is a part of a span, and records when it was.
pub fn time<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    record(name, started, Instant::now());
    result
}

/// Records a span, if spans are recorded.
pub fn record(name: &'static str, started: Instant, ended: Instant) {
    if IS_ON.load(Ordering::Relaxed) {
        lock().push(TimedSpan { name, started, ended });
    }
}

fn lock() -> MutexGuard<'static, Vec<TimedSpan>> {
    SPANS.lock().unwrap_or_else(PoisonError::into_inner)
}
