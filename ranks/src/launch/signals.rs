//! Signals to the launcher, which it passes on to all ranks.

use std::io;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a rank can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// Ctrl-C: save and end; the second one ends at once.
    Interrupt,
    /// Save and end, too; the second one ends at once.
    Terminate,
    /// A terminal that closes: save and end, however often it comes.
    HangUp,
    /// SIGUSR1: save and go on.
    SaveNow,
    /// Ctrl-Z.
    Suspend,
    /// `fg` after Ctrl-Z.
    Continue,
    /// End at once.
    Kill,
}

/// Signals that have arrived.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    /// Ctrl-C.
    pub(crate) interrupt: Arc<AtomicBool>,
    /// SIGTERM.
    pub(crate) terminate: Arc<AtomicBool>,
    /// A terminal that closes.
    pub(crate) hang_up: Arc<AtomicBool>,
    /// SIGUSR1.
    pub(crate) save_now: Arc<AtomicBool>,
    /// Ctrl-Z.
    pub(crate) suspend: Arc<AtomicBool>,
    /// Whether one that ends the run has been taken.
    end_taken: Arc<AtomicBool>,
}

impl Signals {
    /// Listens for the signals of this process, for the rest of its life.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> io::Result<Self> {
        let signals = Self::default();
        signal_hook::flag::register(signal_hook::consts::SIGINT, signals.interrupt.clone())?;
        signal_hook::flag::register(signal_hook::consts::SIGTERM, signals.terminate.clone())?;
        #[cfg(unix)]
        {
            signal_hook::flag::register(signal_hook::consts::SIGUSR1, signals.save_now.clone())?;
            signal_hook::flag::register(signal_hook::consts::SIGTSTP, signals.suspend.clone())?;
            if !hang_up_is_ignored() {
                signal_hook::flag::register(signal_hook::consts::SIGHUP, signals.hang_up.clone())?;
            }
        }
        Ok(signals)
    }

    /// Returns the signals that have arrived since the last call.
    pub(super) fn take(&self) -> Vec<Signal> {
        let flags = [
            (&self.interrupt, Signal::Interrupt),
            (&self.terminate, Signal::Terminate),
            (&self.hang_up, Signal::HangUp),
            (&self.save_now, Signal::SaveNow),
            (&self.suspend, Signal::Suspend),
        ];
        let arrived = flags.into_iter().filter(|(flag, _)| flag.swap(false, Ordering::Relaxed));
        let arrived: Vec<_> = arrived.map(|(_, signal)| signal).collect();
        if arrived.iter().any(|signal| matches!(signal, Signal::Interrupt | Signal::Terminate | Signal::HangUp)) {
            self.end_taken.store(true, Ordering::Relaxed);
        }
        arrived
    }

    /// Returns whether a signal has arrived that ends the run.
    pub fn end_was_asked(&self) -> bool {
        [&self.end_taken, &self.interrupt, &self.terminate, &self.hang_up]
            .iter()
            .any(|flag| flag.load(Ordering::Relaxed))
    }

    /// Stops this process as Ctrl-Z does without a launcher. Returns when it is continued.
    pub(super) fn suspend_this_process(&self) {
        #[cfg(unix)]
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP);
    }
}

/// Returns whether SIGHUP, which a terminal sends when it closes, must not end this process: `nohup` started it. Where the
/// system does not tell, the signal keeps its meaning.
#[cfg(unix)]
pub fn hang_up_is_ignored() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal_hook::consts::SIGHUP - 1) & 1 == 1)
}

/// Sends a signal to a rank, and to what it has started.
#[cfg(unix)]
pub(super) fn send(child: &Child, signal: Signal) {
    use rustix::process::{Pid, Signal as System, kill_process, kill_process_group};

    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
    // An error says that the process has just ended.
    let _ = match signal {
        Signal::Interrupt => kill_process(pid, System::INT),
        Signal::Terminate => kill_process(pid, System::TERM),
        Signal::HangUp => kill_process(pid, System::HUP),
        Signal::SaveNow => kill_process(pid, System::USR1),
        Signal::Suspend => kill_process_group(pid, System::STOP),
        Signal::Continue => kill_process_group(pid, System::CONT),
        Signal::Kill => kill_process_group(pid, System::KILL),
    };
}

/// Other systems have no signals; [`Child::kill`] ends a process.
#[cfg(not(unix))]
pub(super) fn send(_child: &Child, _signal: Signal) {}
