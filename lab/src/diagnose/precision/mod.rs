//! Audits a precision: a short training in it is compared with the same training in f32, in loss, speed and memory. The audit
//! also checks which numbers are computed in f32 in every precision.

pub mod probes;

use anyhow::{Context, Result, ensure};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use kiln_data::{Loader, LoaderConfig, Position, Rank};
use kiln_model::{ActivationCheckpointing, Batch};
use kiln_train::config::{Config, MasterWeights, NonFinite, Precision};
use kiln_train::dataset::RunData;
use kiln_train::device::{compute_dtype, reserved_bytes, upload};
use kiln_train::eval::{Init, Model};
use kiln_train::metrics::deferred::DeferredMetrics;
use kiln_train::metrics::{Round, SpanClock, StepMetrics};
use kiln_train::train::feed::GroupFeed;
use kiln_train::train::step::{group_gradients, update};

use self::probes::Probe;
use super::measure::Prepared;

/// A short training in one precision.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The compute dtype.
    pub dtype: FloatDType,
    /// Every step, in order.
    pub steps: Vec<StepMetrics>,
    /// Non-padding tokens per second over the second half; kernels are compiled in the first half.
    pub tokens_per_sec: f64,
    /// Device memory reserved at the end. It is the peak, because the allocator returns nothing. `None` on the CPU.
    pub reserved_bytes: Option<u64>,
    /// The dtypes of compute weights, the gradients of an update, master weights, the optimizer's state, and loss.
    pub dtypes: Vec<(String, DType)>,
    /// The dtype that master weights and state should have (`train.master_weights`).
    pub(crate) kept: DType,
    /// Micro-batches per step; gradients of more than one are accumulated.
    pub(crate) n_micro_batches: usize,
    /// Whether token ids on the device still equalled the host's, as 32-bit integers, after the last step.
    pub integers_untouched: bool,
}

impl Trial {
    /// Counts the steps without an update because the loss scale was too high.
    pub fn n_overflows(&self) -> usize {
        self.steps.iter().filter(|step| step.is_overflow()).count()
    }

    /// Counts the steps whose loss or gradient was not finite although it should have been.
    pub fn n_failed(&self) -> usize {
        self.steps.iter().filter(|step| step.has_failed()).count()
    }
}

/// What an audit trains: the first steps of a run.
pub struct Subject<'a, M: Model> {
    /// The complete configuration of the run.
    pub config: &'a Config,
    /// Makes its model.
    pub init: &'a Init<'a, M>,
    /// Its data.
    pub data: &'a RunData,
    /// Steps of each training.
    pub n_steps: u64,
    /// Where they are computed.
    pub device: &'a Device,
}

