//! Mixtures: batches whose rows come from several sources, each with its share.
//!
//! # Design
//!
//! **A row is the unit.** A batch has rows of all sources. Each source has a token cache of its own, and rows are numbered
//! through all sources.
//!
//! **An epoch has a fixed number of rows of each source**: the rows of all sources together, divided by the shares
//! ([`share`]). A source that is larger than its part of an epoch is read in portions, and a smaller one several times.
//!
//! **Each source is an endless sequence of passes.** A pass is one permutation of the source's rows, a pure function of seed,
//! source and number of the pass. Epoch e takes the positions `e k .. (e + 1) k` of a sequence from which each epoch takes `k`
//! rows. So every row is seen n times before any row is seen n + 1 times, and a pass continues where the epoch before has
//! stopped. Finding a position is a division: a run resumes anywhere without reading what came before.
//!
//! **Lengths stay the same in every epoch.** Positions in the data are arithmetic because all epochs have the same number of
//! batches. Rows of a source that fall into one length bucket are therefore a sequence of their own (a [`Cell`]), of which each
//! epoch takes the same number, at least one. So an epoch can have a few more rows of a source than its share.
//!
//! **The rows of an epoch are shuffled together**, then bucketed as the rows of a single source are. The plan of an epoch is
//! a pure function of seed and epoch, so the loader's promises hold: any number of workers and ranks see the same batches.
//!
//! Packed text has rows of one length, and each pass packs the documents in another order. The plan keeps that order for
//! each pass that it takes rows of ([`MixedRows`]).
//!
//! Shares may change with the optimizer steps: see [`phases`].

mod parts;
mod phases;
mod share;
mod streamed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::parts::{MixPart, MixParts};
use self::phases::{Phase, Slice, slices};
pub use self::share::{MixShares, MixedPart, SharesFrom};
use self::share::{of_cells, of_steps};
pub use self::streamed::{StreamedMix, StreamedParts};
use super::{BatchSource, BatchWorker};
use crate::batch::{Buckets, EpochPlan, MixedRows};
use crate::cache::Lengths;
use crate::error::{Error, Result};
use crate::host_batch::{BatchLayout, HostBatch, Shape, SourceCount};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};

/// Several sources as one. The design stands at the head of the file.
#[derive(Debug)]
pub struct MixSource {
    parts: MixParts,
    mixed: Vec<MixedPart>,
    /// The number of each source's first row.
    first_rows: Vec<u32>,
    cells: Vec<Cell>,
    /// At least one.
    phases: Vec<Phase>,
    /// The buckets of each phase.
    buckets: Vec<Buckets>,
    /// Decides the rows of every epoch, except the sources. Part of the fingerprint.
    settings: String,
}

/// The rows of one source in one length bucket.
#[derive(Debug)]
struct Cell {
    part: usize,
    bucket: usize,
    /// Row numbers within the source.
    rows: Vec<u32>,
}

impl Cell {
    /// Identifies the random stream of the cell.
    fn list(&self) -> u64 {
        ((self.part as u64) << 32) | self.bucket as u64
    }
}

impl MixSource {
    /// Mixes sources.
    ///
    /// # Errors
    ///
    /// If the shares are invalid, if a source has no rows, if two sources have one name, if there are more than
    /// 4,294,967,295 rows, or if `loader.shuffle` is off.
    pub fn new(parts: MixParts, shares: &MixShares, loader: &LoaderConfig) -> Result<Self> {
        check_shuffle(loader)?;
        let names: Vec<Arc<str>> = (0..parts.len()).map(|part| parts.name(part).clone()).collect();
        let sizes: Vec<u64> = (0..parts.len()).map(|part| parts.n_rows(part) as u64).collect();
        let shares = of_steps(&names, &sizes, shares)?;
        let first_rows = first_rows(&sizes)?;

        let (cells, phases) = match parts.packed_shape() {
            Some(shape) => packed(&sizes, shares, shape),
            None => bucketed(&parts, &sizes, &shares, loader)?,
        };
        let (phases, buckets) = phases.into_iter().unzip();
        let mut mixed = Self { parts, mixed: Vec::new(), first_rows, cells, phases, buckets, settings: String::new() };
        mixed.mixed = mixed.parts_in(&mixed.phases[0]);
        mixed.settings = format!("mixture 1: {}", described(&mixed.parts_by_step()));
        Ok(mixed)
    }

    /// Returns what the mixture has of each source; at first, if the shares change.
    pub fn parts(&self) -> &[MixedPart] {
        &self.mixed
    }

    /// Returns what the mixture has of each source from each step on at which its shares change. The first step is 0.
    pub fn parts_by_step(&self) -> Vec<(u64, Vec<MixedPart>)> {
        self.phases.iter().map(|phase| (phase.first_step, self.parts_in(phase))).collect()
    }

