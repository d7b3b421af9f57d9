//! Kiln's own launcher: one process per device of this machine, with the same arguments.

mod lines;
pub mod numa;
mod signals;
mod threads;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use thiserror::Error;

pub use self::lines::{Show, Stream};
pub use self::signals::Signals;
#[cfg(unix)]
pub use self::signals::hang_up_is_ignored;
use super::devices::DeviceName;
use super::link::random;
use super::ports::free_port;

const TICK: Duration = Duration::from_millis(20);
/// After a rank fails, the others have so long to end by themselves: their links tell them. A stopped rank, which is silent
/// for seven seconds first, thus ends the run within ten.
const GRACE: Duration = Duration::from_millis(2500);

/// The exit code of a rank that has refused what the user asked for. It has said all that there is to say.
const REFUSED: u8 = 2;

/// Why the ranks cannot be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A process cannot be started.
    #[error("cannot start rank {rank} as {program}: {source}")]
    Start {
        /// The rank.
        rank: usize,
        /// The program.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A process cannot be watched.
    #[error("cannot wait for rank {rank}: {source}")]
    Wait {
        /// The rank.
        rank: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// No port of loopback is free.
    #[error("no free port on loopback for the ranks: {0}")]
    NoPort(io::Error),
}

/// Starts `program` with `args` once for each device, and waits until all processes have ended. One device alone has no other ranks to
/// meet: its process starts as if a person had started it.
///
/// Rank 0 has this process's stdout and stderr, so that its progress bar stays as it is. `show` gets the lines of the other
/// ranks, which begin with `[1]`, and the launcher's own. When a process fails, the others have 2.5 s to end by
/// themselves. Returns 0, or the exit code of the first process that failed, 128 and more for a signal.
///
/// # Errors
/// If a process cannot be started; those that were started are ended.
pub fn launch(
    devices: &[DeviceName],
    program: &Path,
    args: &[OsString],
    signals: &Signals,
    show: Show,
) -> Result<u8, LaunchError> {
    let port = free_port().map_err(LaunchError::NoPort)?;
    let secret: String = random().iter().map(|byte| format!("{byte:02x}")).collect();
    let shares = threads::shares(devices);

    let mut ranks = Ranks { running: Vec::new(), show };
    for (rank, share) in shares.iter().enumerate() {
        let mut command = Command::new(program);
        // Rank 0 may read a file or a pipe. It cannot read a terminal, because its group of processes is not in the foreground.
        let reads = rank == 0 && !io::stdin().is_terminal();
        command.args(args).stdin(if reads { Stdio::inherit() } else { Stdio::null() });
        // A rank suggests commands as the user has written this one.
        #[cfg(unix)]
        if let Some(name) =
            std::env::args_os().next().filter(|_| std::env::current_exe().is_ok_and(|own| own == program))
        {
            std::os::unix::process::CommandExt::arg0(&mut command, name);
        }
        if devices.len() > 1 {
            let place = Place { rank, n_ranks: devices.len(), device: devices[rank], port };
            place.tell(&mut command, &secret, share.threads);
        }
        ranks.start(rank, devices[rank], command, share.cpus.as_deref()).map_err(|source| LaunchError::Start {
            rank,
            program: program.to_owned(),
            source,
        })?;
    }
    ranks.wait(signals)
}

/// A rank's place among the others.
struct Place {
    rank: usize,
    n_ranks: usize,
    device: DeviceName,
    port: u16,
}

impl Place {
    /// Sets the variables by which the ranks find each other, and share the CPUs.
    fn tell(&self, command: &mut Command, secret: &str, threads: usize) {
        for (name, value) in [
            ("KILN_RANK", self.rank.to_string()),
            ("KILN_WORLD_SIZE", self.n_ranks.to_string()),
            ("KILN_DEVICE", self.device.to_string()),
            ("KILN_MASTER_PORT", self.port.to_string()),
            ("KILN_LAUNCHER_PID", std::process::id().to_string()),
        ] {
            command.env(name, value);
        }
        for (name, value) in [("KILN_SECRET", secret.to_owned()), ("RAYON_NUM_THREADS", threads.to_string())] {
            // The user's own value stays.
            if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
                command.env(name, value);
            }
        }
    }
}

