//! The machine that a run is going to train on, and the largest model that fits.

use kiln_metrics::units::gib;
use kiln_model::TransformerConfig;
use kiln_model::flops::{n_params, n_trained};

use super::set_keys::SetKeys;
use super::task::traits_of;
use super::{Config, MasterWeights};

/// A machine to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Whether the CPU computes.
    pub is_cpu: bool,
    /// Whether Kiln has kernels for the device, see [`kiln_kernels::has_kernels`].
    pub has_kernels: bool,
    /// Memory of the device; `None` if it is not known.
    pub memory_bytes: Option<u64>,
}

impl Config {
    /// Returns `machine` as far as this run may use its memory (`train.memory_limit`).
    pub fn part_of(&self, machine: Machine) -> Machine {
        machine.within(self.train.limit_bytes())
    }
}

impl Machine {
    /// Returns the machine with at most `bytes` of memory; as it is if they are not given (`train.memory_limit`).
    pub(crate) fn within(self, bytes: Option<u64>) -> Self {
        Self { memory_bytes: self.memory_bytes.into_iter().chain(bytes).min(), ..self }
    }
}

/// Says how much memory there is: what `train.memory_limit` allows, or what the machine has.
pub(crate) fn there_is(bytes: u64, is_limit: bool) -> String {
    let whose = if is_limit { "train.memory_limit allows" } else { "this machine has" };
    format!("{whose} {}", size(bytes))
}

/// `43 MiB`, `2.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes >> 30 {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", gib(bytes)),
    }
}

/// Returns a problem if the weights, gradients and optimizer state of the model alone do not fit into the memory. It begins with
/// the key that was set.
pub(super) fn too_large(config: &Config, machine: Machine, set: &SetKeys) -> Option<String> {
    const KEYS: [&str; 8] = [
        "model.d_model",
        "model.d_ff",
        "model.n_encoder_layers",
        "model.n_decoder_layers",
        "model.max_positions",
        "model.source_vocab_size",
        "model.target_vocab_size",
        "tokenizer.vocab_size",
    ];
    let limit = config.train.limit_bytes();
    let memory = config.part_of(machine).memory_bytes?;

    let vocabulary = match config.model.vocab_size() {
        0 if config.tokenizer.path.is_none() => config.tokenizer.vocab_size,
        size => size,
    };
    let is_rounded = config.train.master_weights == MasterWeights::Bf16;
    let needed = state_bytes(&config.model.clone().with_vocab_size(vocabulary), machine.is_cpu, is_rounded);
    (needed > memory).then(|| {
        let key = KEYS.into_iter().find(|key| set.contains(key)).unwrap_or("model");
        format!(
            "{key} makes a model whose weights, gradients and optimizer state need at least {:.0} GiB; {}: choose a smaller model, for \
             example with --preset {}",
            gib(needed).ceil(),
            there_is(memory, limit == Some(memory)),
            traits_of(config.task).on_cpu[0].1
        )
    })
}

/// Bytes of weights, gradients, master weights and optimizer state, and of a table of sines.
fn state_bytes(model: &TransformerConfig, is_cpu: bool, is_rounded: bool) -> u64 {
    let element: u64 = if is_cpu && !is_rounded { 4 } else { 2 };
    // Both moments, and masters that are not the weights.
    let of_optimizer = if is_rounded { 4 } else { 12 };
    let table = 4 * (model.max_positions as u64) * model.d_model as u64;
    let sines = if model.positions.are_sines() { table } else { 0 };
    let (all, trained) = (n_params(model).total(), n_trained(model));
    all.saturating_mul(element).saturating_add(trained.saturating_mul(element + of_optimizer)).saturating_add(sines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, presets};

    const CPU: Machine = Machine { is_cpu: true, has_kernels: true, memory_bytes: Some(16 << 30) };
    const GPU: Machine = Machine { is_cpu: false, has_kernels: true, memory_bytes: Some(80 << 30) };

    #[test]
    fn a_model_that_cannot_fit_is_named_by_the_key_that_was_set() {
        assert_eq!(too_large(&presets::big(), CPU, &SetKeys::default()), None);
        let mut config = presets::base();
        config.model.d_model = 1 << 20;
        let problem = too_large(&config, CPU, &SetKeys::of(["model.d_model"])).expect("terabytes");
        assert!(problem.starts_with("model.d_model makes a model"), "{problem}");
        assert!(problem.contains("this machine has 16.0 GiB") && problem.contains("--preset few-pairs"), "{problem}");
        // The largest numbers that validation lets through.
        config.model = TransformerConfig { d_ff: 1 << 20, n_encoder_layers: 10_000, ..config.model };
        assert!(too_large(&config, GPU, &SetKeys::default()).expect("exabytes").starts_with("model makes"));
        // A smaller device in its place.
        config.model = presets::base().model;
        assert_eq!(too_large(&config, CPU, &SetKeys::default()), None);
        config.train.memory_limit = Some(ByteSize::of("512MiB").expect("a size"));
        let problem = too_large(&config, CPU, &SetKeys::default()).expect("half a GiB");
        assert!(problem.contains("train.memory_limit allows 512 MiB"), "{problem}");
        let unknown = Machine { memory_bytes: None, ..CPU };
        assert!(too_large(&config, unknown, &SetKeys::default()).is_some(), "the limit is known");
        config.train.memory_limit = Some(ByteSize::of("64GiB").expect("a size"));
        assert_eq!(CPU.within(config.train.limit_bytes()), CPU);
        config.train.memory_limit = None;
        assert_eq!(too_large(&config, unknown, &SetKeys::of(["model.d_ff"])), None);
    }
}
