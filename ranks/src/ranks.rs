//! What one rank of a training run can do together with the others: tensors over NCCL or TCP, host values over TCP.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_data::Rank;
use kiln_kernels::collective::{CollectiveTime, Communicator, UniqueId};
use kiln_kernels::optim::overwrite;
use kiln_kernels::{is_cpu, is_cuda};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Link, Phase, share_gpus};
use crate::host_sync::waiting;
use crate::timeline;

/// This process among the processes that train one model: or alone.
///
/// Every rank must make the same calls in the same order. Clones share the connection.
#[derive(Clone, Default)]
pub struct Ranks(Option<Arc<Members>>);

struct Members {
    link: Link,
    /// `None` on the CPU and on shared GPUs, where tensors travel over the link.
    nccl: Option<Communicator>,
    /// Bytes of the pieces in which slices travel; `None`: whole over the link, and as the kernels choose over NCCL.
    piece_bytes: Option<NonZeroUsize>,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the link of rank {} of {}", self.rank(), self.size())
    }
}

impl Ranks {
    /// Returns one process that trains alone.
    pub fn alone() -> Self {
        Self::default()
    }

    /// Joins the other ranks' devices: CUDA devices by NCCL; by `link` CPUs, GPUs that ranks share (see [`share_gpus`]), and devices
    /// without kernels.
    ///
    /// # Errors
    /// If NCCL cannot be loaded or the GPUs cannot reach each other, or if another rank has failed.
    pub fn over(link: Link, device: &Device) -> Result<Self> {
        let nccl = if is_cuda(device) && !share_gpus() { Some(join(&link, device)?) } else { None };
        Ok(Self(Some(Arc::new(Members { link, nccl, piece_bytes: None }))))
    }

    /// Joins the other ranks for host values alone; tensors travel over `link`, too.
    pub fn over_hosts(link: Option<Link>) -> Self {
        Self(link.map(|link| Arc::new(Members { link, nccl: None, piece_bytes: None })))
    }

    /// Lets the slices of gradients and weights travel in pieces of at most `bytes`, one after the other. All ranks must give the same.
    /// The results do not depend on it.
    pub fn in_pieces_of(self, bytes: Option<NonZeroUsize>) -> Self {
        let in_pieces = |members: Arc<Members>| {
            let nccl = members.nccl.clone().map(|nccl| nccl.in_pieces_of(bytes));
            Arc::new(Members { link: members.link.clone(), nccl, piece_bytes: bytes })
        };
        Self(self.0.map(in_pieces))
    }

