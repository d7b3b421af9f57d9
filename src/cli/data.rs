//! `kiln data`: what the text of a run looks like.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use kiln_data::files::replace::replace_file;
use kiln_data::{LabelConfig, LabelledCorpus, Lengths, RowReport, Shape, TokenCache};
use kiln_lab::diagnose::data_stats::{Batching, DataStats};
use kiln_lab::report::histogram;
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_metrics::units::{counted, thousands};
use kiln_train::config::task::traits_of;
use kiln_train::device::DeviceChoice;

use super::config_args::ConfigArgs;
use super::error::Usage;
use super::of_run::OfRunArgs;

/// Characters of the longest bar.
const BAR: usize = 40;

/// Looks at the text of a run
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln data stats --set data.train=pairs.jsonl --preset base")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Stats(StatsArgs),
}

/// Counts lengths, padding and duplicates, and recommends settings of the loader
///
/// Tokenizes the training text as kiln train does, or takes the token caches of a run. Padding is counted over a whole epoch,
/// with the settings of the run and with others.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln data stats --set data.train=pairs.jsonl --preset base
  kiln data stats --task lm --set data.train=texts/ --packing sentences
  kiln data stats --run runs/en-it --svg lengths.svg")]
struct StatsArgs {
    #[command(flatten)]
    of: OfRunArgs,

    #[command(flatten)]
    config: ConfigArgs,

    /// Writes the lengths as an SVG file, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(super) fn run(Args { what: What::Stats(args) }: Args) -> Result<()> {
    let run = args.config.of_run(&args.of, DeviceChoice::Cpu)?;
    let survey = run.survey_any_size(false)?;
    let (config, vocabulary) = (&survey.config, &survey.data.vocabulary);
    if config.data.is_mixed() {
        return print_sources(&survey.data.notes, DataStats::of_sources(config, vocabulary, &survey.cache_dir)?, &args);
    }
    if traits_of(config.task).classes.is_some() {
        // Labelled rows are in memory. The loader knows their lengths and batches.
        survey.data.notes.iter().for_each(|note| stdout_line!("{note}"));
        let labels = LabelConfig { filter: config.train_filter()?, ..config.data.labels.clone() };
        if !config.is_built_in_task() {
            print_labelled(&LabelledCorpus::read(&config.data.train_files(), config.task, &labels)?);
        }
        let lengths = survey.data.train.lengths();
        lengths.iter().for_each(print_lengths);
        print_shapes(&survey.data.train.shapes().unwrap_or_default(), &lengths, 1);
        return draw(args.svg.as_deref(), &lengths);
    }

    let is_warning = |note: &&String| ["warning: ", "note: "].iter().any(|start| note.starts_with(start));
    let warnings = || survey.data.notes.iter().filter(is_warning);
    if config.data.text.is_preferences() {
        let cache = TokenCache::open(&survey.cache_dir.join("train.tokens"))?;
        print_rows(cache.report(), cache.n_duplicates());
        let lengths = survey.data.train.lengths();
        lengths.iter().for_each(print_lengths);
        // A pair has two rows of a batch, and both are counted in its length.
        print_shapes(&survey.data.train.shapes().unwrap_or_default(), &lengths, 2);
        warnings().for_each(|note| stdout_line!("{note}"));
        return draw(args.svg.as_deref(), &lengths);
    }
    let stats = DataStats::of(config, vocabulary, &survey.cache_dir)?;
    print(&stats);
    warnings().for_each(|note| stdout_line!("{note}"));
    draw(args.svg.as_deref(), &stats.lengths)
}

/// Prints the padding and the number of batches with these shapes, in which a text of the lengths takes so many rows.
fn print_shapes(shapes: &BTreeMap<Shape, usize>, lengths: &[Lengths], rows_per_text: usize) {
    let sum = |of: &dyn Fn(&Shape) -> usize| shapes.iter().map(|(shape, n)| n * of(shape)).sum::<usize>() as f64;
    let (rows, padded) = (sum(&|shape| shape.batch_size), sum(&Shape::padded_tokens));
    let tokens = rows / rows_per_text as f64 * lengths.iter().map(|side| side.mean).sum::<f64>();
    stdout_line!(
        "\npadding {:.1} %, {}, {} per epoch",
        100.0 * (1.0 - tokens / padded.max(1.0)),
        counted(shapes.len() as u64, "shape"),
        counted(shapes.values().sum::<usize>() as u64, "batch")
    );
}

