//! Named ranges on the time lines of NVIDIA's tools, Nsight Systems and Nsight Compute (NVTX).
//!
//! A tool that starts this process names a library of its own in `NVTX_INJECTION64_PATH`. The library is opened at the first range,
//! and gives the functions that begin and end one. Without a tool, a range costs one load. The protocol and the numbers are declared after
//! `nvtxTypes.h` and `nvtxInit.h` of NVTX 3.

#![expect(unsafe_code, reason = "the functions of a tool are C")]

use std::env;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::{forget, transmute};
use std::ptr::{from_ref, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// `NVTX_ETID_CALLBACKS` and `NVTX_ETID_VERSIONINFO`: the tables that a tool may ask for.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;
/// `NVTX_CB_MODULE_CORE`, which has the functions that are used here: `NVTX_CBID_CORE_RangePushA` and `_RangePop`.
const CORE: usize = 1;
const PUSH: usize = 9;
const POP: usize = 11;
/// Functions of each module, from `NVTX_CB_MODULE_INVALID` to `_SYNC`. A tool fills in what it wants to hear about.
const N_FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// The most functions of a module, and a null behind them.
const MOST: usize = 17;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
/// `NvtxGetExportTableFunc_t`
type GetTable = extern "C" fn(u32) -> *const c_void;
/// `NvtxInitializeInjectionNvtxFunc_t`
type Initialize = unsafe extern "C" fn(GetTable) -> c_int;
/// A function of the tool, or null.
type Slot = AtomicPtr<c_void>;

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct Callbacks {
    size: usize,
    get_functions: extern "C" fn(c_uint, *mut *mut *const Slot, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_version: extern "C" fn(u32),
}

static SLOTS: [[Slot; MOST]; N_FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; MOST] }; N_FUNCTIONS.len()];
static CALLBACK_TABLE: Callbacks = Callbacks { size: size_of::<Callbacks>(), get_functions };
static VERSION_TABLE: VersionInfo =
    VersionInfo { size: size_of::<VersionInfo>(), version: 3, reserved: 0, set_version };
static TOOL: OnceLock<Option<Tool>> = OnceLock::new();

/// The functions of a tool.
#[derive(Clone, Copy)]
struct Tool {
    push: Push,
    pop: Pop,
}

/// A range of this thread, which ends when this is dropped. Ranges of a thread nest.
#[must_use = "the range ends when this is dropped"]
#[derive(Debug)]
pub struct Range {
    /// A range belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Range {
    fn drop(&mut self) {
        pop();
    }
}

/// Returns whether a tool wants to hear about ranges.
pub fn are_wanted() -> bool {
    tool().is_some()
}

/// Begins a range of this thread, if a tool wants to hear about it.
pub fn range(name: &str) -> Option<Range> {
    are_wanted().then(|| {
        push(name);
        Range { _thread: PhantomData }
    })
}

/// Begins a range that [`pop`] ends, on the same thread.
pub(crate) fn push(name: &str) {
    if let (Some(tool), Ok(name)) = (tool(), CString::new(name)) {
        // SAFETY: the function has the type of `nvtxRangePushA`, and the name is valid during the call.
        unsafe { (tool.push)(name.as_ptr()) };
    }
}

pub(crate) fn pop() {
    if let Some(tool) = tool() {
        // SAFETY: the function has the type of `nvtxRangePop`.
        unsafe { (tool.pop)() };
    }
}

fn tool() -> Option<Tool> {
    *TOOL.get_or_init(|| {
        let path = env::var_os("NVTX_INJECTION64_PATH")?;
        // SAFETY: the user has started a tool, which has set the path of its library.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: the type is `NvtxInitializeInjectionNvtxFunc_t`.
        let initialize: Initialize = unsafe { *library.get("InitializeInjectionNvtx2").ok()? };
        let tool = attach(initialize);
        // The functions live as long as the library.
        forget(library);
        tool
    })
}

