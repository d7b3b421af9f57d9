//! The functions of NCCL that collectives need, declared after `nccl.h` of NCCL 2.14 to 2.30.

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::path::Path;
use std::ptr::null_mut;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::error::NcclError;

/// `ncclSuccess` and `ncclInProgress`: a communicator that does not block returns the second until it is done.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `ncclUint8`: operations that only move numbers move bytes.
const BYTES: c_int = 1;
/// `NCCL_CONFIG_UNDEF_INT`
const UNDEFINED: c_int = c_int::MIN;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawId([u8; 128]);

/// `ncclConfig_t` of NCCL 2.14. Newer versions read its size and version, and use defaults for their own fields.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    padding: c_int,
}

/// A communicator, `ncclComm_t`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comm(*mut c_void);

// SAFETY: any thread may use a communicator, but only one at a time; its owner keeps it behind a mutex.
unsafe impl Send for Comm {}

macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*);)*) => {
        /// NCCL's functions, and the library that contains them.
        pub(super) struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            get_last_error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
            _library: Library,
        }

        impl Functions {
            /// Opens a library by its path, or by a name that the linker looks for.
            ///
            /// # Errors
            /// The linker's message.
            pub(super) fn open(path: &Path) -> Result<Self, String> {
                // SAFETY: NCCL's initializers do nothing but set up the library's own state.
                let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
                let missing = |error: libloading::Error| error.to_string();
                // SAFETY: the types follow `nccl.h`, and the library outlives the pointers.
                unsafe {
                    Ok(Self {
                        $($field: *library.get($symbol).map_err(missing)?,)*
                        get_last_error: *library.get("ncclGetLastError").map_err(missing)?,
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    get_version "ncclGetVersion" (*mut c_int);
    get_unique_id "ncclGetUniqueId" (*mut RawId);
    init_rank "ncclCommInitRankConfig" (*mut *mut c_void, c_int, RawId, c_int, *mut Config);
    get_async_error "ncclCommGetAsyncError" (*mut c_void, *mut c_int);
    abort "ncclCommAbort" (*mut c_void);
    group_start "ncclGroupStart" ();
    group_end "ncclGroupEnd" ();
    send "ncclSend" (*const c_void, usize, c_int, c_int, *mut c_void, CUstream);
    receive "ncclRecv" (*mut c_void, usize, c_int, c_int, *mut c_void, CUstream);
    broadcast "ncclBroadcast" (*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, CUstream);
    all_gather "ncclAllGather" (*const c_void, *mut c_void, usize, c_int, *mut c_void, CUstream);
}

/// Bytes in device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

impl Span {
    fn pointer(self) -> *mut c_void {
        self.address as *mut c_void
    }
}

impl Functions {
    /// Returns the version, `(major, minor, patch)`.
    pub(super) fn version(&self) -> Result<(u32, u32, u32), NcclError> {
        let mut version = 0;
        // SAFETY: writes one integer.
        let code = unsafe { (self.get_version)(&mut version) };
        self.checked("ncclGetVersion", code)?;

        let version = version.unsigned_abs();
        // Before 2.9 the code was 1000 * major + 100 * minor + patch.
        let unit = if version < 10_000 { 1000 } else { 10_000 };
        Ok((version / unit, version % unit / 100, version % 100))
    }

    pub(super) fn unique_id(&self) -> Result<[u8; 128], NcclError> {
        let mut id = RawId([0; 128]);
        // SAFETY: writes 128 bytes.
        let code = unsafe { (self.get_unique_id)(&mut id) };
        self.checked("ncclGetUniqueId", code).map(|()| id.0)
    }

    /// Begins to join, on the device whose context is current. The communicator is usable once [`Self::is_ready`].
    pub(super) fn join(&self, id: &[u8; 128], rank: usize, world_size: usize) -> Result<Comm, NcclError> {
        let mut comm = null_mut();
        let mut config =
            Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21400, blocking: 0, padding: UNDEFINED };
        // SAFETY: NCCL copies the id and as much of the configuration as `size` says, and writes one pointer.
        let code = unsafe { (self.init_rank)(&mut comm, world_size as c_int, RawId(*id), rank as c_int, &mut config) };
        self.checked("ncclCommInitRankConfig", code)?;
        Ok(Comm(comm))
    }

    /// Returns whether all calls so far have been carried out by the host; `what` names them in errors. Errors of the
    /// network come to light here, too.
    pub(super) fn is_ready(&self, comm: Comm, what: &'static str) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator has not been aborted; writes one integer.
        let code = unsafe { (self.get_async_error)(comm.0, &mut state) };
        self.checked("ncclCommGetAsyncError", code)?;
        self.checked(what, state)?;
        Ok(state == SUCCESS)
    }

    /// Ends all operations of the communicator and frees it. Nobody may use it afterwards.
    pub(super) fn abort(&self, comm: Comm) {
        // SAFETY: the owner has given the communicator up, so this is its last use. An error has no consequence.
        let _ = unsafe { (self.abort)(comm.0) };
    }

    /// Enqueues the operations that `operations` calls as one. They may then run at the same time.
    pub(super) fn group(&self, operations: impl FnOnce() -> Result<(), NcclError>) -> Result<(), NcclError> {
        // SAFETY: starts a group of this thread, which is ended below whatever happens.
        self.checked("ncclGroupStart", unsafe { (self.group_start)() })?;
        let called = operations();
        // SAFETY: the group was started above.
        let ended = self.checked("ncclGroupEnd", unsafe { (self.group_end)() });
        called.and(ended)
    }

    /// # Safety
    /// `span` lies in the device's memory until the stream has reached the end of the operation.
    pub(super) unsafe fn send(&self, comm: Comm, span: Span, peer: usize, queue: CUstream) -> Result<(), NcclError> {
        // SAFETY: the caller's.
        let code = unsafe { (self.send)(span.pointer(), span.bytes, BYTES, peer as c_int, comm.0, queue) };
        self.checked("ncclSend", code)
    }

    /// # Safety
    /// As for [`Self::send`]; nothing else may use `span` meanwhile.
    pub(super) unsafe fn receive(&self, comm: Comm, span: Span, peer: usize, queue: CUstream) -> Result<(), NcclError> {
        // SAFETY: the caller's.
        let code = unsafe { (self.receive)(span.pointer(), span.bytes, BYTES, peer as c_int, comm.0, queue) };
        self.checked("ncclRecv", code)
    }

    /// Sends `span` of rank `root` to the same place of all others.
    ///
    /// # Safety
    /// As for [`Self::receive`].
    pub(super) unsafe fn broadcast(
        &self,
        comm: Comm,
        span: Span,
        root: usize,
        queue: CUstream,
    ) -> Result<(), NcclError> {
        let at = span.pointer();
        // SAFETY: the caller's. NCCL allows the two buffers to be the same.
        let code = unsafe { (self.broadcast)(at, at, span.bytes, BYTES, root as c_int, comm.0, queue) };
        self.checked("ncclBroadcast", code)
    }

    /// Sends `own` to all ranks. `all` holds the ranks' spans of one length, one behind the other, and `own` is one of
    /// them.
    ///
    /// # Safety
    /// As for [`Self::receive`].
    pub(super) unsafe fn all_gather(&self, comm: Comm, own: Span, all: Span, queue: CUstream) -> Result<(), NcclError> {
        // SAFETY: the caller's. NCCL gathers in place if `own` lies where it would be received.
        let code = unsafe { (self.all_gather)(own.pointer(), all.pointer(), own.bytes, BYTES, comm.0, queue) };
        self.checked("ncclAllGather", code)
    }

    fn checked(&self, function: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }

        // SAFETY: returns a string of the library, which needs no communicator.
        let text = unsafe { (self.get_last_error)(null_mut()) };
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: the string ends with a zero and is copied at once.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        };
        let detail = if text.is_empty() { text } else { format!(": {text}") };
        Err(NcclError::Failed { function, code, detail })
    }
}
