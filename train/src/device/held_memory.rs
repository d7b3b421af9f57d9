//! The memory that a run holds, next to the limit that it has (`train.memory_limit`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, park_timeout};
use std::time::Duration;

use burn::tensor::Device;

use super::is_cpu;
use super::memory::{live_bytes, reserved_bytes};

/// Time between two samples of the heap. A step that needs gigabytes takes longer.
const INTERVAL: Duration = Duration::from_millis(5);

/// Watches what a process holds of a device's memory: on a GPU the pages of its memory pools, on the CPU its heap.
#[derive(Debug)]
pub(crate) enum HeldMemory {
    /// A GPU, which is asked when the memory is wanted: its pools return nothing by themselves.
    Pools(Device),
    /// The CPU, whose heap is sampled all the time.
    Heap(Sampler),
}

impl HeldMemory {
    /// Starts to watch; `None` where the memory is not known.
    pub(crate) fn watch(device: &Device) -> Option<Self> {
        match is_cpu(device) {
            true => {
                let device = device.clone();
                Sampler::start(move || live_bytes(&device)).map(Self::Heap)
            }
            false => reserved_bytes(device).map(|_| Self::Pools(device.clone())),
        }
    }

    /// Returns the most bytes that were held since the last call. Does not wait for the device.
    pub(crate) fn take_peak(&self) -> u64 {
        match self {
            Self::Pools(device) => reserved_bytes(device).unwrap_or(0),
            Self::Heap(sampler) => sampler.take_peak(),
        }
    }
}

/// A thread that samples a number of bytes. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    peak: AtomicU64,
    is_over: AtomicBool,
}

impl Sampler {
    /// Starts to sample; `None` if there is nothing to sample, or no thread.
    fn start(read: impl Fn() -> Option<u64> + Send + 'static) -> Option<Self> {
        let shared = Arc::new(Shared { peak: AtomicU64::new(read()?), ..Shared::default() });
        let theirs = shared.clone();
        let sample = move || {
            while !theirs.is_over.load(Ordering::Relaxed) {
                theirs.peak.fetch_max(read().unwrap_or(0), Ordering::Relaxed);
                park_timeout(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("held-memory".into()).spawn(sample).ok()?;
        Some(Self { shared, thread: Some(thread) })
    }

    fn take_peak(&self) -> u64 {
        self.shared.peak.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It neither panics nor waits for long.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;
    use std::sync::mpsc::sync_channel;

    use super::super::memory::LARGE_BLOCKS;
    use super::*;

    #[test]
    fn the_largest_sample_since_the_last_call_is_the_peak() {
        // The thread takes a number when it has counted the one before.
        let (give, taken) = sync_channel::<u64>(0);
        give_in_background(&give, 7);
        let taken = std::sync::Mutex::new(taken);
        let sampler = Sampler::start(move || taken.lock().ok()?.recv().ok()).expect("a number");
        for bytes in [30, 90, 20] {
            give.send(bytes).expect("a reader");
        }
        give.send(10).expect("a reader");
        assert_eq!(sampler.take_peak(), 90);
        drop(give);
    }

    /// Gives the first number, for which the start waits.
    fn give_in_background(give: &std::sync::mpsc::SyncSender<u64>, bytes: u64) {
        let give = give.clone();
        std::thread::spawn(move || give.send(bytes));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn the_heap_of_the_cpu_is_watched_between_two_calls() {
        const BYTES: usize = 256 << 20;
        let _alone = LARGE_BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        let held = HeldMemory::watch(&Device::flex()).expect("glibc 2.33 or newer");
        let block = vec![1_u8; BYTES];
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(block[BYTES / 2], 1);
        drop(block);
        assert!(held.take_peak() >= BYTES as u64);
        std::thread::sleep(Duration::from_millis(300));
        held.take_peak();
        std::thread::sleep(Duration::from_millis(300));
        // Other tests allocate meanwhile, but not so much.
        assert!(held.take_peak() < BYTES as u64);
    }
}
