//! Adapters (LoRA): they alone are trained, and runs with them resume.

use kiln_kernels::optim::ALIGNMENT;
use kiln_model::{LoraConfig, LoraTarget, is_adapter};

use super::*;
use crate::checkpoint::{NamedTensor, Weights, initial_tensors, read_weights};
use crate::run::{TrainedModel, write_run};

fn with_adapters(mut config: Config) -> Config {
    use LoraTarget::{Down, Key, Output, Query, Up, Value};
    config.model.lora =
        LoraConfig { rank: 2, alpha: 4.0, dropout: 0.1, targets: vec![Query, Key, Value, Output, Up, Down] };
    config
}

/// The weights of a model, with the second matrix of each adapter away from zero.
fn weights_of(config: &Config) -> Vec<NamedTensor> {
    let mut weights = initial_tensors(&config.model, 5);
    for tensor in weights.iter_mut().filter(|tensor| is_adapter(&tensor.name) && tensor.name.ends_with(".b")) {
        tensor.values.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32 / 20.0 - 0.15);
    }
    weights
}

fn begin(config: &Config, dtype: FloatDType) -> TrainState {
    let module: Transformer = config.model.init(1, FloatDType::F32, &Device::flex().autodiff());
    let groups = Groups::of(config, dtype);
    let start = Start { config, groups: &groups, dtype };
    TrainState::begin_from(start, &config.model, module, &weights_of(config)).expect("a state")
}

fn snapshot(state: &TrainState) -> Snapshot {
    let nothing = Provenance::default();
    state.snapshot(&nothing).expect("the CPU answers")
}

#[test]
fn only_adapters_are_trained_and_only_they_have_moments() {
    let mut config = with_adapters(toy_config(0.1));
    (config.model.n_encoder_layers, config.model.n_decoder_layers) = (2, 2);
    let batch = [upload(&host_batch(&toy_rows(16)), &Device::flex())];
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let mut state = begin(&config, dtype);
        let before = weights_of(&config);
        let losses: Vec<f32> = (0..8).map(|_| train_step(&mut state, &batch).loss_sum.into_scalar()).collect();
        assert!(losses[7] < losses[0], "{losses:?}");

        let after = snapshot(&state);
        for tensor in &before {
            let found = after.weights.iter().find(|found| found.name == tensor.name).expect("the same parameters");
            assert_eq!(found.values != tensor.values, is_adapter(&tensor.name), "{dtype:?}: {}", tensor.name);
        }

        // Per layer: an A and a B for each of the six targets, and five more of cross-attention.
        let n_adapters = 2 * (2 * 6) + 2 * (2 * 10);
        for moments in ["m", "v"].map(|name| after.optimizer_state(name)) {
            assert_eq!(moments.len(), n_adapters);
            assert!(moments.iter().all(|tensor| is_adapter(&tensor.name)));
        }
        let n_trained: u64 = after.optimizer_state("m").iter().map(|tensor| tensor.values.len() as u64).sum();
        assert_eq!(n_trained, kiln_model::flops::n_trained(&config.model));
        let n: usize = before.iter().map(|tensor| tensor.values.len()).sum();
        assert_eq!(n as u64, kiln_model::flops::n_params(&config.model).total());
        let [flat] = state.optimizer.state().named[0].as_ref().expect("a whole state").dims();
        assert!(flat <= n_adapters * ALIGNMENT, "{flat} numbers of moments for {n_trained} parameters of {n}");
    }
}

#[test]
fn adapters_get_the_same_gradients_with_activation_checkpointing() {
    let mut config = with_adapters(toy_config(0.2));
    (config.model.n_encoder_layers, config.model.n_decoder_layers) = (2, 3);
    for norm in [kiln_model::NormPlacement::Pre, kiln_model::NormPlacement::Post] {
        config.model.norm = norm;
        let batch = [upload(&host_batch(&toy_rows(16)), &Device::flex())];
        let gradients = |checkpointing| {
            let state = begin(&config, FloatDType::F32).with_checkpointing(checkpointing).expect("a choice");
            let (sums, gradients) = step::group_gradients(&state, &batch, 3);
            let gradients: Vec<f32> = gradients.0.values.into_data().try_into_vec().expect("f32");
            (sums.loss.into_scalar::<f32>(), gradients)
        };
        let wanted = gradients(ActivationCheckpointing::Off);
        assert!(wanted.1.iter().any(|x| *x != 0.0));
        for checkpointing in [ActivationCheckpointing::Selective, ActivationCheckpointing::Layer] {
            assert!(gradients(checkpointing) == wanted, "{norm:?} {checkpointing:?}");
        }
    }
}

