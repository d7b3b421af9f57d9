//! The machine that a run is going to train on, and what follows from it: the usual preset and the largest model.

use std::path::PathBuf;

use kiln_data::{Task, count_pairs, count_words};
use kiln_model::TransformerConfig;
use kiln_model::flops::{n_params, n_trained};

use super::length::Shortened;
use super::task::{Reads, traits_of};
use super::{Config, Preset};
use crate::units::{gib, thousands};

/// A machine to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Whether the CPU computes.
    pub is_cpu: bool,
    /// Memory of the device; `None` if it is not known.
    pub memory_bytes: Option<u64>,
}

/// The origin of the keys that no file and no `--set` gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The preset that the user named.
    Named(Preset),
    /// The preset that Kiln chose.
    Chosen(Chosen),
    /// The run whose weights the new run starts from, or that is resumed.
    Run,
}

impl Base {
    /// Returns the preset, unless the keys come from a run.
    pub fn preset(&self) -> Option<Preset> {
        match self {
            Self::Named(preset) | Self::Chosen(Chosen { preset, .. }) => Some(*preset),
            Self::Run => None,
        }
    }
}

/// A preset and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The preset.
    pub preset: Preset,
    /// Why Kiln chose it, for people.
    pub why: String,
    /// Fewer steps than the preset has, because the text is small.
    pub shortened: Option<Shortened>,
}

/// Pairs that are counted to say how many there are.
const COUNTED_PAIRS: u64 = 200_000;
/// The same for words.
const COUNTED_WORDS: u64 = 1_000_000;

/// Chooses the preset of a run that names none. It depends on the task, the device and the size of the text.
pub(super) fn choose(task: Task, train: Option<&[PathBuf]>, machine: Option<Machine>) -> Chosen {
    let row = traits_of(task);
    let chosen = |preset: Preset, why: String| Chosen { preset, why, shortened: None };
    let Some(train) = train else { return chosen(row.built_in_preset, "the built-in task".into()) };
    let Some(machine) = machine else { return chosen(Preset::usual_for(task, true), "text of your own".into()) };

    let (presets, device) = if machine.is_cpu { (row.on_cpu, "a CPU") } else { (row.on_gpu, "a GPU") };
    let (counted, most, unit) = match row.reads {
        Reads::Pairs => (count_pairs(train, COUNTED_PAIRS), COUNTED_PAIRS, "pairs"),
        Reads::Text => (count_words(train, COUNTED_WORDS), COUNTED_WORDS, "words"),
    };
    let (_, preset) = match &counted {
        Ok(count) => presets.iter().rev().find(|(from, _)| from <= count).unwrap_or(&presets[0]),
        // A text that cannot be read is reported when it is opened.
        Err(_) => &presets[presets.len() - 1],
    };
    let size = match counted {
        Err(_) => format!("{unit} of your own"),
        Ok(count) if count >= most => format!("{} {unit} or more", thousands(most as f64)),
        Ok(count) => format!("{} {unit}", thousands(count as f64)),
    };
    chosen(*preset, format!("{size} on {device}"))
}

/// Returns a problem if the weights, gradients and optimizer state of the model alone do not fit into the memory. It begins with
/// the key that was set.
pub(super) fn too_large(config: &Config, machine: Machine, is_set: impl Fn(&str) -> bool) -> Option<String> {
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
    let memory = machine.memory_bytes?;

    let vocabulary = match config.model.vocab_size() {
        0 if config.tokenizer.path.is_none() => config.tokenizer.vocab_size,
        size => size,
    };
    let needed = state_bytes(&config.model.clone().with_vocab_size(vocabulary), machine.is_cpu);
    (needed > memory).then(|| {
        let key = KEYS.into_iter().find(|key| is_set(key)).unwrap_or("model");
        format!(
            "{key} makes a model whose weights, gradients and optimizer state need at least {:.0} GiB; this machine has {:.1} GiB: \
             choose a smaller model, for example with --preset {}",
            gib(needed).ceil(),
            gib(memory),
            traits_of(config.task).on_cpu[0].1
        )
    })
}

