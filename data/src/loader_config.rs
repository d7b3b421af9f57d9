//! Settings of batching, workers and prefetching.

use serde::{Deserialize, Serialize};

/// Rounds a length up to a multiple of `multiple`, and longer lengths to a multiple of 2, 4, 8 .. times as much. This
/// pads a long row by an eighth at most, and keeps the number of different lengths small.
pub fn round_up(len: usize, multiple: usize) -> usize {
    let mut step = multiple;
    while len > 16 * step {
        step *= 2;
    }
    len.next_multiple_of(step)
}

/// How rows become batches, and how many threads make them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Budget of one batch in tokens: rows times the longer of padded source and padded target length.
    pub batch_tokens: usize,
    /// Rows of a batch, whatever their length. 0: as many as `batch_tokens` has room for.
    pub batch_rows: usize,
    /// Padded lengths are multiples of this many tokens. 8 keeps the number of shapes small; 4 pads less where rows are
    /// short. Batches of 8 rows or more have a multiple of 8 rows in any case.
    pub bucket_multiple: usize,
    /// Largest number of length buckets. More buckets pad less, but each is one more shape for the GPU to tune.
    pub max_buckets: usize,
    /// Worker threads; 0 makes batches on the calling thread.
    pub num_workers: usize,
    /// Batches that each worker may prepare in advance.
    pub prefetch_factor: usize,
    /// Shuffles rows and batches differently in every epoch; `false` keeps the order of the files within length
    /// buckets.
    pub shuffle: bool,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            batch_tokens: 8192,
            batch_rows: 0,
            bucket_multiple: 8,
            max_buckets: 16,
            num_workers: 2,
            prefetch_factor: 4,
            shuffle: true,
        }
    }
}

impl LoaderConfig {
    /// Returns the rows of a batch whose rows have `len` tokens.
    pub(crate) fn rows_of(&self, len: usize) -> usize {
        if self.batch_rows > 0 { self.batch_rows } else { self.batch_tokens / len.max(1) }
    }

    /// Returns the batches that a loader makes at the same time.
    pub(crate) fn in_flight(&self) -> usize {
        (self.num_workers * self.prefetch_factor).max(1)
    }

    /// Returns all invalid settings, each with a remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.bucket_multiple == 0 {
            problems.push("loader.bucket_multiple = 0 is not a multiple: set 8 (or 1 for exact lengths)".into());
        }
        if self.batch_tokens == 0 || self.batch_tokens < self.bucket_multiple {
            problems.push(format!(
                "loader.batch_tokens = {} cannot hold one row of loader.bucket_multiple = {} tokens: raise it, for \
                 example to 8192",
                self.batch_tokens, self.bucket_multiple
            ));
        }

        if self.max_buckets == 0 {
            problems.push(
                "loader.max_buckets = 0 leaves no bucket for any row: set at least 1; 16 suits most corpora".into(),
            );
        }
        if self.max_buckets > 4096 {
            problems.push(format!(
                "loader.max_buckets = {} is more than 4096, and the GPU tunes each bucket's shape: set 8 to 64",
                self.max_buckets
            ));
        }

        if self.num_workers > 0 && self.prefetch_factor == 0 {
            problems.push(
                "loader.prefetch_factor = 0 would keep the worker threads idle: set at least 1, or set \
                 loader.num_workers = 0 to make batches on the calling thread"
                    .into(),
            );
        }
        if self.num_workers > 1024 {
            problems
                .push(format!("loader.num_workers = {} is more than 1024 threads: 2 to 16 is usual", self.num_workers));
        }
        problems
    }
}