    fn parts_in(&self, phase: &Phase) -> Vec<MixedPart> {
        let of_part = |part: usize| {
            let rows = self.cells.iter().zip(&phase.rows_per_epoch).filter(|(cell, _)| cell.part == part);
            let rows_per_epoch = rows.map(|(_, rows)| rows).sum();
            MixedPart { name: self.parts.name(part).clone(), rows: self.parts.n_rows(part) as u64, rows_per_epoch }
        };
        (0..self.parts.len()).map(of_part).collect()
    }

    /// Plans an epoch of a phase, all of its batches.
    fn plan_of(&self, slice: &Slice, order: Order) -> EpochPlan {
        let phase = &self.phases[slice.phase];
        let mut mixed = MixedRows::default();
        let mut numbers = Vec::new();
        for ((cell, rows_per_epoch), before) in self.cells.iter().zip(&phase.rows_per_epoch).zip(&slice.before) {
            let n_rows = cell.rows.len() as u64;
            let (mut at, end) = (*before, before + rows_per_epoch);
            while at < end {
                let (pass, from) = (at / n_rows, at % n_rows);
                let to = n_rows.min(from + end - at);
                at += to - from;

                let order = order.of_pass(cell.list(), pass);
                let permutation = order.indices(n_rows as u32, ShuffleOf::Rows);
                let rows = permutation[from as usize..to as usize].iter().map(|at| cell.rows[*at as usize]);
                match self.parts.documents(cell.part, order) {
                    Some(documents) => numbers.extend(mixed.add(cell.part, documents, rows)),
                    None => numbers.extend(rows.map(|row| self.first_rows[cell.part] + row)),
                }
            }
        }
        order.apply(&mut numbers, ShuffleOf::Rows);
        self.buckets[slice.phase].plan_rows(&numbers, order).with_mixed(mixed)
    }

    /// Returns the source of a row number and the number of the row within it.
    fn origin(&self, number: u32) -> (usize, u32) {
        let part = self.first_rows.partition_point(|first| *first <= number) - 1;
        (part, number - self.first_rows[part])
    }
}

/// Describes what a mixture has of each source, as a part of its fingerprint.
fn described(by_step: &[(u64, Vec<MixedPart>)]) -> String {
    let of_step = |(step, parts): &(u64, Vec<MixedPart>)| {
        let parts = parts.iter().map(|part| format!("{} of {}", part.rows_per_epoch, part.rows));
        let from = if *step > 0 { format!("from step {step} on: ") } else { String::new() };
        from + &parts.collect::<Vec<_>>().join(", ")
    };
    by_step.iter().map(of_step).collect::<Vec<_>>().join("; ")
}

/// Returns the number of each source's first row.
///
/// # Errors
///
/// If there are too many rows.
fn first_rows(sizes: &[u64]) -> Result<Vec<u32>> {
    let mut n_rows = 0;
    let first = |size: &u64| {
        n_rows += size;
        (n_rows - size) as u32
    };
    let found = sizes.iter().map(first).collect();
    match n_rows > u64::from(u32::MAX) {
        true => Err(Error::Invalid(format!(
            "the sources of data.mix have {n_rows} rows, more than 4,294,967,295: leave some out"
        ))),
        false => Ok(found),
    }
}

/// Refuses the order of the files, of which batches have rows of several.
fn check_shuffle(loader: &LoaderConfig) -> Result<()> {
    match loader.shuffle {
        true => Ok(()),
        false => Err(Error::Invalid(
            "loader.shuffle = false keeps the order of the files, but a mixture (data.mix) has rows of several in each \
             batch: set loader.shuffle = true"
                .into(),
        )),
    }
}

/// Counts the rows and tokens of each source in a batch. Each has the row numbers from its first one on.
fn count(batch: &mut HostBatch, sources: &[MixedPart], first_rows: &[u32]) {
    let mut counts = vec![(0, 0); sources.len()];
    for (at, number) in batch.rows.iter().enumerate() {
        let tokens = match batch.layout {
            BatchLayout::Pairs => batch.source_lengths()[at] + batch.target_lengths()[at],
            BatchLayout::Text => batch.lengths()[at],
        };
        let part = first_rows.partition_point(|first| first <= number) - 1;
        let count = &mut counts[part];
        *count = (count.0 + 1, count.1 + tokens as u64);
        batch.row_sources.push(part as u16);
    }
    batch.n_sources = sources.len();
    let counts = sources.iter().zip(counts).filter(|(_, (rows, _))| *rows > 0);
    batch.sources =
        counts.map(|(part, (rows, tokens))| SourceCount { name: part.name.clone(), rows, tokens }).collect();
}

/// The cells of all sources, and the phases with their buckets.
type Divided = (Vec<Cell>, Vec<(Phase, Buckets)>);

/// Returns the cells of packed rows, which all have one length.
fn packed(sizes: &[u64], shares: Vec<(u64, Vec<u64>)>, shape: Shape) -> Divided {
    let cell = |(part, size): (usize, &u64)| Cell { part, bucket: 0, rows: (0..*size as u32).collect() };
    let phase = |(step, rows_per_epoch): (u64, Vec<u64>)| {
        let n_rows = rows_per_epoch.iter().sum::<u64>() as usize;
        phase(step, rows_per_epoch, Buckets::of_one_shape(shape, n_rows))
    };
    (sizes.iter().enumerate().map(cell).collect(), shares.into_iter().map(phase).collect())
}

