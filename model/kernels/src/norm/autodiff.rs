//! One node for the whole normalization.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::NormOps;

#[derive(Debug)]
struct LayerNorm {
    eps: f32,
}

impl<B: Backend + NormOps> Backward<B, 3> for LayerNorm {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (x, gamma) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let (dx, dgamma, dbeta) = B::fused_layer_norm_backward(x, gamma, dy, self.eps);
        for (node, gradient) in ops.parents.into_iter().zip([dx, dgamma, dbeta]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: Backend + NormOps, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn fused_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), gamma.node(), beta.node()];
        let prep = LayerNorm { eps }.prepare::<C>(nodes).compute_bound().stateful();
        let (x, gamma, beta) = (x.into_primitive(), gamma.into_primitive(), beta.into_primitive());
        match prep {
            OpsKind::Tracked(prep) => prep.finish((x.clone(), gamma.clone()), B::fused_layer_norm(x, gamma, beta, eps)),
            OpsKind::UnTracked(prep) => prep.finish(B::fused_layer_norm(x, gamma, beta, eps)),
        }
    }

    fn fused_layer_norm_backward(
        _x: FloatTensor<Self>,
        _gamma: FloatTensor<Self>,
        _dy: FloatTensor<Self>,
        _eps: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by backward only, below the graph")
    }
}
