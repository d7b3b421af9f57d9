//! The second stage: chooses the preset, or the run, whose values hold for the keys that are not given.

use std::path::PathBuf;

use kiln_data::{LabelConfig, Task, TextConfig, count_pairs, count_words_in};
use kiln_metrics::units::thousands;
use toml::Value;

use super::read::Given;
use super::report::{Origin, Report};
use super::sources::Sources;
use crate::config::length::Shortened;
use crate::config::machine::Machine;
use crate::config::task::{Classes, Reads, traits_of};
use crate::config::{Config, Preset};

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

/// The given values and the configuration that they change.
pub(super) struct Based {
    /// Without `preset`.
    pub(super) values: Vec<(String, Value)>,
    pub(super) file_is_broken: bool,
    pub(super) defaults: Config,
    pub(super) base: Base,
    pub(super) report: Report,
}

/// Takes the preset of `--preset`, or of `preset = "..."` in the file, or the run to start from, or the usual preset for task, text
/// and machine.
pub(super) fn choose(given: Given, sources: &Sources) -> Based {
    let Given { mut values, file_is_broken, mut report } = given;
    let at = values.iter().rposition(|(key, _)| key == "preset");
    let of_file = at.map(|at| values.remove(at).1);
    let named = match (&sources.preset, of_file) {
        (Some(name), _) => Some((name.clone(), Some(Origin::command_line(format!("--preset {name}"))))),
        (None, Some(Value::String(name))) => Some((name, report.origins.get("preset").cloned())),
        (None, Some(other)) => Some((other.to_string(), report.origins.get("preset").cloned())),
        (None, None) => None,
    };

    let named = match named {
        Some((name, origin)) if sources.fine_tunes => {
            let problem = format!(
                "preset = {name:?} has no place next to --from, which takes model, vocabulary and settings from that run; remove it"
            );
            report.problem(origin.as_ref(), problem);
            None
        }
        named => named,
    };

    let (defaults, base) = match (named, &sources.base) {
        (Some((name, origin)), _) => {
            let preset = name.parse().unwrap_or_else(|problem| {
                report.problem(origin.as_ref(), problem);
                Preset::Base
            });
            (preset.config(), Base::Named(preset))
        }
        (None, Some(run)) => (run.clone(), Base::Run),
        (None, None) => {
            let last = |wanted: &str| values.iter().rev().find(|(key, _)| key == wanted).map(|(_, value)| value);
            // The next stage reports an unknown task.
            let task = last("task").and_then(|task| task.clone().try_into().ok()).unwrap_or_default();
            let train = last("data.train").map(paths_in).or_else(|| last("data.mix").map(paths_of_sources));
            let fields = fields_of(task, |key| last(key).and_then(Value::as_str).map(str::to_owned));
            let chosen = usual_preset(task, train.as_deref(), &fields, sources.machine);
            (chosen.preset.config(), Base::Chosen(chosen))
        }
    };
    Based { values, file_is_broken, defaults, base, report }
}

/// Returns the paths in a value of `data.train`, which may be one string.
fn paths_in(value: &Value) -> Vec<PathBuf> {
    let texts = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    texts.iter().filter_map(Value::as_str).map(PathBuf::from).collect()
}

/// Returns the paths of the training text in a value of `data.mix`.
fn paths_of_sources(value: &Value) -> Vec<PathBuf> {
    let sources = value.as_array().map_or(&[][..], Vec::as_slice);
    sources.iter().filter_map(|source| source.get("train")).flat_map(paths_in).collect()
}

/// Returns the fields of records that a model of texts reads, with the values that are set.
fn fields_of(task: Task, set: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let labels = LabelConfig::default();
    let named = match traits_of(task).classes {
        Some(Classes::OfTexts) => {
            vec![("data.labels.text_field", labels.text_field), ("data.labels.pair_field", labels.pair_field)]
        }
        Some(Classes::OfWords) => vec![("data.labels.words_field", labels.words_field)],
        None => vec![("data.text.field", TextConfig::default().field)],
    };
    let values = named.into_iter().map(|(key, usual)| set(key).unwrap_or(usual));
    values.flat_map(|fields| fields.split(',').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Chooses the preset of a run that names none. It depends on the task, the device and the size of the text.
fn usual_preset(task: Task, train: Option<&[PathBuf]>, fields: &[String], machine: Option<Machine>) -> Chosen {
    let row = traits_of(task);
    let chosen = |preset: Preset, why: String| Chosen { preset, why, shortened: None };
    let Some(train) = train else { return chosen(row.built_in_preset, "the built-in task".into()) };
    let Some(machine) = machine else { return chosen(Preset::usual_for(task, true), "text of your own".into()) };

    let (presets, device) = match machine {
        Machine { is_cpu: true, .. } => (row.on_cpu, "a CPU"),
        Machine { has_kernels: true, .. } => (row.on_gpu, "a GPU"),
        _ => (row.on_cpu, "a device without kernels"),
    };
    let (counted, most, unit) = match row.reads {
        Reads::Pairs => (count_pairs(train, COUNTED_PAIRS), COUNTED_PAIRS, "pairs"),
        Reads::Text => (count_words_in(train, fields, COUNTED_WORDS), COUNTED_WORDS, "words"),
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const CPU: Machine = Machine { is_cpu: true, has_kernels: true, memory_bytes: Some(16 << 30) };
    const GPU: Machine = Machine { is_cpu: false, has_kernels: true, memory_bytes: Some(80 << 30) };

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
            let chosen = usual_preset(Task::Translation, Some(train), &[], Some(machine));
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
            let chosen = usual_preset(task, Some(train), &[], Some(machine));
            assert_eq!(chosen.preset, preset, "{task:?} {machine:?}");
            assert!(
                ["30,000 words on a ", "600,000 words on a "].iter().any(|n| chosen.why.starts_with(n)),
                "{chosen:?}"
            );
        }
        assert_eq!(usual_preset(Task::Lm, None, &[], Some(GPU)).preset, Preset::Gpt2Tiny);
        assert_eq!(usual_preset(Task::Lm, Some(&novel), &[], None).preset, Preset::Gpt2Mini);
    }
}
