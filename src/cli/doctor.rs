//! `kiln doctor`: checks what this machine and this build can do, and names the package of each missing part.

mod libraries;
mod report;
mod several_gpus;

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::Device;
use kiln_kernels::{KernelSet, product_kernels};

use kiln_metrics::logging::print::stdout_text;
use kiln_train::device::{self, DeviceChoice};
use libraries::{CUDA_HEADERS, find_cuda_headers, find_library, find_llvm, nvidia_gpus};
use report::{Finding, Report};

/// Checks device, driver, libraries and build
///
/// Names every missing part and the package that provides it. Changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kiln doctor")]
pub(super) struct Args {}

pub(super) fn run(Args {}: Args) -> Result<()> {
    stdout_text!("{}", diagnose());
    Ok(())
}

fn diagnose() -> Report {
    let with_cuda = cfg!(feature = "cuda");
    let gpus = nvidia_gpus(Path::new("/proc/driver/nvidia"), Path::new("/sys/bus/pci/devices"));
    let mut report = Report::default();

    report.section("Build");
    report.add("kiln", Finding::Good(env!("CARGO_PKG_VERSION").into()));
    report.add("cpu", Finding::Good("built in (Burn flex)".into()));
    report.add(
        "cuda",
        match (with_cuda, gpus.is_empty()) {
            (true, _) => Finding::Good("built in".into()),
            (false, true) => Finding::Absent("not built in, and there is no NVIDIA GPU".into()),
            (false, false) => Finding::Missing {
                found: "not built in, though this machine has an NVIDIA GPU".into(),
                remedy: "cargo build --release --features cuda".into(),
            },
        },
    );

    let tables = match cfg!(feature = "arrow") {
        true => Finding::Good("read as data".into()),
        false => Finding::Absent("not built in: a build with --features arrow reads them".into()),
    };
    report.add("Parquet, Arrow", tables);

    report.section("Device");
    let cpu = DeviceChoice::Cpu.open().expect("the CPU always exists");
    report.add("cpu", Finding::Good(device::device_name(&cpu)));
    report.add(
        "gpu",
        if gpus.is_empty() { Finding::Absent("no NVIDIA GPU found".into()) } else { Finding::Good(gpus.join(", ")) },
    );
    if with_cuda && !gpus.is_empty() {
        report.add("usable", usable_gpus());
    }
    if cfg!(feature = "wgpu") {
        report.add("wgpu", devices_of_wgpu());
    }
    if with_cuda {
        let folder = device::kernel_folder().map_or("not kept: neither XDG_CACHE_HOME nor HOME is set".into(), kept);
        report.add("kernels", Finding::Good(folder));
    }

    // Without a GPU the rest is not needed.
    let wanted = with_cuda && !gpus.is_empty();
    report.section("To run on a GPU");
    report.add("driver", driver(wanted));
    report.add(
        "NVRTC",
        library(
            "libnvrtc.so",
            "only for CubeCL's C++ compiler, which is not in use",
            "libnvrtc12 or nvidia-cuda-toolkit",
            "nvidia-cuda-nvrtc-cu12",
        ),
    );
    report.add("CUDA headers", cuda_headers());

    if with_cuda {
        several_gpus::check(&mut report, gpus.len());
    }

    report.section("To build with --features cuda");
    report.add(
        "LLVM 23.1",
        match find_llvm() {
            Ok(folder) => Finding::Good(folder.display().to_string()),
            Err(wanted) => Finding::Optional {
                found: format!("no {}; Burn's build downloads it, or run scripts/llvm-from-pypi.sh", wanted.display()),
                packages: "PyPI mlc-llvm-static[all]==23.1.1.post0, Debian python3-venv for the script".into(),
            },
        },
    );
    report
}

fn cuda_headers() -> Finding {
    match find_cuda_headers() {
        Some(folder) => Finding::Good(folder.display().to_string()),
        None => Finding::Optional {
            found: format!(
                "{CUDA_HEADERS} not found; only for CubeCL's C++ compiler; set CUDA_PATH if it lies elsewhere"
            ),
            packages: "Debian nvidia-cuda-toolkit, PyPI nvidia-cuda-runtime-cu12".into(),
        },
    }
}

fn devices_of_wgpu() -> Finding {
    let devices = (0..).map_while(|index| DeviceChoice::Wgpu(index).open().ok()).enumerate();
    let names: Vec<_> = devices.map(|(i, it)| format!("wgpu:{i} {}", device::device_name(&it))).collect();
    match names.is_empty() {
        true => Finding::Absent("no device of Vulkan, Metal or DirectX 12 found".into()),
        false => Finding::Good(names.join(", ")),
    }
}

fn driver(wanted: bool) -> Finding {
    let version = libraries::driver_version(Path::new("/proc/driver/nvidia/version"));
    match (find_library("libcuda.so"), version) {
        (Some(path), Some(version)) => Finding::Good(format!("{version}, {}", path.display())),
        (Some(path), None) => Finding::Good(path.display().to_string()),
        (None, _) if wanted => Finding::Missing {
            found: "libcuda.so.1 not found".into(),
            remedy: "Debian: apt-get install nvidia-driver libcuda1; in a container: start it with --gpus all".into(),
        },
        (None, Some(version)) => Finding::Optional {
            found: format!("kernel module {version}, but libcuda.so.1 not found"),
            packages: "Debian libcuda1".into(),
        },
        (None, None) => Finding::Absent("none (Debian: nvidia-driver, libcuda1)".into()),
    }
}

fn library(name: &str, purpose: &str, debian: &str, pypi: &str) -> Finding {
    match find_library(name) {
        Some(path) => Finding::Good(path.display().to_string()),
        None => Finding::Optional {
            found: format!("{name} not found; {purpose}"),
            packages: format!("Debian {debian}, PyPI {pypi}"),
        },
    }
}

/// Names the kernels of matrix products and attention.
fn kernels_of(gpu: &Device) -> String {
    match product_kernels(gpu) {
        Some(set) => format!(
            "products and attention (heads of a multiple of 8 up to 256) in 16 bits by Kiln's kernels for {set}; \
             products in f32 by those for {}",
            KernelSet::Ampere
        ),
        None => "products and attention by Burn's own operators, several times slower".into(),
    }
}

/// Describes the folder of compiled kernels and its size.
fn kept(folder: PathBuf) -> String {
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    format!("{} ({:.1} MB; it can be deleted and is made again)", folder.display(), bytes as f64 / 1e6)
}

/// Checks the first GPU with a small computation.
fn usable_gpus() -> Finding {
    match DeviceChoice::Cuda(0).open() {
        Err(error) => {
            Finding::Missing { found: error.to_string(), remedy: "check `nvidia-smi` and CUDA_VISIBLE_DEVICES".into() }
        }
        Ok(gpu) => {
            let sum = burn::tensor::Tensor::<1>::from_data([1.0f32, 2.0], &gpu).sum().try_into_data();
            match sum.as_ref().map(|sum| sum.as_slice::<f32>()) {
                Ok(Ok([3.0])) => Finding::Good(format!(
                    "{} GPU(s), {}; {}",
                    device::n_gpus(),
                    device::device_name(&gpu),
                    kernels_of(&gpu)
                )),
                other => Finding::Missing {
                    found: format!("1 + 2 on the GPU gives {other:?}"),
                    remedy: "a newer driver; see `nvidia-smi`".into(),
                },
            }
        }
    }
}
