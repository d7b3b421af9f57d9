//! Heads of one's own on Kiln's encoder: `examples/error_detector` learns, resumes, and computes what its formula says.

use std::path::Path;

use burn::module::Module;
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use kiln::config::ConfigBuilder;
use kiln::device::{DeviceChoice, upload};
use kiln::diagnose::operators::measure;
use kiln::distributed::Ranks;
use kiln::eval::figures;
use kiln::optim::Groups;
use kiln::run::TrainedModel;
use kiln::train::{Start, TrainState};
use kiln::{Config, Model, Run};
use kiln_data::OnePass;
use kiln_kernels::{CrossEntropyConfig, cross_entropy};
use kiln_model::{Batch, DropoutStream, EncoderOnly, LossSums, TransformerConfig};

use serde_json::Value;

use crate::kiln::Workplace;

#[path = "../../examples/error_detector/data.rs"]
mod data;
#[path = "../../examples/error_detector/model.rs"]
mod model;

use data::Data;
use model::{ErrorDetector, Scores};

fn init(data: &Data) -> impl Fn(&TransformerConfig, &Device) -> ErrorDetector {
    |shape, device| ErrorDetector::on(shape.init_encoder_only(1, DType::F32, device), &data.confusions, device)
}

/// Settings of a run of so few steps that it needs no warm-up.
fn short(steps: u64) -> ConfigBuilder {
    data::settings().set("optim.warmup_steps", 1).set("train.steps", steps)
}

fn valid(settings: ConfigBuilder) -> Config {
    settings.validate().expect("valid settings")
}

fn run(dir: &Path, config: &Config) -> Run {
    Run::create(dir, config.clone()).expect("a free folder").on(DeviceChoice::Cpu)
}

fn trained(dir: &Path) -> TrainedModel {
    TrainedModel::open(dir, Some("last")).expect("a checkpoint")
}

#[test]
fn own_heads_learn_to_find_and_to_correct_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = valid(data::settings().set("train.steps", 150).set("train.validate_every", 150));
    let data = Data::make(&config).expect("data");
    for (read, right) in data.valid.first(20) {
        let wrong: Vec<_> = read.iter().zip(right).filter(|(read, right)| read != right).collect();
        assert!(!wrong.is_empty() && wrong.len() < read.len() / 2, "{} wrong tokens", wrong.len());
        let k = data.confusions.k;
        assert!(wrong.iter().all(|(read, right)| data.confusions.ids[**read as usize * k..][..k].contains(right)));
    }

    let outcome = run(folder.path(), &config).train_model_on(data.of_run(), init(&data)).expect("it trains");
    let after = outcome.validation.expect("validated").figures;
    let device = Device::flex();
    let new = init(&data)(&trained(folder.path()).model, &device);
    let measured = |model: &ErrorDetector| {
        let batches = OnePass::new(data.valid.clone(), &config.loader).expect("batches");
        figures(model, batches, 0.0, None, &device, &Ranks::alone()).expect("figures").1
    };
    let before = measured(&new);
    assert_eq!((before["detection_f1"], before["correction_accuracy"], before["kept"]), (0.0, 0.0, 1.0));

    // One token in eight is wrong and has four candidates. Calling every token wrong has an F1 of 0.22; calling each eighth one wrong
    // and taking any candidate corrects 0.03.
    println!("{after:?}");
    assert!(after["detection_f1"] > 0.35, "{after:?}");
    assert!(after["correction_accuracy"] > 0.1, "{after:?}");
    assert!(after["kept"] > 0.97, "{after:?}");

    // The figures come from the weights that were saved.
    let model = trained(folder.path()).load_into(new, FloatDType::F32).expect("the same parameters");
    assert_eq!(measured(&model), after);
    let metrics = std::fs::read_to_string(folder.path().join("metrics.jsonl")).expect("metrics");
    assert!(metrics.contains("\"figures\":{\"correction_accuracy\":"), "{metrics}");
}

