//! How many rows of a data set have which lengths.

use serde::{Deserialize, Serialize};

use super::TokenCache;

/// Bars of a histogram.
const BARS: usize = 16;

/// How many rows have which lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// `source`, `target`, `document` or `row`; of a mixture behind the name of the source.
    pub side: String,
    /// Rows of the data set.
    pub rows: u64,
    /// The mean, in tokens.
    pub mean: f64,
    /// The length that 50, 90, 99 and 100 % of the rows do not exceed, in tokens.
    pub quantiles: [usize; 4],
    /// Bars of equal width: the largest length in a bar and its rows. The last bar has all longer rows.
    pub bars: Vec<(usize, usize)>,
}

impl Lengths {
    /// Most rows that are counted when a run starts, so that it need not read the whole index of a large cache.
    pub const MOST_COUNTED: usize = 1 << 16;

    /// Counts the `length` of each of `n_rows` rows; of more than `most` rows, of at most so many, evenly spread.
    pub fn of(side: &str, n_rows: usize, most: usize, length: impl Fn(usize) -> usize) -> Self {
        let stride = n_rows.div_ceil(most.max(1)).max(1);
        let mut lengths: Vec<usize> = (0..n_rows).step_by(stride).map(length).collect();
        lengths.sort_unstable();
        let n = lengths.len().max(1);
        let at = |share: f64| lengths.get(((share * n as f64).ceil() as usize).clamp(1, n) - 1).copied().unwrap_or(0);

        // A few very long rows would make all other bars one.
        let width = at(0.995).div_ceil(BARS).max(1);
        let bars = (1..=BARS).map(|bar| {
            let until = bar * width;
            let is_last = bar == BARS;
            let rows = lengths.partition_point(|len| is_last || *len <= until)
                - lengths.partition_point(|len| *len <= until - width);
            (if is_last { at(1.0).max(until) } else { until }, rows)
        });
        Self {
            side: side.into(),
            rows: n_rows as u64,
            mean: lengths.iter().sum::<usize>() as f64 / n as f64,
            quantiles: [0.5, 0.9, 0.99, 1.0].map(at),
            bars: bars.collect(),
        }
    }

    /// Does the same for each side of the rows of a cache, from its index: no token is read.
    pub fn of_cache(cache: &TokenCache, most: usize) -> Vec<Self> {
        let of_side = |side, length: fn((usize, usize)) -> usize| {
            Self::of(side, cache.n_rows(), most, |row| length(cache.row_lengths(row)))
        };
        match cache.is_text() {
            true => vec![of_side("document", |(_, target)| target)],
            false => vec![of_side("source", |(source, _)| source), of_side("target", |(_, target)| target)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_counted_once_and_the_last_bar_has_the_tail() {
        let length = |row| if row == 1000 { 100_000 } else { row + 1 };
        let lengths = Lengths::of("source", 1001, usize::MAX, length);
        assert_eq!(lengths.quantiles, [501, 901, 991, 100_000]);
        assert_eq!(lengths.bars.iter().map(|(_, rows)| rows).sum::<usize>(), 1001);
        assert_eq!((lengths.bars.len(), lengths.bars[0], lengths.bars[BARS - 1].0), (BARS, (63, 63), 100_000));
        let none = Lengths::of("source", 0, 0, |_| 1);
        assert_eq!((none.quantiles, none.bars.len(), none.rows), ([0; 4], BARS, 0));
    }

    #[test]
    fn many_rows_are_counted_in_even_steps() {
        let counted = std::cell::RefCell::new(Vec::new());
        let length = |row| {
            counted.borrow_mut().push(row);
            row
        };
        let lengths = Lengths::of("row", 1000, 300, length);
        assert_eq!((lengths.rows, lengths.quantiles[3]), (1000, 996));
        let counted = counted.into_inner();
        assert!(counted.len() == 250 && counted.iter().enumerate().all(|(i, row)| *row == 4 * i), "{counted:?}");
    }
}
