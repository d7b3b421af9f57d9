//! The loop on a tiny model and a tiny corpus: accumulation, resume, damage, limits.

mod adapters;
mod corpora;
mod ending;
mod faults;
mod feed;
mod fp16;
mod fp8;
mod freezing;
mod hiding;
mod lion;
mod measured;
mod muon;
mod optimizers;
mod ranks;
mod rounded;
mod sources;
mod text;
mod transfer;
mod warm_up;
mod worker;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_data::built_in::numbers;
use kiln_data::{
    BatchSource, Collator, CorpusConfig, Example, HostBatch, LoaderConfig, PairCorpus, PairSource, PairTokenizers,
    Position, Shape, SpecialIds, prepare_pairs,
};
use kiln_model::{ActivationCheckpointing, Batch, Transformer, TransformerConfig};

use super::*;
use crate::checkpoint::{Checkpoints, MODEL_FILE, NotTheSameRun, Pointer, Resume, Snapshot, find_resume};
use crate::config::{Config, OptimConfig, OptimizerChoice, Schedule, TrainConfig};
use crate::dataset::Vocabulary;
use crate::device::upload;
use crate::optim::{AdamW, Groups};
use corpora::{Corpora, Recorder, last_snapshot};
use kiln_metrics::logging::{Logging, Record, Sink};
use kiln_ranks::Ranks;

/// A host batch from rows of token ids.
fn host_batch(rows: &[(Vec<i32>, Vec<i32>)]) -> HostBatch {
    let shape = Shape {
        batch_size: rows.len(),
        source_len: rows.iter().map(|(source, _)| source.len() + 1).max().expect("rows"),
        target_len: rows.iter().map(|(_, target)| target.len() + 1).max().expect("rows"),
    };
    let unsigned = |ids: &[i32]| ids.iter().map(|id| id.cast_unsigned()).collect::<Vec<u32>>();
    let mut batch = HostBatch::default();
    let mut collator = Collator::new(&mut batch, shape, SpecialIds { pad: 0, bos: 1, eos: 2, unk: 3 });
    for (number, (source, target)) in (0..).zip(rows) {
        collator.push(number, &unsigned(source), &unsigned(target));
    }
    batch
}

fn toy_rows(n: i32) -> Vec<(Vec<i32>, Vec<i32>)> {
    let ids = |from: i32, len: i32| (0..len).map(|i| 3 + (from + 3 * i) % 17).collect();
    (0..n).map(|row| (ids(row, 1 + row % 7), ids(row + 5, 1 + (3 * row) % 5))).collect()
}

fn toy_config(dropout: f64) -> Config {
    let model = TransformerConfig {
        d_model: 16,
        n_heads: 2,
        d_ff: 32,
        n_encoder_layers: 1,
        n_decoder_layers: 1,
        source_vocab_size: 20,
        target_vocab_size: 20,
        dropout,
        ..TransformerConfig::tiny()
    };
    let optim = OptimConfig {
        lr: 1e-2,
        eps: 1e-4,
        schedule: Schedule::Constant,
        warmup_steps: 0,
        max_grad_norm: 0.5,
        ..OptimConfig::default()
    };
    Config { model, optim, ..Config::default() }
}

fn weights(state: &TrainState) -> Vec<f32> {
    let provenance = Provenance::default();
    let snapshot = state.snapshot(&provenance).expect("the CPU answers");
    snapshot.weights.into_iter().flat_map(|tensor| tensor.values).collect()
}

#[test]
fn one_batch_of_32_rows_equals_32_batches_of_one() {
    let config = toy_config(0.0);
    let device = Device::flex();
    let rows = toy_rows(32);
    let together: Vec<Batch> = vec![upload(&host_batch(&rows), &device)];
    let apart: Vec<Batch> = rows.chunks(1).map(|row| upload(&host_batch(row), &device)).collect();
    let mut a = TrainState::new(&config, &config.model, FloatDType::F32, &device).expect("a state");
    let mut b = TrainState::new(&config, &config.model, FloatDType::F32, &device).expect("a state");
    let initial = weights(&a);
    for _ in 0..3 {
        let (one, many) = (train_step(&mut a, &together), train_step(&mut b, &apart));
        for (one, many) in
            [(one.grad_norm(), many.grad_norm()), (one.loss_sum, many.loss_sum), (one.nll_sum, many.nll_sum)]
        {
            let (one, many) = (one.into_scalar::<f32>(), many.into_scalar::<f32>());
            assert!((one / many - 1.0).abs() < 1e-5, "{one} and {many}");
        }
    }
    assert_eq!((a.step, a.micro_steps, b.step, b.micro_steps), (3, 3, 3, 96));
    assert_eq!((a.source_tokens, a.target_tokens), (b.source_tokens, b.target_tokens));
    let (a, b) = (weights(&a), weights(&b));
    let largest = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(largest(&a, &b) < 1e-6, "weights differ by {}", largest(&a, &b));
    assert!(largest(&a, &initial) > 1e-3, "nothing was learned");
}

