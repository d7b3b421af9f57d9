//! Where the time of a training step goes, measured: the headline workloads ([`workload`], [`step_time`]) and, beside
//! them in the same run, PyTorch ([`peer`]). And whether runs learn alike ([`compare`]).

pub mod compare;
pub mod peer;
pub mod step_time;
pub mod workload;
