//! Ctrl-C, SIGTERM and SIGHUP save and end a run after the step in progress; a second Ctrl-C or SIGTERM ends it at once.
//! SIGUSR1 saves, and the run goes on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use kiln_train::train::Signals;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::exit::INTERRUPTED;
#[cfg(unix)]
use kiln_ranks::launch::hang_up_is_ignored;

/// Returns flags that the process's signals set.
pub(super) fn on_signals() -> Result<Signals> {
    let signals = Signals::default();
    let was_asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the flag as the previous signal left it.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), was_asked.clone())
            .and_then(|_| flag::register(signal, was_asked.clone()))
            .and_then(|_| flag::register(signal, signals.stop.clone()))
            .context("listening for Ctrl-C")?;
    }
    #[cfg(unix)]
    flag::register(signal_hook::consts::SIGUSR1, signals.save_now.clone()).context("listening for SIGUSR1")?;
    // A terminal that closes sends it once by itself and once through the shell, so a second one does not ask to end at once.
    #[cfg(unix)]
    if !hang_up_is_ignored() {
        flag::register(signal_hook::consts::SIGHUP, signals.stop.clone()).context("listening for SIGHUP")?;
    }
    Ok(signals)
}
