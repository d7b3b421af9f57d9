//! What holds for every optimizer: exact on resume, and over ranks.

use super::ranks::{run_on, snapshot};
use super::*;
use crate::optim::{Optimizer, ParamTable, Slices};

/// Trains with `config` on one rank that accumulates and on as many ranks, sharded or not, and stops and goes on with another number
/// of ranks. All must end with the same bits. Returns the last snapshot.
pub(super) fn assert_exact(corpora: &Corpora, config: &Config) -> Snapshot {
    let folder = |name: String| corpora.dir.path().join(name);
    let with = |accumulated: usize, shards: bool| {
        let mut config = config.clone();
        (config.train.grad_accum_steps, config.train.shard_optimizer) = (accumulated, shards);
        config.train.ema_decay = 0.9;
        config
    };
    for (size, shards) in [(2, true), (2, false), (4, true)] {
        let (one, many) = (folder(format!("one-{size}-{shards}")), folder(format!("many-{size}-{shards}")));
        let (_, wanted) = corpora.run(&with(size, shards), &one, None, u64::MAX);
        for (rank, (outcome, records)) in run_on(size, corpora, &with(1, shards), &many, None).iter().enumerate() {
            assert_eq!(outcome.ended, Ended::Steps, "{size} ranks: rank {rank}");
            assert_eq!(records, &wanted, "{size} ranks: losses, norms, tokens and scores of rank {rank}");
        }
        assert_eq!(snapshot(&many), snapshot(&one), "{size} ranks, sharded: {shards}");
    }

    let parts = folder("parts".into());
    run_on(4, corpora, &with(1, true), &parts, Some((2, 6)));
    assert_eq!(snapshot(&parts).state.step, 7);
    let resume = corpora.find(&with(4, true), &parts, &["train.grad_accum_steps".into()]).expect("the same run");
    corpora.run(&with(4, true), &parts, Some(resume), 10);
    run_on(4, corpora, &with(1, true), &parts, None);
    let whole = snapshot(&folder("one-4-true".into()));
    assert_eq!(snapshot(&parts), whole, "4 ranks, then 1, then 4 again");
    whole
}

/// The sections of the slices of 4 ranks.
pub(super) fn sections_of_ranks(config: &Config, groups: &Groups) -> Vec<Vec<crate::optim::optimizer::Section>> {
    let module: Transformer = config.model.init(1, FloatDType::F32, &Device::flex());
    let table = groups.lay_out(ParamTable::of(&module));
    let own = |rank: usize| table.sections(&Slices::new(&table, rank, 4, &Device::flex()).own());
    (0..4).map(own).collect()
}

/// A rule whose state is not what the checkpoint has cannot go on from it.
#[test]
fn a_checkpoint_of_another_optimizer_is_refused() {
    #[derive(Debug)]
    struct Other(AdamW);
    impl Optimizer for Other {
        fn state(&self) -> &'static [&'static str] {
            &["average"]
        }
        fn cut(&self) -> crate::optim::Cut {
            self.0.cut()
        }
        fn coefficients(&self, rate: f64, update: u64) -> [f32; 3] {
            self.0.coefficients(rate, update)
        }
        fn step(
            &self,
            _section: &crate::optim::optimizer::Section,
            state: crate::optim::optimizer::SectionState,
            _gradient: kiln_kernels::optim::Flat,
            _numbers: &kiln_kernels::optim::StepNumbers,
        ) -> crate::optim::optimizer::SectionState {
            state
        }
    }

    let (corpora, dir) = (Corpora::new(50), tempfile::tempdir().expect("a folder"));
    let mut config = corpora.config();
    config.train.steps = 2;
    corpora.run(&config, dir.path(), None, u64::MAX);
    let (_, saved) = last_snapshot(dir.path());
    let (groups, dtype) = (Groups::one(Other(AdamW::new(&config.optim))), FloatDType::F32);
    let module: Transformer = saved.model.init(1, dtype, &Device::flex().autodiff());
    let start = Start { config: &config, groups: &groups, dtype };
    let error = TrainState::restore(start, &saved, module).expect_err("another optimizer").to_string();
    assert!(error.contains("the state average of") && error.contains("train.optimizer"), "{error}");

    config.train.optimizer = OptimizerChoice::Muon;
    let error = format!("{:#}", corpora.find(&config, dir.path(), &[]).expect_err("another optimizer"));
    assert!(error.contains("train.optimizer: \"adamw\" in the checkpoint, \"muon\" now"), "{error}");
}
