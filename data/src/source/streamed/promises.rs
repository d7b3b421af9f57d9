//! The promises of a source in shards, checked alike for rows of every task.

use std::path::Path;
use std::sync::Arc;

use crate::host_batch::{HostBatch, Position};
use crate::loader::{Loader, OnePass, Rank};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;
use crate::source::BatchSource;

/// A source whose shards are in `folders`, opened anew.
pub(crate) struct Subject<'a> {
    pub(crate) open: &'a dyn Fn(&LoaderConfig) -> Arc<dyn BatchSource>,
    pub(crate) folders: Vec<&'a Path>,
    pub(crate) config: LoaderConfig,
    /// Bytes that the token caches may take.
    pub(crate) limit: u64,
}

impl Subject<'_> {
    fn with_workers(&self, num_workers: usize) -> LoaderConfig {
        LoaderConfig { num_workers, ..self.config.clone() }
    }

    pub(crate) fn batches(&self, num_workers: usize, start: Position, n: u64, rank: Rank) -> Vec<HostBatch> {
        let config = self.with_workers(num_workers);
        let mut loader = Loader::for_rank((self.open)(&config), &config, 5, start, rank).expect("a loader");
        (0..n).map(|_| loader.next_batch().expect("a batch")).collect()
    }

    /// Bytes of all caches of shards.
    fn taken(&self) -> u64 {
        let entries = self.folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder").flatten());
        let caches = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".tokens"));
        caches.map(|entry| entry.metadata().map_or(0, |file| file.len())).sum()
    }

    fn remove_caches(&self) {
        self.folders.iter().for_each(|folder| std::fs::remove_dir_all(folder).expect("there"));
    }

    /// Checks that batches depend neither on workers nor ranks nor on the start, which may be any position, and that the caches stay under
    /// the limit.
    pub(crate) fn batches_depend_on_the_position_alone(&self) {
        let per_epoch = (self.open)(&self.config).batches_per_epoch();
        let n = per_epoch + per_epoch / 2;
        let all = self.batches(0, Position::default(), n, Rank::default());
        assert!(self.batches(3, Position::default(), n, Rank::default()) == all, "three workers");
        // Steps of four batches over two ranks, and over one.
        let of_steps = |rank, world_size| Rank { rank, world_size, group_size: 4 };
        let contents = |batches: &[HostBatch]| -> Vec<_> {
            batches.iter().map(|batch| (batch.ids.clone(), batch.rows.clone(), batch.sources.clone())).collect()
        };
        let steps = contents(&self.batches(0, Position::default(), n, of_steps(0, 1)));
        for rank in 0..2 {
            let of_rank = contents(&self.batches(2, Position::default(), n / 2, of_steps(rank, 2)));
            let wanted: Vec<_> = steps.iter().skip(rank).step_by(2).take(of_rank.len()).cloned().collect();
            assert!(of_rank == wanted, "rank {rank}");
        }

        for start in 0..per_epoch + 2 {
            if start % 11 == 3 {
                self.remove_caches();
            }
            let position = Position { epoch: start / per_epoch, batch: start % per_epoch };
            let again = self.batches((start % 3) as usize, position, 3, Rank::default());
            assert!(again == all[start as usize..start as usize + 3], "from {start} of {per_epoch}");
        }
    }

    /// Checks that an epoch has each of `n_rows` rows `times` times, in batches of the shapes that the source says, and that two epochs
    /// differ. Returns the batches of the first epoch.
    pub(crate) fn an_epoch_has_every_row(&self, n_rows: u32, times: usize) -> Vec<HostBatch> {
        let source = (self.open)(&self.config);
        let per_epoch = source.batches_per_epoch();
        let all = self.batches(2, Position::default(), 2 * per_epoch, Rank::default());
        let (first, second) = all.split_at(per_epoch as usize);
        let numbers = |batches: &[HostBatch]| batches.iter().flat_map(|batch| batch.rows.clone()).collect::<Vec<_>>();
        for epoch in [first, second] {
            let mut rows = numbers(epoch);
            rows.sort_unstable();
            assert_eq!(rows, (0..n_rows).flat_map(|row| vec![row; times]).collect::<Vec<_>>());
            let mut shapes = std::collections::BTreeMap::new();
            epoch.iter().for_each(|batch| *shapes.entry(batch.shape()).or_default() += 1);
            assert_eq!(Some(shapes), source.shapes());
        }
        assert_ne!(numbers(first), numbers(second));
        let pass = OnePass::new(source, &self.config).expect("starts").map(|batch| batch.expect("a batch"));
        let mut rows = numbers(&pass.collect::<Vec<_>>());
        rows.sort_unstable();
        assert_eq!(rows.len(), n_rows as usize * times);
        first.to_vec()
    }

    /// Checks that the caches stay under the limit, although all of them together are larger.
    pub(crate) fn the_disk_stays_under_its_limit(&self, n_bytes: u64) {
        assert!(n_bytes > 2 * self.limit, "{n_bytes} bytes, limit {}", self.limit);
        let config = self.with_workers(2);
        let source = (self.open)(&config);
        let per_epoch = source.batches_per_epoch();
        let plan = source.plan(Order::Shuffled { seed: 5, epoch: 0 });
        assert_eq!(plan.len() as u64, per_epoch);
        let mut loader = Loader::new(source, &config, 5, Position::default()).expect("a loader");
        let mut most = 0;
        for _ in 0..per_epoch {
            loader.next_batch().expect("a batch");
            most = most.max(self.taken());
        }
        assert!(most <= self.limit && most > self.limit / 3, "{most} of {} bytes", self.limit);
    }
}
