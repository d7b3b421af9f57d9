//! Relative positions: a trained number per head and distance is added to the scores of self-attention (Raffel et al. 2020, T5).

use burn::module::{Module, Param};
use burn::tensor::{DType, Int, Tensor};

use crate::config::{Positions, TransformerConfig};
use crate::init::Init;
use crate::rows::Rows;

/// The numbers of all layers of a stack. Near distances have a number each; farther ones share the numbers of buckets that widen
/// logarithmically.
#[derive(Module, Debug)]
pub struct RelativePositions {
    /// `[buckets, H]`
    pub table: Param<Tensor<2>>,
    /// The bucket of each distance from `-max_distance` to `max_distance`, `[2 * max_distance + 1]`.
    buckets: Tensor<1, Int>,
    max_distance: usize,
}

impl RelativePositions {
    /// Initializes the numbers, if the configuration has relative positions. Queries of a stack that looks in `both_directions` tell
    /// keys behind them from keys in front.
    pub(crate) fn init(init: &Init, both_directions: bool) -> Option<Self> {
        let config = init.config;
        if config.positions != Positions::Relative {
            return None;
        }
        let (buckets, n) = (buckets(config, both_directions), 2 * config.relative_max_distance + 1);
        Some(Self {
            table: init.table_of("table", [config.relative_buckets, config.n_heads]),
            buckets: init.fixed_ints(buckets, [n]),
            max_distance: config.relative_max_distance,
        })
    }

    /// Fills in what is added to the scores of `rows` with `n` positions together, if the model has relative positions.
    pub(crate) fn fill(relative: &Option<Self>, rows: Rows, n: usize) -> Rows {
        let Some(relative) = relative else { return rows };
        let relative = Some(relative.of_rows(rows.len(n)));
        Rows { relative, ..rows }
    }

    /// Returns what is added to the scores of rows of `len` positions, by ascending `key - query`: `[H, 2 * len - 1]`.
    fn of_rows(&self, len: usize) -> Tensor<2> {
        let farthest = len as i64 - 1;
        let distances = Tensor::<1, Int>::arange(-farthest..farthest + 1, (&self.buckets.device(), DType::I32));
        self.of_distances(distances).swap_dims(0, 1)
    }

    /// Returns what is added to the scores of queries at `positions` (`[N]`) with the first `n_keys` positions, `[N * n_keys, H]`.
    pub(crate) fn of_queries(&self, positions: Tensor<1, Int>, n_keys: usize) -> Tensor<2> {
        let [n] = positions.dims();
        let keys = Tensor::<1, Int>::arange(0..n_keys as i64, (&self.buckets.device(), DType::I32));
        let keys = keys.reshape([1, n_keys]).expand([n, n_keys]);
        let distances = keys - positions.cast(DType::I32).reshape([n, 1]).expand([n, n_keys]);
        self.of_distances(distances.reshape([n * n_keys]))
    }

    /// Returns the numbers of distances `key - query`, `[N, H]`.
    fn of_distances(&self, distances: Tensor<1, Int>) -> Tensor<2> {
        let max = self.max_distance as i64;
        let places = distances.clamp(-max, max) + max;
        // The numbers of all distances first: backward adds up many rows of few ids only once.
        let of_distances = kiln_kernels::embedding(self.buckets.clone(), self.table.val());
        kiln_kernels::embedding(places, of_distances)
    }
}

/// The bucket of each distance `key - query` from `-max_distance` to `max_distance`, in the arithmetic of `transformers`.
fn buckets(config: &TransformerConfig, both_directions: bool) -> Vec<i32> {
    let max_distance = config.relative_max_distance;
    let n = if both_directions { config.relative_buckets / 2 } else { config.relative_buckets };
    let n_exact = n / 2;
    let bucket = |distance: usize| {
        if distance < n_exact {
            return distance;
        }
        let ratio = (distance as f32 / n_exact as f32).ln() / (max_distance as f64 / n_exact as f64).ln() as f32;
        (n_exact + (ratio * (n - n_exact) as f32) as usize).min(n - 1)
    };
    let max = max_distance as i64;
    let of_distance = |distance: i64| match (distance > 0, both_directions) {
        (true, true) => n + bucket(distance as usize),
        (true, false) => 0,
        (false, _) => bucket(distance.unsigned_abs() as usize),
    };
    (-max..=max).map(|distance| of_distance(distance) as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(n_buckets: usize, max_distance: usize, both_directions: bool, distances: &[i64]) -> Vec<i32> {
        let config = TransformerConfig {
            relative_buckets: n_buckets,
            relative_max_distance: max_distance,
            ..TransformerConfig::default()
        };
        let buckets = buckets(&config, both_directions);
        distances.iter().map(|distance| buckets[(distance + max_distance as i64) as usize]).collect()
    }

    /// `T5Attention._relative_position_bucket` of `transformers` (5.24) with 32 buckets up to 128 positions.
    #[test]
    fn buckets_equal_those_of_transformers() {
        let distances = [-128, -127, -100, -64, -33, -16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 16, 33, 64, 100, 127, 128];
        assert_eq!(of(32, 128, true, &distances), BOTH);
        assert_eq!(of(32, 128, false, &distances), BEHIND);
    }

    const BOTH: [i32; 21] = [15, 15, 15, 14, 12, 10, 8, 8, 7, 1, 0, 17, 23, 24, 24, 26, 28, 30, 31, 31, 31];
    const BEHIND: [i32; 21] = [31, 31, 30, 26, 21, 16, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
}