/// The processes. Dropping them ends those that still run.
struct Ranks {
    running: Vec<Rank>,
    show: Show,
}

struct Rank {
    rank: usize,
    device: DeviceName,
    child: Child,
    lines: Vec<lines::Forwarder>,
    ended: Option<ExitStatus>,
}

impl Ranks {
    fn start(
        &mut self,
        rank: usize,
        device: DeviceName,
        mut command: Command,
        cpus: Option<&[usize]>,
    ) -> io::Result<()> {
        if rank > 0 {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        // A group of its own: the terminal's Ctrl-C reaches the launcher alone, which passes it on once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);

        // A process inherits the CPUs of the thread that starts it.
        let mut child = numa::on_cpus(cpus, || command.spawn())?;
        let mut lines = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            lines.push(lines::forward(rank, Stream::Out, pipe, Arc::clone(&self.show)));
        }
        if let Some(pipe) = child.stderr.take() {
            lines.push(lines::forward(rank, Stream::Err, pipe, Arc::clone(&self.show)));
        }
        self.running.push(Rank { rank, device, child, lines, ended: None });
        Ok(())
    }

    /// Waits for all processes, passes signals on, and ends all when one fails.
    fn wait(&mut self, signals: &Signals) -> Result<u8, LaunchError> {
        let mut failed: Option<(u8, Instant)> = None;
        while self.running.iter().any(|rank| rank.ended.is_none()) {
            for signal in signals.take() {
                self.pass_on(signal, signals);
            }

            for rank in self.running.iter_mut().filter(|rank| rank.ended.is_none()) {
                let wait = |source| LaunchError::Wait { rank: rank.rank, source };
                rank.ended = rank.child.try_wait().map_err(wait)?;
                if let Some(status) = rank.ended.filter(|status| !status.success() && failed.is_none()) {
                    let (code, how) = in_words(status);
                    failed = Some((code, Instant::now()));
                    if code != REFUSED {
                        let name = format!("rank {} ({})", rank.rank, rank.device);
                        (self.show)(Stream::Err, &format!("{name} ended with {how}; ending the other ranks"));
                    }
                }
            }

            if failed.is_some_and(|(_, since)| since.elapsed() >= GRACE) {
                self.kill();
            }
            sleep(TICK);
        }

        // Their last lines.
        self.running.iter_mut().flat_map(|rank| rank.lines.drain(..)).for_each(lines::Forwarder::finish);
        Ok(failed.map_or(0, |(code, _)| code))
    }

    fn pass_on(&self, signal: signals::Signal, signals: &Signals) {
        let running = || self.running.iter().filter(|rank| rank.ended.is_none());
        running().for_each(|rank| signals::send(&rank.child, signal));
        if signal == signals::Signal::Suspend {
            signals.suspend_this_process();
            running().for_each(|rank| signals::send(&rank.child, signals::Signal::Continue));
        }
    }

    fn kill(&mut self) {
        for rank in self.running.iter_mut().filter(|rank| rank.ended.is_none()) {
            signals::send(&rank.child, signals::Signal::Kill);
            let _ = rank.child.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
        for rank in self.running.iter_mut().filter(|rank| rank.ended.is_none()) {
            let _ = rank.child.wait();
        }
    }
}

/// The exit code of a shell, and the end of a process in words.
fn in_words(status: ExitStatus) -> (u8, String) {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
        return (128u8.saturating_add(signal as u8), format!("signal {signal} ({name})"));
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    (code, format!("exit code {}", status.code().unwrap_or(1)))
}

#[cfg(test)]
mod tests;
