//! Ctrl-C and SIGTERM save and end a run after the step in progress; a second signal ends it at once. SIGUSR1 saves,
//! and the run goes on.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::exit::INTERRUPTED;
use crate::train::Signals;

/// Returns flags that the process's signals set.
pub(super) fn on_signals() -> Result<Signals> {
    let signals = Signals::default();
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the flag as the previous signal left it.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), signals.stop.clone())
            .and_then(|_| flag::register(signal, signals.stop.clone()))
            .context("listening for Ctrl-C")?;
    }
    #[cfg(unix)]
    flag::register(signal_hook::consts::SIGUSR1, signals.save_now.clone()).context("listening for SIGUSR1")?;
    Ok(signals)
}