    /// Returns the number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.link().map_or(0, Link::rank)
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.link().map_or(1, Link::size)
    }

    /// Returns whether this is rank 0, which alone writes files and speaks to the user.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Returns whether there are other ranks.
    pub fn are_many(&self) -> bool {
        self.size() > 1
    }

    /// Returns which batches of a shared list are this rank's.
    pub fn part(&self) -> Rank {
        Rank { rank: self.rank(), world_size: self.size(), ..Rank::default() }
    }

    /// Returns the connection to the others, if there are any.
    pub fn link(&self) -> Option<&Link> {
        self.0.as_ref().map(|members| &members.link)
    }

    /// Returns this rank's end of the GPUs' own connection; `None` where tensors travel over the link.
    pub fn communicator(&self) -> Option<&Communicator> {
        self.0.as_ref()?.nccl.as_ref()
    }

    /// Announces what this rank does next, which limits how long it may take.
    pub fn enter(&self, phase: Phase) {
        if let Some(link) = self.link() {
            link.enter(phase);
        }
    }

    /// Gives `value` and returns the values of all ranks, in their order.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn share<T: Serialize + DeserializeOwned>(&self, what: &'static str, value: T) -> Result<Vec<T>> {
        let Some(link) = self.link() else { return Ok(vec![value]) };
        let bytes = serde_json::to_vec(&value).context(what)?;
        let all = link.all_gather(what, bytes)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).context(what)).collect()
    }

    /// Returns what rank 0 gives.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn from_first<T: Serialize + DeserializeOwned>(&self, what: &'static str, value: T) -> Result<T> {
        let Some(link) = self.link() else { return Ok(value) };
        let bytes = if link.is_first() { serde_json::to_vec(&value).context(what)? } else { Vec::new() };
        serde_json::from_slice(&link.all_gather(what, bytes)?[0]).context(what)
    }

    /// Joins a list of which each rank has its [`Self::part`]. An element is `None` where another rank has it.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn merge<T: Serialize + DeserializeOwned>(
        &self,
        what: &'static str,
        own: Vec<Option<T>>,
    ) -> Result<Vec<Option<T>>> {
        let mut of_ranks = self.share(what, own)?.into_iter();
        let mut all = of_ranks.next().unwrap_or_default();
        for others in of_ranks {
            all.iter_mut().zip(others).for_each(|(one, other)| *one = one.take().or(other));
        }
        Ok(all)
    }

    /// Runs `work` on rank 0 first and on the others after it has succeeded there.
    ///
    /// # Errors
    /// If `work` fails, or if another rank has failed.
    pub fn first_then_others<T>(&self, what: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.link() {
            Some(link) => link.first_then_others(what, work),
            None => work(),
        }
    }

    /// Sends elements `bounds[p]..bounds[p + 1]` of `values`, `[n]`, to rank p. Returns what the ranks have sent to this one,
    /// one behind the other in their order.
    ///
    /// # Errors
    /// If another rank or the device has failed.
    pub fn exchange(&self, values: Tensor<1>, bounds: &[usize]) -> Result<Tensor<1>> {
        let Some(members) = &self.0 else { return Ok(values) };
        if let Some(nccl) = &members.nccl {
            return Ok(nccl.exchange(values, bounds));
        }
        let (device, dtype) = (values.device(), values.dtype());
        let data = read(values)?;
        let (bytes, size) = (data.as_bytes(), dtype.size());
        let mut received = vec![Vec::new(); members.link.size()];
        for turn in turns(bounds, size, members.piece_bytes) {
            let parts = turn.into_iter().map(|part| bytes[part.start * size..part.end * size].to_vec()).collect();
            let exchange = || members.link.exchange("exchanging gradients", parts);
            let arrived = timeline::time("exchange", exchange)?;
            received.iter_mut().zip(arrived).for_each(|(all, part)| append(all, part));
        }
        tensor(received.concat(), dtype, &device)
    }

    /// Returns `full`, `[n]`, with the slices of all ranks up to date. Slice `bounds[r]..bounds[r + 1]` belongs to rank r;
    /// `own` is this rank's. On GPUs `full` already holds it, and the result is in the same buffer.
    ///
    /// # Errors
    /// If another rank or the device has failed.
    pub fn all_gather(&self, own: Tensor<1>, full: Tensor<1>, bounds: &[usize]) -> Result<Tensor<1>> {
        match self.0.as_deref() {
            None => Ok(full),
            Some(Members { nccl: Some(nccl), .. }) => Ok(nccl.all_gather(full, bounds)),
            Some(members) => {
                let gathered = members.over_tcp(own, bounds)?;
                Ok(if is_cpu(&full.device()) { gathered } else { overwrite(full, gathered) })
            }
        }
    }

    /// Concatenates the ranks' tensors, `[bounds[r + 1] - bounds[r]]` each, to a new one, `[n]`.
    ///
    /// # Errors
    /// If another rank or the device has failed.
    pub fn concatenate(&self, own: Tensor<1>, bounds: &[usize]) -> Result<Tensor<1>> {
        match self.0.as_deref() {
            None => Ok(own),
            Some(Members { nccl: Some(_), .. }) => {
                let [n, rank] = [bounds[bounds.len() - 1], self.rank()];
                let full = Tensor::zeros([n], (&own.device(), own.dtype()));
                let full = full.slice_assign(bounds[rank]..bounds[rank + 1], own.clone());
                self.all_gather(own, full, bounds)
            }
            Some(members) => members.over_tcp(own, bounds),
        }
    }

    /// Sends host tensors of this rank to rank 0, which gets the tensors of all ranks, in their order; the others get none.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn to_first(&self, what: &'static str, tensor: TensorData) -> Result<Vec<TensorData>> {
        let Some(link) = self.link() else { return Ok(vec![tensor]) };
        let dtype = tensor.dtype();
        let mut parts = vec![Vec::new(); link.size()];
        parts[0] = tensor.as_bytes().to_vec();
        let received = link.exchange(what, parts)?;
        if !link.is_first() {
            return Ok(Vec::new());
        }
        let data = |bytes: Vec<u8>| {
            let n = bytes.len() / dtype.size();
            TensorData::from_bytes_vec(bytes, [n], dtype)
        };
        Ok(received.into_iter().map(data).collect())
    }

    /// Returns an error that NCCL has met since the last call. Does not wait for the device.
    ///
    /// # Errors
    /// If there is one.
    pub fn check(&self) -> Result<()> {
        match self.0.as_deref() {
            Some(Members { nccl: Some(nccl), .. }) => Ok(nccl.check()?),
            _ => Ok(()),
        }
    }

    /// Takes the device's times of the tensors' moves that have ended since the last call. Does not wait.
    pub fn take_timings(&self) -> Vec<CollectiveTime> {
        match self.0.as_deref() {
            Some(Members { nccl: Some(nccl), .. }) => nccl.take_timings(),
            _ => Vec::new(),
        }
    }

    /// Tells the other ranks that this one fails, and why.
    pub fn abort(&self, reason: &str) {
        if let Some(members) = &self.0 {
            members.link.abort(reason);
            if let Some(nccl) = &members.nccl {
                nccl.abort();
            }
        }
    }

    /// Returns `result`; if it is an error, tells the other ranks, too.
    ///
    /// # Errors
    /// The error of `result`.
    pub fn or_abort<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.abort(&format!("{error:#}")))
    }

    /// Ends the connection in order.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn finish(&self) -> Result<()> {
        Ok(self.link().map_or(Ok(()), Link::finish)?)
    }
}