#[test]
fn activation_checkpointing_changes_no_bit_of_a_step() {
    let mut config = toy_config(0.3);
    (config.model.n_encoder_layers, config.model.n_decoder_layers) = (2, 3);
    let device = Device::flex();
    let batches = toy_rows(24).chunks(8).map(|rows| upload(&host_batch(rows), &device)).collect::<Vec<_>>();
    let trained = |checkpointing| {
        let state = TrainState::new(&config, &config.model, FloatDType::F32, &device).expect("a state");
        let mut state = state.with_checkpointing(checkpointing).expect("Kiln's model has the choice");
        let losses: Vec<f32> = (0..4).map(|_| train_step(&mut state, &batches).loss_sum.into_scalar()).collect();
        (losses, weights(&state))
    };
    let all = trained(ActivationCheckpointing::Off);
    assert!(all.0[3] < all.0[0], "{:?}", all.0);
    assert!(trained(ActivationCheckpointing::Selective) == all);
    assert!(trained(ActivationCheckpointing::Layer) == all);
}

#[test]
fn dropout_is_a_function_of_seed_and_micro_step() {
    let config = toy_config(0.3);
    let device = Device::flex();
    let batch = [upload(&host_batch(&toy_rows(8)), &device)];
    let loss = |seed: u64, skipped: u64| {
        let mut state = TrainState::new(&config, &config.model, FloatDType::F32, &device).expect("a state");
        state.seed = seed;
        state.micro_steps = skipped;
        train_step(&mut state, &batch).loss_sum.into_scalar::<f32>()
    };
    assert_eq!(loss(1, 0), loss(1, 0));
    assert_ne!(loss(1, 0), loss(2, 0), "another seed, other masks");
    assert_ne!(loss(1, 0), loss(1, 1), "another micro-step, other masks");
}

#[test]
fn equal_runs_are_equal_bit_for_bit_however_the_threads_race() {
    // Large enough that the CPU backend spreads products and sums over threads.
    let mut config = toy_config(0.1);
    config.model.d_model = 256;
    config.model.d_ff = 1024;
    config.model.source_vocab_size = 12_000;
    config.model.target_vocab_size = 12_000;
    let device = Device::flex();
    let batch = [upload(&host_batch(&toy_rows(64)), &device)];
    let run = || {
        let mut state = TrainState::new(&config, &config.model, FloatDType::F32, &device).expect("a state");
        let norms: Vec<u32> =
            (0..2).map(|_| train_step(&mut state, &batch).grad_norm().into_scalar::<f32>().to_bits()).collect();
        (norms, weights(&state))
    };
    let (norms, first) = run();
    assert!(first.len() > 4 << 20, "{} parameters are too few to be summed by several threads", first.len());
    for _ in 0..2 {
        let (again, weights) = run();
        assert_eq!(again, norms);
        assert!(weights == first, "some weight has other bits");
    }
}

/// `n_steps` in `dtype` learn what they learn in f32, each to a relative `tolerance`, and the master weights have
/// digits in the last `lost_bits` of an f32, which `dtype` has not.
fn assert_follows_f32(dtype: FloatDType, n_steps: usize, tolerance: f32, lost_bits: u32) {
    let config = toy_config(0.0);
    let device = Device::flex();
    let batch = [upload(&host_batch(&toy_rows(16)), &device)];
    let run = |dtype: FloatDType| {
        let mut state = TrainState::new(&config, &config.model, dtype, &device).expect("a state");
        let losses: Vec<f32> =
            (0..n_steps).map(|_| train_step(&mut state, &batch).loss_sum.into_scalar::<f32>()).collect();
        (losses, weights(&state))
    };
    let ((wanted, _), (found, master)) = (run(FloatDType::F32), run(dtype));
    assert!(wanted[n_steps - 1] < 0.7 * wanted[0], "{wanted:?}");
    for (wanted_loss, loss) in wanted.iter().zip(&found) {
        assert!((loss / wanted_loss - 1.0).abs() < tolerance, "{wanted:?}\n{found:?}");
    }
    let lost = (1u32 << lost_bits) - 1;
    let beyond = master.iter().filter(|weight| weight.to_bits() & lost != 0).count();
    assert!(beyond > master.len() / 2, "the master weights have more digits than {dtype:?}");
}

