//! Beginning a copy to the host as a backend extension, so that it takes its turn behind the work that computes the tensor.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn_flex::{Flex, FlexTensor};

use super::Slot;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait ReadbackOps: Backend {
    /// Returns `values`, whose copy to the host `slot` then holds, if the backend copies.
    #[fusion(dtype = values, shape = values)]
    fn read_back(values: FloatTensor<Self>, slot: Slot) -> FloatTensor<Self>;
}

impl ReadbackOps for Flex {
    fn read_back(values: FlexTensor, _slot: Slot) -> FlexTensor {
        values
    }
}
