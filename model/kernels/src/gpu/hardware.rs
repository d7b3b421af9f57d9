//! Queries about the device.

use cubecl::prelude::*;

/// Whether the device has what came with Hopper: TMA, bulk copies, and products of warpgroups.
pub(crate) fn is_hopper(client: &Client) -> bool {
    !client.properties().features.matmul.wgmma.is_empty()
}

/// Multiprocessors of the device, among which cubes are to be shared out: 64 if it does not say.
pub(crate) fn multiprocessors(client: &Client) -> u32 {
    client.properties().hardware.num_streaming_multiprocessors.unwrap_or(64)
}
