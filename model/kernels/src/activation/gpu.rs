//! Activations on CUDA: their values and derivatives, and the pass that applies one to a matrix.

use std::f32::consts::LOG2_E;

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Activation;
use crate::calls;
use crate::dropout::kernel::keep_factors;
use crate::dropout::{Dropping, Mask};
use crate::gpu::instruction::{exp, reciprocal, sigmoid, sigmoid_base2};
use crate::gpu::memory::{empty_like, vector_width};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::traversal::from_last;

const THREADS: u32 = 256;
/// Blocks of [`activation_forward`] in flight per multiprocessor: as many threads as it has room for
/// (`benches/results/2026-11-22-h200-5980429.md`).
const BLOCKS: usize = 8;
/// `2 * sqrt(2 / pi)`: GELU with tanh is `x * sigmoid(TANH_SCALE * (x + CUBIC x^3))`.
const TANH_SCALE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// Returns `Phi(x)`, the standard normal distribution function, given `e^(-x^2 / 2)`. The error function follows
/// Abramowitz and Stegun 7.1.26, with an error of at most 1.5e-7; the backend's `erf` needs NVIDIA's libdevice at run time.
#[cube]
fn normal_cdf<N: Size>(x: Vector<f32, N>, gauss: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let t = reciprocal::<N>(
        one + Vector::<f32, N>::abs(x) * Vector::new(0.327_591_1f32 * core::f32::consts::FRAC_1_SQRT_2),
    );
    let polynomial =
        ((((Vector::new(1.061_405_4f32) * t - Vector::new(1.453_152f32)) * t + Vector::new(1.421_413_7f32)) * t
            - Vector::new(0.284_496_74f32))
            * t
            + Vector::new(0.254_829_6f32))
            * t;
    // Half of 1 - erf(|x| / sqrt(2)): the tail beyond |x|.
    let tail = Vector::new(0.5f32) * polynomial * gauss;
    let mut cdf = Vector::<f32, N>::zeroed();
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        let beyond = tail.extract(i);
        cdf.insert(i, select(x.extract(i) > 0.0f32, 1.0f32 - beyond, beyond));
    }
    cdf
}

/// Returns `e^(-x^2 / 2)`.
#[cube]
fn gauss<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    exp::<N>(x * x * Vector::new(-0.5f32))
}

/// Returns `otherwise` where `x` is positive, else 0.
#[cube]
fn positive<N: Size>(x: Vector<f32, N>, otherwise: Vector<f32, N>) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::zeroed();
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        y.insert(i, select(x.extract(i) > 0.0f32, otherwise.extract(i), 0.0f32));
    }
    y
}

/// Returns `sigmoid(TANH_SCALE * (x + CUBIC x^3))`, given `x^2`.
#[cube]
fn tanh_gate<N: Size>(x: Vector<f32, N>, square: Vector<f32, N>) -> Vector<f32, N> {
    let linear = Vector::<f32, N>::new(TANH_SCALE * LOG2_E);
    sigmoid_base2::<N>(x * (linear + Vector::new(TANH_SCALE * LOG2_E * CUBIC) * square))
}

/// Returns `activation(x)`.
#[cube]
pub(crate) fn activated<N: Size>(x: Vector<f32, N>, #[comptime] activation: Activation) -> Vector<f32, N> {
    match activation {
        Activation::Relu => positive::<N>(x, x),
        Activation::Gelu => x * normal_cdf::<N>(x, gauss::<N>(x)),
        Activation::GeluTanh => x * tanh_gate::<N>(x, x * x),
        Activation::Silu => x * sigmoid::<N>(x),
        Activation::ReluSquared => positive::<N>(x, x * x),
    }
}

/// Returns `dy` times the derivative at `kept`, which is the argument or, where
/// [`Activation::keeps_result`] says so, the result.
#[cube]
pub(crate) fn gradient<N: Size>(
    kept: Vector<f32, N>,
    dy: Vector<f32, N>,
    #[comptime] activation: Activation,
) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let x = kept;

    match activation {
        Activation::Relu => positive::<N>(x, dy),
        Activation::Gelu => {
            let bell = gauss::<N>(x);
            // The density is the bell over sqrt(2 pi).
            dy * (normal_cdf::<N>(x, bell) + x * bell * Vector::new(0.398_942_28f32))
        }
        Activation::GeluTanh => {
            let square = x * x;
            let s = tanh_gate::<N>(x, square);
            let slope = Vector::new(TANH_SCALE) + Vector::new(3.0f32 * TANH_SCALE * CUBIC) * square;
            dy * (x * slope * (s - s * s) + s)
        }
        Activation::Silu => {
            let s = sigmoid::<N>(x);
            dy * s * (one + x * (one - s))
        }
        Activation::ReluSquared => positive::<N>(x, dy * (x + x)),
    }
}

/// The numbers of a pass.
#[derive(CubeType, CubeLaunch)]
struct PassNumbers {
    vectors: u32,
    /// Of the mask.
    site: u32,
    limit: u32,
    scale: f32,
}

/// `y = drop(activation(x))`, one vector per thread, with dropout if there is a random `state`.
#[cube(launch_unchecked)]
fn activation_forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    state: ComptimeOption<&[i32]>,
    y: &mut [Vector<F, N>],
    numbers: PassNumbers,
    #[comptime] activation: Activation,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(BLOCKS);
    let vector = from_last(CUBE_POS as u32, CUBE_COUNT as u32) * THREADS + UNIT_POS;
    let at = vector as usize;
    if vector < numbers.vectors {
        let mut value = activated::<N>(Vector::cast_from(x[at]), activation);
        if comptime![state.is_some()] {
            value = value * keep_factors::<N>(vector, numbers.site, state.unwrap(), numbers.limit, numbers.scale);
        }
        y[at] = Vector::cast_from(value);
    }
}

/// Returns `drop(activation(x))`.
pub(crate) fn activate(x: CubeTensor, activation: Activation, mask: Mask<CubeBackend>) -> CubeTensor {
    let _call = calls::begin(|| calls::of_passes("activation forward", &x, 2));
    let x = into_contiguous(x);
    let dropping = Dropping::new(mask);
    let y = empty_like(&x);
    let width = vector_width(x.meta.shape().num_elements(), x.dtype);
    let vectors = (x.meta.shape().num_elements() / width) as u32;
    let dtype = dtype_to_storage_type(x.dtype);

    // SAFETY: threads beyond the last vector do nothing; both tensors are contiguous and of one size.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        activation_forward::launch_unchecked(
            &y.client,
            CubeCount::Static(vectors.div_ceil(THREADS), 1, 1),
            CubeDim::new_1d(THREADS),
            width,
            x.into_buffer_arg(),
            dropping.state.map(|state| state.into_buffer_arg()).into(),
            y.clone().into_buffer_arg(),
            PassNumbersLaunch::new(vectors, dropping.site, dropping.limit, dropping.scale),
            activation,
            dtype,
        );
    }
    y
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let compile = |activation: Activation| {
                let (launch, properties, target) = settings(THREADS);
                let state = ComptimeOptionCompilationArg::Some(b());
                let numbers = PassNumbersCompilationArg { vectors: (), site: (), limit: (), scale: () };
                #[rustfmt::skip]
                let kernel = activation_forward::ActivationForward::new(
                    launch, properties, target, b(), state, b(), numbers, 8, activation, dtype,
                );
                let name = activation.name().replace('_', "-");
                Compiled::new(format!("activation/forward/{name}-dropout-bf16"), kernel)
            };
            Activation::ALL.map(compile).into()
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
