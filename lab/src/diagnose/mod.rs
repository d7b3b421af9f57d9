//! Measures where the time of a training step goes, and whether two ways of training learn the same.
//!
//! Time: one library of measurements (`measure`) for the headline workloads ([`workload`], [`step_time`]), each operator of their steps alone ([`operators`]), decoding ([`decoding`]), and the
//! PyTorch baseline in the same command ([`peer`]); [`bench_record`] keeps what was measured, and [`warm`] makes the kernels before. Learning: what run folders tell ([`run_record`]), the losses of
//! several runs ([`compare`]), training data ([`data_stats`]), memory ([`ledger`]), tests that isolate parts of a step ([`elimination`]), another precision ([`precision`]), and steps replayed as CUDA graphs ([`replay`]).

pub mod bench_record;
pub mod compare;
pub mod data_stats;
pub mod decoding;
pub mod elimination;
pub mod ledger;
pub mod link;
mod measure;
pub mod no_history;
pub mod operators;
pub mod peer;
pub mod precision;
pub mod profile;
pub mod replay;
pub mod run_record;
pub mod step_time;
pub mod warm;
pub mod workload;

pub use measure::Effort;

/// Returns the largest of `values`, 0 if there are none, and NaN if one of them is. `f64::max` would hide a NaN.
fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |a: f64, b| if b <= a || a.is_nan() { a } else { b })
}
