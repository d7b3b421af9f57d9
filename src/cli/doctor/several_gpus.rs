//! What training on several GPUs needs: NCCL, and fast links between them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use kiln_kernels::collective::{NcclError, NcclLibrary};

use super::report::{Finding, Report};

/// Variables that take a way between GPUs from NCCL, and what they take.
const DISABLING: [(&str, &str); 3] = [
    ("NCCL_P2P_DISABLE", "GPUs do not copy to each other over NVLink or PCIe"),
    ("NCCL_SHM_DISABLE", "GPUs without a direct link do not use shared memory"),
    ("NCCL_IB_DISABLE", "machines use TCP instead of InfiniBand or RoCE"),
];

/// Two H200s, `NCCL_P2P_DISABLE` and `NCCL_SHM_DISABLE` set or unset, an all-reduce of 498 MiB.
const COST: &str = "without P2P and shared memory NCCL uses TCP: 3.7 GB/s where NVLink has 300";

/// Adds the findings for a machine with `n_gpus` GPUs.
pub(super) fn check(report: &mut Report, n_gpus: usize) {
    report.section("To train on several GPUs");
    report.add("NCCL", nccl(NcclLibrary::open().map(|library| (library.version(), library.path()))));
    if n_gpus > 1 {
        let topology = Command::new("nvidia-smi").args(["topo", "-m"]).output().ok();
        let matrix = topology.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        report.add("links", links(matrix.as_deref()));
    }
    if is_wsl(&fs::read_to_string("/proc/version").unwrap_or_default()) {
        let found = "WSL2: the driver of Windows connects the GPUs; NCCL_DEBUG=INFO shows which way NCCL takes";
        report.add("system", Finding::Good(found.into()));
    }
    for (name, lost) in DISABLING {
        if let Some(finding) = disabled(name, lost, std::env::var(name).ok().as_deref()) {
            report.add(name, finding);
        }
    }
}

fn nccl(opened: Result<((u32, u32, u32), &str), NcclError>) -> Finding {
    match opened {
        Ok(((major, minor, patch), path)) => Finding::Good(format!("{major}.{minor}.{patch}, {path}")),
        Err(NcclError::NotFound { .. }) => Finding::Optional {
            found:
                "libnccl.so.2 not found; only for several GPUs; set KILN_NCCL=/path/libnccl.so.2 if it lies elsewhere"
                    .into(),
            packages: "PyPI nvidia-nccl-cu13 (nvidia-nccl-cu12 for a driver of CUDA 12), NVIDIA's apt repository \
                       libnccl2"
                .into(),
        },
        Err(error) => Finding::Slow { found: "not usable, so one GPU only".into(), remedy: error.to_string() },
    }
}

/// Describes the links in the matrix that `nvidia-smi topo -m` prints.
fn links(matrix: Option<&str>) -> Finding {
    let pairs = matrix.map(pairs).unwrap_or_default();
    if pairs.is_empty() {
        return Finding::Absent("unknown: `nvidia-smi topo -m` shows no matrix".into());
    }

    let described: Vec<_> = pairs.iter().map(|(link, n)| format!("{n} x {} ({link})", link_name(link))).collect();
    Finding::Good(format!("pairs of GPUs: {}", described.join(", ")))
}

/// Counts the pairs of GPUs by their link.
fn pairs(matrix: &str) -> BTreeMap<String, usize> {
    let is_gpu = |word: &str| word.strip_prefix("GPU").is_some_and(|n| n.parse::<u32>().is_ok());
    let rows: Vec<Vec<String>> = matrix
        .lines()
        .map(|line| plain(line).split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter(|words| words.first().is_some_and(|word| is_gpu(word)))
        .collect();
    // The heading lists the GPUs, too.
    let rows: Vec<_> = rows.iter().filter(|words| !words.get(1).is_some_and(|word| is_gpu(word))).collect();

    let mut found = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        for link in row.iter().skip(i + 2).take(rows.len() - 1 - i) {
            *found.entry(link.clone()).or_default() += 1;
        }
    }
    found
}

/// Removes the escape sequences with which `nvidia-smi` underlines the heading.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// Names a link by the legend of `nvidia-smi topo -m`.
fn link_name(link: &str) -> &'static str {
    match link {
        "PIX" => "one PCIe bridge",
        "PXB" => "several PCIe bridges",
        "PHB" => "PCIe through the CPU",
        "NODE" => "PCIe through the CPU, several host bridges",
        "SYS" => "PCIe from one NUMA node to another",
        _ if link.starts_with("NV") => "NVLink",
        _ => "another link",
    }
}

fn is_wsl(kernel: &str) -> bool {
    kernel.to_lowercase().contains("microsoft")
}

fn disabled(name: &str, lost: &str, value: Option<&str>) -> Option<Finding> {
    let value = value.filter(|value| !["", "0"].contains(value))?;
    Some(Finding::Slow { found: format!("set to {value}: {lost}; {COST}"), remedy: format!("unset {name}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATRIX: &str = "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\n\
        GPU0\t X \tNV18\tSYS\t0-31\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t0-31\t0\t\tN/A\nGPU2\tSYS\tSYS\t X \t32-63\t1\t\tN/A\n\n\
        Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n";

    #[test]
    fn links_are_counted_by_pairs() {
        let Finding::Good(text) = links(Some(MATRIX)) else { panic!("a matrix") };
        assert_eq!(text, "pairs of GPUs: 1 x NVLink (NV18), 2 x PCIe from one NUMA node to another (SYS)");
        for unreadable in [None, Some(""), Some("nvidia-smi has failed")] {
            assert!(matches!(links(unreadable), Finding::Absent(_)), "{unreadable:?}");
        }
    }

    #[test]
    fn nccl_is_shown_with_its_version_or_its_packages() {
        assert_eq!(nccl(Ok(((2, 30, 7), "/x/libnccl.so.2"))), Finding::Good("2.30.7, /x/libnccl.so.2".into()));
        let missing = nccl(Err(NcclError::NotFound { looked_at: String::new() }));
        let Finding::Optional { packages, .. } = missing else { panic!("{missing:?}") };
        assert!(packages.contains("nvidia-nccl-cu13") && packages.contains("libnccl2"), "{packages}");
    }

    #[test]
    fn a_variable_that_takes_a_link_away_is_named_with_its_cost() {
        let (name, lost) = DISABLING[0];
        for unset in [None, Some(""), Some("0")] {
            assert_eq!(disabled(name, lost, unset), None, "{unset:?}");
        }
        let Some(Finding::Slow { found, remedy }) = disabled(name, lost, Some("1")) else { panic!("set") };
        assert!(found.contains("set to 1") && found.contains("3.7 GB/s"), "{found}");
        assert_eq!(remedy, "unset NCCL_P2P_DISABLE");
    }

    #[test]
    fn wsl_is_known_by_its_kernel() {
        assert!(is_wsl("Linux version 5.15.153.1-microsoft-standard-WSL2"));
        assert!(!is_wsl("Linux version 6.1.0-13-amd64"));
    }
}
