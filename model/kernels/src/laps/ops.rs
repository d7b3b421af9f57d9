//! Marking as a backend extension, so that a mark takes its turn behind the work before it.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn_flex::{Flex, FlexTensor};

use super::Mark;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait LapOps: Backend {
    /// Returns `token`, after a mark in the queue.
    #[fusion(dtype = token, shape = token)]
    fn lap_mark(token: FloatTensor<Self>, mark: Mark) -> FloatTensor<Self>;
}

impl LapOps for Flex {
    fn lap_mark(token: FlexTensor, _mark: Mark) -> FlexTensor {
        token
    }
}
