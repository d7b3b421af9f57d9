//! The gradient of the sums: each element of a row has the gradient of its sum. Columns carry none.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::RowOps;

#[derive(Debug)]
struct RowSums;

impl<B: Backend + RowOps> Backward<B, 1> for RowSums {
    type State = Shape;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let column = B::float_reshape(dy, Shape::new([ops.state[0], 1]));
            grads.register::<B>(node.id, B::float_expand(column, ops.state));
        }
    }
}

impl<B: Backend + RowOps, C: CheckpointStrategy> RowOps for Autodiff<B, C> {
    fn row_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let prep = RowSums.prepare::<C>([x.node()]).compute_bound().stateful();
        let x = x.into_primitive();
        match prep {
            OpsKind::Tracked(prep) => prep.finish(x.shape(), B::row_sums(x)),
            OpsKind::UnTracked(prep) => prep.finish(B::row_sums(x)),
        }
    }

    fn row_argmax(x: FloatTensor<Self>) -> IntTensor<Self> {
        B::row_argmax(x.into_primitive())
    }
}
