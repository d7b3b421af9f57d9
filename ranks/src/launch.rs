//! Kiln's own launcher: one process per device of this machine, with the same arguments.

mod failure;
mod groups;
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
use std::time::Duration;

use thiserror::Error;

use self::failure::Failure;
use self::groups::Groups;
pub use self::lines::{Show, Stream};
pub use self::signals::Signals;
#[cfg(unix)]
pub use self::signals::hang_up_is_ignored;
use super::devices::DeviceName;
use super::link::random;
use super::ports::free_port;
use super::world::{GROUP, MEMBERS};

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
    /// The ranks cannot be told which of them train together.
    #[error("telling the ranks which of them train together: {0}")]
    Group(io::Error),
}

/// Starts `program` with `args` once for each device, and waits until all processes have ended. One device alone has no other ranks to
/// meet: its process starts as if a person had started it.
///
/// Rank 0 has this process's stdout and stderr, so that its progress bar stays as it is. `show` gets the lines of the other
/// ranks, which begin with `[1]`, and the launcher's own. When a process fails, the others have 2.5 s to end by
/// themselves. Returns 0, or the exit code of the process that failed first, 128 and more for a signal. If others failed because a
/// signal ended a process, that process counts.
///
/// Ranks may say that they go on without those that are lost ([`Link::survive`](crate::Link::survive)). A process that a signal ends, or
/// that the others do not hear, then ends nothing: another process takes its place.
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
    let groups =
        if devices.len() > 1 { Some(Groups::new(devices.len(), port).map_err(LaunchError::Group)?) } else { None };
    let what = What { devices, program, args, port, secret, shares: threads::shares(devices) };
    let mut ranks = Ranks { running: Vec::new(), what, groups, show };
    for rank in 0..devices.len() {
        let started = ranks.start(rank, None)?;
        ranks.running.push(started);
    }
    ranks.wait(signals)
}

/// What is started, and where.
struct What<'a> {
    devices: &'a [DeviceName],
    program: &'a Path,
    args: &'a [OsString],
    port: u16,
    secret: String,
    shares: Vec<threads::Share>,
}

impl What<'_> {
    fn command(&self, rank: usize) -> Command {
        let mut command = Command::new(self.program);
        // Rank 0 may read a file or a pipe. It cannot read a terminal, because its group of processes is not in the foreground.
        let reads = rank == 0 && !io::stdin().is_terminal();
        command.args(self.args).stdin(if reads { Stdio::inherit() } else { Stdio::null() });
        // A rank suggests commands as the user has written this one.
        #[cfg(unix)]
        if let Some(name) =
            std::env::args_os().next().filter(|_| std::env::current_exe().is_ok_and(|own| own == self.program))
        {
            std::os::unix::process::CommandExt::arg0(&mut command, name);
        }
        command
    }

    /// Sets the variables by which the ranks find each other, and share the CPUs.
    fn tell(&self, command: &mut Command, rank: usize) {
        for (name, value) in [
            ("KILN_RANK", rank.to_string()),
            ("KILN_WORLD_SIZE", self.devices.len().to_string()),
            ("KILN_DEVICE", self.devices[rank].to_string()),
            ("KILN_MASTER_PORT", self.port.to_string()),
            ("KILN_LAUNCHER_PID", std::process::id().to_string()),
        ] {
            command.env(name, value);
        }
        let threads = self.shares[rank].threads.to_string();
        for (name, value) in [("KILN_SECRET", self.secret.clone()), ("RAYON_NUM_THREADS", threads)] {
            // The user's own value stays.
            if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
                command.env(name, value);
            }
        }
    }
}

/// The processes. Dropping them ends those that still run.
struct Ranks<'a> {
    /// By rank.
    running: Vec<Rank>,
    what: What<'a>,
    /// Which ranks train together, if there are several.
    groups: Option<Groups>,
    show: Show,
}

struct Rank {
    rank: usize,
    device: DeviceName,
    child: Child,
    lines: Vec<lines::Forwarder>,
    ended: Option<ExitStatus>,
    /// It is ended because the run has ended without it.
    is_dismissed: bool,
}

impl Rank {
    fn name(&self) -> String {
        format!("rank {} ({})", self.rank, self.device)
    }

    /// Returns how the process has ended since the last call, if it has.
    fn reap(&mut self) -> Result<Option<ExitStatus>, LaunchError> {
        if self.ended.is_some() {
            return Ok(None);
        }
        let wait = |source| LaunchError::Wait { rank: self.rank, source };
        self.ended = self.child.try_wait().map_err(wait)?;
        Ok(self.ended)
    }

    fn kill(&mut self) {
        signals::send(&self.child, signals::Signal::Kill);
        let _ = self.child.kill();
    }
}

