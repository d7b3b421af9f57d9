//! `kiln train`: trains, or shows with --dry-run what would be trained.

mod dry_run;
mod sample;
mod stop;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::Example;
use kiln_model::flops::n_params;
use sample::TextSample;

use super::config_args::{ConfigArgs, DeviceArgs};
use super::lines::one_line;
use crate::checkpoint::{self, Checkpoints, RUN_CONFIG_FILE, find_resume};
use crate::config::{Config, Task};
use crate::dataset::{RunData, Vocabulary};
use crate::device::device_name;
use crate::logging::{Extent, Logging};
use crate::metrics::ValidationMetrics;
use crate::run::{RunError, TrainedModel, folder, start_from, write_config};
use crate::train::{Ended, Outcome, Setup, Trainer};

/// Translations shown after the last step.
const N_SAMPLES: usize = 3;

/// Trains a Transformer
///
/// Without arguments it trains a small one on the built-in task, numbers in digits -> English words, in about two minutes on
/// a CPU; --task lm and --task mlm have a built-in text too. Settings: preset < file < --set. Ctrl-C or SIGTERM saves a
/// checkpoint and ends the run, --resume continues it; SIGUSR1 saves one and the run goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln train
  kiln train --preset base --set data.train=en-it.train.jsonl --set data.valid=en-it.dev.jsonl --run runs/en-it
  kiln train --task lm --set data.train=train.txt --set data.valid=dev.txt --run runs/lm
  kiln train --preset bert-small --set data.train=texts/ --set data.valid=dev.txt
  kiln train --config en-it.toml --set optim.lr=3e-4 --dry-run
  kiln train --from runs/gpt2 --set data.train=texts/ --set optim.lr=1e-4 --run runs/tuned
  kiln train --run runs/en-it --resume")]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Run folder [default: runs/ and the name of the configuration file or preset]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,

    /// Continues the run in the run folder from its newest checkpoint, with its own configuration unless another is given
    #[arg(long)]
    resume: bool,

    /// Starts from the weights, the vocabulary and the configuration of this run: an imported, averaged or trained one
    #[arg(long, value_name = "RUN", conflicts_with_all = ["resume", "config", "preset", "task"])]
    from: Option<PathBuf>,

    /// With --resume: accepts that this key differs from the checkpoint's; may be repeated
    #[arg(long, value_name = "KEY", requires = "resume")]
    allow: Vec<String>,

    /// Checks everything, prints the whole configuration, parameters, memory and first batches, and stops. The token cache
    /// is prepared if need be
    #[arg(long)]
    dry_run: bool,

    /// If the largest batch does not fit into memory: cuts every batch into 2, 4, ... micro-batches (train.split_batches) until
    /// it does. The optimizer step stays that of the whole batch
    #[arg(long)]
    auto_micro_batch: bool,

    /// Computes every operator by its plain definition instead of its kernel: slow, to compare losses with (see `kiln compare`)
    #[arg(long)]
    plain_operators: bool,

    /// Shows nothing but the result and errors
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    /// The run folder and the validated configuration.
    /// `from` is the opened `--from`.
    fn resolve(&self, from: Option<&TrainedModel>) -> Result<(PathBuf, Config)> {
        let named = self.run.as_deref();
        if self.resume {
            let dir = folder::to_resume(named, &self.config.name())?;
            let mut config = self.config.clone();
            if config.config.is_none() && config.preset.is_none() && config.task.is_none() {
                config.config = Some(dir.join(RUN_CONFIG_FILE));
            }
            return Ok((dir, config.load(&[])?));
        }
        if let (Some(name), Some(run)) = (&self.from, from) {
            let dir = folder::for_result(named, name, "tuned", "--run")?;
            let config = ConfigArgs { config: Some(run.path.join(RUN_CONFIG_FILE)), ..self.config.clone() };
            return Ok((dir, config.load(&[])?));
        }
        let config = self.config.load(&[])?;
        let any_arguments = self.run.is_some() || !self.config.is_empty();
        Ok((folder::for_new_run(named, &self.config.name(), any_arguments)?, config))
    }
}

