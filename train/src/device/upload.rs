//! Copies host batches to the device and makes model batches of them.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_data::{BatchLayout, HostBatch};
use kiln_kernels::capture::overwrite;
use kiln_model::{Batch, PairBatch, TextBatch};

use super::is_cpu;

/// A batch on the device that is not cut into tensors yet. The thread that computes with it may be another than the one that
/// uploaded it.
#[derive(Debug, Clone)]
pub struct Uploaded {
    ids: Tensor<1, Int>,
    /// The batch without its ids.
    facts: HostBatch,
}

/// A mixture: which rows of a batch are of which source, `[S, B]`, 1 or 0.
pub type RowSources = Tensor<2, Int>;

impl Uploaded {
    /// Copies `host` to the device in one transfer.
    ///
    /// On a GPU the call enqueues the copy and returns. Each thread has a stream of its own there, so the copies of one thread
    /// travel while kernels of another run. CubeCL copies the ids into pinned memory before.
    pub fn send(host: &HostBatch, device: &Device) -> Self {
        // Token ids carry no gradient, and the plain device spares them the autodiff layer.
        let device = device.clone().inner();
        let mut ids = host.ids.clone();
        ids.extend(
            (0..host.n_sources as u16)
                .flat_map(|source| host.row_sources.iter().map(move |of| i32::from(*of == source))),
        );
        let n = ids.len();
        let ids = TensorData::new(ids, [n]);
        let ids = Tensor::<1, Int>::from_data(ids, (&device, DType::I32));
        let (rows, sources, row_sources) = (Vec::new(), Vec::new(), Vec::new());
        Self { ids, facts: HostBatch { ids: Vec::new(), rows, sources, row_sources, ..*host } }
    }

    /// Takes the batch over from the thread that has sent it.
    ///
    /// A GPU copies the ids, some hundred kilobytes, into memory of the calling thread's stream. Only this copy waits for the
    /// upload, and recordings find all their memory on one stream.
    pub fn take(self) -> (Batch, Option<RowSources>) {
        let Self { ids, facts } = self;
        let device = ids.device();
        let ids = if is_cpu(&device) { ids } else { overwrite(Tensor::empty(ids.dims(), (&device, DType::I32)), ids) };
        Self { ids, facts }.cut()
    }

    /// Slices the batch's tensors out of the ids.
    fn cut(self) -> (Batch, Option<RowSources>) {
        let Self { mut ids, facts } = self;
        let HostBatch { batch_size, source_len, target_len, source_tokens, target_tokens, n_sources, .. } = facts;
        let row_sources = (n_sources > 0).then(|| {
            let ([n], n_own) = (ids.dims(), n_sources * batch_size);
            let own = ids.clone().narrow(0, n - n_own, n_own).reshape([n_sources, batch_size]);
            ids = ids.clone().narrow(0, 0, n - n_own);
            own
        });

        let batch = match facts.layout {
            BatchLayout::Pairs => Batch::Pairs(PairBatch::from_contiguous(
                ids,
                [batch_size, source_len, target_len],
                source_tokens,
                target_tokens,
            )),
            BatchLayout::Text => {
                let n = batch_size * target_len;
                // The fourth part: see `HostBatch::token_types`.
                let token_types = facts.token_types.then(|| ids.clone().narrow(0, 3 * n, n));
                let shape = [batch_size, target_len];
                let batch = TextBatch::from_contiguous(ids, shape, target_tokens, facts.boundaries);
                Batch::Text(TextBatch { token_types, preference: facts.preference, ..batch })
            }
        };
        (batch, row_sources)
    }
}

/// Copies `host` to the device in one transfer, and slices the batch's tensors out of it there.
pub fn upload(host: &HostBatch, device: &Device) -> Batch {
    Uploaded::send(host, device).cut().0
}

/// Uploads a batch, cut by rows into `splits` micro-batches.
pub fn upload_split(host: &HostBatch, splits: usize, device: &Device) -> Vec<Batch> {
    send_split(host, splits, device).into_iter().map(|sent| sent.cut().0).collect()
}

/// Sends a batch, cut by rows into `splits` micro-batches, for another thread to take.
pub fn send_split(host: &HostBatch, splits: usize, device: &Device) -> Vec<Uploaded> {
    match splits {
        0 | 1 => vec![Uploaded::send(host, device)],
        splits => host.split(splits).iter().map(|part| Uploaded::send(part, device)).collect(),
    }
}
