//! A copy of the training state on the host, for checkpoints.

use anyhow::{Context, Result};
use burn::tensor::{TensorData, Transaction};
use kiln_kernels::optim::{AdamWState, Counters, Progress};
use kiln_model::TransformerConfig;

use super::exchange::LocalSteps;
use super::provenance::Provenance;
use super::state::TrainState;
use crate::checkpoint::{
    FORMAT, LossScale, ReplicaCounters, Replicas, Snapshot, StoredFile, TrainerState, named_tensors,
};
use crate::eval::Model;
use crate::metrics::host_sync::waiting;
use crate::optim::{Ema, Frozen, ParamTable};

/// A copy of the state on the host, before its tensors are named.
pub struct HostCopy {
    table: ParamTable,
    /// Master weights and both moments, flat.
    flat: Vec<TensorData>,
    /// Outer momentum, flat, and both moments of each other device, if devices take steps alone.
    replicas: Option<(TensorData, Vec<[TensorData; 2]>)>,
    /// Averaged weights, flat.
    ema: Option<TensorData>,
    frozen: Frozen,
    state: TrainerState,
    model: TransformerConfig,
    files: Vec<StoredFile>,
}

impl HostCopy {
    /// Names the tensors. This copies everything once more, so call it on a background thread.
    pub fn into_snapshot(self) -> Snapshot {
        let Self { table, flat, replicas, ema, frozen, state, model, files } = self;
        let named = |flat: &TensorData| named_tensors(&table, flat);
        let ema = ema.as_ref().map(named);
        let replicas = replicas.map(|(momentum, others)| Replicas {
            momentum: named(&momentum),
            other_moments: others.iter().map(|moments| moments.each_ref().map(named)).collect(),
        });
        let (mut weights, first_moments, second_moments) = (named(&flat[0]), named(&flat[1]), named(&flat[2]));
        weights.extend_from_slice(frozen.tensors());
        Snapshot { weights, first_moments, second_moments, state, model, files, ema, replicas }
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
        let AdamWState { master, m, v, .. } = self.optimizer.state();
        let momentum = self.exchange.replicas().map(LocalSteps::momentum);
        let read = [master, m, v, self.optimizer.progress().values()]
            .into_iter()
            .chain(momentum)
            .chain(self.ema.as_ref().map(Ema::weights))
            .fold(Transaction::default(), |transaction, tensor| transaction.register(tensor.clone()));
        // Host sync: master weights, moments and counters.
        let mut flat = waiting(|| read.try_execute()).context("reading weights and moments from the device")?;
        let ema = self.ema.as_ref().and_then(|_| flat.pop());
        let momentum = momentum.and_then(|_| flat.pop());
        let counters = Progress::counters(&flat.pop().expect("four tensors were asked for"));
        if self.optimizer.is_sharded() {
            flat = flat.into_iter().map(|slice| self.gathered(slice)).collect::<Result<_>>()?;
        }
        let ema = match ema {
            Some(slice) if self.optimizer.is_sharded() => Some(self.gathered(slice)?),
            whole => whole,
        };

        let skipped_steps = self.step - counters.updates;
        let Counters { loss_scale: scale, good_steps, .. } = counters;
        let loss_scale = self.optimizer.is_scaled().then_some(LossScale { scale, good_steps });
        let (replicas, replica_counters) = match momentum {
            None => (None, Vec::new()),
            Some(momentum) => {
                let others = self.moments_of_others(&flat)?;
                let own = ReplicaCounters { skipped_steps, loss_scale };
                let is_whole = self.exchange.replicas().is_some_and(LocalSteps::are_whole);
                let momentum = if is_whole { momentum } else { self.gathered(momentum)? };
                (Some((momentum, others)), self.ranks.share("counters for a checkpoint", own)?)
            }
        };

        Ok(HostCopy {
            replicas,
            ema,
            frozen: self.frozen.clone(),
            table: self.optimizer.table().clone(),
            flat,
            state: TrainerState {
                format: FORMAT,
                run: self.run.clone(),
                step: self.step,
                skipped_steps,
                loss_scale,
                micro_steps: self.micro_steps,
                position: self.position,
                data_fingerprint: provenance.data_fingerprint.clone(),
                tokenizer_fingerprint: provenance.tokenizer_fingerprint.clone(),
                source_tokens: self.source_tokens,
                target_tokens: self.target_tokens,
                train_secs: self.train_secs,
                non_finite_steps: self.non_finite_steps,
                best: self.best.clone(),
                patience: self.patience.clone(),
                frozen: self.optimizer.table().frozen_paths(),
                group_size: self.group_size,
                replicas: replica_counters,
            },
            model: self.shape.clone(),
            files: provenance.files.clone(),
        })
    }

    /// Sends both moments to rank 0, the second and third of `flat`. Returns there what the other ranks have sent.
    fn moments_of_others(&self, flat: &[TensorData]) -> Result<Vec<[TensorData; 2]>> {
        let to_first = |moment: &TensorData| self.ranks.to_first("gathering moments for a checkpoint", moment.clone());
        let (first, second) = (to_first(&flat[1])?, to_first(&flat[2])?);
        Ok(first.into_iter().zip(second).map(|(first, second)| [first, second]).skip(1).collect())
    }

    /// Joins the ranks' slices of a flat f32 tensor on rank 0; the others get nothing.
    fn gathered(&self, slice: TensorData) -> Result<TensorData> {
        let slices = self.ranks.to_first("gathering weights and moments for a checkpoint", slice)?;
        let mut flat = Vec::with_capacity(self.optimizer.table().flat_len());
        for slice in &slices {
            flat.extend_from_slice(slice.as_slice::<f32>().expect("weights and moments are f32"));
        }
        let n = flat.len();
        Ok(TensorData::new(flat, [n]))
    }
}
