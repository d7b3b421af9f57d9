//! Gradients that the caller computes: what activation checkpointing is made of.
//!
//! [`with_gradient`] puts a result that was computed without a graph into the graph. Backward then calls a function, which may
//! build a graph of its own: it runs part of the model again from leaves, and starts backward at [`gradients_behind`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, TensorMetadata,
};
use burn::tensor::{Device, Gradients, Shape, Tensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId, grads};
use burn_flex::Flex;

use crate::linear::{Layout, ProductKind, register_products};
use crate::settings::is_cpu;

/// The gradient of a leaf of a graph, such as a parameter.
#[derive(Debug)]
pub struct LeafGradient {
    leaf: DispatchTensor,
    gradient: DispatchTensor,
}

impl LeafGradient {
    /// Takes the gradient of `leaf` from `gradients`, if it has one.
    pub fn take<const D: usize>(leaf: &Tensor<D>, gradients: &mut Gradients) -> Option<Self> {
        let gradient = leaf.grad_remove(gradients)?.into_dispatch();
        Some(Self { leaf: leaf.clone().into_dispatch(), gradient })
    }
}

/// The gradients that a function of [`with_gradient`] returns.
#[derive(Debug)]
pub struct CustomGradients<const N: usize> {
    /// Of the inputs.
    pub inputs: [Tensor<2>; N],
    /// Of other leaves that the result depends on.
    pub leaves: Vec<LeafGradient>,
}

#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
const OTHER_BACKEND: &str =
    "this build of kiln-kernels has custom gradients on the CPU only; build it with its feature `cuda` or `wgpu`";

/// Returns whether [`with_gradient`] serves `device`: the CPU, and with the feature `cuda` or `wgpu` every device of CubeCL.
pub fn has_custom_gradients(device: &Device) -> bool {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if matches!(device.clone().inner().as_dispatch(), burn::backend::DispatchDevice::Cube(_)) {
        return true;
    }
    is_cpu(device)
}

/// Returns `value` as a function of `inputs`. Backward calls `backward` once with the gradient of the result, and adds what it returns
/// to the gradients of the inputs and of other leaves.
///
/// The other leaves must not be used elsewhere in the graph of the result: while backward runs, that graph is locked, and a second one
/// that shares a leaf with it waits forever.
///
/// `backward` keeps what it needs. It must not keep a tensor of the graph except leaves: such a tensor would keep the graph.
///
/// # Shapes
/// - `value`: any, without autodiff; result the same
///
/// # Panics
/// If an input is not on an autodiff device, or `value` is, or [`has_custom_gradients`] returns false.
pub fn with_gradient<const N: usize>(
    value: Tensor<2>,
    inputs: [Tensor<2>; N],
    backward: impl FnOnce(Tensor<2>) -> CustomGradients<N> + Send + 'static,
) -> Tensor<2> {
    // An input without a gradient would end backward here, before the leaves.
    let inputs = inputs.map(|input| if input.is_tracked() { input } else { input.detach().require_grad() });
    let inputs = inputs.map(Tensor::into_dispatch);
    let (context, is_flex) = (inputs[0].autodiff, is_flex(&inputs[0]));
    let deferred = Deferred(Arc::new(Mutex::new(Some(Box::new(backward)))));
    let value = value.into_dispatch();
    let result = match is_flex {
        true => deferred.node::<Flex>(value, inputs, context),
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        false => deferred.node::<Cube>(value, inputs, context),
        #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
        false => panic!("{OTHER_BACKEND}"),
    };
    Tensor::from_dispatch(result)
}

