//! `kiln train`: trains, or shows with --dry-run what would be trained.

mod args;
mod dry_run;
mod report;
mod sample;
mod stop;

use anyhow::Result;

pub(super) use args::Args;

use crate::train::Ended;

pub(super) fn run(args: Args) -> Result<()> {
    let run = args.run()?;
    if args.dry_run {
        return dry_run::print(&run, args.resume, args.show_config);
    }

    let dir = run.dir().to_path_buf();
    let prepared = run.prepare(args.resume)?;
    let note = |line: &str| {
        if !args.quiet {
            eprintln!("{line}")
        }
    };
    let mut session = prepared.start(stop::on_signals()?)?;
    let outcome = session.train()?;

    if outcome.ended != Ended::AlreadyFinished {
        note(&report::speed(&outcome));
    }
    match outcome.ended {
        // Printed even with --quiet: it is the result of the run.
        Ended::Stopped => eprintln!("{}", report::stopped(&outcome, &dir)),
        _ => report::print(&outcome, &session, &dir)?,
    }
    Ok(())
}
