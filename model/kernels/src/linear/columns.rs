//! What follows a product, element by element, and sums over its rows.

use std::f32::consts::LOG2_E;

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::strides;

use super::ops::Activation;
use crate::dropout::kernel::keep_factors;
use crate::dropout::{Dropping, Mask};
use crate::gpu::hardware::multiprocessors;
use crate::gpu::instruction::{exp, reciprocal, sigmoid, sigmoid_base2};
use crate::gpu::memory::{empty, vector_width};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::{One, add_up};
use crate::gpu::traversal::from_last;

/// Units of a cube: eight planes, which take rows in turn and 32 vectors of columns each.
const UNITS: u32 = 256;
const PLANES: u32 = UNITS / 32;
/// Rows that a unit has under way at a time.
const ROWS_AT_ONCE: u32 = 4;
/// Partial sums that a unit has under way at a time.
const SLICES_AT_ONCE: u32 = 8;
/// Cubes of [`column_pass`] for each multiprocessor, all at the same time, which bounds registers and partial sums.
const PASS_CUBES: u32 = 4;
/// Cubes of [`activate_kernel`] on a multiprocessor at a time: all the units that it takes.
const ACTIVATE_CUBES: usize = 8;
/// `2 * sqrt(2 / pi)`: GELU with tanh is `x * sigmoid(this * (x + CUBIC x^3))`.
const TANH_SCALE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// `Phi(x)`, the standard normal distribution function, given `e^(-x^2 / 2)`: the error function by Abramowitz and Stegun
/// 7.1.26, off by at most 1.5e-7. The backend's own `erf` needs NVIDIA's libdevice at run time.
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

/// `e^(-x^2 / 2)`
#[cube]
fn gauss<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    exp::<N>(x * x * Vector::new(-0.5f32))
}

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

/// `sigmoid(TANH_SCALE * (x + CUBIC x^3))`, given `x^2`.
#[cube]
fn tanh_gate<N: Size>(x: Vector<f32, N>, square: Vector<f32, N>) -> Vector<f32, N> {
    let linear = Vector::<f32, N>::new(TANH_SCALE * LOG2_E);
    sigmoid_base2::<N>(x * (linear + Vector::new(TANH_SCALE * LOG2_E * CUBIC) * square))
}

#[cube]
pub(super) fn activated<N: Size>(x: Vector<f32, N>, #[comptime] activation: Activation) -> Vector<f32, N> {
    match activation {
        Activation::Relu => positive::<N>(x, x),
        Activation::Gelu => x * normal_cdf::<N>(x, gauss::<N>(x)),
        Activation::GeluTanh => x * tanh_gate::<N>(x, x * x),
        Activation::Silu => x * sigmoid::<N>(x),
    }
}

/// The derivative, at `kept`, times `dy`.
#[cube]
fn backward<N: Size>(kept: Vector<f32, N>, dy: Vector<f32, N>, #[comptime] activation: Activation) -> Vector<f32, N> {
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
    }
}

#[cube(launch_unchecked)]
fn activate_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    state: &[i32],
    y: &mut [Vector<F, N>],
    vectors: u32,
    site: u32,
    limit: u32,
    scale: f32,
    #[comptime] activation: Activation,
    #[comptime] dropped: bool,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(ACTIVATE_CUBES);
    let vector = from_last(CUBE_POS as u32, CUBE_COUNT as u32) * UNITS + UNIT_POS;
    let at = vector as usize;
    if vector < vectors {
        let mut value = activated::<N>(Vector::cast_from(x[at]), activation);
        if dropped {
            value = value * keep_factors::<N>(vector, site, state, limit, scale);
        }
        y[at] = Vector::cast_from(value);
    }
}

