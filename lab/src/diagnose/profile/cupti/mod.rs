//! CUPTI, the profiling library of NVIDIA's driver: the functions of its activity API that a profile needs.
//!
//! Declared after `cupti_activity.h` of CUDA 12.9 and 13.5. The library is opened when a profile of a GPU is taken, and stays open:
//! the driver may call back until the process ends.

#![expect(unsafe_code, reason = "CUPTI is a C library")]

mod activity;
mod search;

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use libloading::Library;

pub(super) use self::activity::{Activity, What};

/// `CUPTI_SUCCESS`
const SUCCESS: c_int = 0;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: also buffers that are not full.
const FLUSH_FORCED: u32 = 1;
/// Bytes of a buffer of records, in words of 8 bytes, to which records are aligned.
const BUFFER_WORDS: usize = 1 << 17;
/// More records are counted and dropped: about 400 MB of them.
const MOST_RECORDS: usize = 4_000_000;

type RequestBuffer = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type NextRecord = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;
type CompleteBuffer = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// CUPTI's functions.
pub(super) struct Cupti {
    get_timestamp: unsafe extern "C" fn(*mut u64) -> c_int,
    register: unsafe extern "C" fn(RequestBuffer, CompleteBuffer) -> c_int,
    enable: unsafe extern "C" fn(u32) -> c_int,
    disable: unsafe extern "C" fn(u32) -> c_int,
    flush: unsafe extern "C" fn(u32) -> c_int,
    next_record: NextRecord,
    n_dropped: unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> c_int,
    result_string: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    /// `CUPTI_API_VERSION`: 28 for CUDA 12.9, 130500 for CUDA 13.5.
    pub(super) version: u32,
    _library: Library,
}

/// The records so far. The names of kernels are looked up when their record arrives.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) activities: Vec<(Activity, String)>,
    pub(super) n_dropped: u64,
}

static COLLECTED: Mutex<Collected> = Mutex::new(Collected { activities: Vec::new(), n_dropped: 0 });
static CUPTI: OnceLock<Result<Cupti, String>> = OnceLock::new();

/// Opens CUPTI, once per process.
///
/// # Errors
/// A sentence about where it was looked for.
pub(super) fn cupti() -> Result<&'static Cupti, String> {
    CUPTI.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Cupti, String> {
    let candidates = search::candidates(&|name| env::var_os(name), Path::new("/"));
    let mut refused = Vec::new();
    for path in &candidates {
        match Cupti::open(path) {
            Ok(cupti) => return Ok(cupti),
            Err(error) => refused.push(format!("{}: {error}", path.display())),
        }
    }
    Err(format!(
        "CUPTI, the driver's profiling library, was not found ({}); install it with the CUDA toolkit or the Python package \
         nvidia-cuda-cupti, and name the file with KILN_CUPTI",
        refused.join("; ")
    ))
}

impl Cupti {
    fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: CUPTI's initializers do nothing but set up the library's own state.
        let library = unsafe { Library::new(path) }.map_err(reason)?;
        let missing = reason;
        let mut version = 0;
        // SAFETY: the types follow `cupti_activity.h` and `cupti_version.h`, and the library outlives the pointers.
        unsafe {
            let get_version: unsafe extern "C" fn(*mut u32) -> c_int =
                *library.get("cuptiGetVersion").map_err(missing)?;
            if get_version(&raw mut version) != SUCCESS {
                return Err("it does not work with this driver".into());
            }

            Ok(Self {
                get_timestamp: *library.get("cuptiGetTimestamp").map_err(missing)?,
                register: *library.get("cuptiActivityRegisterCallbacks").map_err(missing)?,
                enable: *library.get("cuptiActivityEnable").map_err(missing)?,
                disable: *library.get("cuptiActivityDisable").map_err(missing)?,
                flush: *library.get("cuptiActivityFlushAll").map_err(missing)?,
                next_record: *library.get("cuptiActivityGetNextRecord").map_err(missing)?,
                n_dropped: *library.get("cuptiActivityGetNumDroppedRecords").map_err(missing)?,
                result_string: *library.get("cuptiGetResultString").map_err(missing)?,
                version,
                _library: library,
            })
        }
    }

    /// Starts to collect kernels, copies and fills of all contexts of this process.
    ///
    /// # Errors
    /// CUPTI's message, for example if another profiler is attached.
    pub(super) fn start(&'static self) -> Result<(), String> {
        // SAFETY: both functions have the types that CUPTI calls, and live as long as the process.
        self.check("registering buffers", unsafe { (self.register)(request_buffer, complete_buffer) })?;
        for kind in activity::KINDS {
            // SAFETY: a call without pointers.
            self.check("enabling records", unsafe { (self.enable)(kind) })?;
        }
        Ok(())
    }

    /// Returns what was collected since the last call. The device must have nothing to do.
    ///
    /// # Errors
    /// CUPTI's message.
    pub(super) fn take(&'static self) -> Result<Collected, String> {
        // SAFETY: a call without pointers.
        self.check("flushing records", unsafe { (self.flush)(FLUSH_FORCED) })?;
        Ok(std::mem::take(&mut *collected()))
    }

    /// Stops collecting.
    pub(super) fn stop(&'static self) {
        for kind in activity::KINDS {
            // SAFETY: a call without pointers. A kind that was not enabled is refused, which changes nothing.
            unsafe { (self.disable)(kind) };
        }
    }

    /// Returns a moment on CUPTI's clock, in nanoseconds, and on the host's.
    ///
    /// # Errors
    /// CUPTI's message.
    pub(super) fn now(&self) -> Result<(u64, Instant), String> {
        let (mut at, before) = (0, Instant::now());
        // SAFETY: the pointer is valid during the call.
        self.check("reading the clock", unsafe { (self.get_timestamp)(&raw mut at) })?;
        Ok((at, before + before.elapsed() / 2))
    }

    fn check(&self, what: &str, result: c_int) -> Result<(), String> {
        if result == SUCCESS {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the pointer is valid during the call.
        unsafe { (self.result_string)(result, &raw mut text) };
        // SAFETY: CUPTI's texts are constants that end with a zero.
        let text = if text.is_null() { "unknown".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy() };
        let hint = match text.contains("INSUFFICIENT_PRIVILEGES") {
            true => "; the administrator of this machine allows only privileged users to profile",
            false => "",
        };
        Err(format!("CUPTI, {what}: error {result} ({text}){hint}"))
    }
}

