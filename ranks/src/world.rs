//! The processes of a run, called ranks, as a launcher describes them in environment variables.

mod read;
mod slurm;

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use self::read::Reader;
use super::devices::DeviceName;
use super::limits::{Limits, Phase};
use super::members::{Group, Members};

/// The port of PyTorch's launchers, for launchers that name none.
const DEFAULT_PORT: u16 = 29500;
/// The variable by which Kiln's launcher names the folder of [`Members`].
pub(crate) const MEMBERS: &str = "KILN_MEMBERS";
/// The variable by which Kiln's launcher tells a process that it replaces a rank which this group and the next ones lack.
pub(crate) const GROUP: &str = "KILN_GROUP";

/// The place of this process among the ranks of a run.
#[derive(Clone)]
pub struct World {
    /// This process: `0..size`.
    pub rank: usize,
    /// Number of processes.
    pub(crate) size: usize,
    /// This process among the ranks of its machine: `0..local_size`.
    pub local_rank: usize,
    /// Number of processes on this machine.
    pub(crate) local_size: usize,
    /// Host and port where rank 0 listens.
    pub master: (String, u16),
    /// The program whose variables were read.
    pub launcher: Launcher,
    /// How often the launcher has started this run again.
    pub(crate) restart: u32,
    /// The device that Kiln's launcher gave to this process.
    pub device: Option<DeviceName>,
    /// How long a rank may stay in a phase without advancing.
    pub limits: Limits,
    /// Known to the ranks of this run only.
    pub(super) secret: Secret,
    /// The secret is random or was set for this run, so that nobody can guess it from what the launcher shows.
    pub(super) is_secret: bool,
    /// The process of Kiln's launcher: its end is the end of the run.
    pub(super) launcher_pid: Option<u32>,
    /// The ranks of the run, as Kiln's launcher has numbered them; more than [`Self::size`] after some were lost.
    pub(super) numbers: Numbers,
    /// Where Kiln's launcher publishes the ranks that train together.
    pub(super) members: Option<Members>,
}

/// Numbers that stay the same when ranks are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers {
    /// This process's own.
    pub(super) own: usize,
    /// The numbers of the ranks, by rank.
    pub(super) of_ranks: Vec<usize>,
    /// Ranks that the run was started with.
    pub(super) planned: usize,
    /// The group of ranks that trains together, counted from 0.
    pub(super) group: u32,
    /// This process replaces one that was lost, and is in no group yet.
    pub(super) replaces: bool,
}

/// The programs that start the ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// PyTorch's `torchrun`, and everything that sets its variables.
    Torchrun,
    /// `srun`.
    Slurm,
    /// `mpirun` of Open MPI, MPICH and Intel MPI.
    Mpi,
    /// `kiln train --devices`.
    Kiln,
}

/// Bytes that the ranks of a run share. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Secret(pub(super) Vec<u8>);

/// Why the environment does not describe a world.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorldError {
    /// The launcher's variables are incomplete.
    #[error("{found} is set, as {launcher} does, but {missing} is not; {remedy}")]
    Missing {
        /// The launcher that was recognized.
        launcher: Launcher,
        /// The variable that was found, with its value.
        found: String,
        /// The variable that is needed.
        missing: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A variable holds no number, or one that is too large.
    #[error("{variable} is {value:?}, but it must be {wanted}")]
    Value {
        /// The variable.
        variable: String,
        /// What it holds.
        value: String,
        /// What it may hold.
        wanted: String,
    },
}

impl World {
    /// Reads the world from environment variables; `var` returns their values. `None`: one process.
    ///
    /// Kiln's own variables win, then the variables of `torchrun`, MPI and Slurm, because a launcher may run inside another.
    ///
    /// # Errors
    /// If a variable is missing or holds a wrong value.
    pub fn from_env(var: impl Fn(&str) -> Option<String>) -> Result<Option<World>, WorldError> {
        let read = Reader::new(&var);
        let found = if read.has("KILN_RANK") {
            Some(of_kiln(&read)?)
        } else if read.has("WORLD_SIZE") {
            of_torchrun(&read)?
        } else if read.has("OMPI_COMM_WORLD_SIZE") || read.has("MPI_LOCALNRANKS") {
            of_mpi(&read)?
        } else if slurm::is_step(&read) {
            slurm::world(&read)? // sets PMI_SIZE too, with some of its plugins
        } else if read.has("PMI_SIZE") {
            of_mpi(&read)?
        } else {
            None
        };
        let Some(mut world) = found else { return Ok(None) };

        if let Some(port) = read.port("KILN_MASTER_PORT")? {
            world.master.1 = port;
        }
        if let Some(secret) = read.text("KILN_SECRET") {
            world.secret = Secret(secret.into_bytes());
            world.is_secret = true;
        }
        world.limits = limits(&read)?;
        if world.launcher != Launcher::Kiln {
            world.numbers = Numbers::first(world.rank, world.size);
        }
        Ok(Some(world))
    }

