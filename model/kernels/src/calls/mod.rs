//! The calls of operators, recorded while somebody wants to know them: what was called, at which shape, with how much work, and
//! when.
//!
//! Every operator records itself where its backend computes it, so forward and backward are both seen, also of a model that this
//! crate does not know. On the CPU the time of a call is the time of its computation. On a GPU it is the time to enqueue its
//! kernels; their own time comes from the driver, or from events around them ([`Watch::DeviceTime`]). A call while nobody wants to know
//! costs one load of a flag.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod gpu;

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

#[cfg(not(feature = "cuda"))]
use absent::{Queue, Timer};
use burn::backend::TensorMetadata;
use burn::tensor::Device;
#[cfg(feature = "cuda")]
use gpu::{Queue, Timer};

use crate::ranges;

/// Who wants to know about calls: bits of [`WANTED`].
const RECORDED: u8 = 1;
const NAMED: u8 = 2;

static WANTED: AtomicU8 = AtomicU8::new(0);
static RECORDING: Mutex<Recording> = Mutex::new(Recording { calls: Vec::new(), timer: None, memory: None });
/// The device's thread, on which calls are ranges for NVIDIA's tools.
static RANGES: OnceLock<Queue> = OnceLock::new();

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
    /// The time of its kernels on the device without the calls inside it, if [`Watch::DeviceTime`] was asked for.
    pub on_device: Option<Duration>,
    /// Bytes before and after it, if [`Watch::Memory`] was asked for.
    pub live_bytes: Option<[u64; 2]>,
}

/// Returns the bytes of memory in use. It is called while an operator runs, so it must not call one.
pub type MemoryProbe = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// What is recorded of each call besides its time on the host.
#[derive(Clone)]
pub enum Watch {
    /// Nothing.
    Host,
    /// The time of its kernels, from events in the queue of a GPU. Kernels of CUDA graphs are enqueued by no call.
    DeviceTime(Device),
    /// The memory in use before and after it. Asking takes time, which is then part of the calls around it.
    Memory(MemoryProbe),
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "Host",
            Self::DeviceTime(_) => "DeviceTime",
            Self::Memory(_) => "Memory",
        })
    }
}

/// The calls so far, with their numbers on the timer.
struct Recording {
    calls: Vec<(Call, Option<usize>)>,
    timer: Option<Arc<Timer>>,
    memory: Option<MemoryProbe>,
}

/// Starts to record the calls of all threads. Forgets earlier ones.
pub fn start(watch: Watch) {
    let (timer, memory) = match watch {
        Watch::Host => (None, None),
        Watch::DeviceTime(device) => (Timer::of(&device).map(Arc::new), None),
        Watch::Memory(probe) => (None, Some(probe)),
    };
    *lock() = Recording { calls: Vec::new(), timer, memory };
    WANTED.fetch_or(RECORDED, Ordering::Relaxed);
}

/// Stops recording, and returns the calls since [`start`] in the order in which they returned. For the time on the device, it must have
/// nothing left to do.
pub fn stop() -> Vec<Call> {
    WANTED.fetch_and(!RECORDED, Ordering::Relaxed);
    let Recording { calls, timer, .. } = std::mem::replace(&mut *lock(), Recording::NONE);
    let times = timer.map_or(Vec::new(), |timer| timer.take());
    // Calls return after the calls inside them.
    let mut inside: Vec<Duration> = Vec::new();
    let timed = |(call, number): (Call, Option<usize>)| {
        inside.resize(inside.len().max(call.depth + 2), Duration::ZERO);
        let within = std::mem::take(&mut inside[call.depth + 1]);
        let whole = number.and_then(|number| *times.get(number)?);
        inside[call.depth] += whole.unwrap_or(within);
        Call { on_device: whole.map(|whole| whole.saturating_sub(within)), ..call }
    };
    calls.into_iter().map(timed).collect()
}

/// Returns the bytes of live tensors on a GPU; `None` on the CPU. A [`MemoryProbe`] may call it: what the backend has not launched yet is not
/// counted, and nobody waits for the device.
pub fn bytes_in_use(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    return crate::device_queue::bytes_in_use(device);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

/// From here on, calls on a GPU are [`ranges`] of the thread that launches their kernels, if one of NVIDIA's tools has started this process.
/// Tools can then choose kernels by operator. The first device counts.
pub fn name_for_tools(device: &Device) {
    if ranges::are_wanted()
        && let Some(queue) = Queue::of(device)
    {
        RANGES.get_or_init(|| queue);
        WANTED.fetch_or(NAMED, Ordering::Relaxed);
    }
}

impl Recording {
    const NONE: Self = Self { calls: Vec::new(), timer: None, memory: None };
}

/// What an operator says about a call: its name, its sizes and its work.
pub(crate) type Description = (&'static str, Vec<usize>, Work);

/// A call in progress, which ends when this is dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct Running {
    description: Description,
    started: Instant,
    /// The timer, and the number of the call on it.
    timed: Option<(Arc<Timer>, usize)>,
    /// The probe, and the bytes before the call.
    memory: Option<(MemoryProbe, Option<u64>)>,
}

/// Begins a call, if somebody wants to know about it.
#[inline]
pub(crate) fn begin(describe: impl FnOnce() -> Description) -> Option<Running> {
    match WANTED.load(Ordering::Relaxed) {
        0 => None,
        wanted => Some(Running::begin(describe(), wanted)),
    }
}

impl Running {
    fn begin(description: Description, wanted: u8) -> Self {
        INSIDE.with_borrow_mut(|inside| inside.push(Duration::ZERO));
        if let (true, Some(queue)) = (wanted & NAMED != 0, RANGES.get()) {
            queue.push_range(description.0);
        }
        let (timer, memory) = match wanted & RECORDED {
            0 => (None, None),
            _ => {
                let recording = lock();
                (recording.timer.clone(), recording.memory.clone())
            }
        };
        let memory = memory.map(|probe| (probe.clone(), probe()));
        let timed = timer.map(|timer| (timer.clone(), timer.begin()));
        Self { description, started: Instant::now(), timed, memory }
    }
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

        let number = self.timed.take().map(|(timer, number)| {
            timer.end(number);
            number
        });
        let wanted = WANTED.load(Ordering::Relaxed);
        if let (true, Some(queue)) = (wanted & NAMED != 0, RANGES.get()) {
            queue.pop_range();
        }
        // A call that began while others were recorded ends after the recording.
        if wanted & RECORDED == 0 {
            return;
        }

        let live_bytes = self.memory.take().and_then(|(probe, before)| Some([before?, probe()?]));
        let (operator, sizes, work) = std::mem::take(&mut self.description);
        let (started, own) = (self.started, whole.saturating_sub(inside));
        let call = Call { operator, sizes, work, started, ended, own, depth, on_device: None, live_bytes };
        lock().calls.push((call, number));
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

fn lock() -> std::sync::MutexGuard<'static, Recording> {
    RECORDING.lock().unwrap_or_else(PoisonError::into_inner)
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
        start(Watch::Memory(Arc::new(|| Some(7))));
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
        assert_eq!((inner.live_bytes, inner.on_device), (Some([7, 7]), None));
        assert!(outer.own >= Duration::from_millis(4) && outer.own + inner.own <= outer.ended - outer.started);
        start(Watch::Host);
        assert!(stop().iter().all(|call| !call.operator.starts_with("test ")), "a recording starts empty");
    }
}
