//! Launches recorded once and replayed as one: a CUDA graph.
//!
//! A recording runs the same kernels on the same buffers with the same arguments. So what changes from one replay to the next
//! must lie in tensors, and these tensors must stay where they are: [`overwrite`] gives them new contents.
//!
//! What CubeCL 0.12 makes of a recording, found in its sources and checked by the tests here:
//! - Nothing may be allocated, read or waited for while it records. Rehearsals before it leave kernels compiled, choices made
//!   and memory at hand; a request that the pools cannot serve refuses the recording.
//! - Every page of memory that the recorded kernels touch is kept from later allocations while the recording lives. Two
//!   recordings share no activations: each costs what its work costs at its peak.
//! - Buffers that a *refused* recording would have written cannot be read any more. Never record what changes something worth
//!   keeping, such as an optimizer's step: a refusal would take the weights with it.
//! - Autodiff works inside: it runs on the calling thread, and its graph is gone when `backward` returns.

#[cfg(feature = "cuda")]
mod kernel;
mod ops;
#[cfg(test)]
mod tests;

#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, ThreadId};

use burn::backend::{Backend, BackendTypes, Dispatch};
use burn::tensor::{Device, Int, Tensor};
use ops::OverwriteOps;

/// Runs of the work before it is recorded. The backend's fusion settles on its kernels in the first; a later one leaves free
/// the memory that the recording takes.
const REHEARSALS: usize = 3;

/// Recorded work, its results, and all that it reads.
pub struct Captured<T> {
    // First, so that it goes first: what it points to must outlive it.
    graph: <Dispatch as BackendTypes>::GraphPrimitive,
    output: T,
    _work: Box<dyn FnMut() -> T + Send>,
    device: Device,
    thread: ThreadId,
}

impl<T: fmt::Debug> fmt::Debug for Captured<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("output", &self.output).field("device", &self.device).finish_non_exhaustive()
    }
}

/// Why work could not be recorded or replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureError(String);

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaptureError {}

impl CaptureError {
    /// The reason in one line; backends report one failure as pages of everything that depended on it.
    pub fn new(reason: impl fmt::Display) -> Self {
        let reason = reason.to_string();
        Self(reason.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given").to_string())
    }

    fn panic(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Self::new(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic"))
    }
}

/// Whether `device` can record at all.
pub fn can_capture(device: &Device) -> bool {
    device.clone().inner() != Device::flex()
}

/// Records `work`, after some rehearsals that are really run; the recorded run is not. `inspect` sees the results of two
/// rehearsals, to compare with each other and with those of a replay.
///
/// `work` must do the same every time: same shapes, same operations. Whatever tensors it reads must be its own (clones
/// are), and whatever it changes must not matter.
///
/// # Errors
/// If the device cannot record, if `work` panics, or if the backend refuses the recording. The device is as before then, but
/// for tensors that the recorded run wrote over in place.
pub fn capture<T, R>(
    device: &Device,
    mut work: impl FnMut() -> T + Send + 'static,
    mut inspect: impl FnMut(&T) -> R,
) -> Result<(Captured<T>, [R; 2]), CaptureError> {
    if !can_capture(device) {
        return Err(CaptureError::new("the CPU backend has no graphs"));
    }
    let device = device.clone().inner();
    let handle = device.as_dispatch();
    Dispatch::graph_prepare(handle).map_err(CaptureError::new)?;
    let mut recording = || -> Result<_, CaptureError> {
        let mut inspected = Vec::new();
        for rehearsal in 0..REHEARSALS {
            // Kept until the device has got that far: the backend does not compute what nobody holds.
            let output = work();
            Dispatch::sync(handle).map_err(CaptureError::new)?;
            // Not of the last, which leaves memory as the recording finds it.
            if rehearsal + 1 < REHEARSALS {
                inspected.push(inspect(&output));
            }
        }
        Dispatch::graph_start_capture(handle).map_err(CaptureError::new)?;
        let Ok(inspected) = inspected.try_into() else { unreachable!("one of each but the last") };
        Ok((work(), inspected))
    };
    let recorded = catch_unwind(AssertUnwindSafe(&mut recording)).map_err(|panic| CaptureError::panic(&*panic));
    // Whatever happened: a stream left in recording would record all that follows.
    let graph = Dispatch::graph_stop_capture(handle).map_err(CaptureError::new);
    let (output, inspected) = recorded.and_then(|recorded| recorded)?;
    let captured = Captured { graph: graph?, output, _work: Box::new(work), device, thread: thread::current().id() };
    Ok((captured, inspected))
}

impl<T> Captured<T> {
    /// Enqueues the recorded work again and returns its results, whose buffers it writes again: copy what you want to keep
    /// before the next replay.
    ///
    /// # Errors
    /// On another thread than the one that recorded: each has a queue of its own, and they do not wait for each other. And
    /// if the driver refuses.
    pub fn replay(&self) -> Result<&T, CaptureError> {
        if thread::current().id() != self.thread {
            return Err(CaptureError::new("recorded on another thread"));
        }
        // SAFETY: the recorded work owns what it reads and `self` what it writes, so every buffer lives; `overwrite` and
        // readers of the results run on this thread's queue, in order with the replay.
        #[expect(unsafe_code, reason = "replaying on raw device buffers")]
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(CaptureError::new)?;
        Ok(&self.output)
    }
}

/// Gives `target` the numbers of `source`, in place on a GPU: whoever holds a clone of `target` sees them, recordings among
/// them. On the CPU nothing is written; there as everywhere the result is what `target` is to be from now on.
///
/// # Panics
/// If the two differ in shape.
pub fn overwrite<const D: usize>(target: Tensor<D, Int>, source: Tensor<D, Int>) -> Tensor<D, Int> {
    assert_eq!(target.dims(), source.dims(), "new contents of another shape");
    assert_eq!(target.dtype(), source.dtype(), "new contents of another dtype");
    Tensor::from_dispatch(Dispatch::overwrite(target.into_dispatch(), source.into_dispatch()))
}