    /// The worlds of `size` ranks in one process or on one machine, over loopback, without a secret.
    pub fn on_loopback(size: usize, port: u16) -> Vec<World> {
        let of = |rank| {
            let plain = World::plain(Launcher::Kiln, port);
            World { rank, size, local_rank: rank, local_size: size, numbers: Numbers::first(rank, size), ..plain }
        };
        (0..size).map(of).collect()
    }

    /// Whether all ranks run on this machine.
    pub fn is_one_machine(&self) -> bool {
        self.local_size == self.size
    }

    /// Replaces the secret of the run.
    pub fn with_secret(mut self, secret: &str) -> Self {
        self.secret = Secret(secret.as_bytes().to_vec());
        self.is_secret = true;
        self
    }

    /// Whether Kiln's launcher started this process and has ended since.
    pub(super) fn launcher_is_gone(&self) -> bool {
        #[cfg(unix)]
        return self.launcher_pid.is_some_and(|pid| std::os::unix::process::parent_id() != pid);
        #[cfg(not(unix))]
        false
    }

    /// Returns whether Kiln's launcher has formed another group since.
    pub(super) fn is_superseded(&self) -> bool {
        self.newest_group().is_some_and(|group| group.number > self.numbers.group)
    }

    fn newest_group(&self) -> Option<Group> {
        self.members.as_ref()?.newest()
    }

    /// Returns this process's world in the newest group, if that has this process and is another one than before.
    pub(super) fn next(&self) -> Option<World> {
        let group = self.newest_group().filter(|group| group.number > self.numbers.group)?;
        let rank = group.ranks.iter().position(|number| *number == self.numbers.own)?;
        let size = group.ranks.len();
        let numbers = Numbers { of_ranks: group.ranks, group: group.number, replaces: false, ..self.numbers.clone() };
        let master = (self.master.0.clone(), group.port);
        Some(World { rank, size, local_rank: rank, local_size: size, master, numbers, ..self.clone() })
    }

    /// One rank on loopback.
    fn plain(launcher: Launcher, port: u16) -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: 0,
            local_size: 1,
            master: ("127.0.0.1".into(), port),
            launcher,
            restart: 0,
            device: None,
            limits: Limits::default(),
            secret: Secret::default(),
            is_secret: false,
            launcher_pid: None,
            numbers: Numbers::first(0, 1),
            members: None,
        }
    }
}

impl Numbers {
    /// The numbers of a run that begins.
    fn first(own: usize, size: usize) -> Self {
        Self { own, of_ranks: (0..size).collect(), planned: size, group: 0, replaces: false }
    }
}

/// Reads the limits that variables replace.
fn limits(read: &Reader) -> Result<Limits, WorldError> {
    let mut limits = Limits::default();
    for phase in Phase::ALL {
        match read.number(phase.variable())? {
            None => {}
            Some(secs @ 1..=604_800) => limits.set(phase, Duration::from_secs(secs)),
            Some(secs) => {
                return Err(WorldError::Value {
                    variable: phase.variable().into(),
                    value: secs.to_string(),
                    wanted: "seconds, 1 to 604800 (a week)".into(),
                });
            }
        }
    }
    Ok(limits)
}

/// Reads the variables of Kiln's own launcher, which sets all of them.
fn of_kiln(read: &Reader) -> Result<World, WorldError> {
    let wanted = |name| read.wanted(name, Launcher::Kiln, "KILN_RANK", "`kiln train --devices` sets all of them");
    let size = read.size("KILN_WORLD_SIZE", wanted("KILN_WORLD_SIZE")?)?;
    let rank = read.below("KILN_RANK", wanted("KILN_RANK")?, size, "KILN_WORLD_SIZE")?;
    let device = match read.text("KILN_DEVICE") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| WorldError::Value {
            variable: "KILN_DEVICE".into(),
            value: text,
            wanted: "`cpu` or `cuda:` and a number".into(),
        })?),
    };
    let port = read.port("KILN_MASTER_PORT")?.unwrap_or(DEFAULT_PORT);
    let launcher_pid = read.number("KILN_LAUNCHER_PID")?.and_then(|pid| u32::try_from(pid).ok());
    let members = read.text(MEMBERS).map(|dir| Members::in_folder(dir.into()));
    let group = read.number(GROUP)?.and_then(|group| u32::try_from(group).ok());
    let numbers = Numbers { group: group.unwrap_or(0), replaces: group.is_some(), ..Numbers::first(rank, size) };
    let plain = World::plain(Launcher::Kiln, port);
    Ok(World { rank, size, local_rank: rank, local_size: size, device, launcher_pid, numbers, members, ..plain })
}

