//! Several sources of training text, each with its share: `[[data.mix]]`.

mod weight;

use std::collections::BTreeSet;
use std::path::PathBuf;

use kiln_data::{FilterConfig, MixShares, SharesFrom, TokenizerConfig};
use serde::{Deserialize, Deserializer, Serialize};

pub use weight::MixWeight;

use super::task::{Reads, traits_of};
use super::{Config, DataConfig, LostReplicas};

/// The longest name of a source, which is part of the names of files.
const LONGEST_NAME: usize = 64;

/// A source of training text in a mixture.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MixEntry {
    /// Name in metrics, messages and the token cache: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Training text, as `data.train` names it.
    #[serde(deserialize_with = "one_or_several")]
    pub train: Vec<PathBuf>,
    /// Validation text, as `data.valid` names it. Its loss is reported on its own, too.
    #[serde(deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<PathBuf>,
    /// Share of the rows, relative to the weights of the other sources. All sources have one, or none has. `[[0, 4.0], [10000, 1.0]]`
    /// is 4, and 1 after 10,000 optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<MixWeight>,
    /// Pairs: put in front of every source text, with a space (`>>ita<<`). A trained vocabulary has a token for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The source's own filter, in place of `data.filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<FilterConfig>,
}

/// Reads a list of files, or one file.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Files {
        One(PathBuf),
        Several(Vec<PathBuf>),
    }
    Ok(match Files::deserialize(deserializer)? {
        Files::One(file) => vec![file],
        Files::Several(files) => files,
    })
}

impl DataConfig {
    /// Whether the training text is a mixture.
    pub fn is_mixed(&self) -> bool {
        !self.mix.is_empty()
    }

    /// Returns the entries of all training text: `train`, or the files of the mixture, each once.
    pub fn train_files(&self) -> Vec<PathBuf> {
        distinct(self.train.iter().chain(self.mix.iter().flat_map(|entry| &entry.train)))
    }

    /// Returns the entries of all validation text: `valid`, or the files of the mixture, each once.
    pub fn valid_files(&self) -> Vec<PathBuf> {
        distinct(self.valid.iter().chain(self.mix.iter().flat_map(|entry| &entry.valid)))
    }

    /// Whether `split` sets rows aside that a run with the data `before` was trained on. A part of the rows that it set aside is safe, since
    /// hashes decide, unless it chose them `otherwise`.
    pub(crate) fn validates_trained_rows(&self, before: &Self, otherwise: bool) -> bool {
        let shares = before.train_files().iter().any(|file| self.train.contains(file));
        let is_part = !otherwise && self.split <= before.split && (self.split < 1.0) == (before.split < 1.0);
        self.split > 0.0 && shares && !is_part
    }

    /// Returns what decides the shares of the mixture.
    pub fn mix_shares(&self) -> MixShares {
        let weights: Vec<&MixWeight> = self.mix.iter().filter_map(|entry| entry.weight.as_ref()).collect();
        if weights.is_empty() {
            return MixShares::Temperature(self.mix_temperature.unwrap_or(1.0));
        }
        let at = |step: u64| weights.iter().map(|weight| weight.at(step)).collect();
        let steps: BTreeSet<u64> = weights.iter().flat_map(|weight| weight.steps()).chain([0]).collect();
        match steps.len() {
            1 => MixShares::Weights(at(0)),
            _ => MixShares::Changing(steps.into_iter().map(|step| SharesFrom { step, weights: at(step) }).collect()),
        }
    }
}

fn distinct<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    files.filter(|file| seen.insert(*file)).cloned().collect()
}

impl Config {
    /// Returns whether the run trains on the built-in task, because it names no training text.
    pub fn is_built_in_task(&self) -> bool {
        self.data.train.is_empty() && !self.data.is_mixed()
    }

