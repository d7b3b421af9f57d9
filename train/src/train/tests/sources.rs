//! What a run measures of the sources of its mixture.

use std::collections::BTreeMap;
use std::thread;

use kiln_data::{MixPart, MixParts, MixShares, MixSource, Rank};
use kiln_ranks::{Link, World, free_port};

use super::*;
use crate::config::MixEntry;
use crate::metrics::{SourceLoss, StepMetrics};

const NAMES: [&str; 2] = ["train", "valid"];

/// Both files of the corpora, in equal shares.
fn mixture(corpora: &Corpora, config: &Config) -> Arc<MixSource> {
    let part = |name: &str| {
        let cache = corpora.dir.path().join(format!("mixed.{name}.tokens"));
        let corpus = Corpora::corpus(&corpora.dir.path().join(format!("{name}.jsonl")));
        let prepared = prepare_pairs(&cache, &corpus, &corpora.tokenizers, 1, &mut |_| {}).expect("a cache");
        let source = PairSource::new(prepared.cache, &corpora.tokenizers, &config.loader).expect("a source");
        MixPart { name: name.into(), source }
    };
    let parts = MixParts::Pairs(NAMES.map(part).into());
    Arc::new(MixSource::new(parts, &MixShares::Weights(vec![1.0, 1.0]), &config.loader).expect("a mixture"))
}

/// A run that reports its sources, or one that does not know of them.
fn config(corpora: &Corpora, is_mixed: bool) -> Config {
    let mut config = corpora.config();
    (config.train.validate_every, config.train.steps) = (0, 7);
    let entry = |name: &str| MixEntry { name: name.into(), train: vec!["rows.jsonl".into()], ..MixEntry::default() };
    config.data.mix = if is_mixed { NAMES.map(entry).into() } else { Vec::new() };
    config
}

struct Steps(Rc<RefCell<Vec<StepMetrics>>>);

impl Sink for Steps {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        if let Record::Step(step) = record {
            self.0.borrow_mut().push((*step).clone());
        }
        Ok(())
    }
}

/// Trains on one rank, or as `world` says. Returns the steps and the last checkpoint.
fn run(corpora: &Corpora, config: &Config, dir: &Path, world: Option<World>) -> Vec<StepMetrics> {
    let steps = Rc::new(RefCell::new(Vec::new()));
    let mut logging = Logging::silent();
    logging.add(Steps(steps.clone()));
    let ranks = match world {
        Some(world) => {
            let link = Link::connect(&world, &mut |_| ()).expect("all ranks come");
            Ranks::over(link, &Device::flex()).expect("ranks on CPUs")
        }
        None => Ranks::alone(),
    };
    let setup = Setup { ranks, train: mixture(corpora, config), ..corpora.setup(config, dir, logging, Arc::default()) };
    let mut trainer = Trainer::new(setup, None).expect("a trainer");
    trainer.run().expect("a run");
    drop(trainer);
    Rc::try_unwrap(steps).expect("the trainer is gone").into_inner()
}

fn losses(step: &StepMetrics) -> BTreeMap<String, SourceLoss> {
    step.sources.losses().map(|(name, loss)| (name.to_owned(), loss)).collect()
}

/// The losses of the sources are parts of the loss of the step.
#[track_caller]
fn assert_parts(step: &StepMetrics) {
    let losses = losses(step);
    let labels: u64 = losses.values().map(|loss| loss.labels).sum();
    let sum: f64 = losses.values().map(|loss| loss.nll * loss.labels as f64).sum();
    assert!(losses.len() == 2 && labels == step.target_tokens, "{step:?}");
    assert!((sum / labels as f64 - step.nll).abs() < 1e-5 * step.nll, "{step:?}");
}

