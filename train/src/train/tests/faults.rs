//! What goes wrong while training: numbers that are not finite, saves that fail, saves on request.

use burn::tensor::Tensor;
use serde_json::Value;

use super::*;
use crate::config::NonFinite;
use crate::device::upload;
use crate::train::step::group_gradients;

/// A run whose weights leave every range after the first steps.
fn exploding(corpora: &Corpora) -> Config {
    let mut config = corpora.config();
    config.optim.lr = 1e36;
    config.optim.warmup_steps = 0;
    config.optim.max_grad_norm = 0.0;
    config.train.log_every = 5;
    config.train.save_every = 1;
    config.train.validate_every = 0;
    config
}

fn outcome(corpora: &Corpora, config: &Config, dir: &Path) -> Result<Outcome> {
    let setup = corpora.setup(config, dir, Logging::silent(), Arc::default());
    Trainer::new(setup, None).expect("a trainer").run()
}

#[test]
fn the_first_number_that_is_not_finite_ends_the_run_and_names_its_step_and_parameters() {
    let corpora = Corpora::new(200);
    let mut config = exploding(&corpora);
    // Nothing is saved or read before the failure has long happened.
    config.train.save_every = 0;
    let dir = tempfile::tempdir().expect("a folder");
    let error = format!("{:#}", outcome(&corpora, &config, dir.path()).expect_err("it explodes"));
    for part in
        ["step 2: the ", "is not finite", "last checkpoint stays", "gradients that are not finite", "non-finite"]
    {
        assert!(error.contains(part), "{part:?} is missing in {error}");
    }
    assert!(Checkpoints::of_run(dir.path()).list().expect("readable").is_empty(), "nothing bad was saved");
    let report = fs::read(dir.path().join("non-finite/step-00000002.json")).expect("the batch");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    assert_eq!((&report["step"], &report["micro_step"]), (&2.into(), &2.into()));
    assert_eq!(report["batches"].as_array().map(Vec::len), Some(config.train.grad_accum_steps));
    let named = report["gradients"].as_array().expect("parameters");
    assert!(!named.is_empty(), "weights as they were when it failed give the same failure");

    // The checkpoint before it stays, sound and finite.
    config.train.save_every = 1;
    let dir = tempfile::tempdir().expect("a folder");
    outcome(&corpora, &config, dir.path()).expect_err("it explodes");
    let (path, snapshot) = last_snapshot(dir.path());
    assert_eq!(snapshot.state.step, 1, "{}", path.display());
}

#[test]
fn skipped_steps_are_counted_kept_and_limited() {
    let corpora = Corpora::new(200);
    let mut config = exploding(&corpora);
    (config.train.non_finite, config.train.max_non_finite_steps) = (NonFinite::Skip, 3);
    let dir = tempfile::tempdir().expect("a folder");
    let error = format!("{:#}", outcome(&corpora, &config, dir.path()).expect_err("too many"));
    assert!(error.contains("that makes 4 such steps, more than train.max_non_finite_steps = 3"), "{error}");
    assert_eq!(fs::read_dir(dir.path().join("non-finite")).expect("made").count(), 4);
    let (_, snapshot) = last_snapshot(dir.path());
    assert_eq!((snapshot.state.step, snapshot.state.non_finite_steps), (4, 3), "saved with the count");
}

#[test]
fn the_guard_costs_no_bit_and_holds_the_weights_when_it_must() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    let source = corpora.source("train", &config.loader);
    let mut loader = kiln_data::Loader::new(source, &config.loader, 1, Position::default()).expect("a loader");
    let batches: Vec<_> = (0..3).map(|_| upload(&loader.next_batch().expect("a batch"), &Device::flex())).collect();
    let weights = |state: &TrainState| {
        state.optimizer.state().master.clone().into_data().as_slice::<f32>().expect("f32").to_vec()
    };

    let mut of_policy = [NonFinite::Stop, NonFinite::Skip].map(|policy| {
        config.train.non_finite = policy;
        let mut state = TrainState::new(&config, &config.model, FloatDType::F32, &Device::flex()).expect("a state");
        batches.iter().for_each(|batch| drop(train_step(&mut state, std::slice::from_ref(batch))));
        state
    });
    let [guarded, free] = &mut of_policy;
    assert_eq!(weights(guarded), weights(free));

    for (state, goes_on) in [(guarded, false), (free, true)] {
        let before = weights(state);
        let (_, gradients) = group_gradients(state, &batches[..1], 0);
        let [labels, loss] = [1.0, f32::NAN].map(|value| Tensor::<1>::full([1], value, &Device::flex()));
        state.optimizer.step(gradients, labels, loss);
        assert_eq!(weights(state), before, "no update from a loss that is no number");
        let measures = train_step(state, &batches[..1]);
        assert!(measures.grad_norm().into_scalar::<f32>().is_finite(), "measured as it is");
        assert_eq!(weights(state) != before, goes_on, "later steps");
    }
}

/// Asks for a checkpoint at one step.
struct AskAt {
    step: u64,
    save_now: Arc<AtomicBool>,
}

