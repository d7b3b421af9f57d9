//! The memory of a device, and of the machine as a configuration sees it.

use std::cell::Cell;
use std::fs;

use burn::tensor::Device;
use kiln_kernels::calls::bytes_in_use;
use kiln_kernels::has_kernels;

use super::is_cpu;
use crate::config::Machine;
use crate::metrics::{DeviceMemory, HostMemory};

/// Bytes of device memory that this process holds, including free blocks of its pools; `None` on the CPU.
pub fn reserved_bytes(device: &Device) -> Option<u64> {
    Some(device.clone().inner().memory_pool_usage()?.bytes_reserved)
}

/// Returns the memory of `device` that this process holds; `None` on the CPU. Does not wait for the device.
pub fn device_memory(device: &Device) -> Option<DeviceMemory> {
    let device = device.clone().inner();
    let usage = device.memory_pool_usage()?;
    let pools = device.memory_pool_report().unwrap_or_default();
    Some(DeviceMemory {
        live_bytes: usage.bytes_in_use,
        peak_bytes: pools.iter().map(|pool| pool.page_size * pool.pages_peak).sum(),
        reserved_bytes: usage.bytes_reserved,
    })
}

/// Returns the bytes of live tensors: on a GPU in its memory pools, on the CPU everything that this process has allocated; `None` where nobody
/// knows. Does not wait for the device, and may be called while an operator runs.
pub fn live_bytes(device: &Device) -> Option<u64> {
    match is_cpu(device) {
        true => heap_bytes(),
        false => bytes_in_use(device),
    }
}

/// Returns what this process has allocated and not freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap_bytes() -> Option<u64> {
    type Mallinfo2 = unsafe extern "C" fn() -> libc::mallinfo2;
    #[expect(unsafe_code, reason = "mallinfo2 is a function of C, which versions of glibc before 2.33 lack")]
    // SAFETY: the name ends with a zero, and the function has this type. It reads counters under the locks of the allocator.
    let info = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr());
        if found.is_null() {
            return None;
        }
        std::mem::transmute::<*mut libc::c_void, Mallinfo2>(found)()
    };
    Some(info.uordblks as u64 + info.hblkhd as u64)
}

/// Other allocators do not say it.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn heap_bytes() -> Option<u64> {
    None
}

/// Returns the memory of this process; `None` where the system does not say it.
pub(super) fn host_memory() -> Option<HostMemory> {
    host_memory_in(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The peaks of the memory of this process: since its start, and since the last line.
#[derive(Debug)]
pub(super) struct HostPeaks {
    /// The most that the process has been up to the last line.
    before: u64,
    /// Whether the system has forgotten the peak before the last line.
    is_of_line: bool,
}

impl HostPeaks {
    /// Starts the first line.
    pub(super) fn start() -> Self {
        let mut peaks = Self { before: 0, is_of_line: false };
        peaks.take();
        peaks
    }

    /// Returns the memory of this process for a line, and starts the next line. The system keeps one peak, which is forgotten here.
    pub(super) fn take(&mut self) -> Option<HostMemory> {
        let found = host_memory()?;
        let line_peak_bytes = self.is_of_line.then_some(found.peak_bytes);
        self.before = self.before.max(found.peak_bytes);
        self.is_of_line = fs::write("/proc/self/clear_refs", "5").is_ok();
        Some(HostMemory { peak_bytes: self.before, line_peak_bytes, ..found })
    }
}

/// Reads `VmRSS:      1234 kB` and `VmHWM`.
fn host_memory_in(status: &str) -> Option<HostMemory> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
    };
    Some(HostMemory { resident_bytes: bytes("VmRSS")?, peak_bytes: bytes("VmHWM")?, line_peak_bytes: None })
}

