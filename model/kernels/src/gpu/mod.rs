//! The parts that all CUDA kernels are built from.

pub(crate) mod async_copy;
pub(crate) mod constant;
#[cfg(test)]
mod constants;
pub(crate) mod early;
pub(crate) mod hardware;
pub(crate) mod instruction;
#[cfg(test)]
mod lock;
pub(crate) mod memory;
pub(crate) mod mma;
pub(crate) mod mma_f32;
#[cfg(test)]
mod mma_peak;
pub(crate) mod occupancy;
#[cfg(test)]
pub(crate) mod offline;
pub(crate) mod ordered_sum;
pub(crate) mod pipeline;
pub(crate) mod programs;
pub(crate) mod reduce;
pub(crate) mod scan;
pub(crate) mod tensor_map;
pub(crate) mod traversal;
pub(crate) mod warpgroups;
pub(crate) mod wgmma;
