//! `kiln train`: trains, or shows with --dry-run what would be trained.

mod args;
mod dry_run;
mod report;
mod sample;
mod stop;

use std::process::ExitCode;

use anyhow::Result;

pub(super) use args::Args;

use super::together::{self, Role};
use crate::distributed::Link;
use crate::logging::console::print_line;
use crate::train::Ended;

pub(super) fn run(args: Args) -> Result<ExitCode> {
    let (link, device) = match together::begin(args.devices(), args.device())? {
        Role::Launcher(code) => return Ok(code),
        Role::Rank { link, device } => (link, device),
    };
    let is_first = link.as_ref().is_none_or(Link::is_first);
    if args.dry_run && !is_first {
        return Ok(ExitCode::SUCCESS);
    }

    let (run, resume) = args.run(link, device)?;
    if args.dry_run {
        dry_run::print(&run, resume, args.show_config)?;
        return Ok(ExitCode::SUCCESS);
    }

    let dir = run.dir().to_path_buf();
    let prepared = run.prepare(resume)?;
    let note = |line: &str| {
        if !args.quiet {
            print_line(line)
        }
    };
    let mut session = prepared.start(stop::on_signals()?)?;
    let outcome = session.train()?;
    if !is_first {
        return Ok(ExitCode::SUCCESS); // rank 0 speaks for all
    }

    if outcome.ended != Ended::AlreadyFinished {
        note(&report::speed(&outcome));
    }
    match outcome.ended {
        // Printed even with --quiet: it is the result of the run.
        Ended::Stopped => eprintln!("{}", report::stopped(&outcome, &dir)),
        ended => {
            let shown = !args.quiet && ended != Ended::AlreadyFinished && has_one_screen();
            report::print(&outcome, &session, &dir, shown)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether stdout and stderr go to the same terminal, pipe or file.
#[cfg(unix)]
fn has_one_screen() -> bool {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let identity = |stream: std::os::fd::BorrowedFd<'_>| {
        let file = File::from(stream.try_clone_to_owned().ok()?).metadata().ok()?;
        Some((file.dev(), file.ino()))
    };
    let [stdout, stderr] = [identity(std::io::stdout().as_fd()), identity(std::io::stderr().as_fd())];
    stdout.is_some() && stdout == stderr
}

#[cfg(not(unix))]
fn has_one_screen() -> bool {
    false
}
