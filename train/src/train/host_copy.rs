//! A copy of the training state on the host, for checkpoints.

use anyhow::{Context, Result};
use burn::tensor::{TensorData, Transaction};
use kiln_kernels::optim::{Counters, Progress};
use kiln_model::TransformerConfig;

use super::exchange::LocalSteps;
use super::provenance::Provenance;
use super::state::TrainState;
use crate::checkpoint::{
    FORMAT, LossScale, ReplicaCounters, Replicas, Snapshot, StoredFile, TrainerState, named_states, named_tensors,
};
use crate::config::MasterWeights;
use crate::eval::Model;
use crate::metrics::host_sync::waiting;
use crate::optim::flat::FlatState;
use crate::optim::{Ema, Frozen, Groups, ParamTable};

/// A copy of the state on the host, before its tensors are named.
#[derive(Clone)]
pub struct HostCopy {
    table: ParamTable,
    groups: Groups,
    /// Master weights, flat.
    master: TensorData,
    /// The optimizer's state, by [`Groups::slots`].
    states: Vec<TensorData>,
    /// Outer momentum, flat, and the optimizer's state of each other device, if devices take steps alone.
    replicas: Option<(TensorData, Vec<Vec<TensorData>>)>,
    /// Averaged weights, flat.
    ema: Option<TensorData>,
    frozen: Frozen,
    state: TrainerState,
    model: TransformerConfig,
    files: Vec<StoredFile>,
}

/// The optimizer's state of each replica but the first, and the counters of all.
type OfReplicas = (Vec<Vec<TensorData>>, Vec<ReplicaCounters>);

impl HostCopy {
    /// Optimizer steps done.
    pub(super) fn step(&self) -> u64 {
        self.state.step
    }

    /// Names the tensors of a copy that stays.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.clone().into_snapshot()
    }

    /// Names the tensors. This copies everything once more, so call it on a background thread.
    pub fn into_snapshot(self) -> Snapshot {
        let Self { table, groups, master, states, replicas, ema, frozen, state, model, files } = self;
        let named = |flat: &TensorData| named_tensors(&table, flat);
        let ema = ema.as_ref().map(named);
        let replicas = replicas.map(|(momentum, others)| Replicas {
            momentum: named(&momentum),
            other_states: others.iter().map(|states| named_states(&groups, &table, states)).collect(),
        });
        let optimizer = named_states(&groups, &table, &states);
        let mut weights = named(&master);
        weights.extend_from_slice(frozen.tensors());
        Snapshot { weights, optimizer, state, model, files, ema, replicas }
    }
}

impl<M: Model> TrainState<M> {
    /// Copies everything to the host, in one transaction, and names it.
    pub fn snapshot(&self, provenance: &Provenance) -> Result<Snapshot> {
        Ok(self.host_copy(provenance)?.into_snapshot())
    }

    /// Copies everything to the host, in one transaction. All ranks must call it: a sharded state is gathered on rank 0, and
    /// only its copy is whole.
    pub fn host_copy(&self, provenance: &Provenance) -> Result<HostCopy> {
        self.copy(provenance, |states, own| {
            Ok((self.states_of_others(states)?, self.ranks.share("counters for a checkpoint", own)?))
        })
    }

    /// Copies to the host what this rank has of a run whose ranks take steps alone and keep everything.
    pub(super) fn own_copy(&self, provenance: &Provenance) -> Result<HostCopy> {
        self.copy(provenance, |_, own| Ok((Vec::new(), vec![own])))
    }

