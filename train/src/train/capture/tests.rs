//! On the CPU: what is recorded when, and that a step whose gradients come from elsewhere is the step itself. On a GPU
//! `diagnose::replay` compares real recordings.

use std::sync::{Arc, Mutex};

use burn::tensor::{FloatDType, Int, Tensor};
use kiln_model::{TextBatch, TransformerConfig};

use super::graph::{difference, forward_backward, refill, reversed, words};
use super::*;
use crate::config::Config;
use crate::train::train_step;

/// A recorder without graphs: a replay runs the recorded work on the recorded batch, which it fills anew each time.
#[derive(Clone, Default)]
struct Fake {
    log: Arc<Mutex<Vec<String>>>,
    refuses: bool,
    breaks_after: Option<u32>,
}

impl Fake {
    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().expect("no panic"))
    }
}

struct FakeReplay {
    log: Arc<Mutex<Vec<String>>>,
    batch: Batch,
    left: Option<u32>,
}

impl Record<Transformer> for Fake {
    fn record(&mut self, _state: &TrainState, batch: &Batch) -> Result<Box<dyn Replay<Transformer>>, CaptureError> {
        let shape = shape_of(batch);
        self.log.lock().expect("no panic").push(format!("record {shape}"));
        if self.refuses {
            return Err(CaptureError::new("refused"));
        }
        let (log, batch) = (self.log.clone(), batch.clone());
        Ok(Box::new(FakeReplay { log, batch, left: self.breaks_after }))
    }
}

impl Replay<Transformer> for FakeReplay {
    fn run(&mut self, state: &TrainState, batch: &Batch, micro_step: u64) -> Result<Results, CaptureError> {
        if self.left == Some(0) {
            return Err(CaptureError::new("the driver refuses"));
        }
        self.left = self.left.map(|left| left - 1);
        self.log.lock().expect("no panic").push(format!("replay {}", shape_of(batch)));
        refill(&mut self.batch, batch);
        Ok(forward_backward(state, self.batch.clone(), Some(words(state, micro_step)))())
    }
}

fn config() -> Config {
    let model = TransformerConfig {
        target_vocab_size: 20,
        d_model: 16,
        n_heads: 2,
        d_ff: 32,
        n_decoder_layers: 1,
        max_positions: 16,
        dropout: 0.2,
        ..TransformerConfig::gpt2_124m()
    };
    Config { model, ..Config::default() }
}

fn state() -> TrainState {
    TrainState::new(&config(), &config().model, FloatDType::F32, &Device::flex()).expect("a state")
}

fn batch(n: u64, [rows, len]: [usize; 2], packed: bool) -> Batch {
    let tokens = (rows * len) as i32;
    let mut ids: Vec<i32> = (0..2 * tokens).map(|i| (i * 7 + n as i32 * 5) % 20).collect();
    ids.extend((0..tokens).map(|i| i % len as i32));
    ids.extend((0..tokens).map(|i| i % len as i32 / 3));
    ids.extend(vec![len as i32; rows]);
    let ids = Tensor::<1, Int>::from_data(ids.as_slice(), &Device::flex());
    Batch::Text(TextBatch::from_contiguous(ids, [rows, len], tokens as u64, packed))
}

/// Every number of the steps, as bits.
fn bits(measures: Measures) -> Vec<u32> {
    let Measures { loss_sum, nll_sum, target_tokens, numbers, .. } = measures;
    let read = |tensor: Tensor<1>| tensor.into_data().try_into_vec::<f32>().expect("f32");
    [loss_sum, nll_sum, target_tokens, numbers].into_iter().flat_map(read).map(f32::to_bits).collect()
}

fn weights(state: &TrainState) -> Vec<f32> {
    state.optimizer.state().master.clone().into_data().try_into_vec().expect("f32")
}

const SHAPES: [[usize; 2]; 2] = [[2, 6], [3, 8]];