impl<M: Model> Subject<'_, M> {
    /// Audits `precision`.
    ///
    /// # Errors
    /// If the device does not support the precision, or fails.
    pub fn audit(&self, precision: Precision) -> Result<Audit> {
        let dtype = compute_dtype(precision, self.device)?;
        let probes = probes::of_operators(dtype, self.device)?;
        let ids_are_exact = probes::ids_are_exact(dtype, self.device)?;
        // First, because memory that the allocator reserved for f32 would count for both.
        let asked = self.trial(precision)?;
        self.device.clone().inner().memory_cleanup();
        let reference = self.trial(Precision::F32)?;
        Ok(Audit { reference, asked, probes, ids_are_exact })
    }

    /// Trains in `precision`, as `kiln train` does from its first step. Nothing is saved.
    ///
    /// # Errors
    /// If the device does not support the precision, or fails.
    pub fn trial(&self, precision: Precision) -> Result<Trial> {
        let Self { config, init, data, n_steps, device } = *self;
        ensure!(n_steps > 1, "an audit takes at least two steps");
        let dtype = compute_dtype(precision, device)?;

        let mut config = config.clone();
        // The audit counts non-finite steps; it does not stop at them.
        config.train.non_finite = NonFinite::Skip;
        config.train.precision = precision;
        if precision == Precision::F32 {
            config.train.master_weights = MasterWeights::F32;
        }
        let (model, vocabulary, checkpointing) = (&config.model, Some(&data.vocabulary), ActivationCheckpointing::Off);
        let mut state = Prepared { config: &config, model, vocabulary, checkpointing, dtype, device }.state(init)?;

        let inline = LoaderConfig { num_workers: 0, ..config.loader.clone() };
        let host = Loader::new(data.train.clone(), &inline, config.seed, Position::default())?.next_batch()?;
        let kept = token_numbers(&upload(&host, device));

        let loader = Loader::new(data.train.clone(), &config.loader, config.seed, Position::default())?;
        let mut feed = GroupFeed::new(loader, Position::default(), &config.train, Rank::default(), device.clone())?;
        let (mut clock, mut deferred, mut steps) = (SpanClock::start(), DeferredMetrics::default(), Vec::new());
        let (mut gradients_dtype, mut loss_dtype, mut n_micro_batches) = (DType::F32, DType::F32, 0);
        let mut half = |n_steps: u64| -> Result<Round<()>> {
            let round = Round::of(device, n_steps as usize, |_| {
                let group = feed.next_group(&mut clock)?;
                // The two halves of `train_step`, to inspect the gradients between them.
                let (sums, gradients) = group_gradients(&state, &group.batches, state.micro_steps);
                (gradients_dtype, n_micro_batches) = (gradients.0.values.dtype(), group.batches.len());
                let measures = update(&mut state, group.n_numbers, sums, gradients)?;
                loss_dtype = measures.loss_sum.dtype();
                deferred.push(group.facts(&state), measures);
                Ok(())
            })?;
            let rate = state.optimizer.learning_rate();
            steps.extend(deferred.drain(|update| rate.at(update)).context("reading the losses")?); // host sync
            Ok(round)
        };
        half(n_steps / 2)?;
        let timed = half(n_steps - n_steps / 2)?;

        let secs = (timed.ended - timed.started).as_secs_f64();
        let tokens: u64 = steps[(n_steps / 2) as usize..].iter().map(|step| step.tokens).sum();
        let kernel_state = state.optimizer.state();
        let mut dtypes = vec![
            ("weights".to_owned(), kernel_state.compute_weights().dtype()),
            ("gradients".to_owned(), gradients_dtype),
            ("master weights".to_owned(), kernel_state.master.dtype()),
        ];
        let slots = state.optimizer.groups().slots(state.optimizer.table());
        let states = slots.iter().zip(&kernel_state.named);
        dtypes
            .extend(states.filter_map(|(slot, state)| Some((format!("state {}", slot.name), state.as_ref()?.dtype()))));
        dtypes.push(("loss".to_owned(), loss_dtype));

        let is_same = |tensor: Tensor<1, Int>, wanted: &[i32]| -> Result<bool> {
            let is_i32 = tensor.dtype() == DType::I32;
            let data = tensor.try_into_data().context("reading token numbers")?;
            Ok(is_i32 && data.as_slice::<i32>().is_ok_and(|found| found == wanted))
        };
        let n_kept = kept.dims()[0];
        let integers_untouched = is_same(kept, &host.ids[..n_kept])?;

        let reserved_bytes = reserved_bytes(device);
        let tokens_per_sec = tokens as f64 / secs;
        let is_exact = config.train.master_weights == MasterWeights::F32;
        let kept = if is_exact { DType::F32 } else { DType::BF16 };
        Ok(Trial { dtype, steps, tokens_per_sec, reserved_bytes, dtypes, kept, n_micro_batches, integers_untouched })
    }
}

/// Returns the input token ids of an uploaded batch.
fn token_numbers(batch: &Batch) -> Tensor<1, Int> {
    match batch {
        Batch::Pairs(batch) => batch.source.clone(),
        Batch::Text(batch) => batch.input.clone(),
    }
}

/// The result of an audit.
#[derive(Debug, Clone)]
pub struct Audit {
    /// The trial in f32.
    pub reference: Trial,
    /// The trial in the audited precision.
    pub asked: Trial,
    /// The probes of norm, softmax and loss.
    pub probes: Vec<Probe>,
    /// Whether 70,000 token ids look up the right rows.
    pub ids_are_exact: bool,
}

impl Audit {
    /// Returns the step with the largest relative difference from the loss in f32, and the difference. NaN counts as larger than
    /// any number. Steps that overflowed are skipped: their loss may be NaN, and they update nothing.
    pub fn largest_difference(&self) -> (u64, f64) {
        let pairs = self.reference.steps.iter().zip(&self.asked.steps);
        let differences = pairs
            .filter(|(_, asked)| !asked.is_overflow())
            .map(|(reference, asked)| (asked.step, (asked.loss / reference.loss - 1.0).abs()));
        differences.fold((0, 0.0), |a: (u64, f64), b| if b.1 <= a.1 || a.1.is_nan() { a } else { b })
    }

