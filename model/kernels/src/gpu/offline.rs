//! Kernels compiled for a GPU that is not there: what the front end or LLVM refuses fails here, not at the first launch.

use std::sync::Arc;

use cubecl::ir::features::Features;
use cubecl::ir::nvidia::SmArch;
use cubecl::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;
use cubecl::{Compiler, CubeKernel};
use cubecl_llvm::nvptx::ptx_version::PtxVersion;
use cubecl_llvm::target::LlvmTarget;
use cubecl_llvm::{PlironArtifact, PlironCompiler, PlironOptions};

fn hopper() -> SmArch {
    SmArch::new(90, true)
}

/// What a kernel's constructor takes before its arguments.
pub(crate) fn settings(units: u32) -> (KernelSettings, Arc<DeviceProperties>, Arc<TargetProperties>) {
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
    let settings = KernelSettings::new(*CubeDim::new_1d(units), ExecutionMode::Unchecked, AddressType::U32);
    (settings, Arc::new(properties), Arc::new(TargetProperties::default()))
}

/// A buffer among those arguments.
pub(crate) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// The PTX of `kernel` for Hopper, also written to the folder `$KILN_PTX`; `None`, with the reason printed, where a function of
/// NVIDIA's library is missing.
pub(crate) fn ptx(kernel: impl CubeKernel) -> Option<String> {
    let mut compiler = PlironCompiler { target: LlvmTarget::Nvptx };
    // What the CUDA runtime asks for on a driver of CUDA 13.0: scalars are parameters, which the assembler knows to be the same
    // for all units. A kernel whose scalars lie in memory is another kernel.
    let options = PlironOptions {
        sm_arch: Some(hopper()),
        ptx_version: PtxVersion::for_driver(13_000),
        grid_constants: true,
        ..Default::default()
    };
    match compiler.compile(kernel.define(), &options) {
        Ok(PlironArtifact::NvptxCode(module)) => {
            let code: String = module.ptx.iter().map(|&c| c as u8 as char).take_while(|&c| c != '\0').collect();
            if let Some(folder) = std::env::var_os("KILN_PTX") {
                let name = code.split(".entry ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or("kernel");
                let file = std::path::Path::new(&folder).join(name).with_extension("ptx");
                std::fs::write(&file, &code).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            }
            Some(code)
        }
        Ok(_) => unreachable!("the NVPTX target gives PTX"),
        Err(error) if error.to_string().contains("libdevice") => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("a kernel does not compile: {error}"),
    }
}
