//! The clock of the training loop: adds up the wall time of each [`Span`].

use std::time::{Duration, Instant};

use kiln_kernels::ranges::range;
use kiln_metrics::{Span, SpanTotals};
use kiln_ranks::timeline;

/// Adds up the time spent in each [`Span`] since the last [`SpanClock::take`].
#[derive(Debug, Clone)]
pub struct SpanClock {
    since: Instant,
    spent: [Duration; Span::ALL.len()],
}

impl SpanClock {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { since: Instant::now(), spent: Default::default() }
    }

    /// Runs `work` and adds its time to `span`. Spans do not nest.
    pub fn time<R>(&mut self, span: Span, work: impl FnOnce() -> R) -> R {
        let _range = range(span.name());
        let start = Instant::now();
        let result = work();
        let end = Instant::now();
        self.spent[span as usize] += end - start;
        timeline::record(span.name(), start, end);
        result
    }

    /// Adds `spent`, the time until now, to `span`.
    pub fn add(&mut self, span: Span, spent: Duration) {
        self.spent[span as usize] += spent;
        let now = Instant::now();
        timeline::record(span.name(), now.checked_sub(spent).unwrap_or(now), now);
    }

    /// Leaves `spent`, the time until now, out of the totals.
    pub fn exclude(&mut self, spent: Duration) {
        self.since += spent;
    }

    /// The totals since the last call. The clock restarts.
    pub fn take(&mut self) -> SpanTotals {
        let now = Instant::now();
        let totals = SpanTotals::new(now - self.since, self.spent);
        *self = Self { since: now, spent: Default::default() };
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_adds_time_to_its_span_and_restarts() {
        let mut clock = SpanClock::start();
        let answer = clock.time(Span::DataWait, || {
            std::thread::sleep(Duration::from_millis(5));
            42
        });
        clock.add(Span::Save, Duration::from_secs(1));
        let totals = clock.take();
        assert_eq!(answer, 42);
        assert!(totals.spent(Span::DataWait) >= Duration::from_millis(5));
        assert_eq!(totals.spent(Span::Save), Duration::from_secs(1));
        assert_eq!(clock.take().spent(Span::DataWait), Duration::ZERO);
    }

    #[test]
    fn time_that_is_excluded_counts_for_nothing() {
        let mut clock = SpanClock::start();
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(30));
        clock.exclude(began.elapsed());
        assert!(clock.take().other() < Duration::from_millis(25));
    }

    #[test]
    fn spans_of_a_clock_are_recorded_while_they_are_wanted() {
        let mut clock = SpanClock::start();
        clock.add(Span::Save, Duration::from_secs(1));
        timeline::start();
        clock.time(Span::Validate, || std::thread::sleep(Duration::from_millis(2)));
        clock.add(Span::Save, Duration::from_millis(7));
        let spans = timeline::stop();
        clock.time(Span::Validate, || ());

        // Other tests have clocks, too.
        let length = |name| {
            let of_name = spans.iter().filter(|span| span.name == name);
            of_name.map(|span| span.ended - span.started).collect::<Vec<_>>()
        };
        assert!(length("save").contains(&Duration::from_millis(7)), "{spans:?}");
        assert!(length("validate").iter().any(|length| *length >= Duration::from_millis(2)), "{spans:?}");
        assert!(!length("save").contains(&Duration::from_secs(1)), "{spans:?}");
    }
}
