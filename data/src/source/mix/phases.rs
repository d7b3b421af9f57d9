//! Shares that change with the optimizer steps: a mixture is a sequence of phases, each with shares of its own.
//!
//! A phase has whole epochs of its own, of which the last one ends where the next phase begins. A position in the data is found by
//! a few divisions per phase. Each source goes on with its pass where the phase before has stopped. The rows that the epoch
//! in progress has left are skipped, so no row comes again before its pass is over.

use std::ops::Range;

/// Some steps with the same shares.
#[derive(Debug)]
pub(super) struct Phase {
    /// Optimizer steps before it.
    pub(super) first_step: u64,
    /// Rows that an epoch has of each cell. A mixture in shards may have whole batches in place of rows, of each source.
    pub(super) rows_per_epoch: Vec<u64>,
    pub(super) batches_per_epoch: u64,
}

/// Some batches of an epoch of a phase.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) phase: usize,
    /// Number of the epoch, counted over all phases.
    pub(super) epoch: u64,
    /// Rows of each cell before the epoch.
    pub(super) before: Vec<u64>,
    pub(super) batches: Range<usize>,
}

/// Divides the batches `window`, numbered from the start of the data, into slices. A step takes `group_size` batches.
pub(super) fn slices(phases: &[Phase], window: Range<u64>, group_size: u64) -> Vec<Slice> {
    let mut slices = Vec::new();
    // Batches, epochs and rows of each cell before the phase.
    let (mut first, mut epochs) = (0, 0);
    let mut before = vec![0; phases.first().map_or(0, |phase| phase.rows_per_epoch.len())];
    for (number, phase) in phases.iter().enumerate() {
        let Phase { rows_per_epoch, batches_per_epoch: size, .. } = phase;
        let end = phases.get(number + 1).map_or(u64::MAX, |next| next.first_step.saturating_mul(group_size));
        let mut at = window.start.max(first);
        while at < end.min(window.end) {
            let (epoch, offset) = ((at - first) / size, (at - first) % size);
            let n = (size - offset).min(end.min(window.end) - at);
            let before = before.iter().zip(rows_per_epoch).map(|(before, rows)| before + epoch * rows);
            slices.push(Slice {
                phase: number,
                epoch: epochs + epoch,
                before: before.collect(),
                batches: offset as usize..(offset + n) as usize,
            });
            at += n;
        }
        if end >= window.end {
            break;
        }

        let n_epochs = (end - first).div_ceil(*size);
        before.iter_mut().zip(rows_per_epoch).for_each(|(before, rows)| *before += n_epochs * rows);
        (first, epochs) = (end, epochs + n_epochs);
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A phase with one cell and batches of ten rows.
    fn phase(first_step: u64, rows: u64) -> Phase {
        Phase { first_step, rows_per_epoch: vec![rows], batches_per_epoch: rows.div_ceil(10) }
    }

    /// Walks from batch to batch: the phase, the epoch within all phases, the batch within the epoch, and the rows before.
    fn one_by_one(phases: &[Phase], n: u64, group_size: u64) -> Vec<(usize, u64, usize, u64)> {
        let (mut found, mut epoch, mut batch, mut before) = (Vec::new(), 0, 0, 0);
        let mut current = 0;
        for number in 0..n {
            let wanted = phases.iter().rposition(|phase| phase.first_step * group_size <= number).expect("a phase");
            if wanted != current || batch == phases[current].batches_per_epoch {
                let whole = u64::from(batch > 0);
                (epoch, before) = (epoch + whole, before + whole * phases[current].rows_per_epoch[0]);
                (batch, current) = (0, wanted);
            }
            found.push((current, epoch, batch as usize, before));
            batch += 1;
        }
        found
    }

    #[test]
    fn slices_are_the_batches_one_by_one_from_any_position() {
        for (steps, group_size) in [([0, 3, 40], 1), ([0, 5, 6], 2), ([0, 1, 1000], 3), ([0, 2, 30], 4)] {
            let phases: Vec<Phase> =
                steps.into_iter().zip([45, 70, 30]).map(|(step, rows)| phase(step, rows)).collect();
            let wanted = one_by_one(&phases, 300, group_size);
            for start in 0..250 {
                for len in [1, 5, 50] {
                    let found: Vec<_> = slices(&phases, start..start + len, group_size)
                        .into_iter()
                        .flat_map(|slice| {
                            let Slice { phase, epoch, before, batches } = slice;
                            batches.map(move |batch| (phase, epoch, batch, before[0]))
                        })
                        .collect();
                    assert_eq!(found, wanted[start as usize..(start + len) as usize], "{steps:?} from {start}");
                }
            }
        }
    }

    #[test]
    fn one_phase_has_whole_epochs() {
        let found = slices(&[phase(0, 45)], 15..20, 7);
        assert_eq!(found, [Slice { phase: 0, epoch: 3, before: vec![135], batches: 0..5 }]);
    }
}
