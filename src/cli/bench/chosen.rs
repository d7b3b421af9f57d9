//! Which steps to time: named workloads, or the model of a preset, a file or a run.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_lab::diagnose::workload::{NAMES, Workload};
use kiln_metrics::logging::print::stderr_line;
use kiln_train::config::{Config, Preset, Sources, resolve};
use kiln_train::device::DeviceChoice;
use kiln_train::run::TrainedModel;

use crate::cli::config_args::ConfigArgs;
use crate::cli::error::Usage;

/// The named workloads that are timed if none is chosen.
const USUAL: [&str; 2] = ["gpt", "mt"];

/// The name of the bandwidth table among the workloads.
pub(super) const LINK: &str = "link";

/// The name of the searches among the workloads.
pub(super) const DECODE: &str = "decode";

/// Keys that divide a step of training into several batches.
const MICRO_BATCHES: [&str; 2] = ["train.grad_accum_steps", "train.split_batches"];

/// The chosen steps.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ChosenArgs {
    /// Workloads: gpt (GPT-2 124M, 16 x 1024), gpt64 (64 x 1024), gpt-8k (4 x 8192), gpt-h96 (heads of 96), llama (125M, 16 x
    /// 2048), bert (base, 64 x 512), mt (Transformer base, 400 padded pairs), tiny, tiny-mt; decode, searches of
    /// several models; with --devices also link, the bandwidth between the devices [default: gpt mt, if no model is chosen]
    pub(super) workloads: Vec<String>,

    /// The model and the recipe of a preset; tokenizer.vocab_size is the size of its vocabulary
    #[arg(long, value_name = "NAME", conflicts_with = "run")]
    preset: Option<String>,

    /// The model and the recipe of a configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    config: Option<PathBuf>,

    /// The model and the recipe of a trained run
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,

    /// Changes one key of the configuration, for example model.n_heads=8; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Rows of a batch [default: as the workload; else loader.batch_tokens / --len]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,

    /// Positions of a row, of source and target each [default: as the workload; else 1024 of text, 64 of a pair]
    #[arg(long, value_name = "N")]
    len: Option<usize>,

    /// Other ranks run the same command, so that [`LINK`] is a choice.
    #[arg(skip)]
    pub(super) others: bool,

    /// The command decodes, so that [`DECODE`] is a choice.
    #[arg(skip)]
    pub(super) decodes: bool,
}

impl ChosenArgs {
    /// Returns whether nothing is chosen.
    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && !self.is_model()
    }

    /// Returns the steps to time on `device`.
    pub(in crate::cli) fn workloads(&self, device: DeviceChoice) -> Result<Vec<Workload>> {
        if let Some(key) = MICRO_BATCHES.into_iter().find(|key| self.set.iter().any(|set| set.starts_with(key))) {
            bail!(Usage(format!(
                "a step of a workload is one batch, so {key} would change nothing here; kiln train and kiln diagnose take it"
            )));
        }
        let mut workloads = Vec::new();
        let usual = USUAL.map(String::from);
        let names = if self.is_empty() { &usual[..] } else { &self.workloads };
        for name in names.iter().filter(|name| !(self.others && *name == LINK || self.decodes && *name == DECODE)) {
            let mut workload = named(name)?;
            workload.set(&self.set)?.iter().for_each(|note| stderr_line!("{note}"));
            workload.reshape(self.rows, self.len)?;
            workloads.push(workload);
        }

        workloads.extend(self.of_run()?);
        workloads.extend(self.of_configuration(device)?);
        Ok(workloads)
    }

    /// Returns whether a named workload is chosen, or none at all.
    pub(super) fn has_named(&self) -> bool {
        !self.workloads.is_empty() || self.is_empty()
    }

    fn is_model(&self) -> bool {
        self.preset.is_some() || self.config.is_some() || self.run.is_some()
    }

    fn of_run(&self) -> Result<Option<Workload>> {
        let Some(dir) = &self.run else { return Ok(None) };
        let run = TrainedModel::find(dir, None)?;
        let base = Config { model: run.model, ..run.config };
        let sources = Sources { base: Some(base), set: self.set.clone(), only_shown: true, ..Sources::default() };
        let config = resolve(&sources)?.config;
        Ok(Some(Workload::of(&name_of(dir), predicting_tokens(&config)?, self.rows, self.len)?))
    }

    fn of_configuration(&self, device: DeviceChoice) -> Result<Option<Workload>> {
        if self.preset.is_none() && self.config.is_none() {
            return Ok(None);
        }
        let (config, preset, set) = (self.config.clone(), self.preset.clone(), self.set.clone());
        let given = ConfigArgs { config, preset, set, ..ConfigArgs::default() };
        let sources = Sources { only_shown: true, ..given.sources(&[], device) };
        let config = resolve(&sources)?.config;
        Ok(Some(Workload::of(&given.name(), predicting_tokens(&config)?, self.rows, self.len)?))
    }
}

/// Refuses a model that predicts classes: the batches of a workload have tokens for labels.
fn predicting_tokens(config: &Config) -> Result<&Config> {
    if config.model.has_classes() {
        bail!(Usage(
            "kiln bench times models that predict tokens, and this one predicts classes; time the model that it was made of, or one \
             of its shape (--preset, --set model.class_head=none)"
                .into()
        ));
    }
    Ok(config)
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn named(name: &str) -> Result<Workload> {
    if let Some(workload) = Workload::named(name) {
        return Ok(workload);
    }
    if name.parse::<Preset>().is_ok() {
        bail!(Usage(format!("{name:?} is a preset: give it as --preset {name}")));
    }
    let names = NAMES.join(", ");
    bail!(Usage(format!("no workload {name:?}; choose from {names}, or a model with --preset, --config or --run")))
}
