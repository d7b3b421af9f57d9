//! Products on CUDA: a plan, a kernel for each kind of tensor cores, and the sum of the slices where K is split.
//!
//! | folder | kernels |
//! |---|---|
//! | [`hopper`] | 16-bit numbers on Hopper: TMA, `wgmma`, warp specialization |
//! | [`fp8`] | FP8 on Hopper, with the roles and epilogues of [`hopper`] |
//! | [`tf32`] | f32 in TF32 on Hopper, with the load warp and the schedule of [`hopper`] |
//! | [`ampere`] | Ampere and later GPUs, and f32 everywhere: `cp.async`, `mma.sync` |
//! | [`few_rows`] | up to eight rows of 16-bit numbers, on any GPU |
//! | [`shared`] | plan, schedule of tiles, split K; [`shared::split_k`] has a picture |
//!
//! [`ops`] are the operators, [`launch`] starts the kernel of a plan, and [`fallback`] computes the other products by the backend.

mod ampere;
mod fallback;
mod few_rows;
mod fp8;
mod hopper;
mod launch;
mod ops;
mod shared;
mod tf32;

#[cfg(test)]
pub(super) mod tests;

pub(crate) use launch::EpilogueArguments;
pub(crate) use ops::{empty_matrix, operand, product_in_f32, product_into};
