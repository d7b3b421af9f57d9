//! The batches of one epoch.

use std::collections::BTreeMap;
use std::ops::Range;

use super::document_order::DocumentOrder;
use super::mixed_shards::MixedShards;
use super::windows::WindowOrder;
use crate::host_batch::Shape;
use crate::sampler::{Order, ShuffleOf};

/// The batches of one epoch: their rows and shapes, and for packed text the order of the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochPlan {
    /// Row numbers, batch after batch.
    rows: Vec<u32>,
    batches: Vec<PlannedBatch>,
    /// Packed text: the order in which this epoch packs documents into rows.
    documents: Option<DocumentOrder>,
    /// A mixture of packed texts: where its rows come from.
    mixed: MixedRows,
    /// The first batches of parts that stay in order, except the first part's.
    borders: Vec<usize>,
    /// Text in shards: where its rows come from, and the shape of a full batch.
    windows: Option<(WindowOrder, Shape)>,
    /// Pairs in shards: the order of the epoch, and the first batch of each window. The rows of a batch are places in the window's
    /// sorted rows.
    sorted_windows: Option<(Order, Vec<usize>)>,
    /// A mixture of sources in shards: the order of the epoch, and where its batches come from.
    mixed_shards: Option<Box<(Order, MixedShards)>>,
    /// The plan of each pass that it takes whole batches of, by source and number of the pass.
    passes: BTreeMap<(usize, u64), EpochPlan>,
}

/// The rows of an epoch that mixes packed texts. A row number of the plan is an index into them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MixedRows {
    /// The text of each pass, and the order in which the pass packs its documents.
    passes: Vec<(usize, DocumentOrder)>,
    /// Pass and row of each row.
    rows: Vec<(u32, u32)>,
}

impl MixedRows {
    /// Adds `rows` of a pass over a text. Returns their numbers.
    pub(crate) fn add(&mut self, text: usize, documents: DocumentOrder, rows: impl Iterator<Item = u32>) -> Range<u32> {
        let (pass, before) = (self.passes.len() as u32, self.rows.len() as u32);
        self.passes.push((text, documents));
        self.rows.extend(rows.map(|row| (pass, row)));
        before..self.rows.len() as u32
    }

