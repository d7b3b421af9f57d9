//! A worker that panics in the middle of a run.

use std::sync::atomic::AtomicI64;

use kiln_data::{BatchWorker, EpochPlan, Order};

use super::*;

/// Batches of another source until one of them panics.
pub(super) struct Fragile {
    pub(super) source: Arc<dyn BatchSource>,
    /// Batches that are still made.
    pub(super) left: AtomicI64,
}

struct FragileWorker {
    source: Arc<Fragile>,
    worker: Box<dyn BatchWorker>,
}

impl BatchSource for Fragile {
    fn plan(&self, order: Order) -> EpochPlan {
        self.source.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.source.batches_per_epoch()
    }

    fn shapes(&self) -> Option<std::collections::BTreeMap<Shape, usize>> {
        self.source.shapes()
    }

    fn fingerprint(&self) -> String {
        self.source.fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(FragileWorker { worker: self.source.clone().worker(), source: self })
    }
}

impl BatchWorker for FragileWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        assert_ne!(self.source.left.fetch_sub(1, Ordering::Relaxed), 0, "a bug in a worker");
        self.worker.fill(plan, index, batch)
    }
}

#[test]
fn a_worker_that_panics_ends_the_run_and_the_resumed_one_has_lost_nothing() {
    let corpora = Corpora::new(200);
    let config = corpora.config();
    let undisturbed = tempfile::tempdir().expect("a folder");
    corpora.run(&config, undisturbed.path(), None, u64::MAX);
    for num_workers in [0, 2] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut config = config.clone();
        config.loader.num_workers = num_workers;
        let setup = corpora.setup(&config, dir.path(), Logging::silent(), Arc::default());
        // Two micro-batches per step: the twelfth, of step 6, panics.
        let source = Arc::new(Fragile { source: setup.train.clone(), left: AtomicI64::new(11) });
        let setup = Setup { train: source, ..setup };
        let error = format!("{:#}", Trainer::new(setup, None).expect("a trainer").run().expect_err("a worker panics"));
        assert!(error.contains("a data worker panicked") && error.contains("a bug in a worker"), "{error}");
        let (_, snapshot) = last_snapshot(dir.path());
        // Two workers may take these batches in any order.
        assert!(matches!(snapshot.state.step, 4 | 5), "step {}", snapshot.state.step);
        let resume = corpora.find(&config, dir.path(), &[]).expect("the same run");
        corpora.run(&config, dir.path(), Some(resume), u64::MAX);
        assert_eq!(last_snapshot(dir.path()).1.weights, last_snapshot(undisturbed.path()).1.weights);
    }
}
