//! `ptx.lock`: a hash of the PTX of every kernel that compiles without a device, and `ptxas.lock`: its registers and spills.
//!
//! A refactoring leaves both files alone. A change of speed changes them together with a results file. To write them anew:
//!
//! ```text
//! KILN_PTX_LOCK=write cargo test --release --features cuda -p kiln-kernels --lib ptx_lock
//! ```
//!
//! `ptxas.lock` needs NVIDIA's assembler: `KILN_PTXAS` names it, else `PATH` is searched. The Python package
//! `nvidia-cuda-nvcc` contains one.
//!
//! The device's own kernels can be checked too. `CUBECL_CUDA_DUMP_PTX=FOLDER kiln bench ...` writes the PTX of every kernel
//! that the run launches; with `KILN_PTX_LAUNCHED=FOLDER` this test prints the ones that `ptx.lock` does not contain.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsString, c_uint};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rayon::prelude::*;

use super::offline::Compiled;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

const PTX_HEADER: &str = "\
# BLAKE3 of the PTX of every kernel that compiles without a device, with its entry name and comments replaced first.
# A refactoring leaves this file alone; a change of speed changes it together with a results file.
# Write it anew: KILN_PTX_LOCK=write cargo test --release --features cuda -p kiln-kernels --lib ptx_lock
";

const PTXAS_HEADER: &str = "\
# What ptxas reports about each kernel of ptx.lock: registers per thread, bytes of stack and of spills, and whether it
# serialized the warpgroup products. Written together with ptx.lock.
";

/// The entry of a kernel that does not compile where NVIDIA's libdevice is missing. It is not compared.
const NEEDS_LIBDEVICE: &str = "needs-libdevice";

/// The kernels of every operator. `rotary` is absent: its sine and cosine need NVIDIA's libdevice.
pub(super) fn kernels() -> Vec<&'static Compiled> {
    let operators: [fn() -> &'static [Compiled]; 18] = [
        crate::activation::offline_kernels,
        crate::optim::offline_kernels,
        crate::attention::offline_kernels,
        crate::capture::offline_kernels,
        crate::collective::offline_kernels,
        crate::cross_entropy::offline_kernels,
        crate::dropout::offline_kernels,
        crate::embedding::offline_kernels,
        crate::head_norm::offline_kernels,
        crate::labelled::offline_kernels,
        crate::likeliest::offline_kernels,
        crate::linear::offline_kernels,
        crate::norm::offline_kernels,
        crate::random::offline_kernels,
        crate::reduce::offline_kernels,
        crate::row::offline_kernels,
        crate::step_attention::offline_kernels,
        crate::swiglu::offline_kernels,
    ];
    operators.par_iter().flat_map_iter(|kernels| kernels()).collect()
}

/// A lock file: what its entries depend on, and a line per kernel.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    /// Names and versions, as `cubecl 0.12.0, llvm 23.1.1`.
    toolchain: String,
    /// Label to hash, or to what the assembler reports.
    entries: BTreeMap<String, String>,
}

impl Lock {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let toolchain = lines.next()?.strip_prefix("toolchain: ")?.to_string();
        let entry = |line: &str| line.split_once(' ').map(|(label, entry)| (label.to_string(), entry.to_string()));
        Some(Self { toolchain, entries: lines.map(entry).collect::<Option<_>>()? })
    }

    fn to_text(&self, header: &str) -> String {
        let mut text = format!("{header}toolchain: {}\n\n", self.toolchain);
        for (label, entry) in &self.entries {
            writeln!(text, "{label} {entry}").expect("writing to a string");
        }
        text
    }

    /// Returns a line per kernel that differs, or the reason why the two cannot be compared.
    fn differences(&self, found: &Self) -> Result<Vec<String>, String> {
        if self.toolchain != found.toolchain {
            return Err(format!("written with {}, this build has {}", self.toolchain, found.toolchain));
        }
        let labels: BTreeSet<_> = self.entries.keys().chain(found.entries.keys()).collect();
        let differs = |label: &&String| match (self.entries.get(*label), found.entries.get(*label)) {
            (Some(locked), Some(found)) if locked == found => None,
            (Some(locked), Some(found)) if [locked, found].iter().any(|entry| *entry == NEEDS_LIBDEVICE) => None,
            (Some(locked), Some(found)) => Some(format!("{label}: {found}, locked {locked}")),
            (None, _) => Some(format!("{label}: not in the lock")),
            (_, None) => Some(format!("{label}: in the lock, but no longer compiled")),
        };
        Ok(labels.iter().filter_map(differs).collect())
    }
}

