//! The tables of a report.

use std::collections::BTreeSet;
use std::time::Duration;

use kiln_data::Lengths;
use kiln_metrics::units::{duration, thousands};
use kiln_train::config::task::traits_of;

use super::curves::{Figure, short};
use super::history::{History, source_loss};
use crate::diagnose::run_record::{MEASURES, different_keys_of};

/// Rows of the numbers below a figure.
const NUMBERS: usize = 12;

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name, for readers that announce it.
    pub(crate) name: String,
    /// The names of its columns.
    pub(crate) head: Vec<String>,
    /// Its rows; the first cell names the row.
    pub(crate) rows: Vec<Vec<String>>,
    /// Whether each column but the first belongs to a run and shows its colour.
    pub(crate) has_colours: bool,
}

/// How far the runs got, how well and how fast.
pub fn summary(runs: &[History]) -> Table {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: &dyn Fn(&History) -> Option<String>| {
        let values: Vec<_> = runs.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            let values = values.into_iter().map(|value| value.unwrap_or_else(|| "-".into()));
            rows.push([name.to_owned()].into_iter().chain(values).collect());
        }
    };
    row("folder", &|run| Some(run.dir.display().to_string()));
    row("task", &|run| run.config.as_ref().map(|config| traits_of(config.task).name.to_owned()));
    row("device", &|run| run.device.clone());
    row("steps", &|run| {
        let of = run.config.as_ref().map(|config| config.train.steps).filter(|of| *of != run.last_step);
        let of = of.map_or(String::new(), |of| format!(" of {}", thousands(of as f64)));
        Some(format!("{}{of}", thousands(run.last_step as f64)))
    });
    row("state", &|run| Some(state(run)));

    row("training loss, last (nats)", &|run| last(run, "step", "loss").map(|loss| format!("{loss:.4}")));
    for measure in MEASURES {
        let best = |run: &History| {
            let values = run.field("validation", measure.field).iter();
            let (step, value) = values.copied().reduce(|best, next| {
                let is_better = if measure.higher_is_better { next.1 > best.1 } else { next.1 < best.1 };
                if is_better { next } else { best }
            })?;
            Some(format!("{} at step {}", measure.shown(value), thousands(step)))
        };
        row(&format!("best validation: {}", measure.name), &best);
    }

    let of_end = |run: &History, of: fn(&super::history::End) -> Option<f64>| run.end.as_ref().and_then(of);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    row("training time", &|run| {
        of_end(run, |end| end.train_secs).and_then(|secs| Duration::try_from_secs_f64(secs).ok()).map(duration)
    });
    row("tokens per second", &|run| {
        of_end(run, |end| end.tokens_per_sec).or_else(|| mean(run, "tokens_per_sec")).map(thousands)
    });
    // The end of a run has these of its last process only.
    row("padding", &|run| run.padding_ratio().or_else(|| mean(run, "padding_ratio")).map(percent));
    row("waiting for data", &|run| waiting(run).map(percent));
    let names: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.end.iter().flat_map(|end| end.sources.iter())).map(|(name, _)| name).collect();
    for name in names {
        row(&format!("trained on {name}"), &|run| run.end.as_ref().and_then(|end| end.sources.share_of(name)));
        row(&format!("{}, last (nats)", source_loss(name)), &|run| {
            run.own_figures().get(&source_loss(name))?.last().map(|(_, nll)| format!("{nll:.4}"))
        });
    }
    row("swapping of the machine", &|run| swapping(run));
    row("steps that were not finite", &|run| {
        (run.non_finite_steps > 0).then(|| thousands(run.non_finite_steps as f64))
    });

    let head = ["".to_owned()].into_iter().chain(runs.iter().map(|run| run.name.clone())).collect();
    Table { name: "Runs".into(), head, rows, has_colours: runs.len() > 1 }
}

