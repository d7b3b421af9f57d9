//! The gradient of the norms of heads: one node, which keeps their inputs.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{HeadNormOps, HeadNorms};

#[derive(Debug)]
struct NormHeads(HeadNorms);

impl<B: Backend + HeadNormOps> Backward<B, 3> for NormHeads {
    /// The inputs.
    type State = [FloatTensor<B>; 3];

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let [qkv, query_gamma, key_gamma] = ops.state;
        let (d_qkv, d_query, d_key) = B::norm_heads_backward(qkv, query_gamma, key_gamma, dy, self.0);
        for (node, gradient) in ops.parents.into_iter().zip([d_qkv, d_query, d_key]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: Backend + HeadNormOps, C: CheckpointStrategy> HeadNormOps for Autodiff<B, C> {
    fn norm_heads(
        qkv: FloatTensor<Self>,
        query_gamma: FloatTensor<Self>,
        key_gamma: FloatTensor<Self>,
        spec: HeadNorms,
    ) -> FloatTensor<Self> {
        let nodes = [qkv.node(), query_gamma.node(), key_gamma.node()];
        let prep = NormHeads(spec).prepare::<C>(nodes).compute_bound().stateful();
        let inputs = [qkv, query_gamma, key_gamma].map(|tensor| tensor.into_primitive());
        let [qkv, query_gamma, key_gamma] = inputs.clone();
        let y = B::norm_heads(qkv, query_gamma, key_gamma, spec);
        match prep {
            OpsKind::Tracked(prep) => prep.finish(inputs, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn norm_heads_backward(
        _qkv: FloatTensor<Self>,
        _query_gamma: FloatTensor<Self>,
        _key_gamma: FloatTensor<Self>,
        _dy: FloatTensor<Self>,
        _spec: HeadNorms,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by backward only, below the graph")
    }
}
