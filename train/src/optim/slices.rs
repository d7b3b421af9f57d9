//! How ranks share the optimizer's flat tensors: each has one slice of the weights and moments, and updates it.
//!
//! A slice ends where a parameter ends, or, if the optimizer allows it ([`Cut`]), inside a parameter at the end of a chunk ([`CHUNK`]).
//! Its chunks are then chunks of the whole tensor, so the norm does not depend on the number of slices.
//!
//! Where there are more ranks than such slices, as with a learned prompt, each rank keeps the whole of the few numbers.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_kernels::collective::Slice;
use kiln_kernels::optim::{ALIGNMENT, CHUNK, Flat, Place, gather, view};

use super::optimizer::Cut;
use super::{FlatGradients, ParamEntry, ParamTable};

/// Numbers that a rank sends along with the sums of squares of its slice.
pub(crate) const TOTALS: usize = 3;

/// The slices of all ranks, and the parameters in the slice of this one.
#[derive(Debug, Clone)]
pub struct Slices {
    rank: usize,
    /// Whether each rank keeps everything.
    are_whole: bool,
    /// Slice r is `bounds[r]..bounds[r + 1]`: of the flat tensor, or, if the ranks keep everything, of a copy of it for each rank, one
    /// behind the other.
    bounds: Vec<usize>,
    /// Of what the ranks gather of each other's slices, `summary_bounds[r]..summary_bounds[r + 1]` is rank r's: the sums of squares of
    /// its chunks in the order of the flat tensor, then [`TOTALS`] numbers.
    summary_bounds: Vec<usize>,
    /// The parameters, or parts of them, in this rank's slice. Offsets count from the start of the slice.
    places: Vec<Place>,
    /// For each chunk in the order of the table, where its sum of squares stands in what is gathered; on the device.
    chunk_order: Tensor<1, Int>,
    /// This rank's slice, for GPUs.
    slice: Slice,
}

impl Slices {
    /// Cuts the flat tensors of `table` into slices of about the same length, one for each rank; or into none, if there are too few
    /// places to cut at. Gradients will be on `device`.
    ///
    /// # Panics
    /// If `rank` is not one of the ranks.
    pub(crate) fn new(table: &ParamTable, rank: usize, world_size: usize, device: &Device) -> Self {
        Self::cut(table, rank, bounds(&in_order(table), table.flat_len(), world_size), world_size, device)
    }

    /// Cuts nothing: each rank keeps everything.
    ///
    /// # Panics
    /// If `rank` is not one of the ranks.
    pub(crate) fn whole(table: &ParamTable, rank: usize, world_size: usize, device: &Device) -> Self {
        Self::cut(table, rank, None, world_size, device)
    }

    fn cut(table: &ParamTable, rank: usize, cut: Option<Vec<usize>>, world_size: usize, device: &Device) -> Self {
        assert!(rank < world_size, "rank {rank} of {world_size}");
        let (in_order, len) = (in_order(table), table.flat_len());
        let are_whole = cut.is_none();
        let bounds = cut.unwrap_or_else(|| (0..=world_size).map(|rank| rank * len).collect());
        let part = |rank: usize| if are_whole { 0..len } else { bounds[rank]..bounds[rank + 1] };
        let n_chunks = |range: Range<usize>| -> usize { places(&in_order, range).iter().map(Place::n_chunks).sum() };
        let mut summary_bounds = vec![0];
        for rank in 0..world_size {
            summary_bounds.push(summary_bounds[rank] + n_chunks(part(rank)) + TOTALS);
        }
        // Behind the chunks of each slice before stand the totals of its rank.
        let slice_of = |offset: usize| bounds.partition_point(|bound| *bound <= offset) - 1;
        let chunks_of = |entry: &ParamEntry| {
            let first = n_chunks(0..entry.offset);
            let starts = (entry.offset..).step_by(CHUNK).take(entry.place().n_chunks());
            starts.enumerate().map(|(i, start)| (first + i + TOTALS * slice_of(start)) as i32).collect::<Vec<_>>()
        };
        let chunk_order: Vec<i32> = table.entries().iter().flat_map(chunks_of).collect();
        let chunk_order = TensorData::new(chunk_order.clone(), [chunk_order.len()]);

        let places = places(&in_order, part(rank));
        Self {
            rank,
            are_whole,
            summary_bounds,
            slice: Slice::new(rank, &bounds, &places, device),
            places,
            chunk_order: Tensor::from_data(chunk_order, (device, DType::I32)),
            bounds,
        }
    }

