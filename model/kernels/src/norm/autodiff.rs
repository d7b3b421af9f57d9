//! The gradient of [`add_norm`](super::add_norm): two results from one kernel, and one kernel for the gradients of
//! both.
//!
//! A node of the autodiff graph has one output, so the operator is three nodes:
//!
//! ```text
//!   x, branch, weight, bias, gamma, beta  -->  inner  --+-->  sum     (the residual stream)
//!                                                       '-->  normed
//! ```
//!
//! In backward the output nodes run first, because a node runs after all nodes that depend on it. They put their
//! gradient into a slot shared with the inner node and register none; the inner node takes both. The kernel can thus
//! add the gradient of the residual stream to the gradient through the norm, wherever the results are used, and either
//! result may go unused.

use std::sync::{Arc, Mutex};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{Addend, Kind, NormOps};
use crate::dropout::Mask;
use crate::linear::{LinearOps, register_products};
use crate::maybe::Maybe;

/// Gradients passed from the output nodes to the inner node.
#[derive(Debug)]
struct OutputGradients<B: Backend> {
    sum: Option<FloatTensor<B>>,
    normed: Option<FloatTensor<B>>,
}

type Shared<B> = Arc<Mutex<OutputGradients<B>>>;

fn open<B: Backend>(shared: &Shared<B>) -> std::sync::MutexGuard<'_, OutputGradients<B>> {
    shared.lock().expect("no thread fails while it holds a gradient")
}

/// An output node.
#[derive(Debug, Clone, Copy)]
enum Output {
    Sum,
    Normed,
}

impl<B: Backend> Backward<B, 1> for Output {
    type State = Shared<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = Some(grads.consume::<B>(&ops.node));
        let mut gradients = open(&ops.state);
        match self {
            Output::Sum => gradients.sum = gradient,
            Output::Normed => gradients.normed = gradient,
        }
    }
}

#[derive(Debug)]
struct AddNorm {
    kind: Kind,
}

/// The tensors that [`AddNorm`] keeps for backward.
#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    sum: FloatTensor<B>,
    statistics: FloatTensor<B>,
    /// The operands of the branch, if it is a product.
    product: Option<[FloatTensor<B>; 2]>,
    gamma: FloatTensor<B>,
    drop: Mask<B>,
    gradients: Shared<B>,
}

/// Which optional parents exist. The parents are x, branch, weight, bias, gamma and beta; x or gamma takes the place of
/// a missing one, which gets no gradient.
#[derive(Debug, Clone, Copy)]
struct Present {
    branch: bool,
    bias: bool,
    beta: bool,
}

impl<B: Backend + NormOps + LinearOps> Backward<B, 6> for AddNorm {
    type State = (Saved<B>, Present);