/// The sums over this cube's rows of its 32 vectors of columns, in `partial[slice]`. With an activation, of the gradient
/// before it, which is written to `dx` on the way; without one, of what is not dropped of `dy`, and `kept` and `dx` are not
/// touched.
#[cube(launch_unchecked)]
fn column_pass<F: Float, N: Size>(
    kept: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    state: &[i32],
    dx: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    rows: u32,
    vectors: u32,
    site: u32,
    limit: u32,
    scale: f32,
    #[comptime] activation: Option<Activation>,
    #[comptime] dropped: bool,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![PASS_CUBES as usize]);
    let column = CUBE_POS_X * 32 + UNIT_POS_PLANE;
    // All cubes are in one part of the matrix at a time, and go from its end to its beginning.
    let step = CUBE_COUNT_Y * PLANES;
    let mut sum = Vector::<f32, N>::zeroed();
    if column < vectors {
        let mut turn = CUBE_POS_Y * PLANES + UNIT_POS / 32;
        while turn < rows {
            // All loads are on their way before the first is needed; beyond the first row it is read once more.
            let mut gradients = Array::<Vector<F, N>>::new(comptime![ROWS_AT_ONCE as usize]);
            let mut arguments = Array::<Vector<F, N>>::new(comptime![ROWS_AT_ONCE as usize]);
            #[unroll]
            for i in 0..ROWS_AT_ONCE {
                let here = from_last(min(turn + i * step, rows - 1), rows);
                let at = (here * vectors + column) as usize;
                gradients[comptime![i as usize]] = dy[at];
                if comptime![activation.is_some()] {
                    arguments[comptime![i as usize]] = kept[at];
                }
            }
            #[unroll]
            for i in 0..ROWS_AT_ONCE {
                if turn + i * step < rows {
                    let here = from_last(turn + i * step, rows);
                    let at = (here * vectors + column) as usize;
                    let mut gradient = Vector::<f32, N>::cast_from(gradients[comptime![i as usize]]);
                    if comptime![activation.is_some()] {
                        let argument = Vector::<f32, N>::cast_from(arguments[comptime![i as usize]]);
                        if dropped {
                            if comptime![activation == Some(Activation::Relu)] {
                                // What was dropped is 0 in the result that is kept.
                                gradient = gradient * Vector::new(scale);
                            } else {
                                gradient = gradient * keep_factors::<N>(at as u32, site, state, limit, scale);
                            }
                        }
                        gradient = backward::<N>(argument, gradient, comptime![activation.unwrap()]);
                        dx[at] = Vector::cast_from(gradient);
                    } else if dropped {
                        gradient = gradient * keep_factors::<N>(at as u32, site, state, limit, scale);
                    }
                    sum += gradient;
                }
            }
            turn += ROWS_AT_ONCE * step;
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime![UNITS as usize]);
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS < 32 && column < vectors {
        #[unroll]
        for p in 1..PLANES {
            sum += shared[(comptime![p * 32] + UNIT_POS) as usize];
        }
        partial[(CUBE_POS_Y * vectors + column) as usize] = sum;
    }
}

/// Adds the slices' sums in a fixed order: 32 columns a cube, every eighth slice a plane, then the planes; with `onto` to
/// what is there.
#[cube(launch_unchecked)]
fn reduce_slices<F: Float>(
    partial: &[One],
    out: &mut [F],
    n: u32,
    slices: u32,
    #[comptime] onto: bool,
    #[define(F)] _dtype: ElemType,
) {
    let column = CUBE_POS as u32 * 32 + UNIT_POS_PLANE;
    let mut sum = One::zeroed();
    if column < n {
        sum = add_up(sum, partial, column as usize, n as usize, UNIT_POS / 32, slices, PLANES, SLICES_AT_ONCE);
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime![UNITS as usize]);
    let mut sum = sum.extract(0usize);
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS < 32 && column < n {
        #[unroll]
        for p in 1..PLANES {
            sum += shared[(comptime![p * 32] + UNIT_POS) as usize];
        }
        if onto {
            sum += f32::cast_from(out[column as usize]);
        }
        out[column as usize] = F::cast_from(sum);
    }
}

pub(super) fn activate(x: CubeTensor, activation: Activation, mask: Mask<CubeBackend>) -> CubeTensor {
    let x = into_contiguous(x);
    let dropping = Dropping::new(mask);
    let dropped = dropping.state.is_some();
    let y = empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), x.meta.shape().clone(), x.dtype);
    let width = vector_width(x.meta.shape().num_elements(), x.dtype);
    let vectors = x.meta.shape().num_elements() / width;
    let dtype = dtype_to_storage_type(x.dtype);
    // SAFETY: units beyond the last vector do nothing; both tensors are contiguous and of one size.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        activate_kernel::launch_unchecked(
            &y.client,
            CubeCount::Static((vectors as u32).div_ceil(UNITS), 1, 1),
            CubeDim::new_1d(UNITS),
            width,
            x.clone().into_buffer_arg(),
            // Not touched if nothing is dropped.
            dropping.state.unwrap_or(x).into_buffer_arg(),
            y.clone().into_buffer_arg(),
            vectors as u32,
            dropping.site,
            dropping.limit,
            dropping.scale,
            activation,
            dropped,
            dtype,
        );
    }
    y
}

