//! A kernel as a program: compiled, kept and loaded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_void};
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use cubecl::device::DeviceId;
use cubecl::ir::nvidia::SmArch;
use cubecl::prelude::*;
use cubecl::{CompilationError, Compiler, CubeKernel};
use cubecl_llvm::nvptx::ptx_version::PtxVersion;
use cubecl_llvm::target::LlvmTarget;
use cubecl_llvm::{NvptxModule, PlironArtifact, PlironCompiler, PlironOptions};
use cudarc::driver::result::{function, module};
use cudarc::driver::sys::{self, CUfunction, CUjit_option};

use crate::device_queue::make_current;

/// Bytes of the assembler's report that an error shows.
const REPORT: usize = 4096;
/// The beginning of a program's first line. The bytes of shared memory follow.
const HEADER: &str = "// shared memory: ";

/// A kernel on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    pub(super) function: CUfunction,
    pub(super) threads: u32,
    pub(super) shared_memory: u32,
}

// SAFETY: a function is a handle of the driver, which any thread may use.
unsafe impl Send for Program {}
// SAFETY: the same.
unsafe impl Sync for Program {}

/// A program, or why it does not run.
type Made = Arc<OnceLock<Result<Program, String>>>;

static PROGRAMS: LazyLock<Mutex<HashMap<(DeviceId, KernelId), Made>>> = LazyLock::new(Mutex::default);
static FOLDER: OnceLock<PathBuf> = OnceLock::new();
static IS_COLLECTING: AtomicBool = AtomicBool::new(false);
static AHEAD: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());
static COMPILED: AtomicUsize = AtomicUsize::new(0);
static LOADED: AtomicUsize = AtomicUsize::new(0);

