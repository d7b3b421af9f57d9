//! Column sums on CUDA, and the backward of an activation, which takes them from the gradient it computes.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::strides;

use crate::activation::Activation;
use crate::activation::gpu::gradient as activation_gradient;
use crate::dropout::kernel::keep_factors;
use crate::dropout::{Dropping, Mask};
use crate::gpu::hardware::multiprocessors;
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
                        gradient = activation_gradient::<N>(argument, gradient, comptime![activation.unwrap()]);
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
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
            let passes = [
                ("columns", None),
                ("relu-backward", Some(Activation::Relu)),
                ("gelu-tanh-backward", Some(Activation::GeluTanh)),
            ];
            let compile = |(name, activation)| {
                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let kernel = column_pass::ColumnPass::new(
                    launch, properties, target, b(), b(), b(), b(), b(), (), (), (), (), (), 8, activation, true, dtype,
                );
                Compiled::new(format!("reduce/{name}/dropout-bf16"), kernel)
            };
            let mut kernels: Vec<_> = passes.map(compile).into();
            let (launch, properties, target) = settings(UNITS);
            let sums = reduce_slices::ReduceSlices::new(launch, properties, target, b(), b(), (), (), true, dtype);
            kernels.push(Compiled::new("reduce/slices/accumulate-bf16", sums));
            kernels
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
