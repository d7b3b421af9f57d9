//! Parameters that are not trained.

use std::collections::BTreeMap;

use super::*;
use crate::checkpoint::NamedTensor;

fn by_name(tensors: &[NamedTensor]) -> BTreeMap<String, Vec<f32>> {
    tensors.iter().map(|tensor| (tensor.name.clone(), tensor.values.clone())).collect()
}

fn provenance() -> Provenance {
    Provenance::default()
}

fn snapshot(state: &TrainState) -> Snapshot {
    state.snapshot(&provenance()).expect("the CPU answers")
}

/// Whether the parameter is one of those that the tests freeze.
fn is_chosen(name: &str) -> bool {
    name.contains("embedding") || name.contains("layers.0.self_attention.")
}

fn freezing(mut config: Config) -> Config {
    config.train.freeze = vec!["*embedding*".into(), "layers.0.self_attention".into()];
    config.optim.weight_decay = 0.1;
    config
}

#[test]
fn frozen_parameters_keep_their_bits_and_the_others_train_as_ever() {
    let device = Device::flex();
    let config = freezing(toy_config(0.0));
    let batch = [upload(&host_batch(&toy_rows(16)), &device)];
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let mut state = TrainState::new(&config, &config.model, dtype, &device).expect("a state");
        let before = by_name(&snapshot(&state).weights);
        for _ in 0..3 {
            train_step(&mut state, &batch);
        }
        let after = snapshot(&state);
        let weights = by_name(&after.weights);
        assert_eq!(before.keys().collect::<Vec<_>>(), weights.keys().collect::<Vec<_>>());
        let n_chosen = before.keys().filter(|name| is_chosen(name)).count();
        assert!(n_chosen >= 9 && n_chosen < before.len(), "{n_chosen}");
        for (name, values) in &before {
            assert_eq!(&weights[name] == values, is_chosen(name), "{dtype:?}: {name}");
        }

        // Moments exist for the other parameters only.
        let moments = by_name(after.optimizer_state("m"));
        assert!(moments.keys().all(|name| !is_chosen(name)));
        assert_eq!(moments.len() + n_chosen, before.len());
        assert_eq!(after.state.frozen.len(), n_chosen);
        let state = state.optimizer.state();
        let n_trained: usize = moments.values().map(Vec::len).sum();
        let gaps = 256 * moments.len();
        let m = state.named[0].as_ref().expect("a whole state");
        assert!(m.dims()[0] < n_trained + gaps && state.master.dims() == m.dims());
    }
}

#[test]
fn the_others_get_the_gradients_that_they_get_without_freezing() {
    let device = Device::flex();
    let all = toy_config(0.0);
    let some = freezing(all.clone());
    let batch = [upload(&host_batch(&toy_rows(16)), &device)];
    let gradients = |config: &Config, checkpointing| {
        let state = TrainState::new(config, &config.model, FloatDType::F32, &device).expect("a state");
        let state = state.with_checkpointing(checkpointing).expect("Kiln's model has the choice");
        let (_, gradients) = step::group_gradients(&state, &batch, 0);
        by_name(&crate::checkpoint::named_tensors(state.optimizer.table(), &gradients.0.values.into_data()))
    };
    for checkpointing in
        [ActivationCheckpointing::Off, ActivationCheckpointing::Selective, ActivationCheckpointing::Layer]
    {
        let (wanted, found) = (gradients(&all, checkpointing), gradients(&some, checkpointing));
        assert!(found.len() < wanted.len());
        for (name, gradient) in &found {
            assert_eq!(gradient, &wanted[name], "{checkpointing:?}: {name}");
        }
    }
}

#[test]
fn a_run_with_frozen_parameters_resumes_bit_for_bit_on_any_number_of_ranks() {
    let corpora = Corpora::new(200);
    let mut config = freezing(corpora.config());
    config.train.ema_decay = 0.9;
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    let (_, records) = corpora.run(&config, &whole, None, u64::MAX);
    let note = records.iter().find(|record| record.contains("parameters are trained")).expect("a note");
    assert!(note.ends_with("tensors are frozen (train.freeze)"), "{note}");

    corpora.run(&config, &parts, None, 5);
    let (mut on_two, allowed) = (config.clone(), ["train.grad_accum_steps".to_owned()]);
    on_two.train.grad_accum_steps = 1;
    ranks::run_on(2, &corpora, &on_two, &parts, Some((1, 9)));
    let resume = corpora.find(&config, &parts, &allowed).expect("the same run");
    corpora.run(&config, &parts, Some(resume), u64::MAX);
    let (wanted, mut found) = (last_snapshot(&whole).1, last_snapshot(&parts).1);
    found.files = wanted.files.clone();
    assert_eq!(found, wanted);

    // Frozen weights have no average; the averaged model has them as they are.
    let last = Checkpoints::of_run(&whole).resolve("last").expect("a checkpoint");
    let (trained, averaged) =
        (by_name(&wanted.weights), by_name(&crate::checkpoint::read_average(&last).expect("an average").weights));
    for (name, values) in &trained {
        assert_eq!(&averaged[name] == values, is_chosen(name), "{name}");
    }

    // A run keeps what it freezes, whatever is allowed.
    let mut other = config.clone();
    other.train.freeze.pop();
    let error = corpora.find(&other, &parts, &[]).expect_err("another run");
    assert!(error.to_string().contains("train.freeze"), "{error}");
    let resume = corpora.find(&other, &parts, &["train.freeze".into()]).expect("let through");
    let module = initial(&other);
    let dtype = FloatDType::F32;
    let start = Start { config: &other, groups: &Groups::of(&other, dtype), dtype };
    let error = TrainState::restore(start, &resume.snapshot, module).expect_err("other parameters");
    assert!(error.to_string().contains("a run keeps what it freezes"), "{error}");
}

fn initial(config: &Config) -> Transformer {
    config.model.init(1, FloatDType::F32, &Device::flex().autodiff())
}

#[test]
fn a_pattern_that_matches_nothing_ends_the_run_before_it_begins() {
    let mut config = toy_config(0.0);
    config.train.freeze = vec!["decoder.layer.0".into()];
    let error = TrainState::new(&config, &config.model, FloatDType::F32, &Device::flex()).expect_err("no match");
    assert!(error.to_string().contains("did you mean \"decoder.layers.0\"?"), "{error}");
    assert!(error.downcast_ref::<crate::config::ConfigError>().is_some(), "exit code 2");
}
