//! Master weights and moments in bf16, rounded stochastically: exact on resume and over ranks, stored in half the bytes, and learning what
//! f32 ones learn.

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use super::optimizers::assert_exact;
use super::*;
use crate::checkpoint::OPTIMIZER_FILE;
use crate::config::{MasterWeights, Precision};

fn in_bf16(mut config: Config) -> Config {
    config.train.master_weights = MasterWeights::Bf16;
    config
}

/// The types of the tensors in a file of a checkpoint.
fn types_in(path: &Path) -> Vec<Dtype> {
    let bytes = fs::read(path).expect("tensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("a file of tensors");
    tensors.iter().map(|(_, view)| view.dtype()).collect()
}

#[test]
fn rounded_masters_are_exact_on_resume_and_over_ranks() {
    let corpora = Corpora::new(200);
    let mut config = in_bf16(corpora.config());
    config.train.precision = Precision::Bf16;
    // Two groups of parameters, so that sections begin within a rank's slice.
    config.optim.tuned_width = 8;
    let last = assert_exact(&corpora, &config);

    let states = last.optimizer.iter().flat_map(|state| &state.tensors);
    let numbers = || last.weights.iter().chain(states.clone()).flat_map(|tensor| &tensor.values);
    assert!(numbers().all(|x| x.to_bits() & 0xffff == 0), "bf16 has every number");
    assert!(last.optimizer_state("v").iter().any(|v| v.values.iter().any(|x| *x > 0.0)), "moments were kept");
    let ema = last.ema.expect("an average");
    assert!(ema.iter().any(|tensor| tensor.values.iter().any(|x| x.to_bits() & 0xffff != 0)), "the average is f32");
}

#[test]
fn a_run_on_the_cpu_in_f32_keeps_a_rounded_state_and_saves_it_in_bf16() {
    let corpora = Corpora::new(60);
    let mut config = in_bf16(corpora.config());
    config.train.freeze = vec!["encoder".into()];
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    corpora.run(&config, &whole, None, u64::MAX);
    let (path, wanted) = last_snapshot(&whole);

    assert_eq!(wanted.state.master_weights, MasterWeights::Bf16);
    assert!(types_in(&path.join(OPTIMIZER_FILE)).iter().all(|of| *of == Dtype::BF16));
    let types = types_in(&path.join(MODEL_FILE));
    let n_frozen = types.iter().filter(|of| **of == Dtype::F32).count();
    assert!(n_frozen == wanted.state.frozen.len() && n_frozen < types.len(), "frozen weights stay as they were");

    corpora.run(&config, &parts, None, 6);
    let resume = corpora.find(&config, &parts, &[]).expect("the same run");
    corpora.run(&config, &parts, Some(resume), u64::MAX);
    assert_eq!(last_snapshot(&parts).1, wanted);
}

#[test]
fn a_run_goes_on_with_the_other_choice_only_if_that_is_allowed() {
    let corpora = Corpora::new(60);
    for (before, after) in [(MasterWeights::F32, MasterWeights::Bf16), (MasterWeights::Bf16, MasterWeights::F32)] {
        let with = |master_weights| {
            let mut config = corpora.config();
            config.train.master_weights = master_weights;
            config
        };
        let dir = corpora.dir.path().join(format!("{before:?}"));
        corpora.run(&with(before), &dir, None, 6);
        let error = format!("{:#}", corpora.find(&with(after), &dir, &[]).expect_err("another choice"));
        assert!(error.contains("train.master_weights: \"") && error.contains("--allow KEY"), "{error}");

        let resume = corpora.find(&with(after), &dir, &["train.master_weights".into()]).expect("it is allowed");
        corpora.run(&with(after), &dir, Some(resume), u64::MAX);
        let (path, last) = last_snapshot(&dir);
        assert_eq!((last.state.step, last.state.master_weights), (16, after));
        let wanted = if after == MasterWeights::Bf16 { Dtype::BF16 } else { Dtype::F32 };
        assert!(types_in(&path.join(MODEL_FILE)).iter().all(|of| *of == wanted), "from {before:?} to {after:?}");
    }
}

#[test]
fn two_hundred_steps_learn_what_f32_masters_learn() {
    let batch = [upload(&host_batch(&toy_rows(16)), &Device::flex())];
    let losses = |config: &Config, dtype| -> Vec<f32> {
        let mut state = TrainState::new(config, &config.model, dtype, &Device::flex()).expect("a state");
        (0..200).map(|_| train_step(&mut state, &batch).loss_sum.into_scalar::<f32>()).collect()
    };
    let mut config = toy_config(0.0);
    config.optim.lr = 3e-3;
    for dtype in [FloatDType::BF16, FloatDType::F32] {
        let (exact, rounded) = (losses(&config, dtype), losses(&in_bf16(config.clone()), dtype));
        let last = |losses: &[f32]| losses[180..].iter().sum::<f32>() / 20.0;
        let (exact, rounded, first) = (last(&exact), last(&rounded), exact[0]);
        println!("{dtype:?}: {first} at first, {exact} with f32 masters, {rounded} with bf16 ones");
        assert!(exact < 0.7 * first && (rounded / exact - 1.0).abs() < 0.03, "{dtype:?}: {first}, {exact}, {rounded}");
    }
}
