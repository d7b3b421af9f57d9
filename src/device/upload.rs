//! Copies host batches to the device and makes model batches of them.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_data::{BatchLayout, HostBatch};
use kiln_model::{Batch, PairBatch, TextBatch};

/// Copies `host` to `device` in one transfer and slices the batch's tensors out of it there.
///
/// On a GPU the call enqueues the copy and returns; the host's time for it is `upload_ms` in `metrics.jsonl`. CubeCL puts the
/// copy on the stream of the kernels, where it begins after the step before it: the two do not overlap on the device. How long
/// the device takes for it has not been measured.
pub fn upload(host: &HostBatch, device: &Device) -> Batch {
    // Token ids carry no gradient, and the plain device spares them the autodiff layer.
    let device = device.clone().inner();
    let ids = TensorData::new(host.ids.clone(), [host.ids.len()]);
    let ids = Tensor::<1, Int>::from_data(ids, (&device, DType::I32));
    let HostBatch { batch_size, source_len, target_len, source_tokens, target_tokens, .. } = *host;
    match host.layout {
        BatchLayout::Pairs => Batch::Pairs(PairBatch::from_contiguous(
            ids,
            [batch_size, source_len, target_len],
            source_tokens,
            target_tokens,
        )),
        BatchLayout::Text => {
            let n = batch_size * target_len;
            // The fourth part: see `HostBatch::token_types`.
            let token_types = host.token_types.then(|| ids.clone().narrow(0, 3 * n, n));
            let shape = [batch_size, target_len];
            let batch = TextBatch::from_contiguous(ids, shape, target_tokens, host.boundaries);
            Batch::Text(TextBatch { token_types, preference: host.preference, ..batch })
        }
    }
}

/// Uploads a batch, cut by rows into `splits` micro-batches.
pub fn upload_split(host: &HostBatch, splits: usize, device: &Device) -> Vec<Batch> {
    match splits {
        0 | 1 => vec![upload(host, device)],
        splits => host.split(splits).iter().map(|part| upload(part, device)).collect(),
    }
}
