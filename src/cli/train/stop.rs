//! Ctrl-C and SIGTERM end a run after the step in progress, saved; a second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::exit::INTERRUPTED;

/// A flag that the first signal sets.
pub(super) fn on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the flag as the signal before left it.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .context("listening for Ctrl-C")?;
    }
    Ok(stop)
}
