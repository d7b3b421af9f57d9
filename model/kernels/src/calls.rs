//! The calls of operators, recorded while somebody wants to know them: what was called, at which shape, with how much work, and
//! when.
//!
//! Every operator records itself where its backend computes it, so forward and backward are both seen, also of a model that this
//! crate does not know. On the CPU the time of a call is the time of its computation. On a GPU it is the time to enqueue its
//! kernels; a kernel's own time comes from the driver. A call while nothing is recorded costs one load of a flag.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::backend::TensorMetadata;

static IS_ON: AtomicBool = AtomicBool::new(false);
static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

thread_local! {
    /// For each call in progress on this thread, innermost last, the time that calls inside it have taken.
    static INSIDE: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
}

/// The least work of a call, computed from its operands.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Floating-point operations of matrix products. The arithmetic of other operators is not counted.
    pub flops: f64,
    /// Bytes if every operand is read once and every result written once.
    pub bytes: f64,
}

/// A call of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The operator and its pass, for example `attention backward`.
    pub operator: &'static str,
    /// The sizes that its work depends on.
    pub sizes: Vec<usize>,
    /// The work of this call without the calls inside it.
    pub work: Work,
    /// When it began.
    pub started: Instant,
    /// When it returned.
    pub ended: Instant,
    /// Its time without the calls inside it.
    pub own: Duration,
    /// Calls around it.
    pub depth: usize,
}

/// Starts to record the calls of all threads. Forgets earlier ones.
pub fn start() {
    lock().clear();
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops recording, and returns the calls since [`start`] in the order in which they returned.
pub fn stop() -> Vec<Call> {
    IS_ON.store(false, Ordering::Relaxed);
    std::mem::take(&mut *lock())
}

/// What an operator says about a call: its name, its sizes and its work.
pub(crate) type Description = (&'static str, Vec<usize>, Work);

/// A call in progress, which ends when this is dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct Running {
    description: Description,
    started: Instant,
}

/// Begins a call, if calls are recorded.
#[inline]
pub(crate) fn begin(describe: impl FnOnce() -> Description) -> Option<Running> {
    if !IS_ON.load(Ordering::Relaxed) {
        return None;
    }
    let description = describe();
    INSIDE.with_borrow_mut(|inside| inside.push(Duration::ZERO));
    Some(Running { description, started: Instant::now() })
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = Instant::now();
        let whole = ended - self.started;
        let (inside, depth) = INSIDE.with_borrow_mut(|inside| {
            let own = inside.pop().unwrap_or_default();
            if let Some(around) = inside.last_mut() {
                *around += whole;
            }
            (own, inside.len())
        });
        let (operator, sizes, work) = std::mem::take(&mut self.description);
        let own = whole.saturating_sub(inside);
        // A call that began while others were recorded ends after the recording.
        if IS_ON.load(Ordering::Relaxed) {
            lock().push(Call { operator, sizes, work, started: self.started, ended, own, depth });
        }
    }
}

impl Work {
    /// Work without products.
    pub(crate) fn moved(bytes: f64) -> Self {
        Self { flops: 0.0, bytes }
    }
}

/// The bytes of a tensor.
pub(crate) fn bytes(tensor: &impl TensorMetadata) -> f64 {
    (tensor.shape().num_elements() * tensor.dtype().size()) as f64
}

/// The sizes of a tensor.
pub(crate) fn sizes(tensor: &impl TensorMetadata) -> Vec<usize> {
    tensor.shape().to_vec()
}

/// Describes a call that reads and writes tensors of the size of `tensor`, `passes` of them together.
pub(crate) fn of_passes(operator: &'static str, tensor: &impl TensorMetadata, passes: usize) -> Description {
    (operator, sizes(tensor), Work::moved(passes as f64 * bytes(tensor)))
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Call>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    /// One test, because all threads share the recording.
    #[test]
    fn calls_are_recorded_with_their_own_time_and_only_while_they_are_wanted() {
        let call = |operator, work| begin(move || (operator, vec![2, 3], Work::moved(work)));
        assert!(call("before", 1.0).is_none());
        start();
        {
            let _outer = call("test outer", 10.0);
            sleep(Duration::from_millis(4));
            let _inner = call("test inner", 20.0);
            sleep(Duration::from_millis(8));
        }
        let late = call("test late", 1.0);
        let calls = stop();
        drop(late);
        assert!(call("after", 1.0).is_none());

        // Other tests of the crate call operators meanwhile.
        let found: Vec<_> = calls.iter().filter(|call| call.operator.starts_with("test ")).collect();
        let [inner, outer] = found[..] else { panic!("{found:?}") };
        assert_eq!((inner.operator, inner.depth, inner.work.bytes), ("test inner", 1, 20.0));
        assert_eq!((outer.operator, outer.depth, outer.sizes.as_slice()), ("test outer", 0, &[2, 3][..]));
        assert!(inner.own >= Duration::from_millis(8) && inner.own == inner.ended - inner.started);
        assert!(outer.own >= Duration::from_millis(4) && outer.own + inner.own <= outer.ended - outer.started);
        start();
        assert!(stop().iter().all(|call| !call.operator.starts_with("test ")), "a recording starts empty");
    }
}