#[test]
fn bf16_follows_f32_and_keeps_an_f32_master() {
    assert_follows_f32(FloatDType::BF16, 30, 0.05, 16);
}

#[test]
fn a_run_stopped_anywhere_any_number_of_times_ends_bit_for_bit_the_same() {
    let corpora = Corpora::new(60);
    let config = corpora.config();
    let per_epoch = corpora.source("train", &config.loader).batches_per_epoch();
    let whole = corpora.dir.path().join("whole");
    let (outcome, whole_records) = corpora.run(&config, &whole, None, u64::MAX);
    assert_eq!((outcome.ended, outcome.step), (Ended::Steps, 16));
    assert!(outcome.validation.as_ref().is_some_and(|valid| valid.bleu.is_some()), "text is scored at the end");
    assert_eq!(outcome.hypotheses.len(), corpora.rows.len());
    let (_, wanted) = last_snapshot(&whole);
    assert!(wanted.state.position.epoch >= 2, "{:?} with {per_epoch} batches", wanted.state.position);

    // Two micro-batches a step: an epoch ends exactly after a step only where its number of batches is reached evenly.
    let edge = (1..16).find(|step| (2 * step) % per_epoch == 0).expect("an epoch that ends between two steps");
    for (name, stops) in
        [("middle", vec![2]), ("edge", vec![edge - 1]), ("often", vec![1, 3, 6, 8, 11]), ("late", vec![14])]
    {
        let dir = corpora.dir.path().join(name);
        let mut records = Vec::new();
        let mut resume = None;
        for (nth, stop_at) in stops.into_iter().chain([u64::MAX]).enumerate() {
            let mut config = config.clone();
            config.train.log_every = 1;
            config.loader.num_workers = nth % 3; // the order must not depend on it
            let (outcome, more) = corpora.run(&config, &dir, resume.take(), stop_at);
            records.extend(more);
            if outcome.ended == Ended::Stopped {
                assert_eq!(outcome.step, stop_at + 1, "stopped after the step in progress");
                if name == "edge" {
                    assert_eq!(last_snapshot(&dir).1.state.position.batch, 0, "exactly between two epochs");
                }
                resume = Some(corpora.find(&config, &dir, &[]).expect("the same run"));
            } else {
                assert_eq!(outcome.ended, Ended::Steps);
            }
        }
        let (_, mut found) = last_snapshot(&dir);
        assert_eq!(found.weights, wanted.weights, "{name}: weights");
        assert_eq!(found.optimizer, wanted.optimizer, "{name}: state of the optimizer");
        found.files = wanted.files.clone(); // config.toml says how often to log and how many workers
        assert_eq!(found, wanted, "{name}: counters, position and best validation");
        assert_eq!(records, whole_records, "{name}: every measurement of every step");
    }
}

#[test]
fn a_damaged_checkpoint_costs_its_steps_and_nothing_else() {
    let corpora = Corpora::new(60);
    let config = corpora.config();
    let (whole, hurt) = (corpora.dir.path().join("whole"), corpora.dir.path().join("hurt"));
    corpora.run(&config, &whole, None, u64::MAX);
    corpora.run(&config, &hurt, None, 8);
    let (path, snapshot) = last_snapshot(&hurt);
    let file = path.join(MODEL_FILE);
    let mut bytes = fs::read(&file).expect("weights");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("writable");
    let resume = corpora.find(&config, &hurt, &[]).expect("an older one");
    assert_eq!(resume.damaged.len(), 1);
    assert!(resume.damaged[0].to_string().contains(MODEL_FILE), "{}", resume.damaged[0]);
    assert!(resume.snapshot.state.step < snapshot.state.step);
    corpora.run(&config, &hurt, Some(resume), u64::MAX);
    assert_eq!(last_snapshot(&hurt).1, last_snapshot(&whole).1);
}

#[test]
fn a_finished_run_says_so() {
    let corpora = Corpora::new(30);
    let mut config = corpora.config();
    config.train.steps = 3;
    let dir = corpora.dir.path().join("run");
    corpora.run(&config, &dir, None, u64::MAX);
    let (path, before) = last_snapshot(&dir);
    let resume = corpora.find(&config, &dir, &[]).expect("the same run");
    let (outcome, records) = corpora.run(&config, &dir, Some(resume), u64::MAX);
    assert_eq!((outcome.ended, outcome.step), (Ended::AlreadyFinished, 3));
    assert!(records.len() == 1 && records[0].contains("finished: it has reached train.steps at step 3"), "{records:?}");
    assert_eq!(last_snapshot(&dir), (path, before));
}

