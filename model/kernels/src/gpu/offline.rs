//! Kernels compiled to PTX on a machine without a GPU. Anything that CubeCL's front end or LLVM rejects fails in a test, not
//! at the first launch.
//!
//! `KILN_PTX=FOLDER` writes the PTX of each kernel there, and `KILN_PTX_ONLY=attention/forward` compiles only the kernels whose label
//! contains that. `KILN_PTX_TIMES=1` prints how long each kernel takes on this CPU; `RAYON_NUM_THREADS=1` keeps the others from
//! disturbing it.
//!
//! Each operator lists its kernels in a function `offline_kernels`. Its own test looks for the instructions it relies on, and
//! [`super::lock`] compares all of them with `ptx.lock`.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use cubecl::CubeKernel;
use cubecl::ir::features::Features;
use cubecl::ir::nvidia::SmArch;
use cubecl::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;

use crate::device_queue::programs::{compile, text_of};

/// A compiled kernel.
pub(crate) struct Compiled {
    /// Chosen by hand: operator, pass and case, as `norm/forward/64-vectors-dropout`.
    pub(crate) label: String,
    /// `None` where the kernel calls a function of NVIDIA's libdevice and this machine has none, and for kernels that
    /// `KILN_PTX_ONLY` leaves out.
    pub(crate) ptx: Option<String>,
    /// The GPUs that it is assembled for.
    pub(crate) architectures: &'static [&'static str],
}

fn hopper() -> SmArch {
    SmArch::new(90, true)
}

/// What kernels for Ampere and later are compiled for.
fn ampere() -> SmArch {
    SmArch::new(80, false)
}

impl Compiled {
    /// Compiles `kernel` for Hopper.
    pub(crate) fn new(label: impl Display, kernel: impl CubeKernel) -> Self {
        let label = label.to_string();
        let code = if is_wanted(&label) { ptx(&kernel, hopper()) } else { None };
        Self::write(label, code, &["sm_90a"])
    }

    /// Compiles `kernel` for Ampere. Compiles it for Hopper, too, unless `ptx.lock` has this very kernel: both were compared when its
    /// entry was written. Compiling takes most of the time of the tests without a device.
    ///
    /// # Panics
    /// If the same kernel for Hopper differs in more than its target: what runs there is then not what runs elsewhere.
    pub(crate) fn for_ampere(label: impl Display, kernel: impl CubeKernel) -> Self {
        let label = label.to_string();
        let code = if is_wanted(&label) { ptx(&kernel, ampere()) } else { None };
        if let Some(code) = &code
            && !super::lock::has(&label, code)
            && let Some(hopper) = ptx(&kernel, hopper())
        {
            assert_eq!(hopper.replace(".target sm_90a", ".target sm_80"), *code, "{label} differs between GPUs");
        }
        Self::write(label, code, &["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
    }

    fn write(label: String, ptx: Option<String>, architectures: &'static [&'static str]) -> Self {
        if let (Some(ptx), Some(folder)) = (&ptx, std::env::var_os("KILN_PTX")) {
            let file = Path::new(&folder).join(label.replace('/', "_")).with_extension("ptx");
            std::fs::write(&file, ptx).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        Self { label, ptx, architectures }
    }
}

/// Whether `KILN_PTX_ONLY` leaves the kernel in.
fn is_wanted(label: &str) -> bool {
    std::env::var("KILN_PTX_ONLY").map_or(true, |part| label.contains(&part))
}

/// Returns the arguments that come first in the constructor of a kernel whose blocks have `threads` threads.
pub(crate) fn settings(threads: u32) -> (KernelSettings, Arc<DeviceProperties>, Arc<TargetProperties>) {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 32,
        max_shared_memory_size: 227 * 1024,
        max_cube_count: (u32::MAX, u32::from(u16::MAX), u32::from(u16::MAX)),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(132),
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: 16,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity = DeviceIdentity { name: "offline".into(), fingerprint: "offline".into(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 512);

    let mut properties = DeviceProperties::new(Features::default(), memory, hardware, TimingMethod::Device, identity);
    properties.features.matmul.wgmma.extend(cubecl_llvm::nvptx::wgmma::configs(hopper()).iter().copied());

    let settings = KernelSettings::new(*CubeDim::new_1d(threads), ExecutionMode::Unchecked, AddressType::U32);
    (settings, Arc::new(properties), Arc::new(TargetProperties::default()))
}

/// Returns the constructor argument for a buffer.
pub(crate) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// Returns the PTX of `kernel` for `architecture`. Without libdevice, prints why a kernel that needs it was skipped.
fn ptx(kernel: &impl CubeKernel, architecture: SmArch) -> Option<String> {
    let started = std::time::Instant::now();
    let definition = kernel.define();
    let defined = started.elapsed();
    // What the CUDA runtime requests on a driver of CUDA 13.0.
    let compiled = compile(definition, architecture, 13_000);
    if std::env::var_os("KILN_PTX_TIMES").is_some() {
        let [defined, compiled] = [defined, started.elapsed() - defined].map(|time| time.as_secs_f64() * 1e3);
        eprintln!("defined in {defined:.1} ms, compiled in {compiled:.1} ms: {:?}", kernel.id());
    }

    match compiled {
        Ok(code) => Some(text_of(&code)),
        Err(error) if error.to_string().contains("libdevice") => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("a kernel does not compile: {error}"),
    }
}