/// Sorts the rows of all sources into the same length buckets.
fn bucketed(parts: &MixParts, sizes: &[u64], shares: &[(u64, Vec<u64>)], loader: &LoaderConfig) -> Result<Divided> {
    let lengths: Vec<(usize, usize)> =
        (0..parts.len()).flat_map(|part| (0..parts.n_rows(part)).map(move |row| parts.lengths(part, row))).collect();
    let buckets = Buckets::new(lengths.iter().copied(), parts.max_lens(), loader)?;

    // The cells of each source, with their tokens.
    let mut cells: Vec<(Cell, usize)> = Vec::new();
    let mut first = 0;
    for (part, size) in sizes.iter().enumerate() {
        let mut rows_of = vec![Vec::new(); buckets.len()];
        (0..*size as u32).for_each(|row| rows_of[buckets.of(first + row as usize)].push(row));
        let found = rows_of.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        cells.extend(found.map(|(bucket, rows)| {
            let of_row = |row: &u32| lengths[first + *row as usize];
            let n_tokens = rows.iter().map(of_row).map(|(source, target)| source + target).sum();
            (Cell { part, bucket, rows }, n_tokens)
        }));
        first += *size as usize;
    }

    let of_step = |(step, of_parts): &(u64, Vec<u64>)| {
        let mut rows_per_epoch = Vec::with_capacity(cells.len());
        for (part, total) in of_parts.iter().enumerate() {
            let of_part = cells.iter().filter(|(cell, _)| cell.part == part);
            rows_per_epoch
                .extend(of_cells(*total, &of_part.map(|(cell, _)| cell.rows.len() as u64).collect::<Vec<_>>()));
        }
        let (mut of_bucket, mut tokens) = (vec![0; buckets.len()], 0.0);
        for ((cell, n_tokens), rows) in cells.iter().zip(&rows_per_epoch) {
            of_bucket[cell.bucket] += *rows as usize;
            tokens += *n_tokens as f64 * *rows as f64 / cell.rows.len() as f64;
        }
        phase(*step, rows_per_epoch, buckets.clone().with_rows(&of_bucket, tokens as u64))
    };
    let phases = shares.iter().map(of_step).collect();
    Ok((cells.into_iter().map(|(cell, _)| cell).collect(), phases))
}

fn phase(first_step: u64, rows_per_epoch: Vec<u64>, buckets: Buckets) -> (Phase, Buckets) {
    (Phase { first_step, rows_per_epoch, batches_per_epoch: buckets.batches_per_epoch() }, buckets)
}

impl BatchSource for MixSource {
    fn plan(&self, order: Order) -> EpochPlan {
        self.plan_for_steps(order, 1)
    }

    fn plan_for_steps(&self, order: Order, group_size: usize) -> EpochPlan {
        let size = self.batches_per_epoch();
        let first = order.epoch() * size;
        let slices = slices(&self.phases, first..first + size, group_size as u64);
        let plan = |slice: &Slice| self.plan_of(slice, order.at_epoch(slice.epoch));
        if let [whole] = &slices[..]
            && whole.batches.len() as u64 == self.phases[whole.phase].batches_per_epoch
        {
            return plan(whole);
        }
        let mut joined = EpochPlan::with_capacity(0);
        slices.iter().for_each(|slice| joined.append(plan(slice), slice.batches.clone()));
        joined
    }

    /// An epoch has as many batches as the first shares make of all rows.
    fn batches_per_epoch(&self) -> u64 {
        self.phases[0].batches_per_epoch
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        let mut shapes = self.buckets[0].shapes();
        for (shape, n) in self.buckets[1..].iter().flat_map(Buckets::shapes) {
            shapes.entry(shape).or_insert(n);
        }
        Some(shapes)
    }

    fn lengths(&self) -> Vec<Lengths> {
        let of_part = |part: usize| {
            let name = self.parts.name(part).clone();
            let sides = self.parts.lengths_by_side(part).into_iter();
            sides.map(move |side| Lengths { side: format!("{name}: {}", side.side), ..side })
        };
        (0..self.parts.len()).flat_map(of_part).collect()
    }

    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.settings.as_bytes());
        (0..self.parts.len()).for_each(|part| {
            hasher.update(self.parts.fingerprint(part).as_bytes());
        });
        hasher.finalize().to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<MixSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (numbers, shape) = plan.batch(index);
        self.parts.fill(numbers, shape, batch, &|number| match self.parts.is_planned_by_pass() {
            true => {
                let (part, documents, row) = plan.mixed().get(number);
                (part, Some(documents), row, self.first_rows[part] + row)
            }
            false => {
                let (part, row) = self.origin(number);
                (part, None, row, number)
            }
        })?;
        count(batch, &self.mixed, &self.first_rows);
        Ok(())
    }
}
