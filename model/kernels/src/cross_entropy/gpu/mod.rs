//! Cross-entropy on CubeCL devices. A block works on one row at a time.
//!
//! Forward ([`loss`]) reads the logits once, backward ([`gradient`]) reads and writes them once. Where nothing else
//! needs the logits, one kernel computes losses and gradient and overwrites the logits with it. Its blocks take many
//! rows each, and the next rows are loaded into shared memory while a block works on one:
//!
//! ```text
//!   thread 0     row n + slots   --bulk copy-->  slot s
//!   all threads  slot s  -->  sums of the row  -->  losses, gradient  -->  row n of the logits
//! ```

mod gradient;
mod launch;
mod loss;
mod row;
#[cfg(test)]
pub(super) mod tests;

use cubecl::prelude::*;
pub(crate) use launch::{losses, losses_and_gradient};

/// Threads of a block that reads its row once.
const UNITS: u32 = 256;
/// Threads of a block that reads its row twice: the second time from shared memory or, with few rows in flight, from
/// L2.
const UNITS_TWICE: u32 = 1024;

/// The definition of the loss, and the number of rows of the result.
#[derive(CubeType, CubeLaunch)]
struct Loss {
    rows: u32,
    smoothing: f32,
    ignored: i32,
}
