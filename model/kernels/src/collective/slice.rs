//! How a rank's slice of a flat tensor is cut: into chunks that have a sum of squares each, and into pieces that travel one
//! after the other.

#[cfg(any(test, feature = "cuda"))]
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::optim::{ALIGNMENT, CHUNK, PARTS, Place};

/// Bytes of the longest slice's pieces, at least. Shorter ones would not use the whole link
/// (`benches/results/2026-11-24-h100-x2.md`).
#[cfg(all(feature = "cuda", not(test)))]
const PIECE_BYTES: usize = 24 << 20;
/// Tests have both ranks in one process, and use little memory: with large tensors they hung, probably because one GPU got new memory
/// while the other waited for it.
#[cfg(test)]
const PIECE_BYTES: usize = 64 << 10;
/// Pieces of a slice, at most, unless the caller names their size. Each is a launch of NCCL.
#[cfg(any(test, feature = "cuda"))]
const MOST_PIECES: usize = 4;

/// The slice of one rank, ready for [`Communicator::add_up`](super::Communicator::add_up).
#[derive(Debug, Clone)]
pub struct Slice {
    pub(super) layout: Arc<SliceLayout>,
    /// First and last element of each chunk in units of [`ALIGNMENT`], `[2 * n_chunks]`.
    pub(super) table: Tensor<1, Int>,
}

/// Where a slice and its chunks lie.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SliceLayout {
    rank: usize,
    bounds: Vec<usize>,
    /// The chunks' elements, counted from the start of the slice.
    chunks: Vec<Range<usize>>,
    /// The largest power of two, up to 8, that divides the parameters in which a chunk lies.
    granularities: Vec<usize>,
}

/// Chunks that follow each other and are read in vectors of one width.
#[cfg(any(test, feature = "cuda"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) chunks: Range<usize>,
    /// Elements of a vector.
    pub(crate) width: usize,
}

impl Slice {
    /// Describes slice `rank` of the slices that end at `bounds`. It holds the parameters, or parts of them, at `places`, whose
    /// offsets count from its start.
    ///
    /// # Panics
    /// If the rank has no slice, or the places do not fit into it.
    pub fn new(rank: usize, bounds: &[usize], places: &[Place], device: &Device) -> Self {
        let layout = SliceLayout::new(rank, bounds, places);
        let units = |element: usize| (element / ALIGNMENT) as i32;
        let table: Vec<i32> = layout.chunks.iter().flat_map(|chunk| [units(chunk.start), units(chunk.end)]).collect();
        let table = TensorData::new(table, [2 * layout.n_chunks()]);
        Self { table: Tensor::from_data(table, (device, DType::I32)), layout: Arc::new(layout) }
    }
}

impl SliceLayout {
    fn new(rank: usize, bounds: &[usize], places: &[Place]) -> Self {
        let len = bounds[rank + 1] - bounds[rank];
        let mut chunks = Vec::new();
        let mut granularities = Vec::new();
        // Gradients are added up in lists of this length, each with one width: the sums of squares must be the same.
        for list in places.chunks(PARTS) {
            let granularity = list.iter().map(|place| place.len.trailing_zeros().min(3)).min().unwrap_or(3);
            for place in list {
                let end = place.offset + place.padded_len();
                assert!(place.offset.is_multiple_of(ALIGNMENT) && end <= len, "{place:?} in a slice of {len}");
                chunks.extend((place.offset..end).step_by(CHUNK).map(|start| start..end.min(start + CHUNK)));
                granularities.resize(chunks.len(), 1 << granularity);
            }
        }
        assert!(!chunks.is_empty(), "rank {rank} has no slice");
        assert!(chunks.is_sorted_by_key(|chunk| chunk.start), "places in their order");
        Self { rank, bounds: bounds.to_vec(), chunks, granularities }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn bounds(&self) -> &[usize] {
        &self.bounds
    }

    /// Returns the elements of the slice.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn len(&self) -> usize {
        self.bounds[self.rank + 1] - self.bounds[self.rank]
    }

