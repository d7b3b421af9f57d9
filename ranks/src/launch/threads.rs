//! How the ranks of a machine share its CPUs.

use std::path::Path;

use super::numa;
use crate::devices::DeviceName;

/// The CPUs of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    /// The CPUs near its GPU; `None`: any.
    pub(super) cpus: Option<Vec<usize>>,
    /// Threads for computing on the CPU.
    pub(super) threads: usize,
}

/// The shares of all ranks on this machine.
pub(super) fn shares(devices: &[DeviceName]) -> Vec<Share> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let allowed = numa::allowed_cpus();
    let near = |device: &DeviceName| match device {
        DeviceName::Cpu => None,
        DeviceName::Cuda(index) => {
            let cpus = numa::cpus_near_gpu(Path::new("/"), *index, visible.as_deref())?;
            let usable = cpus.into_iter().filter(|cpu| allowed.as_ref().is_none_or(|all| all.contains(cpu)));
            Some(usable.collect::<Vec<_>>()).filter(|cpus| !cpus.is_empty())
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    divide(devices.iter().map(near).collect(), cores)
}

/// Divides `cores` among ranks, of which some use certain CPUs only.
fn divide(cpus: Vec<Option<Vec<usize>>>, cores: usize) -> Vec<Share> {
    let even = cores / cpus.len().max(1);
    let threads = |own: &Option<Vec<usize>>| {
        let sharing = cpus.iter().filter(|other| *other == own).count();
        own.as_ref().map_or(even, |own| even.min(own.len() / sharing)).max(1)
    };
    cpus.iter().map(|own| Share { cpus: own.clone(), threads: threads(own) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(cpus: Vec<Option<Vec<usize>>>, cores: usize) -> Vec<usize> {
        divide(cpus, cores).iter().map(|share| share.threads).collect()
    }

    #[test]
    fn the_threads_of_all_ranks_fit_on_the_machine() {
        assert_eq!(threads(vec![None; 2], 16), [8, 8]);
        assert_eq!(threads(vec![None; 4], 2), [1, 1, 1, 1], "at least one each");
        let node = |first: usize| Some((first..first + 8).collect());
        assert_eq!(threads(vec![node(0), node(8)], 16), [8, 8]);
        assert_eq!(threads(vec![node(0), node(0), node(8)], 16), [4, 4, 5], "two share a node");
        assert_eq!(threads(vec![node(0), node(8)], 4), [2, 2], "a quota of the container");
    }

    #[test]
    fn the_cpu_has_no_place_on_the_machine() {
        let shares = shares(&[DeviceName::Cpu, DeviceName::Cpu]);
        assert!(shares.iter().all(|share| share.cpus.is_none() && share.threads >= 1), "{shares:?}");
    }
}
