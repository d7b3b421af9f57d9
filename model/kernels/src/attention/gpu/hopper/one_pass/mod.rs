//! Backward of long rows in one pass: five products for each pair of tiles, where two kernels compute seven.
//!
//! A block owns 128 keys of a head, and two of its warpgroups 64 of them each. Queries and `d_out` are streamed past them. What a tile
//! of queries gets from the keys leaves the block at once: TMA adds it to sums in memory, whose locks fix the order of the blocks.
//!
//! ```text
//!   warpgroups 0, 1
//!     tensor cores  scores n = K Q^T    dP = V d_out^T |  dV += P^T d_out |  dK += dS^T Q    part n - 1 of dQ = dS K
//!     threads                           P = exp(scores) |  dS(P, dP)  -->  shared memory      part n - 1  -->  shared memory
//!   warpgroup 2
//!     warp 0        queries, d_out n + 1  --TMA-->  slots
//!     warps 1, 2    part n - 2 of a warpgroup: wait for its lock  --TMA adds-->  sums, pass the lock
//!     warp 3        log-sums, deltas n + 1  -->  slots
//! ```
//!
//! A part of dQ needs the `dS` of both warpgroups, and is computed a turn later. So neither waits for the other, unless it is a whole turn
//! ahead, and one computes exponentials while the other multiplies. The third warpgroup leaves its registers to them, so the kernel is a
//! [program](crate::device_queue::programs).
//!
//! Later keys of a head go first, and the parts of a tile of queries are added from its last keys to its first. Under causality a
//! block then meets each tile of queries a turn after the block before it, and seldom waits: this is the order SPT of FlashAttention-3.
//! Each block takes its number when it starts. It waits for blocks with lower numbers only, which run already, in whatever order the
//! GPU starts blocks. So no block waits for longer than the blocks before it compute.
//!
//! | file | what it has |
//! |---|---|
//! | [`column`] | which keys a block owns, and which queries see them |
//! | [`memory`] | the tiles in shared memory, as TMA fills them and products read them |
//! | [`gradients`] | the kernel |
//! | [`sums`] | the sums of dQ, and whose turn it is |
//! | [`rows`] | the deltas, before, and the rounded sums, afterwards |

mod column;
mod gradients;
mod launch;
mod memory;
mod rows;
mod sums;
#[cfg(test)]
pub(super) mod tests;

pub(super) use launch::{launch, serves};

use crate::attention::gpu::shared::config::{FlashConfig, TILE};

/// What the kernels of the pass are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PassConfig {
    flash: FlashConfig,
}

impl PassConfig {
    /// Returns the queries of a streamed tile: 16 KiB of them, and as many of `d_out`.
    fn rows(&self) -> usize {
        8192 / self.flash.head_dim
    }

    /// Returns whether the part of dQ of a warpgroup, of 64 queries, has all columns of a head. The other warpgroup then has the other
    /// 64 queries, else the other half of the columns.
    fn parts_have_all_columns(&self) -> bool {
        self.rows() > TILE
    }

    /// Returns the columns of such a part.
    fn part_columns(&self) -> usize {
        if self.parts_have_all_columns() { self.flash.head_dim } else { self.flash.head_dim / 2 }
    }

    /// Returns the vectors of four numbers of such a part.
    fn part_quads(&self) -> usize {
        TILE * self.part_columns() / 4
    }
}