#[test]
fn a_run_with_own_heads_resumes_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = short(6).set("model.dropout", 0.1).set("train.grad_accum_steps", 2);
    let config = valid(settings.set("train.save_every", 3).set("train.validate_every", 3));
    let data = Data::make(&config).expect("data");
    let whole = run(folder.path(), &config).train_model_on(data.of_run(), init(&data)).expect("it trains");
    let last = whole.checkpoint.expect("saved");
    let wanted = trained(folder.path());

    std::fs::remove_dir_all(&last).expect("a checkpoint");
    assert_eq!(TrainedModel::open(folder.path(), Some("step-00000003")).expect("a checkpoint").step, 3);
    let again = Run::open(folder.path()).expect("a run").on(DeviceChoice::Cpu);
    let again = again.resume_model_on(data.of_run(), init(&data)).expect("it goes on");
    let found = trained(folder.path());
    assert_eq!((again.step, found.step), (6, 6));
    for (wanted, found) in wanted.weights().iter().zip(found.weights()) {
        assert!(wanted.name == found.name && wanted.values == found.values, "{} differs", wanted.name);
    }
    assert_eq!(again.validation.expect("validated").figures, whole.validation.expect("validated").figures);
}

#[test]
fn own_heads_start_on_the_encoder_of_another_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let (masked, heads) = (folder.path().join("masked"), folder.path().join("heads"));
    let config = valid(short(2));
    let data = Data::make(&config).expect("data");
    run(&masked, &config).train_on(data.of_run()).expect("it trains");

    let masked = trained(&masked);
    let encoder = |shape: &TransformerConfig, device: &Device| -> EncoderOnly {
        let new = shape.init_encoder_only(1, DType::F32, device);
        masked.load_into(new, FloatDType::F32).expect("the same shape")
    };
    let config = valid(short(2).set("train.freeze", "[\"encoder.*\"]"));
    let init = |shape: &TransformerConfig, device: &Device| {
        ErrorDetector::on(encoder(shape, device), &data.confusions, device)
    };
    run(&heads, &config).train_model_on(data.of_run(), init).expect("it trains");

    let heads = trained(&heads);
    let of = |name: &str| heads.weights().iter().find(|tensor| tensor.name == name).expect("in the checkpoint");
    for tensor in masked.weights() {
        assert_eq!(of(&format!("encoder.{}", tensor.name)).values, tensor.values, "{}", tensor.name);
    }
    assert!(of("detector").values.iter().any(|x| *x != 0.0), "the heads are trained");

    let other = masked.model.init_encoder_only(1, DType::F32, &Device::flex());
    let error = format!("{:#}", heads.load_into(other, FloatDType::F32).expect_err("another module"));
    assert!(error.contains("embedding.table is missing"), "{error}");
}

/// A model that names a figure and does not compute it.
#[derive(Module, Debug)]
struct Silent {
    encoder: EncoderOnly,
}

impl Model for Silent {
    const FIGURES: &'static [&'static str] = &["f1"];

    fn loss(&self, batch: &Batch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        let Batch::Text(batch) = batch else { panic!("a model for text") };
        self.encoder.loss(batch, label_smoothing, stream)
    }
}

#[test]
fn a_figure_that_is_not_computed_is_named() {
    let config = valid(short(2));
    let data = Data::make(&config).expect("data");
    let shape = TransformerConfig { source_vocab_size: data.tokenizer.vocab_size(), ..config.model.clone() };
    let device = Device::flex();
    let model = Silent { encoder: shape.init_encoder_only(1, DType::F32, &device) };
    let batches = OnePass::new(data.valid.clone(), &config.loader).expect("batches");
    let error = figures(&model, batches, 0.0, None, &device, &Ranks::alone()).expect_err("no figures").to_string();
    assert_eq!(error, "Model::figures returned None, but Model::FIGURES names [\"f1\"]");
}