    /// Returns how a vocabulary is trained: with a token for each tag of the mixture.
    pub fn trained_tokenizer(&self) -> TokenizerConfig {
        let mut config = self.tokenizer.clone();
        for tag in self.data.mix.iter().filter_map(|entry| entry.tag.as_ref()) {
            if config.path.is_none() && !config.extra_tokens.contains(tag) {
                config.extra_tokens.push(tag.clone());
            }
        }
        config
    }
}

/// Returns a problem for everything that is wrong with the mixture. Each begins with its key.
pub(super) fn problems(config: &Config) -> Vec<String> {
    let data = &config.data;
    let temperature = data.mix_temperature;
    if data.mix.is_empty() {
        let unused = temperature.is_some();
        let problem = "data.mix_temperature decides the shares of data.mix, which names no source; remove it";
        return unused.then(|| problem.to_owned()).into_iter().collect();
    }
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in &data.mix {
        if !seen.insert(&entry.name) {
            problems.push(format!("data.mix has two sources with the name \"{}\"; give each its own", entry.name));
        }
        problems.extend(of_entry(entry));
    }

    let n_weights = data.mix.iter().filter(|entry| entry.weight.is_some()).count();
    if n_weights > 0 && n_weights < data.mix.len() {
        problems.push(format!(
            "data.mix gives {n_weights} of {} sources a weight; give all of them one, or none and set data.mix_temperature",
            data.mix.len()
        ));
    }
    if let Some(temperature) = temperature {
        if !(temperature > 0.0 && temperature.is_finite()) {
            problems.push(format!(
                "data.mix_temperature {temperature} is not a finite number above 0; 1 keeps the sizes, 5 is usual for many \
                 languages"
            ));
        } else if n_weights > 0 {
            problems.push(
                "data.mix_temperature and the weights of data.mix both decide the shares; remove one of the two".into(),
            );
        }
    }
    if problems.is_empty() && n_weights > 0 {
        problems.extend(of_weights(config));
    }
    problems.extend(against_other_keys(config));
    problems
}

/// Returns what is wrong with a source alone.
fn of_entry(entry: &MixEntry) -> Vec<String> {
    let MixEntry { name, train, weight, tag, .. } = entry;
    let mut problems = Vec::new();
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('.') || !name.chars().all(is_usual) {
        problems.push(format!(
            "data.mix has a source with the name \"{name}\"; use 1 to {LONGEST_NAME} letters, digits, \"-\", \"_\" and \".\", \
             because the token cache has it in its name"
        ));
    }
    if train.is_empty() {
        problems.push(format!("data.mix: source \"{name}\" names no files; set train = [\"FILE\"]"));
    }

    match weight {
        Some(MixWeight::Constant(weight)) if !(*weight > 0.0 && weight.is_finite()) => problems.push(format!(
            "data.mix: source \"{name}\" has weight = {weight}, which is not a finite number above 0; remove the source if it \
             is to have no rows"
        )),
        Some(MixWeight::FromSteps(steps)) => problems.extend(weight::problem(name, steps)),
        _ => {}
    }
    if let Some(tag) = tag
        && (tag.is_empty() || tag.chars().any(|c| c.is_whitespace() || c.is_control()))
    {
        problems.push(format!(
            "data.mix: source \"{name}\" has tag = {tag:?}; a tag is one token without spaces, such as \">>ita<<\""
        ));
    }
    problems
}

/// Returns what is wrong with the weights of all sources together, each of which is valid.
fn of_weights(config: &Config) -> Option<String> {
    let MixShares::Changing(changes) = config.data.mix_shares() else { return None };
    if config.train.lost_replicas == LostReplicas::GoOn {
        return Some(
            "data.mix has weights that change with the steps, but with train.lost_replicas = \"go_on\" a step has as many batches \
             as there are devices; give each source one weight, or set train.lost_replicas = \"end\""
                .into(),
        );
    }
    let empty = changes.iter().find(|change| change.weights.iter().all(|weight| *weight == 0.0))?;
    Some(format!("data.mix gives no source a weight above 0 from step {} on", empty.step))
}

