//! The CPUs next to each GPU, on machines with several NUMA nodes. Memory that a process pins and threads that feed a GPU
//! belong there: the way over another node is slower.

use std::fs;
use std::path::Path;

/// Returns the CPUs on the NUMA node of a GPU, or `None` on machines with one node and where the system does not say.
///
/// `index` counts visible GPUs, as CUDA does; `visible` is the value of `CUDA_VISIBLE_DEVICES`. `root` is `/`.
pub(crate) fn cpus_near_gpu(root: &Path, index: usize, visible: Option<&str>) -> Option<Vec<usize>> {
    if n_nodes_with_cpus(root) < 2 {
        return None;
    }
    let id = pci_id(root, index, visible)?;
    let node: usize = read(&root.join("sys/bus/pci/devices").join(id).join("numa_node"))?.parse().ok()?;
    cpus_of_node(root, node)
}

/// Moves the calling thread, and the threads that it starts from now on, to the CPUs near a GPU. Returns their number, or
/// `None` if the thread stays where it is.
pub fn move_to_gpu(index: usize) -> Option<usize> {
    let cpus = cpus_near_gpu(Path::new("/"), index, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())?;
    set_cpus(&cpus)
}

/// The CPUs that this thread may use; `None` where the system does not say.
pub(super) fn allowed_cpus() -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Runs `work` on these CPUs only, then returns to the CPUs of before.
pub(super) fn on_cpus<T>(cpus: Option<&[usize]>, work: impl FnOnce() -> T) -> T {
    let before = cpus.and_then(|cpus| Some((allowed_cpus()?, set_cpus(cpus)?)));
    let done = work();
    if let Some((before, _)) = before {
        let _ = set_cpus(&before);
    }
    done
}

/// Restricts the calling thread to some CPUs and returns their number. `None`: the system refused.
#[cfg(target_os = "linux")]
fn set_cpus(cpus: &[usize]) -> Option<usize> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).ok()?;
    Some(cpus.len())
}

#[cfg(not(target_os = "linux"))]
fn set_cpus(_cpus: &[usize]) -> Option<usize> {
    None
}

fn n_nodes_with_cpus(root: &Path) -> usize {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return 0 };
    let number = |name: &str| name.strip_prefix("node")?.parse().ok();
    let nodes = entries.filter_map(|entry| number(entry.ok()?.file_name().to_str()?));
    nodes.filter(|node| cpus_of_node(root, *node).is_some()).count()
}

/// The CPUs of a node, if it has any.
fn cpus_of_node(root: &Path, node: usize) -> Option<Vec<usize>> {
    let list = read(&root.join(format!("sys/devices/system/node/node{node}/cpulist")))?;
    cpus_of_list(&list).filter(|cpus| !cpus.is_empty())
}

/// Reads `0-3,8`.
fn cpus_of_list(list: &str) -> Option<Vec<usize>> {
    /// No machine has more, so that a strange file takes no memory.
    const MAX_CPU: usize = 1 << 16;
    let mut cpus = Vec::new();
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The bus address of a GPU, such as `0000:1b:00.0`. The driver's folder is in the order of the bus, as CUDA's numbers are on
/// machines with equal GPUs.
fn pci_id(root: &Path, index: usize, visible: Option<&str>) -> Option<String> {
    let folder = root.join("proc/driver/nvidia/gpus");
    let names = fs::read_dir(&folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<String> = names.collect();
    ids.sort();

    let number = match visible {
        None => index,
        Some(list) => {
            let entry = list.split(',').map(str::trim).nth(index)?;
            let is_it = |id: &&String| uuid(&folder.join(id)).is_some_and(|uuid| uuid.starts_with(entry));
            match entry.parse() {
                Ok(number) => number,
                Err(_) if entry.starts_with("GPU-") => return ids.iter().find(is_it).map(|id| id.to_lowercase()),
                Err(_) => return None,
            }
        }
    };
    ids.get(number).map(|id| id.to_lowercase())
}

fn uuid(gpu: &Path) -> Option<String> {
    let information = read(&gpu.join("information"))?;
    let line = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?;
    Some(line.trim().to_owned())
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A machine with GPUs on two nodes.
    fn machine(nodes: &[(usize, &str)], gpus: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: String, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, text).expect("writable");
        };
        for (node, cpus) in nodes {
            write(format!("sys/devices/system/node/node{node}/cpulist"), &format!("{cpus}\n"));
        }
        for (id, node) in gpus {
            let uuid = format!("Model: \t NVIDIA\nGPU UUID: \t GPU-{id}\n");
            write(format!("proc/driver/nvidia/gpus/{id}/information"), &uuid);
            write(format!("sys/bus/pci/devices/{}/numa_node", id.to_lowercase()), &format!("{node}\n"));
        }
        root
    }

    #[test]
    fn the_cpus_of_the_gpus_node_are_found() {
        let gpus = [("0000:1B:00.0", "0"), ("0000:9b:00.0", "1"), ("0000:a0:00.0", "-1")];
        let root = machine(&[(0, "0-3,8-11"), (1, "4-7"), (2, "")], &gpus);
        let near = |index, visible| cpus_near_gpu(root.path(), index, visible);
        let (first, second) = (Some(vec![0, 1, 2, 3, 8, 9, 10, 11]), Some(vec![4, 5, 6, 7]));

        assert_eq!((near(0, None), near(1, None)), (first.clone(), second.clone()));
        assert_eq!((near(2, None), near(3, None)), (None, None), "a GPU without a node, and a missing one");
        assert_eq!((near(0, Some("1")), near(1, Some("1, 0"))), (second.clone(), first));
        assert_eq!(near(0, Some("GPU-0000:9b")), second, "by UUID");
        assert_eq!((near(0, Some("MIG-1")), near(1, Some("0"))), (None, None));
    }

    #[test]
    fn one_node_needs_no_care() {
        let root = machine(&[(0, "0-3"), (1, "")], &[("0000:1b:00.0", "0")]);
        assert_eq!(cpus_near_gpu(root.path(), 0, None), None);
        assert_eq!(cpus_near_gpu(Path::new("/nowhere"), 0, None), None);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus_of_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        for list in ["a", "1-", "0-99999999999", "-1"] {
            assert_eq!(cpus_of_list(list), None, "{list}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_runs_on_its_cpus_and_the_thread_returns() {
        let before = allowed_cpus().expect("Linux");
        let last = *before.last().expect("a CPU");
        let inside = on_cpus(Some(&[last]), || {
            let child = std::process::Command::new("cat").arg("/proc/self/status").output().expect("started");
            let status = String::from_utf8(child.stdout).expect("text");
            (allowed_cpus(), status.contains(&format!("Cpus_allowed_list:\t{last}\n")))
        });
        assert_eq!(inside, (Some(vec![last]), true), "a process inherits them");
        assert_eq!(allowed_cpus(), Some(before));
    }
}