/// Takes the steps of `groups` with recordings and as they come: every number is the same. What was recorded is
/// returned with the log, and the state.
fn both_ways(groups: impl IntoIterator<Item = Vec<Batch>>) -> (CapturedSteps, Vec<String>, TrainState) {
    let fake = Fake::default();
    let mut steps = CapturedSteps::with_recorder(Capture::On, Box::new(fake.clone()));
    let (mut a, mut b) = (state(), state());
    for (n, group) in groups.into_iter().enumerate() {
        assert_eq!(bits(steps.step(&mut a, &group)), bits(train_step(&mut b, &group)), "step {n}");
    }
    assert_eq!((a.step, a.micro_steps, a.target_tokens), (b.step, b.micro_steps, b.target_tokens));
    assert_eq!(weights(&a), weights(&b));
    (steps, fake.log(), a)
}

#[test]
fn replayed_steps_are_computed_steps_bit_for_bit() {
    let (mut steps, log, _) = both_ways((0..12).map(|n| vec![batch(n, SHAPES[n as usize % 2], false)]));
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((count("record"), count("replay"), steps.n_recorded()), (2, 6, 2), "{log:?}");
    assert_eq!(steps.take_replayed(), Replayed { share: Some(0.5), graphs: Some(2) });
    assert_eq!(steps.take_replayed(), Replayed { share: None, graphs: Some(2) }, "no step since");
}

/// A recording is tried with it: it has to give other sums, and it must not be invalid.
#[test]
fn a_reversed_batch_is_another_of_the_same_shape() {
    let batch = batch(1, SHAPES[1], true);
    let other = reversed(&batch);
    assert_eq!(Key::of(&batch), Key::of(&other));
    let losses = |batch: &Batch| {
        let (sums, _) = forward_backward(&state(), batch.clone(), Some(words(&state(), 0)))();
        [sums.loss, sums.n_labels].map(|sum| sum.into_scalar::<f32>())
    };
    let ([loss, labels], [other_loss, other_labels]) = (losses(&batch), losses(&other));
    assert!((loss - other_loss).abs() > 1e-3 && other_loss.is_finite(), "{loss}, {other_loss}");
    assert_eq!(labels, other_labels);
    assert_eq!(losses(&reversed(&other))[0], loss, "twice reversed");
}

/// Groups of one shape, and of two of which one is recorded later than the other.
#[test]
fn micro_batches_of_a_group_are_replayed_one_by_one() {
    let group = |n: u64| {
        let second = SHAPES[n as usize % 2];
        vec![batch(2 * n, SHAPES[0], false), batch(2 * n + 1, second, false)]
    };
    let (_, log, state) = both_ways((0..6).map(group));
    assert_eq!((state.step, state.micro_steps), (6, 12));
    assert_eq!(log[..3], ["record 2 x 6", "replay 2 x 6", "replay 2 x 6"], "from the fourth micro-batch on");
    assert_eq!(log.iter().filter(|line| *line == "replay 2 x 6").count(), 6, "9 of them, computed three times");
    assert!(!log.contains(&"record 3 x 8".to_string()), "it came three times: {log:?}");
}

#[test]
fn a_shape_is_recorded_once_it_has_come_back() {
    let fake = Fake::default();
    let mut steps = CapturedSteps::with_recorder(Capture::On, Box::new(fake.clone()));
    let mut state = state();
    let one = batch(1, SHAPES[0], false);
    for _ in 0..3 {
        steps.step(&mut state, std::slice::from_ref(&one));
        steps.step(&mut state, &[batch(1, SHAPES[0], true)]);
    }
    assert!(fake.log().is_empty(), "three steps each: the same shape, but other parts");
    steps.step(&mut state, std::slice::from_ref(&one));
    assert_eq!(fake.log(), ["record 2 x 6", "replay 2 x 6"]);
    let mut off = CapturedSteps::with_recorder(Capture::Off, Box::new(fake.clone()));
    (0..6).for_each(|_| drop(off.step(&mut state, std::slice::from_ref(&one))));
    assert!(fake.log().is_empty(), "off is off");
}

