//! Several ranks, in threads of this process and linked over loopback, against one rank that accumulates.

use std::num::NonZeroUsize;
use std::thread;

use kiln_data::{Loader, Rank};
use kiln_ranks::{Link, World, free_port};

use super::*;
use crate::checkpoint::NamedTensor;

/// Trains on `size` ranks until the end, or until rank `stopper` has reported step `stop_at`. Returns the outcome and the
/// records of each rank.
pub(super) fn run_on(
    size: usize,
    corpora: &Corpora,
    config: &Config,
    dir: &Path,
    stop: Option<(usize, u64)>,
) -> Vec<(Outcome, Vec<String>)> {
    run_in_pieces(size, corpora, config, dir, stop, None)
}

/// Trains as [`run_on`]; slices travel in pieces of `piece_bytes`.
fn run_in_pieces(
    size: usize,
    corpora: &Corpora,
    config: &Config,
    dir: &Path,
    stop: Option<(usize, u64)>,
    piece_bytes: Option<NonZeroUsize>,
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
        let ranks = Ranks::over(link, &Device::flex()).expect("ranks on CPUs").in_pieces_of(piece_bytes);
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
pub(super) fn snapshot(dir: &Path) -> Snapshot {
    Snapshot { files: Vec::new(), ..last_snapshot(dir).1 }
}

#[test]
fn n_ranks_take_the_steps_of_n_accumulated_micro_batches_bit_for_bit() {
    let corpora = Corpora::new(200);
    for (size, is_sharded) in [(2, true), (3, true), (4, true), (8, true), (2, false)] {
        let name = format!("{size}-{is_sharded}");
        let (one, many) = (corpora.dir.path().join(format!("one-{name}")), corpora.dir.path().join(name));
        let mut config = corpora.config();
        config.train.grad_accum_steps = size;
        config.train.ema_decay = 0.9;
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
fn pieces_of_any_size_change_no_bit() {
    let corpora = Corpora::new(200);
    // Gradients by slices, whole weights now and then, and numbers that are too few for slices.
    let (sliced, few) = (corpora.config(), of_one_norm(&corpora));
    for (name, size, config) in [("sliced", 2, sliced), ("weights", 3, local_steps(&corpora)), ("few", 3, few)] {
        let dir = |pieces: &str| corpora.dir.path().join(format!("{name}-{pieces}"));
        let whole = run_on(size, &corpora, &config, &dir("whole"), None);
        for bytes in [2050, 30_001, 1 << 30] {
            let cut = dir(&bytes.to_string());
            let found = run_in_pieces(size, &corpora, &config, &cut, None, NonZeroUsize::new(bytes));
            // Slow machines get a line about the time left.
            let is_result = |record: &&String| !record.starts_with("note about ");
            let of_rank = |records: &[String]| records.iter().filter(is_result).cloned().collect::<Vec<_>>();
            let records =
                |of: &[(Outcome, Vec<String>)]| of.iter().map(|(_, records)| of_rank(records)).collect::<Vec<_>>();
            assert_eq!(records(&found), records(&whole), "{name}: pieces of {bytes} bytes");
            assert_eq!(snapshot(&cut), snapshot(&dir("whole")), "{name}: pieces of {bytes} bytes");
        }
    }
}

/// A run that trains only the last norm of the decoder: fewer parameters than ranks.
fn of_one_norm(corpora: &Corpora) -> Config {
    let mut config = corpora.config();
    config.train.freeze = ["*embedding*", "encoder", "decoder.layers"].map(String::from).into();
    config.train.ema_decay = 0.9;
    config
}

#[test]
fn ranks_that_cannot_share_their_few_numbers_take_the_same_steps() {
    let corpora = Corpora::new(200);
    for (size, is_sharded) in [(3, true), (4, false)] {
        let (one, many) = (corpora.dir.path().join(format!("one-{size}")), corpora.dir.path().join(size.to_string()));
        let mut config = of_one_norm(&corpora);
        config.train.grad_accum_steps = size;
        let (_, wanted) = corpora.run(&config, &one, None, u64::MAX);
        assert!(snapshot(&one).optimizer_state("m").len() < size, "the ranks could share them");

        (config.train.grad_accum_steps, config.train.shard_optimizer) = (1, is_sharded);
        for (rank, (_, records)) in run_on(size, &corpora, &config, &many, None).iter().enumerate() {
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

/// A run of two devices that exchange their weights after every fifth step.
fn local_steps(corpora: &Corpora) -> Config {
    let mut config = corpora.config();
    config.train.sync_every = 5;
    config
}

#[test]
fn replicas_train_alone_and_get_the_mean_of_their_weights() {
    let corpora = Corpora::new(200);
    let dir = corpora.dir.path().join("replicas");
    let mut config = local_steps(&corpora);
    (config.train.steps, config.train.sync_every) = (6, 10);
    (config.optim.outer_lr, config.optim.outer_momentum) = (1.0, 0.0);
    config.train.grad_accum_steps = 1;
    run_on(2, &corpora, &config, &dir, None);

    let nothing = Provenance::default();
    let values = |mut tensors: Vec<NamedTensor>| -> Vec<f32> {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors.into_iter().flat_map(|tensor| tensor.values).collect()
    };
    // The same by hand: each rank's batches on a model of its own.
    let alone = |rank: usize| {
        let part = Rank { rank, world_size: 2, group_size: 2 };
        let source = corpora.source("train", &config.loader);
        let mut loader =
            Loader::for_rank(source, &config.loader, config.seed, Position::default(), part).expect("a loader");
        let shape = &snapshot(&dir).model;
        let mut state = TrainState::new(&config, shape, FloatDType::F32, &Device::flex()).expect("a state");
        for _ in 0..config.train.steps {
            let batch = upload(&loader.next_batch().expect("a batch"), &Device::flex());
            step::train_step_with(&mut state, &[(rank as u64, &batch)], 2, step::compute_gradients).expect("a step");
        }
        values(state.snapshot(&nothing).expect("the CPU answers").weights)
    };
    let found = values(snapshot(&dir).weights);
    let (one, other) = (alone(0), alone(1));
    let largest = one.iter().zip(&other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(largest > 1e-3, "the replicas have learned the same");
    assert_eq!(found.len(), one.len());
    for ((found, one), other) in found.iter().zip(&one).zip(&other) {
        assert!((found - (one + other) / 2.0).abs() < 1e-6, "{found}: {one} and {other}");
    }
}

#[test]
fn replicas_that_were_stopped_end_bit_for_bit_the_same() {
    let corpora = Corpora::new(200);
    let config = local_steps(&corpora);
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    let found = run_on(2, &corpora, &config, &whole, None);
    assert_eq!(found[0].1, found[1].1, "both report the measures of both");
    let wanted = snapshot(&whole);
    let replicas = wanted.replicas.as_ref().expect("replicas");
    assert_eq!((wanted.state.step, wanted.state.replicas.len(), replicas.other_states.len()), (16, 2, 1));
    assert_ne!(replicas.other_states[0], wanted.optimizer, "a state of their own");

    // A stop waits until the weights are the same: step 7 was asked for.
    let stopped = run_on(2, &corpora, &config, &parts, Some((1, 6)));
    let steps: Vec<_> = stopped.iter().map(|(outcome, _)| (outcome.ended, outcome.step)).collect();
    assert_eq!(steps, [(Ended::Stopped, 10); 2]);
    run_on(2, &corpora, &config, &parts, None);
    assert_eq!(snapshot(&parts), wanted);
}

#[test]
fn one_device_takes_outer_steps_and_resumes_bit_for_bit() {
    let corpora = Corpora::new(200);
    for optimizer in [OptimizerChoice::Adamw, OptimizerChoice::Muon] {
        let mut config = local_steps(&corpora);
        config.train.optimizer = optimizer;
        let [plain, mean, whole, parts] =
            ["plain", "mean", "whole", "parts"].map(|run| corpora.dir.path().join(format!("{optimizer:?}-{run}")));
        corpora.run(&config, &whole, None, u64::MAX);
        let wanted = snapshot(&whole);
        let momentum = &wanted.replicas.as_ref().expect("the outer momentum").momentum;
        assert!(momentum.iter().flat_map(|tensor| &tensor.values).any(|value| *value != 0.0));

        // The rest of a period is made before the run stops: step 7 was asked for.
        let (outcome, _) = corpora.run(&config, &parts, None, 6);
        assert_eq!((outcome.ended, outcome.step), (Ended::Stopped, 10));
        let resume = corpora.find(&config, &parts, &[]).expect("the same run");
        corpora.run(&config, &parts, Some(resume), u64::MAX);
        assert_eq!(snapshot(&parts), wanted);

        // The mean of one replica is the replica.
        (config.optim.outer_lr, config.optim.outer_momentum, config.train.steps) = (1.0, 0.0, 6);
        corpora.run(&config, &mean, None, u64::MAX);
        let found = snapshot(&mean).weights;
        config.train.sync_every = 1;
        corpora.run(&config, &plain, None, u64::MAX);
        // The gradient of a bias of keys is rounding alone, which AdamW makes a step of.
        let plain = snapshot(&plain).weights;
        let pairs = found.iter().zip(&plain).filter(|(found, _)| !found.name.ends_with("bias"));
        for (found, wanted) in pairs {
            let largest = found.values.iter().zip(&wanted.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(largest < 2e-4, "{}: {largest}", found.name);
        }
    }
}

#[test]
fn replicas_with_few_numbers_are_stopped_and_go_on_too() {
    let corpora = Corpora::new(200);
    let mut config = of_one_norm(&corpora);
    (config.train.sync_every, config.train.ema_decay, config.train.grad_accum_steps) = (5, 0.0, 1);
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    let found = run_on(3, &corpora, &config, &whole, None);
    assert_eq!(found[0].1, found[2].1, "all report the measures of all");
    let wanted = snapshot(&whole);
    assert!(wanted.optimizer_state("m").len() < 3, "the replicas could share them");
    let momentum = &wanted.replicas.as_ref().expect("replicas").momentum;
    assert!(momentum.iter().flat_map(|tensor| &tensor.values).any(|value| *value != 0.0));

    run_on(3, &corpora, &config, &parts, Some((1, 6)));
    assert_eq!(snapshot(&parts).state.step, 10);
    run_on(3, &corpora, &config, &parts, None);
    assert_eq!(snapshot(&parts), wanted);
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
