//! Gradients of the products: each is a product of the same family.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{Layout, LinearOps};

#[derive(Debug)]
struct Product(Layout);

impl<B: Backend + LinearOps> Backward<B, 2> for Product {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (a, b) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [node_a, node_b] = ops.parents;
        // y = a b: da = dy bᵀ, db = aᵀ dy.   y = a bᵀ: da = dy b, db = dyᵀ a.
        if let Some(node) = node_a {
            let da = match self.0 {
                Layout::NN => B::product(dy.clone(), b, Layout::NT),
                Layout::NT => B::product(dy.clone(), b, Layout::NN),
                Layout::TN => unreachable!("TN is made by backward only"),
            };
            grads.register::<B>(node.id, da);
        }
        if let Some(node) = node_b {
            let db = match self.0 {
                Layout::NN => B::product(a, dy, Layout::TN),
                Layout::NT => B::product(dy, a, Layout::TN),
                Layout::TN => unreachable!("TN is made by backward only"),
            };
            grads.register::<B>(node.id, db);
        }
    }
}

#[derive(Debug)]
struct BatchedProduct;

impl<B: Backend + LinearOps> Backward<B, 2> for BatchedProduct {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (a, b) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [node_a, node_b] = ops.parents;
        if let Some(node) = node_a {
            grads.register::<B>(node.id, B::batched_product(dy.clone(), B::float_swap_dims(b, 1, 2)));
        }
        if let Some(node) = node_b {
            grads.register::<B>(node.id, B::batched_product(B::float_swap_dims(a, 1, 2), dy));
        }
    }
}

impl<B: Backend + LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn product(a: FloatTensor<Self>, b: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self> {
        let prep = Product(layout).prepare::<C>([a.node(), b.node()]).compute_bound().stateful();
        let (a, b) = (a.into_primitive(), b.into_primitive());
        match prep {
            OpsKind::Tracked(prep) => prep.finish((a.clone(), b.clone()), B::product(a, b, layout)),
            OpsKind::UnTracked(prep) => prep.finish(B::product(a, b, layout)),
        }
    }

    fn batched_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let prep = BatchedProduct.prepare::<C>([a.node(), b.node()]).compute_bound().stateful();
        let (a, b) = (a.into_primitive(), b.into_primitive());
        match prep {
            OpsKind::Tracked(prep) => prep.finish((a.clone(), b.clone()), B::batched_product(a, b)),
            OpsKind::UnTracked(prep) => prep.finish(B::batched_product(a, b)),
        }
    }
}