    /// Returns one line per problem.
    pub fn problems(&self, tolerance: f64) -> Vec<String> {
        let mut problems = Vec::new();
        let (step, difference) = self.largest_difference();
        if difference.is_nan() || difference > tolerance {
            problems.push(format!(
                "the loss of step {step} differs by {:.2} % from the loss in f32, more than the tolerated {:.2} %",
                100.0 * difference,
                100.0 * tolerance
            ));
        }
        let n_failed = self.asked.n_failed();
        if n_failed > 0 {
            problems.push(format!("loss or gradient were not finite in {n_failed} steps"));
        }
        if self.asked.n_overflows() == self.asked.steps.len() {
            problems.push("every step overflowed: lower train.loss_scale.init, or audit more steps".into());
        }

        for probe in self.probes.iter().filter(|probe| !probe.is_sound()) {
            problems.push(format!("{} is not computed in f32: an error of {:.1e}", probe.what, probe.error));
        }
        for (what, dtype) in &self.asked.dtypes[1..] {
            // The gradient of one micro-batch may have the dtype of the weights; a sum of several needs f32.
            let is_rounded = what == "gradients" && self.asked.n_micro_batches == 1;
            let is_kept = what == "master weights" || what.starts_with("state ");
            let wanted = if is_kept { self.asked.kept } else { DType::F32 };
            if *dtype != wanted && !is_rounded {
                problems.push(format!("{what} are {dtype:?} instead of {wanted:?}"));
            }
        }
        if !(self.asked.integers_untouched && self.ids_are_exact) {
            problems.push("token ids do not stay exact integers".into());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use kiln_train::config::presets;

    use super::*;

    /// A tiny model on the built-in task.
    fn audited(precision: Precision, change: impl FnOnce(&mut Config)) -> Audit {
        let dir = tempfile::tempdir().expect("a folder");
        let mut config = presets::numbers();
        (config.model.d_model, config.model.d_ff, config.model.n_heads) = (32, 64, 2);
        config.loader.batch_tokens = 512;
        change(&mut config);
        let data = RunData::open(&config, dir.path(), None, &mut |_| {}).expect("data");
        data.vocabulary.complete(&mut config.model).expect("a model that fits");
        let (init, device) = (Init::transformer(), Device::flex());
        let subject = Subject { config: &config, init: &init, data: &data, n_steps: 12, device: &device };
        subject.audit(precision).expect("the CPU trains")
    }

    #[test]
    fn other_precisions_learn_what_f32_learns() {
        for (precision, tolerance) in
            [(Precision::Fp8, 0.05), (Precision::Fp16, 0.01), (Precision::Bf16, 0.03), (Precision::F32, 0.0)]
        {
            let audit = audited(precision, |config| config.train.loss_scale.init = 1024.0);
            assert_eq!(audit.problems(tolerance), Vec::<String>::new(), "{precision:?}");
            assert!(audit.asked.tokens_per_sec > 0.0 && audit.asked.steps.len() == 12);
            assert_eq!(audit.asked.steps[0].loss_scale.is_some(), precision == Precision::Fp16);
            assert_eq!(audit.asked.dtypes[0].1, DType::from(audit.asked.dtype));
            assert_eq!(audit.asked.dtypes[1], ("gradients".to_owned(), DType::from(audit.asked.dtype)));
        }
    }

    #[test]
    fn master_weights_are_bf16_where_the_run_asks_for_it_and_f32_in_the_reference() {
        let mut audit = audited(Precision::Bf16, |config| config.train.master_weights = MasterWeights::Bf16);
        assert_eq!(audit.problems(0.03), Vec::<String>::new());
        assert_eq!((audit.asked.dtypes[2].1, audit.reference.dtypes[2].1), (DType::BF16, DType::F32));
        audit.asked.dtypes[2].1 = DType::F32;
        assert_eq!(audit.problems(0.03), ["master weights are F32 instead of BF16"]);
    }

    #[test]
    fn gradients_of_several_micro_batches_are_accumulated_in_f32() {
        let change = |config: &mut Config| config.train.grad_accum_steps = 2;
        let mut audit = audited(Precision::Bf16, change);
        let gradients = ("gradients".to_owned(), DType::F32);
        assert_eq!((&audit.asked.dtypes[1], audit.asked.n_micro_batches), (&gradients, 2));
        assert_eq!(audit.problems(0.03), Vec::<String>::new());
        audit.asked.dtypes[1].1 = DType::BF16;
        assert_eq!(audit.problems(0.03), ["gradients are BF16 instead of F32"]);
    }

    #[test]
    fn each_problem_is_reported() {
        let mut audit = audited(Precision::Fp16, |config| config.train.loss_scale.init = 1e30);
        assert_eq!(audit.asked.n_overflows(), 12);
        let problems = audit.problems(1.0);
        assert!(problems.len() == 1 && problems[0].contains("every step overflowed"), "{problems:?}");
        audit.asked.steps[7].loss = 2.0 * audit.reference.steps[7].loss;
        audit.asked.steps[7].skipped = false;
        assert_eq!(audit.largest_difference().0, 8);
        audit.asked.steps[9].loss = f64::NAN;
        audit.asked.steps[9].skipped = false;
        assert!(audit.largest_difference().0 == 10 && audit.largest_difference().1.is_nan(), "no number hides a NaN");
        audit.probes[1].error = 15.0;
        (audit.asked.dtypes[2].1, audit.ids_are_exact) = (DType::BF16, false);
        let problems = audit.problems(1.0).join("\n");
        for part in ["the loss of step 10", "not finite", "softmax is not", "master weights are BF16", "integers"] {
            assert!(problems.contains(part), "{part:?} is missing in {problems}");
        }
    }
}