/// Computes the gradients of all that `y` comes from, given the gradient `dy`. With a product `[x, weight]` and its gradient, also of
/// all that its operands come from; the product itself is not computed.
///
/// # Shapes
/// - `y`, `dy`: the same
/// - product: `x` `[M, K]`, `weight` `[K, N]`, gradient `[M, N]`
///
/// # Panics
/// If nothing requires a gradient, or [`has_custom_gradients`] returns false.
pub fn gradients_behind(y: Tensor<2>, dy: Tensor<2>, product: Option<([Tensor<2>; 2], Tensor<2>)>) -> Gradients {
    let y = y.into_dispatch();
    let (context, is_flex) = (y.autodiff, is_flex(&y));
    let dy = dy.into_dispatch();
    let product = product.map(|(operands, gradient)| (operands.map(Tensor::into_dispatch), gradient.into_dispatch()));
    let root = match is_flex {
        true => root::<Flex>(y, dy, product, context),
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        false => root::<Cube>(y, dy, product, context),
        #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
        false => panic!("{OTHER_BACKEND}"),
    };
    Tensor::<1>::from_dispatch(root).backward()
}

fn is_flex(tensor: &DispatchTensor) -> bool {
    match &tensor.kind {
        DispatchTensorKind::Autodiff(kind) => matches!(**kind, DispatchTensorKind::Flex(_)),
        _ => panic!("a tensor of an autodiff device"),
    }
}

type Function<const N: usize> = Box<dyn FnOnce(Tensor<2>) -> CustomGradients<N> + Send>;

/// A function that backward calls once.
#[derive(Clone)]
struct Deferred<const N: usize>(Arc<Mutex<Option<Function<N>>>>);

impl<const N: usize> fmt::Debug for Deferred<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

impl<const N: usize> Deferred<N> {
    fn node<B: Concrete>(
        self,
        value: DispatchTensor,
        inputs: [DispatchTensor; N],
        context: DispatchAutodiffContext,
    ) -> DispatchTensor {
        let inputs = inputs.map(B::autodiff);
        let nodes = inputs.each_ref().map(|input| input.node());
        let value = B::plain(value);
        let result = match Backward::<B, N>::prepare::<NoCheckpointing>(Custom, nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(self, value),
            OpsKind::UnTracked(prep) => prep.finish(value),
        };
        B::dispatch(BackendTensor::Autodiff(result), context)
    }
}

#[derive(Debug)]
struct Custom;

impl<B: Concrete, const N: usize> Backward<B, N> for Custom {
    type State = Deferred<N>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut grads::Gradients, _checkpointer: &mut Checkpointer) {
        let function = ops.state.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let function = function.expect("backward runs once");
        let dy = B::dispatch(BackendTensor::Float(grads.consume::<B>(&ops.node)), DispatchAutodiffContext::Disabled);

        let CustomGradients { inputs, leaves } = function(Tensor::from_dispatch(dy));
        for (node, gradient) in ops.parents.into_iter().zip(inputs) {
            if let Some(node) = node {
                grads.register::<B>(node.id, B::plain(gradient.into_dispatch()));
            }
        }
        for LeafGradient { leaf, gradient } in leaves {
            grads.register::<B>(B::autodiff(leaf).id(), B::plain(gradient));
        }
    }
}

/// A product that is only differentiated, and its gradient.
type Product<T> = Option<([T; 2], T)>;

