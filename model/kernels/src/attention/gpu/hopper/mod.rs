//! Flash attention on Hopper: `wgmma` and TMA.
//!
//! A block is one warpgroup of 128 threads. It owns a *resident* tile of 64 rows in shared memory, and TMA *streams*
//! tiles of the other sequence through a few slots of shared memory:
//!
//! | kernel | resident | streamed | result |
//! |---|---|---|---|
//! | [`forward`] | queries | keys, values | out, log-sums |
//! | [`query_gradient`] | queries, d_out | keys, values | dQ, deltas |
//! | [`key_value_gradient`] | keys, values | queries, d_out | dK, dV |
//! | [`one_tile`] | all four | | dQ, dK, dV of a head |
//! | [`one_pass`] | 128 keys, values | queries, d_out | dK, dV, and parts of dQ |
//! | [`in_turns`] | 128 or 192 queries | keys, values | out, log-sums |
//!
//! One turn of forward. Products (`wgmma`) are asynchronous, so that the product with the values runs during the
//! softmax of the next scores:
//!
//! ```text
//!   thread 0      keys n + 1, values n  --TMA-->  slots
//!   tensor cores  scores n = Q K^T         |  out += P(n-1) V(n-1)
//!   threads       (wait for scores n)      |  mask, softmax, dropout of scores n  -->  P(n)
//! ```
//!
//! Several blocks share a multiprocessor, so that one computes exponentials while another multiplies. Columns of heads
//! are read where the projection wrote them.
//!
//! Backward is two kernels, one that owns rows of dQ and one that owns rows of dK and dV, so that no sum depends on
//! timing. If all queries and keys of a batch row fit into one tile, a single kernel owns all three. Long rows of heads of 64 and 128
//! take [`one_pass`], which adds the parts of dQ in a fixed order, and forward [`in_turns`]: their warps have roles, and registers by role.
//!
//! A thread has 255 registers, and heads of 192 and 256 leave them for one sum: a block is two warpgroups. In forward and in
//! [`wide_query_gradient`] each owns 64 queries; in [`wide_key_value_gradient`] one sums dV and the other dK.
//! Forward has two warpgroups also for heads of 80 and 96, whose tiles take TMA long to copy.
//!
//! [`slots`] loads tiles, [`tile`] multiplies them, and [`lines`] stores some rows through shared memory. The rest is
//! [`shared`](super::shared) with Ampere.

mod forward;
mod in_turns;
mod key_value_gradient;
mod launch;
mod lines;
mod one_pass;
mod one_tile;
mod query_gradient;
mod results;
mod slots;
#[cfg(test)]
pub(super) mod tests;
mod tile;
mod wide_key_value_gradient;
mod wide_query_gradient;

pub(super) use launch::{launch_backward, launch_forward, serves};
