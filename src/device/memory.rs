//! The memory of a device, and of the machine as a configuration sees it.

use std::fs;

use burn::tensor::Device;

use super::is_cpu;
use crate::config::Machine;

/// Returns what a configuration has to know about the machine of `device`.
pub fn machine_of(device: &Device) -> Machine {
    Machine { is_cpu: is_cpu(device), memory_bytes: memory_bytes(device) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_machine_is_found() {
        assert_eq!(installed("MemTotal:       24684084 kB\nMemFree: 1 kB\n"), Some(24_684_084 << 10));
        assert_eq!(installed("nothing"), None);
        let found = memory_bytes(&Device::flex()).expect("Linux");
        assert!((1 << 28..1 << 50).contains(&found), "{found}");
    }
}
