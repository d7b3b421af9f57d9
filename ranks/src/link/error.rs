//! Why the ranks cannot go on together.

use std::fmt;

use kiln_data::terminal::clean;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::Phase;

/// Longest reason that travels to the other ranks, in bytes.
const MAX_REASON: usize = 4096;

/// A rank's process, for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) host: String,
    pub(super) pid: u32,
}

/// Why the ranks cannot go on together. A failure of the run travels to all ranks, so that each reports the same one.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum LinkError {
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {reason}; set KILN_MASTER_PORT to a free port on every rank")]
    Listen {
        /// Host and port.
        address: String,
        /// The system's reason.
        reason: String,
    },
    /// Rank 0 did not answer in time.
    #[error(
        "rank {rank} did not reach rank 0 at {address} in {waited_secs} s: {reason}; start rank 0, check MASTER_ADDR and \
         firewalls, or raise KILN_START_TIMEOUT (seconds)"
    )]
    NotReached {
        /// This rank.
        rank: usize,
        /// Host and port of rank 0.
        address: String,
        /// Seconds of trying.
        waited_secs: u64,
        /// What happened last.
        reason: String,
    },
    /// Not all ranks came in time.
    #[error(
        "waited {waited_secs} s at {address} for {missing}{}; check that every process was started, or raise \
         KILN_START_TIMEOUT (seconds)", Refusals(.refused)
    )]
    Incomplete {
        /// Where rank 0 listens.
        address: String,
        /// Seconds of waiting.
        waited_secs: u64,
        /// The ranks that are not there.
        missing: String,
        /// Who came and was refused, with the reason.
        refused: Vec<String>,
    },
    /// Rank 0 does not accept this rank.
    #[error("rank 0 refused this process: {0}")]
    Refused(String),
    /// A process or its connection ended.
    #[error("rank {rank} ({host}, process {pid}) is gone{}: {how}", During(.phase))]
    Gone {
        /// The rank.
        rank: usize,
        /// Its machine.
        host: String,
        /// Its process.
        pid: u32,
        /// What it was doing last.
        phase: Option<Phase>,
        /// How it was noticed.
        how: String,
    },
    /// A rank answers but does not advance.
    #[error(
        "rank {rank} ({host}, process {pid}) has not advanced{} for {limit_secs} s; if it only needs longer, raise {} \
         (seconds)", During(&Some(*.phase)), .phase.variable()
    )]
    Stalled {
        /// The rank.
        rank: usize,
        /// Its machine.
        host: String,
        /// Its process.
        pid: u32,
        /// What it is doing.
        phase: Phase,
        /// The exceeded limit, in seconds.
        limit_secs: u64,
    },
    /// A rank failed and said why.
    #[error("rank {rank} ({host}) failed: {reason}")]
    Aborted {
        /// The rank.
        rank: usize,
        /// Its machine.
        host: String,
        /// Its reason.
        reason: String,
    },
    /// The ranks are at different places of the program.
    #[error("the ranks are in different calls: {0}; this is a bug in Kiln, please report it")]
    DifferentCalls(String),
    /// The ranks do not have the same run.
    #[error("the ranks do not have the same run:{}", Lines(.0))]
    DifferentFacts(
        /// One line per name and value that differs.
        Vec<String>,
    ),
    /// A call would send too much.
    #[error("`{what}` gives {bytes} bytes; a call carries at most {limit}")]
    TooLarge {
        /// The call.
        what: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Other ranks train together from now on.
    #[error("the launcher has formed another group of ranks")]
    Superseded,
    /// A call after the end of the link.
    #[error("`{0}` after the link has finished; this is a bug in Kiln, please report it")]
    Finished(
        /// The call.
        String,
    ),
}

impl LinkError {
    /// The rank that caused the failure, if one did.
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Gone { rank, .. } | Self::Stalled { rank, .. } | Self::Aborted { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Returns whether a process is lost, or another group of ranks was formed: the others could go on.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Stalled { .. } | Self::Superseded)
    }

    /// Returns whether rank 0, which speaks to the user, is gone or hangs.
    pub fn has_lost_first(&self) -> bool {
        matches!(self, Self::Gone { rank: 0, .. } | Self::Stalled { rank: 0, .. })
    }

    /// The error of a rank whose process or connection ended.
    pub(super) fn gone(rank: usize, peer: &Peer, phase: Option<Phase>, how: impl Into<String>) -> Self {
        Self::Gone { rank, host: peer.host.clone(), pid: peer.pid, phase, how: how.into() }
    }

    /// The error of a rank that fails with this reason.
    pub(super) fn aborted(rank: usize, peer: &Peer, reason: &str) -> Self {
        Self::Aborted { rank, host: peer.host.clone(), reason: shortened(reason) }
    }
}

/// Cuts a reason that is too long to travel, and replaces control characters, which grow on the wire.
fn shortened(reason: &str) -> String {
    let cut = &reason[..reason.floor_char_boundary(MAX_REASON)];
    let plain = clean(cut).replace(char::REPLACEMENT_CHARACTER, " ");
    if cut.len() < reason.len() { plain + " ..." } else { plain }
}

struct During<'a>(&'a Option<Phase>);

impl fmt::Display for During<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |phase| write!(f, " during {}", phase.name()))
    }
}

struct Lines<'a>(&'a [String]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

struct Refusals<'a>(&'a [String]);

impl fmt::Display for Refusals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (refused: {})", self.0.join("; ")) }
    }
}
