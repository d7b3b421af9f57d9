//! When the loader's threads worked, recorded while somebody wants to know. A job that nobody wants to know costs one load of a flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

static IS_ON: AtomicBool = AtomicBool::new(false);
static JOBS: Mutex<Vec<JobTime>> = Mutex::new(Vec::new());

/// A job of a thread of a [`Loader`](crate::Loader).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTime {
    /// The name of the thread.
    pub thread: String,
    /// `batch`, `plan` (of an epoch) or `shards` (the token caches of a window).
    pub what: &'static str,
    /// When it began.
    pub started: Instant,
    /// When it was done.
    pub ended: Instant,
}

/// Starts to record the jobs of all loaders of this process. Forgets earlier ones.
pub fn start() {
    lock().clear();
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops recording, and returns the jobs that ended since [`start`].
pub fn stop() -> Vec<JobTime> {
    IS_ON.store(false, Ordering::Relaxed);
    std::mem::take(&mut *lock())
}

/// Does a job on this thread, whose name is recorded with it.
pub fn timed<T>(what: &'static str, job: impl FnOnce() -> T) -> T {
    if !IS_ON.load(Ordering::Relaxed) {
        return job();
    }
    let started = Instant::now();
    let done = job();
    let ended = Instant::now();
    let thread = thread::current().name().unwrap_or("unnamed").to_owned();
    lock().push(JobTime { thread, what, started, ended });
    done
}

fn lock() -> MutexGuard<'static, Vec<JobTime>> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_recorded_with_their_thread_while_they_are_wanted() {
        assert_eq!(timed("test", || 1), 1);
        start();
        let work = || timed("test", || 2);
        let thread = thread::Builder::new().name("kiln-test".into()).spawn(work).expect("a thread");
        assert_eq!(thread.join().expect("no panic"), 2);
        let jobs = stop();
        assert_eq!(timed("test", || 3), 3);

        // Other tests have loaders, too.
        let found: Vec<_> = jobs.iter().filter(|job| job.what == "test").collect();
        let [job] = found[..] else { panic!("{found:?}") };
        assert!(job.thread == "kiln-test" && job.ended >= job.started, "{job:?}");
        assert!(stop().is_empty());
    }
}