thread_local! {
    /// What the run of this thread may use of a device's memory; `None` for all of it.
    static LIMIT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A limit of the memory, which ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Limited(Option<u64>);

/// Lets [`machine_of`] see devices with at most `bytes` of memory (`train.memory_limit`), on this thread.
pub(crate) fn limited_to(bytes: Option<u64>) -> Limited {
    Limited(LIMIT.replace(bytes))
}

impl Drop for Limited {
    fn drop(&mut self) {
        LIMIT.set(self.0);
    }
}

/// Returns what a configuration has to know about the machine of `device`.
pub fn machine_of(device: &Device) -> Machine {
    let machine =
        Machine { is_cpu: is_cpu(device), has_kernels: has_kernels(device), memory_bytes: memory_bytes(device) };
    machine.within(LIMIT.get())
}

/// Returns the memory that `device` computes in: the GPU's, or the machine's. A limit of the process's control group counts.
fn memory_bytes(device: &Device) -> Option<u64> {
    if !is_cpu(device) {
        return device.clone().inner().memory_capacity();
    }
    let installed = fs::read_to_string("/proc/meminfo").ok().and_then(|text| installed(&text));
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    // "max" is not a number and not a limit.
    let limits = limits.into_iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
    installed.into_iter().chain(limits).min()
}

/// Reads `MemTotal:       24684084 kB`.
fn installed(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

/// Held by tests that allocate large blocks and measure the memory of the process.
#[cfg(test)]
pub(super) static LARGE_BLOCKS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::*;

    #[test]
    fn the_memory_of_this_process_is_found() {
        let status = "Name:\tkiln\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t3\n";
        let wanted = HostMemory { resident_bytes: 1 << 20, peak_bytes: 2 << 20, line_peak_bytes: None };
        assert_eq!(host_memory_in(status), Some(wanted));
        assert_eq!(host_memory_in("VmRSS:\t many kB\n"), None);
        let found = host_memory().expect("Linux");
        assert!(found.resident_bytes > 1 << 20 && found.peak_bytes >= found.resident_bytes, "{found:?}");
        assert_eq!(device_memory(&Device::flex()), None);
    }

    #[test]
    fn a_line_has_its_own_peak_and_the_peak_of_the_process() {
        let _alone = LARGE_BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peaks = HostPeaks::start();
        let block = vec![1_u8; 256 << 20];
        let first = peaks.take().expect("Linux");
        assert_eq!(block[1 << 20], 1);
        drop(block);
        peaks.take();
        let last = peaks.take().expect("Linux");
        let [of_first, of_last] = [first, last].map(|memory| memory.line_peak_bytes.expect("Linux"));
        // Other tests allocate meanwhile, but not so much.
        assert!(of_last + (128 << 20) < of_first, "{of_first} {of_last}");
        assert!(last.peak_bytes >= of_first && of_last >= last.resident_bytes, "{first:?} {last:?}");
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn the_heap_of_this_process_is_counted() {
        const BYTES: usize = 512 << 20;
        let _alone = LARGE_BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        let live = || live_bytes(&Device::flex()).expect("glibc 2.33 or newer");
        let before = live();
        let block = vec![1_u8; BYTES];
        let between = live();
        assert_eq!(block[BYTES / 2], 1);
        drop(block);
        let after = live();
        // Other tests allocate meanwhile, but not so much.
        let half = BYTES as u64 / 2;
        assert!(between > before + half && after + half < between, "{before} {between} {after}");
    }

    #[test]
    fn a_limit_holds_on_its_thread_until_it_is_dropped() {
        let found = || machine_of(&Device::flex()).memory_bytes.expect("Linux");
        let whole = found();
        let outer = limited_to(Some(3 << 20));
        assert_eq!(found(), 3 << 20);
        drop(limited_to(Some(u64::MAX)));
        assert_eq!(found(), 3 << 20);
        assert_eq!(
            std::thread::spawn(move || machine_of(&Device::flex()).memory_bytes).join().expect("a thread"),
            Some(whole)
        );
        drop(outer);
        assert_eq!(found(), whole);
    }

    #[test]
    fn the_memory_of_this_machine_is_found() {
        assert_eq!(installed("MemTotal:       24684084 kB\nMemFree: 1 kB\n"), Some(24_684_084 << 10));
        assert_eq!(installed("nothing"), None);
        let found = memory_bytes(&Device::flex()).expect("Linux");
        assert!((1 << 28..1 << 50).contains(&found), "{found}");
    }
}
