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
use crate::calls;
use crate::dropout::kernel::keep_factors;
use crate::dropout::{Dropping, Mask};
use crate::gpu::hardware::multiprocessors;
use crate::gpu::memory::{empty, vector_width};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::{One, add_up};
use crate::gpu::traversal::from_last;

/// Threads of a block: eight warps, which take turns at the rows. A warp covers 32 vectors of columns.
const THREADS: u32 = 256;
const WARPS: u32 = THREADS / 32;
/// Rows that a thread has in flight.
const ROWS_IN_FLIGHT: u32 = 4;
/// Partial sums that a thread has in flight.
const SLICES_IN_FLIGHT: u32 = 8;
/// Blocks of [`column_pass`] per multiprocessor, all in flight, which bounds registers and partial sums
/// (`benches/results/2026-11-22-h200-bbaf122.md`).
const PASS_BLOCKS: u32 = 4;

/// What a pass is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PassConfig {
    /// Sums the gradient of the argument of this activation, and stores that gradient.
    activation: Option<Activation>,
    /// The result was dropped with a mask.
    dropped: bool,
}

/// The numbers of a pass.
#[derive(CubeType, CubeLaunch)]
struct PassNumbers {
    rows: u32,
    /// Vectors per row.
    vectors: u32,
    /// Of the mask.
    site: u32,
    limit: u32,
    scale: f32,
}

/// Writes the sums over this block's rows of its 32 vectors of columns to `partial[slice]`.
///
/// With an activation these are the sums of the gradient before it, which is also written to `dx`. Without one they are the sums
/// of `dy` where it is not dropped; `kept` and `dx` are not touched.
#[cube(launch_unchecked)]
fn column_pass<F: Float, N: Size>(
    kept: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    state: &[i32],
    dx: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    numbers: PassNumbers,
    #[comptime] cfg: PassConfig,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![PASS_BLOCKS as usize]);
    let column = CUBE_POS_X * 32 + UNIT_POS_PLANE;
    // At any time all blocks are in one part of the matrix. They go from its end to its beginning.
    let step = CUBE_COUNT_Y * WARPS;
    let mut sum = Vector::<f32, N>::zeroed();
    if column < numbers.vectors {
        let mut turn = CUBE_POS_Y * WARPS + UNIT_POS / 32;
        while turn < numbers.rows {
            // All loads are issued before the first is needed. Beyond the first row, that row is read again.
            let mut gradients = Array::<Vector<F, N>>::new(comptime![ROWS_IN_FLIGHT as usize]);
            let mut arguments = Array::<Vector<F, N>>::new(comptime![ROWS_IN_FLIGHT as usize]);
            #[unroll]
            for i in 0..ROWS_IN_FLIGHT {
                let here = from_last(min(turn + i * step, numbers.rows - 1), numbers.rows);
                let at = (here * numbers.vectors + column) as usize;
                gradients[comptime![i as usize]] = dy[at];
                if comptime![cfg.activation.is_some()] {
                    arguments[comptime![i as usize]] = kept[at];
                }
            }

            #[unroll]
            for i in 0..ROWS_IN_FLIGHT {
                if turn + i * step < numbers.rows {
                    let here = from_last(turn + i * step, numbers.rows);
                    let at = (here * numbers.vectors + column) as usize;
                    let row = comptime![i as usize];
                    let gradient = gradient_of::<F, N>(&gradients, &arguments, state, at, &numbers, row, cfg);
                    if comptime![cfg.activation.is_some()] {
                        dx[at] = Vector::cast_from(gradient);
                    }
                    sum += gradient;
                }
            }
            turn += ROWS_IN_FLIGHT * step;
        }
    }

    // The sum over the warps, in their order.
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime![THREADS as usize]);
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS < 32 && column < numbers.vectors {
        #[unroll]
        for warp in 1..WARPS {
            sum += shared[(comptime![warp * 32] + UNIT_POS) as usize];
        }
        partial[(CUBE_POS_Y * numbers.vectors + column) as usize] = sum;
    }
}

/// Returns what is summed of row `row` in flight, whose vector is number `at` of the matrix.
#[cube]
fn gradient_of<F: Float, N: Size>(
    gradients: &Array<Vector<F, N>>,
    arguments: &Array<Vector<F, N>>,
    state: &[i32],
    at: usize,
    numbers: &PassNumbers,
    #[comptime] row: usize,
    #[comptime] cfg: PassConfig,
) -> Vector<f32, N> {
    let mut gradient = Vector::<f32, N>::cast_from(gradients[row]);

    if comptime![cfg.activation.is_some()] {
        let argument = Vector::<f32, N>::cast_from(arguments[row]);
        if comptime![cfg.dropped] {
            if comptime![cfg.activation == Some(Activation::Relu)] {
                // Dropped elements are 0 in the result that is kept.
                gradient = gradient * Vector::new(numbers.scale);
            } else {
                gradient = gradient * keep_factors::<N>(at as u32, numbers.site, state, numbers.limit, numbers.scale);
            }
        }
        gradient = activation_gradient::<N>(argument, gradient, comptime![cfg.activation.unwrap()]);
    } else if comptime![cfg.dropped] {
        gradient = gradient * keep_factors::<N>(at as u32, numbers.site, state, numbers.limit, numbers.scale);
    }
    gradient
}

