//! The memory of a run: predicted from its configuration, measured on one step, and with other settings.
//!
//! The prediction is the one that `kiln train` shows and refuses by ([`Need`]).

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use burn::tensor::{Device, FloatDType};
use kiln_data::{BatchSource, HostBatch, Order, Shape};
use kiln_model::ActivationCheckpointing;
use kiln_model::flops::TrainBytes;
use kiln_train::config::Config;
use kiln_train::dataset::RunData;
use kiln_train::device::upload_split;
use kiln_train::eval::{Init, Model};
use kiln_train::metrics::Round;
use kiln_train::run::need::Need;
use kiln_train::train::train_step;

use super::measure::{PeakMemory, Prepared};

/// More rows than any device holds.
const MOST_ROWS: usize = 1 << 24;
/// Steps that are measured: the second one has the optimizer state of the first in use.
const STEPS: usize = 3;

/// Returns the parts of the memory with their names, largest first within state and activations; without parts that are 0.
pub fn entries(bytes: &TrainBytes) -> Vec<(&'static str, u64)> {
    let kept = bytes.activations;
    let takes_place = bytes.flat_gradients.saturating_sub(kept.total());
    let [master, state] = match (bytes.bf16_state, bytes.weights) {
        (false, 0) => ["weights (f32, the master copy)", "optimizer state (f32)"],
        (false, _) => ["master weights (f32)", "optimizer state (f32)"],
        (true, 0) => ["weights (bf16, the master copy)", "optimizer state (bf16)"],
        (true, _) => ["master weights (bf16)", "optimizer state (bf16)"],
    };

    let parts = [
        ("weights", bytes.weights),
        (master, bytes.master),
        (state, bytes.optimizer_state),
        ("gradients", bytes.gradients),
        ("accumulated gradients (f32)", bytes.accumulator),
        ("average of the weights (f32)", bytes.average),
        ("model to compare with", bytes.reference),
        ("exchange between devices", bytes.exchange),
        ("activations: residual sums", kept.residual),
        ("activations: norms and embeddings", kept.norms),
        ("activations: attention", kept.attention),
        ("activations: feed-forward", kept.feed_forward),
        ("logits", kept.logits),
        ("gradient of the output projection (f32)", kept.projection_gradient),
        ("gradients, end to end", takes_place),
        ("free blocks of memory pools", bytes.pools),
    ];
    parts.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

/// The memory with another setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// What would be typed.
    pub setting: String,
    /// The memory of each device then.
    pub bytes: TrainBytes,
}

/// A configuration whose memory is predicted.
pub struct Ledger<'a> {
    /// The configuration, with the sizes of its vocabularies.
    pub config: &'a Config,
    /// The device that it trains on.
    pub device: &'a Device,
    /// The batch that needs most.
    pub largest: Shape,
    /// Devices, dtype, and the activations that are kept.
    pub need: Need,
}

