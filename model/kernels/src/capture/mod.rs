//! CUDA graphs: launches recorded once and replayed as one.
//!
//! A replay runs the same kernels on the same buffers with the same arguments. Inputs that change from one replay to
//! the next must lie in tensors that stay where they are; [`overwrite`] gives them new contents.
//!
//! CubeCL 0.12 treats a recording as follows, according to its sources and the tests here:
//! - While it records, nothing may be allocated, read or waited for. Rehearsals before it compile the kernels, settle
//!   autotune and leave enough free memory. A request that the memory pools cannot serve fails the recording.
//! - Every page of memory that the recorded kernels touch stays reserved while the recording lives. Two recordings do
//!   not share activations: each costs the peak memory of its work.
//! - Buffers that a *failed* recording would have written become unreadable. Never record work that changes something
//!   worth keeping, such as an optimizer step: a failure would destroy the weights.
//! - Autodiff works inside a recording: it runs on the calling thread, and `backward` drops its graph before it
//!   returns.

#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use burn::backend::{Backend, BackendTypes, Dispatch};
use burn::tensor::{DType, Device, Int, Tensor};
pub(crate) use ops::OverwriteOps;

use crate::settings::{has_kernels, is_cuda};

/// Runs of the work before it is recorded. The first settles the kernels of the backend's fusion; a later one frees the
/// memory that the recording needs.
const REHEARSALS: usize = 3;

