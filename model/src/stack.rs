//! Stacks of layers, and which of their activations training keeps for backward.
//!
//! Without activation checkpointing, forward builds one graph over all layers. With it, forward runs without a graph and keeps the
//! residual sum at the start of each layer. Backward goes through the layers from the last to the first. It runs each layer forward
//! once more from its sum, now with a graph, takes the gradients and drops the graph.
//!
//! ```text
//!   forward    sum 0  -->  layer 0  -->  sum 1  -->  layer 1  -->  sum 2  -->  norm
//!   backward   sum 0  -->  layer 0       sum 1  -->  layer 1       sum 2  -->  norm     with a graph, from right to left
//!                 '--- gradient <---'       '--- gradient <---'       '--- gradient
//! ```
//!
//! The last product of a layer is not computed twice, since nothing in the layer needs its result. The kernels are the same, and dropout
//! draws from a counter, so that gradients have the same bits.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use kiln_kernels::{
    Branch, CustomGradients, DropoutStream, LeafGradient, Retained, Settings, gradients_behind, has_custom_gradients,
    with_gradient,
};

use crate::checkpointing::ActivationCheckpointing;
use crate::fp8::Fp8Layers;
use crate::kv_cache::Memory;
use crate::norm::{Entered, Norm, Residual, ResidualStream};
use crate::rows::Rows;

/// What all layers of a stack read.
#[derive(Debug, Clone)]
pub(crate) struct LayerInput {
    pub(crate) rows: Rows,
    /// The encoded source, if there is one.
    pub(crate) memory: Option<Memory>,
}

/// A layer of a stack: sublayers in residual branches.
pub(crate) trait Layer: Module + 'static {
    /// Adds the branch that the layer before has left pending: `x <- x + branch`, then the first norm of the layer.
    fn enter(&self, x: ResidualStream, stream: Option<&DropoutStream>) -> Entered;

    /// Computes the layer, from its first sublayer on.
    fn pass(&self, x: Entered, input: &LayerInput, stream: Option<&DropoutStream>) -> ResidualStream;

    /// The bias of the branch that is left pending, and how it is added.
    fn end(&self) -> (Option<&Param<Tensor<1>>>, Residual);
}

/// How a stack trains. A saved model does not remember it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Training {
    pub(crate) checkpointing: ActivationCheckpointing,
    pub(crate) fp8: Fp8Layers,
}

/// Runs `layers`, then `norm`.
///
/// # Shapes
/// - `x`: `[M, D]`; result the same
pub(crate) fn run<L: Layer>(
    layers: &[L],
    norm: &Option<Norm>,
    x: Tensor<2>,
    input: &LayerInput,
    stream: Option<&DropoutStream>,
    training: Training,
) -> Tensor<2> {
    let Training { checkpointing, fp8 } = training;
    let fp8 = if x.is_autodiff() { fp8 } else { Fp8Layers::None };
    let can_run_again = !Settings::current().reference_operators && has_custom_gradients(&x.device());
    let has_graph = x.is_autodiff() && !layers.is_empty() && can_run_again;
    if !has_graph || checkpointing == ActivationCheckpointing::Off {
        let (mut x, n) = (ResidualStream::new(x), layers.len());
        for (i, layer) in layers.iter().enumerate() {
            // Here the last product of the layer before is computed.
            let products = fp8.install(i.saturating_sub(1), n);
            let entered = layer.enter(x, stream);
            drop(products);
            let _products = fp8.install(i, n);
            x = layer.pass(entered, input, stream);
        }
        let _products = fp8.install(n.saturating_sub(1), n);
        return x.end(norm, stream);
    }

    let shared = input.shared();
    let input = input.clone().without_autodiff();
    let fork = stream.map(DropoutStream::fork);
    let stack = Stack { layers: layers.to_vec(), norm: norm.clone(), input, fp8 };
    let (y, kept) = stack.forward(x.clone().inner(), fork.as_ref(), checkpointing);
    if let Some((stream, fork)) = stream.zip(fork) {
        stream.join(&fork);
    }

    let backward = move |dy| stack.backward(dy, kept);
    match shared {
        [None, None] => with_gradient(y, [x], move |dy| backward(dy).finished()),
        [Some(a), None] | [None, Some(a)] => with_gradient(y, [x, a], move |dy| backward(dy).finished()),
        [Some(a), Some(b)] => with_gradient(y, [x, a, b], move |dy| backward(dy).finished()),
    }
}

