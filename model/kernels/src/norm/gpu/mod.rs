//! Normalization on CubeCL devices: rows in registers, every byte of the inputs read once and of the results written
//! once.
//!
//! A row of up to 128 vectors is a warp's, a longer one a block's. Forward ([`forward`]) takes one row per warp or
//! block. Backward ([`backward`]) lets each block take many rows, because it also sums the gradients of the parameters
//! over rows, in registers:
//!
//! ```text
//!   thread 0     rows of turn n + 3  --bulk copy-->  stage s
//!   all threads  stage s  -->  dx, dbranch;  dgamma, dbeta, dbias += ...
//!   at the end   sums of each block  -->  partial  --reduce_partial-->  gradients of the parameters
//! ```
//!
//! These sums leave registers for few warps, too few to hide the latency of loads. The rows of the next turns therefore
//! come through shared memory.

mod backward;
mod forward;
mod launch;
mod parameters;
mod row;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use parameters::{REDUCE_COLUMNS, REDUCE_UNITS, reduce_partial};

/// Threads of a block that works on rows: few, so that several blocks share the registers of a multiprocessor in
/// backward.
const UNITS: u32 = 128;
