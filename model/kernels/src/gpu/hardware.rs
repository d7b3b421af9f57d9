//! Queries about the device.

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use crate::kernel_set::{KernelChoice, KernelSet};

/// Returns the set of kernels that `client`'s device runs: the newest that it has the instructions for, or what [`KernelChoice`] says.
pub(crate) fn kernel_set(client: &Client) -> Option<KernelSet> {
    let matmul = &client.properties().features.matmul;
    let multiplies_bf16 = || matmul.mma.iter().any(|config| config.a_type == ElemType::Float(FloatKind::BF16));
    match KernelChoice::current() {
        KernelChoice::Stock => None,
        KernelChoice::Newest if !matmul.wgmma.is_empty() => Some(KernelSet::Hopper),
        _ => multiplies_bf16().then_some(KernelSet::Ampere),
    }
}

/// [`kernel_set`] of a device.
pub(crate) fn kernel_set_of(device: &Device) -> Option<KernelSet> {
    let device = device.clone().inner();
    let DispatchDevice::Cube(device @ cubecl::Device::Cuda(_)) = device.as_dispatch() else { return None };
    kernel_set(&device.client())
}

/// Whether kernels for Hopper run on the device, with TMA, bulk copies, and warpgroup products.
pub(crate) fn is_hopper(client: &Client) -> bool {
    kernel_set(client) == Some(KernelSet::Hopper)
}

/// Returns the number of multiprocessors, or 64 if the device does not report it.
pub(crate) fn multiprocessors(client: &Client) -> u32 {
    client.properties().hardware.num_streaming_multiprocessors.unwrap_or(64)
}

/// Returns the bytes of shared memory that a block may have.
pub(crate) fn shared_memory(client: &Client) -> usize {
    client.properties().hardware.max_shared_memory_size
}
