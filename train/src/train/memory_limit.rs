//! `train.memory_limit`: a run that holds more memory stops.

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_model::ActivationCheckpointing;

use crate::config::{ByteSize, Checkpointing, Config, fewer_activations, size};
use crate::device::held_memory::HeldMemory;
use crate::device::is_cpu;

/// The limit of a run, and what it holds.
#[derive(Debug, Default)]
pub(super) struct MemoryLimit {
    /// `None` without a limit, and where the memory is not known.
    watched: Option<(ByteSize, HeldMemory)>,
    is_cpu: bool,
    /// What else would need less, as the end of an advice.
    advice: &'static str,
}

impl MemoryLimit {
    /// Starts to watch the memory of `device`, if it has a limit.
    pub(super) fn of(config: &Config, device: &Device) -> Self {
        let limit = config.train.memory_limit.clone();
        let chosen = match config.train.activation_checkpointing {
            Checkpointing::Auto => ActivationCheckpointing::Off,
            chosen => chosen.chosen().unwrap_or_default(),
        };
        Self {
            watched: limit.and_then(|limit| HeldMemory::watch(device).map(|held| (limit, held))),
            is_cpu: is_cpu(device),
            advice: fewer_activations(chosen),
        }
    }

    /// Says that a limit cannot be watched here.
    pub(super) fn note(&self, config: &Config) -> Option<String> {
        let is_blind = config.train.memory_limit.is_some() && self.watched.is_none();
        is_blind.then(|| "train.memory_limit: the memory in use is not known here, so only the plan keeps to it".into())
    }

    /// Refuses to go on after `step` if more was held since the last call than the limit allows. On a GPU the memory is read with the
    /// metrics, so nothing waits for the device.
    ///
    /// # Errors
    /// If more was held.
    pub(super) fn check(&self, step: u64) -> Result<()> {
        let Some((limit, held)) = &self.watched else { return Ok(()) };
        let peak = held.take_peak();
        if peak <= limit.bytes() {
            return Ok(());
        }
        let (what, advice) =
            (if self.is_cpu { "on its heap" } else { "in the memory pools of its device" }, self.advice);
        bail!(
            "train.memory_limit = {limit}: the run holds {} {what} by step {step}; lower loader.batch_tokens and raise \
             train.grad_accum_steps by the same factor, start with --auto-micro-batch{advice}, or raise the limit",
            size(peak)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    #[test]
    fn a_run_above_its_limit_is_refused_with_the_ways_out() {
        let block = vec![1_u8; 8 << 20];
        let limited = |limit: &str, checkpointing| {
            let mut config = presets::numbers();
            config.train.memory_limit = Some(ByteSize::of(limit).expect("a size"));
            config.train.activation_checkpointing = checkpointing;
            MemoryLimit::of(&config, &Device::flex())
        };
        assert!(MemoryLimit::of(&presets::numbers(), &Device::flex()).check(1).is_ok());
        assert!(limited("100TiB", Checkpointing::Auto).check(1).is_ok());
        let error = limited("1MiB", Checkpointing::Auto).check(7).expect_err("a block is larger").to_string();
        for part in [
            "train.memory_limit = \"1MiB\"",
            "MiB on its heap by step 7",
            "loader.batch_tokens",
            "\"selective\" or \"layer\"",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = limited("1MiB", Checkpointing::Layer).check(7).expect_err("a block is larger").to_string();
        assert!(!error.contains("activation_checkpointing") && error.contains("raise the limit"), "{error}");
        assert_eq!(block[1 << 20], 1);
    }
}
