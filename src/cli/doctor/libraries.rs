//! Finds GPUs, libraries and headers by their files, without loading anything.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The header that CubeCL's C++ compiler includes first.
pub(super) const CUDA_HEADERS: &str = "cuda_runtime.h";

/// The file that marks a complete LLVM folder for Burn's build.
const LLVM_MARKER: &str = ".tracel-llvm-installed";

/// Returns the names of the NVIDIA GPUs: from the driver if it is loaded, else from the PCI bus.
pub(super) fn nvidia_gpus(driver: &Path, pci_bus: &Path) -> Vec<String> {
    let models: Vec<_> = entries(&driver.join("gpus"))
        .iter()
        .filter_map(|gpu| field(&fs::read_to_string(gpu.join("information")).ok()?, "Model"))
        .collect();
    if !models.is_empty() {
        return models;
    }
    let is_gpu = |device: &PathBuf| {
        let read = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
        // Vendor NVIDIA, class display controller.
        read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
    };
    entries(pci_bus).iter().filter(|device| is_gpu(device)).map(|_| "NVIDIA GPU (driver not loaded)".into()).collect()
}

/// Reads the version, such as `535.104.05`, from `/proc/driver/nvidia/version`.
pub(super) fn driver_version(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// Finds a shared library by the start of its file name, in the folders of the dynamic linker.
pub(super) fn find_library(name: &str) -> Option<PathBuf> {
    let listed = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = env::split_paths(&listed).chain(cuda_folders().into_iter().map(|cuda| cuda.join("lib64")));
    folders
        .chain(linker_folders())
        .filter(|folder| !folder.as_os_str().is_empty())
        .find_map(|folder| library_in(&folder, name))
}

fn library_in(folder: &Path, name: &str) -> Option<PathBuf> {
    let is_it = |path: &PathBuf| {
        let file = path.file_name().map(|file| file.to_string_lossy()).unwrap_or_default();
        file == name || file.strip_prefix(name).is_some_and(|version| version.starts_with('.'))
    };
    entries(folder).into_iter().find(is_it)
}

/// Returns the folders that `/etc/ld.so.conf` lists, and the standard folders.
fn linker_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for file in [vec![PathBuf::from("/etc/ld.so.conf")], entries(Path::new("/etc/ld.so.conf.d"))].concat() {
        let text = fs::read_to_string(file).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    let arch = env::consts::ARCH;
    folders.extend([format!("/lib/{arch}-linux-gnu"), format!("/usr/lib/{arch}-linux-gnu")].map(PathBuf::from));
    folders.extend(
        ["/lib64", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib", "/usr/local/lib", "/usr/local/nvidia/lib64"]
            .map(PathBuf::from),
    );
    folders
}

/// Finds the folder with the CUDA headers.
pub(super) fn find_cuda_headers() -> Option<PathBuf> {
    let folders = cuda_folders().into_iter().map(|cuda| cuda.join("include")).chain([PathBuf::from("/usr/include")]);
    folders.into_iter().find(|folder| folder.join(CUDA_HEADERS).is_file())
}

fn cuda_folders() -> Vec<PathBuf> {
    let named = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(env::var_os).map(PathBuf::from);
    let mut folders: Vec<_> = named.collect();
    folders.extend(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from));
    folders
}

/// Returns the folder from which Burn's build takes LLVM; as an error, the folder where it should be.
pub(super) fn find_llvm() -> Result<PathBuf, PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from).unwrap_or_else(|| home.join(".local/share"));
    let folder = data.join("tracel/tracel-llvm-23.1.0-4");
    if folder.join(LLVM_MARKER).exists() { Ok(folder) } else { Err(folder) }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the value of `name` in lines of `name:  value`.
fn field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))?.1.trim();
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
        fs::write(path, text).expect("writable");
    }

    #[test]
    fn gpus_are_named_by_the_driver_or_found_on_the_bus() {
        let folder = tempfile::tempdir().expect("a folder");
        let (driver, bus) = (folder.path().join("nvidia"), folder.path().join("pci"));
        assert_eq!(nvidia_gpus(&driver, &bus), Vec::<String>::new());
        for (device, vendor, class) in
            [("0", "0x10de", "0x030200"), ("1", "0x10de", "0x040300"), ("2", "0x8086", "0x030000")]
        {
            write(bus.join(device).join("vendor"), vendor);
            write(bus.join(device).join("class"), class);
        }
        assert_eq!(
            nvidia_gpus(&driver, &bus),
            ["NVIDIA GPU (driver not loaded)"],
            "audio functions and other vendors are not GPUs"
        );
        write(driver.join("gpus/0000:01:00.0/information"), "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\n");
        assert_eq!(nvidia_gpus(&driver, &bus), ["NVIDIA H200"]);
    }

    #[test]
    fn the_driver_tells_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("version");
        assert_eq!(driver_version(&path), None);
        write(
            path.clone(),
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\nGCC version: 12.3\n",
        );
        assert_eq!(driver_version(&path).as_deref(), Some("550.90.07"));
    }

    #[test]
    fn a_library_is_found_with_any_version_and_not_by_half_a_name() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path().join("libcudart.so.12"), "");
        assert_eq!(library_in(folder.path(), "libcuda.so"), None);
        write(folder.path().join("libcuda.so.1"), "");
        assert_eq!(library_in(folder.path(), "libcuda.so"), Some(folder.path().join("libcuda.so.1")));
    }
}
