//! Collectives as a backend extension. They have no gradient.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};

use super::Communicator;
use super::slice::SliceLayout;
use crate::optim::Factors;

/// What a step of a sharded optimizer needs besides its tensors.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read on GPUs only"))]
pub(crate) struct ShardedStep {
    pub(crate) communicator: Communicator,
    /// Bounds of the ranks' slices in the weights.
    pub(crate) bounds: Vec<usize>,
    pub(crate) factors: Factors,
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait RankOps: Backend {
    /// See [`Communicator::exchange`].
    #[fusion(dtype = values, shape = Shape::new([received(communicator, bounds)]))]
    fn rank_exchange(values: FloatTensor<Self>, communicator: Communicator, bounds: Vec<usize>) -> FloatTensor<Self>;

    /// See [`Communicator::all_gather`].
    #[fusion(dtype = full, shape = full)]
    fn rank_all_gather(full: FloatTensor<Self>, communicator: Communicator, bounds: Vec<usize>) -> FloatTensor<Self>;

    /// Returns `(sum, squares)`, see [`Communicator::add_up`].
    #[fusion(meta = |_values, _table, _communicator, layout| {
        let floats = |n| TensorSpec::new(Shape::new([n]), DType::F32);
        (floats(layout.len()), floats(layout.n_chunks()))
    })]
    fn rank_add_up(
        values: FloatTensor<Self>,
        table: IntTensor<Self>,
        communicator: Communicator,
        layout: Arc<SliceLayout>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `(master, m, v, all)`, see [`Communicator::adamw_step`].
    #[fusion(meta = |master, m, v, all, _gradient, _numbers, _step| {
        (master.clone(), m.clone(), v.clone(), all.clone())
    })]
    #[allow(clippy::too_many_arguments, reason = "an operator takes its tensors one by one")]
    fn rank_adamw_step(
        master: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        all: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        step: ShardedStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Returns the elements that an exchange brings to this rank, its own included.
#[cfg(feature = "cuda")]
pub(super) fn received(communicator: &Communicator, bounds: &[usize]) -> usize {
    let rank = communicator.rank();
    communicator.world_size() * (bounds[rank + 1] - bounds[rank])
}

impl RankOps for Flex {
    fn rank_exchange(_values: FlexTensor, _communicator: Communicator, _bounds: Vec<usize>) -> FlexTensor {
        on_the_cpu()
    }

    fn rank_all_gather(_full: FlexTensor, _communicator: Communicator, _bounds: Vec<usize>) -> FlexTensor {
        on_the_cpu()
    }

    fn rank_add_up(
        _values: FlexTensor,
        _table: FlexTensor,
        _communicator: Communicator,
        _layout: Arc<SliceLayout>,
    ) -> (FlexTensor, FlexTensor) {
        on_the_cpu()
    }

    fn rank_adamw_step(
        _master: FlexTensor,
        _m: FlexTensor,
        _v: FlexTensor,
        _all: FlexTensor,
        _gradient: FlexTensor,
        _numbers: FlexTensor,
        _step: ShardedStep,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        on_the_cpu()
    }
}

fn on_the_cpu() -> ! {
    unreachable!("a communicator belongs to a CUDA device, which the caller has compared with the tensor's")
}
