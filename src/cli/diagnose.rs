//! `kiln diagnose`: where the time of a step goes, by elimination.

mod print;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Result, bail};
use kiln_lab::diagnose::elimination::{
    Check, Diagnosis, Effort, Event, Limits, Subject, Test, bottleneck, causes, checks, diagnose,
};
use kiln_lab::diagnose::ledger::dtype_name;
use kiln_metrics::logging::print::{over_line, stderr_line, stdout_line};
use kiln_metrics::units::parse_size;
use kiln_ranks::Ranks;
use kiln_train::device::device_name;
use kiln_train::eval::{Init, Model};
use serde_json::json;

use super::config_args::ConfigArgs;
use super::error::Usage;
use super::of_run::OfRunArgs;
use super::together::{DevicesArgs, Part, Role};

/// Measures the parts of a training step one by one, and names the bottleneck
///
/// Takes the arguments of kiln train, or the configuration and the caches of a run; weights are initialized anew, and nothing is
/// written into the run. Each test warms up, repeats, and shows the median with the fastest and the slowest repeat. The last
/// sentence names the bottleneck, the gain that removing it promises, and the setting to change.
///
/// Tests: harness (the stopwatch on known work), first (the first step), inference, forward, backward, step, phases (forward,
/// backward, optimizer), precision (f32 against 16 bits), graphs (replayed against eager), fused (against reference operators),
/// batch (against one of four times as many rows), calls (of a model of one's own, at smaller batches), deferred (metrics read every
/// step or every ten), loader, workers (1, 2, 4, 8 threads), stages (parse, tokenize, collate, queue), map (memory map against memory), upload, real (synthetic against loaded
/// tokens), padding, live (leaks), peak (memory); with --devices link (bandwidth) and together (N devices against one).
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln diagnose --run runs/en-it
  kiln diagnose --preset base --set data.train=pairs.jsonl --only loader,workers,real
  kiln diagnose --run runs/en-it --json > diagnosis.json
  kiln diagnose --run runs/en-it --assert --max-data-share 0.02 --memory 24GiB
  kiln diagnose --run runs/en-it --devices 0,1")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfRunArgs,

    #[command(flatten)]
    config: ConfigArgs,

    /// Runs these tests only
    #[arg(long, value_name = "TEST,TEST", value_delimiter = ',')]
    only: Vec<Test>,

    /// Steps per repeat
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = positive)]
    steps: usize,

    /// Repeats; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    repeats: usize,

    /// Steps after which the test live looks at the memory again; the first look is after 50
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = positive)]
    leak_steps: usize,

    /// Runs five checks with thresholds: timing, numerics, metrics, data and memory. The command fails if one fails
    #[arg(long, conflicts_with = "devices")]
    assert: bool,

    /// With --assert: largest fraction of the time that training may wait for the loader
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, requires = "assert", value_parser = share)]
    max_data_share: f64,

    /// With --assert: the most memory that the largest batch may need, for example 24GiB [default: the device's]
    #[arg(long, value_name = "SIZE", requires = "assert", value_parser = parse_size)]
    memory: Option<u64>,

    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    devices: DevicesArgs,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number of at least 1".into())
}