#[test]
fn time_can_end_a_run_too() {
    let corpora = Corpora::new(30);
    let mut config = corpora.config();
    config.train.max_minutes = 1e-9;
    let dir = corpora.dir.path().join("run");
    let (outcome, _) = corpora.run(&config, &dir, None, u64::MAX);
    assert_eq!((outcome.ended, outcome.step), (Ended::Time, 1));
    assert_eq!(last_snapshot(&dir).1.state.step, 1, "what was done is saved");
    let resume = corpora.find(&config, &dir, &[]).expect("the same run");
    assert_eq!(corpora.run(&config, &dir, Some(resume), u64::MAX).0.ended, Ended::AlreadyFinished);
    config.train.max_minutes = 60.0;
    config.train.steps = 16;
    let resume = corpora.find(&config, &dir, &[]).expect("more time is no other run");
    assert_eq!(corpora.run(&config, &dir, Some(resume), u64::MAX).0.ended, Ended::Steps);
}

#[test]
fn another_run_is_refused_with_every_difference() {
    let corpora = Corpora::new(30);
    let config = corpora.config();
    let dir = corpora.dir.path().join("run");
    corpora.run(&config, &dir, None, 4);

    let mut other = config.clone();
    other.optim.lr = 0.5;
    other.model.dropout = 0.0;
    fs::write(
        corpora.dir.path().join("train.jsonl"),
        fs::read_to_string(corpora.dir.path().join("train.jsonl"))
            .expect("text")
            .lines()
            .skip(1)
            .collect::<Vec<_>>()
            .join("\n"),
    )
    .expect("writable");

    let error = corpora.find(&other, &dir, &[]).expect_err("another run");
    let error = error.downcast_ref::<NotTheSameRun>().expect("the differences").clone();
    let fields: Vec<_> = error.differences.iter().map(|difference| difference.field.as_str()).collect();
    assert_eq!(fields, ["model.dropout", "optim.lr", "data"]);
    assert!(error.to_string().contains("optim.lr: 0.01 in the checkpoint, 0.5 now"), "{error}");
    let allowed = ["optim".to_string(), "model.dropout".to_string(), "data".to_string()];
    corpora.find(&other, &dir, &allowed).expect("let through field by field");
    assert!(corpora.find(&other, &dir, &allowed[..2]).is_err());
}

#[test]
fn the_best_checkpoint_is_the_one_with_the_lowest_validation_loss_and_a_run_can_be_opened() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    config.train.validate_every = 2;
    let dir = corpora.dir.path().join("run");
    let (outcome, records) = corpora.run(&config, &dir, None, u64::MAX);
    let losses: Vec<f64> =
        records.iter().filter_map(|record| record.strip_prefix("valid ")?.split(' ').next()?.parse().ok()).collect();
    assert_eq!(losses.len(), 8);
    let best = outcome.best.expect("a validation");
    assert_eq!(best.loss, losses.iter().copied().fold(f64::INFINITY, f64::min));
    let checkpoints = Checkpoints::of_run(&dir);
    let path = checkpoints.pointed(Pointer::Best).expect("a best checkpoint");
    assert_eq!(crate::checkpoint::read(&path).expect("sound").state.best, Some(best.clone()));
    assert!(checkpoints.list().expect("readable").len() <= config.train.keep_last + 1);

    let run = crate::run::TrainedModel::open(&dir, None).expect("a run");
    assert_eq!((run.path.as_path(), run.step), (path.as_path(), best.step));
    let model = run.load_model(FloatDType::F32, &Device::flex()).expect("a model");
    let valid = kiln_data::OnePass::new(corpora.source("valid", &config.loader), &config.loader).expect("batches");
    let loss = crate::eval::validation_loss(
        &model,
        valid,
        config.train.label_smoothing,
        None,
        &Device::flex(),
        &Ranks::alone(),
    )
    .expect("a loss");
    assert_eq!(loss.loss, best.loss, "the weights on disk are the weights that were measured");
    let (Transformer::EncoderDecoder(model), Some(tokenizers)) = (model, run.vocabulary.pairs()) else {
        panic!("a run that translates");
    };
    let translator = crate::generate::Translator::new(&model, tokenizers.clone(), run.config.generate.clone());
    let lines = translator.expect("they fit").translate(&["12", "", "  ", "345"], 0).expect("translations");
    assert_eq!(lines.len(), 4);
    assert_eq!((lines[1].as_str(), lines[2].as_str()), ("", ""), "an empty line stays empty");
}