#[test]
fn a_run_with_adapters_resumes_bit_for_bit_and_is_used_merged_or_not() {
    let corpora = Corpora::new(200);
    let config = with_adapters(corpora.config());
    let weights = || Some(weights_of(&config));
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    let run = |dir: &Path, resume: Option<Resume>, stop_at: u64| {
        let (stop, records) = (Arc::new(AtomicBool::new(false)), Rc::new(RefCell::new(Vec::new())));
        let mut logging = Logging::silent();
        logging.add(Recorder { records: records.clone(), stop: stop.clone(), stop_at });
        let setup = Setup { weights: weights(), ..corpora.setup(&config, dir, logging, stop) };
        let mut trainer = Trainer::new(setup, resume).expect("a trainer");
        trainer.run().expect("a run");
        drop(trainer);
        Rc::try_unwrap(records).expect("the trainer is gone").into_inner()
    };
    let records = run(&whole, None, u64::MAX);
    let note = records.iter().find(|record| record.contains("parameters are trained")).expect("a note");
    assert!(note.ends_with("tensors are frozen (model.lora)"), "{note}");
    run(&parts, None, 5);
    run(&parts, Some(corpora.find(&config, &parts, &[]).expect("the same run")), u64::MAX);
    let (path, wanted) = last_snapshot(&whole);
    assert_eq!(last_snapshot(&parts).1, wanted);

    // With adapters, and with merged ones, the model gives the same logits.
    let trained = TrainedModel::open(&path, None).expect("a checkpoint");
    let (shape, merged) = kiln_model::merge_adapters(&trained.model, trained.weights()).expect("adapters");
    let batch = upload(&host_batch(&toy_rows(4)), &Device::flex());
    let logits = |model: &Transformer| model.logits(&batch, None).into_data().try_into_vec::<f32>().expect("f32");
    let apart = logits(&trained.load_model(FloatDType::F32, &Device::flex()).expect("a model"));
    let together = crate::checkpoint::load_model(&shape, &merged, FloatDType::F32, &Device::flex()).expect("a model");
    let furthest = apart.iter().zip(logits(&together)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-5, "{furthest}");
}

#[test]
fn a_run_starts_with_new_adapters_or_goes_on_with_merged_ones() {
    let corpora = Corpora::new(30);
    let plain = corpora.config();
    let dir = corpora.dir.path().join("plain");
    let (outcome, _) = corpora.run(
        &Config { train: TrainConfig { steps: 2, ..plain.train.clone() }, ..plain.clone() },
        &dir,
        None,
        u64::MAX,
    );
    let from = TrainedModel::open(&outcome.checkpoint.expect("a checkpoint"), None).expect("a run");

    // New adapters change nothing yet.
    let adapted = with_adapters(plain.clone());
    let started = crate::run::start_from(&from, &adapted, None, None).expect("weights with adapters").0;
    assert_eq!(started.weights.len(), initial_tensors(&adapted.model, 1).len());
    let (_, merged) = kiln_model::merge_adapters(&adapted.model, &started.weights).expect("adapters");
    let sorted = |mut weights: Vec<NamedTensor>| {
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        weights
    };
    assert_eq!(sorted(merged), sorted(from.weights().to_vec()), "B starts at 0");

    // A run with adapters goes on without them: they are merged.
    let files = read_weights(&from.path).expect("sound").files;
    let weights = Weights { step: 3, weights: weights_of(&adapted), model: adapted.model.clone(), files };
    let mut with = weights.clone();
    with.files
        .iter_mut()
        .filter(|it| it.name == "config.toml")
        .for_each(|it| it.bytes = adapted.to_toml().into_bytes());
    let path = write_run(&corpora.dir.path().join("adapted"), &with).expect("writable");
    let from = TrainedModel::open(&path, None).expect("a run");
    let wanted = kiln_model::merge_adapters(&adapted.model, &weights.weights).expect("adapters").1;
    let merged = crate::run::start_from(&from, &plain, None, None).expect("merged").0;
    assert_eq!(sorted(merged.weights), sorted(wanted));

    // Other adapters are another model.
    let mut other = adapted.clone();
    other.model.lora.rank = 3;
    let error = crate::run::start_from(&from, &other, None, None).expect_err("another rank").to_string();
    assert!(error.contains("adapters (model.lora) may be added or, with model.lora.rank=0, merged"), "{error}");
    let again = crate::run::start_from(&from, &adapted, None, None).expect("the same adapters").0;
    assert_eq!(sorted(again.weights), sorted(weights.weights));
}
