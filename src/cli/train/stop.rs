//! Ctrl-C and SIGTERM end a run after the step in progress, saved; a second one ends it at once. SIGUSR1 saves, and the run
//! goes on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::exit::INTERRUPTED;

/// Flags that signals set.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// End after this step.
    pub(super) stop: Arc<AtomicBool>,
    /// Save after this step.
    pub(super) save_now: Arc<AtomicBool>,
}

pub(super) fn on_signals() -> Result<Signals> {
    let signals = Signals::default();
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the flag as the signal before left it.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), signals.stop.clone())
            .and_then(|_| flag::register(signal, signals.stop.clone()))
            .context("listening for Ctrl-C")?;
    }
    #[cfg(unix)]
    flag::register(signal_hook::consts::SIGUSR1, signals.save_now.clone()).context("listening for SIGUSR1")?;
    Ok(signals)
}
