//! What a run is going to do, counted before its first step.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_data::{BatchSource, Order, Shape};
use kiln_kernels::is_cuda;
use kiln_metrics::units::{counted, thousands};
use kiln_model::flops::{TrainBytes, attention_has_kernel, n_params};
use kiln_model::{ActivationCheckpointing, Positions};

use super::done::{Done, epochs, many_epochs};
use super::error::RunError;
use super::need::Need;
use super::shapes;
use crate::config::{Config, computed_again, fewer_activations, size, there_is};
use crate::dataset::RunData;
use crate::device::{device_name, is_cpu, machine_of, training_dtype};

/// Fewer rows are hardly what somebody wants to train on, unless they are long.
const FEW_ROWS: u64 = 20;
/// Fewer tokens are not long.
const FEW_TOKENS: usize = 1000;
/// Fewer optimizer steps hardly change a model, however many rows each has.
const FEW_STEPS: u64 = 50;

/// The numbers of a run before its first step.
#[doc(hidden)]
pub struct Plan {
    /// Name of the device.
    pub device: String,
    /// Type of weights and activations.
    pub dtype: FloatDType,
    pub(crate) epochs: f64,
    pub(crate) steps: u64,
    /// Epochs and steps of the run so far.
    done: (f64, u64),
    /// The length is given in epochs (`train.epochs`).
    counts_epochs: bool,
    /// Batches of an optimizer step on all devices.
    batches_per_step: usize,
    /// Steps from one synchronization of the devices to the next.
    sync_every: u64,
    /// The shape that needs most memory.
    pub largest: Shape,
    /// What the memory holds.
    pub bytes: TrainBytes,
    /// The activations that are kept, if `bytes` is right.
    pub checkpointing: ActivationCheckpointing,
    pub(crate) memory_bytes: Option<u64>,
    /// Whether `train.memory_limit` is what allows no more.
    is_limited: bool,
    batch_tokens: usize,
    is_cpu: bool,
    n_params: u64,
    train: Rows,
    valid: Option<Rows>,
    /// What the user should know about how the data is read.
    notes: Vec<String>,
}

/// The rows of a data set.
struct Rows {
    n: u64,
    /// Tokens of a row of text; `None` for pairs.
    len: Option<usize>,
    largest: Option<Shape>,
}

impl Rows {
    /// Looks at every batch of `source`; `bytes` is the memory that a shape needs.
    fn of(source: &Arc<dyn BatchSource>, bytes: impl Fn(Shape) -> u64) -> Self {
        let plan = source.plan(Order::Sequential);
        let (mut n, mut longest, mut largest) = (0, 0, None);
        for index in 0..plan.len() {
            let (rows, shape) = plan.batch(index);
            n += rows.len() as u64;
            longest = longest.max(shape.target_len);
            let needed = bytes(shape);
            if largest.is_none_or(|(most, _)| needed > most) {
                largest = Some((needed, shape));
            }
        }
        let largest = largest.map(|(_, shape)| shape);
        let is_text = largest.is_some_and(|shape| shape.source_len == 0);
        Self { n, len: is_text.then_some(longest), largest }
    }

    fn describe(&self) -> String {
        match self.len {
            Some(len) => format!("{} of up to {len} tokens", counted(self.n, "row")),
            None => counted(self.n, "pair"),
        }
    }
}

