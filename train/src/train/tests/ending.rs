//! Early stopping and averaged weights.

use super::*;
use crate::optim::Ema;
use crate::run::{TrainedModel, WhichWeights};

/// A run whose validations never improve by enough.
fn impatient(corpora: &Corpora) -> Config {
    let mut config = corpora.config();
    config.train = TrainConfig { validate_every: 2, patience: 2, min_improvement: 100.0, ..config.train };
    config
}

#[test]
fn a_run_without_improvement_ends_early_and_says_so() {
    let corpora = Corpora::new(60);
    let config = impatient(&corpora);
    let dir = corpora.dir.path().join("run");
    let (outcome, records) = corpora.run(&config, &dir, None, u64::MAX);
    // The first validation is the one that the two others are compared with.
    assert_eq!((outcome.ended, outcome.step), (Ended::NoImprovement, 6));
    let note = records.last().expect("records");
    assert!(note.starts_with("note 2 validations brought no improvement of loss by more than 100"), "{note}");
    let (_, saved) = last_snapshot(&dir);
    assert_eq!((saved.state.step, saved.state.patience.map(|it| it.validations)), (6, Some(2)));

    // It is finished, until it gets more patience.
    let resume = corpora.find(&config, &dir, &[]).expect("the same run");
    let (again, records) = corpora.run(&config, &dir, Some(resume), u64::MAX);
    assert_eq!((again.ended, again.step), (Ended::AlreadyFinished, 6));
    assert!(
        records[0].contains("reached train.patience at step 6; nothing to do; --set train.patience=4"),
        "{records:?}"
    );
    let mut patient = config.clone();
    patient.train.patience = 4;
    let resume = corpora.find(&patient, &dir, &[]).expect("patience is no other run");
    let (outcome, _) = corpora.run(&patient, &dir, Some(resume), u64::MAX);
    assert_eq!((outcome.ended, outcome.step), (Ended::NoImprovement, 10));

    let enough = TrainConfig { min_improvement: 0.0, validate_every: 8, ..config.train.clone() };
    let improving = Config { train: enough, ..config };
    let (outcome, _) = corpora.run(&improving, &corpora.dir.path().join("improving"), None, u64::MAX);
    assert_eq!(outcome.ended, Ended::Steps);
}

#[test]
fn a_stopped_run_keeps_its_patience_and_its_average_bit_for_bit() {
    let corpora = Corpora::new(60);
    let mut config = impatient(&corpora);
    config.train.patience = 4;
    config.train.ema_decay = 0.9;
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    let (outcome, _) = corpora.run(&config, &whole, None, u64::MAX);
    assert_eq!((outcome.ended, outcome.step), (Ended::NoImprovement, 10));

    let mut resume = None;
    for stop_at in [2, 4, 7, u64::MAX] {
        let mut config = config.clone();
        config.train.log_every = 1;
        corpora.run(&config, &parts, resume.take(), stop_at);
        resume = Some(corpora.find(&config, &parts, &[]).expect("the same run"));
    }
    let (wanted, mut found) = (last_snapshot(&whole).1, last_snapshot(&parts).1);
    assert!(wanted.ema.as_ref().is_some_and(|ema| ema != &wanted.weights), "an average that differs");
    found.files = wanted.files.clone(); // how often to log
    assert_eq!(found, wanted);
}

#[test]
fn the_average_follows_its_definition_in_f64() {
    let mut config = toy_config(0.0);
    config.train.ema_decay = 0.8;
    let device = Device::flex();
    let batch = [upload(&host_batch(&toy_rows(16)), &device)];
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let mut state = TrainState::new(&config, &config.model, dtype, &device).expect("a state");
        let mut wanted: Vec<f64> = weights(&state).into_iter().map(f64::from).collect();
        for step in 1..=60 {
            train_step(&mut state, &batch);
            let decay = f64::min(0.8, (1.0 + f64::from(step)) / (10.0 + f64::from(step)));
            let now = weights(&state);
            wanted.iter_mut().zip(now).for_each(|(mean, now)| *mean += (1.0 - decay) * (f64::from(now) - *mean));
        }
        let provenance = Provenance::default();
        let ema = state.snapshot(&provenance).expect("the CPU answers").ema.expect("an average");
        let found: Vec<f32> = ema.into_iter().flat_map(|tensor| tensor.values).collect();
        let furthest = found.iter().zip(&wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(furthest < 1e-6, "{dtype:?}: {furthest}");
        let trained = weights(&state);
        assert!(found.iter().zip(trained).any(|(a, b)| (a - b).abs() > 1e-3), "the average lags behind");
    }
}

