//! A rank's connection to the others: the communicator of NCCL and the thread of its device.

pub(super) mod add;
mod clock;
mod device_thread;
mod operation;
mod side_queue;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clock::Clock;
use cubecl::device_handle::DeviceHandle;
use cudarc::driver::result as cuda;

use super::functions::Comm;
use super::{CollectiveTime, NcclError, NcclLibrary, UniqueId};
use crate::device_queue::{Server, make_current, server_of};

/// How long a rank waits for the others to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a thread that waits for NCCL yields before it sleeps: longer than NCCL usually takes to launch a kernel.
const YIELDING: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

/// A connection.
///
/// NCCL's communicator does not block: each call returns at once, and the caller asks for its outcome. Only so can
/// another thread abort it at any time (NCCL's user guide, "Fault Tolerance").
pub(super) struct Link {
    library: &'static NcclLibrary,
    device: Device,
    server: DeviceHandle<Server>,
    rank: usize,
    world_size: usize,
    /// Held during each call of NCCL; `None` after an abort.
    comm: Mutex<Option<Comm>>,
    /// The first failure.
    failure: Mutex<Option<NcclError>>,
    clock: Mutex<Clock>,
    side_queue: Mutex<side_queue::Queue>,
}

impl Link {
    pub(super) fn unique_id(library: &NcclLibrary) -> Result<[u8; 128], NcclError> {
        library.functions.unique_id()
    }

    pub(super) fn join(
        library: &'static NcclLibrary,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
        device: &Device,
    ) -> Result<Self, NcclError> {
        let Some((server, index)) = server_of(device) else {
            return Err(NcclError::NotCuda { device: format!("{:?}", device.as_dispatch()) });
        };
        let UniqueId(id) = *id;

        // NCCL takes the device whose context is current on the calling thread.
        let begin = move |_: &mut Server| {
            make_current(index).map_err(|error| device_error("opening the CUDA device", error))?;
            library.functions.join(&id, rank, world_size)
        };
        let comm =
            server.submit_blocking(begin).map_err(|error| device_error("joining on the device's thread", error))??;

        let (device, comm) = (device.clone(), Mutex::new(Some(comm)));
        let (failure, clock, side_queue) = (Mutex::default(), Mutex::default(), Mutex::default());
        let link = Self { library, device, server, rank, world_size, comm, failure, clock, side_queue };
        match link.wait("ncclCommInitRankConfig", Some(JOIN_TIMEOUT)) {
            Ok(()) => Ok(link),
            Err(error) => {
                link.abort();
                Err(error)
            }
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn check(&self) -> Result<(), NcclError> {
        if let Some(failure) = &*lock(&self.failure) {
            return Err(failure.clone());
        }
        let state = match *lock(&self.comm) {
            Some(comm) => self.library.functions.is_ready(comm, "operation"),
            None => Err(NcclError::Aborted),
        };
        state.map(|_| ()).inspect_err(|error| self.fail(error))
    }

    pub(super) fn abort(&self) {
        // Whoever waits for NCCL sees that the communicator is gone, and nobody calls NCCL with it any more.
        let comm = lock(&self.comm).take();
        if let Some(comm) = comm {
            self.fail(&NcclError::Aborted);
            self.library.functions.abort(comm);
        }
    }

    pub(super) fn take_timings(link: &Arc<Self>) -> Vec<CollectiveTime> {
        let done = lock(&link.clock).take();
        // Events belong to the device's thread.
        let collected = link.clone();
        link.server.submit(move |_| lock(&collected.clock).collect());
        link.server.flush_queue();
        done
    }

    /// Keeps the first failure.
    fn fail(&self, error: &NcclError) {
        lock(&self.failure).get_or_insert_with(|| error.clone());
    }

    /// Enqueues `operations` as one and waits until NCCL has launched them.
    fn grouped(
        &self,
        what: &'static str,
        operations: impl FnOnce(Comm) -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let guard = lock(&self.comm);
        let comm = guard.ok_or(NcclError::Aborted)?;
        self.library.functions.group(|| operations(comm))?;
        drop(guard);

        self.wait(what, None)
    }

    /// Waits until the host's part of all calls is done. `what` names them in errors.
    fn wait(&self, what: &'static str, patience: Option<Duration>) -> Result<(), NcclError> {
        let start = Instant::now();
        loop {
            let comm = lock(&self.comm);
            if self.library.functions.is_ready(comm.ok_or(NcclError::Aborted)?, what)? {
                return Ok(());
            }
            drop(comm);

            let waited = start.elapsed();
            if patience.is_some_and(|patience| waited > patience) {
                let (rank, world_size) = (self.rank, self.world_size);
                return Err(NcclError::NotJoined { rank, world_size, secs: waited.as_secs() });
            }
            if waited < YIELDING { thread::yield_now() } else { thread::sleep(NAP) }
        }
    }
}

/// Keeps the first line: CubeCL's errors come with pages of backtraces.
fn device_error(what: &'static str, error: impl std::fmt::Debug) -> NcclError {
    let text = format!("{error:?}");
    NcclError::Device { what, reason: text.lines().next().unwrap_or_default().to_owned() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
