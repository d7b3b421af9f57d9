//! `kiln compare`: puts the configurations, losses, scores and speeds of several runs side by side.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kiln_lab::diagnose::compare::{Comparison, Losses};
use kiln_lab::diagnose::run_record::{MEASURES, Measured, RunRecord, SHORT_TEXTS, different_keys};
use kiln_metrics::logging::print::stdout_line;
use kiln_metrics::units::{duration, thousands};
use kiln_train::config::Task;
use kiln_train::config::task::traits_of;

use super::error::Usage;
use super::lines::shell_path;

/// Compares runs: configurations, losses, scores and speed
///
/// Prints what differs in the configurations, the speed of each run, the last and the best value of each validation
/// measure with its step, and the mean training loss of each run in ten windows over the steps that all runs took.
/// Refuses runs of different tasks, and runs of preferences next to other ones.
///
/// The distance from the first run tells whether other operators, another device or another precision change what a model
/// learns: compare it with the distance of a run with another seed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln train --task lm --set train.steps=200 --run runs/fused
  kiln train --task lm --set train.steps=200 --run runs/reference --reference-operators
  kiln train --task lm --set train.steps=200 --run runs/seed --set seed=2
  kiln compare runs/fused runs/reference runs/seed")]
pub(super) struct Args {
    /// Run folders; the others are compared with the first
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Number of windows
    #[arg(long, default_value_t = 10)]
    windows: usize,
}

pub(super) fn run(args: Args) -> Result<()> {
    if let [dir] = &args.runs[..] {
        let text =
            format!("one run: name the runs to compare it with, too; kiln report {} shows it alone", shell_path(dir));
        return Err(Usage(text).into());
    }
    let runs: Vec<RunRecord> = args.runs.iter().map(|dir| RunRecord::read(dir)).collect::<Result<_>>()?;
    refuse_other_tasks(&runs)?;
    let losses: Vec<Losses> = runs.iter().map(|run| run.losses.clone()).collect();
    let found = Comparison::of(&losses, args.windows)?;

    for (i, run) in runs.iter().enumerate() {
        stdout_line!("{} = {}: {}", letter(i), run.dir.display(), described(run));
    }
    print_table("configuration", &keys(&runs), runs.len());
    print_table("validation", &validations(&runs), runs.len());
    if runs.iter().any(|run| run.has_short_texts) {
        stdout_line!("{SHORT_TEXTS}");
    }
    if !RunRecord::have_one_validation(&runs) {
        stdout_line!(
            "The validation texts differ: neither losses nor scores can be compared. kiln evaluate RUN --data FILE scores each run \
             on one text."
        );
    } else if let Some(hint) = hint(&runs) {
        stdout_line!("{hint}");
    }
    print_losses(&found, runs.len(), RunRecord::have_one_vocabulary(&runs));
    Ok(())
}

/// Refuses runs whose losses measure different things.
fn refuse_other_tasks(runs: &[RunRecord]) -> Result<(), Usage> {
    let name = |run: &RunRecord| traits_of(run.config.task).name;
    let (first, others) = runs.split_first().expect("two or more");
    let compares = |run: &RunRecord| run.config.data.text.is_preferences();
    let with_other_objective = others.iter().find(|other| compares(other) != compares(first));
    match others.iter().find(|run| run.config.task != first.config.task) {
        None => with_other_objective.map_or(Ok(()), |other| {
            let (pairs, texts) = if compares(first) { (first, other) } else { (other, first) };
            Err(Usage(format!(
                "{} learns preferences and {} does not: their losses measure different things; compare runs of one data.text.format",
                pairs.dir.display(),
                texts.dir.display()
            )))
        }),
        Some(other) => Err(Usage(format!(
            "{} has task = \"{}\" and {} has task = \"{}\": their losses measure different things; compare runs of one task",
            first.dir.display(),
            name(first),
            other.dir.display(),
            name(other)
        ))),
    }
}

/// Describes how far a run got, and how fast.
fn described(run: &RunRecord) -> String {
    let last = run.losses.keys().next_back().copied().unwrap_or_default();
    let of = if run.config.train.steps == last { String::new() } else { format!(" of {}", run.config.train.steps) };
    let speed = run.speed.map_or(String::new(), |speed| {
        let secs = Duration::try_from_secs_f64(speed.train_secs).unwrap_or_default();
        format!(", {} tok/s, {} of training", thousands(speed.tokens_per_sec), duration(secs))
    });
    format!("{}, {last}{of} steps{speed}", traits_of(run.config.task).name)
}

/// A line of a table: its name and a value for each run.
struct Row {
    name: String,
    values: Vec<String>,
}

