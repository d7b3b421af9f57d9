//! The other processes of a command: `--devices` starts them, or a launcher has done so.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use kiln_metrics::logging::print::{over_line, stderr_line, stdout_line};
use kiln_ranks::launch::numa::move_to_gpu;
use kiln_ranks::launch::{Signals, Stream, launch};
use kiln_ranks::{DeviceName, DevicesError, Launcher, Link, LinkError, World, parse_devices, share_gpus};
use kiln_train::device::{DeviceChoice, n_gpus};

use super::config_args::DeviceArgs;
use super::error::Usage;
use super::exit::code_of;
use super::pool;

/// The working thread has so long to end by itself after another rank has failed. It may hang in the driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// What this process is.
pub(super) enum Role {
    /// It has started a process for each device, and all of them have ended.
    Launcher(ExitCode),
    /// It does the work, alone or with other ranks.
    Rank(Part),
}

/// This process's part of the work.
pub(super) struct Part {
    /// The connection to the other ranks, if there are any.
    pub(super) link: Option<Link>,
    /// Where this process computes.
    pub(super) device: DeviceChoice,
    /// The user sees rank 0's errors and this rank's on one screen.
    is_heard_with_first: bool,
}

impl Role {
    /// The thread is on its CPUs and begins to compute.
    fn rank(part: Part) -> Self {
        pool::join();
        Self::Rank(part)
    }
}

impl Part {
    fn alone(device: DeviceChoice) -> Self {
        Self { link: None, device, is_heard_with_first: false }
    }

    /// Returns whether this process writes files and speaks to the user.
    pub(super) fn is_first(&self) -> bool {
        self.link.as_ref().is_none_or(Link::is_first)
    }

    /// Returns the part that this process has after the loss of another one, if `error` is that loss and the run goes on
    /// (`train.lost_replicas`).
    ///
    /// # Errors
    /// If the ranks that are left do not meet.
    pub(super) fn after_loss(&self, error: &anyhow::Error) -> Result<Option<Self>> {
        let Some(link) = self.link.as_ref().filter(|link| link.survives()) else { return Ok(None) };
        let Some(loss) = of_link(error).filter(|error| error.is_loss()) else { return Ok(None) };
        let link = link.meet_again(loss, &mut |line| stderr_line!("{line}"))?;
        Ok(Some(Self { link: Some(link), ..*self }))
    }

    /// Ends the part with `result`. An error goes to the other ranks, too; rank 0 tells the user.
    pub(super) fn end(self, result: Result<()>) -> Result<ExitCode> {
        let Err(error) = result else { return Ok(ExitCode::SUCCESS) };
        let Some(link) = self.link else { return Err(error) };
        link.abort(&format!("{error:#}"));
        let is_told = self.is_heard_with_first && !of_link(&error).is_some_and(LinkError::has_lost_first);
        if is_told { Ok(ExitCode::from(code_of(&error))) } else { Err(error) }
    }
}

/// Returns the failure of the link among the causes of an error, if it is one.
fn of_link(error: &anyhow::Error) -> Option<&LinkError> {
    error.chain().find_map(|cause| cause.downcast_ref::<LinkError>())
}

/// The device to compute on, or several.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Several devices, with a process for each: GPU numbers (0,1), all, or cpu,cpu to try it out
    #[arg(long, value_name = "LIST", conflicts_with = "device")]
    devices: Option<String>,
}

impl DevicesArgs {
    /// Returns the value of `--devices`.
    pub(super) fn list(&self) -> Option<&str> {
        self.devices.as_deref()
    }

    /// Starts this program with `args`, once for each device, and returns the exit code of all.
    ///
    /// # Errors
    /// If a device does not exist or a process cannot be started; and if another launcher has started this process.
    pub(super) fn start(&self, args: &[OsString], signals: &Signals) -> Result<u8> {
        if World::from_env(|name| env::var(name).ok())?.is_some() {
            let text = "--restarts is for a run that this command starts; here, a launcher starts the ranks: let it start them again";
            return Err(Usage(text.into()).into());
        }
        match named(self.list())?.as_slice() {
            [] => start(&[DeviceName::Cpu], args, signals), // the process chooses its device by itself
            devices => start(devices, args, signals),
        }
    }

