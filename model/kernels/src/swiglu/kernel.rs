//! SwiGLU and GEGLU on CubeCL devices: every byte moved once each way.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{Gate, SwigluOps, record};
use crate::gpu::early::{self, begin, changed};
use crate::gpu::instruction::sigmoid;
use crate::gpu::memory::{empty, empty_like, vector_width};

const UNITS: u32 = 256;

/// Where vector `at` of the `[M, F]` result has its gate, given `vectors` vectors of a row; the `up` is `vectors`
/// further.
#[cube]
fn gate_of(at: usize, vectors: u32) -> usize {
    let row = at / vectors as usize;
    at + row * vectors as usize
}

/// `2 * sqrt(2 / pi)`: GELU with tanh is `x * sigmoid(TANH_SCALE * (x + CUBIC x^3))`.
const TANH_SCALE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// Returns the sigmoid by which the activation multiplies `gate`, and the slope of the sigmoid's argument.
#[cube]
fn opening<N: Size>(gate: Vector<f32, N>, #[comptime] by: Gate) -> (Vector<f32, N>, Vector<f32, N>) {
    let one = Vector::<f32, N>::new(1.0f32);
    if comptime![by == Gate::Silu] {
        (sigmoid::<N>(gate), one)
    } else {
        let (scale, cubic) = (Vector::<f32, N>::new(TANH_SCALE), gate * gate * Vector::new(CUBIC));
        (sigmoid::<N>(gate * scale * (one + cubic)), scale * (one + Vector::new(3.0f32) * cubic))
    }
}

#[cube(launch_unchecked)]
fn swiglu_forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    total: u32,
    vectors: u32,
    #[comptime] by: Gate,
    #[comptime] is_early: bool,
    #[define(F)] _dtype: ElemType,
) {
    begin(is_early);
    changed(x, is_early);
    let at = ABSOLUTE_POS;
    if at < total as usize {
        let from = gate_of(at, vectors);
        let gate = Vector::<f32, N>::cast_from(x[from]);
        let up = Vector::<f32, N>::cast_from(x[from + vectors as usize]);
        let (s, _) = opening::<N>(gate, by);
        y[at] = Vector::cast_from(gate * s * up);
    }
}

#[cube(launch_unchecked)]
fn swiglu_backward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    dx: &mut [Vector<F, N>],
    total: u32,
    vectors: u32,
    #[comptime] by: Gate,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < total as usize {
        let from = gate_of(at, vectors);
        let gate = Vector::<f32, N>::cast_from(x[from]);
        let up = Vector::<f32, N>::cast_from(x[from + vectors as usize]);
        let gradient = Vector::<f32, N>::cast_from(dy[at]);
        let one = Vector::<f32, N>::new(1.0f32);
        let (s, slope) = opening::<N>(gate, by);
        dx[from] = Vector::cast_from(gradient * up * s * (one + gate * slope * (one - s)));
        dx[from + vectors as usize] = Vector::cast_from(gradient * gate * s);
    }
}

impl SwigluOps for CubeBackend {
    fn fused_swiglu(gate_up: CubeTensor, by: Gate) -> CubeTensor {
        let _call = record(by.operators()[0], &gate_up, 1.5);
        let x = into_contiguous(gate_up);
        let [m, f] = [x.meta.shape()[0], x.meta.shape()[1] / 2];
        let y = empty(&x, [m, f], x.dtype);
        let width = vector_width(f, x.dtype);
        let total = (m * f / width) as u32;
        let dtype = dtype_to_storage_type(x.dtype);
        let is_early = early::is_wanted(&y.client);

        // SAFETY: units beyond the last vector of the result do nothing, and `x` has two vectors for each of it.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            swiglu_forward::launch_unchecked(
                &y.client,
                CubeCount::Static(total.div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                total,
                (f / width) as u32,
                by,
                is_early,
                dtype,
            );
        }
        early::launched(&y, is_early);
        y
    }

    fn fused_swiglu_backward(gate_up: CubeTensor, dy: CubeTensor, by: Gate) -> CubeTensor {
        let _call = record(by.operators()[1], &gate_up, 2.5);
        let (x, dy) = (into_contiguous(gate_up), into_contiguous(dy));
        let [m, f] = [dy.meta.shape()[0], dy.meta.shape()[1]];
        let dx = empty_like(&x);
        let width = vector_width(f, x.dtype);
        let total = (m * f / width) as u32;
        let dtype = dtype_to_storage_type(x.dtype);

        // SAFETY: as in forward; `dx` has the shape of `x`.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            swiglu_backward::launch_unchecked(
                &dx.client,
                CubeCount::Static(total.div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                x.into_buffer_arg(),
                dy.into_buffer_arg(),
                dx.clone().into_buffer_arg(),
                total,
                (f / width) as u32,
                by,
                dtype,
            );
        }
        dx
    }
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
            let compiled = [(Gate::Silu, "swiglu"), (Gate::Gelu, "geglu")].map(|(by, name)| {
                let (l, p, t) = settings(UNITS);
                let forward = swiglu_forward::SwigluForward::new(l, p, t, b(), b(), (), (), 8, by, false, dtype);
                let (l, p, t) = settings(UNITS);
                let early = swiglu_forward::SwigluForward::new(l, p, t, b(), b(), (), (), 8, by, true, dtype);
                let (l, p, t) = settings(UNITS);
                let backward = swiglu_backward::SwigluBackward::new(l, p, t, b(), b(), b(), (), (), 8, by, dtype);
                [
                    Compiled::new(format!("{name}/forward/bf16"), forward),
                    Compiled::new(format!("{name}/forward/early-bf16"), early),
                    Compiled::new(format!("{name}/backward/bf16"), backward),
                ]
            });
            compiled.into_iter().flatten().collect()
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
