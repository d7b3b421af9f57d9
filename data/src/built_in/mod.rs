//! The built-in task of the trainer, for first runs, tests and benchmarks. Most users of this crate do not need it.

pub mod numbers;
