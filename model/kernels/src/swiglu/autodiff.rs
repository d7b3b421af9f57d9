//! The gradient of SwiGLU and GEGLU: one node, which keeps `gate | up`.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{Gate, SwigluOps};

#[derive(Debug)]
struct Swiglu(Gate);

impl<B: Backend + SwigluOps> Backward<B, 1> for Swiglu {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::fused_swiglu_backward(ops.state, dy, self.0));
        }
    }
}

impl<B: Backend + SwigluOps, C: CheckpointStrategy> SwigluOps for Autodiff<B, C> {
    fn fused_swiglu(gate_up: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self> {
        let prep = Swiglu(gate).prepare::<C>([gate_up.node()]).compute_bound().stateful();
        let gate_up = gate_up.into_primitive();
        match prep {
            OpsKind::Tracked(prep) => prep.finish(gate_up.clone(), B::fused_swiglu(gate_up, gate)),
            OpsKind::UnTracked(prep) => prep.finish(B::fused_swiglu(gate_up, gate)),
        }
    }

    fn fused_swiglu_backward(_gate_up: FloatTensor<Self>, _dy: FloatTensor<Self>, _gate: Gate) -> FloatTensor<Self> {
        unreachable!("called by backward only, below the graph")
    }
}
