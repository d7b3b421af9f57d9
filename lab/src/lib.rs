//! Measurements of training, and pages about them.
//!
//! The command line uses this crate. Its interface may change with every version.
//!
//! # The map
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | [`diagnose`] speed and precision, compared with PyTorch and f32 |
//! | 1 | [`report`] pages and pictures of runs |
//! | 2 | [`profiled`] profiles as files, also of runs that go on |

pub mod diagnose;
pub mod profiled;
pub mod report;