/// Says whether a run has ended, and why.
fn state(run: &History) -> String {
    let torn = if run.bad_lines > 1 { format!("; {} damaged lines", run.bad_lines) } else { String::new() };
    let state = match run.end.as_ref().map(|end| end.outcome.as_str()) {
        Some("steps") => "finished",
        Some("time") => "ended by train.max_minutes",
        Some("stopped") => "stopped by a signal",
        Some(_) => "ended",
        None => "still training, or killed",
    };
    format!("{state}{torn}")
}

fn last(run: &History, kind: &str, field: &str) -> Option<f64> {
    run.field(kind, field).last().map(|(_, value)| *value)
}

fn mean(run: &History, field: &str) -> Option<f64> {
    let values = run.field("window", field);
    (!values.is_empty()).then(|| values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64)
}

/// The fraction of the time in which training waited for data; each line counts as long as it took.
fn waiting(run: &History) -> Option<f64> {
    let shares = run.field("window", "data_wait_share");
    let step = |i: usize| shares[i].0 - if i == 0 { 0.0 } else { shares[i - 1].0 };
    let steps: f64 = (0..shares.len()).map(step).sum();
    (steps > 0.0).then(|| (0..shares.len()).map(|i| shares[i].1 * step(i)).sum::<f64>() / steps)
}

/// Says in which lines of metrics the machine swapped, and how much. `None` if no line says it.
fn swapping(run: &History) -> Option<String> {
    let [read, written] =
        ["swapin", "swapout"].map(|way| run.field("window", &format!("host_use.{way}_pages_per_sec")));
    // A line has both or neither.
    let lines: Vec<(f64, f64)> = read.iter().zip(written).map(|(read, written)| (read.0, read.1 + written.1)).collect();
    if lines.is_empty() {
        return None;
    }
    let swapped: Vec<_> = lines.iter().filter(|(_, pages)| *pages > 0.0).collect();
    let (Some((first, _)), Some((last, _))) = (swapped.first(), swapped.last()) else { return Some("none".into()) };
    let most = swapped.iter().map(|(_, pages)| *pages).fold(0.0, f64::max);
    Some(format!(
        "in {} of {} lines of metrics, from step {} to {}, up to {} pages per second",
        thousands(swapped.len() as f64),
        thousands(lines.len() as f64),
        thousands(*first),
        thousands(*last),
        short(most)
    ))
}

/// The keys of the configurations that are not the same everywhere, of the runs whose configuration can be read.
pub fn differences(runs: &[History]) -> Table {
    let readable: Vec<_> = runs.iter().filter_map(|run| run.config.as_ref()).collect();
    let rows = different_keys_of(&readable).into_iter().map(|different| {
        let mut values = different.values.into_iter();
        let cells =
            runs.iter().map(|run| run.config.as_ref().and_then(|_| values.next()).unwrap_or_else(|| "-".into()));
        [different.key].into_iter().chain(cells).collect()
    });
    let head = ["key".to_owned()].into_iter().chain(runs.iter().map(|run| run.name.clone())).collect();
    Table { name: "What differs in the configurations".into(), head, rows: rows.collect(), has_colours: true }
}

/// The numbers of a figure at a few steps; of a curve without a value at a step, the newest value before it.
pub fn numbers(figure: &Figure) -> Table {
    let curves: Vec<_> = figure.named().collect();
    let mut steps: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0)).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let rows = spread(&steps, NUMBERS).map(|step| {
        let value =
            |points: &[(f64, f64)]| points.iter().rev().find(|point| point.0 <= *step).map(|point| short(point.1));
        let values = curves.iter().map(|curve| value(&curve.points).unwrap_or_else(|| "-".into()));
        [format!("{step:.0}")].into_iter().chain(values).collect()
    });
    let head = ["step".to_owned()].into_iter().chain(curves.iter().map(|curve| curve.label.clone())).collect();
    Table { name: format!("Numbers of {}", figure.title), head, rows: rows.collect(), has_colours: false }
}

