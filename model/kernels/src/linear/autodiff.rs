//! Gradients of products, which are products themselves, see [`Layout`].

use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId};

use super::{Layout, LinearOps, ProductKind};
use crate::activation::Activation;
use crate::dropout::Mask;
use crate::maybe::Maybe;

/// `activation(x · weight + bias)` as one node.
#[derive(Debug)]
struct Linear {
    kind: ProductKind,
    activation: Option<Activation>,
    /// Without a bias the weight takes its place among the parents, and gets no gradient from it.
    has_bias: bool,
}

impl<B: Backend + LinearOps> Backward<B, 3> for Linear {
    /// `x`, the weight, the tensor that the activation keeps, and the dropout mask.
    type State = (FloatTensor<B>, FloatTensor<B>, Option<FloatTensor<B>>, Mask<B>);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (x, weight, kept, mask) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [node_x, node_weight, node_bias] = ops.parents;
        let node_bias = node_bias.filter(|_| self.has_bias);
        let dy = match (self.activation, kept) {
            (Some(activation), Some(kept)) => {
                let (dy, dbias) = B::activate_backward(kept, dy, activation, mask);
                if let Some(node) = node_bias {
                    grads.register::<B>(node.id, dbias);
                }
                dy
            }
            _ => {
                if let Some(node) = node_bias {
                    grads.register::<B>(node.id, B::column_sum(dy.clone()));
                }
                dy
            }
        };
        let nodes = [node_x, node_weight].map(|node| node.map(|node| node.id));
        register_products::<B>(grads, self.kind, dy, [x, weight], nodes);
    }
}

/// Registers the gradients of both operands of a product, `x` and a weight, given the gradient `dy` of its result. An operand
/// without a node needs none.
pub(crate) fn register_products<B: Backend + LinearOps>(
    grads: &mut Gradients,
    kind: ProductKind,
    dy: FloatTensor<B>,
    [x, weight]: [FloatTensor<B>; 2],
    [of_x, of_weight]: [Option<NodeId>; 2],
) {
    if let (Some(of_x), Some(of_weight)) = (of_x, of_weight) {
        let (dx, dweight) = B::product_gradients(dy, x, weight, kind);
        grads.register::<B>(of_x, dx);
        grads.register::<B>(of_weight, dweight);
    } else if let Some(node) = of_x {
        grads.register::<B>(node, B::product(dy, weight, kind.of_input_gradient()));
    } else if let Some(node) = of_weight {
        let (a, b) = kind.layout.for_weight_gradient(x, dy);
        grads.register::<B>(node, B::product(a, b, kind.of_weight_gradient()));
    }
}

/// `residual + x · weight + bias` as one node.
#[derive(Debug)]
struct LinearResidual {
    kind: ProductKind,
    /// As in [`Linear`].
    has_bias: bool,
}

impl<B: Backend + LinearOps> Backward<B, 4> for LinearResidual {
    /// `x` and the weight.
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (x, weight) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [node_x, node_weight, node_bias, node_residual] = ops.parents;
        if let Some(node) = node_bias.filter(|_| self.has_bias) {
            grads.register::<B>(node.id, B::column_sum(dy.clone()));
        }
        if let Some(node) = node_residual {
            grads.register::<B>(node.id, dy.clone());
        }
        let nodes = [node_x, node_weight].map(|node| node.map(|node| node.id));
        register_products::<B>(grads, self.kind, dy, [x, weight], nodes);
    }
}

#[derive(Debug)]
struct BatchedProduct {
    kind: ProductKind,
}

impl<B: Backend + LinearOps> Backward<B, 2> for BatchedProduct {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (a, b) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [node_a, node_b] = ops.parents;
        if let Some(node) = node_a {
            grads.register::<B>(node.id, B::batched_product(dy.clone(), b, self.kind.of_input_gradient()));
        }
        if let Some(node) = node_b {
            let (a, dy) = self.kind.layout.for_weight_gradient(a, dy);
            grads.register::<B>(node.id, B::batched_product(a, dy, self.kind.with(Layout::TN)));
        }
    }
}