impl Plan {
    /// Counts the run of a complete configuration on `data`, on `n_devices` like `device`, which has `done` some of its steps. With
    /// `may_split`, smaller micro-batches come before fewer activations.
    ///
    /// # Errors
    /// If the device does not support the precision.
    pub(super) fn of(
        config: &Config,
        data: &RunData,
        device: &Device,
        n_devices: usize,
        may_split: bool,
        done: Done,
    ) -> Result<Self> {
        let dtype = training_dtype(&config.train, device)?;
        let bytes_with = |shape, checkpointing| {
            let need = Need { dtype, n_devices, checkpointing };
            need.of(config, device, shape)
        };
        let train = Rows::of(&data.train, |shape| bytes_with(shape, ActivationCheckpointing::Off).total());
        let batches_per_epoch = data.train.batches_per_epoch().max(1) as f64;
        let epochs_done = done.epochs(batches_per_epoch);
        let steps_left = config.train.steps.saturating_sub(done.steps);
        let batches_left = steps_left as f64 * (config.train.grad_accum_steps * n_devices) as f64;
        let largest = train.largest.unwrap_or(Shape::text(1, 1));
        let limit = config.train.limit_bytes();
        let machine = config.part_of(machine_of(device));

        let checkpointing = config.train.activation_checkpointing.chosen().unwrap_or_else(|| {
            let fits = |checkpointing: &_| {
                let needed = bytes_with(largest, *checkpointing).total();
                machine.memory_bytes.is_none_or(|memory| may_split || needed <= memory)
            };
            [ActivationCheckpointing::Off, ActivationCheckpointing::Selective]
                .into_iter()
                .find(fits)
                .unwrap_or(ActivationCheckpointing::Layer)
        });
        let mut notes = data.notes.clone();
        if config.model.positions == Positions::Relative && !attention_has_kernel(&config.model, device, dtype.into()) {
            notes.push(format!(
                "attention: no fused kernel computes model.positions = \"relative\" for heads of {} in {dtype:?}; it runs its reference \
                 operators, which take more time and memory",
                config.model.head_dim()
            ));
        }

        if is_cuda(device) {
            notes.extend(shapes::unsuited(&config.model, dtype));
        }

        let named = match n_devices {
            1 => device_name(device),
            n => format!("{n} x {}", device_name(device)),
        };

        Ok(Self {
            device: named,
            dtype,
            sync_every: config.train.sync_every,
            epochs: epochs_done + batches_left / batches_per_epoch,
            steps: config.train.steps,
            done: (epochs_done, done.steps),
            counts_epochs: config.train.epochs > 0.0,
            batches_per_step: config.train.grad_accum_steps * n_devices,
            largest,
            bytes: bytes_with(largest, checkpointing),
            checkpointing,
            memory_bytes: machine.memory_bytes,
            is_limited: limit.is_some() && limit == machine.memory_bytes,
            batch_tokens: config.loader.batch_tokens,
            is_cpu: is_cpu(device),
            n_params: n_params(&config.model).total(),
            valid: data.valid.as_ref().map(|valid| Rows::of(valid, |shape| shape.padded_tokens() as u64)),
            train,
            notes,
        })
    }

    /// Describes data and epochs, and warns if there are many.
    pub fn data_lines(&self) -> Vec<String> {
        let valid = self.valid.as_ref().map_or("none".into(), |valid| thousands(valid.n as f64));
        let steps = counted(self.steps, "step");
        let mut lines = vec![format!(
            "data: {}, {valid} for validation; {steps} {} {} epochs",
            self.train.describe(),
            if self.steps == 1 { "is" } else { "are" },
            epochs(self.epochs)
        )];
        lines.extend(self.notes.iter().cloned());

        if self.sync_every > 1 {
            lines.push(format!(
                "the outer optimizer takes a step after every {} steps, with the weights of all devices; checkpoints and validations \
                 follow it (train.sync_every)",
                self.sync_every
            ));
        }
        if self.valid.is_none() {
            lines.push("no validation text: there will be no best checkpoint (data.valid)".into());
        }
        let is_short = self.train.len.is_none_or(|len| self.train.n as usize * len < FEW_TOKENS);
        if self.train.n < FEW_ROWS && is_short {
            let rows = counted(self.train.n, if self.train.len.is_none() { "pair" } else { "row" });
            lines.push(format!(
                "warning: the training text is {rows}: a model learns so little by heart, and nothing else"
            ));
        }
        lines.extend(self.few_steps());
        lines.extend(many_epochs(self.epochs, self.steps, self.done));
        lines
    }

    /// Warns if the epochs are few steps because a batch has many of the rows.
    fn few_steps(&self) -> Option<String> {
        let rows = self.train.n as f64 * self.epochs / (2 * FEW_STEPS) as f64 / self.batches_per_step.max(1) as f64;
        let is_short = self.counts_epochs && self.steps < FEW_STEPS && self.train.n >= FEW_ROWS;
        (is_short && rows >= 1.0).then(|| {
            format!(
                "warning: {} may be too few to learn much, because a batch has many of the rows; --set loader.batch_rows={} makes more \
                 steps of the same epochs, and train.epochs more epochs",
                counted(self.steps, "step"),
                rows.floor()
            )
        })
    }

