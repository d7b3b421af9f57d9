//! What the kernels of all architectures have in common: the plan of a product, the schedule of its tiles, and split K.

pub(super) mod arguments;
pub(super) mod config;
pub(super) mod plan;
pub(super) mod relu;
pub(super) mod schedule;
pub(super) mod split_k;
pub(super) mod split_k_sum;
pub(super) mod vectors;
