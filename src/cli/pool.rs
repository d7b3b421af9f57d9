//! The threads that compute on the CPU.

use std::thread::available_parallelism;

use kiln_metrics::logging::print::stderr_line;
use rayon::ThreadPoolBuilder;

use super::error::Usage;
use super::exit;

/// Threads that may be asked for on any machine.
const MOST_THREADS: usize = 1024;

/// Starts rayon's threads, with the calling thread as one of them. An operator then computes on the thread that asks for it, which
/// otherwise would wake another thread and wait.
///
/// The new threads run on the CPUs of the calling thread, so a rank that moves to other CPUs does so before. On one CPU, rayon
/// starts its thread itself: the calling thread cannot serve the loader while it waits for a batch.
pub(super) fn join() {
    let chosen = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    let n = chosen.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    if n > 1 {
        let built = ThreadPoolBuilder::new().num_threads(n).use_current_thread().build_global();
        // Threads that have been started already stay.
        if let Err(error) = built
            && let Some(reason) = std::error::Error::source(&error)
        {
            stderr_line!(
                "error: cannot start {n} threads: {reason}; raise the limits of this shell (ulimit -u, ulimit -v), or set \
                 RAYON_NUM_THREADS to fewer"
            );
            std::process::exit(exit::FAILED.into());
        }
    }
}

/// Refuses more threads than any machine has use for.
pub(super) fn check() -> Result<(), Usage> {
    let most = MOST_THREADS.max(4 * available_parallelism().map_or(1, usize::from));
    let text = std::env::var("RAYON_NUM_THREADS").unwrap_or_default();
    match text.parse::<u64>() {
        Ok(n) if n > most as u64 => Err(Usage(format!(
            "RAYON_NUM_THREADS is {n}, and {most} threads are the most here; unset it, or set it to the number of CPUs"
        ))),
        _ => Ok(()),
    }
}