/// Joins the GPUs of all ranks. Rank 0 makes the communicator's id.
fn join(link: &Link, device: &Device) -> Result<Communicator> {
    let id = if link.is_first() { UniqueId::new()?.0.to_vec() } else { Vec::new() };
    let ids = link.all_gather("sharing the id of the NCCL communicator", id)?;
    let id = ids[0].as_slice().try_into().context("the id of the NCCL communicator")?;
    Ok(Communicator::join(&UniqueId(id), link.rank(), link.size(), device)?)
}

impl Members {
    /// Concatenates the ranks' tensors, which are slices that end at `bounds`.
    fn over_tcp(&self, own: Tensor<1>, bounds: &[usize]) -> Result<Tensor<1>> {
        let (device, dtype) = (own.device(), own.dtype());
        let (size, rank) = (dtype.size(), self.link.rank());
        let own = read(own)?;
        let mut slices = vec![Vec::new(); self.link.size()];
        for turn in turns(bounds, size, self.piece_bytes) {
            let from_start = |element: usize| (element - bounds[rank]) * size;
            let part = own.as_bytes()[from_start(turn[rank].start)..from_start(turn[rank].end)].to_vec();
            let arrived = timeline::time("all_gather", || self.link.all_gather("gathering weights", part))?;
            slices.iter_mut().zip(arrived).for_each(|(slice, part)| append(slice, part));
        }
        tensor(slices.concat(), dtype, &device)
    }
}

/// Cuts the slices that end at `bounds` into parts of at most `most_bytes`: the parts of each rank, one list per turn. `size` is the bytes
/// of an element. All ranks cut alike.
fn turns(bounds: &[usize], size: usize, most_bytes: Option<NonZeroUsize>) -> Vec<Vec<Range<usize>>> {
    let longest = bounds.windows(2).map(|slice| slice[1] - slice[0]).max().unwrap_or(0);
    let most = most_bytes.map_or(longest, |bytes| bytes.get() / size).max(1);
    let cut = |slice: &[usize], turn: usize| slice[1].min(slice[0] + turn * most);
    let part = |slice: &[usize], turn: usize| cut(slice, turn)..cut(slice, turn + 1);
    let n = longest.div_ceil(most).max(1);
    (0..n).map(|turn| bounds.windows(2).map(|slice| part(slice, turn)).collect()).collect()
}

/// Appends what has arrived, without a copy if it is the first.
fn append(all: &mut Vec<u8>, part: Vec<u8>) {
    match all.is_empty() {
        true => *all = part,
        false => all.extend(part),
    }
}

/// Reads a tensor.
fn read(tensor: Tensor<1>) -> Result<TensorData> {
    waiting(|| tensor.try_into_data()).context("reading a tensor to send it to other ranks")
}

fn tensor(bytes: Vec<u8>, dtype: DType, device: &Device) -> Result<Tensor<1>> {
    let n = bytes.len() / dtype.size();
    Ok(Tensor::from_data(TensorData::from_bytes_vec(bytes, [n], dtype), (device, dtype)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_cover_each_slice_in_order_whatever_their_size() {
        for bounds in [vec![0, 7, 7, 20], vec![5, 6, 12, 12], vec![0, 0, 0, 0]] {
            let longest = bounds.windows(2).map(|slice| slice[1] - slice[0]).max().unwrap_or(0);
            for (most_bytes, most) in [(0, longest), (1, 1), (11, 2), (40, 10), (4096, 1024)] {
                let found = turns(&bounds, 4, NonZeroUsize::new(most_bytes));
                assert_eq!(found.len(), longest.div_ceil(most.max(1)).max(1), "{bounds:?} {most_bytes}");
                for rank in 0..3 {
                    let parts: Vec<Range<usize>> = found.iter().map(|turn| turn[rank].clone()).collect();
                    assert!(parts.iter().all(|part| part.len() <= most), "{parts:?}");
                    assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
                    assert_eq!([parts[0].start, parts[parts.len() - 1].end], [bounds[rank], bounds[rank + 1]]);
                }
            }
        }
    }
}
