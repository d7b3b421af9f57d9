//! What the kernel is compiled for, and the numbers of a call.

use cubecl::prelude::*;

pub(super) const THREADS: u32 = 128;
pub(super) const WARP: u32 = 32;
/// Positions that a group of lanes reads together (`benches/results/2026-11-29-h200-decoding.md`).
pub(super) const IN_FLIGHT: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    /// Lanes that read a position of a head, a power of two.
    pub(super) lanes: u32,
    /// Vectors of such a lane.
    pub(super) vectors: u32,
    pub(super) per_position: bool,
    /// Warps per head.
    pub(super) parts: u32,
    /// Whether the last position comes with the query, and is appended to the others.
    pub(super) appends: bool,
    /// See [`crate::gpu::early`].
    pub(super) early: bool,
    /// Whether the first positions are prefetched, which fit into the cache if there are few heads.
    pub(super) prefetches: bool,
}

impl Sizes {
    /// Vectors of a head.
    pub(super) fn head(self) -> u32 {
        self.lanes * self.vectors
    }

    /// Positions that a warp reads at once.
    pub(super) fn groups(self) -> u32 {
        WARP / self.lanes
    }

    /// Vectors of a position in the buffer.
    pub(super) fn position(self) -> u32 {
        2 * self.kv_heads * self.head()
    }

    /// Threads of a block.
    pub(super) fn threads(self) -> u32 {
        if self.parts > 1 { self.parts * WARP } else { THREADS }
    }
}

/// What differs from call to call.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Call {
    /// Rows times heads.
    pub(super) n: u32,
    /// Vectors from a row of the queries to the next.
    pub(super) pitch: u32,
    pub(super) capacity: u32,
    pub(super) scale: f32,
}

/// Which row and head a warp works for.
#[derive(CubeType)]
pub(super) struct Place {
    pub(super) row: u32,
    pub(super) head: u32,
    /// The head of keys and values.
    pub(super) group: u32,
}