pub(super) fn run(args: Args) -> Result<()> {
    let from = args.from.as_deref().map(|from| TrainedModel::find(from, None)).transpose()?;
    let (dir, mut config) = args.resolve(from.as_ref())?;
    let device = args.device.open()?;
    let mut note = |line: &str| {
        if !args.quiet {
            eprintln!("{line}");
        }
    };
    // Held to the end of the process.
    let lock = if args.dry_run { None } else { Some(folder::take(&dir, args.resume)?) };
    if args.resume && lock.is_some() {
        // Before anything is looked for: a killed run may have left a checkpoint without its name. Without the lock it might be
        // the save of a run that is alive.
        Checkpoints::of_run(&dir).clean()?;
    }
    let vocabulary = match &from {
        Some(run) => Some(run.vocabulary.clone()),
        None if args.resume => vocabulary_of_run(&dir, config.task)?,
        None => None,
    };
    let data = RunData::open(&config, &dir, vocabulary, &mut note)?;
    data.vocabulary.complete(&mut config.model).map_err(|problems| RunError::Config(format!("{problems:#}")))?;
    if args.dry_run {
        return dry_run::print(&config, &data, &device, &dir);
    }

    let checkpoints = Checkpoints::of_run(&dir);
    let weights = match &from {
        Some(run) => Some(start_from(run, &config, &checkpoints)?),
        None => checkpoints.starting_weights()?,
    };
    let resume = if args.resume && (weights.is_some() || checkpoints.list()?.is_empty()) {
        note("this run has no checkpoint of its own yet: starting it from the beginning");
        None
    } else if args.resume {
        let (train, tokenizer) = (data.train.fingerprint(), data.vocabulary.fingerprint());
        let resume = find_resume(&dir, &config, &train, &tokenizer, &args.allow)?;
        resume.damaged.iter().for_each(|error| note(&format!("passed over a damaged checkpoint: {error}")));
        note(&format!("resuming from {}", resume.path.display()));
        Some(resume)
    } else {
        None
    };
    write_config(&dir, &config)?;
    let given = config.clone();
    note(&headline(&config, &device, &dir));
    let start_step = resume.as_ref().map_or(0, |resume| resume.snapshot.state.step);
    let operators = kiln_kernels::Settings { reference_operators: args.plain_operators, ..Default::default() };
    let _installed = operators.install();
    let extent = Extent { start_step, total_steps: config.train.steps, max_time: max_time(&config) };
    let samples = samples(&data.valid_examples);
    let next = next_command(config.task, &samples, data.prompt.as_deref(), &dir);
    let text_sample = TextSample::of(&config, &data);
    let signals = stop::on_signals()?;
    let mut logging = Logging::for_run(&dir, extent, args.quiet)?;
    if args.plain_operators {
        logging.note("every operator is computed by its plain definition (--plain-operators)")?;
    }
    let mut trainer = Trainer::new(
        Setup {
            run_dir: dir.clone(),
            device,
            vocabulary: data.vocabulary,
            weights: weights.map(|weights| weights.weights),
            train: data.train,
            valid: data.valid,
            valid_bytes: data.valid_bytes,
            valid_examples: data.valid_examples,
            logging,
            stop: signals.stop,
            save_now: signals.save_now,
            auto_micro_batch: args.auto_micro_batch,
            config,
        },
        resume,
    )?;
    if trainer.config() != &given {
        write_config(&dir, trainer.config())?;
    }
    let outcome = trainer.run()?;
    if outcome.ended != Ended::AlreadyFinished {
        note(&speed(&outcome));
    }
    if outcome.ended == Ended::Stopped {
        // Said even if quiet: it is the result of the run.
        eprintln!(
            "stopped after step {} and saved; continue with: {} train --run {} --resume",
            outcome.step,
            program(),
            dir.display()
        );
        return Ok(());
    }
    print_result(&outcome, &samples);
    if let Some(text) = text_sample.map(|sample| sample.write(&trainer.state().model)).transpose()?.flatten() {
        println!("  {}", one_line(&text));
    }
    println!("Next: {next}");
    Ok(())
}

/// The vocabulary that the run's newest sound checkpoint carries.
fn vocabulary_of_run(dir: &Path, task: Task) -> Result<Option<Vocabulary>> {
    let newest_first = Checkpoints::of_run(dir).list()?.into_iter().rev();
    let sound = newest_first.map(|(_, path)| path).find(|path| checkpoint::verify(path).is_ok());
    Ok(sound.map(|path| Vocabulary::load_dir(&path, task)).transpose()?)
}

fn max_time(config: &Config) -> Option<Duration> {
    (config.train.max_minutes > 0.0).then(|| Duration::from_secs_f64(config.train.max_minutes * 60.0))
}

