//! `kiln average`: averages several checkpoints into one.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::files::read_text;
use kiln_metrics::logging::METRICS_FILE;
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_metrics::units::counted;
use kiln_train::checkpoint::{Best, Checkpoints, RUN_CONFIG_FILE, Score, average, folder_name};
use kiln_train::config::{BestMetric, Config};
use kiln_train::dataset::copy_split;
use kiln_train::run::{NewRun, RunError, folder};
use serde_json::Value;

use super::error::Usage;

/// Averages the weights of a run's last or best checkpoints
///
/// The result is a new run folder with a single checkpoint. It can be evaluated, used, exported and trained from.
/// Weights are summed in f64. The run must have kept enough checkpoints, see train.keep_last.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln average runs/en-it --last 5
  kiln average runs/en-it --best 3 --out runs/en-it-best")]
pub(super) struct Args {
    /// Run folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    #[command(flatten)]
    which: Which,

    /// Folder of the new run [default: RUN-average]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The newest N checkpoints
    #[arg(long, value_name = "N")]
    last: Option<usize>,

    /// The N checkpoints with the best validations by train.best_metric (the lowest loss, or the highest score), among those
    /// that were kept
    #[arg(long, value_name = "N")]
    best: Option<usize>,
}

pub(super) fn run(args: Args) -> Result<()> {
    if !args.run.join(RUN_CONFIG_FILE).is_file() {
        return Err(RunError::NoRun(args.run).into());
    }
    let out = folder::for_result(args.out.as_deref(), &args.run, "average", "--out")?;
    let new = NewRun::begin(&out)?;
    let chosen = choose(&args.run, &args.which)?;
    for (step, _) in &chosen {
        stderr_line!("averaging {}", folder_name(*step));
    }
    let paths: Vec<_> = chosen.into_iter().map(|(_, path)| path).collect();
    let averaged = average(&paths).with_context(|| {
        format!("averaging checkpoints of {} (move a damaged one away to average the others)", args.run.display())
    })?;
    new.finish(&averaged)?;
    if !copy_split(&Config::read(&out.join(RUN_CONFIG_FILE))?, &args.run, &out)? {
        let run = args.run.display();
        stderr_line!("note: the validation rows of data.split are not in {run}/cache: kiln evaluate needs --data");
    }
    stdout_line!("{}", out.display());
    Ok(())
}

/// Returns steps and folders of the checkpoints to average.
fn choose(run: &Path, which: &Which) -> Result<Vec<(u64, PathBuf)>> {
    let all = Checkpoints::of_run(run).list()?;
    let (flag, n, mut candidates) = match (which.last, which.best) {
        (Some(n), _) => ("--last", n, all.into_iter().rev().collect()),
        (None, Some(n)) => ("--best", n, by_metric(run, all)?),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    if n == 0 || n > candidates.len() {
        let names: Vec<_> = candidates.iter().map(|(step, _)| folder_name(*step)).collect();
        let kept = Config::read(&run.join(RUN_CONFIG_FILE))?.train.keep_last;
        return Err(Usage(format!(
            "{flag} {n}: {} has {} to choose from{}{}{}; use a number from 1 to that, or train with more of them: a lower \
             train.save_every, and a higher train.keep_last (now {kept})",
            run.display(),
            counted(names.len() as u64, "checkpoint"),
            if flag == "--best" { " that were validated" } else { "" },
            if names.is_empty() { "" } else { ": " },
            names.join(", ")
        ))
        .into());
    }
    candidates.truncate(n);
    Ok(candidates)
}

/// Returns the checkpoints whose step was validated, best first by the metric of the run.
fn by_metric(run: &Path, all: Vec<(u64, PathBuf)>) -> Result<Vec<(u64, PathBuf)>> {
    let metric = Config::read(&run.join(RUN_CONFIG_FILE))?.train.best_metric;
    let path = run.join(METRICS_FILE);
    let text = read_text(&path).with_context(|| {
        format!("{}: cannot be read, but the validations are needed to find the best checkpoints", path.display())
    })?;

    let validations = validations(&text, &metric);
    let of = |step: u64| validations.iter().rev().find(|best| best.step == step).cloned();
    let mut validated: Vec<_> = all.into_iter().filter_map(|(step, path)| Some((of(step)?, path))).collect();
    validated.sort_by(|(a, _), (b, _)| match (a.beats(b), b.beats(a)) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => Ordering::Equal,
    });
    Ok(validated.into_iter().map(|(best, path)| (best.step, path)).collect())
}