/// Returns what the linker says, which is the source of the library's own error.
fn reason(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn collected() -> MutexGuard<'static, Collected> {
    COLLECTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives CUPTI a buffer.
extern "C" fn request_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let words = vec![0_u64; BUFFER_WORDS].into_boxed_slice();
    // SAFETY: CUPTI passes three valid pointers. The buffer is freed in `complete_buffer`.
    unsafe {
        *buffer = Box::into_raw(words).cast::<u8>();
        *size = BUFFER_WORDS * size_of::<u64>();
        *max_records = 0; // as many as fit
    }
}

/// Reads a buffer that CUPTI has filled up to `valid` bytes, and frees it.
extern "C" fn complete_buffer(context: *mut c_void, stream: u32, buffer: *mut u8, _size: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    // SAFETY: every buffer comes from `request_buffer`, and CUPTI gives it back once.
    let words = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), BUFFER_WORDS)) };
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let bytes = &bytes[..valid.min(bytes.len())];
    let Some(Ok(cupti)) = CUPTI.get() else { return };

    let mut collected = collected();
    read_buffer(cupti.next_record, bytes, &mut collected);
    let mut dropped = 0;
    // SAFETY: the context and the stream are those that CUPTI has passed, and the pointer is valid during the call.
    if unsafe { (cupti.n_dropped)(context, stream, &raw mut dropped) } == SUCCESS {
        collected.n_dropped += dropped as u64;
    }
}

/// Adds the records of a buffer, through which `next_record` steps.
fn read_buffer(next_record: NextRecord, bytes: &[u8], collected: &mut Collected) {
    let buffer = bytes.as_ptr().cast_mut();
    let mut record = null_mut();
    // SAFETY: CUPTI reads the buffer, which is valid, and `record` is null or what the last call has returned.
    while unsafe { next_record(buffer, bytes.len(), &raw mut record) } == SUCCESS {
        let Some(offset) = (record as usize).checked_sub(buffer as usize).filter(|at| *at < bytes.len()) else { break };
        let Some(activity) = activity::read(&bytes[offset..]) else { continue };
        if collected.activities.len() >= MOST_RECORDS {
            collected.n_dropped += 1;
            continue;
        }
        let name = if let What::Kernel { name, .. } = activity.what { name_at(name) } else { String::new() };
        collected.activities.push((activity, name));
    }
}

/// Reads the name of a kernel.
fn name_at(address: u64) -> String {
    let name = address as usize as *const c_char;
    if name.is_null() {
        return "unnamed".into();
    }
    // SAFETY: the record has just been delivered, and CUPTI keeps the names of kernels while their module is loaded.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lays kernels out in a buffer as CUPTI does, and steps through them with a function like CUPTI's.
    #[test]
    fn a_buffer_is_read_to_its_end_and_freed() {
        const RECORD: usize = 248;
        unsafe extern "C" fn next(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> c_int {
            // SAFETY: the reader passes its own pointers, and the records of this test lie one after the other.
            unsafe {
                let at = if (*record).is_null() { buffer } else { (*record).add(RECORD) };
                if at as usize + RECORD > buffer as usize + valid {
                    return 12; // CUPTI_ERROR_MAX_LIMIT_REACHED
                }
                *record = at;
                SUCCESS
            }
        }
        let (mut buffer, mut size, mut most) = (null_mut(), 0, 1);
        request_buffer(&raw mut buffer, &raw mut size, &raw mut most);
        assert_eq!((size, most, buffer as usize % 8), (1 << 20, 0, 0));

        let name = c"gemm_f32_0a1b2c3d";
        for (at, end) in [(0, 20_u64), (1, 30)] {
            let field = |offset: usize, value: &[u8]| {
                for (i, byte) in value.iter().enumerate() {
                    // SAFETY: two records fit into the buffer.
                    unsafe { *buffer.add(at * RECORD + offset + i) = *byte };
                }
            };
            field(0, &10_u32.to_ne_bytes());
            field(24, &end.to_ne_bytes());
            field(104, &(name.as_ptr() as u64).to_ne_bytes());
        }

        let mut found = Collected::default();
        // SAFETY: the buffer is the one that was requested.
        read_buffer(next, unsafe { std::slice::from_raw_parts(buffer, 2 * RECORD) }, &mut found);
        let found: Vec<_> = found.activities.iter().map(|(activity, name)| (name.as_str(), activity.end)).collect();
        assert_eq!(found, [("gemm_f32_0a1b2c3d", 20), ("gemm_f32_0a1b2c3d", 30)]);
        // Without an open library nothing is read, but the buffer is freed.
        complete_buffer(null_mut(), 0, buffer, size, 2 * RECORD);
        assert_eq!(name_at(0), "unnamed");
    }

    #[test]
    fn a_file_that_is_not_cupti_is_refused_in_words() {
        let error = Cupti::open(Path::new("/nothing/libcupti.so.13")).err().expect("no such file");
        assert!(error.contains("libcupti.so.13"), "{error}");
    }
}