    /// Starts or meets the other processes, see [`begin`].
    pub(super) fn begin(&self) -> Result<Role> {
        begin(self.list(), self.device.choice())
    }
}

/// Starts a process for each of the `devices`, if there are several and no launcher has started this process; otherwise
/// meets the other ranks. `device` is what `--device` asks for.
///
/// # Errors
/// If a device does not exist, if the launcher's variables make no sense, or if the other ranks do not come.
pub(super) fn begin(devices: Option<&str>, device: DeviceChoice) -> Result<Role> {
    let world = World::from_env(|name| env::var(name).ok())?;
    let Some(world) = world else {
        let devices = named(devices)?;
        return match devices.as_slice() {
            [] => Ok(Role::rank(Part::alone(device))),
            [one] => Ok(Role::rank(Part::alone(choice_of(*one)))),
            many => {
                let args: Vec<OsString> = env::args_os().skip(1).collect();
                let signals = Signals::listen().context("listening for Ctrl-C")?;
                Ok(Role::Launcher(ExitCode::from(start(many, &args, &signals)?)))
            }
        };
    };

    let device = device_of(&world, device);
    if let (DeviceChoice::Cuda(index), false) = (device, world.launcher == Launcher::Kiln) {
        move_to_gpu(index); // Kiln's launcher has done so
    }
    let link = Link::connect(&world, &mut |line| stderr_line!("{line}"))?;
    let rank = world.rank;
    link.on_failure(Box::new(move |error| end_after_failure(rank, error)));
    let is_heard_with_first = rank > 0 && world.launcher == Launcher::Kiln;
    Ok(Role::rank(Part { link: Some(link), device, is_heard_with_first }))
}

/// Returns the devices of `--devices`.
fn named(list: Option<&str>) -> Result<Vec<DeviceName>, DevicesError> {
    list.map_or(Ok(Vec::new()), |list| parse_devices(list, n_gpus(), share_gpus()))
}

/// Starts this program once for each device, and returns the exit code of all.
fn start(devices: &[DeviceName], args: &[OsString], signals: &Signals) -> Result<u8> {
    let program = env::current_exe().context("finding this program to start it for each device")?;
    Ok(launch(devices, &program, args, signals, Arc::new(show))?)
}

fn choice_of(device: DeviceName) -> DeviceChoice {
    match device {
        DeviceName::Cpu => DeviceChoice::Cpu,
        DeviceName::Cuda(index) => DeviceChoice::Cuda(index),
    }
}

/// Returns the device of a rank: Kiln's launcher names it, others number the ranks of a machine. A launcher may also show
/// each rank a GPU of its own, which is then number 0.
fn device_of(world: &World, asked: DeviceChoice) -> DeviceChoice {
    match (world.launcher, world.device) {
        (Launcher::Kiln, Some(device)) => choice_of(device),
        _ if asked != DeviceChoice::Auto => asked,
        _ => match n_gpus() {
            0 => DeviceChoice::Cpu,
            n => DeviceChoice::Cuda(world.local_rank % n),
        },
    }
}

/// Shows a line of another rank, or of the launcher.
fn show(stream: Stream, line: &str) {
    match stream {
        Stream::Out => stdout_line!("{line}"),
        // Rank 0's bar may stand in the last line of a terminal.
        Stream::Err => over_line(&format!("{line}\n")),
    }
}

/// Ends the process when the run has failed and the working thread does not notice. Rank 0 and the rank that has failed say
/// why.
fn end_after_failure(rank: usize, error: &LinkError) {
    thread::sleep(PATIENCE);
    if rank == 0 || error.rank() == Some(rank) {
        stderr_line!("error: {error}");
    }
    std::process::exit(i32::from(crate::cli::exit::FAILED));
}
