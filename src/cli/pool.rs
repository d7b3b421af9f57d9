//! The threads that compute on the CPU.

use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;

/// Starts rayon's threads, with the calling thread as one of them. An operator then computes on the thread that asks for it, which
/// otherwise would wake another thread and wait.
///
/// The new threads run on the CPUs of the calling thread, so a rank that moves to other CPUs does so before. On one CPU, rayon
/// starts its thread itself: the calling thread cannot serve the loader while it waits for a batch.
pub(super) fn join() {
    let chosen = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    let n = chosen.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    if n > 1 {
        // This fails if the threads have been started already. They then stay.
        let _ = ThreadPoolBuilder::new().num_threads(n).use_current_thread().build_global();
    }
}