/// Recorded work, its results, and everything it reads.
pub struct Captured<T> {
    // The first field is dropped first: the buffers it points to must outlive it.
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

/// The reason why work could not be recorded or replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureError(String);

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaptureError {}

impl CaptureError {
    /// Keeps the first line of `reason`: backends report one failure as pages of everything that depended on it.
    pub fn new(reason: impl fmt::Display) -> Self {
        let reason = reason.to_string();
        Self(reason.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given").to_string())
    }

    fn panic(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Self::new(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic"))
    }
}

/// Returns whether `device` supports recordings.
pub fn can_capture(device: &Device) -> bool {
    is_cuda(device)
}

/// Held by whoever records, and by whoever must not work meanwhile.
static ALONE: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`, which may allocate memory of a device, while no thread of this process records. The driver refuses a recording if
/// another thread allocates meanwhile, on whatever stream. The recording thread itself must not call this.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    let _alone = lock();
    work()
}

/// Records `work` after some rehearsals. Rehearsals are computed, the recorded run is not. `inspect` receives the
/// results of two rehearsals, to compare them with each other and with the results of a replay.
///
/// `work` must do the same every time: same shapes, same operations. It must own the tensors it reads (clones suffice),
/// and must not change anything that is needed later.
///
/// # Errors
/// If the device cannot record, if `work` panics, or if the backend refuses the recording. The device then is as
/// before, except for tensors that the recorded run overwrote in place.
pub fn capture<T, R>(
    device: &Device,
    work: impl FnMut() -> T + Send + 'static,
    inspect: impl FnMut(&T) -> R,
) -> Result<(Captured<T>, [R; 2]), CaptureError> {
    record(device, work, inspect, || ())
}

/// [`capture`] of a step of a few rows, whose kernels are short: on Hopper they start before the kernel in front of them has ended.
///
/// # Errors
/// See [`capture`].
pub fn capture_step<T>(device: &Device, work: impl FnMut() -> T + Send + 'static) -> Result<Captured<T>, CaptureError> {
    #[cfg(feature = "cuda")]
    let begin = crate::gpu::early::Recording::new;
    #[cfg(not(feature = "cuda"))]
    let begin = || ();
    record(device, work, |_| (), begin).map(|(captured, _)| captured)
}

/// [`capture`], during which the result of `begin` lives.
fn record<T, R, G>(
    device: &Device,
    mut work: impl FnMut() -> T + Send + 'static,
    mut inspect: impl FnMut(&T) -> R,
    begin: impl FnOnce() -> G,
) -> Result<(Captured<T>, [R; 2]), CaptureError> {
    if !can_capture(device) {
        return Err(CaptureError::new("only CUDA devices have graphs: the CPU and other backends compute eagerly"));
    }
    let _alone = lock();
    let _begun = begin();
    let device = device.clone().inner();
    let handle = device.as_dispatch();
    Dispatch::graph_prepare(handle).map_err(CaptureError::new)?;

    let mut recording = || -> Result<_, CaptureError> {
        let mut inspected = Vec::new();
        for rehearsal in 0..REHEARSALS {
            // Keep the output until the device has finished: the backend does not compute dropped results.
            let output = work();
            Dispatch::sync(handle).map_err(CaptureError::new)?;
            // Not for the last rehearsal: the recording needs the memory as it leaves it.
            if rehearsal + 1 < REHEARSALS {
                inspected.push(inspect(&output));
            }
        }

        Dispatch::graph_start_capture(handle).map_err(CaptureError::new)?;
        let Ok(inspected) = inspected.try_into() else { unreachable!("all rehearsals but the last are inspected") };
        Ok((work(), inspected))
    };
    let recorded = catch_unwind(AssertUnwindSafe(&mut recording)).map_err(|panic| CaptureError::panic(&*panic));
    // Stop in every case: a stream that is still recording would record everything that follows.
    let graph = Dispatch::graph_stop_capture(handle).map_err(CaptureError::new);

    let (output, inspected) = recorded.and_then(|recorded| recorded)?;
    let captured = Captured { graph: graph?, output, _work: Box::new(work), device, thread: thread::current().id() };
    Ok((captured, inspected))
}

impl<T> Captured<T> {
    /// What [`Self::replay`] returns, without a replay.
    pub fn output(&self) -> &T {
        &self.output
    }

    /// Enqueues the recorded work again and returns its results. Each replay overwrites their buffers: copy what you
    /// want to keep before the next one.
    ///
    /// # Errors
    /// On a thread other than the one that recorded, because each thread has a queue of its own and queues do not wait
    /// for each other; or if the driver refuses.
    pub fn replay(&self) -> Result<&T, CaptureError> {
        if thread::current().id() != self.thread {
            return Err(CaptureError::new("recorded on another thread"));
        }
        // SAFETY: the recorded work owns the buffers it reads and `self` those it writes, so all of them are alive.
        // `overwrite` and readers of the results run on this thread's queue, in order with the replay.
        #[expect(unsafe_code, reason = "replaying on raw device buffers")]
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(CaptureError::new)?;
        Ok(&self.output)
    }
}

/// Copies `source` into `target` and returns the new `target`. On a GPU the copy is in place: clones of `target` show
/// the new numbers, and so do recordings. On the CPU nothing is written, so use the result.
///
/// # Panics
/// If the two differ in shape or dtype.
pub fn overwrite<const D: usize>(target: Tensor<D, Int>, source: Tensor<D, Int>) -> Tensor<D, Int> {
    assert_eq!(target.dims(), source.dims(), "new contents of another shape");
    assert_eq!(target.dtype(), source.dtype(), "new contents of another dtype");
    if !has_kernels(&target.device()) {
        return source;
    }
    Tensor::from_dispatch(Dispatch::overwrite(target.into_dispatch(), source.into_dispatch()))
}

/// [`overwrite`] for floats.
///
/// # Panics
/// If the two differ in shape or dtype.
pub fn overwrite_floats<const D: usize>(target: Tensor<D>, source: Tensor<D>) -> Tensor<D> {
    assert_eq!(target.dims(), source.dims(), "new contents of another shape");
    assert_eq!(target.dtype(), source.dtype(), "new contents of another dtype");
    if !has_kernels(&target.device()) {
        return source;
    }
    Tensor::from_dispatch(Dispatch::overwrite_floats(target.into_dispatch(), source.into_dispatch()))
}

/// Writes a row into each matrix of `target` and returns the new `target`. On a GPU it writes in place, as [`overwrite`] does. A row
/// behind the end of its matrix is left out.
///
/// # Shapes
/// - `target`: `[B, S, W]`
/// - `rows`: `[B, W]`
/// - `at`: `[B]`, the place of each row in its matrix
///
/// # Panics
/// If shapes or dtypes do not fit.
pub fn overwrite_rows(target: Tensor<3>, rows: Tensor<2>, at: Tensor<1, Int>) -> Tensor<3> {
    let ([b, _, width], dtype) = (target.dims(), target.dtype());
    assert_eq!(
        (rows.dims(), at.dims(), rows.dtype()),
        ([b, width], [b], dtype),
        "rows for [{b}, S, {width}], {dtype:?}"
    );
    if !has_kernels(&target.device()) {
        return reference::overwrite_rows(target, rows, at);
    }
    let at = at.cast(DType::I32).into_dispatch();
    Tensor::from_dispatch(Dispatch::overwrite_rows(target.into_dispatch(), rows.into_dispatch(), at))
}

/// [`overwrite_rows`] of one whole number in each row of `target`, all of them i32.
///
/// # Shapes
/// - `target`: `[B, S]`
/// - `numbers`, `at`: `[B]`
///
/// # Panics
/// If shapes or dtypes do not fit.
pub fn overwrite_numbers(target: Tensor<2, Int>, numbers: Tensor<1, Int>, at: Tensor<1, Int>) -> Tensor<2, Int> {
    let ([b, s], dtypes) = (target.dims(), [target.dtype(), numbers.dtype(), at.dtype()]);
    assert_eq!((numbers.dims(), at.dims(), dtypes), ([b], [b], [DType::I32; 3]), "numbers for [{b}, {s}]");
    if !has_kernels(&target.device()) {
        return reference::overwrite_numbers(target, numbers, at);
    }
    let (numbers, at) = (numbers.into_dispatch(), at.into_dispatch());
    Tensor::from_dispatch(Dispatch::overwrite_numbers(target.into_dispatch(), numbers, at))
}
