//! `kiln profile`: where the time of a training step goes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use kiln_data::files::replace::replace_file;
use kiln_lab::diagnose::profile::{
    HostRow, MemoryLine, MemoryPoint, Profile, RankRow, RoofSource, Row, RowWork, Schedule, take,
};
use kiln_lab::report::{memory_line, roofline};
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_metrics::units::thousands;
use kiln_ranks::Ranks;
use kiln_train::eval::{Init, Model};

use super::config_args::ConfigArgs;
use super::of_run::OfRunArgs;
use super::together::{DevicesArgs, Part, Role};

/// Rows of a table on the terminal.
const MOST_ROWS: usize = 15;
/// Rows that get a sentence.
const VERDICTS: usize = 3;

/// Takes training steps and shows where their time goes: by operator, by kernel, against the roofs of the device
///
/// The steps are the steps of kiln train, on batches of the run's own data; nothing of them is kept. Written are a time line for
/// Perfetto or chrome://tracing (trace.json), all rows (profile.json) and two pictures (roofline.svg, memory.svg).
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln profile --run runs/en-it
  kiln profile --preset base --set data.train=pairs.jsonl --steps 10
  kiln profile --task lm --device cpu --out profile
  kiln profile --run runs/lm --set train.capture=on --warm-up 20
  kiln profile --run runs/lm --devices 0,1")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfRunArgs,

    #[command(flatten)]
    config: ConfigArgs,

    /// Steps before the recording: they compile kernels and grow memory pools
    #[arg(long, value_name = "N", default_value_t = 5)]
    warm_up: u64,

    /// Steps that are recorded
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    steps: u64,

    /// Folder of the results [default: profile in the run folder, or here]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Prints all results as one JSON object instead of tables
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    devices: DevicesArgs,
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<ExitCode> {
    match args.devices.begin()? {
        Role::Launcher(code) => Ok(code),
        Role::Rank(part) => {
            let result = profile(args, &part, init);
            part.end(result)
        }
    }
}

/// Takes the steps together with the other ranks. Rank 0 writes and speaks.
fn profile<M: Model>(args: Args, part: &Part, init: &Init<'_, M>) -> Result<()> {
    let out = args.out.or_else(|| args.of.run.as_ref().map(|run| run.join("profile"))).unwrap_or("profile".into());
    let mut run = args.config.of_run(&args.of, part.device)?;
    run.options.link.clone_from(&part.link);
    run.options.data = init.data();
    if part.is_first() {
        make_folder(&out)?;
    }
    let device = part.device.open()?;
    let ranks = part.link.clone().map_or(Ok(Ranks::alone()), |link| Ranks::over(link, &device))?;

    let schedule = Schedule { warm_up: args.warm_up, steps: args.steps };
    let (profile, trace) = ranks.or_abort(take(&run, init, schedule, &ranks))?;
    ranks.finish()?;
    if !part.is_first() {
        return Ok(());
    }

    write(&out, "trace.json", serde_json::to_string(&trace)?.as_bytes())?;
    write(&out, "profile.json", serde_json::to_string_pretty(&profile)?.as_bytes())?;
    write(&out, "roofline.svg", roofline::file(&profile)?.as_bytes())?;
    if let Some(memory) = &profile.memory {
        write(&out, "memory.svg", memory_line::file(memory)?.as_bytes())?;
    }
    if args.json {
        stdout_line!("{}", serde_json::to_string(&profile)?);
    } else {
        print(&profile);
    }
    let pictures = if profile.memory.is_some() { "roofline.svg, memory.svg" } else { "roofline.svg" };
    stderr_line!("written to {}: trace.json (time line), profile.json (all rows), {pictures}", out.display());
    Ok(())
}

/// Makes the folder before the steps are taken.
fn make_folder(out: &Path) -> Result<()> {
    fs::create_dir_all(out)
        .with_context(|| format!("{}: cannot make this folder for the results; --out names another one", out.display()))
}

fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    let path = folder.join(name);
    replace_file(&path, content).with_context(|| format!("writing {}", path.display()))
}

