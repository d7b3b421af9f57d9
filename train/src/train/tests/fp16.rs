//! Half precision with a loss scale: learning, overflows, their cost, resuming, and the end at the floor.

use serde_json::Value;

use super::*;
use crate::config::{LossScaleConfig, NonFinite, Precision};

/// A run in fp16 whose first steps overflow, and whose scale grows again so soon that later ones do.
fn overflowing(corpora: &Corpora) -> Config {
    let mut config = corpora.config();
    config.train.precision = Precision::Fp16;
    config.train.loss_scale =
        LossScaleConfig { init: 65536.0 * 4096.0, growth_interval: 3, ..LossScaleConfig::default() };
    config
}

/// The lines of steps in `metrics.jsonl`.
fn steps(run_dir: &Path, corpora: &Corpora, config: &Config) -> (Outcome, Vec<Value>) {
    let path = run_dir.join("metrics.jsonl");
    let mut logging = Logging::silent();
    logging.add(kiln_metrics::logging::jsonl::Jsonl::open(&path, 0).expect("writable"));
    let setup = corpora.setup(config, run_dir, logging, Arc::default());
    let outcome = Trainer::new(setup, None).expect("a trainer").run().expect("a run");
    let text = fs::read_to_string(path).expect("written");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    (outcome, lines.filter(|line| line["kind"] == "step").collect())
}

#[test]
fn fp16_follows_f32_and_keeps_an_f32_master() {
    assert_follows_f32(FloatDType::F16, 40, 0.01, 13);
}

/// What only fp16 needs: gradients below its smallest number.
#[test]
fn the_scale_brings_back_gradients_that_vanish_without_it() {
    let mut config = toy_config(0.0);
    config.loader.batch_tokens = 1 << 30; // the unit of the loss that is differentiated
    let batch = [upload(&host_batch(&toy_rows(16)), &Device::flex())];
    let norm = |config: &Config, dtype| {
        let mut state = TrainState::new(config, &config.model, dtype, &Device::flex()).expect("a state");
        train_step(&mut state, &batch).grad_norm().into_scalar::<f32>()
    };
    config.train.loss_scale.init = 1.0;
    assert_eq!(norm(&config, FloatDType::F16), 0.0, "nothing is left of them");
    config.train.loss_scale.init = (1u32 << 30) as f32;
    let (scaled, whole) = (norm(&config, FloatDType::F16), norm(&config, FloatDType::F32));
    assert!((scaled / whole - 1.0).abs() < 0.01, "{scaled} instead of {whole}");
}

#[test]
fn an_overflow_costs_its_update_and_moves_neither_schedule_nor_weights() {
    let corpora = Corpora::new(60);
    let config = overflowing(&corpora);
    let dir = tempfile::tempdir().expect("a folder");
    let (outcome, steps) = steps(dir.path(), &corpora, &config);
    assert_eq!((outcome.ended, outcome.step, steps.len()), (Ended::Steps, 16, 16));

    let skipped: Vec<bool> = steps.iter().map(|step| step["skipped"] == true).collect();
    let n_skipped = skipped.iter().filter(|skipped| **skipped).count();
    assert!(skipped[0] && !skipped[15] && n_skipped < 14, "{skipped:?}");
    assert!(skipped.iter().skip_while(|skipped| **skipped).any(|skipped| *skipped), "also later: {skipped:?}");

    let rate = crate::optim::LearningRate::new(&config.optim, config.train.steps, config.model.d_model);
    let (mut updates, mut scale, mut good) = (0, config.train.loss_scale.init, 0);
    for (step, skipped) in steps.iter().zip(&skipped) {
        assert_eq!(step["loss_scale"], f64::from(scale), "{step}");
        let (lr, wanted) = (step["lr"].as_f64().expect("a rate"), rate.at(updates + 1));
        assert!((lr - wanted).abs() < 1e-15, "the schedule counts updates: {step}");
        assert_eq!(step["grad_norm"].is_null(), *skipped, "{step}");
        (scale, good) = match (skipped, good) {
            (true, _) => (scale / 2.0, 0),
            (false, 2) => (scale * 2.0, 0),
            (false, good) => (scale, good + 1),
        };
        updates += u64::from(!skipped);
        assert_eq!(step["updates"], updates, "{step}");
    }

    let state = last_snapshot(dir.path()).1.state;
    assert_eq!((state.step, state.skipped_steps, state.non_finite_steps), (16, n_skipped as u64, 0));
    assert_eq!(state.loss_scale, Some(crate::checkpoint::LossScale { scale, good_steps: good }));
    assert!(!dir.path().join("non-finite").exists(), "no failure");
}

#[test]
fn a_run_in_fp16_resumes_bit_for_bit_with_its_scale() {
    let corpora = Corpora::new(60);
    let config = overflowing(&corpora);
    let (whole, resumed) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (_, records) = corpora.run(&config, whole.path(), None, u64::MAX);
    let (_, mut parts) = corpora.run(&config, resumed.path(), None, 1);
    for stop_at in [9, u64::MAX] {
        let resume = corpora.find(&config, resumed.path(), &[]).expect("the same run");
        parts.extend(corpora.run(&config, resumed.path(), Some(resume), stop_at).1);
    }
    let of_steps = |records: &[String]| -> Vec<String> {
        records.iter().filter(|record| record.starts_with("StepMetrics")).cloned().collect()
    };
    assert_eq!(of_steps(&parts), of_steps(&records));
    assert_eq!(last_snapshot(resumed.path()).1, last_snapshot(whole.path()).1);
}

#[test]
fn an_overflow_at_the_floor_ends_the_run_and_names_the_tensor() {
    let corpora = Corpora::new(60);
    for policy in [NonFinite::Stop, NonFinite::Skip] {
        let mut config = overflowing(&corpora);
        config.train.loss_scale.floor = config.train.loss_scale.init / 2.0;
        config.train.non_finite = policy;
        let dir = tempfile::tempdir().expect("a folder");
        let setup = corpora.setup(&config, dir.path(), Logging::silent(), Arc::default());
        let error = format!("{:#}", Trainer::new(setup, None).expect("a trainer").run().expect_err("too high a floor"));
        for part in ["step 2: the gradient norm", "a loss scale of 134217728", "gradients that are not finite", "bf16"]
        {
            assert!(error.contains(part), "{part:?} is missing in {error}");
        }
        assert!(dir.path().join("non-finite/step-00000002.json").is_file(), "the batch is kept");
        assert!(Checkpoints::of_run(dir.path()).list().expect("readable").is_empty(), "nothing was saved");
    }
}
