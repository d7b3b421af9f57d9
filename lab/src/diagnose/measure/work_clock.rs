//! A clock that other processes do not disturb, where the system has one.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use kiln_train::device::is_cpu;

/// On the CPU, the time that this process has computed on all its cores; elsewhere, the time that has passed.
#[derive(Debug)]
pub(crate) struct WorkClock {
    is_cpu: bool,
    started: Instant,
}

impl WorkClock {
    /// Starts a clock for work on `device`.
    pub(crate) fn start(device: &Device) -> Self {
        Self { is_cpu: is_cpu(device), started: Instant::now() }
    }

    /// Returns a time to compare with a later one of the same clock.
    pub(crate) fn now(&self) -> Duration {
        let computed = if self.is_cpu { cpu_time() } else { None };
        computed.unwrap_or_else(|| self.started.elapsed())
    }
}

/// Returns the time that this process has computed so far.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "clock_gettime is a function of C")]
    // SAFETY: the system writes one timespec, which lives until the call returns.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    (done == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
}

/// Other systems have other clocks.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn cpu_time() -> Option<Duration> {
    None
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn work_counts() {
        let work = || (0..20_000_000u64).fold(0, |sum, x| std::hint::black_box(sum ^ x));
        let (before, started) = (cpu_time().expect("glibc"), Instant::now());
        std::hint::black_box(work());
        let worked = cpu_time().expect("glibc") - before;
        // Tests in other threads compute, too.
        assert!(worked > Duration::from_millis(1) && started.elapsed() > Duration::from_millis(1), "{worked:?}");
    }
}