    fn backward(self, ops: Ops<Self::State, 6>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (Saved { sum, statistics, product, gamma, drop, gradients }, present) = ops.state;
        let OutputGradients { sum: dsum, normed } =
            std::mem::replace(&mut *open(&gradients), OutputGradients { sum: None, normed: None });
        let dy = normed.unwrap_or_else(|| B::float_zeros(sum.shape(), &sum.device(), sum.dtype().into()));
        let [x, branch, weight, bias, gamma_node, beta] = ops.parents;
        let branch = branch.filter(|_| present.branch);
        let bias = bias.filter(|_| present.bias);
        let beta = beta.filter(|_| present.beta);
        let kind = Kind { bias: bias.is_some(), ..self.kind };
        let (dx, dbranch, dgamma, dbeta, dbias) =
            B::add_norm_backward(sum, statistics, gamma, dy, dsum.into(), drop, kind);
        for (node, gradient) in [(x, dx), (bias, dbias), (gamma_node, dgamma), (beta, dbeta)] {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
        match (product, branch) {
            (Some(operands), branch) => {
                let nodes = [branch, weight].map(|node| node.map(|node| node.id));
                register_products::<B>(grads, kind.product, dbranch, operands, nodes);
            }
            (None, Some(node)) => grads.register::<B>(node.id, dbranch),
            (None, None) => {}
        }
    }
}

/// Takes the tensors out of the graph.
fn below<B: Backend, C: CheckpointStrategy>(branch: Addend<Autodiff<B, C>>) -> Addend<B> {
    match branch {
        Addend::None => Addend::None,
        Addend::Branch(branch) => Addend::Branch(branch.into_primitive()),
        Addend::Product { x, weight } => Addend::Product { x: x.into_primitive(), weight: weight.into_primitive() },
        Addend::Added(branch) => Addend::Added(branch.into_primitive()),
        Addend::KnownSum { x, weight, sum } => {
            Addend::KnownSum { x: x.into_primitive(), weight: weight.into_primitive(), sum: sum.into_primitive() }
        }
    }
}

impl<B: Backend + NormOps + LinearOps, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn add_norm(
        x: FloatTensor<Self>,
        branch: Addend<Self>,
        bias: Maybe<Self>,
        drop: Mask<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [bias, beta] = [bias, beta].map(Maybe::into_option);
        let drop: Mask<B> = drop.convert();
        let present = Present { branch: !matches!(branch, Addend::None), bias: bias.is_some(), beta: beta.is_some() };
        let (branch_or_x, weight_or_gamma) = match &branch {
            Addend::None => (&x, &gamma),
            Addend::Branch(branch) | Addend::Added(branch) => (branch, &gamma),
            Addend::Product { x, weight } | Addend::KnownSum { x, weight, .. } => (x, weight),
        };
        let [bias_or_gamma, beta_or_gamma] = [&bias, &beta].map(|it| it.as_ref().unwrap_or(&gamma));
        let parents = [&x, branch_or_x, weight_or_gamma, bias_or_gamma, &gamma, beta_or_gamma];
        let nodes = parents.map(|parent| parent.node());
        let prep = AddNorm { kind }.prepare::<C>(nodes).compute_bound().stateful();
        let (x, gamma) = (x.into_primitive(), gamma.into_primitive());
        let [bias, beta] = [bias, beta].map(|it| Maybe::from(it.map(|it| it.into_primitive())));
        let branch: Addend<B> = below(branch);
        let product = match &branch {
            Addend::Product { x, weight } | Addend::KnownSum { x, weight, .. } => Some([x.clone(), weight.clone()]),
            _ => None,
        };
        let (sum, normed, statistics) =
            B::add_norm_with_statistics(x, branch, bias, drop.clone(), gamma.clone(), beta, kind);
        let gradients = Arc::new(Mutex::new(OutputGradients { sum: None, normed: None }));
        let inner = match prep {
            OpsKind::Tracked(prep) => {
                let saved = Saved { sum: sum.clone(), statistics, product, gamma, drop, gradients: gradients.clone() };
                prep.finish((saved, present), normed.clone())
            }
            OpsKind::UnTracked(prep) => prep.finish(normed.clone()),
        };
        let output = |which: Output, value: FloatTensor<B>| -> FloatTensor<Self> {
            match Backward::<B, 1>::prepare::<C>(which, [inner.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => prep.finish(gradients.clone(), value),
                OpsKind::UnTracked(prep) => prep.finish(value),
            }
        };
        (output(Output::Sum, sum), output(Output::Normed, normed))
    }

    fn add_norm_with_statistics(
        _x: FloatTensor<Self>,
        _branch: Addend<Self>,
        _bias: Maybe<Self>,
        _drop: Mask<Self>,
        _gamma: FloatTensor<Self>,
        _beta: Maybe<Self>,
        _kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by `add_norm` only, below the graph")
    }

    fn add_norm_backward(
        _sum: FloatTensor<Self>,
        _statistics: FloatTensor<Self>,
        _gamma: FloatTensor<Self>,
        _dy: FloatTensor<Self>,
        _dsum: Maybe<Self>,
        _drop: Mask<Self>,
        _kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by backward only, below the graph")
    }
}