fn keys(runs: &[RunRecord]) -> Vec<Row> {
    different_keys(runs).into_iter().map(|different| Row { name: different.key, values: different.values }).collect()
}

/// The last and the best value of every measure that a run has.
fn validations(runs: &[RunRecord]) -> Vec<Row> {
    let rows = MEASURES.into_iter().flat_map(|measure| {
        let shown = |measured: Option<Measured>| {
            measured.map_or("-".to_owned(), |Measured { step, value }| format!("{} @ {step}", measure.shown(value)))
        };
        let row = |which: &str, values: Vec<Option<Measured>>| {
            let is_there = values.iter().any(Option::is_some);
            let name = format!("{which} {}", measure.name);
            is_there.then(|| Row { name, values: values.into_iter().map(shown).collect() })
        };
        let last = row("last", runs.iter().map(|run| run.last(measure)).collect());
        [last, row("best", runs.iter().map(|run| run.best(measure)).collect())]
    });
    rows.flatten().collect()
}

/// What to compare where vocabularies differ and BLEU says little.
const SCORES_OF_SHORT_TEXTS: &str = "The vocabularies differ, so a token of one run is another piece of text than a token of the other: losses cannot be \
                            compared. Compare chrF2 and exact match.";

/// Says which numbers cannot be compared.
fn hint(runs: &[RunRecord]) -> Option<&'static str> {
    if !RunRecord::have_one_vocabulary(runs) {
        return Some(match runs.first().map(|run| run.config.task) {
            Some(Task::Lm) => {
                "The vocabularies differ, so a token of one run is another piece of text than a token of the other: losses \
                 cannot be compared. Compare bits per byte."
            }
            Some(Task::Mlm) => {
                "The vocabularies differ, so a token of one run is another piece of text than a token of the other: \
                 neither losses nor masked accuracies can be compared. Compare the models on the task that they are for."
            }
            Some(Task::Classification | Task::Tagging) => {
                "The vocabularies differ: losses and scores of classes can still be compared."
            }
            _ if runs.iter().any(|run| run.has_short_texts) => SCORES_OF_SHORT_TEXTS,
            _ => {
                "The vocabularies differ, so a token of one run is another piece of text than a token of the other: losses \
                 cannot be compared. Compare BLEU, chrF2 and exact match."
            }
        });
    }
    let label_smoothing = |key: &str| key.contains("label_smoothing");
    let differs = different_keys(runs).iter().any(|different| label_smoothing(&different.key));
    differs.then_some("The label smoothing differs and is part of the loss: compare nll.")
}

fn print_table(title: &str, rows: &[Row], n_runs: usize) {
    if rows.is_empty() {
        stdout_line!("{title}: {}", if title == "configuration" { "the same" } else { "none" });
        return;
    }
    let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
    let names = width(&mut rows.iter().map(|row| row.name.chars().count() + 2)).max(title.len());
    let columns: Vec<usize> =
        (0..n_runs).map(|i| width(&mut rows.iter().map(|row| row.values[i].chars().count()))).collect();

    let line = |name: &str, values: &dyn Fn(usize) -> String| {
        let cells: String = columns.iter().enumerate().map(|(i, width)| format!("  {:<width$}", values(i))).collect();
        stdout_line!("{}", format!("{name:<names$}{cells}").trim_end());
    };
    line(title, &|i| letter(i).to_string());
    for row in rows {
        line(&format!("  {}", row.name), &|i| row.values[i].clone());
    }
}

/// Prints the training losses in windows and, if they are `comparable`, the distances from the first run.
fn print_losses(found: &Comparison, n_runs: usize, comparable: bool) {
    let mut head = format!("{:<15}  {:>9}", "training loss", letter(0));
    for i in 1..n_runs {
        head += &format!("  {:>9}", letter(i));
        if comparable {
            head += &format!("  {:>9}", format!("{} - A", letter(i)));
        }
    }
    stdout_line!("{head}");
    for window in &found.windows {
        let [first, last] = window.steps;
        let mut line = format!("{:>15}  {:>9.4}", format!("{first}-{last}"), window.means[0]);
        for mean in &window.means[1..] {
            line += &format!("  {mean:>9.4}");
            if comparable {
                line += &format!("  {:>+9.4}", mean - window.means[0]);
            }
        }
        stdout_line!("{line}");
    }

    for (i, distance) in found.distances.iter().enumerate().filter(|_| comparable) {
        stdout_line!(
            "{} is {:.4} nats from A in the mean of a window ({:.4} at most), {:.4} in a single step",
            letter(i + 1),
            distance.of_windows,
            distance.largest,
            distance.of_steps
        );
    }
}

fn letter(i: usize) -> char {
    char::from(b'A' + (i % 26) as u8)
}