impl Sink for AskAt {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        if matches!(record, Record::Step(step) if step.step == self.step) {
            self.save_now.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[test]
fn a_checkpoint_on_request_changes_nothing_and_the_run_goes_on() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    (config.train.save_every, config.train.keep_last) = (0, 9);
    (config.train.log_every, config.train.validate_every) = (1, 0);
    let asked = tempfile::tempdir().expect("a folder");
    let save_now = Arc::new(AtomicBool::new(false));
    let mut logging = Logging::silent();
    logging.add(AskAt { step: 5, save_now: save_now.clone() });
    let signals = Signals { save_now, ..Signals::default() };
    let setup = Setup { signals, ..corpora.setup(&config, asked.path(), logging, Arc::default()) };
    let outcome = Trainer::new(setup, None).expect("a trainer").run().expect("a run");
    assert_eq!(outcome.ended, Ended::Steps);
    let steps: Vec<_> =
        Checkpoints::of_run(asked.path()).list().expect("readable").iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [6, 16], "after the step in which the request was seen, and at the end");
    let plain = tempfile::tempdir().expect("a folder");
    corpora.run(&config, plain.path(), None, u64::MAX);
    assert_eq!(last_snapshot(asked.path()).1.weights, last_snapshot(plain.path()).1.weights);
}

#[test]
fn a_save_that_fails_ends_the_run_at_one_of_the_next_steps() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    config.train.steps = 1_000_000;
    let dir = tempfile::tempdir().expect("a folder");
    let setup = corpora.setup(&config, dir.path(), Logging::silent(), Arc::default());
    let mut trainer = Trainer::new(setup, None).expect("a trainer");
    let checkpoints = dir.path().join("checkpoints");
    fs::remove_dir_all(&checkpoints).expect("there");
    fs::write(&checkpoints, "a file in the way").expect("writable");
    let error = format!("{:#}", trainer.run().expect_err("nowhere to save"));
    assert!(error.contains("no further without its checkpoint") && error.contains("cannot"), "{error}");
    assert!(trainer.state().step < 1000, "soon: step {}", trainer.state().step);
}

#[test]
fn batches_cut_into_micro_batches_are_the_same_step() {
    let corpora = Corpora::new(100);
    let mut config = corpora.config();
    config.model.dropout = 0.0;
    let source = corpora.source("train", &config.loader);
    let mut loader = kiln_data::Loader::new(source, &config.loader, 1, Position::default()).expect("a loader");
    let batch = loader.next_batch().expect("a batch");
    assert!(batch.batch_size > 3);
    let parts = batch.split(3);
    assert_eq!(parts.iter().map(|part| part.target_tokens).sum::<u64>(), batch.target_tokens);
    assert_eq!(parts.iter().flat_map(|part| part.rows.clone()).collect::<Vec<_>>(), batch.rows);
    assert_eq!(batch.split(1), std::slice::from_ref(&batch), "one part is the whole");
    assert_eq!(batch.split(1000).len(), batch.batch_size, "a row each at most");
    let norm_and_loss = |batches: &[HostBatch]| {
        let mut state = TrainState::new(&config, &config.model, FloatDType::F32, &Device::flex()).expect("a state");
        let uploaded: Vec<_> = batches.iter().map(|batch| upload(batch, &Device::flex())).collect();
        let measures = train_step(&mut state, &uploaded);
        [measures.grad_norm(), measures.loss_sum].map(|value| value.into_scalar::<f32>())
    };
    let (whole, cut) = (norm_and_loss(std::slice::from_ref(&batch)), norm_and_loss(&parts));
    for (whole, cut) in whole.into_iter().zip(cut) {
        assert!((whole / cut - 1.0).abs() < 1e-5, "{whole} and {cut}");
    }
}

#[test]
fn a_run_with_cut_batches_resumes_bit_for_bit() {
    let corpora = Corpora::new(100);
    let mut config = corpora.config();
    config.train.split_batches = 2;
    let (whole, resumed) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    corpora.run(&config, whole.path(), None, u64::MAX);
    corpora.run(&config, resumed.path(), None, 7);
    let resume = corpora.find(&config, resumed.path(), &[]).expect("the same run");
    corpora.run(&config, resumed.path(), Some(resume), u64::MAX);
    assert_eq!(last_snapshot(whole.path()).1, last_snapshot(resumed.path()).1);
    let other = Config { train: TrainConfig { split_batches: 1, ..config.train.clone() }, ..config };
    let error = corpora.find(&other, resumed.path(), &[]).expect_err("another run").to_string();
    assert!(error.contains("train.split_batches: 2 in the checkpoint, 1 now"), "{error}");
}

#[test]
fn a_deterministic_run_is_looked_at_and_changes_no_bit_on_the_cpu() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    let (plain, looked_at) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    corpora.run(&config, plain.path(), None, u64::MAX);
    config.train.deterministic = true;
    let (_, records) = corpora.run(&config, looked_at.path(), None, u64::MAX);
    assert!(records[0].contains("the same gradients twice"), "{}", records[0]);
    assert_eq!(last_snapshot(plain.path()).1.weights, last_snapshot(looked_at.path()).1.weights);
}
