//! Integers carry no gradient, so this bypasses the graph.

use burn::backend::Backend;
use burn::backend::tensor::IntTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::ops::LabelledOps;

impl<B: Backend + LabelledOps, C: CheckpointStrategy> LabelledOps for Autodiff<B, C> {
    fn labelled_rows(labels: IntTensor<Self>, ignored: i32, len: usize) -> IntTensor<Self> {
        B::labelled_rows(labels, ignored, len)
    }
}
