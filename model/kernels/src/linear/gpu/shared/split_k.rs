//! Split K: where an output has fewer tiles than the device has multiprocessors, which is usual for weight gradients, several
//! blocks share the sum over K of a tile.
//!
//! K is cut into `slices` of `slice_len` K tiles each, and a tail. The first blocks compute one slice of one tile
//! each. The other blocks, the tail blocks, compute the tails in rounds, one tile per block. The tails of the last
//! round are cut into `tail_slices`:
//!
//! ```text
//! K:       0         slice_len    2 slice_len                  k_tiles
//! tile 0   | block 0    | block t    | tail block 0               |
//! tile 1   | block 1    | block t+1  | tail block 1               |
//! ...
//! tile t-1 | block t-1  | block 2t-1 | tail block 0 | tail block 1 |     last round: tail_slices = 2
//! ```
//!
//! So blocks that run at the same time read the same rows of K, and operands that do not fit into L2 are read from memory once.
//! (Stream-K, Osama et al. 2023, also balances the load, but each block starts at different rows of K.) Every slice
//! writes f32 partial sums to a matrix of its own. [`super::split_k_sum`] adds them in a fixed order, so that the result
//! does not depend on timing.

use cubecl::prelude::*;

use super::arguments::SplitKSize;

/// The K tiles of an output tile that a block computes in one turn: all of them, or a slice.
#[derive(CubeType)]
pub(crate) struct Slice {
    pub(crate) tile: u32,
    /// The first K tile, and the one after the last.
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Which of the tile's partial sums this is.
    pub(crate) slice: u32,
}

/// Returns how many slices this block computes.
#[cube]
pub(crate) fn turns(tiles: u32, grid: u32, size: &SplitKSize) -> u32 {
    let mut turns = 1u32.runtime();
    let first = size.slices * tiles;
    if CUBE_POS as u32 >= first {
        let tail_blocks = grid - first;
        // Blocks that the last round needs: one per slice of the tails that are left for it.
        turns =
            tiles / tail_blocks + u32::cast_from((CUBE_POS as u32 - first) < tiles % tail_blocks * size.tail_slices);
    }
    turns
}

/// Sets `work` to the slice that this block computes in turn `turn`.
#[cube]
pub(crate) fn take_slice(work: &mut Slice, turn: u32, tiles: u32, grid: u32, k_tiles: u32, size: &SplitKSize) {
    let block = CUBE_POS as u32;
    let first = size.slices * tiles;
    let mut len = size.slice_len;
    work.tile = block % tiles;
    work.slice = block / tiles;
    work.from = work.slice * size.slice_len;

    if block >= first {
        let tail_block = block - first;
        let tail_blocks = grid - first;
        let left = tiles % tail_blocks;
        work.tile = turn * tail_blocks + tail_block;
        work.from = size.slices * size.slice_len;
        work.slice = size.slices;
        len = k_tiles - work.from;
        if work.tile >= tiles - left {
            let tail_slice = tail_block / left;
            len = (len + size.tail_slices - 1) / size.tail_slices;
            work.tile = tiles - left + tail_block % left;
            work.from += tail_slice * len;
            work.slice += tail_slice;
        }
    }
    work.to = min(k_tiles, work.from + len);
}

/// How the K of a product is split.
#[derive(Default)]
pub(crate) struct SplitK {
    pub(crate) slices: usize,
    pub(crate) slice_len: usize,
    pub(crate) tail_blocks: usize,
    pub(crate) tail_slices: usize,
}