/// Returns what keys outside the mixture contradict it.
fn against_other_keys(config: &Config) -> Vec<String> {
    let (data, row) = (&config.data, traits_of(config.task));
    let mut problems = Vec::new();
    let mut refuse = |is_wrong: bool, problem: String| {
        if is_wrong {
            problems.push(problem);
        }
    };
    refuse(
        !data.train.is_empty(),
        "data.mix and data.train both name training text; remove one of the two (a source of data.mix can name the files)"
            .into(),
    );

    let names_valid = data.mix.iter().any(|entry| !entry.valid.is_empty());
    refuse(
        names_valid && !data.valid.is_empty(),
        "data.mix and data.valid both name validation text; name it in one of the two".into(),
    );
    refuse(
        data.split > 0.0,
        "data.split takes rows out of data.train, not out of data.mix; name validation text with valid in the sources, or in \
         data.valid"
            .into(),
    );

    refuse(
        row.classes.is_some() || data.text.is_preferences(),
        format!(
            "data.mix mixes pairs, plain text and conversations; task = \"{}\" with this data.text.format reads other rows; name \
             all files in data.train",
            row.name
        ),
    );
    refuse(
        !config.loader.shuffle,
        "loader.shuffle = false keeps the order of the files, but every batch of a mixture (data.mix) has rows of several \
         sources; set loader.shuffle = true"
            .into(),
    );
    let tagged = data.mix.iter().find(|entry| entry.tag.is_some());
    if let Some(entry) = tagged.filter(|_| row.reads == Reads::Text) {
        refuse(true, format!("data.mix: source \"{}\" has a tag, which only pairs have; remove it", entry.name));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Task, presets};

    type Change = fn(&mut Config);

    fn both(one: f64, other: f64) -> (Option<MixWeight>, Option<MixWeight>) {
        (Some(one.into()), Some(other.into()))
    }

    /// A mixture of two sources with weights as in a file.
    fn weighted(one: &str, other: &str) -> Config {
        let source = |name: &str, weight: &str| {
            format!("[[data.mix]]\nname = \"{name}\"\ntrain = \"{name}.tsv\"\nweight = {weight}\n")
        };
        Config::from_toml(&(source("news", one) + &source("web", other))).expect("weights")
    }

    #[test]
    fn weights_that_change_are_put_together_by_their_steps() {
        let config = weighted("[[0, 4], [10000, 1.0]]", "[[0, 0.0], [500, 2.5], [10000, 3]]");
        assert_eq!(config.validate(), Vec::<String>::new());
        assert_eq!(Config::from_toml(&config.to_toml()).expect("as written"), config);
        let from = |step, weights: [f64; 2]| SharesFrom { step, weights: weights.into() };
        let wanted = vec![from(0, [4.0, 0.0]), from(500, [4.0, 2.5]), from(10_000, [1.0, 3.0])];
        assert_eq!(config.data.mix_shares(), MixShares::Changing(wanted));
        let constant = weighted("[[0, 4]]", "1").data.mix_shares();
        assert_eq!(constant, MixShares::Weights(vec![4.0, 1.0]));
        assert_eq!(weighted("2", "[[0, 1], [9, 5]]").data.mix_shares(), {
            MixShares::Changing(vec![from(0, [2.0, 1.0]), from(9, [2.0, 5.0])])
        });

        for (one, other, wanted) in [
            ("[[1, 4.0]]", "1", "source \"news\" has a weight whose steps do not ascend from 0"),
            ("1", "[[0, 1], [7, 2], [7, 3]]", "source \"web\" has a weight whose steps do not ascend"),
            ("[]", "1", "whose steps do not ascend"),
            ("[[0, 1.0], [5, -1.0]]", "1", "has the weight -1 from step 5 on"),
            ("[[0, 1.0], [5, nan]]", "1", "has the weight NaN from step 5 on"),
            ("[[0, 0.0], [5, 0.0]]", "1", "source \"news\" has no weight above 0 at any step"),
            ("[[0, 1], [5, 0]]", "[[0, 2], [5, 0]]", "data.mix gives no source a weight above 0 from step 5 on"),
        ] {
            let found = weighted(one, other).validate();
            assert!(found.len() == 1 && found[0].contains(wanted), "{wanted}: {found:#?}");
        }
        let mut replicas = config;
        replicas.train.lost_replicas = LostReplicas::GoOn;
        let found = replicas.validate();
        assert!(found.iter().any(|problem| problem.starts_with("data.mix has weights that change")), "{found:#?}");
    }

    fn mixed() -> Config {
        let mut config = presets::tiny();
        let entry = |name: &str| MixEntry { name: name.into(), train: vec!["a.tsv".into()], ..MixEntry::default() };
        config.data.mix = vec![entry("news"), entry("subtitles")];
        config
    }

    #[test]
    fn a_mixture_is_valid_and_bad_ones_are_named() {
        assert_eq!(mixed().validate(), Vec::<String>::new());
        let cases: [(&str, Change); 17] = [
            ("two sources with the name \"news\"", |c| c.data.mix[1].name = "news".into()),
            ("a source with the name \"a/b\"", |c| c.data.mix[1].name = "a/b".into()),
            ("a source with the name \"\"", |c| c.data.mix[1].name.clear()),
            ("source \"subtitles\" names no files", |c| c.data.mix[1].train.clear()),
            ("weight = 0, which is not", |c| (c.data.mix[0].weight, c.data.mix[1].weight) = both(0.0, 1.0)),
            ("weight = -2, which is not", |c| (c.data.mix[0].weight, c.data.mix[1].weight) = both(-2.0, 1.0)),
            ("gives 1 of 2 sources a weight", |c| c.data.mix[0].weight = Some(1.0.into())),
            ("data.mix_temperature 0 is not", |c| c.data.mix_temperature = Some(0.0)),
            ("data.mix_temperature and the weights", |c| {
                c.data.mix.iter_mut().for_each(|entry| entry.weight = Some(1.0.into()));
                c.data.mix_temperature = Some(2.0);
            }),
            ("which names no source", |c| (c.data.mix, c.data.mix_temperature) = (Vec::new(), Some(2.0))),
            ("tag = \"two words\"", |c| c.data.mix[0].tag = Some("two words".into())),
            ("data.mix and data.train both", |c| c.data.train = vec!["b.tsv".into()]),
            ("data.mix and data.valid both", |c| {
                (c.data.mix[0].valid, c.data.valid) = (vec!["v.tsv".into()], vec!["w.tsv".into()]);
            }),
            ("data.split takes rows", |c| c.data.split = 0.1),
            ("loader.shuffle = false", |c| c.loader.shuffle = false),
            ("which only pairs have", |c| {
                c.clone_from(&Config { data: c.data.clone(), ..presets::gpt2_tiny() });
                c.data.mix[0].tag = Some("<x>".into());
            }),
            ("reads other rows", |c| c.task = Task::Classification),
        ];

        for (wanted, change) in cases {
            let mut config = mixed();
            change(&mut config);
            let found = config.validate();
            assert!(found.iter().any(|problem| problem.contains(wanted)), "{wanted}: {found:#?}");
            assert!(found.iter().all(|problem| problem.contains("data.") || problem.contains("task")), "{found:#?}");
        }
    }

    #[test]
    fn a_mixture_is_saved_and_read_with_the_run() {
        let mut config = mixed();
        (config.data.mix[0].weight, config.data.mix[0].tag) = (Some(2.5.into()), Some(">>ita<<".into()));
        assert_eq!(Config::from_toml(&config.to_toml()).expect("as written"), config);
        let text = "[[data.mix]]\nname = \"a\"\ntrain = \"one.tsv\"\nweight = 2\n";
        let read = Config::from_toml(text).expect("one file is a list of one");
        assert_eq!(
            (&read.data.mix[0].train[..], read.data.mix[0].weight.clone()),
            (&["one.tsv".into()][..], Some(2.0.into()))
        );
        assert!(Config::from_toml("[[data.mix]]\nnaem = \"a\"\n").is_err());
    }
}