fn print(profile: &Profile) {
    let steps = profile.steps.len();
    stdout_line!(
        "{} on {}, {}: {steps} steps after {} others",
        profile.model,
        profile.device,
        profile.dtype,
        profile.warm_up
    );
    stdout_line!(
        "  {:.2} ms per step, {} tokens per second without padding (padding {:.0} %)",
        profile.step_ms(),
        thousands(profile.tokens_per_sec),
        100.0 * profile.padding_ratio
    );
    let replayed: f64 = profile.steps.iter().filter_map(|step| step.replayed_share).sum();
    if replayed > 0.0 {
        stdout_line!("  {:.0} % of the micro-batches were replayed as CUDA graphs", 100.0 * replayed / steps as f64);
    }

    if let Some(gpu) = &profile.gpu {
        stdout_line!("  GPU busy {:.1} % of the time ({})", 100.0 * gpu.busy_share, gpu.source);
    }

    if !profile.ranks.is_empty() {
        print_ranks(&profile.ranks, steps);
    }
    print_host("training thread", &profile.host, steps);
    if !profile.loader.is_empty() {
        print_host("loader", &profile.loader, steps);
    }
    print_sums(&profile.operators, steps);
    print_rows("operator", &profile.operators, steps);
    if !profile.kernels.is_empty() {
        print_rows("kernel (grid of block)", &profile.kernels, steps);
    }

    if let Some(memory) = &profile.memory {
        print_memory(memory);
    }
    let roofs = &profile.roofs;
    let source = match roofs.source {
        RoofSource::DataSheet => "from the data sheet",
        RoofSource::Measured => "measured",
    };
    stdout_line!(
        "\nroofs ({source}): {} and {}; they meet at {:.1} FLOP per byte",
        rate(roofs.flops_per_sec, "FLOP/s"),
        rate(roofs.bytes_per_sec, "B/s"),
        roofs.ridge()
    );
    let verdicts = profile.operators.iter().filter_map(|row| Some((row, row.verdict()?))).take(VERDICTS);
    for (row, verdict) in verdicts {
        stdout_line!("  {} {}, {:.1} % of the time: {verdict}", row.name, row.sizes, 100.0 * row.share);
    }
    profile.notes.iter().for_each(|note| stdout_line!("note: {note}"));
}

fn print_ranks(rows: &[RankRow], steps: usize) {
    stdout_line!("\n{:<34}  {:>11}  {:>7}  {:>8}  {:>10}", "device", "ms per step", "busy", "exchange", "peak");
    for (rank, row) in rows.iter().enumerate() {
        let busy = row.busy_share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
        let peak = row.peak_bytes.map_or(String::new(), |bytes| format!("{} MiB", thousands(mib(bytes))));
        let name = format!("rank {rank}: {}", row.device);
        let (ms, exchange) = (row.total_ms / steps as f64, 100.0 * row.exchange_share);
        stdout_line!("{name:<34}  {ms:>11.3}  {busy:>7}  {exchange:>6.1} %  {peak:>10}");
    }
}

fn print_memory(MemoryLine { peak, .. }: &MemoryLine) {
    let parts = MemoryPoint::CATEGORIES.iter().zip(peak.parts());
    let parts = parts.map(|(name, bytes)| format!("{name} {}", thousands(mib(bytes)))).collect::<Vec<_>>().join(", ");
    let total = thousands(mib(peak.total()));
    stdout_line!("\nmemory in use at most {total} MiB, at {}: {parts}", peak.operator);
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn print_host(title: &str, rows: &[HostRow], steps: usize) {
    stdout_line!("\n{title:<26}  {:>11}  {:>7}", "ms per step", "share");
    for row in rows {
        stdout_line!("{:<26}  {:>11.3}  {:>5.1} %", row.name, row.ms / steps as f64, 100.0 * row.share);
    }
}

/// Prints the sums over all sizes of each operator.
fn print_sums(rows: &[Row], steps: usize) {
    stdout_line!("\n{:<31}  {:>6}  {:>9}  {:>7}  {:>6}", "operator, all sizes", "calls", "ms / step", "share", "roof");
    for sum in sums(rows) {
        let line = format!(
            "{:<31}  {:>6}  {:>9.3}  {:>5.1} %  {}",
            sum.name,
            sum.calls,
            sum.total_ms / steps as f64,
            100.0 * sum.share,
            sum.least_ms.map_or(String::new(), |least| format!("{:>4.0} %", 100.0 * least / sum.total_ms))
        );
        stdout_line!("{}", line.trim_end());
    }
}

/// All rows of an operator.
#[derive(Debug, Clone, PartialEq)]
struct Sum<'a> {
    name: &'a str,
    calls: u64,
    total_ms: f64,
    share: f64,
    /// The least time that the roofs allow; `None` if the work of a row is not known.
    least_ms: Option<f64>,
}