/// Lets a tool fill in its functions; `None` if it does not want to, or fails.
fn attach(initialize: Initialize) -> Option<Tool> {
    // SAFETY: the tool asks for tables through a function with the type of NVTX.
    if unsafe { initialize(get_table) } == 0 {
        return None;
    }
    let function = |number: usize| SLOTS[CORE][number].load(Ordering::Acquire);
    let (push, pop) = (function(PUSH), function(POP));
    // SAFETY: the tool has filled in functions of these types.
    (!push.is_null() && !pop.is_null()).then(|| unsafe {
        Tool { push: transmute::<*mut c_void, Push>(push), pop: transmute::<*mut c_void, Pop>(pop) }
    })
}

extern "C" fn get_table(number: u32) -> *const c_void {
    match number {
        CALLBACKS => from_ref(&CALLBACK_TABLE).cast(),
        VERSION_INFO => from_ref(&VERSION_TABLE).cast(),
        _ => null(),
    }
}

/// Gives a tool the addresses of the slots of a module, and their number.
extern "C" fn get_functions(module: c_uint, table: *mut *mut *const Slot, n: *mut c_uint) -> c_int {
    let Some(&n_functions) = N_FUNCTIONS.get(module as usize).filter(|n| **n > 0) else { return 0 };
    let addresses: Vec<*const Slot> = SLOTS[module as usize][..=n_functions]
        .iter()
        .enumerate()
        .map(|(at, slot)| if at < n_functions { from_ref(slot) } else { null() })
        .collect();
    // SAFETY: the tool passes valid pointers, or null. The table is never freed, because the tool may keep it.
    unsafe {
        if !n.is_null() {
            *n = n_functions as c_uint;
        }
        if !table.is_null() {
            *table = Vec::leak(addresses).as_mut_ptr();
        }
    }
    1
}

/// Tools say which version of NVTX they know; any will do.
extern "C" fn set_version(_version: u32) {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::CStr;

    use super::*;

    thread_local! {
        static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn hear_push(name: *const c_char) -> c_int {
        // SAFETY: the caller passes a text that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        HEARD.with_borrow_mut(|heard| heard.push(name));
        0
    }

    unsafe extern "C" fn hear_pop() -> c_int {
        HEARD.with_borrow_mut(|heard| heard.push("end".into()));
        0
    }

    /// Attaches as a tool does.
    unsafe extern "C" fn initialize(get_table: GetTable) -> c_int {
        assert!(get_table(77).is_null());
        // SAFETY: the tables have the types of NVTX, and the slots are written before anyone calls.
        unsafe {
            let version = &*get_table(VERSION_INFO).cast::<VersionInfo>();
            assert_eq!((version.size, version.version), (24, 3));
            (version.set_version)(3);

            let callbacks = &*get_table(CALLBACKS).cast::<Callbacks>();
            assert_eq!(callbacks.size, 16);
            let (mut table, mut n) = (null_mut(), 0);
            assert_eq!((callbacks.get_functions)(0, &raw mut table, &raw mut n), 0, "no such module");
            assert_eq!((callbacks.get_functions)(99, &raw mut table, &raw mut n), 0, "no such module");
            for (module, n_functions) in N_FUNCTIONS.iter().enumerate().skip(1) {
                assert_eq!((callbacks.get_functions)(module as c_uint, &raw mut table, &raw mut n), 1);
                assert_eq!(n as usize, *n_functions);
                assert!((*table.add(n as usize)).is_null(), "a null behind the last slot");
            }
            (callbacks.get_functions)(CORE as c_uint, &raw mut table, null_mut());
            (**table.add(PUSH)).store(hear_push as *mut c_void, Ordering::Release);
            (**table.add(POP)).store(hear_pop as *mut c_void, Ordering::Release);
        }
        1
    }

    unsafe extern "C" fn refuse(_get_table: GetTable) -> c_int {
        0
    }

    #[test]
    fn a_tool_hears_of_ranges_and_a_refusal_leaves_none() {
        assert!(attach(refuse).is_none());
        let tool = attach(initialize).expect("a tool");
        for name in [c"outer", c"inner"] {
            // SAFETY: the functions are the ones above.
            unsafe { (tool.push)(name.as_ptr()) };
        }
        // SAFETY: as above.
        unsafe { (tool.pop)() };
        assert_eq!(HEARD.take(), ["outer", "inner", "end"]);
    }

    #[test]
    fn without_a_tool_there_are_no_ranges() {
        if env::var_os("NVTX_INJECTION64_PATH").is_none() {
            assert!(!are_wanted() && range("step").is_none());
        }
    }
}