    /// Returns whether each rank keeps everything, because there are too few places to cut at. Ranks then need the gradients of all
    /// others, one behind the other, and have nothing to give back.
    pub(crate) fn are_whole(&self) -> bool {
        self.are_whole
    }

    /// Returns where the slices begin and end: one number more than there are ranks. If each rank keeps everything, a slice is a rank's
    /// copy of the flat tensor.
    pub(crate) fn bounds(&self) -> &[usize] {
        &self.bounds
    }

    /// Does the same for what [`Self::with_summary`] takes: sums of squares and totals of all ranks.
    pub(crate) fn summary_bounds(&self) -> &[usize] {
        &self.summary_bounds
    }

    /// Returns this rank's slice for [`Communicator::add_up`](kiln_kernels::collective::Communicator::add_up), which does what
    /// [`Self::add_up`] does.
    pub(crate) fn slice(&self) -> &Slice {
        &self.slice
    }

    /// Returns this rank's slice of the flat tensor.
    pub(crate) fn own(&self) -> Range<usize> {
        let (start, end) = (self.bounds[self.rank], self.bounds[self.rank + 1]);
        if self.are_whole { 0..end - start } else { start..end }
    }

    /// Adds up the ranks' gradients of this rank's slice, in f32 and in the order of the ranks: as one rank adds up the
    /// gradients of as many micro-batches. `received` holds them one behind the other.
    ///
    /// # Shapes
    /// - `received`: `[world size * slice]`, any float dtype
    /// - result: `[slice]`, f32
    pub(crate) fn add_up(&self, received: &Tensor<1>) -> Flat {
        let len = self.own().len();
        let n_ranks = self.bounds.len() - 1;
        assert_eq!(received.dims(), [n_ranks * len], "a slice from each rank");

        let device = received.device();
        let mut sum = None;
        for rank in 0..n_ranks {
            let part = |place: &Place| view(received, rank * len + place.offset, [place.len]).into();
            let parts = self.places.iter().map(part).collect();
            sum = Some(gather(parts, &self.places, len, DType::F32, &device, sum));
        }
        sum.expect("at least one rank")
    }

    /// Completes a slice of gradients with the sums of squares of all slices. Returns it with the totals of each rank.
    ///
    /// # Shapes
    /// - `summary`: see [`Self::summary_bounds`], f32
    /// - result: `[3]` for each rank
    pub(crate) fn with_summary(&self, gradients: Flat, summary: &Tensor<1>) -> (FlatGradients, Vec<Tensor<1>>) {
        // The norm adds up the squares in the order of the table.
        let squares = summary.clone().select(0, self.chunk_order.clone());
        let totals = |end: &usize| summary.clone().narrow(0, end - TOTALS, TOTALS);
        (FlatGradients(gradients.with_squares(squares)), self.summary_bounds[1..].iter().map(totals).collect())
    }
}

/// Returns the part of `range` that each parameter takes, with offsets from the start of the range.
fn places(in_order: &[&ParamEntry], range: Range<usize>) -> Vec<Place> {
    let part = |entry: &&ParamEntry| {
        let (start, end) = (entry.offset.max(range.start), (entry.offset + entry.len()).min(range.end));
        (start < end).then(|| Place { offset: start - range.start, len: end - start })
    };
    in_order.iter().filter_map(part).collect()
}

/// The trained parameters, by their places in the flat tensor.
fn in_order(table: &ParamTable) -> Vec<&ParamEntry> {
    let mut in_order: Vec<&ParamEntry> = table.entries().iter().collect();
    in_order.sort_by_key(|entry| entry.offset);
    in_order
}