/// A stack that runs forward without a graph, and backward layer by layer.
struct Stack<L> {
    layers: Vec<L>,
    norm: Option<Norm>,
    /// Without autodiff.
    input: LayerInput,
    fp8: Fp8Layers,
}

/// What forward keeps: of each layer, and of the norm after the last.
struct Kept {
    layers: Vec<Checkpoint>,
    end: Checkpoint,
}

/// The start of a layer.
struct Checkpoint {
    /// The residual sum, `[M, D]`.
    sum: Tensor<2>,
    /// The random stream before the sum.
    stream: Option<DropoutStream>,
    /// The results that the layer need not compute again.
    retained: Option<Retained>,
}

/// Backward so far.
struct Backward {
    /// Gradient of the residual sum that comes next.
    sum: Tensor<2>,
    /// Gradient of the branch that the sum includes, if it is a branch of the layer before.
    branch: Option<Tensor<2>>,
    /// Gradients of what the layers share, see [`LayerInput::shared`].
    shared: [Option<Tensor<2>>; 2],
    /// Gradients of parameters.
    leaves: Vec<LeafGradient>,
}

impl Backward {
    /// The gradients of the stack's input and of what the layers share, in this order.
    fn finished<const N: usize>(self) -> CustomGradients<N> {
        let inputs: Vec<Tensor<2>> = [Some(self.sum)].into_iter().chain(self.shared).flatten().collect();
        let inputs = inputs.try_into().expect("every layer reads what the layers share");
        CustomGradients { inputs, leaves: self.leaves }
    }
}

impl<L: Layer> Stack<L> {
    fn forward(
        &self,
        x: Tensor<2>,
        stream: Option<&DropoutStream>,
        checkpointing: ActivationCheckpointing,
    ) -> (Tensor<2>, Kept) {
        let fork = || stream.map(DropoutStream::fork);
        let mut layers = Vec::with_capacity(self.layers.len());
        let (mut now, n) = (ResidualStream::new(x), self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let (layer, stream_before) = (layer.valid(), fork());
            let products = self.fp8.install(i.saturating_sub(1), n);
            let entered = layer.enter(now, stream);
            drop(products);
            let sum = entered.sum.clone();
            let _products = self.fp8.install(i, n);

            let pass = || layer.pass(entered, &self.input, stream);
            let retained;
            (now, retained) = match checkpointing {
                ActivationCheckpointing::Selective => {
                    let (now, retained) = Retained::keep(pass);
                    (now, Some(retained))
                }
                _ => (pass(), None),
            };
            layers.push(Checkpoint { sum, stream: stream_before, retained });
        }

        let stream_before = fork();
        let _products = self.fp8.install(n.saturating_sub(1), n);
        let (sum, y) = now.finish(&self.norm.as_ref().map(Module::valid), stream);
        (y, Kept { layers, end: Checkpoint { sum, stream: stream_before, retained: None } })
    }

