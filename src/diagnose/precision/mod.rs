//! The audit of a precision: does a short training in it learn what the same training in f32 learns, at what speed and with how
//! much memory, and what is computed in f32 all the same?

pub mod probes;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use kiln_data::{Loader, LoaderConfig, Position};
use kiln_model::Batch;

use self::probes::Probe;
use crate::config::{Config, NonFinite, Precision};
use crate::dataset::RunData;
use crate::device::{compute_dtype, reserved_bytes, upload};
use crate::eval::Masking;
use crate::metrics::deferred::DeferredMetrics;
use crate::metrics::{SpanClock, StepMetrics};
use crate::train::TrainState;
use crate::train::feed::GroupFeed;
use crate::train::step::{group_gradients, update};

/// A short training in one precision.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Compute dtype.
    pub dtype: FloatDType,
    /// Every step, in order.
    pub steps: Vec<StepMetrics>,
    /// Tokens that are no padding, a second, over the later half: kernels are compiled in the first.
    pub tokens_per_sec: f64,
    /// Device memory reserved at the end; allocators give nothing back, so it is the peak. `None` on the CPU.
    pub reserved_bytes: Option<u64>,
    /// Dtypes of the weights computed with, the gradients that an update is made of, master weights, first and second moments and
    /// loss.
    pub dtypes: [(&'static str, DType); 6],
    /// Micro-batches of a step: the gradients of more than one are added up.
    pub n_micro_batches: usize,
    /// Whether the token numbers on the device were the host's, as 32-bit integers, after the last step too.
    pub integers_untouched: bool,
}

impl Trial {
    /// Steps without an update because the loss scale was too high.
    pub fn n_overflows(&self) -> usize {
        self.steps.iter().filter(|step| step.is_overflow()).count()
    }

    /// Steps whose loss or gradient was not finite when it should have been.
    pub fn n_failed(&self) -> usize {
        self.steps.iter().filter(|step| step.has_failed()).count()
    }
}

/// Trains `n_steps` steps in `precision`, as `kiln train` would from its first step on, and keeps nothing.
///
/// # Errors
/// If the device does not have the precision, or fails.
pub fn trial(config: &Config, data: &RunData, precision: Precision, n_steps: u64, device: &Device) -> Result<Trial> {
    ensure!(n_steps > 1, "an audit takes at least two steps");
    let dtype = compute_dtype(precision, device)?;
    let mut config = config.clone();
    // What fails is counted here, not acted upon.
    config.train.non_finite = NonFinite::Skip;
    let mut state = TrainState::new(&config, &config.model, dtype, device);
    state.masking = Masking::of(&config, &data.vocabulary)?;

    let inline = LoaderConfig { num_workers: 0, ..config.loader.clone() };
    let host = Loader::new(data.train.clone(), &inline, config.seed, Position::default())?.next_batch()?;
    let kept = token_numbers(&upload(&host, device));

    let loader = Loader::new(data.train.clone(), &config.loader, config.seed, Position::default())?;
    let mut feed = GroupFeed::new(loader, Position::default(), &config.train, device.clone());
    let (mut clock, mut deferred) = (SpanClock::start(), DeferredMetrics::default());
    let (mut steps, mut started) = (Vec::new(), Instant::now());
    let (mut gradients_dtype, mut loss_dtype, mut n_micro_batches) = (DType::F32, DType::F32, 0);
    for step in 1..=n_steps {
        let group = feed.next_group(&mut clock)?;
        // The two halves of `train_step`, to see what is handed from one to the other.
        let (sums, gradients) = group_gradients(&state, &group.batches, state.micro_steps);
        (gradients_dtype, n_micro_batches) = (gradients.0.values.dtype(), group.batches.len());
        let measures = update(&mut state, &group.batches, sums, gradients);
        loss_dtype = measures.loss_sum.dtype();
        deferred.push(group.facts(&state), measures);
        if step == n_steps / 2 || step == n_steps {
            let rate = state.optimizer.learning_rate();
            // Host sync: half of the trial is over.
            steps.extend(deferred.drain(|update| rate.at(update)).context("reading the losses")?);
            if step < n_steps {
                started = Instant::now();
            }
        }
    }
    let secs = started.elapsed().as_secs_f64();
    let tokens: u64 = steps[(n_steps / 2) as usize..].iter().map(|step| step.tokens).sum();
    let kernel_state = state.optimizer.state();
    let dtypes = [
        ("weights", kernel_state.compute_weights().dtype()),
        ("gradients", gradients_dtype),
        ("master weights", kernel_state.master.dtype()),
        ("first moments", kernel_state.m.dtype()),
        ("second moments", kernel_state.v.dtype()),
        ("loss", loss_dtype),
    ];
    let is_same = |tensor: Tensor<1, Int>, wanted: &[i32]| -> Result<bool> {
        let is_i32 = tensor.dtype() == DType::I32;
        let data = tensor.try_into_data().context("reading token numbers")?;
        Ok(is_i32 && data.as_slice::<i32>().is_ok_and(|found| found == wanted))
    };
    let n_kept = kept.dims()[0];
    let integers_untouched = is_same(kept, &host.ids[..n_kept])?;
    let reserved_bytes = reserved_bytes(device);
    let tokens_per_sec = tokens as f64 / secs;
    Ok(Trial { dtype, steps, tokens_per_sec, reserved_bytes, dtypes, n_micro_batches, integers_untouched })
}

/// The first numbers of an uploaded batch: what is read.
fn token_numbers(batch: &Batch) -> Tensor<1, Int> {
    match batch {
        Batch::Pairs(batch) => batch.source.clone(),
        Batch::Text(batch) => batch.input.clone(),
    }
}

/// What an audit has found.
#[derive(Debug, Clone)]
pub struct Audit {
    /// The trial in f32.
    pub reference: Trial,
    /// The trial in the precision that was asked for.
    pub asked: Trial,
    /// Norm, softmax and loss.
    pub probes: Vec<Probe>,
    /// Whether 70,000 token numbers reach the rows they mean.
    pub ids_are_exact: bool,
}

/// Audits `precision` on `device` over the first `n_steps` steps of the run that `config` and `data` are of.
///
/// # Errors
/// If the device does not have the precision, or fails.
pub fn audit(config: &Config, data: &RunData, precision: Precision, n_steps: u64, device: &Device) -> Result<Audit> {
    let dtype = compute_dtype(precision, device)?;
    let probes = probes::of_operators(dtype, device)?;
    let ids_are_exact = probes::ids_are_exact(dtype, device)?;
    // First: what an allocator has once reserved for f32 would count for both.
    let asked = trial(config, data, precision, n_steps, device)?;
    device.clone().inner().memory_cleanup();
    let reference = trial(config, data, Precision::F32, n_steps, device)?;
    Ok(Audit { reference, asked, probes, ids_are_exact })
}

impl Audit {
    /// Largest relative difference of the loss of a step from f32's, with the step; NaN counts as larger than any number. Steps that
    /// overflowed in either trial are left out: their loss may be no number, and it trains nothing.
    pub fn largest_difference(&self) -> (u64, f64) {
        let pairs = self.reference.steps.iter().zip(&self.asked.steps);
        let differences = pairs
            .filter(|(_, asked)| !asked.is_overflow())
            .map(|(reference, asked)| (asked.step, (asked.loss / reference.loss - 1.0).abs()));
        differences.fold((0, 0.0), |a: (u64, f64), b| if b.1 <= a.1 || a.1.is_nan() { a } else { b })
    }

    /// Everything that is wrong, a line each.
    pub fn problems(&self, tolerance: f64) -> Vec<String> {
        let mut problems = Vec::new();
        let (step, difference) = self.largest_difference();
        if difference.is_nan() || difference > tolerance {
            problems.push(format!(
                "the loss of step {step} is {:.2} % away from f32's, more than the {:.2} % that are tolerated",
                100.0 * difference,
                100.0 * tolerance
            ));
        }
        let n_failed = self.asked.n_failed();
        if n_failed > 0 {
            problems.push(format!("the loss or gradient of {n_failed} steps was not finite"));
        }
        if self.asked.n_overflows() == self.asked.steps.len() {
            problems.push("every step overflowed: lower train.loss_scale.init, or audit more steps".into());
        }
        for probe in self.probes.iter().filter(|probe| !probe.is_sound()) {
            problems.push(format!("{} is not computed in f32: an error of {:.1e}", probe.what, probe.error));
        }
        for (what, dtype) in &self.asked.dtypes[1..] {
            // Each gradient may have the dtype of the weights; a sum of many needs more digits.
            let is_rounded = *what == "gradients" && self.asked.n_micro_batches == 1;
            if *dtype != DType::F32 && !is_rounded {
                problems.push(format!("{what} are {dtype:?} instead of F32"));
            }
        }
        if !(self.asked.integers_untouched && self.ids_are_exact) {
            problems.push("token numbers do not stay the integers they are".into());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    /// A tiny model on the built-in task.
    fn audited(precision: Precision, change: impl FnOnce(&mut Config)) -> Audit {
        let dir = tempfile::tempdir().expect("a folder");
        let mut config = presets::numbers();
        (config.model.d_model, config.model.d_ff, config.model.n_heads) = (32, 64, 2);
        config.loader.batch_tokens = 512;
        change(&mut config);
        let data = RunData::open(&config, dir.path(), None, &mut |_| {}).expect("data");
        data.vocabulary.complete(&mut config.model).expect("a model that fits");
        audit(&config, &data, precision, 12, &Device::flex()).expect("the CPU trains")
    }

    #[test]
    fn fp16_and_bf16_learn_what_f32_learns() {
        for (precision, tolerance) in [(Precision::Fp16, 0.01), (Precision::Bf16, 0.03), (Precision::F32, 0.0)] {
            let audit = audited(precision, |config| config.train.loss_scale.init = 1024.0);
            assert_eq!(audit.problems(tolerance), Vec::<String>::new(), "{precision:?}");
            assert!(audit.asked.tokens_per_sec > 0.0 && audit.asked.steps.len() == 12);
            assert_eq!(audit.asked.steps[0].loss_scale.is_some(), precision == Precision::Fp16);
            assert_eq!(audit.asked.dtypes[0].1, DType::from(audit.asked.dtype));
            assert_eq!(audit.asked.dtypes[1], ("gradients", DType::from(audit.asked.dtype)));
        }
    }

    #[test]
    fn gradients_of_several_micro_batches_are_added_up_in_f32() {
        let change = |config: &mut Config| config.train.grad_accum_steps = 2;
        let mut audit = audited(Precision::Bf16, change);
        assert_eq!((audit.asked.dtypes[1], audit.asked.n_micro_batches), (("gradients", DType::F32), 2));
        assert_eq!(audit.problems(0.03), Vec::<String>::new());
        audit.asked.dtypes[1].1 = DType::BF16;
        assert_eq!(audit.problems(0.03), ["gradients are BF16 instead of F32"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut audit = audited(Precision::Fp16, |config| config.train.loss_scale.init = 1e30);
        assert_eq!(audit.asked.n_overflows(), 12);
        let problems = audit.problems(1.0);
        assert!(problems.len() == 1 && problems[0].contains("every step overflowed"), "{problems:?}");
        audit.asked.steps[7].loss = 2.0 * audit.reference.steps[7].loss;
        audit.asked.steps[7].skipped = false;
        assert_eq!(audit.largest_difference().0, 8);
        audit.asked.steps[9].loss = f64::NAN;
        audit.asked.steps[9].skipped = false;
        assert!(audit.largest_difference().0 == 10 && audit.largest_difference().1.is_nan(), "no number hides it");
        audit.probes[1].error = 15.0;
        (audit.asked.dtypes[2].1, audit.ids_are_exact) = (DType::BF16, false);
        let problems = audit.problems(1.0).join("\n");
        for part in ["the loss of step 10", "not finite", "softmax is not", "master weights are BF16", "integers"] {
            assert!(problems.contains(part), "{part:?} is missing in {problems}");
        }
    }
}
