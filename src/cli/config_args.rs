//! Options that several subcommands share.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use kiln_kernels::int8::Int8;
use kiln_metrics::logging::print::stderr_line;
use kiln_train::config::{
    Base, Config, ConfigError, EarlyStopping, GenerateConfig, LengthNormalization, Preset, Resolved, Sources,
    named_task, resolve,
};
use kiln_train::device::{DeviceChoice, DeviceError, gpu_hint, machine_of};
use kiln_train::run::TrainedModel;

use super::pool;
use super::tips::option_for_key;

/// The configuration. A file overrides the preset, and `--set` overrides both.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ConfigArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Task to learn: translation, lm (the next token of a text), mlm (hidden tokens of a text), classification (the class
    /// of a text) or tagging (the tag of each word)
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,

    /// Size and recipe to start from: numbers, few-pairs, tiny, small, base, big, transformer-base, transformer-big for
    /// translation; gpt2-tiny, few-words, gpt2-mini, gpt2-124m, gpt2-350m, modern-124m, llama-125m, llama-1b for lm; bert-tiny, few-words-mlm,
    /// bert-small for mlm; classify, classify-decoder for classification; tag for tagging [default: by the task, the device and the size
    /// of the text]
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,

    /// lm and mlm: how documents fill the rows; short for --set data.text.packing=... Values: documents (full rows,
    /// without attention between documents), stream (full rows, with attention between documents), sentences (one
    /// document per row)
    #[arg(long, value_name = "HOW")]
    pub packing: Option<String>,

    /// Changes one key of the configuration, for example optim.lr=3e-4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// Returns the validated configuration of a run on `device`, and prints which defaults gave way to set keys; `files`,
    /// if any, are the training text.
    pub(super) fn load(&self, files: &[PathBuf], device: DeviceChoice) -> Result<Config, ConfigError> {
        let Resolved { config, notes, .. } = resolve(&self.sources(files, device))?;
        notes.iter().for_each(|note| stderr_line!("{note}"));
        Ok(config)
    }

    /// Returns the layers of the configuration of a run on `device`; `files`, if any, are the training text.
    pub(super) fn sources(&self, files: &[PathBuf], device: DeviceChoice) -> Sources {
        let mut set = Vec::new();
        if !files.is_empty() {
            let list: Vec<_> = files.iter().map(|file| toml::Value::String(file.display().to_string())).collect();
            set.push(format!("data.train={}", toml::Value::Array(list)));
        }
        set.extend(self.packing.iter().map(|packing| format!("data.text.packing={packing}")));
        set.extend(self.set.iter().cloned());
        // A device that cannot be opened is refused when the run starts.
        let machine = device.open().ok().map(|device| machine_of(&device));
        let (task, preset, file) = (self.task.clone(), self.preset.clone(), self.config.clone());
        Sources { task, preset, file, set, machine, ..Sources::default() }
    }

    /// Returns the name of a run with this configuration: [`Self::given_name`], else of the built-in task's preset.
    pub(super) fn name(&self) -> String {
        self.given_name().unwrap_or_else(|| Preset::Numbers.name().into())
    }

    /// Returns the name of a new run: [`Self::given_name`], else the preset that `base` names or has chosen.
    pub(super) fn run_name(&self, base: &Base) -> String {
        let preset = || base.preset().map(|preset| preset.to_string());
        self.given_name().or_else(preset).unwrap_or_else(|| self.name())
    }

    /// Returns the name of the configuration file, else of the preset, else of the task.
    pub(super) fn given_name(&self) -> Option<String> {
        let stem = self.config.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
        let task = self.task.clone().filter(|task| task != "translation");
        stem.or_else(|| self.preset.clone()).or(task)
    }

    /// Returns the task that an option or the file names.
    pub(super) fn named_task(&self) -> Option<String> {
        let (task, file, set) = (self.task.clone(), self.config.clone(), self.set.clone());
        named_task(&Sources { task, file, set, ..Sources::default() })
    }

    /// Returns whether no option was given.
    pub(super) fn is_empty(&self) -> bool {
        self.config.is_none()
            && self.task.is_none()
            && self.preset.is_none()
            && self.packing.is_none()
            && self.set.is_empty()
    }
}

/// The device to compute on.
#[derive(Debug, Clone, Args)]
pub(super) struct DeviceArgs {
    /// cpu, cuda, cuda:1 (the second GPU), wgpu (through Vulkan or Metal, slower) or auto
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
}

impl DeviceArgs {
    /// Opens the device.
    pub(super) fn open(&self) -> Result<Device, DeviceError> {
        pool::join();
        self.choice().open()
    }

