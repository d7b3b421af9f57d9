//! Where the time of a training step goes, measured: the headline workloads ([`workload`], [`step_time`]), each operator
//! of their steps alone ([`operators`]) and, beside them in the same run, PyTorch ([`peer`]). And whether runs learn alike
//! ([`compare`]), in another precision too ([`precision`]) or replayed as CUDA graphs ([`replay`]).

pub mod compare;
pub mod operators;
pub mod peer;
pub mod precision;
pub mod replay;
pub mod step_time;
pub mod workload;

/// The largest of `values`, 0 if there are none. `f64::max` would hide one that is no number.
fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |a: f64, b| if b <= a || a.is_nan() { a } else { b })
}
