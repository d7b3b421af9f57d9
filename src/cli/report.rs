//! `kiln report`: what runs have logged, as a page and as pictures.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use kiln_data::files::read_file;
use kiln_data::files::replace::replace_file;
use kiln_lab::report::catalogue::{FIGURES, find};
use kiln_lab::report::colours::COLOURS;
use kiln_lab::report::curves::Figure;
use kiln_lab::report::draw;
use kiln_lab::report::history::{History, HistoryError, name_apart};
use kiln_lab::report::live::Server;
use kiln_lab::report::page::{MARK, Refresh, mark_of, page, waiting};
use kiln_lab::report::picture::png;
use kiln_metrics::logging::print::{stderr_line, stdout_line};

use super::error::Usage;

/// The name of a page that no option names.
const PAGE_FILE: &str = "report.html";
/// As many runs have distinct colours.
const MOST_RUNS: usize = COLOURS.len();

/// Shows what runs have logged: one HTML page, or pictures
///
/// The page needs no network and no script. It has the curves of losses, scores, learning rate, speed, padding, time and
/// memory, as far as the runs logged them, the differences between their configurations, and their notes. Several runs lie
/// over each other in one figure. A run may still go on. A page is written again for the same runs, and never over another one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln report runs/en-it
  kiln report runs/a runs/b --out ab.html
  kiln report runs/a runs/b --figure loss --figure scores --svg loss.svg
  kiln report runs/a --live")]
pub(super) struct Args {
    /// Run folders, up to 8
    #[arg(required = true)]
    runs: Vec<PathBuf>,

    /// File of the page [default: report.html in the run folder, or here for several runs; none with --svg or --png]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Writes figures as an SVG file, which follows the reader's light or dark theme
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Writes figures as a PNG file, in light colours
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,

    /// A figure of --svg and --png, named as in the links of the page; may be repeated [default: loss]
    #[arg(long, value_name = "NAME")]
    figure: Vec<String>,

    /// Serves the page on the loopback address until Ctrl-C. The page loads itself again every 5 seconds
    #[arg(long, conflicts_with_all = ["out", "svg", "png", "figure"])]
    live: bool,

    /// With --live: the port; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0, requires = "live")]
    port: u16,
}

pub(super) fn run(args: Args) -> Result<()> {
    if args.runs.len() > MOST_RUNS {
        let text = format!("{} runs: a figure has colours for {MOST_RUNS}; give fewer", args.runs.len());
        return Err(Usage(text).into());
    }
    if args.live {
        return serve(args.runs, args.port);
    }

    let runs = read(&args.runs)?;
    for run in runs.iter().filter(|run| run.bad_lines > 1) {
        stderr_line!(
            "warning: {}: {} damaged lines of its metrics were skipped (kiln check names them)",
            run.dir.display(),
            run.bad_lines
        );
    }
    let wants_picture = args.svg.is_some() || args.png.is_some();
    if !wants_picture && !args.figure.is_empty() {
        return Err(Usage("--figure chooses figures of a picture: add --svg FILE or --png FILE".into()).into());
    }

    if wants_picture {
        let drawing = draw::file(&chosen(&args.figure, &runs)?)?;
        if let Some(path) = &args.svg {
            refuse_other_picture(path, b"<svg", "an SVG picture")?;
            write(path, drawing.as_bytes())?;
        }
        if let Some(path) = &args.png {
            refuse_other_picture(path, b"\x89PNG", "a PNG picture")?;
            write(path, &png(&drawing)?)?;
        }
    }
    if !wants_picture || args.out.is_some() {
        let path = args.out.unwrap_or_else(|| own_place(&args.runs));
        refuse_other_file(&path, &runs)?;
        write(&path, page(&runs, Refresh::Never)?.as_bytes())?;
    }
    Ok(())
}

fn read(dirs: &[PathBuf]) -> Result<Vec<History>, HistoryError> {
    let mut runs = dirs.iter().map(|dir| History::read(dir)).collect::<Result<Vec<_>, _>>()?;
    name_apart(&mut runs);
    Ok(runs)
}

/// Returns the figures of a picture.
fn chosen(names: &[String], runs: &[History]) -> Result<Vec<Figure>> {
    let of = |present: bool| {
        let names = FIGURES.iter().filter(|kind| !present || !Figure::of(kind, runs).is_empty()).map(|kind| kind.id);
        names.collect::<Vec<_>>().join(", ")
    };
    let default = ["loss".to_owned()];
    let names = if names.is_empty() { &default[..] } else { names };

    let mut figures = Vec::new();
    for name in names {
        let Some(kind) = find(name) else {
            return Err(Usage(format!("--figure {name}: unknown figure; there are {}", of(false))).into());
        };
        let found = Figure::of(kind, runs);
        if found.is_empty() {
            let text = format!("--figure {name}: the runs have logged nothing for it; they have {}", of(true));
            return Err(Usage(text).into());
        }
        figures.extend(found);
    }
    Ok(figures)
}

/// Returns the file of a page that no option names: in the folder of its run. A comparison belongs to none of its runs.
fn own_place(dirs: &[PathBuf]) -> PathBuf {
    match dirs {
        [dir] => dir.join(PAGE_FILE),
        _ => PAGE_FILE.into(),
    }
}

/// Refuses to replace a file that is not a report of the same runs.
fn refuse_other_file(path: &Path, runs: &[History]) -> Result<(), Usage> {
    let Ok(found) = read_file(path) else { return Ok(()) };
    let has = |mark: &str| found.windows(mark.len()).any(|part| part == mark.as_bytes());
    let what = match has(MARK) {
        true if has(&mark_of(runs)) => return Ok(()),
        true => "is a report of other runs",
        false => "is not a report of Kiln",
    };
    Err(Usage(format!("{}: this file exists and {what}; name another one with --out", path.display())))
}

/// Refuses to replace a file that does not begin as pictures of its kind do.
fn refuse_other_picture(path: &Path, start: &[u8], kind: &str) -> Result<(), Usage> {
    match read_file(path) {
        Ok(found) if !found.is_empty() && !found.starts_with(start) => {
            Err(Usage(format!("{}: this file exists and is not {kind}; name another one", path.display())))
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_file(path, bytes)?;
    stdout_line!("{}", path.display());
    Ok(())
}

/// Serves the page of runs that may not have begun to train.
fn serve(dirs: Vec<PathBuf>, port: u16) -> Result<()> {
    if let Err(error @ (HistoryError::NoRun(_) | HistoryError::Unreadable { .. })) = read(&dirs) {
        return Err(error.into());
    }
    let server = Server::bind(port)
        .with_context(|| format!("port {port} of 127.0.0.1 cannot be used; take another one with --port"))?;
    stdout_line!("{}", server.url());
    stderr_line!("serving to browsers of this machine; Ctrl-C ends it");

    // One page at a time: a long run takes seconds to read.
    let turn = Mutex::new(());
    let made = move |refresh| {
        let _turn = turn.lock();
        match read(&dirs) {
            Ok(runs) => page(&runs, refresh).unwrap_or_else(|error| waiting(&format!("{error:#}"), refresh)),
            Err(error) => waiting(&error.to_string(), refresh),
        }
    };
    Ok(server.serve(made)?)
}
