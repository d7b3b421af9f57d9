//! Samples the GPU's power, clock and load, and what process and machine do; with a line comes the memory of the process.
//!
//! A thread of its own asks the driver (NVML, which is loaded at run time) four times per second, so that a slow answer
//! delays no step. Without the library nothing is sampled, which is not an error.

#[cfg(feature = "cuda")]
mod nvml;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, park_timeout};
use std::time::Duration;

use burn::tensor::Device;

use super::host_use::Counters;
use super::memory::HostPeaks;
use crate::metrics::{GpuUse, HostMemory, HostUse};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(250);

/// What the driver said once, in the units of [`GpuUse`].
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    busy_share: Option<f64>,
    power_w: Option<f64>,
    power_limit_w: Option<f64>,
    sm_clock_mhz: Option<f64>,
    max_sm_clock_mhz: Option<f64>,
    temperature_c: Option<f64>,
    throttled: Option<f64>,
}

/// Returns a sample; `None` if the GPU does not answer.
type Source = Box<dyn FnMut() -> Option<Sample>>;

/// The sampling thread, which ends when this is dropped.
pub struct Telemetry {
    shared: Arc<Mutex<Shared>>,
    peaks: HostPeaks,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    sums: Sums,
    /// Counters of the machine up to which a line has been made, and the newest ones.
    counted: Option<Counters>,
    newest: Option<Counters>,
    is_over: bool,
}

impl Telemetry {
    /// Starts to sample. On the CPU, only the process and the machine.
    pub fn start(device: &Device) -> Self {
        #[cfg(feature = "cuda")]
        if let Some(address) = gpu_address(device) {
            return Self::with_source(move || nvml::open(&address));
        }
        let _ = device;
        Self::with_source(|| None)
    }

    /// Starts a thread that opens a source and samples it.
    fn with_source(open: impl FnOnce() -> Option<Source> + Send + 'static) -> Self {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let theirs = shared.clone();
        let sample = move || {
            let mut source = open();
            loop {
                let gpu = source.as_mut().and_then(|source| source());
                let counters = Counters::read(Path::new("/"));
                {
                    let mut shared = locked(&theirs);
                    shared.counted.get_or_insert_with(|| counters.clone());
                    shared.newest = Some(counters);
                    shared.sums.extend(gpu);
                    if shared.is_over {
                        return;
                    }
                }
                park_timeout(INTERVAL);
            }
        };
        // A system without another thread to spare trains without samples.
        let thread = std::thread::Builder::new().name("telemetry".into()).spawn(sample).ok();
        Self { shared, peaks: HostPeaks::start(), thread }
    }

    /// Takes the memory of the process with its peak since the last call, and the rates and means since then. Does not wait.
    pub fn take(&mut self) -> (Option<HostMemory>, Option<HostUse>, Option<GpuUse>) {
        let host = self.peaks.take();
        let mut shared = locked(&self.shared);
        let host_use = shared.newest.as_ref().zip(shared.counted.as_ref()).and_then(|(now, then)| now.since(then));
        if host_use.is_some() {
            shared.counted = shared.newest.clone();
        }
        (host, host_use, std::mem::take(&mut shared.sums).means())
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        locked(&self.shared).is_over = true;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It neither panics nor waits for long.
            let _ = thread.join();
        }
    }
}

/// Sums and numbers of values.
#[derive(Default)]
struct Sums {
    samples: u64,
    busy_share: Sum,
    power_w: Sum,
    power_limit_w: Sum,
    sm_clock_mhz: Sum,
    max_sm_clock_mhz: Sum,
    temperature_c: Sum,
    throttled: Sum,
}

#[derive(Default)]
struct Sum {
    sum: f64,
    n: u64,
}

impl Sum {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            (self.sum, self.n) = (self.sum + value, self.n + 1);
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }
}

impl Sums {
    fn extend(&mut self, sample: Option<Sample>) {
        let Some(sample) = sample else { return };
        self.samples += 1;
        self.busy_share.add(sample.busy_share);
        self.power_w.add(sample.power_w);
        self.power_limit_w.add(sample.power_limit_w);
        self.sm_clock_mhz.add(sample.sm_clock_mhz);
        self.max_sm_clock_mhz.add(sample.max_sm_clock_mhz);
        self.temperature_c.add(sample.temperature_c);
        self.throttled.add(sample.throttled);
    }

    fn means(&self) -> Option<GpuUse> {
        (self.samples > 0).then(|| GpuUse {
            samples: self.samples,
            busy_share: self.busy_share.mean(),
            power_w: self.power_w.mean(),
            power_limit_w: self.power_limit_w.mean(),
            sm_clock_mhz: self.sm_clock_mhz.mean(),
            max_sm_clock_mhz: self.max_sm_clock_mhz.mean(),
            temperature_c: self.temperature_c.mean(),
            throttled_share: self.throttled.mean(),
        })
    }
}

/// Returns the address of the device's card on the PCI bus; `None` on the CPU. NVML numbers the cards otherwise than CUDA.
#[cfg(feature = "cuda")]
fn gpu_address(device: &Device) -> Option<String> {
    let identity = (!super::is_cpu(device)).then(|| device.clone().inner().identity())??;
    Some(identity.physical?.pci_address?.to_string())
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Plain numbers, which a panic elsewhere leaves whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_line_has_the_means_since_the_last_line() {
        let (asked, counted) = channel();
        let mut telemetry = Telemetry::with_source(move || {
            let mut n = 0.0;
            Some(Box::new(move || {
                n += 1.0;
                asked.send(()).ok()?;
                let throttled = Some(f64::from(u8::from(n > 1.5)));
                Some(Sample { power_w: Some(100.0 * n), throttled, ..Sample::default() })
            }))
        });
        // The sums are written after the source was asked, and before it is asked again.
        (0..3).for_each(|_| counted.recv().expect("a sample"));
        let (host, host_use, gpu) = telemetry.take();
        let gpu = gpu.expect("two samples or three");
        let mean = if gpu.samples == 2 { 150.0 } else { 200.0 };
        assert_eq!((gpu.power_w, gpu.busy_share), (Some(mean), None), "{gpu:?}");
        assert!(gpu.throttled_share.is_some_and(|share| share > 0.0 && share < 1.0), "{gpu:?}");
        assert!(host.is_some_and(|host| host.resident_bytes > 0));
        assert!(host_use.is_some_and(|host| host.machine_cpu_share.is_some()), "{host_use:?}");
    }

    #[test]
    fn a_machine_without_a_gpu_has_no_values_and_no_error() {
        let mut telemetry = Telemetry::start(&Device::flex());
        assert_eq!(telemetry.take().2, None);
    }
}