    /// Copies everything to the host. `of_others` returns the optimizer's states of the other replicas, and the counters of all.
    fn copy(
        &self,
        provenance: &Provenance,
        of_others: impl FnOnce(&[TensorData], ReplicaCounters) -> Result<OfReplicas>,
    ) -> Result<HostCopy> {
        let FlatState { master, named, .. } = self.optimizer.state();
        let momentum = self.exchange.replicas().map(LocalSteps::momentum);
        let read = [master, self.optimizer.progress().values()]
            .into_iter()
            .chain(named.iter().flatten())
            .chain(momentum)
            .chain(self.ema.as_ref().map(Ema::weights))
            .fold(Transaction::default(), |transaction, tensor| transaction.register(tensor.clone()));
        // Host sync: master weights, the optimizer's state and counters.
        let read = waiting(|| read.try_execute()).context("reading weights and optimizer state from the device")?;
        let mut read = read.into_iter();
        // On the host all numbers are f32, which has every number of bf16.
        let mut next = || read.next().expect("as many tensors as were asked for").convert::<f32>();
        let (master, counters) = (next(), Progress::counters(&next()));
        // A slice that has nothing of a group has no numbers of its state.
        let nothing = || TensorData::new(Vec::<f32>::new(), [0]);
        let states: Vec<_> = named.iter().map(|state| if state.is_some() { next() } else { nothing() }).collect();
        let momentum = momentum.map(|_| next());
        let ema = self.ema.as_ref().map(|_| next());

        let whole = |slice| if self.optimizer.is_sharded() { self.gathered(slice) } else { Ok(slice) };
        let master = whole(master)?;
        let states = states.into_iter().map(whole).collect::<Result<Vec<_>>>()?;
        let ema = ema.map(whole).transpose()?;

        let skipped_steps = self.step - counters.updates;
        let Counters { loss_scale: scale, good_steps, .. } = counters;
        let loss_scale = self.optimizer.is_scaled().then_some(LossScale { scale, good_steps });
        let (replicas, replica_counters) = match momentum {
            None => (None, Vec::new()),
            Some(momentum) => {
                let (others, counters) = of_others(&states, ReplicaCounters { skipped_steps, loss_scale })?;
                let is_whole = self.exchange.replicas().is_some_and(LocalSteps::are_whole);
                let momentum = if is_whole { momentum } else { self.gathered(momentum)? };
                (Some((momentum, others)), counters)
            }
        };

        Ok(HostCopy {
            replicas,
            ema,
            frozen: self.frozen.clone(),
            table: self.optimizer.table().clone(),
            groups: self.optimizer.groups().clone(),
            master,
            states,
            state: TrainerState {
                format: FORMAT,
                run: self.run.clone(),
                step: self.step,
                skipped_steps,
                loss_scale,
                micro_steps: self.micro_steps,
                position: self.position,
                epoch_batches: provenance.epoch_batches,
                data_fingerprint: provenance.data_fingerprint.clone(),
                validation_fingerprint: provenance.validation_fingerprint.clone(),
                tokenizer_fingerprint: provenance.tokenizer_fingerprint.clone(),
                source_tokens: self.source_tokens,
                target_tokens: self.target_tokens,
                sources: self.sources.clone(),
                train_secs: self.train_secs,
                non_finite_steps: self.non_finite_steps,
                best: self.best.clone(),
                patience: self.patience.clone(),
                frozen: self.optimizer.table().frozen_paths(),
                master_weights: MasterWeights::of(self.optimizer.groups().state_dtype()),
                group_size: self.group_size,
                replicas: replica_counters,
            },
            model: self.shape.clone(),
            files: provenance.files.clone(),
        })
    }

    /// Sends the optimizer's state to rank 0. Returns there what each of the other ranks has sent.
    fn states_of_others(&self, states: &[TensorData]) -> Result<Vec<Vec<TensorData>>> {
        let mut of_ranks: Vec<Vec<TensorData>> = Vec::new();
        for state in states {
            let sent = self.ranks.to_first("gathering optimizer state for a checkpoint", state.clone())?;
            of_ranks.resize_with(sent.len().max(of_ranks.len()), Vec::new);
            of_ranks.iter_mut().zip(sent).for_each(|(states, state)| states.push(state));
        }
        Ok(of_ranks.into_iter().skip(1).collect())
    }

    /// Joins the ranks' slices of a flat f32 tensor on rank 0; the others get nothing.
    fn gathered(&self, slice: TensorData) -> Result<TensorData> {
        let slices = self.ranks.to_first("gathering weights and optimizer state for a checkpoint", slice)?;
        let mut flat = Vec::with_capacity(self.optimizer.table().flat_len());
        for slice in &slices {
            flat.extend_from_slice(slice.as_slice::<f32>().expect("weights and state are f32"));
        }
        let n = flat.len();
        Ok(TensorData::new(flat, [n]))
    }
}
