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
mod slice;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

#[cfg(not(feature = "cuda"))]
use absent::Link;
use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};
pub use error::NcclError;
#[cfg(feature = "cuda")]
use gpu::Link;
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::add::tests::offline_kernels;
pub use library::NcclLibrary;
use ops::{RankOps, ShardedStep};
pub use slice::Slice;

use crate::optim::{AdamWHyper, AdamWState, Flat, StepNumbers};

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
    /// Bytes of the pieces in which slices travel; `None` lets the kernels choose.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "slices travel on GPUs alone"))]
    piece_bytes: Option<NonZeroUsize>,
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
        Ok(Self { link: Arc::new(link), piece_bytes: None })
    }

    /// Lets slices travel in pieces of at most `bytes` in [`Self::add_up`] and [`Self::adamw_step`]; `None` lets the kernels choose. All
    /// ranks must give the same. The results do not depend on it.
    pub fn in_pieces_of(self, bytes: Option<NonZeroUsize>) -> Self {
        Self { piece_bytes: bytes, ..self }
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

    /// Adds up the ranks' gradients of this rank's slice, in f32 and in the order of the ranks. The slices travel in pieces, on a queue
    /// of their own, and each piece is added up while the next arrives.
    ///
    /// The result has the bits of [`gather`](crate::optim::gather) with the ranks' slices one after the other.
    ///
    /// # Shapes
    /// - `values`: `[n]`, any float dtype: this rank's gradients of all slices
    /// - result: `[slice]`, f32, with the sums of squares of the slice's chunks
    ///
    /// # Panics
    /// As for [`Self::exchange`], with the bounds of `slice`; or if `slice` is not this rank's.
    pub fn add_up(&self, values: Tensor<1>, slice: &Slice) -> Flat {
        self.assert_fit(&values, slice.layout.bounds());
        assert_eq!(slice.layout.rank(), self.rank(), "another rank's slice");
        let (values, table) = (values.into_dispatch(), slice.table.clone().into_dispatch());
        let (sum, squares) = Dispatch::rank_add_up(values, table, self.clone(), slice.layout.clone());
        Flat::new(Tensor::from_dispatch(sum), Tensor::from_dispatch(squares))
    }

    /// Makes an AdamW step of this rank's slice, as [`adamw_step`](crate::optim::adamw_step) does, and brings in the weights of the
    /// other ranks. A piece of the slice travels while the next is updated.
    ///
    /// Every buffer of `state` and of `all` is overwritten, even if a clone or a view of it exists. Flush the device
    /// ([`Device::flush`]) before anything reads them again.
    ///
    /// # Shapes
    /// - `state`, `gradient`: `[slice]`; the weights of `state` are a view of `all` at `bounds[rank]`
    /// - `all`: `[n]`, the weights of all ranks
    ///
    /// # Panics
    /// As for [`Self::exchange`]; or if state or gradient do not have the length of the slice, or the state has no weights of its own.
    pub fn adamw_step(
        &self,
        state: AdamWState,
        all: Tensor<1>,
        gradient: Flat,
        numbers: &StepNumbers,
        hyper: &AdamWHyper,
        bounds: &[usize],
    ) -> (AdamWState, Tensor<1>) {
        self.assert_fit(&all, bounds);
        let len = bounds[self.rank() + 1] - bounds[self.rank()];
        assert_eq!([state.master.dims(), gradient.values.dims()], [[len]; 2], "state and gradient of the slice");
        assert!(state.weights.is_some(), "weights that are a view of all weights");

        let AdamWState { master, m, v, weights } = state;
        let [master, m, v] = [master, m, v].map(Tensor::into_dispatch);
        let [all, gradient, numbers] = [all, gradient.values, numbers.values.clone()].map(Tensor::into_dispatch);
        let step = ShardedStep { communicator: self.clone(), bounds: bounds.to_vec(), factors: (*hyper).into() };
        let (master, m, v, all) = Dispatch::rank_adamw_step(master, m, v, all, gradient, numbers, step);
        let [master, m, v, all] = [master, m, v, all].map(Tensor::from_dispatch);
        (AdamWState { master, m, v, weights }, all)
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