    pub(crate) fn n_chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the chunks that end behind the start of `elements`, but not behind its end, for vectors of at most `width` elements.
    /// Elements count from the start of the slice.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn runs(&self, elements: Range<usize>, width: usize) -> Vec<Run> {
        let until = |element: usize| self.chunks.partition_point(|chunk| chunk.end <= element);
        let mut runs: Vec<Run> = Vec::new();
        for chunk in until(elements.start)..until(elements.end) {
            let width = self.granularities[chunk].min(width);
            match runs.last_mut() {
                Some(run) if run.width == width => run.chunks.end = chunk + 1,
                _ => runs.push(Run { chunks: chunk..chunk + 1, width }),
            }
        }
        runs
    }
}

/// Cuts the slices that end at `bounds` into pieces: the pieces of each rank, one list per turn. `size` is the bytes of an
/// element, `most_bytes` the bytes of a piece if the caller names them. All ranks cut alike.
#[cfg(any(test, feature = "cuda"))]
pub(crate) fn pieces(bounds: &[usize], size: usize, most_bytes: Option<NonZeroUsize>) -> Vec<Vec<Range<usize>>> {
    let longest = bounds.windows(2).map(|slice| slice[1] - slice[0]).max().unwrap_or(0);
    let n = match most_bytes {
        Some(bytes) => (longest * size).div_ceil(bytes.get()).max(1),
        None => (longest * size / PIECE_BYTES).clamp(1, MOST_PIECES),
    };
    let cut = |slice: &[usize], turn: usize| match turn == n {
        true => slice[1],
        false => slice[0] + (slice[1] - slice[0]) * turn / n / ALIGNMENT * ALIGNMENT,
    };
    (0..n).map(|turn| bounds.windows(2).map(|slice| cut(slice, turn)..cut(slice, turn + 1)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_slice_in_order_and_begin_where_vectors_do() {
        let k = PIECE_BYTES / 4;
        let odd = NonZeroUsize::new(1000);
        for (bounds, size, most_bytes, turns) in [
            (vec![0, 6 * k, 12 * k + 512], 2, None, 3),
            (vec![256, 512, 20 * k], 4, None, 4),
            (vec![0, 256, 256, 1024], 4, None, 1),
            (vec![0, 256, 256, 1024], 4, odd, 4),
            (vec![0, 512, 9 * 256 + 40], 2, odd, 4),
            (vec![0, 512, 1024], 2, NonZeroUsize::new(1 << 30), 1),
            (vec![0, 256, 512], 2, NonZeroUsize::new(1), 512),
        ] {
            let found = pieces(&bounds, size, most_bytes);
            assert_eq!(found.len(), turns, "{bounds:?}");
            for rank in 0..bounds.len() - 1 {
                let mut at = bounds[rank];
                for turn in &found {
                    assert!(turn[rank].start == at && turn[rank].start.is_multiple_of(ALIGNMENT), "{turn:?}");
                    at = turn[rank].end;
                }
                assert_eq!(at, bounds[rank + 1]);
            }
        }
    }

    #[test]
    fn a_slice_has_the_chunks_of_its_places_each_in_one_piece() {
        let odd = Place { offset: 2 * CHUNK + ALIGNMENT, len: 10 };
        let places = [Place { offset: 0, len: 2 * CHUNK + 8 }, odd];
        let end = odd.offset + ALIGNMENT;
        let layout = SliceLayout::new(1, &[512, 1024, 1024 + end], &places);
        assert_eq!((layout.len(), layout.n_chunks()), (end, 4));
        assert_eq!(layout.chunks, [0..CHUNK, CHUNK..2 * CHUNK, 2 * CHUNK..odd.offset, odd.offset..end]);

        // The odd length narrows the vectors of its list.
        assert_eq!(layout.runs(0..end, 8), [Run { chunks: 0..4, width: 2 }]);
        let halves = [0..CHUNK + 256, CHUNK + 256..end].map(|half| layout.runs(half, 4));
        assert_eq!(halves, [vec![Run { chunks: 0..1, width: 2 }], vec![Run { chunks: 1..4, width: 2 }]]);

        let many: Vec<_> =
            (0..=PARTS).map(|i| Place { offset: i * 256, len: if i == PARTS { 8 } else { 6 } }).collect();
        let layout = SliceLayout::new(0, &[0, 256 * many.len()], &many);
        let wanted = [Run { chunks: 0..PARTS, width: 2 }, Run { chunks: PARTS..PARTS + 1, width: 4 }];
        assert_eq!(layout.runs(0..layout.len(), 4), wanted);
    }
}
