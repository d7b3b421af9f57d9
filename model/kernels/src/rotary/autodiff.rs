//! The gradient of rotary embedding: one node, which keeps positions and frequencies.

use burn::backend::Backend;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{RotaryOps, RotarySpec};

#[derive(Debug)]
struct Rotary(RotarySpec);

impl<B: Backend + RotaryOps> Backward<B, 1> for Rotary {
    type State = (IntTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let spec = RotarySpec { back: !self.0.back, ..self.0 };
            let (positions, frequencies) = ops.state;
            grads.register::<B>(node.id, B::fused_rotary(dy, positions, frequencies, spec));
        }
    }
}

impl<B: Backend + RotaryOps, C: CheckpointStrategy> RotaryOps for Autodiff<B, C> {
    fn fused_rotary(
        qkv: FloatTensor<Self>,
        positions: IntTensor<Self>,
        frequencies: FloatTensor<Self>,
        spec: RotarySpec,
    ) -> FloatTensor<Self> {
        let prep = Rotary(spec).prepare::<C>([qkv.node()]).compute_bound().stateful();
        let (qkv, frequencies) = (qkv.into_primitive(), frequencies.into_primitive());
        match prep {
            OpsKind::Tracked(prep) => {
                let y = B::fused_rotary(qkv, positions.clone(), frequencies.clone(), spec);
                prep.finish((positions, frequencies), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::fused_rotary(qkv, positions, frequencies, spec)),
        }
    }
}
