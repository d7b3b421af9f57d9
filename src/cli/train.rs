//! `kiln train`: trains, or shows with --dry-run what would be trained.

mod args;
mod dry_run;
mod report;
mod restarts;
mod stop;

use std::process::ExitCode;

use anyhow::Result;

pub(super) use args::Args;
use kiln_metrics::logging::console::print_line;
use kiln_ranks::Link;
use kiln_train::eval::{Init, Model};
use kiln_train::train::{Ended, Held, Signals};

use super::together::{Part, Role};

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<ExitCode> {
    if let (Some(restarts), Some(dir)) = (args.restarts, &args.run) {
        return restarts::run(&args.devices, dir, restarts);
    }
    match args.devices.begin()? {
        Role::Launcher(code) => Ok(code),
        Role::Rank(part) => {
            let (part, result) = train_on(args, part, init);
            part.end(result)
        }
    }
}

/// Trains; and trains on with the ranks that are left when one is lost, if the run goes on without it. Returns the last part that this
/// process had.
fn train_on<M: Model>(mut args: Args, mut part: Part, init: &Init<'_, M>) -> (Part, Result<()>) {
    let (mut signals, mut held) = (None, None);
    loop {
        let result = match part.link.as_ref().filter(|link| link.is_regrouped()) {
            Some(link) => Held::hand_over(held.as_ref(), args.run.as_deref(), link).and_then(|dir| {
                held = None; // the checkpoint has it
                args.continue_in(dir);
                train(&mut args, &part, init, &mut signals, &mut held)
            }),
            None => train(&mut args, &part, init, &mut signals, &mut held),
        };
        let Err(error) = result else { return (part, Ok(())) };
        match part.after_loss(&error) {
            Ok(Some(next)) => part = next,
            Ok(None) => return (part, Err(error)),
            Err(error) => return (part, Err(error)),
        }
    }
}

/// Trains together with the other ranks. Rank 0 speaks for all. `held` gets this rank's state after the last exchange if the run goes on
/// without a rank that is lost, and `args` the folder of the run.
fn train<M: Model>(
    args: &mut Args,
    part: &Part,
    init: &Init<'_, M>,
    signals: &mut Option<Signals>,
    held: &mut Option<Held>,
) -> Result<()> {
    if args.dry_run && !part.is_first() {
        // Rank 0 looks for all; a rank that ended before it would end it.
        return finish(part);
    }
    let (mut run, resume) = args.run(part.link.clone(), part.device)?;
    run.options.data = init.data();
    run.config().check_figure(M::FIGURES)?;
    if args.dry_run {
        dry_run::print(&run, resume, args.show_config, init)?;
        return finish(part);
    }

    if !resume && !init.is_own() && !run.config().is_built_in_task() {
        let note = dry_run::not_exportable(run.config());
        run.options.notes.extend(note);
    }
    let dir = run.dir().to_path_buf();
    args.run = Some(dir.clone());
    let prepared = run.prepare(resume)?;
    let signals = match signals {
        Some(signals) => signals,
        None => signals.insert(stop::on_signals()?), // until here, Ctrl-C ends the process at once
    };
    let mut session = prepared.start_as(signals.clone(), init)?;
    let outcome = session.train().inspect_err(|_| *held = session.take_held())?;
    if !part.is_first() {
        return Ok(());
    }

    if outcome.ended != Ended::AlreadyFinished && !args.quiet {
        print_line(&report::speed(&outcome));
    }
    match outcome.ended {
        // Printed even with --quiet: it is the result of the run.
        Ended::Stopped => print_line(&report::stopped(&outcome, &dir, args.devices.list())),
        ended => {
            let shown = !args.quiet && ended != Ended::AlreadyFinished && has_one_screen();
            report::print(&outcome, &session, &dir, shown, init)?;
        }
    }
    Ok(())
}

/// Waits until every rank has come to its end.
fn finish(part: &Part) -> Result<()> {
    Ok(part.link.as_ref().map_or(Ok(()), Link::finish)?)
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