/// Keeps programs in `folder` between processes. Later calls have no effect.
pub(crate) fn keep(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

/// Sets whether programs are compiled by threads of their own and not launched.
pub(crate) fn collect(is_collecting: bool) {
    IS_COLLECTING.store(is_collecting, Ordering::Relaxed);
}

/// Waits for the programs that are being compiled ahead.
pub(crate) fn await_collected() {
    let ahead = std::mem::take(&mut *lock(&AHEAD));
    for thread in ahead {
        // A panic is met again at the launch.
        let _ = thread.join();
    }
}

/// Returns how many programs this process has compiled, and how many it has loaded from the folder.
pub(crate) fn counts() -> (usize, usize) {
    (COMPILED.load(Ordering::Relaxed), LOADED.load(Ordering::Relaxed))
}

/// Makes `kernel` on `device` in a thread of its own, if programs are collected. Returns whether they are.
pub(super) fn is_collected(device: DeviceId, kernel: &Arc<dyn CubeKernel>) -> bool {
    if !IS_COLLECTING.load(Ordering::Relaxed) {
        return false;
    }
    if let Entry::Vacant(entry) = lock(&PROGRAMS).entry((device, kernel.id())) {
        entry.insert(Made::default());
        let kernel = kernel.clone();
        lock(&AHEAD).push(thread::spawn(move || drop(Program::of(device, &*kernel))));
    }
    true
}

impl Program {
    /// Returns `kernel` on `device`, which is compiled and loaded if nobody has asked for it before.
    pub(super) fn of(device: DeviceId, kernel: &dyn CubeKernel) -> Result<Self, String> {
        let made = lock(&PROGRAMS).entry((device, kernel.id())).or_default().clone();
        made.get_or_init(|| Self::made(device, kernel)).clone()
    }

    fn made(device: DeviceId, kernel: &dyn CubeKernel) -> Result<Self, String> {
        make_current(device.index_id.into()).map_err(in_words)?;
        let version = driver_version()?;
        let kept = FOLDER.get().map(|folder| folder.join(file_name(kernel, version)));
        let known = kept.as_deref().and_then(|path| fs::read_to_string(path).ok());
        if let Some(program) = known.as_deref().and_then(|code| Self::loaded(kernel, code).ok()) {
            LOADED.fetch_add(1, Ordering::Relaxed);
            return Ok(program);
        }

        let code = compiled(kernel, version)?;
        let program = Self::loaded(kernel, &code)?;
        COMPILED.fetch_add(1, Ordering::Relaxed);
        if let Some(path) = kept {
            // The next process compiles what cannot be kept.
            let _ = write(&path, &code);
        }
        Ok(program)
    }

    /// Loads the program of `code` for the device whose context is current.
    fn loaded(kernel: &dyn CubeKernel, code: &str) -> Result<Self, String> {
        let (shared_memory, name) =
            shared_memory(code).zip(entry(code)).ok_or("a program lacks its header or its entry")?;
        let text = CString::new(code).map_err(|error| error.to_string())?;
        let dim = kernel.id().cube_dim;
        let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the text ends with a zero and names its entry. Nobody unloads it.
        let function = unsafe {
            let module = load(&text)?;
            let function = module::get_function(module, name).map_err(in_words)?;
            function::set_function_attribute(function, most, shared_memory as i32).map_err(in_words)?;
            function
        };
        Ok(Self { function, threads: dim.x * dim.y * dim.z, shared_memory })
    }
}

/// Returns the PTX of `kernel` for Hopper and a driver of `version`, behind a line with the bytes of its shared memory.
fn compiled(kernel: &dyn CubeKernel, version: i32) -> Result<String, String> {
    let code = compile(kernel.define(), SmArch::new(90, true), version).map_err(in_words)?;
    Ok(format!("{HEADER}{}\n{}", code.shared_memory_size, text_of(&code)))
}

/// Compiles a kernel for `architecture` and a driver of `version`. Its scalars are parameters, as in kernels that CubeCL loads: the assembler
/// knows them to be uniform, and a kernel that reads its scalars from memory is a different kernel.
pub(crate) fn compile(
    definition: KernelDefinition,
    architecture: SmArch,
    version: i32,
) -> Result<NvptxModule, CompilationError> {
    let mut compiler = PlironCompiler { target: LlvmTarget::Nvptx };
    let options = PlironOptions {
        sm_arch: Some(architecture),
        ptx_version: PtxVersion::for_driver(version),
        grid_constants: true,
        ..Default::default()
    };
    match compiler.compile(definition, &options)? {
        PlironArtifact::NvptxCode(code) => Ok(code),
        _ => unreachable!("the NVPTX target returns PTX"),
    }
}

/// Returns the PTX as text.
pub(crate) fn text_of(code: &NvptxModule) -> String {
    code.ptx.iter().map(|&c| char::from(c as u8)).take_while(|&c| c != '\0').collect()
}

/// Loads a module. An error has the assembler's report.
///
/// # Safety
/// A context is current.
unsafe fn load(text: &CString) -> Result<sys::CUmodule, String> {
    let mut report = vec![0u8; REPORT];
    let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [report.as_mut_ptr().cast(), REPORT as *mut c_void];
    let mut module = null_mut();
    // SAFETY: there are two options, and the report is as long as the second says.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let said = || String::from_utf8_lossy(&report).trim_end_matches('\0').trim().to_owned();
    result.result().map(|()| module).map_err(|error| format!("{error}: {}", said()))
}

fn shared_memory(code: &str) -> Option<u32> {
    code.lines().next()?.strip_prefix(HEADER)?.parse().ok()
}

/// Returns the name of the kernel in `code`.
fn entry(code: &str) -> Option<CString> {
    let (_, from) = code.split_once(".entry")?;
    let name = from.split('(').next()?.trim();
    CString::new(name).ok()
}

fn driver_version() -> Result<i32, String> {
    let mut version = 0;
    // SAFETY: the driver writes a number.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    result.result().map(|()| version).map_err(in_words)
}

/// Returns the name of the file of `kernel`: a hash of its type, of what it was compiled for, and of the driver's version.
fn file_name(kernel: &dyn CubeKernel, version: i32) -> String {
    format!("{}.ptx", &blake3::hash(format!("{:?} {version}", kernel.id()).as_bytes()).to_hex()[..32])
}

/// Writes a file so that other processes find all of it or nothing.
fn write(path: &Path, code: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let whole = folder.join(format!("{}.new", std::process::id()));
    fs::write(&whole, code)?;
    fs::rename(&whole, path)
}

pub(super) fn in_words(error: impl Display) -> String {
    error.to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str =
        "// shared memory: 65536\n.version 9.0\n.visible .entry in_turns_1f(\n\t.param .u64 a\n)\n{\n}\n";

    #[test]
    fn a_program_says_its_memory_and_its_entry() {
        assert_eq!(shared_memory(CODE), Some(65_536));
        assert_eq!(entry(CODE).as_deref(), Some(c"in_turns_1f"));
        assert_eq!(shared_memory(".version 9.0\n"), None);
        assert_eq!(entry("// shared memory: 1\n"), None);
    }

    #[test]
    fn a_kept_program_is_whole_or_absent() {
        let folder = std::env::temp_dir().join(format!("kiln-programs-{}", std::process::id()));
        let path = folder.join("a.ptx");
        write(&path, CODE).expect("writable");
        write(&path, CODE).expect("writable");
        let names: Vec<_> =
            fs::read_dir(&folder).expect("there").map(|entry| entry.expect("there").file_name()).collect();
        let kept = fs::read_to_string(&path).expect("there");
        fs::remove_dir_all(&folder).expect("there");
        assert_eq!((names, kept.as_str()), (vec!["a.ptx".into()], CODE));
    }
}