#[test]
fn the_best_checkpoint_goes_by_a_figure_of_ones_own_and_reports_draw_it() {
    let place = Workplace::new();
    let dir = place.path("runs/own");
    let often = || short(6).set("train.validate_every", 1).set("train.save_every", 1).set("train.keep_last", 9);
    let refused = valid(often().set("train.best_metric", "max:detection_f2"));
    let data = Data::make(&refused).expect("data");
    let error = run(&dir, &refused).train_model_on(data.of_run(), init(&data)).expect_err("no such figure");
    let error = format!("{error:#}");
    let wanted = "train.best_metric = \"max:detection_f2\": the model reports no figure \"detection_f2\" at validations; it reports \
                  detection_f1, correction_accuracy, kept; did you mean detection_f1?";
    assert!(error.contains(wanted), "{error}");
    assert!(!dir.exists(), "refused before training");
    let error = run(&dir, &refused).train_on(data.of_run()).expect_err("no figures at all").to_string();
    assert!(error.contains("it reports none of its own"), "{error}");

    // Untrained, the detector keeps every token; the lowest share of them is of a later step.
    let config = valid(often().set("train.best_metric", "min:kept").set("optim.lr", 0.05));
    let outcome = run(&dir, &config).train_model_on(data.of_run(), init(&data)).expect("it trains");
    let metrics = place.read("runs/own/metrics.jsonl");
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let validations: Vec<Value> = lines.filter(|line| line["kind"] == "validation").collect();
    let kept = |line: &Value| line["figures"]["kept"].as_f64().expect("a figure");
    let lowest = validations.iter().map(kept).fold(f64::INFINITY, f64::min);
    assert!(validations.len() == 6 && lowest < validations.iter().map(kept).fold(0.0, f64::max), "{validations:?}");
    let best = outcome.best.expect("a validation");
    let score = best.score.expect("a figure");
    // The reader of JSON may miss the last bit.
    let equal = |left: f64, right: f64| (left - right).abs() < 1e-12;
    assert!(score.metric.to_string() == "min:kept" && equal(score.value, lowest), "{score:?} instead of {lowest}");
    let of_best = validations.iter().find(|line| line["step"] == best.step).expect("validated");
    assert!(kept(of_best) == lowest && equal(of_best["loss"].as_f64().expect("a loss"), best.loss), "{of_best}");
    let folder = format!("step-{:08}", best.step);
    assert_eq!(place.read("runs/own/checkpoints/best").trim(), folder);
    let average = place.run(&["average", "runs/own", "--best", "1", "--out", "runs/average"]).ok();
    assert!(average.stderr.contains(&format!("averaging {folder}")), "{average:#?}");

    place.run(&["report", "runs/own", "--figure", "own", "--svg", "own.svg"]).ok();
    place.run(&["report", "runs/own"]).ok();
    let (svg, page) = (place.read("own.svg"), place.read("runs/own/report.html"));
    for name in ["detection_f1", "correction_accuracy", "kept"] {
        assert!(svg.contains(&format!("{name}: ")) && page.contains(&format!("<h3>{name}</h3>")), "{name}");
    }
}

/// The sum that `Scores::add_to` computes, with a tensor of zeros as large as the logits.
fn dense(logits: Tensor<2>, scores: Scores, input: Tensor<1, Int>, ids: Tensor<2, Int>) -> Tensor<2> {
    let [m, v] = logits.dims();
    let [_, k] = ids.dims();
    let gate = sigmoid(scores.wrong).reshape([m, 1]);
    let columns = Tensor::<1, Int>::arange(0..v as i64, (&ids.device(), DType::I32)).reshape([1, v]);
    let hot = |ids: Tensor<2, Int>| ids.equal(columns.clone()).float().cast(DType::F32);
    let mut sum = logits.zeros_like();
    sum = sum + hot(input.reshape([m, 1])) * (gate.clone() * -1.0 + 1.0) * scores.keep.reshape([1, 1]);
    for i in 0..k {
        sum = sum + hot(ids.clone().narrow(1, i, 1)) * gate.clone() * scores.candidates.clone().narrow(1, i, 1);
    }
    logits + sum
}

