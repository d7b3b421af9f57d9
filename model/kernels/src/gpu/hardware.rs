//! Queries about the device.

use std::sync::OnceLock;

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

/// Instructions that the kernels of matrix products and attention are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelSet {
    /// TMA, bulk copies and warpgroup products: compute capability 9.0.
    Hopper,
    /// `cp.async`, `ldmatrix` and `mma.sync`: compute capability 8.0 and later.
    Ampere,
}

/// Returns the set of kernels that `client`'s device runs: the newest that it has the instructions for, or none before Ampere.
///
/// The environment variable `KILN_KERNELS`, which a process reads once, chooses an older one: `ampere`, or `stock` for none, which
/// leaves products to the backend.
pub(crate) fn kernel_set(client: &Client) -> Option<KernelSet> {
    static CHOICE: OnceLock<Option<String>> = OnceLock::new();
    let choice = CHOICE.get_or_init(|| std::env::var("KILN_KERNELS").ok());
    let matmul = &client.properties().features.matmul;
    let multiplies_bf16 = || matmul.mma.iter().any(|config| config.a_type == ElemType::Float(FloatKind::BF16));
    match choice.as_deref() {
        Some("stock") => None,
        Some("ampere") if multiplies_bf16() => Some(KernelSet::Ampere),
        _ if !matmul.wgmma.is_empty() => Some(KernelSet::Hopper),
        _ => multiplies_bf16().then_some(KernelSet::Ampere),
    }
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