impl SplitK {
    /// Returns how to split K between `multiprocessors` blocks, or `None` if that saves less than a tenth.
    pub(crate) fn plan(tiles: usize, k_tiles: usize, multiprocessors: usize) -> Option<Self> {
        /// K tiles below which a slice is not worth its partial sums.
        const SHORTEST_SLICE: usize = 16;
        /// K tiles below which tails are not worth it.
        const SHORTEST_TAIL: usize = 4;
        /// What it costs to write the partial sums of a slice, in K tiles.
        const WRITE: usize = 3;
        const MOST_TAIL_SLICES: usize = 8;
        if tiles >= multiprocessors {
            return None;
        }

        let most = multiprocessors / tiles;
        let slices = most.min(k_tiles / SHORTEST_SLICE).max(1);
        let tail_blocks = multiprocessors - most * tiles;
        let mut plan = None;
        if slices == most && tail_blocks > 0 {
            let left = tiles % tail_blocks;
            let tail_slices = if left > 0 { (tail_blocks / left).min(MOST_TAIL_SLICES) } else { 1 };
            // What a tail block computes, in slices of tails, and how many turns it takes for that. It is to need as long as
            // a slice takes.
            let work = tiles / tail_blocks * tail_slices + usize::from(left > 0);
            let more_turns = tiles.div_ceil(tail_blocks) - 1;
            let slice_len = (k_tiles * work + WRITE * more_turns * tail_slices).div_ceil(tail_slices + slices * work);
            let tail = k_tiles.saturating_sub(slices * slice_len);
            if tail >= SHORTEST_TAIL {
                let tail_slices = tail.div_ceil(tail.div_ceil(tail_slices));
                plan = Some(Self { slices, slice_len, tail_blocks, tail_slices });
            }
        }

        let plan = plan.unwrap_or_else(|| {
            let slice_len = k_tiles.div_ceil(slices);
            Self { slices: k_tiles.div_ceil(slice_len), slice_len, tail_blocks: 0, tail_slices: 0 }
        });
        (plan.slice_len * 10 <= k_tiles * 9).then_some(plan)
    }

    /// Partial sums of the tile that has most.
    pub(crate) fn most_slices(&self) -> usize {
        self.slices + self.tail_slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slices that blocks compute, counted as the kernel counts them: every K tile of every tile once, in slices that follow
    /// each other, as many as the sum adds, no block without work, and none with much more than another.
    #[test]
    fn shared_tiles_are_covered_once() {
        let mut tried = 0;
        for (tiles, k_tiles) in (1..132).flat_map(|tiles| [16, 33, 64, 67, 100, 141, 256, 400].map(|k| (tiles, k))) {
            let Some(plan) = SplitK::plan(tiles, k_tiles, 132) else { continue };
            let SplitK { slices, slice_len, tail_blocks, tail_slices } = plan;
            tried += 1;
            let mut computed = vec![Vec::new(); tiles];
            let mut longest = 0;
            let mut compute = |tile: usize, slice: usize, from: usize, most: usize| {
                let to = k_tiles.min(from + most);
                assert!(from < to, "{tiles} x {k_tiles}: a slice without work");
                computed[tile].push((slice, from, to));
                to - from
            };

            assert!(slices * tiles + tail_blocks <= 132);
            for block in 0..slices * tiles {
                let slice = block / tiles;
                longest = longest.max(compute(block % tiles, slice, slice * slice_len, slice_len));
            }
            let from = slices * slice_len;
            for tail_block in 0..tail_blocks {
                let tail = k_tiles - from;
                let left = tiles % tail_blocks;
                let mut work = 0;
                for round in 0..tiles / tail_blocks {
                    work += compute(round * tail_blocks + tail_block, slices, from, tail);
                }
                if tail_block < left * tail_slices {
                    let (slice, most) = (tail_block / left, tail.div_ceil(tail_slices));
                    work += compute(tiles - left + tail_block % left, slices + slice, from + slice * most, most);
                }
                longest = longest.max(work);
            }

            for (tile, computed) in computed.iter_mut().enumerate() {
                computed.sort_unstable();
                let tails = match tail_blocks {
                    0 => 0,
                    _ if tile < tiles - tiles % tail_blocks => 1,
                    _ => tail_slices,
                };
                assert_eq!(computed.len(), slices + tails, "{tiles} x {k_tiles}");
                assert!(computed.iter().enumerate().all(|(i, slice)| slice.0 == i), "{computed:?}");
                assert!(computed.windows(2).all(|pair| pair[0].2 == pair[1].1), "{computed:?}");
                assert_eq!((computed[0].1, computed[computed.len() - 1].2), (0, k_tiles));
            }
            assert!(longest <= slice_len, "{tiles} x {k_tiles}: {longest} of {slice_len}");
        }
        assert!(tried > 500, "{tried}");
    }
}