#[test]
fn sources_have_losses_of_their_own_and_training_keeps_its_bits() {
    let corpora = Corpora::new(60);
    let (with, without) = (corpora.dir.path().join("with"), corpora.dir.path().join("without"));
    let steps = run(&corpora, &config(&corpora, true), &with, None);
    let plain = run(&corpora, &config(&corpora, false), &without, None);
    assert_eq!((steps.len(), plain.len()), (7, 7));
    steps.iter().for_each(assert_parts);
    for (step, plain) in steps.iter().zip(&plain) {
        assert!(plain.sources.losses().next().is_none(), "{plain:?}");
        let numbers = |step: &StepMetrics| (step.loss, step.nll, step.grad_norm, step.target_tokens);
        assert_eq!(numbers(step), numbers(plain), "bit for bit");
    }
    let weights = |dir: &Path| {
        let snapshot = last_snapshot(dir).1;
        (snapshot.weights, snapshot.optimizer)
    };
    assert_eq!(weights(&with), weights(&without));

    // The first step, computed by the rows of each source alone.
    let config = config(&corpora, true);
    let source = mixture(&corpora, &config);
    let rank = Rank { group_size: config.train.grad_accum_steps, ..Rank::default() };
    let start = kiln_data::Position::default();
    let mut loader = kiln_data::Loader::for_rank(source, &config.loader, config.seed, start, rank).expect("a loader");
    let mut free = config.clone();
    free.model.dropout = 0.0;
    let state = TrainState::new(&free, &free.model, FloatDType::F32, &Device::flex()).expect("a state");
    let (mut sums, mut dropped) = ([[0.0; 2]; 2], [0; 2]);
    for _ in 0..config.train.grad_accum_steps {
        let batch = loader.next_batch().expect("a batch");
        for (row, source) in batch.split(batch.batch_size).iter().zip(&batch.row_sources) {
            let losses = state.model.loss(&upload(row, &Device::flex()), 0.1, None);
            let value = |tensor: burn::tensor::Tensor<1>| f64::from(tensor.into_scalar::<f32>());
            let [nll, labels] = &mut sums[usize::from(*source)];
            (*nll, *labels) = (*nll + value(losses.nll_sum), *labels + value(losses.n_labels));
            dropped[usize::from(*source)] += 1;
        }
    }
    assert!(dropped.iter().all(|rows| *rows > 0));
    free.train.steps = 1;
    let first = run(&corpora, &free, &corpora.dir.path().join("first"), None).remove(0);
    for (name, [nll, labels]) in NAMES.iter().zip(sums) {
        let found = losses(&first)[*name];
        assert_eq!(found.labels as f64, labels, "{name}");
        assert!((found.nll - nll / labels).abs() < 1e-5 * found.nll, "{name}: {found:?}, wanted {}", nll / labels);
    }
}

#[test]
fn micro_batches_and_ranks_report_the_sources_that_one_batch_reports() {
    let corpora = Corpora::new(60);
    let mut config = config(&corpora, true);
    config.model.dropout = 0.0;
    config.train.grad_accum_steps = 2;
    let dir = |name: &str| corpora.dir.path().join(name);
    let whole = run(&corpora, &config, &dir("whole"), None);
    config.train.split_batches = 3;
    let split = run(&corpora, &config, &dir("split"), None);
    (config.train.split_batches, config.train.grad_accum_steps) = (1, 1);
    let worlds = World::on_loopback(2, free_port().expect("a port"));
    let (of_ranks, local) = (dir("ranks"), &dir("local"));
    let on_ranks = |config: &Config, dir: &Path, worlds: Vec<World>| -> Vec<Vec<StepMetrics>> {
        thread::scope(|scope| {
            let train = |world| scope.spawn(|| run(&corpora, config, dir, Some(world)));
            let threads: Vec<_> = worlds.into_iter().map(train).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    };
    let both = on_ranks(&config, &of_ranks, worlds);

    for found in [&split, &both[0], &both[1]] {
        assert_eq!(found.len(), whole.len());
        for (found, wanted) in found.iter().zip(&whole) {
            assert_parts(found);
            for (name, wanted) in losses(wanted) {
                let found = losses(found)[&name];
                assert_eq!(found.labels, wanted.labels);
                assert!((found.nll - wanted.nll).abs() < 1e-4 * wanted.nll, "{name}: {found:?}, wanted {wanted:?}");
            }
        }
    }

    // Replicas that take steps alone report the sources of all, too.
    config.train.sync_every = 3;
    let replicas = on_ranks(&config, local, World::on_loopback(2, free_port().expect("a port")));
    assert_eq!(losses(&replicas[0][5]), losses(&replicas[1][5]));
    replicas[0].iter().for_each(assert_parts);
}
