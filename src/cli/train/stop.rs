//! Ctrl-C, SIGTERM and SIGHUP save and end a run after the step in progress; a later Ctrl-C or SIGTERM ends it at once.
//! SIGUSR1 saves, and the run goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use kiln_train::train::Signals;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::exit::INTERRUPTED;
#[cfg(unix)]
use kiln_ranks::launch::hang_up_is_ignored;

/// Time after a signal in which another one means the same: `timeout` signals its child and then the group of the child.
const ECHO: Duration = Duration::from_secs(1);
/// Time between two looks at what the signals have set.
const LOOK: Duration = Duration::from_millis(50);

/// Returns flags that the process's signals set.
pub(super) fn on_signals() -> Result<Signals> {
    let signals = Signals::default();
    let [was_asked, ends_at_once] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), ends_at_once.clone())
            .and_then(|_| flag::register(signal, was_asked.clone()))
            .and_then(|_| flag::register(signal, signals.stop.clone()))
            .context("listening for Ctrl-C")?;
    }
    let arm = move || arm(&was_asked, &ends_at_once, ECHO);
    thread::Builder::new().name("second signal".into()).spawn(arm).context("listening for a second Ctrl-C")?;
    #[cfg(unix)]
    flag::register(signal_hook::consts::SIGUSR1, signals.save_now.clone()).context("listening for SIGUSR1")?;
    // A terminal that closes sends it once by itself and once through the shell, so a second one does not ask to end at once.
    #[cfg(unix)]
    if !hang_up_is_ignored() {
        flag::register(signal_hook::consts::SIGHUP, signals.stop.clone()).context("listening for SIGHUP")?;
    }
    Ok(signals)
}

/// Sets `ends_at_once` when `echo` has passed since a signal.
fn arm(was_asked: &AtomicBool, ends_at_once: &AtomicBool, echo: Duration) {
    while !was_asked.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
    }
    thread::sleep(echo);
    ends_at_once.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_signal_ends_a_run_at_once_and_an_echo_does_not() {
        let [was_asked, ends_at_once] = [(); 2].map(|()| AtomicBool::new(false));
        thread::scope(|scope| {
            let armed = scope.spawn(|| arm(&was_asked, &ends_at_once, Duration::from_millis(500)));
            thread::sleep(3 * LOOK);
            assert!(!armed.is_finished(), "it waits for a signal");
            was_asked.store(true, Ordering::Relaxed);
            thread::sleep(2 * LOOK);
            assert!(!ends_at_once.load(Ordering::Relaxed), "an echo");
            armed.join().expect("no panic");
            assert!(ends_at_once.load(Ordering::Relaxed), "a later one");
        });
    }
}
