//! The memory that a measurement takes at its peak.

use std::fs;

use burn::tensor::Device;
use kiln_train::device::{is_cpu, reserved_bytes};

/// Watches the peak of the memory from its begin on.
#[derive(Debug)]
pub(crate) struct PeakMemory {
    device: Device,
    /// CPU: bytes of the process at the begin; `None` if the system does not say them.
    before: Option<u64>,
}

impl PeakMemory {
    /// Begins to watch.
    pub(crate) fn watch(device: &Device) -> Self {
        Self { device: device.clone(), before: if is_cpu(device) { restart_peak() } else { None } }
    }

    /// Returns the bytes at the peak; `None` if the system does not say them. On a GPU this is what the process has reserved, free
    /// blocks of its pools included: the allocator returns nothing. On the CPU it is the growth of the process.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match is_cpu(&self.device) {
            true => self.before.zip(status("VmHWM")).map(|(before, peak)| peak.saturating_sub(before)),
            false => reserved_bytes(&self.device),
        }
    }
}

/// Forgets how large the process has been. Returns how large it is, in bytes; `None` if the system cannot do that.
fn restart_peak() -> Option<u64> {
    // What earlier work has freed would serve these steps, and the process would not grow.
    return_freed_memory();
    fs::write("/proc/self/clear_refs", "5").ok()?;
    status("VmRSS")
}

/// Gives the memory that the allocator keeps back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn return_freed_memory() {
    #[expect(unsafe_code, reason = "malloc_trim is a function of C")]
    // SAFETY: malloc_trim releases free pages of the allocator, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators cannot be told.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn return_freed_memory() {}

/// Reads a size of this process, in bytes.
fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}
