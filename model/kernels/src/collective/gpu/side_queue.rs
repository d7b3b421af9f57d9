//! Transfers in parallel with kernels: on a queue of their own, cut into pieces that kernels make or wait for one by one.

#![expect(unsafe_code, reason = "queues and events of the CUDA driver")]

use std::ops::Range;
use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use cubecl::server::BufferBinding;
use cubecl_environment::stream::StreamId;
use cubecl_server::server::ServerStorage;
use cubecl_server::stream::{FailureStore, WriteScoped};
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::result::{DriverError, event, stream};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUstream};

use super::device_thread::{compute_queue, refuse_recording, submit};
use super::{Link, Server, device_error, lock};
use crate::collective::NcclError;
use crate::collective::functions::Span;

/// The second queue of a device, and what its operations need.
#[derive(Default)]
pub(super) struct Queue {
    stream: Option<CUstream>,
    /// One event for what the queue waits for, and one per piece that kernels wait for.
    events: Vec<CUevent>,
    /// Memory that stays where it is until the device's kernels will wait for the last piece.
    held: Vec<Box<dyn Send>>,
}

// SAFETY: the device's thread alone uses the stream and the events.
unsafe impl Send for Queue {}

impl Queue {
    /// Returns the stream. When the device has room for another kernel, this stream's goes first.
    fn stream(&mut self) -> Result<CUstream, DriverError> {
        if let Some(stream) = self.stream {
            return Ok(stream);
        }
        let (_, greatest_priority) = stream::get_priority_range()?;
        let stream = stream::create_with_priority(StreamKind::NonBlocking, greatest_priority)?;
        self.stream = Some(stream);
        Ok(stream)
    }

    fn event(&mut self, number: usize) -> Result<CUevent, DriverError> {
        while self.events.len() <= number {
            self.events.push(event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?);
        }
        Ok(self.events[number])
    }
}

/// What a rank sends and receives in one turn: to or from which rank, and which bytes of the source or the target.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    pub(super) sends: Vec<(usize, Range<usize>)>,
    pub(super) receives: Vec<(usize, Range<usize>)>,
}

impl Piece {
    fn received_bytes(&self) -> u64 {
        self.receives.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// A transfer in parallel with the kernels of `stream`.
pub(super) struct Transfer {
    what: &'static str,
    source: BufferBinding,
    target: BufferBinding,
    /// Whether nothing has been written to the target.
    is_fresh: bool,
    pieces: Vec<Piece>,
    stream: StreamId,
}

impl Transfer {
    /// Moves pieces of `source` to other ranks and into a new tensor.
    pub(super) fn exchange(source: &CubeTensor, target: &CubeTensor, pieces: Vec<Piece>) -> Arc<Self> {
        Self::new("exchange", [source, target], true, pieces)
    }

    /// Moves pieces between the ranks' copies of `full`.
    pub(super) fn all_gather(full: &CubeTensor, pieces: Vec<Piece>) -> Arc<Self> {
        Self::new("all_gather", [full, full], false, pieces)
    }

    fn new(what: &'static str, tensors: [&CubeTensor; 2], is_fresh: bool, pieces: Vec<Piece>) -> Arc<Self> {
        let [source, target] = tensors.map(|tensor| tensor.handle.clone().binding());
        // Launches take the stream of the calling thread, too.
        Arc::new(Self { what, source, target, is_fresh, pieces, stream: StreamId::current() })
    }

    /// Moves piece `turn` once the kernels that have been launched so far are done.
    pub(super) fn begin(self: &Arc<Self>, link: &Arc<Link>, turn: usize) {
        let own = self.clone();
        submit(link, self.target.clone(), move |link, server| own.enqueue(link, server, turn));
    }

    /// Lets all kernels that are launched from here on wait for piece `turn`. The last piece must be waited for.
    pub(super) fn join(self: &Arc<Self>, link: &Arc<Link>, turn: usize) {
        let own = self.clone();
        submit(link, self.target.clone(), move |link, server| own.wait(link, server, turn));
    }

    fn enqueue(&self, link: &Link, server: &mut Server, turn: usize) -> Result<(), NcclError> {
        link.check()?;
        refuse_recording(server, self.stream, self.what)?;
        if turn == 0 && self.is_fresh {
            // Fresh memory: an earlier failure that claims it is void.
            server.write_streams().written([&self.target].into_iter());
        }
        let mut take = |binding: &BufferBinding| {
            server.get_resource(binding.clone(), self.stream).map_err(|error| device_error(self.what, error))
        };
        let (source, target) = (take(&self.source)?, take(&self.target)?);
        let (from, to) = (source.resource().ptr, target.resource().ptr);
        let compute = compute_queue(server, self.stream, self.what)?;

        let (queue, done) = {
            let failed = |error| device_error(self.what, error);
            let mut side = lock(&link.side_queue);
            side.held.push(Box::new((source, target)));
            let (queue, ready, done) =
                (side.stream().map_err(failed)?, side.event(0).map_err(failed)?, side.event(turn + 1).map_err(failed)?);
            // SAFETY: both streams and the event exist.
            unsafe {
                event::record(ready, compute).map_err(failed)?;
                stream::wait_event(queue, ready, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).map_err(failed)?;
            }
            (queue, done)
        };

        lock(&link.clock).collect();
        let start = lock(&link.clock).mark(queue);
        self.send_and_receive(link, turn, [from, to], queue)?;
        lock(&link.clock).stop(start, self.what, self.pieces[turn].received_bytes(), queue);

        // SAFETY: the stream and the event exist.
        unsafe { event::record(done, queue) }.map_err(|error| device_error(self.what, error))?;
        server.write_streams().written([&self.target].into_iter());
        Ok(())
    }

    fn send_and_receive(
        &self,
        link: &Link,
        turn: usize,
        [from, to]: [u64; 2],
        queue: CUstream,
    ) -> Result<(), NcclError> {
        let Piece { sends, receives } = &self.pieces[turn];
        let functions = &link.library.functions;
        let span = |start: u64, bytes: &Range<usize>| Span { address: start + bytes.start as u64, bytes: bytes.len() };
        link.grouped(self.what, |comm| {
            // SAFETY: the bytes lie in memory that is held until the device's kernels wait for the last piece, so nothing else
            // uses it before. No bytes are received twice, and none of those that are sent.
            unsafe {
                for (peer, bytes) in sends.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                    functions.send(comm, span(from, bytes), *peer, queue)?;
                }
                for (peer, bytes) in receives.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                    functions.receive(comm, span(to, bytes), *peer, queue)?;
                }
            }
            Ok(())
        })
    }

    fn wait(&self, link: &Link, server: &mut Server, turn: usize) -> Result<(), NcclError> {
        let compute = compute_queue(server, self.stream, self.what)?;
        let is_last = turn + 1 == self.pieces.len();
        {
            let failed = |error| device_error(self.what, error);
            let mut side = lock(&link.side_queue);
            let done = side.event(turn + 1).map_err(failed)?;
            // SAFETY: the stream and the event exist. After a failure the event may be an old one, which nobody waits for.
            unsafe { stream::wait_event(compute, done, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }.map_err(failed)?;
            if is_last {
                side.held.clear();
            }
        }
        if is_last && self.source.stream != self.stream {
            // The stream that owns this memory may use it again once this stream has passed this point.
            server.get_resource(self.source.clone(), self.stream).map_err(|error| device_error(self.what, error))?;
        }
        Ok(())
    }
}
