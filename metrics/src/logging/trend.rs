//! Whether the loss goes down, for the progress bar.

use std::collections::VecDeque;

/// Lines of metrics that are compared.
const LINES: usize = 20;
/// Fewer lines say little.
const LEAST: usize = 6;
/// Relative changes below this one are noise, for the eye.
const FLAT: f64 = 0.002;

/// The losses of the last lines.
#[derive(Debug, Default)]
pub(super) struct Trend(VecDeque<(u64, f64)>);

impl Trend {
    /// Adds the loss of a line that ends with `step`, and describes the change: the mean of the newer half of the last lines
    /// against the mean of the older half. Empty if there are too few lines.
    pub(super) fn after(&mut self, step: u64, loss: f64) -> String {
        if !loss.is_finite() {
            self.0.clear();
            return String::new();
        }
        if self.0.len() == LINES {
            self.0.pop_front();
        }
        self.0.push_back((step, loss));
        if self.0.len() < LEAST {
            return String::new();
        }

        let half = self.0.len() / 2;
        let mean = |range: std::ops::Range<usize>| {
            let (n, losses) = (range.len() as f64, self.0.range(range));
            let (steps, loss) = losses.fold((0.0, 0.0), |(s, l), (step, loss)| (s + *step as f64, l + loss));
            (steps / n, loss / n)
        };
        let ((old_step, old), (new_step, new)) = (mean(0..half), mean(self.0.len() - half..self.0.len()));
        let change = (new - old) / old.abs().max(1e-9);
        let steps = new_step - old_step;
        match change {
            _ if change.abs() < FLAT => format!(" (flat over {steps:.0} steps)"),
            _ => format!(" ({:+.1}% in {steps:.0} steps)", 100.0 * change),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_a_flat_and_a_rising_loss_differ() {
        let after = |loss: fn(f64) -> f64| {
            let mut trend = Trend::default();
            (1..=30).map(|line| trend.after(10 * line, loss(line as f64))).collect::<Vec<_>>()
        };
        let falling = after(|x| 10.0 - 0.1 * x);
        assert!(falling[..LEAST - 1].iter().all(String::is_empty), "too few lines");
        // Lines 11 to 20 have a mean of 8.45, lines 21 to 30 of 7.45.
        assert_eq!(falling.last().map(String::as_str), Some(" (-11.8% in 100 steps)"));
        assert_eq!(after(|_| 2.0).last().map(String::as_str), Some(" (flat over 100 steps)"));
        assert!(after(|x| x).last().is_some_and(|text| text.starts_with(" (+")));

        let mut trend = Trend::default();
        (1..=10).for_each(|line| drop(trend.after(line, 1.0)));
        assert_eq!(trend.after(11, f64::NAN), "", "a NaN starts anew");
        assert_eq!(trend.after(12, 1.0), "");
    }
}