#[test]
fn a_skipped_update_leaves_the_average_alone() {
    let mut config = toy_config(0.0);
    config.train.ema_decay = 0.5;
    let device = Device::flex();
    let mut state = TrainState::new(&config, &config.model, FloatDType::F32, &device).expect("a state");
    let batch = [upload(&host_batch(&toy_rows(16)), &device)];
    train_step(&mut state, &batch);
    let read = |ema: &Option<Ema>| {
        ema.as_ref().expect("an average").weights().clone().into_data().try_into_vec::<f32>().expect("f32")
    };
    let before = read(&state.ema);
    let (mut sums, gradients) = step::group_gradients(&state, &batch, 1);
    sums.loss = sums.loss * f32::NAN;
    step::update(&mut state, 1, sums, gradients).expect("one rank");
    assert!(read(&state.ema) == before);
    train_step(&mut state, &batch);
    assert!(read(&state.ema) == before, "train.non_finite = \"stop\" makes no update any more");
}

#[test]
fn validation_and_the_run_use_the_average_unless_told_otherwise() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    config.train.ema_decay = 0.95;
    let (averaged, trained) = (corpora.dir.path().join("averaged"), corpora.dir.path().join("trained"));
    let (outcome, _) = corpora.run(&config, &averaged, None, u64::MAX);
    config.train.use_ema = false;
    let (other, _) = corpora.run(&config, &trained, None, u64::MAX);

    let values = |run: &TrainedModel| run.weights().iter().flat_map(|it| it.values.clone()).collect::<Vec<f32>>();
    let last = |dir: &Path| Checkpoints::of_run(dir).resolve("last").expect("a checkpoint");
    let open = |dir: &Path, which| TrainedModel::find_weights(&last(dir), None, which).expect("a run");
    let (usual, by_name) = (open(&averaged, None), open(&averaged, Some(WhichWeights::Averaged)));
    assert_eq!((usual.which, values(&usual)), (WhichWeights::Averaged, values(&by_name)));
    let plain = open(&trained, None);
    assert_eq!(plain.which, WhichWeights::Trained);
    assert_eq!(values(&plain), values(&open(&averaged, Some(WhichWeights::Trained))), "use_ema changes no weight");
    assert_ne!(values(&usual), values(&plain));

    for (run, outcome) in [(&usual, &outcome), (&plain, &other)] {
        let model = run.load_model(FloatDType::F32, &Device::flex()).expect("a model");
        let valid = kiln_data::OnePass::new(corpora.source("valid", &config.loader), &config.loader).expect("batches");
        let smoothing = config.train.label_smoothing;
        let loss = crate::eval::validation_loss(&model, valid, smoothing, None, &Device::flex(), &Ranks::alone())
            .expect("a loss");
        let measured = outcome.validation.as_ref().expect("a validation").loss;
        assert_eq!(loss.loss, measured, "{:?}: the weights on disk are the weights that were measured", run.which);
    }
    fs::remove_file(last(&averaged).join(crate::checkpoint::EMA_FILE)).expect("an average");
    let error = TrainedModel::find_weights(&last(&averaged), None, None).expect_err("damaged");
    assert!(format!("{error:#}").contains("ema.safetensors is damaged: found no such file"), "{error:#}");

    let mut plain = corpora.config();
    plain.train.steps = 4;
    let without = corpora.dir.path().join("without");
    corpora.run(&plain, &without, None, u64::MAX);
    let error = TrainedModel::find_weights(&last(&without), None, Some(WhichWeights::Averaged));
    let error = format!("{:#}", error.expect_err("no average"));
    assert!(error.contains("train.ema_decay = 0; take --weights trained"), "{error}");
}