impl Ledger<'_> {
    /// Returns the memory of a step on the largest batch.
    pub fn bytes(&self) -> TrainBytes {
        self.need.of(self.config, self.device, self.largest)
    }

    /// Returns what checkpointing, smaller micro-batches and sharding would need: the same prediction with that setting changed.
    pub fn alternatives(&self) -> Vec<Alternative> {
        let of = |setting: String, config: &Config, need: Need| {
            let bytes = need.of(config, self.device, self.largest);
            Alternative { setting, bytes }
        };
        let mut found = Vec::new();
        for (name, checkpointing) in [
            ("off", ActivationCheckpointing::Off),
            ("selective", ActivationCheckpointing::Selective),
            ("layer", ActivationCheckpointing::Layer),
        ] {
            if checkpointing != self.need.checkpointing {
                let need = Need { checkpointing, ..self.need };
                found.push(of(format!("train.activation_checkpointing=\"{name}\""), self.config, need));
            }
        }

        for factor in [2, 4] {
            let mut config = self.config.clone();
            config.train.split_batches = factor * config.train.split_batches.max(1);
            if config.train.split_batches <= self.largest.batch_size {
                found.push(of(format!("train.split_batches={}", config.train.split_batches), &config, self.need));
            }
        }
        if self.need.n_devices == 1 {
            let mut config = self.config.clone();
            config.train.shard_optimizer = true;
            for n_devices in [2, 4, 8] {
                let setting = format!("{n_devices} devices, train.shard_optimizer=true");
                found.push(of(setting, &config, Need { n_devices, ..self.need }));
            }
        }
        found
    }

    /// Returns the largest batch of the lengths of the largest one that fits into `memory` bytes; `None` if not even a row does. As
    /// the loader does, it has a multiple of 8 rows from 8 rows on.
    pub fn largest_that_fits(&self, memory: u64) -> Option<Shape> {
        let of = |batch_size| Shape { batch_size, ..self.largest };
        let fits = |rows: &usize| self.need.of(self.config, self.device, of(*rows)).total() <= memory;
        if !fits(&1) {
            return None;
        }
        let (mut fitting, mut too_many) = (1, MOST_ROWS);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(&middle) { fitting = middle } else { too_many = middle }
        }
        Some(of(if fitting >= 8 { fitting - fitting % 8 } else { fitting }))
    }

    /// Takes steps on the largest batch and returns the memory that they took at their peak; `None` if the system does not say it.
    /// On a GPU this is what the process has reserved, free blocks of its pools included. On the CPU it is the growth of the
    /// process.
    ///
    /// # Errors
    /// If the batch cannot be made, or if a step fails.
    pub fn measured<M: Model>(&self, data: &RunData, init: &Init<'_, M>) -> Result<Option<u64>> {
        let batch = self.batch(&data.train)?;
        let peak = PeakMemory::watch(self.device);

        let (config, device, Need { dtype, checkpointing, .. }) = (self.config, self.device, self.need);
        let vocabulary = Some(&data.vocabulary);
        let prepared = Prepared { config, model: &config.model, vocabulary, checkpointing, dtype, device };
        let mut state = prepared.state(init)?;
        // Two micro-batches already accumulate in f32, and more of them need no more memory.
        let splits = config.train.split_batches.max(1);
        let n_uploads = config.train.grad_accum_steps.min(2);
        let mut micro_batches: Vec<_> = (0..n_uploads).flat_map(|_| upload_split(&batch, splits, device)).collect();
        micro_batches.truncate(2);
        Round::of(device, STEPS, |_| {
            let measures = train_step(&mut state, &micro_batches);
            // Host sync: no step begins before the last one has freed its memory. A step keeps nothing for the next one.
            measures.loss_sum.try_into_data().map(drop).map_err(|error| anyhow!("the step failed: {error}"))
        })?;
        Ok(peak.bytes())
    }

    fn batch(&self, train: &Arc<dyn BatchSource>) -> Result<HostBatch> {
        let plan = train.plan(Order::Sequential);
        let index = (0..plan.len()).find(|index| plan.batch(*index).1 == self.largest);
        let mut batch = HostBatch::default();
        train.clone().worker().fill(&plan, index.context("a data set has batches")?, &mut batch)?;
        Ok(batch)
    }
}

/// The dtype as people write it.
pub fn dtype_name(dtype: FloatDType) -> String {
    format!("{dtype:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use kiln_train::config::presets;

    use super::*;

    fn with_ledger<R>(dtype: FloatDType, look: impl FnOnce(&Ledger<'_>) -> R) -> R {
        let mut config = presets::numbers();
        config.model = config.model.with_vocab_size(1000);
        let largest = Shape { batch_size: 64, source_len: 16, target_len: 16 };
        let need = Need { dtype, n_devices: 1, checkpointing: ActivationCheckpointing::Off };
        look(&Ledger { config: &config, device: &Device::flex(), largest, need })
    }

    #[test]
    fn the_parts_add_up_to_the_whole() {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            with_ledger(dtype, |ledger| {
                let bytes = ledger.bytes();
                assert_eq!(entries(&bytes).iter().map(|(_, bytes)| bytes).sum::<u64>(), bytes.total());
                for alternative in ledger.alternatives() {
                    let sum: u64 = entries(&alternative.bytes).iter().map(|(_, bytes)| bytes).sum();
                    assert_eq!(sum, alternative.bytes.total(), "{}", alternative.setting);
                }
            });
        }
    }

    #[test]
    fn the_largest_batch_fits_and_eight_rows_more_do_not() {
        with_ledger(FloatDType::F32, |ledger| {
            let memory = 3 * ledger.bytes().total();
            let shape = ledger.largest_that_fits(memory).expect("it fits");
            let total =
                |rows: usize| ledger.need.of(ledger.config, ledger.device, Shape { batch_size: rows, ..shape }).total();
            assert!(shape.batch_size > 64 && shape.batch_size.is_multiple_of(8), "{shape}");
            assert!(total(shape.batch_size) <= memory && total(shape.batch_size + 8) > memory, "{shape}");
            assert_eq!(ledger.largest_that_fits(ledger.bytes().state()), None);
        });
    }

    #[test]
    fn less_is_kept_with_checkpointing_splitting_and_sharding() {
        with_ledger(FloatDType::BF16, |ledger| {
            let of = |name: &str| {
                let found = ledger.alternatives().into_iter().find(|other| other.setting.contains(name));
                found.unwrap_or_else(|| panic!("{name}")).bytes
            };
            let now = ledger.bytes();
            assert!(of("layer").activations.total() < of("selective").activations.total());
            assert!(of("selective").activations.total() < now.activations.total());
            assert!(of("split_batches=4").activations.total() < of("split_batches=2").activations.total());
            let state = |setting| of(setting).optimizer_state;
            assert!(state("8 devices") < state("2 devices") && state("2 devices") < now.optimizer_state);
        });
    }
}
