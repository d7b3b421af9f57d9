//! The likeliest columns carry no gradient: a search needs none.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::ops::LikeliestOps;

impl<B: Backend + LikeliestOps, C: CheckpointStrategy> LikeliestOps for Autodiff<B, C> {
    fn likeliest(logits: FloatTensor<Self>, excluded: IntTensor<Self>, k: usize) -> FloatTensor<Self> {
        Self::from_inner(B::likeliest(logits.into_primitive(), excluded, k))
    }
}
