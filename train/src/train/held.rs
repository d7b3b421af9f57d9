//! What a rank keeps of a run that goes on without a rank that is lost (`train.lost_replicas`): its state after the last exchange. When the
//! ranks that are left have met again, one that is as far as any writes a checkpoint of it, and all resume from that.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_ranks::Link;
use serde::{Deserialize, Serialize};

use super::host_copy::HostCopy;
use crate::checkpoint::{Checkpoints, NamedState, ReplicaCounters, Snapshot, states_from_bytes, states_to_bytes};

/// A rank's state after an exchange.
pub struct Held(HostCopy);

/// What a rank says when it meets the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LastExchange {
    /// The run folder, unless this process has just come.
    dir: Option<PathBuf>,
    /// Steps done at its last exchange, if it has seen one.
    step: Option<u64>,
}

impl Held {
    pub(super) fn new(copy: HostCopy) -> Self {
        Self(copy)
    }

    /// Lets all ranks of `link` resume where the ranks that are left have last exchanged weights: one of them writes a checkpoint. `held` and
    /// `dir`, the run folder, are what this rank knows. Returns the run folder, if any rank knows it.
    ///
    /// A rank that has just come, or that missed the last exchange, gets the optimizer's state of the rank that writes.
    ///
    /// # Errors
    /// If another rank is lost, or the checkpoint cannot be written.
    pub fn hand_over(held: Option<&Self>, dir: Option<&Path>, link: &Link) -> Result<Option<PathBuf>> {
        let told = LastExchange { dir: dir.map(Path::to_owned), step: held.map(|held| held.0.step()) };
        let all = link.all_gather("the last exchange", serde_json::to_vec(&told)?)?;
        let all = all.iter().map(|told| serde_json::from_slice(told)).collect::<Result<Vec<LastExchange>, _>>()?;
        let dir = all.iter().find_map(|told| told.dir.clone());
        let newest = all.iter().filter_map(|told| told.step).max();
        let (Some(dir), Some(step)) = (dir.clone(), newest) else { return Ok(dir) };

        let writer = all.iter().position(|told| told.step == newest).expect("the largest is one of them");
        let own = held.filter(|held| held.0.step() == step).map(|held| held.0.snapshot());
        let mut parts = vec![Vec::new(); link.size()];
        if let Some(own) = &own {
            parts[writer] = Own { states: &own.optimizer, counters: own.state.replicas[0] }.to_bytes()?;
        }
        let of_ranks = link.exchange("the optimizer's state of each replica", parts)?;
        let writes = link.rank() == writer;
        let write = || -> Result<()> {
            let Some(own) = own.filter(|_| writes) else { return Ok(()) };
            Checkpoints::of_run(&dir).save(&together(own, &of_ranks)?, false)?;
            Ok(())
        };
        write()
            .context("writing a checkpoint of the last exchange")
            .inspect_err(|error| link.abort(&format!("{error:#}")))?;
        link.barrier("a checkpoint of the last exchange")?;
        Ok(Some(dir))
    }
}

/// A replica's own part of a checkpoint.
struct Own<'a> {
    states: &'a [NamedState],
    counters: ReplicaCounters,
}

impl Own<'_> {
    /// A line of JSON, then a file of states.
    fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&self.counters)?;
        bytes.push(b'\n');
        bytes.extend(states_to_bytes(self.states)?);
        Ok(bytes)
    }
}

/// Reads what [`Own::to_bytes`] has written.
fn read(bytes: &[u8]) -> Result<(ReplicaCounters, Vec<NamedState>)> {
    let end = bytes.iter().position(|byte| *byte == b'\n').context("a replica's state without its counters")?;
    Ok((serde_json::from_slice(&bytes[..end])?, states_from_bytes(&bytes[end + 1..])?))
}

/// Puts `of_ranks`, the states that the ranks have sent, into the checkpoint of one of them. A rank that has sent none gets the state of the writer.
fn together(own: Snapshot, of_ranks: &[Vec<u8>]) -> Result<Snapshot> {
    let mut all = Vec::with_capacity(of_ranks.len());
    for bytes in of_ranks {
        all.push(if bytes.is_empty() { (own.state.replicas[0], own.optimizer.clone()) } else { read(bytes)? });
    }
    let mut snapshot = own;
    snapshot.state.replicas = all.iter().map(|(counters, _)| *counters).collect();
    let mut states = all.into_iter().map(|(_, states)| states);
    snapshot.optimizer = states.next().context("a link without ranks")?;
    let replicas = snapshot.replicas.as_mut().context("a held state has an outer momentum")?;
    replicas.other_states = states.collect();
    Ok(snapshot)
}