#[test]
fn gated_scores_scattered_into_the_logits_equal_a_dense_sum() {
    let device = Device::flex().autodiff();
    let (m, v, k) = (7, 23, 4);
    let waves = |n: usize, from: f32| -> TensorData {
        let values: Vec<f32> = (0..n).map(|i| 3.0 * (from + 1.7 * i as f32).sin()).collect();
        TensorData::new(values, [n])
    };
    let (logits, wrong, candidates) = (waves(m * v, 0.0), waves(m, 0.5), waves(m * k, 1.0));
    let inner = Device::flex();
    let numbers = |n: usize, step: usize| -> Vec<i32> { (0..n).map(|i| (i * step % v) as i32).collect() };
    let input = Tensor::<1, Int>::from_data(TensorData::new(numbers(m, 5), [m]), (&inner, DType::I32));
    // Some rows name a candidate twice, or the token of the text itself.
    let mut ids = numbers(m * k, 3);
    (ids[1], ids[k]) = (ids[0], 5);
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [m, k]), (&inner, DType::I32));
    let labels = Tensor::<1, Int>::from_data(TensorData::new(numbers(m, 7), [m]), (&inner, DType::I32));

    let result = |sum: fn(Tensor<2>, Scores, Tensor<1, Int>, Tensor<2, Int>) -> Tensor<2>| -> Vec<Vec<f32>> {
        let leaf = |data: &TensorData| Tensor::<1>::from_data(data.clone(), &device).require_grad();
        let leaves = [leaf(&logits), leaf(&wrong), leaf(&candidates), leaf(&TensorData::from([1.5f32]))];
        let [logits, wrong, candidates, keep] = leaves.clone();
        let scores = Scores { wrong, candidates: candidates.reshape([m, k]), keep };
        let sum = sum(logits.reshape([m, v]), scores, input.clone(), ids.clone());
        let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: -1 };
        let gradients = cross_entropy(sum.clone(), labels.clone(), &config).loss_sum.backward();
        let found = leaves.map(|leaf| leaf.grad(&gradients).expect("a gradient").into_data());
        let values = [sum.into_data()].into_iter().chain(found);
        values.map(|data| data.iter::<f32>().collect()).collect()
    };
    let scattered = result(|logits, scores, input, ids| scores.add_to(logits, input, ids));
    let what = ["values", "gradient of the logits", "of wrong", "of the candidates", "of keep"];
    for ((scattered, dense), what) in scattered.iter().zip(&result(dense)).zip(what) {
        assert!(dense.iter().any(|x| x.abs() > 1e-3), "{what}");
        for (found, wanted) in scattered.iter().zip(dense) {
            assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{what}: {found} instead of {wanted}");
        }
    }
}

#[test]
fn the_operators_of_own_heads_are_timed() {
    let config = valid(short(2));
    let data = Data::make(&config).expect("data");
    let mut shape = config.model.clone();
    data.of_run().vocabulary.complete(&mut shape).expect("a vocabulary that fits");
    let device = Device::flex();
    let groups = Groups::of(&config, FloatDType::F32);
    let start = Start { config: &config, groups: &groups, dtype: FloatDType::F32 };
    let model = init(&data)(&shape, &device.clone().autodiff());
    let state = TrainState::begin(start, &shape, model).expect("a state");
    let host = OnePass::new(data.valid.clone(), &config.loader).expect("batches").next();
    let batch = upload(&host.expect("a batch").expect("a batch that can be made"), &device);

    let found = measure(state, &batch, 1).expect("a CPU");
    let named = |name: &str| found.timed.iter().any(|row| row.name.starts_with(name) && row.calls > 0);
    for name in
        ["linear NN", "linear TN", "attention forward", "attention backward", "norm backward", "embedding backward"]
    {
        assert!(named(name), "{name} is missing in {found:?}");
    }
}