/// Cuts `len` elements near the multiples of its `world_size`th part; None if there are too few places to cut at.
fn bounds(in_order: &[&ParamEntry], len: usize, world_size: usize) -> Option<Vec<usize>> {
    let cuts: Vec<usize> = in_order.iter().flat_map(|entry| cuts_in(entry)).filter(|cut| *cut < len).collect();
    if cuts.len() + 1 < world_size {
        return None;
    }

    let mut bounds = vec![0];
    let mut next = 0;
    for rank in 1..world_size {
        let target = (len as u128 * rank as u128 / world_size as u128) as usize;
        // Each later rank needs a cut, too.
        let candidates = next..=cuts.len() - (world_size - rank);
        let best = candidates.min_by_key(|i| cuts[*i].abs_diff(target)).expect("a cut is left");
        bounds.push(cuts[best]);
        next = best + 1;
    }
    bounds.push(len);
    Some(bounds)
}

/// Returns where a slice may end in or behind a parameter: at the end of a chunk, which is also the end of a row where only rows may be cut;
/// and at its end.
fn cuts_in(entry: &ParamEntry) -> impl Iterator<Item = usize> + use<> {
    let row: usize = entry.shape.iter().skip(1).product();
    let step = match entry.cut {
        Cut::Elements => CHUNK,
        Cut::Rows if entry.shape.len() >= 2 => lcm(row.max(1), CHUNK),
        Cut::Rows | Cut::Matrices => usize::MAX,
    };
    let (offset, len, end) = (entry.offset, entry.len(), entry.offset + entry.place().padded_len());
    debug_assert!(CHUNK.is_multiple_of(ALIGNMENT), "a chunk begins where a view may begin");
    (1..).map_while(move |i| step.checked_mul(i).filter(|cut| *cut < len)).map(move |cut| offset + cut).chain([end])
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::{Module, Param};

    #[derive(Module, Debug)]
    struct Toy {
        bias: Param<Tensor<1>>,
        table: Param<Tensor<2>>,
        matrix: Param<Tensor<2>>,
        gain: Param<Tensor<1>>,
    }

    fn table(rows: usize, columns: usize) -> ParamTable {
        let device = Device::flex();
        ParamTable::of(&Toy {
            bias: Param::from_tensor(Tensor::zeros([40], &device)),
            table: Param::from_tensor(Tensor::zeros([rows, columns], &device)),
            matrix: Param::from_tensor(Tensor::zeros([48, 48], &device)),
            gain: Param::from_tensor(Tensor::zeros([48], &device)),
        })
    }

    /// Numbers whose sums depend on the order of the additions.
    fn numbers(n: usize, seed: usize) -> Tensor<1> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 65_537) as f32 / 977.0 - 30.0;
        Tensor::from_data(TensorData::new((0..n).map(value).collect::<Vec<_>>(), [n]), &Device::flex())
    }

    fn read(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().try_into_vec().expect("f32")
    }

    #[test]
    fn slices_are_balanced_and_end_between_rows() {
        let table = table(5000, 96);
        for world_size in [1, 2, 3, 4, 8] {
            let slices = Slices::new(&table, 0, world_size, &Device::flex());
            assert_eq!((slices.bounds[0], slices.bounds[world_size]), (0, table.flat_len()));
            let longest = slices.bounds.windows(2).map(|slice| slice[1] - slice[0]).max().expect("slices");
            assert!(longest * world_size <= table.flat_len() * 11 / 10, "{:?} of {}", slices.bounds, table.flat_len());
            let entry = &table.entries()[1];
            for cut in &slices.bounds[1..world_size] {
                assert!((cut - entry.offset).is_multiple_of(96 * 128), "{cut}: 128 rows of 96 are three chunks");
            }
        }
    }

    #[test]
    fn small_models_are_cut_between_parameters() {
        let table = table(10, 8);
        let slices = Slices::new(&table, 2, 4, &Device::flex());
        let mut ends: Vec<_> = table.entries().iter().map(|entry| entry.offset).collect();
        ends.sort_unstable();
        ends.push(table.flat_len());
        assert_eq!(slices.bounds, ends);
        assert_eq!(slices.places, [Place { offset: 0, len: 40 }]);
    }

    /// A vector cannot be cut, and a table only after 128 rows of 96.
    #[test]
    fn rows_of_one_table_are_shared_and_fewer_rows_kept_whole_by_all() {
        let one = |rows: usize| ParamTable::of(&Param::from_tensor(Tensor::<2>::zeros([rows, 96], &Device::flex())));
        let of = |rows, rank| Slices::new(&one(rows), rank, 3, &Device::flex());
        assert_eq!(of(300, 1).bounds, [0, 96 * 128, 96 * 256, one(300).flat_len()]);
        for rank in 0..3 {
            let whole = of(200, rank);
            let len = one(200).flat_len();
            assert!(whole.are_whole() && !of(300, rank).are_whole());
            assert_eq!((whole.own(), whole.bounds()), (0..len, &[0, len, 2 * len, 3 * len][..]));
            assert_eq!(whole.places, [Place { offset: 0, len: 200 * 96 }]);
        }
    }

    #[test]
    fn the_optimizer_of_a_parameter_decides_where_it_is_cut() {
        let cuts = |cut: Cut| -> Vec<usize> {
            let table = table(5000, 96).grouped(|_| 0, &[cut]);
            let large = table.entries().iter().find(|entry| entry.path == "table").expect("a field").clone();
            cuts_in(&large).map(|cut| cut - large.offset).collect()
        };
        let len = 5000 * 96_usize;
        assert_eq!(cuts(Cut::Elements)[..2], [CHUNK, 2 * CHUNK]);
        assert_eq!(cuts(Cut::Rows)[..2], [96 * 128, 2 * 96 * 128]);
        assert_eq!(cuts(Cut::Matrices), [len.next_multiple_of(ALIGNMENT)]);
    }

    #[test]
    fn slices_of_ranks_are_the_sum_of_one_rank_bit_for_bit() {
        let table = table(700, 96);
        let n = table.flat_len();
        for world_size in [2, 3] {
            // One rank that accumulates.
            let flat = |seed| {
                let entries = table.entries().iter();
                let parts = entries.map(|entry| numbers(entry.len(), seed + entry.offset).into()).collect();
                let places: Vec<_> = table.entries().iter().map(ParamEntry::place).collect();
                FlatGradients(gather(parts, &places, n, DType::F32, &Device::flex(), None))
            };
            let alone = (1..world_size)
                .fold(flat(0), |sum, seed| table.accumulate(flat(seed), burn::tensor::FloatDType::F32, Some(sum)));

            // As many ranks.
            let ranks: Vec<_> =
                (0..world_size).map(|rank| Slices::new(&table, rank, world_size, &Device::flex())).collect();
            let own = |slices: &Slices, seed| flat(seed).0.values.slice([slices.own()]);
            let sums: Vec<_> = ranks
                .iter()
                .map(|slices| slices.add_up(&Tensor::cat((0..world_size).map(|seed| own(slices, seed)).collect(), 0)))
                .collect();
            let values = Tensor::cat(sums.iter().map(|sum| sum.values.clone()).collect(), 0);
            assert_eq!(read(values), read(alone.0.values.clone()));

            // What they gather: sums of squares, and totals behind them.
            let of_rank = |rank: usize| [sums[rank].squares().clone(), numbers(TOTALS, rank)];
            let summary = Tensor::cat((0..world_size).flat_map(of_rank).collect(), 0);
            assert_eq!(summary.dims(), [*ranks[0].summary_bounds().last().expect("bounds")]);
            let (FlatGradients(completed), totals) = ranks[0].with_summary(sums[0].clone(), &summary);
            assert_eq!(read(completed.squares().clone()), read(alone.0.squares().clone()));
            for (rank, totals) in totals.into_iter().enumerate() {
                assert_eq!(read(totals), read(numbers(TOTALS, rank)));
            }
        }
    }
}
