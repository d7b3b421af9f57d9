//! Failures of collectives, with what to do about them.

use thiserror::Error;

/// Why ranks cannot exchange tensors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The feature `cuda` is off.
    #[error("this build has no CUDA and therefore no NCCL; build with `cargo build --release --features cuda`")]
    NotBuilt,
    /// No NCCL was found.
    #[error(
        "NCCL is not installed: the linker finds neither libnccl.so.2 nor libnccl.so, and the Python environments looked \
         at ({looked_at}) contain neither. Install it with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for a driver \
         of CUDA 12) or, from NVIDIA's repository, `apt-get install libnccl2`; or set KILN_NCCL=/path/libnccl.so.2"
    )]
    NotFound {
        /// The environments, separated by commas.
        looked_at: String,
    },
    /// A library was found but cannot be used.
    #[error("{path} cannot be used as NCCL: {reason}; {}", remedy_for_library(*named))]
    Unusable {
        /// The library as it was opened.
        path: String,
        /// What the linker or the library said.
        reason: String,
        /// Whether `KILN_NCCL` names the library.
        named: bool,
    },
    /// A rank or a world size that does not exist.
    #[error("rank {rank} of {world_size} does not exist: ranks count from 0 to the world size minus 1")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// The number of ranks asked for.
        world_size: usize,
    },
    /// NCCL needs a CUDA device.
    #[error("NCCL connects CUDA devices only, and {device} is not one; ranks on the CPU communicate over TCP")]
    NotCuda {
        /// The device.
        device: String,
    },
    /// A call of NCCL failed.
    #[error(
        "NCCL's {function} failed with {} ({code}){detail}; {}. For NCCL's own log, set NCCL_DEBUG=INFO",
        code_name(*code),
        remedy_for_code(*code)
    )]
    Failed {
        /// The function of NCCL, or the operation whose outcome was asked for.
        function: &'static str,
        /// NCCL's `ncclResult_t`.
        code: i32,
        /// NCCL's last message with a colon before it, or nothing.
        detail: String,
    },
    /// Some rank did not join.
    #[error(
        "rank {rank} of {world_size} waited {secs} s for the other ranks to join. Check that all of them run, and that \
         they reach each other over TCP: NCCL_SOCKET_IFNAME names the network interface, NCCL_DEBUG=INFO shows the \
         addresses"
    )]
    NotJoined {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
        /// Seconds waited.
        secs: u64,
    },
    /// The communicator was aborted.
    #[error("the communicator was aborted, because this rank or another one failed")]
    Aborted,
    /// CubeCL or CUDA refused an operation.
    #[error("{what} failed: {reason}")]
    Device {
        /// The operation.
        what: &'static str,
        /// The reason given.
        reason: String,
    },
}

fn remedy_for_library(named: bool) -> &'static str {
    if named {
        "KILN_NCCL names it: set it to another libnccl.so.2 or unset it"
    } else {
        "set KILN_NCCL=/path/libnccl.so.2 to another one, of version 2.14 or newer"
    }
}

/// Returns NCCL's name of an `ncclResult_t`.
fn code_name(code: i32) -> &'static str {
    match code {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "an unknown result",
    }
}

fn remedy_for_code(code: i32) -> &'static str {
    match code {
        1 => "a CUDA call failed: check `nvidia-smi` and the free memory of the GPU",
        2 => {
            "a call of the operating system failed, often for shared memory or a network interface: in a container, \
             raise `--shm-size`"
        }
        4 | 5 => "check that each rank has a GPU of its own and that all ranks run the same version of NCCL",
        6 | 8 => "another rank failed or ended: read its log first",
        _ => "all ranks must run the same version of NCCL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_packages_codes_and_remedies() {
        let text = NcclError::NotFound { looked_at: "/opt/venv".into() }.to_string();
        for part in ["libnccl.so.2", "/opt/venv", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "libnccl2", "KILN_NCCL="] {
            assert!(text.contains(part), "{part} in {text}");
        }

        let failed = |code| NcclError::Failed { function: "ncclCommInitRankConfig", code, detail: ": why".into() };
        let text = failed(5).to_string();
        assert!(text.starts_with("NCCL's ncclCommInitRankConfig failed with ncclInvalidUsage (5): why; "), "{text}");
        assert!(text.contains("a GPU of its own") && text.ends_with("NCCL_DEBUG=INFO"), "{text}");
        assert!(failed(6).to_string().contains("another rank"));
        assert!(failed(99).to_string().contains("an unknown result (99)"));
    }

    #[test]
    fn an_unusable_library_names_the_variable_that_chose_it() {
        let text = |named| NcclError::Unusable { path: "/x.so".into(), reason: "why".into(), named }.to_string();
        assert_eq!(
            text(true),
            "/x.so cannot be used as NCCL: why; KILN_NCCL names it: set it to another libnccl.so.2 or unset it"
        );
        assert!(text(false).contains("set KILN_NCCL="), "{}", text(false));
    }
}
