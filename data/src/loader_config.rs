//! Batching, workers and prefetch.

use serde::{Deserialize, Serialize};

/// How rows become batches and who makes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Budget of one batch in tokens: rows times the longer of padded source and padded target length.
    pub batch_tokens: usize,
    /// Padded lengths are multiples of this many tokens. 8 keeps shapes few; 4 pads less where rows are short. Row counts
    /// are multiples of 8 in any case, once there are that many.
    pub bucket_multiple: usize,
    /// Length buckets at most. More of them pad less, but each is one more shape for the GPU to tune.
    pub max_buckets: usize,
    /// Worker threads; 0 makes batches inline on the calling thread.
    pub num_workers: usize,
    /// Batches that each worker may be ahead.
    pub prefetch_factor: usize,
    /// Another order of rows and batches every epoch; `false` keeps the order of the files within length buckets.
    pub shuffle: bool,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            batch_tokens: 8192,
            bucket_multiple: 8,
            max_buckets: 16,
            num_workers: 2,
            prefetch_factor: 4,
            shuffle: true,
        }
    }
}

impl LoaderConfig {
    /// Everything that cannot work, each with its remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.bucket_multiple == 0 {
            problems.push("loader.bucket_multiple = 0: set 8 (or 1 for exact lengths)".into());
        }
        if self.batch_tokens == 0 || self.batch_tokens < self.bucket_multiple {
            problems.push(format!(
                "loader.batch_tokens = {} cannot hold one row of loader.bucket_multiple = {} tokens: raise it, for \
                 example to 8192",
                self.batch_tokens, self.bucket_multiple
            ));
        }
        if self.max_buckets == 0 {
            problems.push("loader.max_buckets = 0: set at least 1; 16 suits most corpora".into());
        }
        if self.max_buckets > 4096 {
            problems.push(format!(
                "loader.max_buckets = {}: every bucket is a shape of its own for the GPU; 8 to 64 are plenty",
                self.max_buckets
            ));
        }
        if self.num_workers > 0 && self.prefetch_factor == 0 {
            problems.push(
                "loader.prefetch_factor = 0 with worker threads would keep them idle: set at least 1, or \
                 loader.num_workers = 0 to work inline"
                    .into(),
            );
        }
        if self.num_workers > 1024 {
            problems.push(format!(
                "loader.num_workers = {}: more threads than any machine here has cores; 2 to 16 is usual",
                self.num_workers
            ));
        }
        problems
    }
}