impl Ranks<'_> {
    /// Starts the process of a rank; in the place of a lost one that `group` lacks, if it is given.
    fn start(&self, rank: usize, group: Option<u32>) -> Result<Rank, LaunchError> {
        let mut command = self.what.command(rank);
        if let Some(groups) = &self.groups {
            self.what.tell(&mut command, rank);
            command.env(MEMBERS, groups.folder());
        }
        if let Some(group) = group {
            command.env(GROUP, group.to_string());
        }
        if rank > 0 {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        // A group of its own: the terminal's Ctrl-C reaches the launcher alone, which passes it on once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);

        // A process inherits the CPUs of the thread that starts it.
        let spawned = numa::on_cpus(self.what.shares[rank].cpus.as_deref(), || command.spawn());
        let program = || self.what.program.to_owned();
        let mut child = spawned.map_err(|source| LaunchError::Start { rank, program: program(), source })?;
        let mut lines = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            lines.push(lines::forward(rank, Stream::Out, pipe, Arc::clone(&self.show)));
        }
        if let Some(pipe) = child.stderr.take() {
            lines.push(lines::forward(rank, Stream::Err, pipe, Arc::clone(&self.show)));
        }
        Ok(Rank { rank, device: self.what.devices[rank], child, lines, ended: None, is_dismissed: false })
    }

    /// Waits for all processes, passes signals on, and ends all when one fails, unless the others go on without it.
    fn wait(&mut self, signals: &Signals) -> Result<u8, LaunchError> {
        let mut failure: Option<Failure> = None;
        while self.running.iter().any(|rank| rank.ended.is_none()) {
            for signal in signals.take() {
                self.pass_on(signal, signals);
            }
            for rank in 0..self.running.len() {
                self.look_at(rank, signals, &mut failure)?;
            }
            match &mut failure {
                None => self.regroup()?,
                Some(failure) => {
                    self.name(failure);
                    if failure.age() >= GRACE {
                        self.kill();
                    }
                }
            }
            sleep(TICK);
        }

        // Their last lines.
        self.running.iter_mut().flat_map(|rank| rank.lines.drain(..)).for_each(lines::Forwarder::finish);
        Ok(failure.map_or(0, |failure| in_words(failure.status).0))
    }

    /// Notes a rank that has failed, unless the others go on without it.
    fn look_at(&mut self, rank: usize, signals: &Signals, failure: &mut Option<Failure>) -> Result<(), LaunchError> {
        let Some(status) = self.running[rank].reap()?.filter(|status| !status.success()) else { return Ok(()) };
        if self.running[rank].is_dismissed {
            return Ok(());
        }
        match failure {
            Some(failure) => failure.or(rank, status),
            None if !signals.end_was_asked() && self.go_on_without(rank, status)? => {}
            None => *failure = Some(Failure::new(rank, status)),
        }
        Ok(())
    }

    /// Names the rank that ends the run, once it is certain.
    fn name(&self, failure: &mut Failure) {
        let has_others = self.running.iter().any(|rank| rank.ended.is_none());
        if failure.is_named || (has_others && !failure.is_certain()) {
            return;
        }
        failure.is_named = true;
        let (code, how) = in_words(failure.status);
        if code != REFUSED {
            let then = if has_others { "ending the other ranks" } else { "no other rank is left" };
            self.say(&format!("{} ended with {how}; {then}", self.running[failure.rank].name()));
        }
    }

    /// Starts another process for a rank that was lost, if the others go on without it. Returns whether they do.
    fn go_on_without(&mut self, lost: usize, status: ExitStatus) -> Result<bool, LaunchError> {
        let has_ended_well = self.has_ended_well();
        let Some(groups) = self.groups.as_mut().filter(|groups| groups.go_on()) else { return Ok(false) };
        let others = self.running.iter().filter(|rank| rank.ended.is_none() && groups.has(rank.rank));
        if !was_killed(status) || has_ended_well || others.count() == 0 {
            return Ok(false);
        }

        let may_come_back = groups.lose(lost).map_err(LaunchError::Group)?;
        let (name, how, others) = (self.running[lost].name(), in_words(status).1, groups.in_words());
        self.running[lost].lines.drain(..).for_each(lines::Forwarder::finish);
        if may_come_back {
            let group = groups.replace(lost);
            self.say(&format!("{name} ended with {how}; it is started again, and the run continues with {others}"));
            self.running[lost] = self.start(lost, Some(group))?;
        } else {
            self.say(&format!(
                "{name} ended with {how}, once more soon after its start; the run continues with {others}"
            ));
        }
        Ok(true)
    }

    /// Takes ranks in that have come back, ends ranks that the others do not hear, and ranks that come too late.
    fn regroup(&mut self) -> Result<(), LaunchError> {
        let has_ended_well = self.has_ended_well();
        let Some(groups) = self.groups.as_mut().filter(|groups| groups.go_on()) else { return Ok(()) };
        if has_ended_well {
            for rank in self.running.iter_mut().filter(|rank| rank.ended.is_none() && !groups.has(rank.rank)) {
                rank.is_dismissed = true;
                rank.kill();
            }
            return Ok(());
        }
        let (come, missed) = (groups.welcome().map_err(LaunchError::Group)?, groups.missed());
        for rank in come {
            self.say(&format!("{} is back, and takes part after the next exchange", self.running[rank].name()));
        }
        missed.into_iter().for_each(|rank| self.running[rank].kill());
        Ok(())
    }

    /// Whether a rank has come to the end of the run.
    fn has_ended_well(&self) -> bool {
        self.running.iter().any(|rank| rank.ended.is_some_and(|status| status.success()))
    }

    fn say(&self, line: &str) {
        (self.show)(Stream::Err, line);
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
        self.running.iter_mut().filter(|rank| rank.ended.is_none()).for_each(Rank::kill);
    }
}

impl Drop for Ranks<'_> {
    fn drop(&mut self) {
        self.kill();
        for rank in self.running.iter_mut().filter(|rank| rank.ended.is_none()) {
            let _ = rank.child.wait();
        }
    }
}

/// Whether a signal has ended the process: nothing that it has said itself.
fn was_killed(status: ExitStatus) -> bool {
    in_words(status).0 > 128
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