/// Returns `ptx` without what depends on names only: comments and blank lines, and the entry name, which contains a hash of the
/// kernel's module path and configuration.
fn normalized(ptx: &str) -> String {
    let code: String = ptx
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default().trim_end())
        .filter(|line| !line.is_empty())
        .flat_map(|line| [line, "\n"])
        .collect();
    match entry_name(&code) {
        Some(name) => code.replace(name, "kernel"),
        None => code,
    }
}

fn entry_name(ptx: &str) -> Option<&str> {
    ptx.split(".entry ").nth(1)?.split('(').next().map(str::trim)
}

fn hash(ptx: &str) -> String {
    blake3::hash(normalized(ptx).as_bytes()).to_hex().to_string()
}

/// Returns the versions of CubeCL and LLVM, on which the PTX depends.
fn toolchain() -> Result<String, String> {
    let file = Path::new(FOLDER).join("../../Cargo.lock");
    let packages = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let cubecl = packages
        .split("name = \"cubecl\"\nversion = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .ok_or_else(|| format!("{}: no package cubecl", file.display()))?;
    Ok(format!("cubecl {cubecl}, llvm {}", llvm_version()))
}

/// Returns the version of the LLVM that this test is linked with.
fn llvm_version() -> String {
    #[expect(unsafe_code, reason = "a function of LLVM's C interface")]
    unsafe extern "C" {
        fn LLVMGetVersion(major: *mut c_uint, minor: *mut c_uint, patch: *mut c_uint);
    }
    let [mut major, mut minor, mut patch] = [0; 3];
    // SAFETY: the three pointers are valid for the call, which writes through them.
    #[expect(unsafe_code, reason = "a function of LLVM's C interface")]
    unsafe {
        LLVMGetVersion(&mut major, &mut minor, &mut patch);
    }
    format!("{major}.{minor}.{patch}")
}

/// Whether `ptx.lock`, written with the versions of this build, has the kernel `label` with this `ptx`.
pub(super) fn has(label: &str, ptx: &str) -> bool {
    static LOCK: LazyLock<Option<Lock>> = LazyLock::new(|| {
        let lock = Lock::parse(&std::fs::read_to_string(Path::new(FOLDER).join("ptx.lock")).ok()?)?;
        (Ok(&lock.toolchain) == toolchain().as_ref()).then_some(lock)
    });
    LOCK.as_ref().and_then(|lock| lock.entries.get(label)).is_some_and(|locked| *locked == hash(ptx))
}

/// NVIDIA's assembler.
struct Ptxas {
    program: OsString,
    version: String,
}

impl Ptxas {
    fn find() -> Result<Self, String> {
        let program = std::env::var_os("KILN_PTXAS").unwrap_or_else(|| "ptxas".into());
        let name = program.to_string_lossy().into_owned();
        let output =
            Command::new(&program).arg("--version").output().map_err(|error| format!("{name} --version: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split(", V").nth(1).and_then(|rest| rest.split_whitespace().next());
        let version = version.ok_or_else(|| format!("{name} --version printed no version: {text}"))?.to_string();
        Ok(Self { program, version })
    }

    /// Assembles `ptx` as the driver does, and returns registers and spills. CubeCL's kernels could be linked to others, programs not.
    fn assemble(&self, label: &str, ptx: &str, architecture: &str) -> String {
        let name = format!("kiln-{}-{}-{architecture}.ptx", std::process::id(), label.replace('/', "_"));
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, ptx).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let is_program = ptx.contains("setmaxnreg");
        let output = Command::new(&self.program)
            .args((!is_program).then_some("-c"))
            .args(["-v", "-o", "/dev/null"])
            .arg(format!("-arch={architecture}"))
            .arg(&file)
            .output()
            .expect("an assembler that printed its version");
        let _ = std::fs::remove_file(&file);

        let report = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{label}: ptxas: {report}");
        summary(&report).unwrap_or_else(|| panic!("{label}: ptxas reports no registers: {report}"))
    }
}

/// Returns the numbers of a report of `ptxas -v`, on one line.
fn summary(report: &str) -> Option<String> {
    let before = |unit: &str| report.split(unit).next()?.split_whitespace().last();
    let registers = report.split("Used ").nth(1)?.split_whitespace().next()?;
    let stack = before(" bytes stack frame")?;
    let [stores, loads] = [before(" bytes spill stores")?, before(" bytes spill loads")?];
    let serialized = if report.contains("serialized") { " serialized" } else { "" };
    Some(format!("registers {registers} stack {stack} spill-stores {stores} spill-loads {loads}{serialized}"))
}

/// Returns what `ptxas` reports about each kernel: an entry per GPU where there are several.
fn assembled(kernels: &[&Compiled], ptxas: &Ptxas) -> BTreeMap<String, String> {
    let of = |kernel: &&Compiled| -> Vec<(String, String)> {
        let Compiled { label, ptx, architectures } = kernel;
        let Some(ptx) = ptx else { return vec![(label.clone(), NEEDS_LIBDEVICE.to_string())] };
        let name = |gpu: &str| if architectures.len() == 1 { label.clone() } else { format!("{label}@{gpu}") };
        architectures.iter().map(|gpu| (name(gpu), ptxas.assemble(label, ptx, gpu))).collect()
    };
    kernels.par_iter().flat_map_iter(of).collect()
}

/// Compares `found` with the file `name` and returns the differences, or writes the file if `KILN_PTX_LOCK=write`.
fn compare_or_write(name: &str, header: &str, found: &Lock) -> Vec<String> {
    let file = Path::new(FOLDER).join(name);
    if std::env::var("KILN_PTX_LOCK").is_ok_and(|mode| mode == "write") {
        std::fs::write(&file, found.to_text(header)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("{name}: {} kernels written", found.entries.len());
        return Vec::new();
    }

    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let locked = Lock::parse(&text).unwrap_or_else(|| panic!("{}: not a lock file", file.display()));
    match locked.differences(found) {
        Err(reason) => {
            println!("{name} not compared: {reason}");
            Vec::new()
        }
        Ok(differences) => differences.into_iter().map(|difference| format!("{name}: {difference}")).collect(),
    }
}

/// Prints the kernels in `folder`, dumped by a run on a device, that no entry of `lock` stands for.
fn print_unlocked(folder: &Path, lock: &Lock) {
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "ptx"));
    files.sort();

    let is_locked = |file: &PathBuf| {
        let ptx = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        lock.entries.values().any(|locked| *locked == hash(&ptx))
    };
    let unlocked: Vec<_> = files.iter().filter(|file| !is_locked(file)).collect();
    println!("{} of {} launched kernels are not in ptx.lock", unlocked.len(), files.len());
    for file in unlocked {
        println!("  {}", file.display());
    }
}

#[test]
fn ptx_lock() {
    let toolchain = match toolchain() {
        Ok(toolchain) => toolchain,
        Err(reason) => return println!("ptx.lock not compared: {reason}"),
    };
    let kernels = kernels();
    let entries = |entry: &(dyn Fn(&str, &str) -> String + Sync)| -> BTreeMap<String, String> {
        let of = |kernel: &&Compiled| match &kernel.ptx {
            Some(ptx) => (kernel.label.clone(), entry(&kernel.label, ptx)),
            None => (kernel.label.clone(), NEEDS_LIBDEVICE.to_string()),
        };
        kernels.par_iter().map(of).collect()
    };
    let hashes = entries(&|_, ptx| hash(ptx));
    assert_eq!(hashes.len(), kernels.len(), "two kernels have one label");

    let mut differences = Vec::new();
    match Ptxas::find() {
        Err(reason) => println!("ptxas.lock not compared: {reason}"),
        Ok(ptxas) => {
            let toolchain = format!("{toolchain}, ptxas {}", ptxas.version);
            let found = Lock { toolchain, entries: assembled(&kernels, &ptxas) };
            differences.extend(compare_or_write("ptxas.lock", PTXAS_HEADER, &found));
        }
    }

    let found = Lock { toolchain, entries: hashes };
    if let Some(folder) = std::env::var_os("KILN_PTX_LAUNCHED") {
        print_unlocked(Path::new(&folder), &found);
    }
    differences.extend(compare_or_write("ptx.lock", PTX_HEADER, &found));
    assert!(differences.is_empty(), "see the header of ptx.lock:\n{}", differences.join("\n"));
}

const PTX: &str = "\
//
// Generated by LLVM NVPTX Back-End
//

.version 9.0
.target sm_90a

\t// .globl\tadd_1f // -- Begin function add_1f
.visible .entry add_1f(
\t.param .u64 add_1f_param_0
)
{
\tld.param.u64 %rd1, [add_1f_param_0]; // the buffer
\tret;
}
";

#[test]
fn ptx_lock_ignores_names_and_comments() {
    let renamed = PTX.replace("add_1f", "sum_of_2e").replace("// the buffer", "// another");
    assert_eq!(hash(PTX), hash(&renamed));
    assert!(normalized(PTX).contains("[kernel_param_0];"), "{}", normalized(PTX));
}

#[test]
fn ptx_lock_sees_every_change() {
    let lock = |entries: &[(&str, &str)]| Lock {
        toolchain: "cubecl 1, llvm 2".into(),
        entries: entries.iter().map(|(label, ptx)| (label.to_string(), hash(ptx))).collect(),
    };
    let changed = PTX.replace("ret;", "trap;");
    let locked = lock(&[("a", PTX), ("b", PTX)]);
    assert_eq!(Lock::parse(&locked.to_text(PTX_HEADER)).as_ref(), Some(&locked), "read as written");
    assert_eq!(locked.differences(&locked), Ok(vec![]));

    let count = |found: &Lock| locked.differences(found).expect("one toolchain").len();
    assert_eq!(count(&lock(&[("a", PTX), ("b", &changed)])), 1, "an instruction");
    assert_eq!(count(&lock(&[("a", PTX)])), 1, "a kernel that is gone");
    assert_eq!(count(&lock(&[("a", PTX), ("b", PTX), ("c", PTX)])), 1, "a new kernel");
    let mut elsewhere = lock(&[("a", PTX), ("b", PTX)]);
    elsewhere.entries.insert("b".into(), NEEDS_LIBDEVICE.into());
    assert_eq!(count(&elsewhere), 0, "a kernel that does not compile there");
    let other = Lock { toolchain: "cubecl 1, llvm 3".into(), ..lock(&[]) };
    assert!(locked.differences(&other).is_err(), "another LLVM is not compared");
}

#[test]
fn registers_and_spills_are_read_from_the_assembler() {
    let report = "ptxas info    : Compiling entry function 'kernel' for 'sm_90a'\nptxas info    : Function properties for \
                  kernel\n    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\nptxas info    : Used 168 \
                  registers, used 1 barriers, 8 bytes cumulative stack size";
    assert_eq!(summary(report).as_deref(), Some("registers 168 stack 8 spill-stores 4 spill-loads 12"));
}