/// Returns the sums of rows with the same name, the longest first.
fn sums(rows: &[Row]) -> Vec<Sum<'_>> {
    let mut sums: Vec<Sum<'_>> = Vec::new();
    for row in rows {
        let measured = row.work.as_ref().filter(|work| !work.is_above_roof());
        let least_ms = measured.map(|work| work.of_roof * row.total_ms);
        match sums.iter_mut().find(|sum| sum.name == row.name) {
            Some(sum) => {
                sum.calls += row.calls;
                sum.total_ms += row.total_ms;
                sum.share += row.share;
                sum.least_ms = sum.least_ms.zip(least_ms).map(|(a, b)| a + b);
            }
            None => {
                let Row { name, calls, total_ms, share, .. } = row;
                sums.push(Sum { name, calls: *calls, total_ms: *total_ms, share: *share, least_ms });
            }
        }
    }
    sums.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    sums
}

fn print_rows(title: &str, rows: &[Row], steps: usize) {
    stdout_line!(
        "\n{title:<31}  {:<22}  {:>6}  {:>9}  {:>9}  {:>7}  {:>8}  {:>8}  {:>13}  {:>6}  bound by",
        "sizes",
        "calls",
        "ms / step",
        "us / call",
        "share",
        "MB",
        "FLOP/B",
        "achieved",
        "roof"
    );

    for row in rows.iter().take(MOST_ROWS) {
        let work = row.work.as_ref().map_or(String::new(), |work| work_columns(work, row.calls));
        let line = format!(
            "{:<31}  {:<22}  {:>6}  {:>9.3}  {:>9.1}  {:>5.1} %  {work}",
            row.name,
            row.sizes,
            row.calls,
            row.total_ms / steps as f64,
            row.mean_us,
            100.0 * row.share
        );
        stdout_line!("{}", line.trim_end());
    }
    if rows.len() > MOST_ROWS {
        stdout_line!("... and {} more rows in profile.json", rows.len() - MOST_ROWS);
    }
}

/// The columns of a row whose work is known.
fn work_columns(work: &RowWork, calls: u64) -> String {
    let achieved = match work.flops > 0.0 {
        true => rate(work.flops_per_sec, "FLOP/s"),
        false => rate(work.bytes_per_sec, "B/s"),
    };
    format!(
        "{:>8.2}  {:>8.1}  {achieved:>13}  {:>6}  {}",
        work.bytes / calls as f64 / 1e6,
        work.flops_per_byte,
        work.percent_of_roof(),
        work.bound.name()
    )
}

/// `12.3 GFLOP/s`.
fn rate(per_sec: f64, unit: &str) -> String {
    match per_sec {
        1e12.. => format!("{:.2} T{unit}", per_sec / 1e12),
        1e9.. => format!("{:.1} G{unit}", per_sec / 1e9),
        _ => format!("{:.1} M{unit}", per_sec / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_operator_add_up_and_an_unknown_work_stays_unknown() {
        let row = |name: &str, total_ms: f64| Row {
            name: name.into(),
            sizes: String::new(),
            calls: 2,
            total_ms,
            mean_us: 0.0,
            share: total_ms / 10.0,
            work: None,
        };
        let rows = [row("b", 3.0), row("a", 2.0), row("a", 2.5)];
        let found = sums(&rows);
        assert_eq!(
            found.iter().map(|sum| (sum.name, sum.calls, sum.total_ms)).collect::<Vec<_>>(),
            [("a", 4, 4.5), ("b", 2, 3.0)]
        );
        assert!(found[0].least_ms.is_none() && (found[0].share - 0.45).abs() < 1e-12);
    }
}