impl<B: Backend + LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn product(a: FloatTensor<Self>, b: FloatTensor<Self>, kind: ProductKind) -> FloatTensor<Self> {
        assert!(!a.is_tracked() && !b.is_tracked(), "the gradient of a weight has no gradient of its own");
        Self::from_inner(B::product(a.into_primitive(), b.into_primitive(), kind))
    }

    fn product_gradients(
        _dy: FloatTensor<Self>,
        _x: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
        _kind: ProductKind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("only backward calls this, below the graph")
    }

    fn accumulate_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        sum: FloatTensor<Self>,
        kind: ProductKind,
    ) -> FloatTensor<Self> {
        assert!(
            !a.is_tracked() && !b.is_tracked() && !sum.is_tracked(),
            "the gradient of a weight has no gradient of its own"
        );
        let [a, b, sum] = [a, b, sum].map(|x| x.into_primitive());
        Self::from_inner(B::accumulate_product(a, b, sum, kind))
    }

    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        kind: ProductKind,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> FloatTensor<Self> {
        assert!(kind.layout != Layout::TN, "only backward uses TN");
        let bias = bias.into_option();
        let bias_node = bias.as_ref().map_or_else(|| weight.node(), |bias| bias.node());
        let node = Linear { kind, activation, has_bias: bias.is_some() };
        let prep = node.prepare::<C>([x.node(), weight.node(), bias_node]).compute_bound().stateful();
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let bias = Maybe::from(bias.map(|bias| bias.into_primitive()));
        let mask: Mask<B> = mask.convert();

        match (prep, activation) {
            (OpsKind::UnTracked(prep), _) => prep.finish(B::fused_linear(x, weight, bias, kind, activation, mask)),
            (OpsKind::Tracked(prep), None) => {
                let y = B::fused_linear(x.clone(), weight.clone(), bias, kind, None, Mask::None);
                prep.finish((x, weight, None, Mask::None), y)
            }
            (OpsKind::Tracked(prep), Some(activation)) if activation.keeps_result() => {
                let y = B::fused_linear(x.clone(), weight.clone(), bias, kind, Some(activation), mask.clone());
                prep.finish((x, weight, Some(y.clone()), mask), y)
            }
            (OpsKind::Tracked(prep), Some(activation)) => {
                let (before, y) = B::fused_linear_both(x.clone(), weight.clone(), bias, kind, activation, mask.clone());
                prep.finish((x, weight, Some(before), mask), y)
            }
        }
    }

    fn known_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        known: FloatTensor<Self>,
        kind: ProductKind,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> FloatTensor<Self> {
        let bias = bias.into_option();
        let bias_node = bias.as_ref().map_or_else(|| weight.node(), |bias| bias.node());
        let node = Linear { kind, activation, has_bias: bias.is_some() };
        let prep = node.prepare::<C>([x.node(), weight.node(), bias_node]).compute_bound().stateful();
        let [x, weight, known] = [x, weight, known].map(|tensor| tensor.into_primitive());
        let bias = Maybe::from(bias.map(|bias| bias.into_primitive()));
        let mask: Mask<B> = mask.convert();

        let y = B::known_linear(x.clone(), weight.clone(), bias, known.clone(), kind, activation, mask.clone());
        match prep {
            OpsKind::Tracked(prep) => prep.finish((x, weight, activation.map(|_| known), mask), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn fused_linear_both(
        _x: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
        _bias: Maybe<Self>,
        _kind: ProductKind,
        _activation: Activation,
        _mask: Mask<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("only `fused_linear` calls this, below the graph")
    }

    fn linear_residual(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        residual: FloatTensor<Self>,
        kind: ProductKind,
    ) -> FloatTensor<Self> {
        let bias = bias.into_option();
        let bias_node = bias.as_ref().map_or_else(|| weight.node(), |bias| bias.node());
        let nodes = [x.node(), weight.node(), bias_node, residual.node()];
        let prep = LinearResidual { kind, has_bias: bias.is_some() }.prepare::<C>(nodes).compute_bound().stateful();
        let [x, weight, residual] = [x, weight, residual].map(|tensor| tensor.into_primitive());
        let bias = Maybe::from(bias.map(|bias| bias.into_primitive()));
        let y = B::linear_residual(x.clone(), weight.clone(), bias, residual, kind);
        match prep {
            OpsKind::Tracked(prep) => prep.finish((x, weight), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn activate(_x: FloatTensor<Self>, _activation: Activation, _mask: Mask<Self>) -> FloatTensor<Self> {
        unreachable!("only `linear` calls this, below the graph")
    }

    fn activate_backward(
        _kept: FloatTensor<Self>,
        _dy: FloatTensor<Self>,
        _activation: Activation,
        _mask: Mask<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("only backward calls this, below the graph")
    }

    fn column_sum(_x: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("only backward calls this, below the graph")
    }

    fn batched_product(a: FloatTensor<Self>, b: FloatTensor<Self>, kind: ProductKind) -> FloatTensor<Self> {
        let prep = BatchedProduct { kind }.prepare::<C>([a.node(), b.node()]).compute_bound().stateful();
        let (a, b) = (a.into_primitive(), b.into_primitive());
        match prep {
            OpsKind::Tracked(prep) => prep.finish((a.clone(), b.clone()), B::batched_product(a, b, kind)),
            OpsKind::UnTracked(prep) => prep.finish(B::batched_product(a, b, kind)),
        }
    }
}
