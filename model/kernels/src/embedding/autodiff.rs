//! One node, which keeps the ids.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::EmbeddingOps;

#[derive(Debug)]
struct TableRows {
    /// V
    rows: usize,
}

impl<B: Backend + EmbeddingOps> Backward<B, 1> for TableRows {
    type State = IntTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::table_gradient(dy, ops.state, self.rows));
        }
    }
}

impl<B: Backend + EmbeddingOps, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn table_rows(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        let rows = table.shape()[0];
        let prep = TableRows { rows }.prepare::<C>([table.node()]).compute_bound().stateful();
        let table = table.into_primitive();
        match prep {
            OpsKind::Tracked(prep) => prep.finish(ids.clone(), B::table_rows(table, ids)),
            OpsKind::UnTracked(prep) => prep.finish(B::table_rows(table, ids)),
        }
    }

    fn table_gradient(_dy: FloatTensor<Self>, _ids: IntTensor<Self>, _rows: usize) -> FloatTensor<Self> {
        unreachable!("called by backward only, below the graph")
    }
}