/// Bytes of weights, gradients, master weights and optimizer state, and of a table of sines.
fn state_bytes(model: &TransformerConfig, is_cpu: bool) -> u64 {
    let element: u64 = if is_cpu { 4 } else { 2 };
    let table = 4 * (model.max_positions as u64) * model.d_model as u64;
    let sines = if model.positions.are_sines() { table } else { 0 };
    let (all, trained) = (n_params(model).total(), n_trained(model));
    all.saturating_mul(element).saturating_add(trained.saturating_mul(element + 12)).saturating_add(sines)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::presets;

    const CPU: Machine = Machine { is_cpu: true, memory_bytes: Some(16 << 30) };
    const GPU: Machine = Machine { is_cpu: false, memory_bytes: Some(80 << 30) };

    #[test]
    fn the_preset_fits_the_device_and_the_size_of_the_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = |name: &str, n: usize, line: &str| {
            let path = folder.path().join(name);
            fs::write(&path, line.repeat(n)).expect("writable");
            vec![path]
        };
        let few = lines("few.tsv", 300, "a\tb\n");
        let some = lines("some.tsv", 20_000, "a\tb\n");
        let many = lines("many.tsv", 120_000, "a\tb\n");
        let lots = [many.clone(), many.clone()].concat();
        for (train, machine, preset, why) in [
            (&few, CPU, Preset::FewPairs, "300 pairs on a CPU"),
            (&few, GPU, Preset::FewPairs, "300 pairs on a GPU"),
            (&some, CPU, Preset::Tiny, "20,000 pairs on a CPU"),
            (&some, GPU, Preset::Small, "20,000 pairs on a GPU"),
            (&many, CPU, Preset::Tiny, "120,000 pairs on a CPU"),
            (&lots, GPU, Preset::Base, "200,000 pairs or more on a GPU"),
        ] {
            let chosen = choose(Task::Translation, Some(train), Some(machine));
            assert_eq!((chosen.preset, chosen.why.as_str()), (preset, why));
        }

        let novel = lines("novel.txt", 10_000, "three words here\n");
        let works = lines("works.txt", 200_000, "three words here\n");
        for (task, train, machine, preset) in [
            (Task::Lm, &novel, CPU, Preset::FewWords),
            (Task::Lm, &works, CPU, Preset::FewWords),
            (Task::Lm, &novel, GPU, Preset::FewWords),
            (Task::Lm, &works, GPU, Preset::Gpt2Mini),
            (Task::Mlm, &works, CPU, Preset::FewWordsMlm),
            (Task::Mlm, &works, GPU, Preset::BertSmall),
        ] {
            let chosen = choose(task, Some(train), Some(machine));
            assert_eq!(chosen.preset, preset, "{task:?} {machine:?}");
            assert!(
                ["30,000 words on a ", "600,000 words on a "].iter().any(|n| chosen.why.starts_with(n)),
                "{chosen:?}"
            );
        }
        assert_eq!(choose(Task::Lm, None, Some(GPU)).preset, Preset::Gpt2Tiny);
        assert_eq!(choose(Task::Lm, Some(&novel), None).preset, Preset::Gpt2Mini);
    }

    #[test]
    fn a_model_that_cannot_fit_is_named_by_the_key_that_was_set() {
        assert_eq!(too_large(&presets::big(), CPU, |_| false), None);
        let mut config = presets::base();
        config.model.d_model = 1 << 20;
        let problem = too_large(&config, CPU, |key| key == "model.d_model").expect("terabytes");
        assert!(problem.starts_with("model.d_model makes a model"), "{problem}");
        assert!(problem.contains("this machine has 16.0 GiB") && problem.contains("--preset few-pairs"), "{problem}");
        // The largest numbers that validation lets through.
        config.model = TransformerConfig { d_ff: 1 << 20, n_encoder_layers: 10_000, ..config.model };
        assert!(too_large(&config, GPU, |_| false).expect("exabytes").starts_with("model makes"));
        let unknown = Machine { memory_bytes: None, ..CPU };
        assert_eq!(too_large(&config, unknown, |_| true), None);
    }
}
