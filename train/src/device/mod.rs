//! The device of a run: parses `--device`, opens the device without panics, and explains how to get a GPU build.

pub(crate) mod held_memory;
mod host_use;
mod kernels;
pub mod memory;
pub mod peak;
pub mod precision;
mod telemetry;
pub mod upload;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use burn::tensor::{Device, Tensor};
pub use kiln_kernels::is_cpu;
use kiln_kernels::{has_kernels, is_cuda};
use thiserror::Error;

pub use kernels::{KERNEL_FILE, KERNEL_FILE_VARIABLE, kernel_folder, take_kernel_notes};
pub(crate) use memory::limited_to;
pub use memory::{device_memory, live_bytes, machine_of, reserved_bytes};
pub use peak::{peak_bytes_per_sec, peak_flops_per_sec};
pub use precision::{PrecisionError, compute_dtype, fp8_layers, training_dtype};
pub use telemetry::Telemetry;
pub use upload::{RowSources, Uploaded, send_split, upload, upload_split};

/// The value of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU if this build and this machine support one, else the CPU.
    #[default]
    Auto,
    /// The CPU, through Burn's `flex` backend.
    Cpu,
    /// The NVIDIA GPU with this index, in the numbering of `nvidia-smi` and `CUDA_VISIBLE_DEVICES`.
    Cuda(usize),
    /// The device with this index among those that wgpu finds through Vulkan, Metal or DirectX 12. Kiln has no kernels for it.
    Wgpu(usize),
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The text is not a device.
    #[error("unknown device {0:?}; use `cpu`, `cuda`, `cuda:1` (the second GPU), `wgpu`, `wgpu:1` or `auto`")]
    Unknown(String),
    /// The binary was built without the feature of the device.
    #[error(
        "this build does not support {0}; rebuild with `cargo build --release --features {feature}`, or use `--device cpu`",
        feature = feature(*.0)
    )]
    NotBuilt(DeviceChoice),
    /// There is no driver, or no visible GPU.
    #[error(
        "no NVIDIA GPU found for {0}: the driver library (libcuda) is missing or lists no devices; \
         check `nvidia-smi` and CUDA_VISIBLE_DEVICES, run `kiln doctor`, or use `--device cpu`"
    )]
    NoGpu(DeviceChoice),
    /// The index is too high.
    #[error(
        "there is no {wanted}: this machine shows {found} GPU(s), counted from 0; see `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    )]
    NoSuchGpu {
        /// The requested device.
        wanted: DeviceChoice,
        /// Number of GPUs on this machine.
        found: usize,
    },
    /// wgpu finds fewer devices.
    #[error(
        "{wanted} does not exist: wgpu finds {found} device(s) through Vulkan, Metal or DirectX 12, counted from 0; \
         install the Vulkan loader and a driver (on Debian `libvulkan1` and `mesa-vulkan-drivers`), or use `--device cpu`"
    )]
    NoSuchWgpu {
        /// The requested device.
        wanted: DeviceChoice,
        /// Number of devices.
        found: usize,
    },
}

/// The feature that a build needs for a device.
fn feature(choice: DeviceChoice) -> &'static str {
    if matches!(choice, DeviceChoice::Wgpu(_)) { "wgpu" } else { "cuda" }
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || DeviceError::Unknown(text.to_string());
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" | "gpu" => Ok(Self::Cuda(0)),
            "wgpu" => Ok(Self::Wgpu(0)),
            other => {
                let (backend, index) = other.split_once(':').ok_or_else(unknown)?;
                let index = index.parse().map_err(|_| unknown())?;
                match backend {
                    "cuda" => Ok(Self::Cuda(index)),
                    "wgpu" => Ok(Self::Wgpu(index)),
                    _ => Err(unknown()),
                }
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Wgpu(index) => write!(f, "wgpu:{index}"),
        }
    }
}

impl DeviceChoice {
    /// Opens the device, without autodiff: training calls [`Device::autodiff`] itself.
    ///
    /// # Errors
    /// If the device does not exist.
    pub fn open(self) -> Result<Device, DeviceError> {
        match self {
            Self::Cpu => Ok(Device::flex()),
            Self::Cuda(index) => open_cuda(self, index),
            Self::Wgpu(index) => open_wgpu(self, index),
            Self::Auto => Ok(open_cuda(self, 0).unwrap_or_else(|_| Device::flex())),
        }
    }
}