fn headline(config: &Config, device: &Device, dir: &Path) -> String {
    format!(
        "training {:.1} M parameters on {} for {} steps; run folder {}",
        n_params(&config.model).total() as f64 / 1e6,
        device_name(device),
        config.train.steps,
        dir.display()
    )
}

fn speed(outcome: &Outcome) -> String {
    let speed = &outcome.throughput;
    format!(
        "step {} after {} of training: {} tok/s without padding (padding {:.0}%), data wait {:.1}%{}",
        outcome.step,
        crate::units::duration(Duration::from_secs_f64(outcome.train_secs)),
        crate::units::thousands(speed.tokens_per_sec),
        100.0 * speed.padding_ratio,
        100.0 * outcome.data_wait_share,
        outcome.late_kernels.map_or(String::new(), |n| format!(", {n} kernels compiled on the way"))
    )
}

/// A few rows from all over the validation text, with their numbers.
fn samples(examples: &[Example]) -> Vec<(usize, Example)> {
    let rows = (1..=N_SAMPLES).map(|n| n * examples.len() / (N_SAMPLES + 1));
    let mut rows: Vec<_> = rows.filter(|row| *row < examples.len()).collect();
    rows.dedup();
    rows.into_iter().map(|row| (row, examples[row].clone())).collect()
}

fn print_result(outcome: &Outcome, samples: &[(usize, Example)]) {
    if let Some(validation) = &outcome.validation {
        println!("{}", scores(validation));
    }
    for (row, example) in samples {
        if let Some(hypothesis) = outcome.hypotheses.get(*row) {
            let verdict = if hypothesis == &example.target { "=" } else { "!=" };
            println!("  {} -> {hypothesis}\n    {verdict} {}", example.source, example.target);
        }
    }
}

fn scores(validation: &ValidationMetrics) -> String {
    let mut line = format!("validation: nll {:.4}, perplexity {:.3}", validation.nll, validation.perplexity());
    if let Some(bits) = validation.bits_per_byte {
        line += &format!(", {bits:.4} bits/byte");
    }
    if let (Some(model), Some(unigram)) = (validation.masked_accuracy, validation.unigram_accuracy) {
        line += &format!(", masked accuracy {:.2}% (unigram {:.2}%)", 100.0 * model, 100.0 * unigram);
    }
    if let Some(bleu) = validation.bleu {
        line += &format!(", BLEU {bleu:.2}");
    }
    if let Some(chrf) = validation.chrf {
        line += &format!(", chrF2 {chrf:.2}");
    }
    if let Some(share) = validation.exact_match {
        line += &format!(", exact match {:.1}%", 100.0 * share);
    }
    line
}

/// What to do with the trained model.
fn next_command(task: Task, samples: &[(usize, Example)], prompt: Option<&str>, dir: &Path) -> String {
    let (program, dir) = (program(), dir.display());
    match task {
        Task::Translation => format!("echo '{}' | {program} translate {dir}", next_input(samples)),
        Task::Lm => {
            let prompt = prompt.filter(|prompt| !prompt.contains('\'')).unwrap_or("...");
            format!("{program} generate {dir} --prompt '{prompt}'")
        }
        Task::Mlm => format!("{program} evaluate {dir}"),
    }
}

/// Something that the model should be able to translate, in one shell word.
fn next_input(samples: &[(usize, Example)]) -> &str {
    samples.iter().map(|(_, example)| example.source.as_str()).find(|source| !source.contains('\'')).unwrap_or("...")
}

/// This program as it was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "kiln".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(n: usize) -> Example {
        Example { source: n.to_string(), target: n.to_string() }
    }

    #[test]
    fn samples_come_from_all_over_and_only_once() {
        let examples: Vec<_> = (0..100).map(example).collect();
        let rows: Vec<_> = samples(&examples).iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [25, 50, 75]);
        assert_eq!(samples(&examples[..1]).len(), 1);
        assert_eq!(samples(&[]), []);
    }

    #[test]
    fn the_next_command_survives_a_shell() {
        let quoted = (0, Example { source: "l'albero".into(), target: "the tree".into() });
        assert_eq!(next_input(std::slice::from_ref(&quoted)), "...");
        assert_eq!(next_input(&[quoted, (1, example(7))]), "7");
        let next = |prompt| next_command(Task::Lm, &[], prompt, Path::new("runs/lm"));
        assert!(next(Some("It is")).ends_with("generate runs/lm --prompt 'It is'"));
        assert!(next(Some("It's")).ends_with("--prompt '...'") && next(None).ends_with("--prompt '...'"));
    }
}
