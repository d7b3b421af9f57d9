//! Several ranks, in threads of this process and linked over loopback, against one rank that accumulates.

use std::thread;

use super::*;
use crate::distributed::{Link, World, free_port};

/// Trains on `size` ranks until the end, or until rank `stopper` has reported step `stop_at`. Returns the outcome and the
/// records of each rank.
fn run_on(
    size: usize,
    corpora: &Corpora,
    config: &Config,
    dir: &Path,
    stop: Option<(usize, u64)>,
) -> Vec<(Outcome, Vec<String>)> {
    let has_checkpoint = dir.join("checkpoints").is_dir();
    let worlds = World::on_loopback(size, free_port().expect("a port"));
    let train = |world: World| {
        let rank = world.rank;
        let link = Link::connect(&world, &mut |_| ()).expect("all ranks come");
        let allowed = ["train.grad_accum_steps".to_owned()];
        let resume = has_checkpoint.then(|| corpora.find(config, dir, &allowed).expect("the same run"));

        let (flag, records) = (Arc::new(AtomicBool::new(false)), Rc::new(RefCell::new(Vec::new())));
        let stop_at = stop.filter(|(stopper, _)| *stopper == rank).map_or(u64::MAX, |(_, step)| step);
        let mut logging = Logging::silent();
        logging.add(Recorder { records: records.clone(), stop: flag.clone(), stop_at });
        let ranks = Ranks::over(link, &Device::flex()).expect("ranks on CPUs");
        let setup = Setup { ranks, ..corpora.setup(config, dir, logging, flag) };

        let mut trainer = Trainer::new(setup, resume).expect("a trainer");
        let outcome = trainer.run().expect("a run");
        drop(trainer);
        (outcome, Rc::try_unwrap(records).expect("the trainer is gone").into_inner())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| train(world))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// The last checkpoint without what says how often a rank accumulates.
fn snapshot(dir: &Path) -> Snapshot {
    Snapshot { files: Vec::new(), ..last_snapshot(dir).1 }
}

#[test]
fn n_ranks_take_the_steps_of_n_accumulated_micro_batches_bit_for_bit() {
    let corpora = Corpora::new(200);
    for (size, is_sharded) in [(2, true), (3, true), (4, true), (2, false)] {
        let name = format!("{size}-{is_sharded}");
        let (one, many) = (corpora.dir.path().join(format!("one-{name}")), corpora.dir.path().join(name));
        let mut config = corpora.config();
        config.train.grad_accum_steps = size;
        let (_, wanted) = corpora.run(&config, &one, None, u64::MAX);

        (config.train.grad_accum_steps, config.train.shard_optimizer) = (1, is_sharded);
        let found = run_on(size, &corpora, &config, &many, None);
        for (rank, (outcome, records)) in found.iter().enumerate() {
            assert_eq!(outcome.ended, Ended::Steps, "{size} ranks: rank {rank}");
            assert_eq!(records, &wanted, "{size} ranks: losses, norms, tokens and scores of rank {rank}");
        }
        assert_eq!(snapshot(&many), snapshot(&one), "{size} ranks, sharded: {is_sharded}");
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let corpora = Corpora::new(200);
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    let with_accum = |n: usize| {
        let mut config = corpora.config();
        config.train.grad_accum_steps = n;
        config
    };
    corpora.run(&with_accum(4), &whole, None, u64::MAX);

    // Any rank may ask to stop; all end after the same step, and the step is saved once.
    let stopped = run_on(4, &corpora, &with_accum(1), &parts, Some((2, 6)));
    let steps: Vec<_> = stopped.iter().map(|(outcome, _)| (outcome.ended, outcome.step)).collect();
    assert_eq!(steps, [(Ended::Stopped, 7); 4]);
    assert_eq!(snapshot(&parts).state.step, 7);

    let resume = corpora.find(&with_accum(4), &parts, &["train.grad_accum_steps".into()]).expect("the same run");
    corpora.run(&with_accum(4), &parts, Some(resume), 10);
    run_on(4, &corpora, &with_accum(1), &parts, None);
    assert_eq!(snapshot(&parts), snapshot(&whole), "4 ranks, then 1, then 4 again");
}

#[test]
fn mixtures_of_ranks_and_micro_batches_agree_to_rounding() {
    let corpora = Corpora::new(200);
    let mut config = corpora.config();
    config.train.steps = 6;
    for (splits, accum_of_one, accum_of_many) in [(1, 4, 2), (2, 2, 1)] {
        let [one, many] = ["one", "many"].map(|name| corpora.dir.path().join(format!("{name}-{splits}")));
        config.train.split_batches = splits;
        config.train.grad_accum_steps = accum_of_one;
        let (_, wanted) = corpora.run(&config, &one, None, u64::MAX);
        config.train.grad_accum_steps = accum_of_many;
        let found = run_on(2, &corpora, &config, &many, None);

        // Adam turns the rounding of a gradient near zero into a step, so weights are not compared.
        let losses = |records: &[String]| -> Vec<f64> {
            let loss = |record: &String| record.split("loss: ").nth(1)?.split(',').next()?.parse().ok();
            records.iter().filter_map(loss).collect()
        };
        let (wanted, found) = (losses(&wanted), losses(&found[1].1));
        assert_eq!((wanted.len(), found.len()), (6, 6));
        for (wanted, found) in wanted.iter().zip(&found) {
            assert!((found / wanted - 1.0).abs() < 1e-5, "{wanted} and {found}");
        }
        let (one, many) = (snapshot(&one).state, snapshot(&many).state);
        assert_eq!((one.micro_steps, one.position), (many.micro_steps, many.position));
    }
}
