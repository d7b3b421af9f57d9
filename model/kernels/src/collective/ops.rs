//! Collectives as a backend extension. They have no gradient.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::Shape;
use burn_flex::{Flex, FlexTensor};

use super::Communicator;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait RankOps: Backend {
    /// See [`Communicator::exchange`].
    #[fusion(dtype = values, shape = Shape::new([received(communicator, bounds)]))]
    fn rank_exchange(values: FloatTensor<Self>, communicator: Communicator, bounds: Vec<usize>) -> FloatTensor<Self>;

    /// See [`Communicator::all_gather`].
    #[fusion(dtype = full, shape = full)]
    fn rank_all_gather(full: FloatTensor<Self>, communicator: Communicator, bounds: Vec<usize>) -> FloatTensor<Self>;
}

/// Returns the elements that an exchange brings to this rank, its own included.
#[cfg(feature = "cuda")]
pub(super) fn received(communicator: &Communicator, bounds: &[usize]) -> usize {
    let rank = communicator.rank();
    communicator.world_size() * (bounds[rank + 1] - bounds[rank])
}

impl RankOps for Flex {
    fn rank_exchange(_values: FlexTensor, _communicator: Communicator, _bounds: Vec<usize>) -> FlexTensor {
        unreachable!("a communicator belongs to a CUDA device, which the caller has compared with the tensor's")
    }

    fn rank_all_gather(_full: FlexTensor, _communicator: Communicator, _bounds: Vec<usize>) -> FlexTensor {
        unreachable!("a communicator belongs to a CUDA device, which the caller has compared with the tensor's")
    }
}