    /// Opens the device, and meanwhile the run that it will compute with.
    pub(super) fn open_with(&self, run: &Path, checkpoint: Option<&str>) -> anyhow::Result<(Device, TrainedModel)> {
        pool::join();
        TrainedModel::find_and_open(run, checkpoint, self.choice())
    }

    /// Returns the device that was asked for. Prints a hint if a GPU is idle because this build cannot use it.
    pub(super) fn choice(&self) -> DeviceChoice {
        if self.device == DeviceChoice::Auto
            && let Some(hint) = gpu_hint()
        {
            stderr_line!("note: {hint}");
        }
        self.device
    }
}

/// How to generate text. The run's configuration has the default of each option.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(super) struct GenerateArgs {
    /// Takes the most likely token each time
    #[arg(long, conflicts_with_all = ["beam", "sample", "temperature", "top_k", "top_p"])]
    pub greedy: bool,

    /// Number of beams; 1 is greedy
    #[arg(long, value_name = "N", conflicts_with_all = ["sample", "temperature", "top_k", "top_p"])]
    pub beam: Option<usize>,

    /// Exponent of the beams' length penalty; 0 compares plain log-probabilities
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true)]
    pub length_penalty: Option<f64>,

    /// Length in the score of a beam: wu, (5 + tokens) / 6, or power, the tokens as in transformers
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub length_normalization: Option<LengthNormalization>,

    /// When beam search stops: never before the best is found, heuristic or first as early_stopping=False and True in
    /// transformers
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub early_stopping: Option<EarlyStopping>,

    /// Samples tokens by their probabilities; --temperature, --top-k and --top-p imply it
    #[arg(long)]
    pub sample: bool,

    /// Sampling: divides the logits by T; below 1 sharpens the distribution, above 1 flattens it, 0 takes the most likely
    /// token
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f64>,

    /// Sampling: only the K most likely tokens; 0 for all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,

    /// Sampling: only the most likely tokens that together have probability P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f64>,

    /// Makes tokens that have already occurred less likely; 1 switches it off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f64>,

    /// Lets no N tokens come twice in the same order; 0 switches it off
    #[arg(long, value_name = "N")]
    pub no_repeat_ngram_size: Option<usize>,

    /// Keeps a word out of the text: its tokens of the vocabulary, with spaces between them; may be repeated
    #[arg(long, value_name = "TOKENS")]
    pub bad_word: Vec<String>,

    /// Seed of the sampling
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Size of a batch in source or prompt tokens, including padding
    #[arg(long, value_name = "TOKENS")]
    pub batch_tokens: Option<usize>,

    /// On a CPU: multiplies in whole numbers of eight bits, which is faster and a little less exact; --int8=weights rounds the weights
    /// alone
    #[arg(
        long,
        value_name = "PART",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "both",
        value_parser = int8_part
    )]
    pub int8: Option<Int8>,
}

fn int8_part(name: &str) -> Result<Int8, String> {
    match name {
        "both" => Ok(Int8::Both),
        "weights" => Ok(Int8::Weights),
        _ => Err("use both, which is the same as --int8 alone, or weights".into()),
    }
}

/// `--set` of a command that only generates: refused with the option that does the same.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct NoSetArgs {
    /// As for training; refused with the option that does the same.
    #[arg(long = "set", value_name = "KEY=VALUE", hide = true, value_parser = option_instead_of)]
    set: Option<Infallible>,
}

/// Accepts `--set` of a key that says how text is read, for commands that read some with a model that exists.
pub(super) fn key_of_data(assignment: &str) -> Result<String, String> {
    let reads = ["data.corpus.", "data.text.", "data.labels."];
    match reads.iter().any(|section| assignment.trim_start().starts_with(section)) {
        true => Ok(assignment.to_owned()),
        false => match option_instead_of(assignment) {
            Ok(never) => match never {},
            Err(text) => {
                Err(format!("{text}; keys of data.corpus, data.text and data.labels say how the text is read"))
            }
        },
    }
}