    /// Returns text, order of the documents, and row of a row number.
    pub(crate) fn get(&self, number: u32) -> (usize, &DocumentOrder, u32) {
        let (pass, row) = self.rows[number as usize];
        let (text, documents) = &self.passes[pass as usize];
        (*text, documents, row)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PlannedBatch {
    rows: Range<usize>,
    shape: Shape,
}

impl EpochPlan {
    /// Returns a plan without batches, with room for `n_rows` rows.
    pub fn with_capacity(n_rows: usize) -> Self {
        Self {
            rows: Vec::with_capacity(n_rows),
            batches: Vec::new(),
            documents: None,
            mixed: MixedRows::default(),
            windows: None,
            borders: Vec::new(),
            sorted_windows: None,
            mixed_shards: None,
            passes: BTreeMap::new(),
        }
    }

    /// Plans packed text: every batch has `shape`, and the last one has the remaining rows.
    pub(crate) fn packed(rows: Vec<u32>, shape: Shape, documents: DocumentOrder) -> Self {
        let batch = |start: usize| {
            let rows = start..rows.len().min(start + shape.batch_size);
            PlannedBatch { shape: Shape { batch_size: rows.len(), ..shape }, rows }
        };
        let batches = (0..rows.len()).step_by(shape.batch_size).map(batch).collect();
        Self { rows, batches, documents: Some(documents), ..Self::with_capacity(0) }
    }

    /// Plans a text in shards: every batch takes the next rows of the windows, and the last one has the remaining rows. The plan stores
    /// neither rows nor batches, whose numbers grow with the text.
    pub(crate) fn of_windows(windows: WindowOrder, shape: Shape) -> Self {
        let rows = (0..shape.batch_size as u32).collect();
        Self { rows, windows: Some((windows, shape)), ..Self::with_capacity(0) }
    }

    /// Plans a mixture of sources in shards, and passes over the sources of which it takes whole batches. A batch has `most_rows` rows at
    /// most.
    pub(crate) fn of_mixed_shards(
        order: Order,
        mixed: MixedShards,
        passes: BTreeMap<(usize, u64), Self>,
        most_rows: usize,
    ) -> Self {
        let rows = (0..most_rows as u32).collect();
        Self { rows, mixed_shards: Some(Box::new((order, mixed))), passes, ..Self::with_capacity(0) }
    }

    /// Returns the order of an epoch of a mixture in shards, and where its batches come from.
    pub(crate) fn mixed_shards(&self) -> (Order, &MixedShards) {
        let (order, mixed) = &**self.mixed_shards.as_ref().expect("a plan of a mixture in shards");
        (*order, mixed)
    }

    /// Returns the plan of a pass over a source.
    pub(crate) fn pass(&self, source: usize, pass: u64) -> &Self {
        &self.passes[&(source, pass)]
    }

    /// Returns the shape of a batch of a mixture in shards.
    fn mixed_shape(&self, index: usize) -> Option<Shape> {
        let (_, mixed) = self.mixed_shards.as_deref()?;
        let of_whole = || {
            let (source, pass, batch) = mixed.whole_batch(index).expect("rows or batches");
            self.pass(source, pass).batch(batch).1
        };
        Some(mixed.shape_of_rows(index).unwrap_or_else(of_whole))
    }

    /// Returns the windows of a text in shards, with the first row of batch `index` and its shape.
    pub(crate) fn windows(&self, index: usize) -> Option<(&WindowOrder, u64, Shape)> {
        let (windows, shape) = self.windows.as_ref()?;
        let first = index as u64 * shape.batch_size as u64;
        let left = windows.n_rows() - first;
        Some((windows, first, Shape { batch_size: left.min(shape.batch_size as u64) as usize, ..*shape }))
    }

    /// Returns a plan of pairs in shards, without windows. A batch has `most_rows` rows at most.
    pub(crate) fn of_sorted_windows(order: Order, most_rows: usize) -> Self {
        let rows = (0..most_rows as u32).collect();
        Self { rows, sorted_windows: Some((order, Vec::new())), ..Self::with_capacity(0) }
    }

    /// Plans batches of shards in the order of the files. A batch has the rows of its range.
    pub(crate) fn of_ranges(batches: Vec<(Range<usize>, Shape)>) -> Self {
        let most_rows = batches.iter().map(|(_, shape)| shape.batch_size).max().unwrap_or(0);
        let mut plan = Self::of_sorted_windows(Order::Sequential, most_rows);
        plan.push_window(None, batches);
        plan
    }

    /// Returns the plan of batches that have several rows of each row of the shards.
    pub(crate) fn with_rows_each(mut self, n_rows: usize) -> Self {
        self.batches.iter_mut().for_each(|batch| batch.shape.batch_size *= n_rows);
        self.rows = (0..(n_rows * self.rows.len()) as u32).collect();
        self
    }

    /// Adds a window of pairs in shards: for each batch the places of its rows among the rows of the window. Rows of earlier windows
    /// begin the batch `continued`, which comes first.
    pub(crate) fn push_window(
        &mut self,
        continued: Option<(Range<usize>, Shape)>,
        batches: Vec<(Range<usize>, Shape)>,
    ) {
        let start = self.batches.len();
        self.sorted_windows.as_mut().expect("a plan of pairs in shards").1.push(start);
        // Earlier windows must not stay open until the end of this one.
        self.borders.extend((start > 0).then_some(start));
        self.borders.extend(continued.is_some().then_some(start + 1));
        let batch = |(rows, shape)| PlannedBatch { rows, shape };
        self.batches.extend(continued.into_iter().chain(batches).map(batch));
    }

    /// Returns the order of the epoch of pairs in shards, the window of a batch, and the places of its rows in the window. If the batch
    /// has more rows than places, earlier windows have the first ones.
    pub(crate) fn places(&self, index: usize) -> (Order, usize, Range<usize>) {
        let (order, starts) = self.sorted_windows.as_ref().expect("a plan of pairs in shards");
        // Windows without batches share their start with the next one.
        let window = starts.partition_point(|start| *start <= index) - 1;
        (*order, window, self.batches[index].rows.clone())
    }

    /// Returns the plan with the origin of its rows.
    pub(crate) fn with_mixed(self, mixed: MixedRows) -> Self {
        Self { mixed, ..self }
    }

    /// Adds a batch of these rows.
    pub fn push(&mut self, rows: &[u32], shape: Shape) {
        let start = self.rows.len();
        self.rows.extend_from_slice(rows);
        self.batches.push(PlannedBatch { rows: start..self.rows.len(), shape });
    }

    /// Adds some batches of another plan as a part of their own. No batch leaves its part.
    pub(crate) fn append(&mut self, other: Self, batches: Range<usize>) {
        if !self.batches.is_empty() {
            self.borders.push(self.batches.len());
        }
        let Self { rows, batches: of_other, mixed, .. } = other;
        let (first_row, first_pass) = (self.mixed.rows.len() as u32, self.mixed.passes.len() as u32);
        let is_mixed = !mixed.rows.is_empty();
        self.mixed.passes.extend(mixed.passes);
        self.mixed.rows.extend(mixed.rows.into_iter().map(|(pass, row)| (first_pass + pass, row)));
        for batch in &of_other[batches] {
            let rows = rows[batch.rows.clone()].iter().map(|row| if is_mixed { first_row + row } else { *row });
            self.push(&rows.collect::<Vec<_>>(), batch.shape);
        }
    }

    /// Puts the batches into an order.
    pub fn shuffle_batches(&mut self, order: Order) {
        order.apply(&mut self.batches, ShuffleOf::Batches);
    }

    /// Orders the batches so that an optimizer step takes batches of one shape where it can. A step takes `size` batches; the
    /// first `head` of the epoch complete the step that the epoch before has begun.
    ///
    /// The order depends on the plan, on `size` and on `head`. Batches whose shape does not fill a group come at both ends
    /// and in groups of similar shapes. With a size of 1, or in the order of the files, nothing changes.
    pub(crate) fn group_shapes(&mut self, size: usize, head: usize, order: Order) {
        // The batches of a text in shards have one shape. A mixture in shards reads each of its sources in the source's own order.
        if size <= 1 || order == Order::Sequential || self.windows.is_some() || self.mixed_shards.is_some() {
            return;
        }
        let mut later = std::mem::take(&mut self.batches);
        let mut first = 0;
        for end in self.borders.iter().copied().chain([later.len()]).collect::<Vec<_>>() {
            let rest = later.split_off(end - first);
            // The groups go on over the borders.
            let own_head = (head as i128 - first as i128).rem_euclid(size as i128) as usize;
            self.batches.extend(grouped(later, size, own_head, order));
            (later, first) = (rest, end);
        }
    }

    /// Returns the number of batches of the epoch.
    pub fn len(&self) -> usize {
        match (&self.windows, self.mixed_shards.as_deref()) {
            (Some((windows, shape)), _) => windows.n_rows().div_ceil(shape.batch_size as u64) as usize,
            (None, Some((_, mixed))) => mixed.n_batches(),
            (None, None) => self.batches.len(),
        }
    }

    /// Whether the plan has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rows and the planned shape of a batch. The rows of shards are numbered within each batch.
    pub fn batch(&self, index: usize) -> (&[u32], Shape) {
        let of_windows = self.windows(index).map(|(_, _, shape)| shape);
        if let Some(shape) = of_windows.or_else(|| self.mixed_shape(index)) {
            return (&self.rows[..shape.batch_size], shape);
        }
        let batch = &self.batches[index];
        match &self.sorted_windows {
            Some(_) => (&self.rows[..batch.shape.batch_size], batch.shape),
            None => (&self.rows[batch.rows.clone()], batch.shape),
        }
    }

    pub(crate) fn documents(&self) -> Option<&DocumentOrder> {
        self.documents.as_ref()
    }

    pub(crate) fn mixed(&self) -> &MixedRows {
        &self.mixed
    }
}

/// Orders the batches of a part, see [`EpochPlan::group_shapes`].
fn grouped(batches: Vec<PlannedBatch>, size: usize, head: usize, order: Order) -> Vec<PlannedBatch> {
    // Groups of one shape, and what is left of each shape.
    let mut open = BTreeMap::<Shape, Vec<PlannedBatch>>::new();
    let mut groups = Vec::new();
    for batch in batches {
        let group = open.entry(batch.shape).or_default();
        group.push(batch);
        if group.len() == size {
            groups.push(std::mem::take(group));
        }
    }
    let mut left: Vec<_> = open.into_values().flatten().collect();

    while left.len() < head
        && let Some(group) = groups.pop()
    {
        left.extend(group);
    }
    let mut rest = left.split_off(head.min(left.len()));
    let tail = rest.split_off(rest.len() - rest.len() % size);
    groups.extend(rest.chunks(size).map(<[_]>::to_vec));
    order.apply(&mut groups, ShuffleOf::Groups);

    left.extend(groups.into_iter().flatten());
    left.extend(tail);
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order::Shuffled { seed: 5, epoch: 0 };

    /// A plan of `n` batches of each of three shapes, shuffled. A batch has one row.
    fn plan(n: [usize; 3]) -> EpochPlan {
        let mut plan = EpochPlan::with_capacity(0);
        let mut row = 0;
        for (len, n) in [8, 16, 24].into_iter().zip(n) {
            for _ in 0..n {
                plan.push(&[row], Shape { batch_size: 1, source_len: len, target_len: len });
                row += 1;
            }
        }
        plan.shuffle_batches(ORDER);
        plan
    }

    #[test]
    fn steps_have_one_shape_and_no_batch_is_lost() {
        for (n, size) in [([20, 9, 7], 4), ([5, 1, 1], 2), ([3, 0, 0], 8), ([6, 6, 6], 3), ([0, 0, 0], 2)] {
            for head in 0..size {
                let mut grouped = plan(n);
                grouped.group_shapes(size, head, ORDER);

                let mut rows = grouped.batches.iter().map(|batch| grouped.rows[batch.rows.start]).collect::<Vec<_>>();
                rows.sort_unstable();
                assert_eq!(rows, (0..n.iter().sum::<usize>() as u32).collect::<Vec<_>>(), "every batch once");

                let shapes: Vec<_> = grouped.batches.iter().map(|batch| batch.shape).collect();
                let after_head = &shapes[head.min(shapes.len())..];
                let of_one_shape =
                    after_head.chunks_exact(size).filter(|group| group.iter().all(|shape| *shape == group[0])).count();
                // The head may break one group up; what is left of the shapes mixes.
                let most = n.iter().map(|n| n / size).sum::<usize>();
                assert!(of_one_shape + 1 >= most, "{of_one_shape} of {most} groups: {n:?} by {size} after {head}");
            }
        }
    }

    #[test]
    fn a_group_of_one_and_the_order_of_the_files_stay_as_they_are() {
        let mut grouped = plan([5, 4, 3]);
        grouped.group_shapes(1, 0, ORDER);
        grouped.group_shapes(4, 1, Order::Sequential);
        assert_eq!(grouped, plan([5, 4, 3]));
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // A resumed run must see the same batches: these numbers may only change with a new checkpoint format.
        let mut grouped = plan([5, 4, 2]);
        grouped.group_shapes(2, 1, ORDER);
        let rows: Vec<_> = grouped.batches.iter().map(|batch| grouped.rows[batch.rows.start]).collect();
        assert_eq!(rows, [1, 2, 3, 5, 6, 10, 9, 8, 7, 0, 4]);
    }
}
