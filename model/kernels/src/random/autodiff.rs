//! Integers carry no gradient, so this bypasses the graph.

use burn::backend::Backend;
use burn::backend::tensor::IntTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::ops::RandomOps;

impl<B: Backend + RandomOps, C: CheckpointStrategy> RandomOps for Autodiff<B, C> {
    fn random_words(state: IntTensor<Self>, site: u32, n: usize) -> IntTensor<Self> {
        B::random_words(state, site, n)
    }
}
