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

    fn append_and_attend(
        qkv: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        spec: StepSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [qkv, key_value] = [qkv, key_value].map(|x| x.into_primitive());
        let (attended, key_value) = B::append_and_attend(qkv, key_value, lengths, spec);
        (Self::from_inner(attended), Self::from_inner(key_value))
    }
}