/// Draws the lengths into the file `path`, if there is one.
fn draw(path: Option<&Path>, lengths: &[Lengths]) -> Result<()> {
    if let Some(path) = path {
        replace_file(path, histogram::file(lengths)?.as_bytes())?;
        stderr_line!("lengths written to {}", path.display());
    }
    Ok(())
}

/// Prints each source of a mixture.
fn print_sources(notes: &[String], sources: Vec<(String, DataStats)>, args: &StatsArgs) -> Result<()> {
    anyhow::ensure!(
        args.svg.is_none(),
        Usage(
            "--svg draws the lengths of one text, and data.mix has several: name one with --set data.train=FILE".into()
        )
    );
    let is_shown = |note: &&String| ["mixture: ", "warning: ", "note: "].iter().any(|start| note.starts_with(start));
    notes.iter().filter(is_shown).for_each(|note| stdout_line!("{note}"));
    for (name, stats) in sources {
        stdout_line!("\nsource {name}");
        print(&stats);
    }
    Ok(())
}

/// Writes a number of rows with its share of all of them.
fn share(part: u64, of: u64) -> String {
    format!("{} ({:.1} %)", thousands(part as f64), 100.0 * part as f64 / of.max(1) as f64)
}

/// Prints how many labelled rows are kept, and how many repeat the text of an earlier one.
fn print_labelled(corpus: &LabelledCorpus) {
    let (n_repeated, n_other) = corpus.n_repeated();
    print_rows(corpus.report(), n_repeated);
    if n_other > 0 {
        stdout_line!("  repeat an earlier text with another label {}", share(n_other, corpus.report().kept));
        stdout_line!(
            "warning: {} with the text of an earlier row have another label: a model cannot learn both, so correct them",
            counted(n_other, "row")
        );
    }
    if n_repeated as f64 > 0.01 * corpus.report().kept as f64 {
        stdout_line!(
            "{:.1} % of the rows repeat an earlier one, so an epoch sees them several times: set data.filter.drop_duplicates = true, unless \
             that is intended",
            100.0 * n_repeated as f64 / corpus.report().kept.max(1) as f64
        );
    }
}

/// Prints how many rows are kept.
fn print_rows(report: &RowReport, n_duplicates: u64) {
    stdout_line!("{} kept, {} skipped", counted(report.kept, "row"), share(report.bad(), report.rows()));
    stdout_line!("  over the length limits {}", share(report.over_long, report.rows()));
    stdout_line!("  repeat an earlier row {}", share(n_duplicates, report.kept));
    report.notes().iter().for_each(|note| stdout_line!("  {note}"));
}

fn print(stats: &DataStats) {
    print_rows(&stats.report, stats.n_duplicates);
    if let Some(cut) = stats.n_cut {
        stdout_line!("  longer than a row, and cut {}", share(cut, stats.report.kept));
    }
    stdout_line!(
        "{:.3} tokens per byte of the {}",
        stats.tokens_per_byte,
        stats.lengths.last().map_or("text", |last| last.side.as_str())
    );

    stats.lengths.iter().for_each(print_lengths);
    stdout_line!("\n{:<54}  {:>8}  {:>6}  {:>17}", "settings", "padding", "shapes", "batches per epoch");
    stats.batchings.iter().for_each(print_batching);
    stdout_line!();
    for sentence in &stats.advice {
        stdout_line!("{sentence}");
    }
}

fn print_lengths(lengths: &Lengths) {
    let Lengths { side, mean, quantiles: [half, most, nearly_all, longest], bars, .. } = lengths;
    stdout_line!(
        "\n{side} lengths in tokens: mean {mean:.1}, half up to {half}, 90 % up to {most}, 99 % up to {nearly_all}, longest {longest}"
    );
    let highest = bars.iter().map(|(_, rows)| *rows).max().unwrap_or(0).max(1);
    // Bars behind the longest row are empty.
    let n_bars = bars.iter().rposition(|(_, rows)| *rows > 0).map_or(0, |last| last + 1);
    for (until, rows) in &bars[..n_bars] {
        let filled = (rows * BAR).div_ceil(highest);
        stdout_line!("  up to {until:>6}  {:<BAR$}  {}", "#".repeat(filled), thousands(*rows as f64));
    }
}

fn print_batching(batching: &Batching) {
    let name = if batching.settings.is_empty() { "as configured".into() } else { batching.settings.join(" ") };
    stdout_line!(
        "{name:<54}  {:>6.1} %  {:>6}  {:>17}",
        100.0 * batching.padding,
        batching.n_shapes,
        thousands(batching.n_batches as f64)
    );
}
