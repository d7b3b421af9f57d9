//! Flash attention on tensor cores (Dao 2023, FlashAttention-2): scores live in registers, tile by tile.
//!
//! | folder | kernels |
//! |---|---|
//! | [`hopper`] | 16-bit numbers on Hopper: `wgmma` and TMA |
//! | [`ampere`] | Ampere and later GPUs; on Hopper f32 and the heads that [`hopper`] does not serve: `mma.sync` and `cp.async` |
//! | [`shared`] | what both have in common |
//!
//! [`launch`] chooses between them.

mod ampere;
mod hopper;
mod launch;
mod shared;
#[cfg(test)]
pub(super) mod tests;

pub(super) use launch::{serves, serves_relative};