/// Returns every validation with a finite loss and the score of `metric`. If a step was validated twice, the later one
/// counts.
fn validations(metrics: &str, metric: &BestMetric) -> Vec<Best> {
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).ok()?;
        let score = match metric {
            BestMetric::Loss => None,
            score => {
                let fields = if matches!(score, BestMetric::Figure { .. }) { &value["figures"] } else { &value };
                Some(Score { metric: score.clone(), value: fields[score.name()].as_f64()? })
            }
        };
        let best = Best { step: value["step"].as_u64()?, loss: value["loss"].as_f64()?, score };
        (value["kind"] == "validation").then_some(best)
    };
    metrics.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run_with(steps: &[u64], metrics: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for step in steps {
            fs::create_dir_all(Checkpoints::of_run(dir.path()).dir().join(folder_name(*step))).expect("writable");
        }
        fs::write(dir.path().join(METRICS_FILE), metrics).expect("writable");
        fs::write(dir.path().join(RUN_CONFIG_FILE), "").expect("writable");
        dir
    }

    fn steps(dir: &tempfile::TempDir, last: Option<usize>, best: Option<usize>) -> Result<Vec<u64>> {
        Ok(choose(dir.path(), &Which { last, best })?.into_iter().map(|(step, _)| step).collect())
    }

    const METRICS: &str = "{\"kind\":\"step\",\"step\":1,\"loss\":0.1}
{\"kind\":\"validation\",\"step\":10,\"loss\":9.0}
{\"kind\":\"validation\",\"step\":20,\"loss\":2.0}
{\"kind\":\"validation\",\"step\":30,\"loss\":null}
{\"kind\":\"validation\",\"step\":40,\"loss\":3.0}
{\"kind\":\"validation\",\"step\":10,\"loss\":1.0}
torn";

    #[test]
    fn the_newest_and_the_best_are_found() {
        let dir = run_with(&[10, 20, 30, 40], METRICS);
        assert_eq!(steps(&dir, Some(2), None).expect("enough"), [40, 30]);
        assert_eq!(steps(&dir, None, Some(3)).expect("enough"), [10, 20, 40]);
    }

    #[test]
    fn the_metric_of_the_run_decides_which_are_the_best() {
        let line =
            |step, loss, bleu: &str| format!("{{\"kind\":\"validation\",\"step\":{step},\"loss\":{loss}{bleu}}}\n");
        let metrics = [
            line(10, 1.0, ""),
            line(20, 4.0, ",\"bleu\":30"),
            line(30, 2.0, ",\"bleu\":20"),
            line(40, 1.5, ",\"bleu\":30"),
        ];
        let dir = run_with(&[10, 20, 30, 40], &metrics.concat());
        fs::write(dir.path().join(RUN_CONFIG_FILE), "[train]\nbest_metric = \"bleu\"\n").expect("writable");
        assert_eq!(steps(&dir, None, Some(3)).expect("enough"), [40, 20, 30]);
        assert!(steps(&dir, None, Some(4)).is_err(), "a validation without the score does not compete");
    }

    #[test]
    fn too_many_are_refused_with_what_is_there() {
        let dir = run_with(&[10, 30], METRICS);
        let error = steps(&dir, Some(3), None).expect_err("two only").to_string();
        assert!(error.contains("--last 3") && error.contains("2 checkpoints to choose from: step-00000030"), "{error}");
        let error = steps(&dir, None, Some(2)).expect_err("one is validated").to_string();
        assert!(error.contains("has 1 checkpoint to choose from that were validated: step-00000010"), "{error}");
        assert!(steps(&dir, Some(0), None).is_err());
    }
}
