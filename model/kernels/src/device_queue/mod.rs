//! The queue of a GPU's kernels, as the thread of the device sees it, events in it, and [`programs`].

#![expect(unsafe_code, reason = "events and graphs of the CUDA driver")]

mod edges;
pub(crate) mod programs;

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cubecl::MemoryScope;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl_environment::stream::StreamId;
use cubecl_server::command::DeviceStream;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::WriteScoped;
use cudarc::driver::result::{DriverError, ctx, device, event, primary_ctx};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
pub(crate) use edges::loosen_last_edge;

/// CubeCL's server of a CUDA device. It runs on a thread of its own, in the order in which work was submitted.
pub(crate) type Server = <CudaRuntime as Runtime>::Server;

/// Returns the thread of a CUDA device and the device's number; `None` for other devices.
pub(crate) fn server_of(device: &Device) -> Option<(DeviceHandle<Server>, usize)> {
    let device = device.clone().inner();
    let DispatchDevice::Cube(cubecl::Device::Cuda(cuda)) = device.as_dispatch() else { return None };
    Some((DeviceHandle::new(cubecl::Device::Cuda(cuda.clone()).to_id()), cuda.index))
}

/// Makes the primary context of CUDA device `index`, which CubeCL uses as well, current on this thread.
pub(crate) fn make_current(index: usize) -> Result<(), DriverError> {
    let device = device::get(index as i32)?;
    // SAFETY: the device exists. Nobody releases the context, so it lives as long as the process.
    unsafe { ctx::set_current(primary_ctx::retain(device)?) }
}

/// Returns the bytes of live tensors in the memory pools of a device; `None` for other devices. Operators may call it while they run: it does
/// not pass through the backend's lazy queue.
pub(crate) fn bytes_in_use(device: &Device) -> Option<u64> {
    let device = device.clone().inner();
    let DispatchDevice::Cube(cube) = device.as_dispatch() else { return None };
    Some(cube.client().memory_report(MemoryScope::Device).usage().bytes_in_use)
}

/// Returns the queue of the kernels of `stream`; `None` if it does not exist.
pub(crate) fn compute_queue(server: &mut Server, stream: StreamId) -> Option<CUstream> {
    server.write_streams().try_stream_mut(&stream).map(|stream| stream.signal())
}

/// Returns whether `stream` is being recorded as a CUDA graph.
pub(crate) fn is_recording(server: &mut Server, stream: StreamId) -> bool {
    server.capturing(stream).is_some_and(|capture| capture.is_recording())
}

/// A moment in a queue. It is used on the device's thread alone, where the device's context is current.
#[derive(Debug)]
pub(crate) struct Event(CUevent);

// SAFETY: the device's thread alone uses an event; other threads only move it.
unsafe impl Send for Event {}

impl Event {
    /// Makes an event that has no moment yet; `None` if the driver refuses, which is not worth an error.
    pub(crate) fn new() -> Option<Self> {
        event::create(CUevent_flags::CU_EVENT_DEFAULT).ok().map(Self)
    }

    /// Enqueues the event behind everything in `queue`. Returns whether the driver took it.
    pub(crate) fn record(&self, queue: CUstream) -> bool {
        // SAFETY: the event exists and the queue is the device's.
        unsafe { event::record(self.0, queue) }.is_ok()
    }

    /// Returns whether the device has passed the event.
    pub(crate) fn is_passed(&self) -> bool {
        // SAFETY: the event exists.
        unsafe { event::query(self.0) }.is_ok()
    }

    /// Returns the milliseconds from `earlier` to this event; `None` if the device has not passed both.
    pub(crate) fn ms_since(&self, earlier: &Self) -> Option<f32> {
        // SAFETY: both events exist and have been recorded.
        unsafe { event::elapsed(earlier.0, self.0) }.ok()
    }

    /// Frees the event.
    pub(crate) fn destroy(self) {
        // SAFETY: nobody else has the event. The driver frees it once the device has passed it.
        let _ = unsafe { event::destroy(self.0) };
    }
}
