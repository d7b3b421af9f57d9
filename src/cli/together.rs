//! The other processes of a run: `--devices` starts them, or a launcher has done so.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::device::{DeviceChoice, n_gpus};
use crate::distributed::launch::numa::move_to_gpu;
use crate::distributed::launch::{Signals, Stream, launch};
use crate::distributed::{DeviceName, Launcher, Link, LinkError, World, parse_devices};

/// The training thread has so long to end by itself after another rank has failed. It may hang in the driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// What this process is.
pub(super) enum Role {
    /// It has started a process for each device, and all of them have ended.
    Launcher(ExitCode),
    /// It trains, alone or with the ranks at the other end of the link.
    Rank { link: Option<Link>, device: DeviceChoice },
}

/// Starts a process for each of the `devices`, if there are several and no launcher has started this process; otherwise
/// meets the other ranks. `device` is what `--device` asks for.
///
/// # Errors
/// If a device does not exist, if the launcher's variables make no sense, or if the other ranks do not come.
pub(super) fn begin(devices: Option<&str>, device: DeviceChoice) -> Result<Role> {
    let world = World::from_env(|name| env::var(name).ok())?;
    let Some(world) = world else {
        let devices = devices.map(|list| parse_devices(list, n_gpus())).transpose()?.unwrap_or_default();
        return match devices.as_slice() {
            [] => Ok(Role::Rank { link: None, device }),
            [one] => Ok(Role::Rank { link: None, device: choice_of(*one) }),
            many => {
                let program = env::current_exe().context("finding this program to start it for each device")?;
                let args: Vec<OsString> = env::args_os().skip(1).collect();
                let signals = Signals::listen().context("listening for Ctrl-C")?;
                let code = launch(many, &program, &args, &signals, Arc::new(show))?;
                Ok(Role::Launcher(ExitCode::from(code)))
            }
        };
    };

    let device = device_of(&world, device);
    if let (DeviceChoice::Cuda(index), false) = (device, world.launcher == Launcher::Kiln) {
        move_to_gpu(index); // Kiln's launcher has done so
    }
    let link = Link::connect(&world, &mut |line| eprintln!("{line}"))?;
    let rank = world.rank;
    link.on_failure(Box::new(move |error| end_after_failure(rank, error)));
    Ok(Role::Rank { device, link: Some(link) })
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
    // Rank 0's bar may stand in the last line of a terminal.
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    match stream {
        Stream::Out => println!("{line}"),
        Stream::Err => eprintln!("{clear}{line}"),
    }
}

/// Ends the process when the run has failed and the training thread does not notice. Rank 0 and the rank that has failed say
/// why.
fn end_after_failure(rank: usize, error: &LinkError) {
    thread::sleep(PATIENCE);
    if rank == 0 || error.rank() == Some(rank) {
        eprintln!("error: {error}");
    }
    std::process::exit(i32::from(crate::cli::exit::FAILED));
}
