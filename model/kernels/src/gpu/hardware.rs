//! Queries about the device.

use cubecl::prelude::*;

/// Whether the device has the features of Hopper: TMA, bulk copies, and warpgroup products.
pub(crate) fn is_hopper(client: &Client) -> bool {
    !client.properties().features.matmul.wgmma.is_empty()
}

/// Returns the number of multiprocessors, or 64 if the device does not report it.
pub(crate) fn multiprocessors(client: &Client) -> u32 {
    client.properties().hardware.num_streaming_multiprocessors.unwrap_or(64)
}