    /// Describes model, device and steps, up to the name of the run.
    pub fn model_line(&self) -> String {
        let plural = if self.steps == 1 { "" } else { "s" };
        format!("{:.1} M parameters on {} for {} step{plural}", self.n_params as f64 / 1e6, self.device, self.steps)
    }

    /// Describes the memory of a training step and of the device.
    pub fn memory_line(&self) -> String {
        let limit = if self.is_limited { " (train.memory_limit)" } else { "" };
        let of = self.memory_bytes.map_or(String::new(), |bytes| format!(" of {}{limit}", size(bytes)));
        let again = computed_again(self.checkpointing).map_or(String::new(), |again| format!("; {again}"));
        format!("memory: about {}{of}, for the largest batch, {}{again}", size(self.bytes.total()), self.largest)
    }

    /// Refuses a run that cannot fit into the memory of the device. On a GPU the preflight tries the largest batch; a CPU
    /// ends the process when memory runs out, so the estimate decides there.
    ///
    /// # Errors
    /// [`RunError::Config`].
    pub(crate) fn check_memory(&self, may_split: bool) -> Result<(), RunError> {
        let Some(memory) = self.memory_bytes else { return Ok(()) };
        let state = self.bytes.state();
        if state > memory {
            return Err(RunError::Config(format!(
                "model.* describes {} parameters, whose weights, gradients and optimizer state need {}; {}: choose a smaller \
                 model (--preset, model.d_model)",
                thousands(self.n_params as f64),
                size(state),
                there_is(memory, self.is_limited)
            )));
        }

        if self.is_cpu && !may_split && self.bytes.total() > memory {
            let fitting = (memory - state) as f64 / self.bytes.activations.total() as f64 * self.batch_tokens as f64;
            return Err(RunError::Config(format!(
                "loader.batch_tokens {} makes batches of {}, which need about {} to train on; {}: lower it to about {:.0} and \
                 raise train.grad_accum_steps by the same factor{}",
                self.batch_tokens,
                self.largest,
                size(self.bytes.total()),
                there_is(memory, self.is_limited),
                fitting / 2.0,
                fewer_activations(self.checkpointing)
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kiln_model::flops::ActivationBytes;

    use super::*;

    fn plan(epochs: f64, bytes: [u64; 2], memory: u64) -> Plan {
        let [state, activations] = bytes;

        Plan {
            device: "CPU (2 threads)".into(),
            dtype: FloatDType::F32,
            sync_every: 1,
            epochs,
            steps: 6000,
            done: (0.0, 0),
            counts_epochs: false,
            batches_per_step: 1,
            largest: Shape { batch_size: 8, source_len: 16, target_len: 24 },
            checkpointing: ActivationCheckpointing::Off,
            bytes: TrainBytes {
                weights: state,
                activations: ActivationBytes { residual: activations, ..ActivationBytes::default() },
                ..TrainBytes::default()
            },
            memory_bytes: Some(memory),
            is_limited: false,
            batch_tokens: 4000,
            is_cpu: true,
            n_params: 46_000_000,
            train: Rows { n: 3000, len: None, largest: None },
            valid: Some(Rows { n: 200, len: None, largest: None }),
            notes: Vec::new(),
        }
    }

    #[test]
    fn epochs_of_few_steps_are_a_warning_with_a_smaller_batch() {
        let short = |counts_epochs, steps| Plan { counts_epochs, steps, ..plan(3.0, [0, 0], 1) }.data_lines();
        assert!(short(true, 6)[1].starts_with("warning: 6 steps may be too few"), "{:?}", short(true, 6));
        assert!(short(true, 6)[1].contains("--set loader.batch_rows=90 "), "{:?}", short(true, 6));
        assert_eq!((short(true, 50).len(), short(false, 6).len()), (1, 1));
    }

    #[test]
    fn steps_are_told_as_epochs_and_many_of_them_are_a_warning() {
        let lines = plan(2300.0, [0, 0], 1).data_lines();
        assert_eq!(lines[0], "data: 3,000 pairs, 200 for validation; 6,000 steps are 2,300 epochs");
        assert!(
            lines[1].starts_with("warning: above 100 epochs") && lines[1].contains("train.steps=261 "),
            "{lines:?}"
        );
        assert!(Plan { steps: 1, ..plan(0.2, [0, 0], 1) }.data_lines()[0].ends_with("; 1 step is 0.2 epochs"));
        assert_eq!(plan(99.0, [0, 0], 1).data_lines().len(), 1);
        let few = |n, len| Plan { train: Rows { n, len, largest: None }, ..plan(5.0, [0, 0], 1) }.data_lines();
        assert!(few(2, None)[1].starts_with("warning: the training text is 2 pairs: "), "{:?}", few(2, None));
        assert!(few(1, Some(5))[1].starts_with("warning: the training text is 1 row: "));
        assert!(few(20, None).len() == 1 && few(8, Some(256)).len() == 1, "few rows may be long");
        assert!(plan(0.44, [0, 0], 1).data_lines()[0].ends_with("are 0.4 epochs"));
        let text = Plan { train: Rows { n: 40, len: Some(256), largest: None }, valid: None, ..plan(5.0, [0, 0], 1) };
        assert!(text.data_lines()[0].starts_with("data: 40 rows of up to 256 tokens, none for validation"));
        assert!(text.data_lines()[1].contains("data.valid"));
        let noted = Plan { notes: vec!["the vocabulary lacks é".into()], ..plan(5.0, [0, 0], 1) };
        assert_eq!(noted.data_lines()[1..], ["the vocabulary lacks é"]);
    }

    #[test]
    fn rows_are_counted_and_the_largest_batch_is_the_one_that_needs_most() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = crate::config::presets::numbers();
        let data = RunData::open(&config, folder.path(), None, &mut |_| {}).expect("data");
        let shapes = data.train.shapes().expect("known from the cache");
        let Rows { n, len, largest } = Rows::of(&data.train, |shape| shape.padded_tokens() as u64);
        let most = shapes.keys().map(|shape| shape.padded_tokens()).max();
        assert_eq!((n, len, largest.map(|shape| shape.padded_tokens())), (50_000, None, most));
    }

    #[test]
    fn memory_is_compared_with_the_machine() {
        let gib = 1 << 30;
        assert!(plan(1.0, [gib, gib], 16 * gib).check_memory(false).is_ok());
        assert!(plan(1.0, [gib, gib], 16 * gib).memory_line().starts_with("memory: about 2.0 GiB of 16.0 GiB"));
        let layer = Plan { checkpointing: ActivationCheckpointing::Layer, ..plan(1.0, [gib, gib], 16 * gib) };
        assert!(layer.memory_line().ends_with("8 x (16 + 24); backward computes every layer again"));
        assert!(plan(1.0, [gib >> 5, gib >> 6], gib).memory_line().starts_with("memory: about 48 MiB of 1.0 GiB"));
        let refused = |plan: Plan| plan.check_memory(false).expect_err("too large").to_string();
        assert!(refused(plan(1.0, [20 * gib, 0], 16 * gib)).starts_with("model.* describes 46,000,000 parameters"));
        let error = refused(plan(1.0, [8 * gib, 32 * gib], 16 * gib));
        assert!(error.starts_with("loader.batch_tokens 4000") && error.contains("to about 500 "), "{error}");
        assert!(error.contains("this machine has 16.0 GiB") && error.contains("or set train.activation_checkpointing"));
        let limited = Plan { is_limited: true, ..plan(1.0, [8 * gib, 32 * gib], 16 * gib) };
        assert!(limited.memory_line().starts_with("memory: about 40.0 GiB of 16.0 GiB (train.memory_limit)"));
        let error = refused(Plan { checkpointing: ActivationCheckpointing::Layer, ..limited });
        assert!(error.contains("train.memory_limit allows 16.0 GiB") && error.ends_with("same factor"), "{error}");
        assert!(plan(1.0, [8 * gib, 32 * gib], 16 * gib).check_memory(true).is_ok());
        let gpu = Plan { is_cpu: false, ..plan(1.0, [8 * gib, 32 * gib], 16 * gib) };
        assert!(gpu.check_memory(false).is_ok(), "the preflight tries it");
    }
}
