//! Host batch -> device batch: the only place that knows both.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_data::{HostBatch, Layout};
use kiln_model::PairBatch;

/// Copies `host` to `device` in one transfer and cuts the parts out of it there.
///
/// The copy is only enqueued on a GPU, so a batch uploaded while the previous step runs costs the step nothing.
///
/// # Panics
///
/// If `host` is a batch of text: only encoder-decoders are trained so far.
pub fn upload(host: &HostBatch, device: &Device) -> PairBatch {
    assert_eq!(host.layout, Layout::Pairs, "an encoder-decoder learns from pairs");
    // Token ids carry no gradient, and the plain device spares them the autodiff layer.
    let device = device.clone().inner();
    let ids = TensorData::new(host.ids.clone(), [host.ids.len()]);
    let ids = Tensor::<1, Int>::from_data(ids, (&device, DType::I32));
    let shape = [host.batch_size, host.source_len, host.target_len];
    PairBatch::from_contiguous(ids, shape, host.source_tokens, host.target_tokens)
}
