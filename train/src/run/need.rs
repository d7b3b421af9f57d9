//! The memory that a configuration needs on a batch of a shape.

use burn::tensor::{Device, FloatDType};
use kiln_data::Shape;
use kiln_model::ActivationCheckpointing;
use kiln_model::flops::{TrainBytes, TrainSetting, train_bytes};

use crate::config::{Config, MasterWeights};
use crate::optim::Groups;

/// What decides the memory of a run, apart from configuration, device and batch.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// The compute dtype.
    pub dtype: FloatDType,
    /// Devices that train together.
    pub n_devices: usize,
    /// The activations that are kept.
    pub checkpointing: ActivationCheckpointing,
}

impl Need {
    /// Estimates the memory of a step on batches of `shape`, on each of the devices.
    pub fn of(&self, config: &Config, device: &Device, shape: Shape) -> TrainBytes {
        let train = &config.train;
        let splits = train.split_batches.max(1);
        let setting = TrainSetting {
            dtype: self.dtype.into(),
            checkpointing: self.checkpointing,
            accumulates: train.grad_accum_steps > 1 || splits > 1,
            masked_share: config.masked_share(),
            n_ranks: self.n_devices as u64,
            bf16_state: train.master_weights == MasterWeights::Bf16,
            optimizer_state: Groups::state_sizes(config),
            shards_optimizer: self.n_devices > 1 && train.shard_optimizer && train.sync_every <= 1,
            takes_local_steps: train.sync_every > 1,
            keeps_average: train.ema_decay > 0.0,
            has_reference: config.compares_with_start(),
        };
        let rows = shape.batch_size.div_ceil(splits);
        train_bytes(&config.model, device, [rows, shape.source_len, shape.target_len], &setting)
    }
}

#[cfg(test)]
mod tests {
    use kiln_model::Transformer;

    use super::*;
    use crate::config::{OptimizerChoice, presets};
    use crate::optim::{ParamEntry, ParamTable, StateSlot};

    /// The ledger follows from the keys that decide it.
    #[test]
    fn accumulation_and_several_devices_are_counted_only_where_they_happen() {
        let mut config = presets::numbers();
        config.model = config.model.with_vocab_size(1000);
        let shape = Shape { batch_size: 64, source_len: 8, target_len: 8 };
        let need = |config: &Config, n_devices| {
            let need = Need { dtype: FloatDType::F32, n_devices, checkpointing: ActivationCheckpointing::Off };
            need.of(config, &Device::flex(), shape)
        };
        let one = need(&config, 1);
        assert_eq!((one.weights, one.accumulator, one.exchange), (0, 0, 0));
        config.train.split_batches = 2;
        let split = need(&config, 1);
        assert!(split.accumulator > 0 && split.activations.total() < one.activations.total());
        config.train.split_batches = 1;
        config.train.shard_optimizer = true;
        assert_eq!(need(&config, 1), one, "one device has nothing to shard");
        let two = need(&config, 2);
        assert!(two.optimizer_state < one.optimizer_state && two.exchange > 0 && two.weights > 0, "{two:?}");
    }

    #[test]
    fn a_run_with_master_weights_in_bf16_needs_half_the_memory_for_its_state() {
        let mut config = presets::numbers();
        config.model = config.model.with_vocab_size(1000);
        let shape = Shape { batch_size: 1, source_len: 4, target_len: 4 };
        let need = Need { dtype: FloatDType::BF16, n_devices: 1, checkpointing: ActivationCheckpointing::Off };
        let exact = need.of(&config, &Device::flex(), shape).state();
        config.train.master_weights = MasterWeights::Bf16;
        assert_eq!(2 * need.of(&config, &Device::flex(), shape).state(), exact);
    }

    #[test]
    fn the_state_of_the_optimizer_is_counted_by_name() {
        for optimizer in [OptimizerChoice::Adamw, OptimizerChoice::Muon] {
            let mut config = presets::numbers();
            config.model = config.model.with_vocab_size(1000);
            config.train.optimizer = optimizer;
            let module: Transformer = config.model.init(1, FloatDType::F32, &Device::flex());
            let groups = Groups::of(&config, FloatDType::F32);
            let table = groups.lay_out(ParamTable::of(&module));
            let numbers = |slot: &StateSlot| -> usize {
                table.entries().iter().filter(|entry| entry.group == slot.group).map(ParamEntry::len).sum()
            };
            let n: usize = groups.slots(&table).iter().map(numbers).sum();

            let need = Need { dtype: FloatDType::F32, n_devices: 1, checkpointing: ActivationCheckpointing::Off };
            let shape = Shape { batch_size: 1, source_len: 4, target_len: 4 };
            assert_eq!(need.of(&config, &Device::flex(), shape).optimizer_state, 4 * n as u64, "{optimizer:?}");
        }
    }
}
