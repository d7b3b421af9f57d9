//! Norms of heads on CubeCL devices: each byte is read and written once. A head's lanes are a part of a warp; they hold its vectors.
//!
//! Backward computes the sums of a head from its input alone, so that forward keeps nothing else. Each block takes many heads,
//! because it also sums the gradients of the scales, in registers. `reduce_partial` adds up the blocks.

mod backward;
mod forward;
mod heads;
mod launch;
#[cfg(test)]
pub(super) mod tests;

/// Threads of a block.
const UNITS: u32 = 256;