/// Adds up the slices' sums in a fixed order: a block takes 32 columns, each of its warps every eighth slice, then the warps are
/// added. With `accumulate`, the result is added to `out` (`beta = 1`).
#[cube(launch_unchecked)]
fn column_add_slices<F: Float>(
    partial: &[One],
    out: &mut [F],
    n: u32,
    slices: u32,
    #[comptime] accumulate: bool,
    #[define(F)] _dtype: ElemType,
) {
    let column = CUBE_POS as u32 * 32 + UNIT_POS_PLANE;
    let mut sum = One::zeroed();
    if column < n {
        sum = add_up(sum, partial, column as usize, n as usize, UNIT_POS / 32, slices, WARPS, SLICES_IN_FLIGHT);
    }

    let mut shared = Shared::<[f32]>::new_slice(comptime![THREADS as usize]);
    let mut sum = sum.extract(0usize);
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS < 32 && column < n {
        #[unroll]
        for warp in 1..WARPS {
            sum += shared[(comptime![warp * 32] + UNIT_POS) as usize];
        }
        if accumulate {
            sum += f32::cast_from(out[column as usize]);
        }
        out[column as usize] = F::cast_from(sum);
    }
}

/// Returns `(dx, column sums of dx)`. Without an activation `dx` is `dy`, and the sums leave out what is dropped.
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
pub(crate) fn accumulate_sum(dy: &CubeTensor, sum: &CubeTensor, first: bool) {
    let [rows, pitch] = [dy.meta.shape()[0], dy.meta.strides()[0]];
    let whole = CubeTensor { meta: Box::new(Metadata::new([rows, pitch], strides![pitch, 1])), ..dy.clone() };
    launch(None, whole.clone(), whole, Mask::None, sum.clone(), !first);
}

/// Launches both passes: each slice of the rows is summed on its own, then the slices are.
fn launch(
    kept: Option<(CubeTensor, Activation)>,
    dy: CubeTensor,
    dx: CubeTensor,
    mask: Mask<CubeBackend>,
    sum: CubeTensor,
    accumulate: bool,
) {
    let _call = calls::begin(|| match kept {
        Some(_) => calls::of_passes("activation backward", &dy, 3),
        None => calls::of_passes("column sum", &dy, 1),
    });
    let dropping = Dropping::new(mask);
    let (kept, activation) = kept.map(|(kept, activation)| (into_contiguous(kept), activation)).unzip();
    let config = PassConfig { activation, dropped: dropping.state.is_some() };
    let client = dy.client.clone();

    let [rows, n] = [dy.meta.shape()[0], dy.meta.shape()[1]];
    let width = vector_width(n, dy.dtype);
    let dtype = dtype_to_storage_type(dy.dtype);
    let vectors = (n / width) as u32;
    let numbers = PassNumbersLaunch::new(rows as u32, vectors, dropping.site, dropping.limit, dropping.scale);

    let blocks = vectors.div_ceil(32);
    let most_slices = multiprocessors(&client) * PASS_BLOCKS / blocks;
    let slices = most_slices.clamp(1, (rows as u32).div_ceil(WARPS).max(1));
    let partial = client.empty(slices as usize * n * size_of::<f32>());

    // SAFETY: rows and columns are guarded; `partial` holds a row of f32 for each slice.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        column_pass::launch_unchecked(
            &client,
            CubeCount::Static(blocks, slices, 1),
            CubeDim::new_1d(THREADS),
            width,
            // Without an activation neither this nor `dx` is touched, without dropout not the state.
            kept.unwrap_or_else(|| dy.clone()).into_buffer_arg(),
            dy.clone().into_buffer_arg(),
            dropping.state.unwrap_or_else(|| dy.clone()).into_buffer_arg(),
            dx.into_buffer_arg(),
            BufferArg::from_raw_parts(partial.clone(), slices as usize * n),
            numbers,
            config,
            dtype,
        );
        column_add_slices::launch_unchecked(
            &client,
            CubeCount::Static((n as u32).div_ceil(32), 1, 1),
            CubeDim::new_1d(THREADS),
            BufferArg::from_raw_parts(partial, slices as usize * n),
            sum.clone().into_buffer_arg(),
            n as u32,
            slices,
            accumulate,
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
                let (launch, properties, target) = settings(THREADS);
                let config = PassConfig { activation, dropped: true };
                let numbers = PassNumbersCompilationArg { rows: (), vectors: (), site: (), limit: (), scale: () };
                #[rustfmt::skip]
                let kernel = column_pass::ColumnPass::new(
                    launch, properties, target, b(), b(), b(), b(), b(), numbers, 8, config, dtype,
                );
                Compiled::new(format!("reduce/{name}/dropout-bf16"), kernel)
            };
            let mut kernels: Vec<_> = passes.map(compile).into();

            let (launch, properties, target) = settings(THREADS);
            let sums =
                column_add_slices::ColumnAddSlices::new(launch, properties, target, b(), b(), (), (), true, dtype);
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
