//! Memory: on the CPU the heap, counted by an allocator of our own; on a GPU the pools of Burn's backend.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(in_use, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The bytes in use before a training.
pub fn in_use(device: &Device) -> usize {
    match device.clone().inner().memory_pool_usage() {
        Some(pools) => pools.bytes_in_use as usize,
        None => IN_USE.load(Ordering::Relaxed),
    }
}

/// Starts a new peak. On a GPU it frees what only the first steps needed, such as the trials of Burn's autotune.
pub fn start(device: &Device) {
    device.clone().inner().memory_cleanup();
    PEAK.store(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Returns the most bytes in use since [`start`]: on a GPU the bytes that the pools hold, which only [`start`] lowers.
pub fn peak(device: &Device) -> usize {
    match device.clone().inner().memory_pool_usage() {
        Some(pools) => pools.bytes_reserved as usize,
        None => PEAK.load(Ordering::Relaxed),
    }
}
