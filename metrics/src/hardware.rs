//! What a line of metrics says about the hardware: memory of the device and of the process, what process and machine do, and the
//! GPU's power, clock and load.

use serde::{Deserialize, Serialize};

/// Memory of the device that this process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Bytes of live tensors, without padding, when the line was made: between two steps, so without activations.
    pub live_bytes: u64,
    /// Bytes of the pages that the memory pools needed at their peak since the start of the process, summed over the pools.
    /// Activations are included.
    pub peak_bytes: u64,
    /// Bytes that the process holds, free pages of its pools included.
    pub reserved_bytes: u64,
}

/// Memory of this process in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostMemory {
    /// Bytes in RAM, mapped files included.
    pub resident_bytes: u64,
    /// The most that `resident_bytes` has been since the start of the process.
    pub peak_bytes: u64,
    /// The most that it has been since the last line. Absent where the system does not say it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line_peak_bytes: Option<u64>,
}

/// What this process and its machine did since the last line, by counters of the kernel. A value that the system does not give is
/// absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct HostUse {
    /// CPUs of the machine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<u64>,
    /// Fraction of the time of all CPUs that this process used, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub process_cpu_share: Option<f64>,
    /// Fraction of the time of all CPUs that all processes used, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub machine_cpu_share: Option<f64>,
    /// Bytes per second that this process read from storage. Bytes from the page cache do not count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub read_bytes_per_sec: Option<f64>,
    /// Bytes per second that this process wrote to storage.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub written_bytes_per_sec: Option<f64>,
    /// Bytes per second that the machine's network interfaces received.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub received_bytes_per_sec: Option<f64>,
    /// Bytes per second that they sent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sent_bytes_per_sec: Option<f64>,
    /// Pages per second that the machine read from swap.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub swapin_pages_per_sec: Option<f64>,
    /// Pages per second that the machine wrote to swap.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub swapout_pages_per_sec: Option<f64>,
}

/// Where the time of a GPU went since the last line, on its own clock: from events before and after each step, as far as the GPU had passed
/// them. Validation and saving are left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DeviceTime {
    /// Milliseconds of the steps and of the time between them.
    pub elapsed_ms: f64,
    /// Milliseconds from the begin to the end of each step. A step that waits for the host between its kernels takes longer: that time
    /// counts, too.
    pub steps_ms: f64,
    /// `steps_ms / elapsed_ms`, 0 to 1. The rest is time in which the GPU had nothing to do, because the host was late.
    pub busy_share: f64,
}

impl DeviceTime {
    /// Returns the time of steps in `elapsed_ms`; `None` if that is nothing.
    pub fn of(elapsed_ms: f64, steps_ms: f64) -> Option<Self> {
        (elapsed_ms > 0.0).then(|| Self { elapsed_ms, steps_ms, busy_share: steps_ms / elapsed_ms })
    }
}

/// What the driver says about the GPU: means over the samples since the last line. A value that the driver does not give
/// is absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuUse {
    /// Number of samples.
    pub samples: u64,
    /// Fraction of the time in which a kernel ran, 0 to 1. The driver's window is 1/6 to 1 second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub busy_share: Option<f64>,
    /// Power of the board, watts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub power_w: Option<f64>,
    /// Power at which the driver lowers the clock, watts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub power_limit_w: Option<f64>,
    /// Clock of the multiprocessors, MHz.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sm_clock_mhz: Option<f64>,
    /// The highest clock of the multiprocessors, MHz.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_sm_clock_mhz: Option<f64>,
    /// Temperature of the chip, degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub temperature_c: Option<f64>,
    /// Fraction of the samples in which power or temperature held the clock down, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub throttled_share: Option<f64>,
}