impl GenerateArgs {
    /// Returns whether no option was given.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the run's settings with the given options in their place, validated.
    pub(super) fn apply(&self, of_run: &GenerateConfig) -> Result<GenerateConfig, ConfigError> {
        let samples = self.sample || self.temperature.is_some() || self.top_k.is_some() || self.top_p.is_some();
        let searches = self.greedy || self.beam.is_some();
        let config = GenerateConfig {
            sample: samples || (of_run.sample && !searches),
            temperature: self.temperature.unwrap_or(of_run.temperature),
            top_k: self.top_k.unwrap_or(of_run.top_k),
            top_p: self.top_p.unwrap_or(of_run.top_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(of_run.repetition_penalty),
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(of_run.no_repeat_ngram_size),
            bad_words: [of_run.bad_words.as_slice(), &self.bad_word].concat(),
            seed: self.seed.unwrap_or(of_run.seed),
            beam_size: if samples || self.greedy { 1 } else { self.beam.unwrap_or(of_run.beam_size) },
            length_penalty: self.length_penalty.unwrap_or(of_run.length_penalty),
            length_normalization: self.length_normalization.unwrap_or(of_run.length_normalization),
            early_stopping: self.early_stopping.unwrap_or(of_run.early_stopping),
            batch_tokens: self.batch_tokens.unwrap_or(of_run.batch_tokens),
            ..of_run.clone()
        };
        checked(config)
    }
}

/// Says which option a command that generates has instead of `--set key=value`.
fn option_instead_of(assignment: &str) -> Result<Infallible, String> {
    let (key, value) = assignment.split_once('=').unwrap_or((assignment, "VALUE"));
    let command = GenerateArgs::augment_args(clap::Command::new("generate"));
    let instead = match option_for_key(&command, key.trim()).map(|arg| (arg, arg.get_long().unwrap_or_default())) {
        Some((arg, name)) if arg.get_action().takes_values() => format!("write --{name} {}", value.trim()),
        Some((_, name)) => format!("write --{name}"),
        None if key.trim().rsplit('.').next() == Some("max_new_tokens") => {
            format!("kiln generate and kiln chat have --max-new-tokens {}", value.trim())
        }
        None => "--help lists the options of this command".into(),
    };
    Err(format!("--set changes the configuration of a training run; {instead}"))
}

/// Returns the settings if they are valid.
pub(super) fn checked(config: GenerateConfig) -> Result<GenerateConfig, ConfigError> {
    let mut problems = Vec::new();
    config.validate(&mut problems);
    if problems.is_empty() { Ok(config) } else { Err(ConfigError { problems }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_replace_the_settings_of_the_run() {
        let of_run = GenerateConfig { beam_size: 4, length_penalty: 1.0, ..GenerateConfig::default() };
        let args = GenerateArgs { beam: Some(2), ..GenerateArgs::default() };
        let config = args.apply(&of_run).expect("valid");
        assert_eq!((config.beam_size, config.length_penalty), (2, 1.0));
        let error = GenerateArgs { beam: Some(0), ..GenerateArgs::default() }.apply(&of_run).expect_err("no beams");
        assert!(error.to_string().contains("generate.beam_size is 0"), "{error}");
    }

    #[test]
    fn options_decide_between_sampling_and_searching() {
        let apply = |args: GenerateArgs, sample: bool, beam_size: usize| {
            let config = args.apply(&GenerateConfig { sample, beam_size, ..GenerateConfig::default() }).expect("valid");
            (config.sample, config.beam_size)
        };
        assert_eq!(apply(GenerateArgs::default(), true, 1), (true, 1));
        assert_eq!(apply(GenerateArgs { greedy: true, ..GenerateArgs::default() }, true, 1), (false, 1));
        assert_eq!(apply(GenerateArgs { greedy: true, ..GenerateArgs::default() }, false, 4), (false, 1));
        assert_eq!(apply(GenerateArgs { beam: Some(3), ..GenerateArgs::default() }, true, 1), (false, 3));
        assert_eq!(apply(GenerateArgs { top_k: Some(9), ..GenerateArgs::default() }, false, 4), (true, 1));
    }

    #[test]
    fn keys_of_the_configuration_are_answered_with_options() {
        for (set, wanted) in [
            ("generate.temperature=0.5", "write --temperature 0.5"),
            ("top_k=40", "write --top-k 40"),
            ("generate.beam_size=4", "write --beam 4"),
            ("generate.sample=true", "write --sample"),
            ("generate.max_new_tokens=20", "kiln generate and kiln chat have --max-new-tokens 20"),
            ("train.steps=5", "--help lists the options"),
        ] {
            let error = option_instead_of(set).expect_err("refused");
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn files_on_the_command_line_are_the_training_text() {
        let args = ConfigArgs { preset: Some("tiny".into()), ..ConfigArgs::default() };
        let folder = tempfile::tempdir().expect("a folder");
        let files = ["a \"quoted\".jsonl", "b.jsonl"].map(|name| folder.path().join(name));
        files.iter().for_each(|file| std::fs::write(file, "").expect("writable"));
        assert_eq!(args.load(&files, DeviceChoice::Cpu).expect("valid").data.train, files);
    }
}