    fn backward(self, dy: Tensor<2>, kept: Kept) -> Backward {
        let Self { layers, norm, input, fp8 } = self;
        let Kept { layers: checkpoints, end } = kept;
        let mut backward = Backward { sum: dy, branch: None, shared: [None, None], leaves: Vec::new() };

        if let Some(norm) = &norm {
            let start = Start::new(end.sum, layers.last());
            let (_, y) = start.stream().finish(&Some(norm.clone()), end.stream.as_ref());
            let mut gradients = gradients_behind(y, backward.sum.clone(), None);
            start.leave(&mut gradients, &mut backward);
            collect(norm, &mut gradients, &mut backward.leaves);
        }

        for (i, Checkpoint { sum, stream, retained }) in checkpoints.into_iter().enumerate().rev() {
            let (layer, before) = (&layers[i], i.checked_sub(1).map(|i| &layers[i]));
            let _products = fp8.install(i, layers.len());
            let start = Start::new(sum, before);
            let input = input.clone().with_shared(|tensor| Tensor::from_inner(tensor).require_grad());
            let entered = layer.enter(start.stream(), stream.as_ref());
            let pass = || layer.pass(entered, &input, stream.as_ref());
            let end = match retained {
                Some(retained) => retained.reuse(pass),
                None => pass(),
            };

            let (y, pending) = end.into_parts();
            let (mut y, mut dy, mut product) = (y, backward.sum.clone(), None);
            if let Some(Branch { x, weight, .. }) = pending {
                let branch = backward.branch.take().expect("the branch was added");
                match weight {
                    Some(weight) => product = Some(([x, weight], branch)),
                    // A layer that ends in adapters or in a norm has computed its branch.
                    None => (y, dy) = (Tensor::cat(vec![y, x], 0), Tensor::cat(vec![dy, branch], 0)),
                }
            }
            let mut gradients = gradients_behind(y, dy, product);
            start.leave(&mut gradients, &mut backward);
            collect(layer, &mut gradients, &mut backward.leaves);
            for (of_layers, leaf) in backward.shared.iter_mut().zip(input.shared()) {
                let Some(gradient) = leaf.and_then(|leaf| leaf.grad_remove(&mut gradients)) else { continue };
                *of_layers = Some(match of_layers.take() {
                    Some(later) => gradient + later,
                    None => gradient,
                });
            }
        }
        backward
    }
}

/// The leaves that a recomputation starts from.
struct Start<'a> {
    sum: Tensor<2>,
    /// Stands for the branch in the sum; its bias and dropout.
    branch: Option<(Tensor<2>, Option<&'a Param<Tensor<1>>>, Residual)>,
}

impl<'a> Start<'a> {
    /// The `sum` after the layer `before`.
    fn new<L: Layer>(sum: Tensor<2>, before: Option<&'a L>) -> Self {
        let leaf = || Tensor::from_inner(sum.clone()).require_grad();
        let branch = before.map(Layer::end).filter(|(_, residual)| residual.leaves_branch());
        Self { sum: leaf(), branch: branch.map(|(bias, residual)| (leaf(), bias, residual)) }
    }

    fn stream(&self) -> ResidualStream {
        let branch = self.branch.as_ref();
        let branch = branch.map(|(leaf, bias, residual)| (leaf.clone(), bias.map(Param::val), *residual));
        ResidualStream::again(self.sum.clone(), branch)
    }

    /// Takes the gradients of the leaves.
    fn leave(&self, gradients: &mut Gradients, backward: &mut Backward) {
        backward.sum = self.sum.grad_remove(gradients).expect("every layer reads its sum");
        backward.branch = None;
        if let Some((leaf, bias, _)) = &self.branch {
            backward.branch = leaf.grad_remove(gradients);
            let bias = bias.and_then(|bias| LeafGradient::take(&bias.val(), gradients));
            backward.leaves.extend(bias);
        }
    }
}

impl LayerInput {
    fn without_autodiff(self) -> Self {
        let memory = self.memory.map(|memory| Memory { lengths: memory.lengths.inner(), ..memory });
        Self { rows: self.rows.without_autodiff(), memory }.with_shared(Tensor::inner)
    }

    /// What has gradients from all layers: the hidden states of the source, and what relative positions add to scores.
    fn shared(&self) -> [Option<Tensor<2>>; 2] {
        [self.memory.as_ref().map(|memory| memory.hidden.clone()), self.rows.relative.clone()]
    }

    /// Replaces [`Self::shared`].
    fn with_shared(self, change: impl Fn(Tensor<2>) -> Tensor<2>) -> Self {
        let memory = self.memory.map(|memory| Memory { hidden: change(memory.hidden), ..memory });
        let relative = self.rows.relative.map(&change);
        Self { memory, rows: Rows { relative, ..self.rows } }
    }
}

/// Takes the gradients of all parameters of `module` that have one.
fn collect<M: Module>(module: &M, gradients: &mut Gradients, leaves: &mut Vec<LeafGradient>) {
    struct Visitor<'a>(&'a mut Gradients, &'a mut Vec<LeafGradient>);

    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.extend(LeafGradient::take(&param.val(), self.0));
        }
    }

    module.visit(&mut Visitor(gradients, leaves));
}
