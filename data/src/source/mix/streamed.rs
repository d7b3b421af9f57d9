//! Mixtures of sources in shards, each with windows and a part of the disk of its own.
//!
//! # Design
//!
//! **Each source is an endless sequence of passes**, as in a mixture of whole caches. A pass reads the source as a run of that source alone
//! reads an epoch: window after window.
//!
//! **An epoch takes a fixed number of units of each source**, and goes on in the sequence where the epoch before has stopped. A unit is a
//! row where rows are packed to one length. Where rows have lengths of their own, a unit is a batch: it has rows of one source, since
//! buckets are known window by window. A seed, an epoch and a position decide the source of each unit ([`Interleave`]).
//!
//! **A position is arithmetic.** So a run resumes anywhere, with the caches of one window of each source, or of two where a window ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::parts::MixPart;
use super::phases::{Phase, slices};
use super::share::{MixShares, MixedPart, of_steps};
use super::{check_shuffle, count, described, first_rows};
use crate::batch::{EpochPlan, Interleave, MixedShards, MixedUnit, RowWriter, WindowOrder};
use crate::error::Result;
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;
use crate::source::{BatchSource, BatchWorker, StreamedRows, StreamedSource};

/// The sources of a mixture in shards, all of one kind. All must have been opened with the same tokenizer and settings.
#[derive(Debug)]
pub enum StreamedParts {
    /// Text or conversations, packed.
    Packed(Vec<MixPart<Arc<StreamedSource>>>),
    /// Rows that each have a length of their own.
    Rows(Vec<MixPart<Arc<StreamedRows>>>),
}

/// Several sources in shards as one. The design stands at the head of the file.
#[derive(Debug)]
pub struct StreamedMix {
    parts: StreamedParts,
    /// What the mixture has of each source, from each step on at which shares change.
    by_step: Vec<(u64, Vec<MixedPart>)>,
    /// The number of each source's first row.
    first_rows: Vec<u32>,
    /// Units of a pass over each source.
    per_pass: Vec<u64>,
    /// At least one.
    phases: Vec<Phase>,
}

impl StreamedParts {
    fn len(&self) -> usize {
        match self {
            Self::Packed(parts) => parts.len(),
            Self::Rows(parts) => parts.len(),
        }
    }

    fn name(&self, part: usize) -> &Arc<str> {
        match self {
            Self::Packed(parts) => &parts[part].name,
            Self::Rows(parts) => &parts[part].name,
        }
    }

    /// Returns the number of rows of a pass over a source.
    fn n_rows(&self, part: usize) -> u64 {
        match self {
            Self::Packed(parts) => parts[part].source.n_rows().into(),
            Self::Rows(parts) => parts[part].source.n_rows(),
        }
    }

    /// Returns the number of units of a pass over a source.
    fn per_pass(&self, part: usize) -> u64 {
        match self {
            Self::Packed(_) => self.n_rows(part),
            Self::Rows(parts) => parts[part].source.batches_per_epoch(),
        }
    }

    fn fingerprint(&self, part: usize) -> String {
        match self {
            Self::Packed(parts) => parts[part].source.fingerprint(),
            Self::Rows(parts) => parts[part].source.fingerprint(),
        }
    }
}

/// Returns the order of a pass over a source.
fn order_of_pass(order: Order, part: usize, pass: u64) -> Order {
    // Chunks have the lower lists.
    order.of_pass((1 << 63) | part as u64, pass)
}

impl StreamedMix {
    /// Mixes sources.
    ///
    /// # Errors
    ///
    /// As [`MixSource::new`](crate::MixSource::new).
    pub fn new(parts: StreamedParts, shares: &MixShares, loader: &LoaderConfig) -> Result<Self> {
        check_shuffle(loader)?;
        let all = 0..parts.len();
        let names: Vec<Arc<str>> = all.clone().map(|part| parts.name(part).clone()).collect();
        let sizes: Vec<u64> = all.clone().map(|part| parts.n_rows(part)).collect();
        let per_pass: Vec<u64> = all.map(|part| parts.per_pass(part)).collect();
        let units = |part: usize, rows: u64| {
            let units = rows as f64 * per_pass[part] as f64 / sizes[part] as f64;
            if rows > 0 { (units.round() as u64).max(1) } else { 0 }
        };

        let shares = of_steps(&names, &sizes, shares)?;
        let per_batch = match &parts {
            StreamedParts::Packed(parts) => parts.first().map_or(1, |part| part.source.shape().batch_size),
            StreamedParts::Rows(_) => 1,
        };
        let phase = |(first_step, rows): &(u64, Vec<u64>)| {
            let rows_per_epoch: Vec<u64> = rows.iter().enumerate().map(|(part, rows)| units(part, *rows)).collect();
            let batches_per_epoch = rows_per_epoch.iter().sum::<u64>().div_ceil(per_batch as u64);
            Phase { first_step: *first_step, rows_per_epoch, batches_per_epoch }
        };
        let phases: Vec<Phase> = shares.iter().map(phase).collect();
        let of_part = |part: usize, units: u64| {
            let rows = units as f64 * sizes[part] as f64 / per_pass[part] as f64;
            MixedPart { name: names[part].clone(), rows: sizes[part], rows_per_epoch: rows.round() as u64 }
        };
        let of_phase = |phase: &Phase| {
            let parts = phase.rows_per_epoch.iter().enumerate().map(|(part, units)| of_part(part, *units));
            (phase.first_step, parts.collect())
        };
        let by_step = phases.iter().map(of_phase).collect();
        Ok(Self { first_rows: first_rows(&sizes)?, by_step, per_pass, phases, parts })
    }