/// The numbers of the lengths of each side.
pub fn lengths(sides: &[Lengths]) -> Table {
    let rows = sides.iter().map(|side| {
        let quantiles = side.quantiles.map(|len| thousands(len as f64));
        let numbers = [thousands(side.rows as f64), short(side.mean)].into_iter().chain(quantiles);
        [side.side.clone()].into_iter().chain(numbers).collect()
    });
    let head = ["tokens of", "rows", "mean", "half up to", "90 % up to", "99 % up to", "longest"].map(str::to_owned);
    Table { name: "Lengths of rows in tokens".into(), head: head.into(), rows: rows.collect(), has_colours: false }
}

/// At most `n` items, the first and the last one among them.
pub fn spread<T>(items: &[T], n: usize) -> impl Iterator<Item = &T> {
    let (all, n) = (items.len(), n.min(items.len()));
    (0..n).map(move |i| &items[if n < 2 { all - 1 } else { i * (all - 1) / (n - 1) }])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_metrics::logging::METRICS_FILE;
    use kiln_train::checkpoint::RUN_CONFIG_FILE;

    use super::super::catalogue::find;
    use super::*;

    /// A run with lines of metrics at these steps, and what each says about the machine.
    fn run(lines: &[(u64, &str)]) -> History {
        let folder = tempfile::tempdir().expect("a folder");
        let step = "{\"kind\":\"step\",\"step\":1,\"loss\":1}\n".to_owned();
        let window =
            |(step, host): &(u64, &str)| format!("{{\"kind\":\"window\",\"step\":{step},\"host_use\":{{{host}}}}}\n");
        let metrics: String = [step].into_iter().chain(lines.iter().map(window)).collect();
        fs::write(folder.path().join(RUN_CONFIG_FILE), "").expect("writable");
        fs::write(folder.path().join(METRICS_FILE), metrics).expect("writable");
        History::read(folder.path()).expect("a step")
    }

    #[test]
    fn the_steps_in_which_the_machine_swapped_are_named() {
        let pages =
            |read: u64, written: u64| format!("\"swapin_pages_per_sec\":{read},\"swapout_pages_per_sec\":{written}");
        let [still, some, many] = [pages(0, 0), pages(0, 20), pages(700, 800)];
        let swapped = run(&[(10, &still), (20, &some), (30, &still), (1040, &many), (1050, &still)]);
        let found = swapping(&swapped).expect("swapping");
        assert_eq!(found, "in 2 of 5 lines of metrics, from step 20 to 1,040, up to 1500 pages per second");

        assert_eq!(swapping(&run(&[(10, &still)])).as_deref(), Some("none"));
        let unknown = run(&[(10, "\"cpus\":8")]);
        assert_eq!(swapping(&unknown), None, "nobody knows");
        let table = summary(&[swapped, unknown]);
        let row = table.rows.iter().find(|row| row[0] == "swapping of the machine").expect("a row");
        assert_eq!((row[1].as_str(), row[2].as_str()), (found.as_str(), "-"));
    }

    #[test]
    fn the_load_of_the_machine_is_drawn_in_its_units() {
        let of_line = "\"process_cpu_share\":0.25,\"machine_cpu_share\":0.5,\"read_bytes_per_sec\":3e6,\
                       \"written_bytes_per_sec\":1e6,\"sent_bytes_per_sec\":2e9";
        let loaded = run(&[(10, of_line)]);
        let points = |id: &str| {
            let figures = Figure::of(find(id).expect("known"), std::slice::from_ref(&loaded));
            figures.iter().flat_map(|figure| figure.curves.iter().map(|curve| curve.points[0].1)).collect::<Vec<_>>()
        };
        assert_eq!((points("cpu"), points("storage")), (vec![25.0, 50.0], vec![3.0, 1.0]));
        assert_eq!((points("network"), points("swapping")), (vec![2000.0], vec![]), "only what was measured");
    }
}