/// `(dx, column sums of dx)`; without an activation, `dx` is `dy`, of which only the sums leave out what is dropped.
pub(crate) fn backward_and_sum(
    kept: Option<(CubeTensor, Activation)>,
    dy: CubeTensor,
    mask: Mask<CubeBackend>,
) -> (CubeTensor, CubeTensor) {
    let dy = into_contiguous(dy);
    let [rows, n] = [dy.meta.shape()[0], dy.meta.shape()[1]];
    let dx = if kept.is_some() { empty(&dy, [rows, n], dy.dtype) } else { dy.clone() };
    let sum = empty(&dy, [n], dy.dtype);
    launch(kept, dy, dx.clone(), mask, sum.clone(), false);
    (dx, sum)
}

/// Adds the column sums of `dy` to `sum`, or writes them there if they are the `first`. Both have the same gaps behind their
/// rows, where `dy` holds zeros.
pub(crate) fn sum_onto(dy: &CubeTensor, sum: &CubeTensor, first: bool) {
    let [rows, pitch] = [dy.meta.shape()[0], dy.meta.strides()[0]];
    let whole = CubeTensor { meta: Box::new(Metadata::new([rows, pitch], strides![pitch, 1])), ..dy.clone() };
    launch(None, whole.clone(), whole, Mask::None, sum.clone(), !first);
}

fn launch(
    kept: Option<(CubeTensor, Activation)>,
    dy: CubeTensor,
    dx: CubeTensor,
    mask: Mask<CubeBackend>,
    sum: CubeTensor,
    onto: bool,
) {
    let dropping = Dropping::new(mask);
    let dropped = dropping.state.is_some();
    let (kept, activation) = kept.map(|(kept, activation)| (into_contiguous(kept), activation)).unzip();
    let client = dy.client.clone();
    let [rows, n] = [dy.meta.shape()[0], dy.meta.shape()[1]];
    let width = vector_width(n, dy.dtype);
    let dtype = dtype_to_storage_type(dy.dtype);
    let vectors = (n / width) as u32;
    let blocks = vectors.div_ceil(32);
    let cubes = multiprocessors(&client) * PASS_CUBES;
    let slices = (cubes / blocks).clamp(1, (rows as u32).div_ceil(PLANES).max(1));
    let partial = client.empty(slices as usize * n * size_of::<f32>());
    // SAFETY: rows and columns are guarded; `partial` holds a row of f32 for each slice.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        column_pass::launch_unchecked(
            &client,
            CubeCount::Static(blocks, slices, 1),
            CubeDim::new_1d(UNITS),
            width,
            // Without an activation neither this nor `dx` is touched, without dropout not the state.
            kept.unwrap_or_else(|| dy.clone()).into_buffer_arg(),
            dy.clone().into_buffer_arg(),
            dropping.state.unwrap_or_else(|| dy.clone()).into_buffer_arg(),
            dx.into_buffer_arg(),
            BufferArg::from_raw_parts(partial.clone(), slices as usize * n),
            rows as u32,
            vectors,
            dropping.site,
            dropping.limit,
            dropping.scale,
            activation,
            dropped,
            dtype,
        );
        reduce_slices::launch_unchecked(
            &client,
            CubeCount::Static((n as u32).div_ceil(32), 1, 1),
            CubeDim::new_1d(UNITS),
            BufferArg::from_raw_parts(partial, slices as usize * n),
            sum.clone().into_buffer_arg(),
            n as u32,
            slices,
            onto,
            dtype_to_storage_type(sum.dtype),
        );
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{buffer, ptx, settings};

    #[test]
    fn kernels_compile_without_a_device() {
        let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let forward = activate_kernel::ActivateKernel::new(
                launch, properties, target, b(), b(), b(), (), (), (), (), 8, activation, true, dtype,
            );
            assert!(ptx(forward).is_some());
        }
        for activation in [None, Some(Activation::Relu), Some(Activation::GeluTanh)] {
            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let pass = column_pass::ColumnPass::new(
                launch, properties, target, b(), b(), b(), b(), b(), (), (), (), (), (), 8, activation, true, dtype,
            );
            assert!(ptx(pass).is_some());
        }
        let (launch, properties, target) = settings(UNITS);
        let sums = reduce_slices::ReduceSlices::new(launch, properties, target, b(), b(), (), (), true, dtype);
        assert!(ptx(sums).is_some());
    }
}