/// Makes the node that [`gradients_behind`] starts at. Its value has no meaning.
fn root<B: Concrete>(
    y: DispatchTensor,
    dy: DispatchTensor,
    product: Product<DispatchTensor>,
    context: DispatchAutodiffContext,
) -> DispatchTensor {
    let (y, dy) = (B::autodiff(y), B::plain(dy));
    let product = product.map(|(operands, gradient)| (operands.map(B::autodiff), B::plain(gradient)));
    let nodes = match &product {
        Some(([x, weight], _)) => [y.node(), x.node(), weight.node()],
        None => [y.node(), y.node(), y.node()],
    };
    let product = product.map(|(operands, gradient)| (operands.map(|operand| operand.into_primitive()), gradient));

    let value = B::float_zeros(Shape::new([1]), &dy.device(), dy.dtype().into());
    let node = Root { product: ProductKind::new(Layout::NN) };
    let root = match Backward::<B, 3>::prepare::<NoCheckpointing>(node, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish((dy, product), value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    };
    B::dispatch(BackendTensor::Autodiff(root), context)
}

#[derive(Debug)]
struct Root {
    product: ProductKind,
}

impl<B: Concrete> Backward<B, 3> for Root {
    type State = (FloatTensor<B>, Product<FloatTensor<B>>);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut grads::Gradients, _checkpointer: &mut Checkpointer) {
        let (dy, product) = ops.state;
        let [y, x, weight] = ops.parents.map(|node| node.map(|node| node.id));
        if let Some(y) = y {
            grads.register::<B>(y, dy);
        }
        if let Some((operands, gradient)) = product {
            B::register_products(grads, self.product, gradient, operands, [x, weight]);
        }
    }
}

/// A backend that runs operators, and its tensors among those that are dispatched at run time.
trait Concrete: Backend {
    /// Returns the tensor with its node.
    fn autodiff(tensor: DispatchTensor) -> FloatTensor<Autodiff<Self>>;

    /// Returns a tensor that has no node.
    fn plain(tensor: DispatchTensor) -> FloatTensor<Self>;

    fn dispatch(tensor: BackendTensor<Self>, context: DispatchAutodiffContext) -> DispatchTensor;

    /// Registers the gradients of both operands of a product, given the gradient `dy` of its result.
    fn register_products(
        grads: &mut grads::Gradients,
        kind: ProductKind,
        dy: FloatTensor<Self>,
        operands: [FloatTensor<Self>; 2],
        nodes: [Option<NodeId>; 2],
    );
}

/// [`Concrete::register_products`] on a device of CubeCL, which has kernels if it is CUDA's.
#[cfg(feature = "cuda")]
fn register_cube_products(
    grads: &mut grads::Gradients,
    kind: ProductKind,
    dy: FloatTensor<Cube>,
    operands: [FloatTensor<Cube>; 2],
    nodes: [Option<NodeId>; 2],
) {
    match dy.device() {
        cubecl::Device::Cuda(_) => register_products::<Cube>(grads, kind, dy, operands, nodes),
        _ => register_plain_products::<Cube>(grads, kind, dy, operands, nodes),
    }
}

/// [`Concrete::register_products`] by plain operations.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn register_plain_products<B: Backend>(
    grads: &mut grads::Gradients,
    _kind: ProductKind,
    dy: FloatTensor<B>,
    [x, weight]: [FloatTensor<B>; 2],
    [of_x, of_weight]: [Option<NodeId>; 2],
) {
    if let Some(node) = of_x {
        grads.register::<B>(node, B::float_matmul(dy.clone(), B::float_transpose(weight)));
    }
    if let Some(node) = of_weight {
        grads.register::<B>(node, B::float_matmul(B::float_transpose(x), dy));
    }
}

macro_rules! concrete {
    ($Backend:ident, $register_products:path) => {
        impl Concrete for $Backend {
            fn autodiff(tensor: DispatchTensor) -> FloatTensor<Autodiff<Self>> {
                match tensor.kind {
                    DispatchTensorKind::Autodiff(kind) => match *kind {
                        DispatchTensorKind::$Backend(tensor) => tensor.autodiff(),
                        _ => panic!("tensors of one device"),
                    },
                    _ => panic!("a tensor of an autodiff device"),
                }
            }

            fn plain(tensor: DispatchTensor) -> FloatTensor<Self> {
                match tensor.kind {
                    DispatchTensorKind::$Backend(tensor) => tensor.float(),
                    _ => panic!("a tensor without autodiff"),
                }
            }

            fn dispatch(tensor: BackendTensor<Self>, context: DispatchAutodiffContext) -> DispatchTensor {
                let is_autodiff = matches!(tensor, BackendTensor::Autodiff(_));
                let kind = DispatchTensorKind::$Backend(tensor);
                let kind = if is_autodiff { DispatchTensorKind::Autodiff(Box::new(kind)) } else { kind };
                DispatchTensor { kind, autodiff: context }
            }

            fn register_products(
                grads: &mut grads::Gradients,
                kind: ProductKind,
                dy: FloatTensor<Self>,
                operands: [FloatTensor<Self>; 2],
                nodes: [Option<NodeId>; 2],
            ) {
                $register_products(grads, kind, dy, operands, nodes);
            }
        }
    };
}

