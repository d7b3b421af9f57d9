//! Flash attention on tensor cores (Dao 2023, FlashAttention-2): scores live in registers, tile by tile.
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
//! timing. If all queries and keys of a batch row fit into one tile, a single kernel owns all three.
//!
//! A thread has 255 registers, and heads of 192 and 256 leave them for one sum: a block is two warpgroups. In forward and in
//! [`wide_query_gradient`] each owns 64 queries; in [`wide_key_value_gradient`] one sums dV and the other dK.
//! Forward has two warpgroups also for heads of 80 and 96, whose tiles take TMA long to copy.
//!
//! [`position`] says where tiles and threads are, [`slots`] loads tiles, [`tile`] multiplies them, [`lines`] stores
//! some rows through shared memory and [`rows`] all others; [`bound`], [`relative`], [`mask`], [`softmax`] and [`dropout`] work on scores in registers.

mod ampere;
mod arguments;
mod bound;
mod call;
mod config;
mod dropout;
mod forward;
mod hopper;
mod key_tile;
mod key_value_gradient;
mod launch;
mod lines;
mod mask;
mod one_tile;
mod position;
mod query_gradient;
mod relative;
mod rows;
mod slots;
mod softmax;
#[cfg(test)]
pub(super) mod tests;
mod tile;
mod wide_key_value_gradient;
mod wide_query_gradient;

use cubecl::prelude::*;
pub(super) use launch::{serves, serves_relative};

type Pair<E> = Vector<E, Const<2>>;
/// What a thread stores at once: 16 bytes.
type Oct<E> = Vector<E, Const<8>>;
