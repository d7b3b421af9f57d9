//! The operators on CUDA devices: calls of NCCL on the device's thread, on the stream of its kernels or on a second queue.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::server::BufferBinding;
use cubecl_environment::stream::StreamId;
use cubecl_server::server::ServerStorage;
use cubecl_server::stream::{FailureStore, WriteScoped};
use cudarc::driver::sys::CUstream;

use super::add::{self, Terms};
use super::device_thread::{compute_queue, refuse_recording, submit};
use super::side_queue::{Piece, Transfer};
use super::{Link, Server, cuda, device_error, lock};
use crate::collective::functions::Span;
use crate::collective::ops::{RankOps, ShardedStep, received};
use crate::collective::slice::{SliceLayout, pieces};
use crate::collective::{Communicator, NcclError};
use crate::gpu::memory::empty;
use crate::optim::{Factors, launch_step, part_of};

/// Ranks that send their slices to each other directly. More of them pass the slices on, so that each crosses a link between machines
/// once.
const DIRECT_RANKS: usize = 8;

impl RankOps for CubeBackend {
    fn rank_exchange(values: CubeTensor, communicator: Communicator, bounds: Vec<usize>) -> CubeTensor {
        let values = into_contiguous(values);
        let result = empty(&values, [received(&communicator, &bounds)], values.dtype);
        Operation::new(Kind::Exchange, &values, &result, &bounds).submit(&communicator.link);
        result
    }

    fn rank_all_gather(full: CubeTensor, communicator: Communicator, bounds: Vec<usize>) -> CubeTensor {
        assert!(full.is_contiguous(), "only a contiguous tensor can be gathered in place");
        Operation::new(Kind::AllGather, &full, &full, &bounds).submit(&communicator.link);
        full
    }

    fn rank_add_up(
        values: CubeTensor,
        table: CubeTensor,
        communicator: Communicator,
        layout: Arc<SliceLayout>,
    ) -> (CubeTensor, CubeTensor) {
        let (own, table) = (into_contiguous(values), into_contiguous(table));
        let (rank, link, size) = (layout.rank(), &communicator.link, own.dtype.size());
        let received = empty(&own, [(communicator.world_size() - 1) * layout.len()], own.dtype);
        let sum = empty(&own, [layout.len()], DType::F32);
        let squares = empty(&own, [layout.n_chunks()], DType::F32);

        let turns = pieces(layout.bounds(), size, communicator.piece_bytes);
        let exchanged = turns.iter().map(|turn| exchanged(turn, &layout, size)).collect();
        let exchange = Transfer::exchange(&own, &received, exchanged);
        for turn in 0..turns.len() {
            exchange.begin(link, turn);
        }

        let terms = Terms { own: &own, received: &received, table: &table, sum: &sum, squares: &squares };
        let from_start = |at: usize| at - layout.bounds()[rank];
        for (turn, of_ranks) in turns.iter().enumerate() {
            exchange.join(link, turn);
            let arrived = from_start(of_ranks[rank].start)..from_start(of_ranks[rank].end);
            for run in layout.runs(arrived, 16 / size) {
                add::launch(&terms, &layout, run);
            }
        }
        (sum, squares)
    }

    fn rank_adamw_step(
        master: CubeTensor,
        m: CubeTensor,
        v: CubeTensor,
        all: CubeTensor,
        gradient: CubeTensor,
        numbers: CubeTensor,
        step: ShardedStep,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        assert!(all.is_contiguous(), "only a contiguous tensor can be gathered in place");
        let ShardedStep { communicator, bounds, factors } = step;
        let (link, rank, size) = (&communicator.link, communicator.rank(), all.dtype.size());
        let gradient = into_contiguous(gradient);
        let update = |own: &Range<usize>| {
            let (start, len) = (own.start - bounds[rank], own.len());
            let slice = |of: &CubeTensor| part_of(of, start, vec![len]);
            let factors = Factors { n_decayed: factors.n_decayed.clamp(start, start + len) - start, ..factors };
            let (state, weights) = ([&master, &m, &v].map(slice), part_of(&all, own.start, vec![len]));
            launch_step(state.each_ref(), Some(&weights), slice(&gradient), numbers.clone(), factors);
        };

        if communicator.world_size() > DIRECT_RANKS {
            update(&(bounds[rank]..bounds[rank + 1]));
            Operation::new(Kind::AllGather, &all, &all, &bounds).submit(link);
            return (master, m, v, all);
        }
        let turns = pieces(&bounds, size, communicator.piece_bytes);
        let gather = Transfer::all_gather(&all, turns.iter().map(|turn| gathered(turn, rank, size)).collect());
        for (turn, of_ranks) in turns.iter().enumerate() {
            if !of_ranks[rank].is_empty() {
                update(&of_ranks[rank]);
            }
            gather.begin(link, turn);
        }
        gather.join(link, turns.len() - 1);
        (master, m, v, all)
    }
}