concrete!(Flex, register_products::<Flex>);
#[cfg(feature = "cuda")]
concrete!(Cube, register_cube_products);
#[cfg(all(feature = "wgpu", not(feature = "cuda")))]
concrete!(Cube, register_plain_products::<Cube>);

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;
    use crate::linear;
    use crate::testing::{devices, host, tensor, values};

    /// Returns `y`, two products of x, and the gradients of x and both weights.
    fn run(device: &Device, is_custom: bool) -> [Vec<f32>; 4] {
        let device = device.clone().autodiff();
        let leaf = |shape: [usize; 2], seed| {
            tensor(&values(shape[0] * shape[1], seed), shape, DType::F32, &device).require_grad()
        };
        let (x, v, w) = (leaf([6, 8], 1), leaf([8, 16], 2), leaf([16, 8], 3));
        let dy = tensor(&values(48, 4), [6, 8], DType::F32, &device.clone().inner());

        // A tensor of the graph before and after.
        let before = x.clone() * 2.0;
        let y = if is_custom {
            let value = linear(linear(before.clone().inner(), v.clone().inner(), None), w.clone().inner(), None);
            let kept = before.clone().inner();
            let weights = [v.clone(), w.clone()];
            with_gradient(value, [before], move |dy| {
                let leaf = Tensor::from_inner(kept).require_grad();
                let inner = linear(leaf.clone(), weights[0].clone(), None);
                let nothing = Tensor::zeros_like(&leaf.clone().inner());
                let mut gradients = gradients_behind(leaf.clone(), nothing, Some(([inner, weights[1].clone()], dy)));
                let input = leaf.grad_remove(&mut gradients).expect("a gradient of the input");
                let leaves = weights.iter().filter_map(|weight| LeafGradient::take(weight, &mut gradients)).collect();
                CustomGradients { inputs: [input], leaves }
            })
        } else {
            linear(linear(before, v.clone(), None), w.clone(), None)
        };
        let after = y.clone() * Tensor::from_inner(dy);
        let gradients = after.sum().backward();
        let gradient = |leaf: &Tensor<2>| host(leaf.grad(&gradients).expect("a gradient"));
        [host(y), gradient(&x), gradient(&v), gradient(&w)]
    }

    #[test]
    fn a_function_that_computes_again_returns_the_same_gradients() {
        for (name, device) in devices() {
            assert_eq!(run(&device, true), run(&device, false), "{name}");
        }
    }

    #[test]
    fn leaves_get_gradients_though_the_input_needs_none() {
        let device = Device::flex().autodiff();
        let x = tensor(&values(4, 1), [2, 2], DType::F32, &device);
        let weight = tensor(&values(4, 2), [2, 2], DType::F32, &device).require_grad();
        let (kept, leaf) = (x.clone().inner(), weight.clone());
        let value = linear(kept.clone(), weight.clone().inner(), None);
        let y = with_gradient(value, [x], move |dy| {
            let x = Tensor::from_inner(kept);
            let mut gradients = gradients_behind(linear(x.clone(), leaf.clone(), None), dy, None);
            let leaves = LeafGradient::take(&leaf, &mut gradients).into_iter().collect();
            CustomGradients { inputs: [x.inner()], leaves }
        });
        assert!(weight.grad(&y.sum().backward()).is_some());
    }
}