#[test]
fn a_refusal_is_told_once_and_training_goes_on() {
    let fake = Fake { refuses: true, ..Fake::default() };
    let mut steps = CapturedSteps::with_recorder(Capture::On, Box::new(fake.clone()));
    let (mut a, mut b) = (state(), state());
    for n in 0..14 {
        let batches = [batch(n, SHAPES[n as usize % 2], false)];
        assert_eq!(bits(steps.step(&mut a, &batches)), bits(train_step(&mut b, &batches)));
    }
    assert_eq!(fake.log(), ["record 2 x 6"], "not tried again");
    let notes = steps.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("2 x 6") && notes[0].contains("refused"), "{notes:?}");
    assert!(steps.take_notes().is_empty());
}

#[test]
fn a_replay_that_fails_is_computed_instead() {
    let fake = Fake { breaks_after: Some(2), ..Fake::default() };
    let mut steps = CapturedSteps::with_recorder(Capture::On, Box::new(fake.clone()));
    let (mut a, mut b) = (state(), state());
    for n in 0..9 {
        let batches = [batch(n, SHAPES[0], false)];
        assert_eq!(bits(steps.step(&mut a, &batches)), bits(train_step(&mut b, &batches)), "step {n}");
    }
    assert_eq!(fake.log(), ["record 2 x 6", "replay 2 x 6", "replay 2 x 6"]);
    assert_eq!((steps.n_recorded(), steps.take_notes().len()), (0, 1));
}

#[test]
fn auto_waits_until_a_recording_pays() {
    let fake = Fake::default();
    let mut steps = CapturedSteps::with_recorder(Capture::Auto, Box::new(fake.clone()));
    let times = steps.policy.expect("not off").times_before;
    let (mut state, one) = (state(), batch(1, SHAPES[0], false));
    for _ in 0..times {
        assert!(steps.replay(&state, &one, 0).is_none());
    }
    assert!(fake.log().is_empty());
    steps.step(&mut state, &[one]);
    assert_eq!(fake.log(), ["record 2 x 6", "replay 2 x 6"]);
}

#[test]
fn the_cpu_has_no_graphs_and_says_so_to_whoever_asks_for_them() {
    let mut auto = CapturedSteps::new(Capture::Auto, &Device::flex());
    let mut on = CapturedSteps::new(Capture::On, &Device::flex());
    let mut state = state();
    let one = batch(1, SHAPES[0], false);
    for _ in 0..6 {
        auto.step(&mut state, std::slice::from_ref(&one));
        on.step(&mut state, std::slice::from_ref(&one));
    }
    assert_eq!((auto.n_recorded(), on.n_recorded()), (0, 0));
    assert!(auto.take_notes().is_empty());
    let notes = on.take_notes();
    assert!(notes.len() == 1 && notes[0].contains("train.capture"), "{notes:?}");
}

#[test]
fn a_difference_is_named_by_what_it_is_in() {
    let state = state();
    let table = state.optimizer.table();
    let n_chunks: usize = table.entries().iter().map(|entry| entry.place().n_chunks()).sum();
    let wanted: Vec<f32> = (0..3 + n_chunks).map(|i| 1000.0 + i as f32).collect();
    let with = |at: usize, value: f32| {
        let mut found = wanted.clone();
        found[at] = value;
        difference(table, &found, &wanted)
    };
    assert_eq!(difference(table, &wanted, &wanted), None);
    assert_eq!(with(0, 1000.0005), None, "losses are added up in any order");
    assert_eq!(with(0, 1001.0).as_deref(), Some("loss 1001 instead of 1000"));
    assert_eq!(with(2, 1003.0).as_deref(), Some("labels 1003 instead of 1002"));
    let last = table.entries().last().expect("parameters");
    let found = with(2 + n_chunks, 0.0).expect("a difference");
    assert!(
        found.contains(&format!("of {} parameters", table.entries().len())) && found.contains(&last.path),
        "{found}"
    );
}
