//! The length of a run that suits the size of its text.

use std::thread::available_parallelism;

use kiln_data::{
    BatchEstimate, CorpusConfig, LabelConfig, LabelledCorpus, LabelledShape, PairCorpus, TextConfig, TextCorpus,
    count_pairs,
};
use kiln_model::{Architecture, TransformerConfig};

use super::Config;
use super::give_way::give_way;
use super::set_keys::SetKeys;
use super::task::{Reads, traits_of};

/// Above so many passes over the data a model mostly learns the data by heart.
pub const MANY_EPOCHS: f64 = 100.0;

/// Fewest steps of a run that Kiln shortens. It matters for accumulated gradients, where a few steps are many epochs.
const FEWEST_STEPS: u64 = 50;

/// Bytes of text that an estimate tokenizes: a second of work at most.
const SAMPLE_BYTES: u64 = 2 << 20;

/// Keys whose defaults follow the number of steps.
const FOLLOWING: [&str; 4] = ["train.steps", "optim.warmup_steps", "train.validate_every", "train.save_every"];

/// A run with fewer steps than its preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortened {
    /// Steps of the preset.
    pub from: u64,
    /// Steps of the run.
    pub to: u64,
}

impl Shortened {
    /// Returns whether the default of `key` is not the preset's.
    pub(super) fn changes(key: &str) -> bool {
        FOLLOWING.contains(&key)
    }
}

/// Lowers the default number of steps to [`MANY_EPOCHS`] passes over the text, if it is higher. Warm-up, validations and
/// checkpoints come earlier in proportion. Changes only keys that are not set, in `config` and in the defaults `base`.
pub(super) fn shorten(config: &mut Config, base: &mut Config, set: &SetKeys) -> Option<Shortened> {
    if config.is_built_in_task() || set.contains("train.steps") || config.train.epochs > 0.0 {
        return None;
    }
    // Estimated with the settings that will be used. Mistakes are reported elsewhere.
    let mut used = config.clone();
    give_way(&mut used, base, set);
    if !used.validate().is_empty() {
        return None;
    }

    let (from, accumulated) = (used.train.steps, used.train.grad_accum_steps as f64);
    let enough = from as f64 * accumulated / MANY_EPOCHS;
    // Rounded down: an epoch has whole batches, and a split may leave one fewer than estimated.
    let most = MANY_EPOCHS * batches_per_epoch(&used, enough)?.floor() / accumulated;
    let to = round_down(most as u64).max(FEWEST_STEPS);
    if to >= from {
        return None;
    }

    let earlier = |steps: u64| round_down(steps * to / from).max(1).min(steps);
    for Config { train, optim, .. } in [config, base] {
        train.steps = to;
        let others = [&mut optim.warmup_steps, &mut train.validate_every, &mut train.save_every];
        let defaults = others.into_iter().zip(&FOLLOWING[1..]).filter(|(_, key)| !set.contains(key));
        defaults.for_each(|(steps, _)| *steps = earlier(*steps));
    }
    Some(Shortened { from, to })
}

/// Estimates the batches of an epoch; stops reading at `enough` of them. `None` if the text cannot be read: opening it
/// says why.
pub(super) fn batches_per_epoch(config: &Config, enough: f64) -> Option<f64> {
    let estimate = BatchEstimate {
        tokenizer: &config.tokenizer,
        loader: &config.loader,
        sample_bytes: SAMPLE_BYTES,
        enough,
        num_threads: available_parallelism().map_or(1, usize::from),
    };

    let (files, model) = (&config.data.train_files(), &config.model);
    let batches = match traits_of(config.task).reads {
        Reads::Pairs => {
            let read_as = config.data.corpus.resolved(model.max_positions);
            let read_as = CorpusConfig { filter: config.train_filter().ok()?, ..read_as };
            let corpus = PairCorpus::open(files, &read_as).ok()?;
            estimate.of_pairs(&corpus).ok()?
        }
        // All of these rows would have to be in memory.
        Reads::Text if traits_of(config.task).classes.is_some() && config.data.cache_limit.is_some() => return None,
        Reads::Text if traits_of(config.task).classes.is_some() => {
            let read_as = LabelConfig { filter: config.train_filter().ok()?, ..config.data.labels.clone() };
            let corpus = LabelledCorpus::read(files, config.task, &read_as).ok()?;
            estimate.of_labelled(&corpus, config.labelled_shape(model)).ok()?
        }
        Reads::Text => {
            let read_as = config.data.text.resolved(model.text_positions());
            let read_as = TextConfig { filter: config.train_filter().ok()?, ..read_as };
            let corpus = TextCorpus::open(files, &read_as).ok()?;
            estimate.of_text(&corpus, config.task).ok()?
        }
    };
    // An epoch has at least one batch, whatever the split takes.
    (batches >= 1.0).then(|| (batches * share_for_training(config)).max(1.0))
}

impl Config {
    /// How labelled rows are encoded for a model.
    pub(crate) fn labelled_shape(&self, model: &TransformerConfig) -> LabelledShape {
        let text = self.data.text.resolved(model.text_positions());
        LabelledShape {
            max_len: text.seq_len,
            has_types: model.n_token_types > 1,
            is_decoder: model.architecture == Architecture::DecoderOnly,
            splits_special_tokens: text.split_special_tokens,
        }
    }
}