/// Reads the variables of `torchrun`, which Kubernetes' training operator and cloud launchers set too.
fn of_torchrun(read: &Reader) -> Result<Option<World>, WorldError> {
    let launcher = Launcher::Torchrun;
    let remedy = "start every process with `torchrun --no-python -- kiln ...`, or unset WORLD_SIZE";
    let wanted = |name| read.wanted(name, launcher, "WORLD_SIZE", remedy);
    let size = read.size("WORLD_SIZE", wanted("WORLD_SIZE")?)?;
    if size == 1 {
        return Ok(None);
    }

    // Launchers that start one process per machine leave the local variables out.
    let rank = read.below("RANK", wanted("RANK")?, size, "WORLD_SIZE")?;
    let (local_rank, local_size) = if read.has("LOCAL_RANK") || read.has("LOCAL_WORLD_SIZE") {
        let local_size = read.below("LOCAL_WORLD_SIZE", wanted("LOCAL_WORLD_SIZE")?, size + 1, "WORLD_SIZE + 1")?;
        (read.below("LOCAL_RANK", wanted("LOCAL_RANK")?, local_size, "LOCAL_WORLD_SIZE")?, local_size)
    } else {
        (0, 1)
    };

    let port = match read.port("MASTER_PORT")? {
        None if local_size == size => DEFAULT_PORT,
        None => return Err(read.missing("MASTER_PORT", launcher, "WORLD_SIZE", remedy)),
        Some(port) => port,
    };
    // The agent's own store listens on MASTER_PORT.
    let is_taken = read.has("TORCHELASTIC_RUN_ID") || read.has("TORCHELASTIC_USE_AGENT_STORE");
    let port = if is_taken { port.checked_add(1).unwrap_or(port - 1) } else { port };

    let master = if local_size == size { "127.0.0.1".into() } else { wanted("MASTER_ADDR")? };
    let restart = read.number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0) as u32;
    let secret = Secret(read.text("TORCHELASTIC_RUN_ID").unwrap_or_default().into_bytes());
    let plain = World::plain(launcher, port);
    Ok(Some(World { rank, size, local_rank, local_size, master: (master, port), restart, secret, ..plain }))
}

/// Reads the variables of Open MPI, or of MPICH and Intel MPI.
fn of_mpi(read: &Reader) -> Result<Option<World>, WorldError> {
    let launcher = Launcher::Mpi;
    let [size_name, rank_name, local_size_name, local_rank_name] = if read.has("OMPI_COMM_WORLD_SIZE") {
        ["SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK"].map(|name| format!("OMPI_COMM_WORLD_{name}"))
    } else {
        ["PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"].map(str::to_owned)
    };
    let remedy = "start every process with `mpirun`, and pass MASTER_ADDR on with `-x MASTER_ADDR=<host of rank 0>`";
    let wanted = |name: &str| read.wanted(name, launcher, &size_name, remedy);
    let size = read.size(&size_name, wanted(&size_name)?)?;
    if size == 1 {
        return Ok(None);
    }

    let rank = read.below(&rank_name, wanted(&rank_name)?, size, &size_name)?;
    let above = format!("{size_name} + 1");
    let local_size = read.below(&local_size_name, wanted(&local_size_name)?, size + 1, &above)?;
    let local_rank = read.below(&local_rank_name, wanted(&local_rank_name)?, local_size, &local_size_name)?;

    // Two runs on one machine get two ports.
    let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_FD"].iter().find_map(|name| read.text(name));
    let port = match (read.port("MASTER_PORT")?, job) {
        (Some(port), _) => port,
        (None, Some(job)) if local_size == size => read::port_of(job.as_bytes()),
        (None, _) => DEFAULT_PORT,
    };
    let master = if local_size == size { "127.0.0.1".into() } else { wanted("MASTER_ADDR")? };
    let plain = World::plain(launcher, port);
    Ok(Some(World { rank, size, local_rank, local_size, master: (master, port), ..plain }))
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
            Self::Mpi => "MPI",
            Self::Kiln => "`kiln train --devices`",
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("local_rank", &self.local_rank)
            .field("local_size", &self.local_size)
            .field("master", &self.master)
            .field("launcher", &self.launcher)
            .field("restart", &self.restart)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
