//! Decoding needs no gradient.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::ops::{StepAttentionOps, StepSpec};

impl<B: Backend + StepAttentionOps, C: CheckpointStrategy> StepAttentionOps for Autodiff<B, C> {
    fn step_attention(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        places: IntTensor<Self>,
        lengths: IntTensor<Self>,
        spec: StepSpec,
    ) -> FloatTensor<Self> {
        let [query, key_value] = [query, key_value].map(|x| x.into_primitive());
        Self::from_inner(B::step_attention(query, key_value, places, lengths, spec))
    }
}
