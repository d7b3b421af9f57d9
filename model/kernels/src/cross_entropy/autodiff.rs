//! The gradient of cross-entropy: one node from logits to losses.

use burn::backend::Backend;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{CrossEntropyOps, RowLoss};

#[derive(Debug)]
struct CrossEntropyRows(RowLoss);

impl<B: Backend + CrossEntropyOps> Backward<B, 1> for CrossEntropyRows {
    /// Logits, labels, and the result of forward.
    type State = (FloatTensor<B>, IntTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (logits, labels, rows) = ops.state;
        let drows = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let dlogits = B::cross_entropy_rows_backward(logits, labels, rows, drows, self.0);
            grads.register::<B>(node.id, dlogits);
        }
    }
}

impl<B: Backend + CrossEntropyOps, C: CheckpointStrategy> CrossEntropyOps for Autodiff<B, C> {
    fn cross_entropy_rows(logits: FloatTensor<Self>, labels: IntTensor<Self>, of: RowLoss) -> FloatTensor<Self> {
        let prep = CrossEntropyRows(of).prepare::<C>([logits.node()]).compute_bound().stateful();
        let logits = logits.into_primitive();
        match prep {
            OpsKind::Tracked(prep) => {
                let rows = B::cross_entropy_rows(logits.clone(), labels.clone(), of);
                prep.finish((logits, labels, rows.clone()), rows)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::cross_entropy_rows(logits, labels, of)),
        }
    }

    fn cross_entropy_rows_backward(
        _logits: FloatTensor<Self>,
        _labels: IntTensor<Self>,
        _rows: FloatTensor<Self>,
        _drows: FloatTensor<Self>,
        _of: RowLoss,
    ) -> FloatTensor<Self> {
        unreachable!("called by backward only, below the graph")
    }
}
