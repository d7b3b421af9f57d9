//! What an operation does on the device's thread, in the order in which work was submitted.

use std::sync::Arc;

use cubecl::server::{BufferBinding, ServerError};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::stream::StreamId;
use cubecl_server::stream::{FailureStore, WriteScoped};
use cudarc::driver::sys::CUstream;

use super::{Link, device_error};
use crate::collective::NcclError;
use crate::device_queue::{self, Server, is_recording};

/// Runs `operation` on the device's thread, behind everything that was enqueued before. If it fails, `target` is unwritten.
pub(super) fn submit(
    link: &Arc<Link>,
    target: BufferBinding,
    operation: impl FnOnce(&Link, &mut Server) -> Result<(), NcclError> + Send + 'static,
) {
    assert_eq!(target.service, link.server.service_id(), "the tensor belongs to another device");
    let enqueued = link.clone();
    link.server.submit(move |server| {
        if let Err(error) = operation(&enqueued, server) {
            let reason = error.to_string();
            let unwritten = ServerError::Generic { reason, backtrace: BackTrace::capture() };
            server.write_streams().taint(unwritten, [&target].into_iter());
            enqueued.fail(&error);
        }
    });
    // The other ranks wait for this one, so the operation must not stay in a buffer until it is full.
    link.server.flush_queue();
}

/// Returns an error if `stream` is being recorded.
pub(super) fn refuse_recording(server: &mut Server, stream: StreamId, what: &'static str) -> Result<(), NcclError> {
    if is_recording(server, stream) {
        let reason = "collectives cannot be recorded in a CUDA graph".to_owned();
        return Err(NcclError::Device { what, reason });
    }
    Ok(())
}

/// Returns the queue of the kernels of `stream`.
pub(super) fn compute_queue(server: &mut Server, stream: StreamId, what: &'static str) -> Result<CUstream, NcclError> {
    device_queue::compute_queue(server, stream).ok_or_else(|| device_error(what, "its stream does not exist"))
}
