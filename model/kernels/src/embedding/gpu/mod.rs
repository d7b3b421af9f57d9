//! Embedding on CubeCL devices.
//!
//! Forward ([`lookup`]) is one pass with a thread per vector of the result.
//!
//! The gradient of the table sorts the tokens by id and adds the rows of each id in the order of their tokens:
//!
//! ```text
//! sort   ids  --count-->  tokens per id  --begin-->  first place of each id
//!             --deal-->   tokens by id, in any order  --settle-->  order, sorted: tokens by id, in their order
//! sum    dy rows in that order, 32 tokens (a segment) per warp
//!          an id within one segment  --accumulate-->  its row of the gradient
//!          an id across segments     --accumulate-->  partial sums: tail, head, head ...  --join-->  its row
//! ```
//!
//! The sort counts with atomic additions of integers. They assign each token a place within its id, in an order that
//! depends on timing; `settle` then restores the order of the tokens, before anything is summed.
//!
//! Warps share the work by tokens, not by ids: an id that makes up a tenth of the text costs no more than others.

mod launch;
mod lookup;
mod sort;
mod sum;
#[cfg(test)]
pub(super) mod tests;

/// Threads of a block, unless a kernel says otherwise.
const UNITS: u32 = 256;
