//! The optimizer on CubeCL devices: every byte of parameters, moments and gradients is moved once.

mod gather;
mod launch;
mod prepare;
mod step;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use launch::{launch_step, part_of};

/// Threads of a block in passes over flat tensors.
pub(crate) const UNITS: u32 = 256;
/// Threads of the one block that sums the squares and prepares a step.
const PREPARE_UNITS: u32 = 1024;
