//! The operators on CUDA devices: calls of NCCL on the device's thread, on the stream of its kernels.

use std::sync::Arc;

use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::server::{BufferBinding, ServerError};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::stream::StreamId;
use cubecl_server::command::DeviceStream;
use cubecl_server::server::ServerStorage;
use cubecl_server::stream::{FailureStore, WriteScoped};
use cudarc::driver::sys::CUstream;

use super::{Link, Server, cuda, device_error, lock};
use crate::collective::functions::{Comm, Span};
use crate::collective::ops::{RankOps, received};
use crate::collective::{Communicator, NcclError};
use crate::gpu::memory::empty;

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
        let enqueued = link.clone();
        link.server.submit(move |server| {
            if let Err(error) = self.run(&enqueued, server) {
                let reason = error.to_string();
                let unwritten = ServerError::Generic { reason, backtrace: BackTrace::capture() };
                server.write_streams().taint(unwritten, [&self.target].into_iter());
                enqueued.fail(&error);
            }
        });
        // The other ranks wait for this one, so the operation must not stay in a buffer until it is full.
        link.server.flush_queue();
    }

    /// Runs on the device's thread.
    fn run(&self, link: &Link, server: &mut Server) -> Result<(), NcclError> {
        link.check()?;
        if server.capturing(self.stream).is_some_and(|capture| capture.is_recording()) {
            let reason = "collectives cannot be recorded in a CUDA graph".to_owned();
            return Err(NcclError::Device { what: self.name(), reason });
        }

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
        let queue = server.write_streams().try_stream_mut(&self.stream).map(|stream| stream.signal());
        let queue = queue.ok_or_else(|| device_error(self.name(), "its stream does not exist"))?;

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
        self.grouped(link, |comm| {
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

        self.grouped(link, |comm| {
            // SAFETY: slices lie in memory that the caller holds until the operation is enqueued. CubeCL gives it to
            // later work of the same stream only.
            #[expect(unsafe_code, reason = "sending from and receiving into buffers of the device")]
            unsafe {
                if are_equal {
                    return functions.all_gather(comm, own, self.slice(all, 0), queue);
                }
                for root in (0..link.world_size).filter(|&root| self.len(root) > 0) {
                    functions.broadcast(comm, self.slice(all, root), root, queue)?;
                }
            }
            Ok(())
        })
    }

    /// Enqueues `operations` and waits until NCCL has launched them.
    fn grouped(&self, link: &Link, operations: impl FnOnce(Comm) -> Result<(), NcclError>) -> Result<(), NcclError> {
        let guard = lock(&link.comm);
        let comm = guard.ok_or(NcclError::Aborted)?;
        link.library.functions.group(|| operations(comm))?;
        drop(guard);

        link.wait(self.name(), None)
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
