//! The gradient of a lookup: one node, which keeps the ids.

use burn::backend::Backend;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{EmbeddingOps, Lookup};
use crate::dropout::Mask;
use crate::maybe::Maybe;

/// The parents are table and positions. Without positions the table takes their place and gets no gradient from it.
#[derive(Debug)]
struct Embed {
    lookup: Lookup,
    has_positions: bool,
}

impl<B: Backend + EmbeddingOps> Backward<B, 2> for Embed {
    type State = (IntTensor<B>, Mask<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let ((ids, drop), [table, positions]) = (ops.state, ops.parents);
        if let Some(node) = positions.filter(|_| self.has_positions) {
            grads.register::<B>(node.id, B::position_gradient(dy.clone(), drop.clone(), self.lookup));
        }
        if let Some(node) = table {
            grads.register::<B>(node.id, B::table_gradient(dy, ids, drop, self.lookup));
        }
    }
}

impl<B: Backend + EmbeddingOps, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn embed(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        positions: Maybe<Self>,
        drop: Mask<Self>,
        lookup: Lookup,
    ) -> FloatTensor<Self> {
        let (positions, drop) = (positions.into_option(), drop.convert::<B>());
        let nodes = [table.node(), positions.as_ref().unwrap_or(&table).node()];
        let prep = Embed { lookup, has_positions: positions.is_some() }.prepare::<C>(nodes).compute_bound().stateful();
        let (table, positions) = (table.into_primitive(), positions.map(|it| it.into_primitive()).into());
        match prep {
            OpsKind::Tracked(prep) => {
                prep.finish((ids.clone(), drop.clone()), B::embed(table, ids, positions, drop, lookup))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::embed(table, ids, positions, drop, lookup)),
        }
    }

    fn table_gradient(
        _dy: FloatTensor<Self>,
        _ids: IntTensor<Self>,
        _drop: Mask<Self>,
        _lookup: Lookup,
    ) -> FloatTensor<Self> {
        unreachable!("called by backward only, below the graph")
    }

    fn position_gradient(_dy: FloatTensor<Self>, _drop: Mask<Self>, _lookup: Lookup) -> FloatTensor<Self> {
        unreachable!("called by backward only, below the graph")
    }
}
