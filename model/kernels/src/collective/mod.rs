//! Collectives: operations in which every rank of a training run takes part, on CUDA devices through NCCL.
//!
//! A [`Communicator`] is one rank's end. Its operations are operators of the backend, so they run in order with the
//! kernels that write their inputs and read their results. They return at once; the device waits for the other ranks.
//! While an operation connects the ranks for the first time, its device takes no other work.
//! All ranks must call the same operations in the same order. The backend does not compute a result that is dropped
//! before the device is flushed ([`Device::flush`]): the other ranks would wait for that operation.
//!
//! # Exact results
//!
//! NCCL only moves numbers here: `ncclSend`, `ncclRecv`, `ncclBroadcast` and `ncclAllGather`, which copy bytes (NCCL's
//! user guide, "Point-to-point communication" and "Collective Operations"). It never adds, so neither the algorithm that
//! NCCL chooses nor the links between the GPUs can change a result. Sums over ranks are up to the caller, who receives
//! the terms in the order of the ranks.
//!
//! # Failures
//!
//! NCCL does not notice that a rank has ended: the others wait for ever. A thread that learns of a failure calls
//! [`Communicator::abort`], which ends all pending operations. An operation that fails leaves its result unreadable and
//! its reason in [`Communicator::check`]; all later operations of the communicator fail, too.
//!
//! # CUDA graphs
//!
//! Operations cannot be recorded by [`capture`](crate::capture::capture()), which fails if it meets one. The first
//! operation of each kind connects the ranks and allocates memory, which disturbs a recording on another thread of the
//! process: make it before the first recording.

#[cfg(not(feature = "cuda"))]
mod absent;
mod error;
#[cfg(feature = "cuda")]
mod functions;
#[cfg(feature = "cuda")]
mod gpu;
mod library;
mod ops;
#[cfg(any(test, feature = "cuda"))]
mod search;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

#[cfg(not(feature = "cuda"))]
use absent::Link;
use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};
pub use error::NcclError;
#[cfg(feature = "cuda")]
use gpu::Link;
pub use library::NcclLibrary;
use ops::RankOps;

/// Identifies a communicator. One rank makes it, and all ranks join with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(
    /// The address at which NCCL's ranks meet.
    pub [u8; 128],
);

impl UniqueId {
    /// Makes a new one. This process then listens on a TCP port, until all ranks have joined: it must live so long.
    ///
    /// # Errors
    /// If NCCL is missing or finds no network interface.
    pub fn new() -> Result<Self, NcclError> {
        let library = NcclLibrary::open()?;
        Link::unique_id(library).map(Self)
    }
}

/// The device's time of one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveTime {
    /// `"exchange"` or `"all_gather"`
    pub what: &'static str,
    /// Bytes received from other ranks.
    pub bytes: u64,
    /// Milliseconds from the device's arrival at the operation to its end, the wait for slower ranks included.
    pub ms: f32,
}

/// This rank's end of a communicator, on one GPU. A clone is the same end.
///
/// NCCL's memory stays allocated until the process ends, even if all clones are dropped: to free it, NCCL would wait
/// for the other ranks. A rank that ends early can lose what it has sent. Let all ranks read their results and then wait
/// for each other before one of them ends.
#[derive(Clone)]
pub struct Communicator {
    link: Arc<Link>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .finish_non_exhaustive()
    }
}

impl Communicator {
    /// Joins the communicator `id` as `rank` of `world_size`. Blocks until all ranks have called it, and five minutes at
    /// most. Each rank needs a GPU of its own.
    ///
    /// # Errors
    /// If NCCL is missing or fails, `device` is not a CUDA device, `rank` does not exist, or a rank does not join.
    pub fn join(id: &UniqueId, rank: usize, world_size: usize, device: &Device) -> Result<Self, NcclError> {
        let library = NcclLibrary::open()?;
        if rank >= world_size {
            return Err(NcclError::NoSuchRank { rank, world_size });
        }
        let link = Link::join(library, id, rank, world_size, &device.clone().inner())?;
        Ok(Self { link: Arc::new(link) })
    }

    /// Returns the number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.link.rank()
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.link.world_size()
    }

    /// Sends the elements `bounds[p]..bounds[p + 1]` of `values` to rank p, for all p. Returns what the ranks have sent
    /// to this one, in the order of the ranks.
    ///
    /// # Shapes
    /// - `values`: `[n]`, any float dtype
    /// - result: `[world_size * own]` in the same dtype, where `own` is `bounds[rank + 1] - bounds[rank]`
    ///
    /// # Panics
    /// If `bounds` does not have an ascending bound for the beginning of each rank and one for the end, within `values`,
    /// or `values` lies on another device. All ranks must give the same bounds and dtype.
    pub fn exchange(&self, values: Tensor<1>, bounds: &[usize]) -> Tensor<1> {
        self.assert_fit(&values, bounds);
        let bounds = bounds.to_vec();
        Tensor::from_dispatch(Dispatch::rank_exchange(values.into_dispatch(), self.clone(), bounds))
    }

    /// Sends the elements `bounds[rank]..bounds[rank + 1]` of `full` to all others, and receives the other ranks' slices
    /// at their places. Elements outside the bounds stay. Slices of equal length take one operation of NCCL, others one
    /// each.
    ///
    /// This writes to the buffer of `full` and returns it, so clones and views of `full` show the other ranks' numbers.
    /// The backend's lazy queue does not know that they change: flush the device ([`Device::flush`]) before anything
    /// reads them again.
    ///
    /// # Shapes
    /// - `full`, result: `[n]`, any float dtype
    ///
    /// # Panics
    /// As for [`Self::exchange`].
    pub fn all_gather(&self, full: Tensor<1>, bounds: &[usize]) -> Tensor<1> {
        self.assert_fit(&full, bounds);
        Tensor::from_dispatch(Dispatch::rank_all_gather(full.into_dispatch(), self.clone(), bounds.to_vec()))
    }

    /// Returns the first failure of an operation or of the connections, without waiting for the device. Any thread may
    /// call it.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&self) -> Result<(), NcclError> {
        self.link.check()
    }

    /// Ends all pending operations of this rank; their results are undefined. Later operations fail. Any thread may
    /// call it, and more than once. Call it from a thread that does not wait for the device.
    pub fn abort(&self) {
        self.link.abort();
    }

    /// Takes the times of the operations that have ended and were not taken before, oldest first, without waiting for
    /// the device. The last operations follow with a later call. Times that nobody takes are dropped, the oldest first.
    pub fn take_timings(&self) -> Vec<CollectiveTime> {
        Link::take_timings(&self.link)
    }

    fn assert_fit(&self, values: &Tensor<1>, bounds: &[usize]) {
        assert_bounds(bounds, self.world_size(), values.dims()[0]);
        assert_eq!(&values.device(), self.link.device(), "the communicator belongs to another device");
    }
}

/// Panics unless `bounds` are the ascending bounds of `world_size` slices of `n` elements.
fn assert_bounds(bounds: &[usize], world_size: usize, n: usize) {
    assert_eq!(bounds.len(), world_size + 1, "a bound for the beginning of each rank's slice, and one for the end");
    assert!(bounds.is_sorted(), "bounds of slices that do not ascend: {bounds:?}");
    assert!(bounds[world_size] <= n, "bounds beyond the {n} elements: {bounds:?}");
}
