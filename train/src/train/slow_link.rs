//! A link between the GPUs that takes much of each step: noticed once, with the setting that helps.

use std::time::Duration;

use kiln_kernels::collective::CollectiveTime;

/// Smaller operations measure the latency, not the link.
const LEAST_BYTES: u64 = 1 << 20;
/// Share of the time from which the link is worth a note.
const NOTABLE: f64 = 0.25;
/// Share of the time that the proposed accumulation leaves to the link.
const WANTED: f64 = 0.10;
const MOST_ACCUMULATION: u64 = 64;
/// The proposed `train.sync_every`.
const SYNC_EVERY: u64 = 100;
/// What moves if gradients are in f32 and weights in bf16, relative to bf16 for both.
const F32_GROWTH: f64 = 1.5;

/// Watches the link until it has been noted.
#[derive(Debug)]
pub(super) struct LinkWatch {
    /// Batches of a rank in each step.
    accumulated: usize,
    noted: bool,
}

impl LinkWatch {
    pub(super) fn new(accumulated: usize) -> Self {
        Self { accumulated: accumulated.max(1), noted: false }
    }

    /// Returns a note if `timed`, the operations of `elapsed`, took too much of it. The first note is the only one.
    pub(super) fn note(&mut self, timed: &[CollectiveTime], elapsed: Duration) -> Option<String> {
        let (share, gb_per_sec) = share_of_link(timed, elapsed)?;
        if self.noted || share < NOTABLE {
            return None;
        }
        self.noted = true;

        // The first step of accumulation sends f32 instead of 16-bit gradients.
        let growth = if self.accumulated == 1 { F32_GROWTH } else { 1.0 };
        let proposed = accumulation_for(self.accumulated, growth, share);
        let remedy = if proposed > self.accumulated as u64 {
            format!(
                "train.grad_accum_steps={proposed} exchanges once for {proposed} batches, train.sync_every={SYNC_EVERY} once in \
                 {SYNC_EVERY} steps; "
            )
        } else {
            String::new()
        };
        Some(format!(
            "the link between the GPUs, {gb_per_sec:.1} GB/s, takes {:.0} % of the time: {remedy}docs/distributed.md, \"Slow links\", \
             has more",
            100.0 * share
        ))
    }
}

/// Returns the accumulation that lowers the link's share of the time from `share` to a tenth: more of it adds computation alone. `growth`: the
/// bytes of an exchange then, relative to now.
#[doc(hidden)]
pub fn accumulation_for(accumulated: usize, growth: f64, share: f64) -> u64 {
    let wanted = accumulated as f64 * growth * share / (1.0 - share).max(1e-9) * (1.0 - WANTED) / WANTED;
    (wanted.ceil() as u64).next_power_of_two().min(MOST_ACCUMULATION)
}

/// Returns the share of `elapsed` that the link needs for the operations, and its rate in 10^9 bytes per second.
///
/// An operation's time includes the wait for slower ranks. The fastest operation of a kind waited least, so its rate
/// counts for all of that kind.
fn share_of_link(timed: &[CollectiveTime], elapsed: Duration) -> Option<(f64, f64)> {
    let large = || timed.iter().filter(|one| one.bytes >= LEAST_BYTES && one.ms > 0.0);
    let rate = |one: &CollectiveTime| one.bytes as f64 / f64::from(one.ms);
    let ms = |one: &CollectiveTime| {
        let best = large().filter(|other| other.what == one.what).map(rate).fold(0.0, f64::max);
        one.bytes as f64 / best
    };

    let (bytes, ms) = large().fold((0, 0.0), |(bytes, sum), one| (bytes + one.bytes, sum + ms(one)));
    let share = ms / 1e3 / elapsed.as_secs_f64().max(1e-9);
    (bytes > 0).then(|| (share.min(0.99), bytes as f64 / ms / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(what: &'static str, mib: u64, ms: f32) -> CollectiveTime {
        CollectiveTime { what, bytes: mib << 20, ms }
    }

    #[test]
    fn a_slow_link_is_noted_once_with_the_accumulation_that_helps() {
        let mut watch = LinkWatch::new(1);
        // 48 and 24 of 120 ms.
        let timed = [moved("exchange", 240, 48.0), moved("all_gather", 120, 24.0), moved("exchange", 0, 9.0)];
        let note = watch.note(&timed, Duration::from_millis(120)).expect("slow");
        assert!(note.contains("5.2 GB/s, takes 60 % of the time: train.grad_accum_steps=32 "), "{note}");
        assert_eq!(watch.note(&timed, Duration::from_millis(120)), None);
    }

    #[test]
    fn neither_a_fast_link_nor_waiting_for_another_rank_is_noted() {
        let mut watch = LinkWatch::new(1);
        let waited = [moved("exchange", 240, 1.0), moved("exchange", 240, 70.0)];
        assert_eq!(watch.note(&waited, Duration::from_millis(120)), None);
        assert_eq!(watch.note(&[], Duration::from_millis(120)), None);
    }

    #[test]
    fn no_setting_is_proposed_that_is_taken_already() {
        let timed = [moved("exchange", 240, 90.0)];
        let note = LinkWatch::new(64).note(&timed, Duration::from_millis(100)).expect("slow");
        assert!(!note.contains("grad_accum"), "{note}");
    }
}