/// Estimates the share of the rows that `data.split` leaves for training.
fn share_for_training(config: &Config) -> f64 {
    let split = config.data.split;
    if split < 1.0 {
        return 1.0 - split;
    }
    // Of more rows than this, the split is a part that makes no difference.
    let enough = 1000.0 * split;
    let n_rows = count_pairs(&config.data.train_files(), enough as u64).map_or(enough, |n| n as f64);
    (1.0 - split / n_rows.max(1.0)).max(0.0)
}

/// Rounds down to two digits.
fn round_down(steps: u64) -> u64 {
    let unit = 10_u64.pow(steps.checked_ilog10().unwrap_or(0).saturating_sub(1));
    steps / unit * unit
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::config::{Base, ConfigError, Machine, Preset, Resolved, Sources, resolve};

    const CPU: Machine = Machine { is_cpu: true, has_kernels: true, memory_bytes: Some(16 << 30) };

    fn resolved(file: &Path, preset: Option<&str>, set: &[&str]) -> Result<Resolved, ConfigError> {
        let train = format!("data.train={}", file.display());
        let set = [train.as_str()].iter().chain(set).map(|&set| set.to_owned()).collect();
        resolve(&Sources { preset: preset.map(str::to_owned), set, machine: Some(CPU), ..Sources::default() })
    }

    fn pairs(folder: &Path, n: usize) -> PathBuf {
        let path = folder.join(format!("{n}.tsv"));
        let row = |i: usize| format!("{} and {}\tthe pair {i} of {n}\n", i * 7919 % 1000, i * 31 % 100);
        fs::write(&path, (0..n).map(row).collect::<String>()).expect("writable");
        path
    }

    #[test]
    fn a_chosen_preset_takes_a_hundred_epochs_of_little_text_at_most() {
        let folder = tempfile::tempdir().expect("a folder");
        let few = pairs(folder.path(), 300);
        let Resolved { config, base, .. } = resolved(&few, None, &[]).expect("valid");
        let Base::Chosen(chosen) = base else { panic!("{base:?}") };
        let shortened = Some(Shortened { from: 3000, to: config.train.steps });
        assert_eq!((chosen.preset, chosen.shortened), (Preset::FewPairs, shortened));

        let batches = batches_per_epoch(&config, f64::INFINITY).expect("readable");
        let epochs = config.train.steps as f64 / batches;
        assert!((80.0..=MANY_EPOCHS).contains(&epochs), "{epochs}");
        let share = |key: u64, of: u64| (key as f64 / of as f64) / (config.train.steps as f64 / 3000.0);
        let Config { train, optim, .. } = &config;
        for share in [share(optim.warmup_steps, 200), share(train.validate_every, 250), share(train.save_every, 500)] {
            assert!((0.8..=1.0).contains(&share), "{share}");
        }
        assert_eq!(config.validate(), Vec::<String>::new());
    }

    #[test]
    fn rows_for_validation_are_not_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let few = pairs(folder.path(), 600);
        let steps = |set: &[&str]| resolved(&few, None, set).expect("valid").config.train.steps as f64;
        for half in ["data.split=0.5", "data.split=300"] {
            let share = steps(&[half]) / steps(&[]);
            assert!((0.4..0.6).contains(&share), "{half}: {share}");
        }
    }

    #[test]
    fn steps_that_kiln_chooses_are_not_above_a_hundred_epochs_with_any_split() {
        let folder = tempfile::tempdir().expect("a folder");
        let few = pairs(folder.path(), 301);
        for split in (10..200).step_by(30) {
            let set = format!("data.split={split}");
            let config = resolved(&few, None, &[&set]).expect("valid").config;
            let batches = batches_per_epoch(&config, f64::INFINITY).expect("readable").floor();
            let epochs = config.train.steps as f64 / batches;
            assert!(epochs <= MANY_EPOCHS, "{set}: {epochs} epochs of {batches}");
        }
    }

    #[test]
    fn more_text_and_other_decisions_keep_the_steps() {
        let folder = tempfile::tempdir().expect("a folder");
        let few = pairs(folder.path(), 300);
        let steps = |file: &Path, preset: Option<&str>, set: &[&str]| {
            let Resolved { config, base, .. } = resolved(file, preset, set).expect("valid");
            let is_shortened = matches!(base, Base::Chosen(chosen) if chosen.shortened.is_some());
            (config.train.steps, config.optim.warmup_steps, is_shortened)
        };
        assert_eq!(steps(&few, Some("few-pairs"), &[]), (3000, 200, false));
        assert_eq!(steps(&few, None, &["train.steps=3000"]), (3000, 200, false));
        assert_eq!(steps(&pairs(folder.path(), 4500), None, &[]), (3000, 200, false));
        let (steps, warmup, is_shortened) = steps(&few, None, &["optim.warmup_steps=150"]);
        assert!(is_shortened && steps > warmup && warmup == 150, "{steps}");
    }

    #[test]
    fn numbers_are_rounded_down_to_two_digits() {
        for (steps, rounded) in [(0, 0), (7, 7), (99, 99), (101, 100), (1299, 1200), (12_345, 12_000)] {
            assert_eq!(round_down(steps), rounded);
        }
    }
}