/// Returns what this rank sends of its gradients and receives into the slots of the others, if the ranks' slices have the parts
/// `turn`. `size` is the bytes of an element.
fn exchanged(turn: &[Range<usize>], layout: &SliceLayout, size: usize) -> Piece {
    let own = layout.rank();
    let others = || (0..turn.len()).filter(|&rank| rank != own);
    let in_slot = |slot: usize| {
        let start = slot * layout.len() + turn[own].start - layout.bounds()[own];
        start * size..(start + turn[own].len()) * size
    };
    Piece {
        sends: others().map(|rank| (rank, turn[rank].start * size..turn[rank].end * size)).collect(),
        receives: others().enumerate().map(|(slot, rank)| (rank, in_slot(slot))).collect(),
    }
}

/// Returns what this rank sends and receives of all weights.
fn gathered(turn: &[Range<usize>], own: usize, size: usize) -> Piece {
    let others = || (0..turn.len()).filter(|&rank| rank != own);
    let bytes = |rank: usize| turn[rank].start * size..turn[rank].end * size;
    Piece {
        sends: others().map(|rank| (rank, bytes(own))).collect(),
        receives: others().map(|rank| (rank, bytes(rank))).collect(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exchange,
    AllGather,
}

/// An operation that the device's thread will enqueue.
struct Operation {
    kind: Kind,
    source: BufferBinding,
    target: BufferBinding,
    /// Bounds of the ranks' slices, in bytes.
    bounds: Vec<usize>,
    /// The stream of the kernels before and after.
    stream: StreamId,
}

impl Operation {
    fn new(kind: Kind, source: &CubeTensor, target: &CubeTensor, bounds: &[usize]) -> Self {
        let size = source.dtype.size();
        Self {
            kind,
            source: source.handle.clone().binding(),
            target: target.handle.clone().binding(),
            bounds: bounds.iter().map(|bound| bound * size).collect(),
            // Launches take the stream of the calling thread, too.
            stream: StreamId::current(),
        }
    }

    /// Enqueues the operation behind everything that was enqueued before.
    fn submit(self, link: &Arc<Link>) {
        assert_eq!(self.source.service, link.server.service_id(), "the tensor belongs to another device");
        submit(link, self.target.clone(), move |link, server| self.run(link, server));
    }

    /// Runs on the device's thread.
    fn run(&self, link: &Link, server: &mut Server) -> Result<(), NcclError> {
        link.check()?;
        refuse_recording(server, self.stream, self.name())?;

        // The memory stays where it is while the resources live. Taking them also makes this stream wait for the
        // streams that own the memory, and the device's context current.
        if self.kind == Kind::Exchange {
            // Fresh memory: an earlier failure that claims it is void.
            server.write_streams().written([&self.target].into_iter());
        }
        let mut take = |binding: &BufferBinding| {
            server.get_resource(binding.clone(), self.stream).map_err(|error| device_error(self.name(), error))
        };
        let (source, target) = (take(&self.source)?, take(&self.target)?);
        let (from, to) = (source.resource().ptr, target.resource().ptr);
        let queue = compute_queue(server, self.stream, self.name())?;

        lock(&link.clock).collect();
        let start = lock(&link.clock).mark(queue);
        match self.kind {
            Kind::Exchange => self.exchange(link, from, to, queue)?,
            Kind::AllGather => self.all_gather(link, to, queue)?,
        }
        lock(&link.clock).stop(start, self.name(), self.received_bytes(link), queue);

        // The result will be written, so failures of earlier writers are void.
        server.write_streams().written([&self.target].into_iter());
        if self.source.stream != self.stream {
            // The stream that owns this memory may use it again once this stream has passed this point.
            server.get_resource(self.source.clone(), self.stream).map_err(|error| device_error(self.name(), error))?;
        }
        Ok(())
    }

    /// Exchanges slices between the memory at `from` and the slots at `to`.
    fn exchange(&self, link: &Link, from: u64, to: u64, queue: CUstream) -> Result<(), NcclError> {
        let (rank, own) = (link.rank, self.len(link.rank));
        let slot = |peer: usize| Span { address: to + (peer * own) as u64, bytes: own };
        // SAFETY: both lie in memory that the caller holds, and the slot of this rank is written by nobody else.
        #[expect(unsafe_code, reason = "copying between buffers of the device")]
        let copied = unsafe {
            match own {
                0 => Ok(()),
                _ => cuda::memcpy_dtod_async(slot(rank).address, self.slice(from, rank).address, own, queue),
            }
        };
        copied.map_err(|error| device_error(self.name(), error))?;

        let functions = &link.library.functions;
        let others = (0..link.world_size).filter(|&peer| peer != rank);
        link.grouped(self.name(), |comm| {
            for peer in others {
                // SAFETY: slices and slots lie in memory that the caller holds until the operation is enqueued. CubeCL
                // gives it to later work of the same stream only. Slots do not overlap.
                #[expect(unsafe_code, reason = "sending from and receiving into buffers of the device")]
                unsafe {
                    if self.len(peer) > 0 {
                        functions.send(comm, self.slice(from, peer), peer, queue)?;
                    }
                    if own > 0 {
                        functions.receive(comm, slot(peer), peer, queue)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Fills in the other ranks' slices of the memory at `all`.
    fn all_gather(&self, link: &Link, all: u64, queue: CUstream) -> Result<(), NcclError> {
        let functions = &link.library.functions;
        let own = self.slice(all, link.rank);
        let are_equal = (0..link.world_size).all(|rank| self.len(rank) == own.bytes);

        link.grouped(self.name(), |comm| {
            // SAFETY: slices lie in memory that the caller holds until the operation is enqueued. CubeCL gives it to
            // later work of the same stream only.
            #[expect(unsafe_code, reason = "sending from and receiving into buffers of the device")]
            unsafe {
                if are_equal {
                    return functions.all_gather(comm, own, self.slice(all, 0), queue);
                }
                // Broadcasts of a group run one after the other: here, each direction of a link is used at once.
                if link.world_size <= DIRECT_RANKS {
                    for peer in (0..link.world_size).filter(|&peer| peer != link.rank) {
                        if own.bytes > 0 {
                            functions.send(comm, own, peer, queue)?;
                        }
                        if self.len(peer) > 0 {
                            functions.receive(comm, self.slice(all, peer), peer, queue)?;
                        }
                    }
                    return Ok(());
                }
                for root in (0..link.world_size).filter(|&root| self.len(root) > 0) {
                    functions.broadcast(comm, self.slice(all, root), root, queue)?;
                }
            }
            Ok(())
        })
    }

    /// Returns the bytes of a rank's slice.
    fn len(&self, rank: usize) -> usize {
        self.bounds[rank + 1] - self.bounds[rank]
    }

    /// Returns a rank's slice of the memory at `start`.
    fn slice(&self, start: u64, rank: usize) -> Span {
        Span { address: start + self.bounds[rank] as u64, bytes: self.len(rank) }
    }

    fn received_bytes(&self, link: &Link) -> u64 {
        let own = self.len(link.rank);
        let bytes = match self.kind {
            Kind::Exchange => (link.world_size - 1) * own,
            Kind::AllGather => self.bounds[link.world_size] - self.bounds[0] - own,
        };
        bytes as u64
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Exchange => "exchange",
            Kind::AllGather => "all_gather",
        }
    }
}
