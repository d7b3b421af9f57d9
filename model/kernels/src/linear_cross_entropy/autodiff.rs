//! The gradient of the fused head: one node. Forward has computed its gradients except for a factor.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape, Slice};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{Head, LinearCrossEntropyOps, Wanted, gradient_scale};
use crate::maybe::Maybe;

#[derive(Debug)]
struct HeadLosses {
    dtype: DType,
    /// Without a bias the weight takes its place as a parent and gets no gradient from it.
    has_bias: bool,
}

impl<B: Backend + LinearCrossEntropyOps> Backward<B, 3> for HeadLosses {
    /// The gradients of input, weight and bias.
    type State = [FloatTensor<B>; 3];

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let drows = grads.consume::<B>(&ops.node);
        // Every row's loss has the gradient of their sum.
        let mut factor = B::float_slice(drows, &[Slice::from(0..1), Slice::from(0..1)]);
        let scale = gradient_scale(self.dtype);
        if scale != 1.0 {
            factor = B::float_mul_scalar(factor, (1.0 / scale).into());
        }
        let [x, weight, bias] = ops.parents;
        let bias = bias.filter(|_| self.has_bias);
        for (node, gradient) in [x, weight, bias].into_iter().zip(ops.state) {
            if let Some(node) = node {
                let factor = B::float_reshape(factor.clone(), Shape::from(vec![1; gradient.rank()]));
                let product = B::float_mul(cast::<B>(gradient, DType::F32), factor);
                grads.register::<B>(node.id, cast::<B>(product, self.dtype));
            }
        }
    }
}

fn cast<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if x.dtype() == dtype { x } else { B::float_cast(x, FloatDType::from(dtype)) }
}

impl<B: Backend + LinearCrossEntropyOps, C: CheckpointStrategy> LinearCrossEntropyOps for Autodiff<B, C> {
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        labels: IntTensor<Self>,
        head: Head,
    ) -> FloatTensor<Self> {
        let bias = bias.into_option();
        let wanted = Wanted {
            x: x.is_tracked(),
            weight: weight.is_tracked(),
            bias: bias.as_ref().is_some_and(|bias| bias.is_tracked()),
        };
        let bias_node = bias.as_ref().map_or_else(|| weight.node(), |bias| bias.node());
        let node = HeadLosses { dtype: x.dtype(), has_bias: bias.is_some() };
        let prep = node.prepare::<C>([x.node(), weight.node(), bias_node]).compute_bound().stateful();
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let bias = Maybe::from(bias.map(|bias| bias.into_primitive()));
        match prep {
            OpsKind::Tracked(prep) => {
                let (rows, dx, dweight, dbias) =
                    B::linear_cross_entropy_with_gradients(x, weight, bias, labels, head, wanted);
                prep.finish([dx, dweight, dbias], rows)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::linear_cross_entropy(x, weight, bias, labels, head)),
        }
    }

    fn linear_cross_entropy_with_gradients(
        _x: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
        _bias: Maybe<Self>,
        _labels: IntTensor<Self>,
        _head: Head,
        _wanted: Wanted,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by `linear_cross_entropy` only, below the graph")
    }
}