    /// Returns what the mixture has of each source from each step on at which its shares change. The first step is 0. Where units are
    /// batches, rows are rounded.
    pub fn parts_by_step(&self) -> &[(u64, Vec<MixedPart>)] {
        &self.by_step
    }

    fn names(&self) -> &[MixedPart] {
        &self.by_step[0].1
    }

    /// Returns the plans of the passes over a source that `mixed` takes batches of.
    fn passes(&self, order: Order, units: &[Range<u64>]) -> BTreeMap<(usize, u64), EpochPlan> {
        let StreamedParts::Rows(parts) = &self.parts else { return BTreeMap::new() };
        let of_part = |(part, units): (usize, &Range<u64>)| {
            let per_pass = self.per_pass[part];
            let passes = units.start / per_pass..units.end.div_ceil(per_pass);
            let plan = move |pass| parts[part].source.plan(order_of_pass(order, part, pass));
            passes.map(move |pass| ((part, pass), plan(pass)))
        };
        units.iter().enumerate().filter(|(_, units)| !units.is_empty()).flat_map(of_part).collect()
    }
}

impl BatchSource for StreamedMix {
    fn plan(&self, order: Order) -> EpochPlan {
        self.plan_for_steps(order, 1)
    }

    fn plan_for_steps(&self, order: Order, group_size: usize) -> EpochPlan {
        let (unit, most_rows) = match &self.parts {
            StreamedParts::Packed(parts) => {
                let shape = parts[0].source.shape();
                (MixedUnit::Rows(shape), shape.batch_size)
            }
            StreamedParts::Rows(parts) => {
                let sizes = parts.iter().flat_map(|part| part.source.shapes()).flatten();
                let most = sizes.map(|(shape, _)| shape.batch_size).max().unwrap_or(0);
                (MixedUnit::Batches(self.per_pass.clone()), most)
            }
        };

        let size = self.batches_per_epoch();
        let first = order.epoch() * size;
        let mut mixed = MixedShards::new(unit);
        let mut units: Vec<Range<u64>> = vec![0..0; self.parts.len()];
        for slice in slices(&self.phases, first..first + size, group_size as u64) {
            let totals = &self.phases[slice.phase].rows_per_epoch;
            for ((units, before), total) in units.iter_mut().zip(&slice.before).zip(totals) {
                let start = if units.is_empty() { *before } else { units.start };
                *units = start..before + total;
            }
            mixed.push(Interleave::new(totals.clone(), order.at_epoch(slice.epoch)), slice.before, slice.batches);
        }
        EpochPlan::of_mixed_shards(order, mixed, self.passes(order, &units), most_rows)
    }

    /// An epoch has as many batches as the first shares make of all rows.
    fn batches_per_epoch(&self) -> u64 {
        self.phases[0].batches_per_epoch
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        let mut shapes = BTreeMap::new();
        for phase in &self.phases {
            let of_phase: Vec<(Shape, usize)> = match &self.parts {
                StreamedParts::Packed(parts) => {
                    let n_rows = phase.rows_per_epoch.iter().sum::<u64>() as usize;
                    parts[0].source.shape().batches_of(n_rows).into_iter().collect()
                }
                StreamedParts::Rows(parts) => {
                    let of_part = |(part, units): (&MixPart<Arc<StreamedRows>>, (&u64, &u64))| {
                        let share = *units.0 as f64 / *units.1 as f64;
                        let shapes = part.source.shapes().unwrap_or_default().into_iter();
                        shapes.map(move |(shape, n)| (shape, (n as f64 * share).round() as usize))
                    };
                    let units = phase.rows_per_epoch.iter().zip(&self.per_pass);
                    parts.iter().zip(units).flat_map(of_part).collect()
                }
            };

            let is_first = phase.first_step == 0;
            for (shape, n) in of_phase.into_iter().filter(|(_, n)| *n > 0) {
                *shapes.entry(shape).or_insert(0) += if is_first { n } else { 0 };
            }
        }
        Some(shapes)
    }

    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("mixture in shards 1: {}", described(&self.by_step)).as_bytes());
        (0..self.parts.len()).for_each(|part| {
            hasher.update(self.parts.fingerprint(part).as_bytes());
        });
        hasher.finalize().to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(Worker { windows: vec![None; self.parts.len()], mix: self })
    }
}

struct Worker {
    mix: Arc<StreamedMix>,
    /// The windows of the pass over each source that was read last.
    windows: Vec<Option<WindowOrder>>,
}

impl BatchWorker for Worker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (mix, (order, mixed)) = (&self.mix, plan.mixed_shards());
        match &mix.parts {
            StreamedParts::Packed(parts) => {
                let (_, shape) = plan.batch(index);
                let mut rows = RowWriter::new(batch, shape, parts[0].source.format());
                let mut readers: Vec<_> = parts.iter().map(|part| part.source.reader()).collect();
                for (part, unit) in mixed.units(index) {
                    let (pass, row) = (unit / mix.per_pass[part], unit % mix.per_pass[part]);
                    let order = order_of_pass(order, part, pass);
                    let windows = match &mut self.windows[part] {
                        Some(windows) if windows.order() == order => windows,
                        windows => windows.insert(parts[part].source.windows(order)),
                    };
                    readers[part].fill(windows, row, mix.first_rows[part], &mut rows)?;
                }
            }
            StreamedParts::Rows(parts) => {
                let (part, pass, inner) = mixed.whole_batch(index).expect("units are batches");
                parts[part].source.clone().fill(plan.pass(part, pass), inner, batch)?;
                batch.rows.iter_mut().for_each(|row| *row += mix.first_rows[part]);
            }
        }

        count(batch, mix.names(), &mix.first_rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