fn share(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    found.ok_or_else(|| "expected a fraction from 0 to 1, for example 0.05".into())
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<ExitCode> {
    match args.devices.begin()? {
        Role::Launcher(code) => Ok(code),
        Role::Rank(part) => {
            let result = measure(&args, &part, init);
            part.end(result)
        }
    }
}

impl Args {
    /// Returns the tests to run.
    fn tests(&self, many: bool) -> Result<Vec<Test>> {
        if self.only.is_empty() {
            return Ok(match (self.assert, many) {
                (true, _) => Test::CHECKED.to_vec(),
                (false, false) => Test::ALL.to_vec(),
                (false, true) => vec![Test::Link, Test::Together],
            });
        }
        if let Some(test) = self.only.iter().find(|test| many && !test.needs_ranks()) {
            let text = format!("the test {test} is for one device: leave out --devices, or take --only link,together");
            return Err(Usage(text).into());
        }
        Ok(self.only.clone())
    }
}

fn measure<M: Model>(args: &Args, part: &Part, init: &Init<'_, M>) -> Result<()> {
    let tests = args.tests(part.link.is_some())?;
    let mut run = args.config.of_run(&args.of, part.device)?;
    run.options.link.clone_from(&part.link);
    run.options.data = init.data();
    run.config().train.kernels.install();
    run.config().train.f32_products.install_in_backend();
    let device = part.device.open()?;
    let ranks = part.link.clone().map_or(Ok(Ranks::alone()), |link| Ranks::over(link, &device))?;

    let measured = || -> Result<()> {
        let survey = ranks.first_then_others("preparing the data", || run.survey(false))?;
        let subject = Subject {
            config: &survey.config,
            data: &survey.data,
            cache_dir: survey.cache_dir.clone(),
            device,
            dtype: survey.plan.dtype,
            checkpointing: survey.plan.checkpointing,
            largest: survey.plan.largest,
            ranks: ranks.clone(),
            effort: Effort::on(&survey.device, args.steps, args.repeats),
            leak_steps: args.leak_steps,
            init,
        };
        let (tests, left_out) = possible(&tests, survey.config.model.has_classes());
        if part.is_first() && !left_out.is_empty() {
            stderr_line!(
                "note: the test batch is left out: its batches have tokens to predict, and this model predicts classes"
            );
        }
        let in_words = part.is_first() && !args.json;
        if in_words {
            stdout_line!("{}", heading(args, &subject));
        }
        let found = diagnose(&subject, &tests, |event| show(event, part.is_first(), in_words))?;
        if part.is_first() { report(args, &subject, &found) } else { Ok(()) }
    };
    ranks.or_abort(measured())?;
    ranks.finish()
}

/// Divides the tests into the ones that a model can take and the others.
fn possible(tests: &[Test], predicts_classes: bool) -> (Vec<Test>, Vec<Test>) {
    tests.iter().partition(|test| !(predicts_classes && **test == Test::Batch))
}

/// Shows what goes on in the terminal, and outcomes as they come: a test that fails then leaves those before it.
fn show(event: Event<'_>, is_first: bool, in_words: bool) {
    let in_terminal = is_first && std::io::stderr().is_terminal();
    match event {
        Event::Begins(test) if in_terminal => over_line(&format!("test {test} ...")),
        Event::Begins(_) => {}
        Event::Ended(outcome) => {
            if in_terminal {
                over_line("");
            }
            if in_words {
                print::outcome(outcome);
            }
        }
    }
}

fn heading<M: Model>(args: &Args, subject: &Subject<'_, M>) -> String {
    let (n, name) = (subject.ranks.size(), device_name(&subject.device));
    let devices = if n > 1 { format!("{n} x {name}") } else { name };
    format!("{devices}, {}, {} x {} steps", dtype_name(subject.dtype), args.repeats, args.steps)
}

/// Prints what was found, in words what the outcomes did not say. Fails if a check has failed.
fn report<M: Model>(args: &Args, subject: &Subject<'_, M>, found: &Diagnosis) -> Result<()> {
    let limits = Limits { data_share: args.max_data_share, memory_bytes: args.memory };
    let checks = if args.assert { checks(&found.figures, &limits) } else { Vec::new() };
    if args.json {
        let object = json!({
            "device": device_name(&subject.device),
            "devices": subject.ranks.size(),
            "dtype": dtype_name(subject.dtype),
            "steps": args.steps,
            "repeats": args.repeats,
            "outcomes": found.outcomes,
            "figures": found.figures,
            "causes": causes(&found.figures),
            "bottleneck": bottleneck(&found.figures),
            "checks": checks,
        });
        stdout_line!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        print::checks(&checks);
        if !args.assert {
            print::bottleneck(&found.figures);
        }
    }

    if args.memory.is_some() && checks.iter().any(|check| check.name == "memory" && check.passed.is_none()) {
        bail!("--memory: the memory that the largest batch needs could not be measured, so nothing says that it fits");
    }
    let failed: Vec<&Check> = checks.iter().filter(|check| check.passed == Some(false)).collect();
    if !failed.is_empty() {
        let each: Vec<String> = failed.iter().map(|check| format!("{} ({})", check.name, check.words)).collect();
        bail!("failed: {}", each.join("; "));
    }
    Ok(())
}
