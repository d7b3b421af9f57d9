//! The value of `--devices`: one entry per rank.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A device of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU with this index.
    Cuda(usize),
}

/// Why `--devices` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DevicesError {
    /// An entry is not a device.
    #[error("--devices {list}: unknown device {entry:?}; use GPU numbers (`0,1`), `all`, or `cpu,cpu`")]
    Unknown {
        /// The value of the flag.
        list: String,
        /// The entry.
        entry: String,
    },
    /// Two ranks would share a GPU.
    #[error(
        "--devices {list}: GPU {index} is listed twice; each rank needs a GPU of its own ({SHARED_GPUS}=1 tries several ranks out \
         on one, slowly)"
    )]
    Duplicate {
        /// The value of the flag.
        list: String,
        /// The GPU.
        index: usize,
    },
    /// GPUs and the CPU cannot share a step.
    #[error("--devices {list}: mixes GPUs and the CPU; use one or the other")]
    Mixed {
        /// The value of the flag.
        list: String,
    },
    /// The machine has fewer GPUs.
    #[error("--devices {list}: GPU {index} does not exist; this build sees {found} GPU(s), counted from 0 ({hint})")]
    NoSuchGpu {
        /// The value of the flag.
        list: String,
        /// The GPU.
        index: usize,
        /// Number of GPUs.
        found: usize,
        /// Where to look.
        hint: &'static str,
    },
    /// `all`, but there is nothing.
    #[error("--devices all: this build sees no GPU ({HINT}); `--devices cpu,cpu` tries two ranks on the CPU")]
    NoGpus,
    /// More ranks than anyone wants on a machine.
    #[error("--devices {list}: {found} ranks; at most {MAX_RANKS} are started on one machine")]
    TooMany {
        /// The value of the flag.
        list: String,
        /// Number of entries.
        found: usize,
    },
}

const HINT: &str = "check `nvidia-smi`, CUDA_VISIBLE_DEVICES and `kiln doctor`";

/// The variable that lets ranks share a GPU. NCCL refuses that, so their tensors travel over TCP.
const SHARED_GPUS: &str = "KILN_SHARED_GPUS";

/// Returns whether the environment lets ranks share a GPU, to try them out.
pub fn share_gpus() -> bool {
    std::env::var(SHARED_GPUS).is_ok_and(|value| value == "1")
}

/// The largest number of ranks that Kiln's launcher starts.
pub const MAX_RANKS: usize = 64;

/// Parses the value of `--devices`: `0,1`, `cuda:0,cuda:1`, `all` or `cpu,cpu`. `n_gpus` is the number of usable GPUs,
/// which ranks may share with `may_share`.
///
/// # Errors
/// If an entry is unknown, listed twice or not there.
pub fn parse_devices(list: &str, n_gpus: usize, may_share: bool) -> Result<Vec<DeviceName>, DevicesError> {
    let named = || list.trim().to_owned();
    if list.trim().eq_ignore_ascii_case("all") {
        return if n_gpus == 0 { Err(DevicesError::NoGpus) } else { Ok((0..n_gpus).map(DeviceName::Cuda).collect()) };
    }

    let mut devices = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let device = entry.parse().map_err(|_| DevicesError::Unknown { list: named(), entry: entry.to_owned() })?;
        if let DeviceName::Cuda(index) = device {
            if devices.contains(&device) && !may_share {
                return Err(DevicesError::Duplicate { list: named(), index });
            }
            if index >= n_gpus {
                return Err(DevicesError::NoSuchGpu { list: named(), index, found: n_gpus, hint: HINT });
            }
        }
        devices.push(device);
    }

    let n_cpus = devices.iter().filter(|device| **device == DeviceName::Cpu).count();
    if n_cpus != 0 && n_cpus != devices.len() {
        return Err(DevicesError::Mixed { list: named() });
    }
    if devices.len() > MAX_RANKS {
        return Err(DevicesError::TooMany { list: named(), found: devices.len() });
    }
    Ok(devices)
}

impl FromStr for DeviceName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.trim().to_ascii_lowercase();
        if text == "cpu" {
            return Ok(Self::Cpu);
        }
        let index = text.strip_prefix("cuda:").unwrap_or(&text);
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { index.parse().map(Self::Cuda).map_err(|_| ()) } else { Err(()) }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceName::{Cpu, Cuda};
    use super::*;

    #[test]
    fn every_form_of_the_list_is_read() {
        for (list, n_gpus, devices) in [
            ("0,1", 2, vec![Cuda(0), Cuda(1)]),
            (" cuda:3 , 1", 4, vec![Cuda(3), Cuda(1)]),
            ("all", 3, vec![Cuda(0), Cuda(1), Cuda(2)]),
            ("ALL", 1, vec![Cuda(0)]),
            ("cpu,cpu,CPU", 0, vec![Cpu, Cpu, Cpu]),
            ("0", 8, vec![Cuda(0)]),
        ] {
            assert_eq!(parse_devices(list, n_gpus, false), Ok(devices), "{list}");
        }
        assert_eq!(parse_devices("0,0", 1, true), Ok(vec![Cuda(0), Cuda(0)]));
    }

    #[test]
    fn a_wrong_list_is_refused_in_words() {
        for (list, n_gpus, part) in [
            ("0,0", 2, "GPU 0 is listed twice"),
            ("0,tpu", 2, "unknown device \"tpu\""),
            ("0,,1", 2, "unknown device \"\""),
            ("", 2, "use GPU numbers (`0,1`), `all`, or `cpu,cpu`"),
            ("+1", 2, "unknown device \"+1\""),
            ("0,all", 2, "unknown device \"all\""),
            ("0,2", 2, "GPU 2 does not exist; this build sees 2 GPU(s)"),
            ("99999999999999999999999", 2, "unknown device"),
            ("0,cpu", 2, "mixes GPUs and the CPU"),
            ("all", 0, "sees no GPU"),
            (&["cpu"; 65].join(","), 0, "65 ranks; at most 64"),
        ] {
            let error = parse_devices(list, n_gpus, false).expect_err(list).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_device_is_printed_as_it_is_read() {
        for device in [Cpu, Cuda(0), Cuda(17)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
    }
}