/// Number of GPUs that this build can use: 0 without the `cuda` feature or without a driver.
pub fn n_gpus() -> usize {
    #[cfg(feature = "cuda")]
    {
        // Enumerating looks for the driver first, so a machine without one returns 0 instead of panicking.
        Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len()
    }
    #[cfg(not(feature = "cuda"))]
    0
}

#[cfg(feature = "cuda")]
fn open_cuda(wanted: DeviceChoice, index: usize) -> Result<Device, DeviceError> {
    kernels::keep();
    match n_gpus() {
        0 => Err(DeviceError::NoGpu(wanted)),
        found if index >= found => Err(DeviceError::NoSuchGpu { wanted, found }),
        _ => {
            let device = Device::cuda(index);
            kiln_kernels::calls::name_for_tools(&device);
            Ok(device)
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(wanted: DeviceChoice, _index: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt(wanted))
}

#[cfg(feature = "wgpu")]
fn open_wgpu(wanted: DeviceChoice, index: usize) -> Result<Device, DeviceError> {
    let devices = Device::enumerate(burn::tensor::DeviceType::Wgpu).into_vec();
    let found = devices.len();
    devices.into_iter().nth(index).ok_or(DeviceError::NoSuchWgpu { wanted, found })
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu(wanted: DeviceChoice, _index: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt(wanted))
}

/// Waits until `device` can compute: a GPU makes its context when it is first used.
pub(crate) fn start(device: &Device) {
    if is_cuda(device) {
        Tensor::<1>::zeros([1], device).into_data();
    }
}

/// The name of `device` in logs: the GPU's name, or "CPU (4 threads)".
pub fn device_name(device: &Device) -> String {
    if is_cpu(device) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        return format!("CPU ({threads} threads)");
    }
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if let Some(identity) = device.clone().inner().identity() {
        return identity.name;
    }
    format!("{device:?}")
}

/// Says that Kiln has no kernels for `device`, if so.
pub fn plain_hint(device: &Device) -> Option<String> {
    (!has_kernels(device)).then(|| {
        format!(
            "Kiln has no kernels for {}: plain Burn operations compute everything in f32, more slowly (docs/backends.md)",
            device_name(device)
        )
    })
}

/// Explains how to use the machine's NVIDIA GPU, if this build does not support GPUs.
pub fn gpu_hint() -> Option<String> {
    let gpu_here = Path::new("/dev/nvidia0").exists() || Path::new("/proc/driver/nvidia/gpus").exists();
    (cfg!(not(feature = "cuda")) && gpu_here).then(|| {
        "this machine has an NVIDIA GPU, but this build supports the CPU only; rebuild with `cargo build --release --features cuda`"
            .to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed_and_printed() {
        for (text, choice) in [
            ("cpu", DeviceChoice::Cpu),
            ("CUDA", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
            ("wgpu", DeviceChoice::Wgpu(0)),
            ("WGPU:1", DeviceChoice::Wgpu(1)),
            ("auto", DeviceChoice::Auto),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "tpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "wgpu:", "metal:0"] {
            let error = text.parse::<DeviceChoice>().expect_err(text).to_string();
            assert!(error.contains("use `cpu`"), "{error}");
        }
    }

    #[test]
    fn a_missing_gpu_is_an_error_with_a_remedy_and_never_a_panic() {
        let error = DeviceChoice::Cuda(4096).open().expect_err("nobody has 4097 GPUs").to_string();
        assert!(error.contains("cuda:4096"), "{error}");
        assert!(error.contains("--device cpu") || error.contains("nvidia-smi"), "{error}");
    }

    #[test]
    fn a_missing_device_of_wgpu_is_an_error_with_a_remedy() {
        let error = DeviceChoice::Wgpu(4096).open().expect_err("nobody has 4097 devices").to_string();
        assert!(error.contains("wgpu:4096") && error.contains("--device cpu"), "{error}");
        let remedy = if cfg!(feature = "wgpu") { "mesa-vulkan-drivers" } else { "--features wgpu" };
        assert!(error.contains(remedy), "{error}");
    }

    #[test]
    fn auto_and_cpu_always_open() {
        assert!(is_cpu(&DeviceChoice::Cpu.open().expect("a CPU")));
        assert!(is_cpu(&DeviceChoice::Cpu.open().expect("a CPU").autodiff()));
        DeviceChoice::Auto.open().expect("at least the CPU");
    }
}
