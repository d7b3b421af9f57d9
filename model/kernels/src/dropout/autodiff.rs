//! The gradient of dropout. It is linear in its input, so backward drops and scales the gradient with the same counter.

use burn::backend::Backend;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::DropoutOps;

#[derive(Debug)]
struct Dropout {
    site: u32,
    p: f32,
}

impl<B: Backend + DropoutOps> Backward<B, 1> for Dropout {
    type State = IntTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::dropout(dy, ops.state, self.site, self.p));
        }
    }
}

impl<B: Backend + DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn dropout(x: FloatTensor<Self>, state: IntTensor<Self>, site: u32, p: f32) -> FloatTensor<Self> {
        let prep = Dropout { site, p }.prepare::<C>([x.node()]).compute_bound().stateful();
        let x = x.into_primitive();
        match prep {
            OpsKind::Tracked(prep) => prep.finish(state.clone(), B::dropout(x, state, site, p)),
            OpsKind::UnTracked(prep) => prep.finish(B::dropout(x, state, site, p)),
        }
    }

    fn dropout_words(target: IntTensor<Self>, words: [i32; 4]) -> IntTensor<Self> {
        B::dropout_words(target, words)
    }
}
