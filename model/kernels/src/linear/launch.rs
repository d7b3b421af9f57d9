//! Which kernel serves a product on CUDA.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::multi_level::Strategy;
use cubek::std::InputBinding;

use super::columns;
use super::kernel::{GemmConfig, PANEL, TILE_K, TILE_M, gemm, reduce_runs};
use super::ops::Activation;
use super::{Layout, LinearOps};
use crate::device::{addressable, aligned, empty, empty_pitched, row_pitch, tensor_map};
use crate::dropout::Mask;
use crate::maybe::Maybe;

impl LinearOps for CubeBackend {
    fn product(a: CubeTensor, b: CubeTensor, layout: Layout) -> CubeTensor {
        product(a, b, None, layout, None, Mask::None)
    }

    fn product_onto(a: CubeTensor, b: CubeTensor, sum: CubeTensor, layout: Layout) -> CubeTensor {
        let in_vectors = sum.meta.shape()[1].is_multiple_of(4);
        if sum.dtype != DType::F32 || !in_vectors {
            let product = CubeBackend::float_cast(Self::product(a, b, layout), sum.dtype.into());
            return CubeBackend::float_add(sum, product);
        }
        let sum = into_contiguous(sum);
        let sum = if sum.can_mut() { aligned(sum) } else { sum.copy() };
        product_in_f32(a, b, layout, sum, false)
    }

    fn fused_linear(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> CubeTensor {
        product(x, weight, bias.into_option(), layout, activation, mask)
    }

    fn activate(x: CubeTensor, activation: Activation, mask: Mask<Self>) -> CubeTensor {
        columns::activate(x, activation, mask)
    }

    fn activate_backward(
        kept: CubeTensor,
        dy: CubeTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (CubeTensor, CubeTensor) {
        columns::backward_and_sum(Some((kept, activation)), dy, mask)
    }

    fn column_sum(x: CubeTensor) -> CubeTensor {
        columns::backward_and_sum(None, x, Mask::None).1
    }

    fn batched_product(a: CubeTensor, b: CubeTensor) -> CubeTensor {
        let out = empty(&a, [a.meta.shape()[0], a.meta.shape()[1], b.meta.shape()[2]], a.dtype);
        stock_product(a, b, out)
    }
}

fn product(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    layout: Layout,
    activation: Option<Activation>,
    mask: Mask<CubeBackend>,
) -> CubeTensor {
    let (m, n, _) = layout.sizes(a.meta.shape(), b.meta.shape());
    let out = empty_matrix(&a, [m, n], a.dtype);
    let relu = activation == Some(Activation::Relu) && !mask.is_some() && has_kernel(&a);
    let y = product_into(a, b, bias, layout, relu, out);
    match activation {
        Some(activation) if !relu => columns::activate(y, activation, mask),
        _ => y,
    }
}

/// Whether products of tensors like this one run on the kernel.
fn has_kernel(like: &CubeTensor) -> bool {
    matches!(like.dtype, DType::BF16 | DType::F16) && !like.client.properties().features.matmul.wgmma.is_empty()
}

/// A matrix for the result of a product of tensors like `like`. Rows that are no multiple of 16 bytes long are allocated
/// with a gap behind each, so that TMA can address them.
pub(crate) fn empty_matrix(like: &CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    if has_kernel(like) { empty_pitched(like, shape, dtype) } else { empty(like, shape, dtype) }
}

/// The product that `layout` names, and a bias, and with `relu` the positive part, in `out`, which [`empty_matrix`] made or
/// which is some of its rows.
pub(crate) fn product_into(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    layout: Layout,
    relu: bool,
    out: CubeTensor,
) -> CubeTensor {
    let sizes = layout.sizes(a.meta.shape(), b.meta.shape());
    let bias = bias.map(into_contiguous);
    if has_kernel(&a) && sizes.0 * sizes.1 * sizes.2 > 0 {
        let (a, b) = (addressable(a), addressable(b));
        return Plan::new(&a, layout, sizes).launch(a, b, bias.map(aligned), relu, out);
    }
    let y = fallback(a, b, layout, out);
    let y = match bias {
        Some(bias) => CubeBackend::float_add(y, CubeBackend::float_reshape(bias, [1, sizes.1].into())),
        None => y,
    };
    if relu { CubeBackend::relu(y) } else { y }
}

/// The product that `layout` names in f32: written to `sum` (which [`empty_matrix`] made in f32) if it is the `first`, else
/// added to it in place.
pub(crate) fn product_in_f32(a: CubeTensor, b: CubeTensor, layout: Layout, sum: CubeTensor, first: bool) -> CubeTensor {
    let (m, n, k) = layout.sizes(a.meta.shape(), b.meta.shape());
    if has_kernel(&a) && m * n * k > 0 {
        let (a, b) = (addressable(a), addressable(b));
        return Plan { onto: !first, ..Plan::new(&a, layout, (m, n, k)) }.launch(a, b, None, false, sum);
    }
    let out = empty(&a, [m, n], a.dtype);
    let product = CubeBackend::float_cast(fallback(a, b, layout, out), FloatDType::F32);
    if first { product } else { CubeBackend::float_add(sum, product) }
}

/// `x` as the products above take it: copied once here, where several need it.
pub(crate) fn operand(x: CubeTensor) -> CubeTensor {
    if has_kernel(&x) { addressable(x) } else { into_contiguous(x) }
}

fn fallback(a: CubeTensor, b: CubeTensor, layout: Layout, out: CubeTensor) -> CubeTensor {
    let (a, b) = (into_contiguous(a), into_contiguous(b));
    let transpose = |x: CubeTensor| burn_cubecl::ops::permute(x, &[1, 0]);
    match layout {
        Layout::NN => stock_product(a, b, out),
        Layout::NT => stock_product(a, transpose(b), out),
        Layout::TN => stock_product(transpose(a), b, out),
    }
}

/// The backend's own product, with strategies named here: its autotune may prefer a TMA candidate whose launch fails
/// without an error, and its f32 default rounds to TF32.
fn stock_product(a: CubeTensor, b: CubeTensor, out: CubeTensor) -> CubeTensor {
    if a.meta.shape().iter().chain(b.meta.shape().iter()).any(|&size| size == 0) {
        return burn_cubecl::ops::numeric::zeros_client(
            out.client.clone(),
            out.device.clone(),
            out.meta.shape().clone(),
            out.dtype,
        );
    }
    let candidates = match a.dtype {
        DType::F32 => vec![Strategy::SimpleUnit(Default::default()), Strategy::Naive],
        _ => vec![
            Strategy::SimpleCyclicCmma(Default::default()),
            Strategy::SimpleUnit(Default::default()),
            Strategy::Naive,
        ],
    };
    let elem = dtype_to_storage_type(a.dtype);
    let mut refused = Vec::new();
    for strategy in candidates {
        let mut elems = MatmulElems::from_globals(&MatmulGlobalElems { lhs: elem, rhs: elem, out: elem });
        let launched = cubek::matmul::launch::launch_ref(
            &strategy.clone().into(),
            &out.client,
            InputBinding::new(a.clone().binding(), elem),
            InputBinding::new(b.clone().binding(), elem),
            out.clone().binding(),
            &mut elems,
        );
        match launched {
            Ok(()) => return out,
            Err(reason) => refused.push(format!("{strategy}: {reason:?}")),
        }
    }
    panic!(
        "no kernel multiplies {:?} by {:?} in {:?}: {}",
        a.meta.shape(),
        b.meta.shape(),
        a.dtype,
        refused.join("; ")
    );
}

/// How the wgmma kernel computes one product.
struct Plan {
    config: GemmConfig,
    m: usize,
    n: usize,
    k: usize,
    cubes: usize,
    /// K tiles for each cube where tiles are shared.
    per_cube: usize,
    /// The result is added to the f32 numbers that are there.
    onto: bool,
}

impl Plan {
    /// For operands that TMA can address.
    fn new(like: &CubeTensor, layout: Layout, (m, n, k): (usize, usize, usize)) -> Self {
        let properties = like.client.properties();
        let multiprocessors = properties.hardware.num_streaming_multiprocessors.unwrap_or(132) as usize;
        let (stages, k_tiles) = (4, k.div_ceil(TILE_K));
        let tiles = |tile_n: usize| m.div_ceil(TILE_M) * n.div_ceil(tile_n);
        let wide_tile = if n <= 128 { 128 } else { 256 };
        let shared = per_cube(tiles(wide_tile), k_tiles, stages, multiprocessors);
        // Wide tiles read less; narrow ones fill the device when there are few.
        let tile_n = if shared.is_some() || tiles(wide_tile) >= multiprocessors { wide_tile } else { 128 };
        let cubes = match shared {
            Some(per_cube) => tiles(tile_n) + (tiles(tile_n) * (k_tiles - per_cube)).div_ceil(per_cube),
            None => tiles(tile_n).min(multiprocessors),
        };
        let config = GemmConfig {
            tile_n,
            stages,
            a_mn: layout == Layout::TN,
            b_mn: layout != Layout::NT,
            ragged: !k_tiles.is_multiple_of(stages),
            wide: false,
            shared: shared.is_some(),
            onto: false,
            bias: false,
            relu: false,
            group_m: 16,
        };
        Self { config, m, n, k, cubes, per_cube: shared.unwrap_or(k_tiles), onto: false }
    }

    /// `out` is of the operands' dtype, or in f32.
    fn launch(self, a: CubeTensor, b: CubeTensor, bias: Option<CubeTensor>, relu: bool, out: CubeTensor) -> CubeTensor {
        let Self { config, m, n, k, cubes, per_cube, onto } = self;
        let wide = config.shared || out.dtype == DType::F32;
        let config = GemmConfig { bias: bias.is_some(), relu, wide, onto: onto && !config.shared, ..config };
        let dtype = dtype_to_storage_type(a.dtype);
        let client = a.client.clone();
        let map_a = if config.a_mn { tensor_map(&a, TILE_K, PANEL) } else { tensor_map(&a, TILE_M, TILE_K) };
        let map_b = if config.b_mn { tensor_map(&b, TILE_K, PANEL) } else { tensor_map(&b, config.tile_n, TILE_K) };
        // A kernel argument needs some tensor; where sums are written in f32, this one is not touched.
        let map_out = if wide { tensor_map(&a, PANEL, PANEL) } else { tensor_map(&out, PANEL, PANEL) };
        let pitch = row_pitch(&out);
        let k_tiles = k.div_ceil(TILE_K);
        // The first of a tile's parts, and as many helpers as its remaining K tiles can meet.
        let parts = if config.shared { 2 + (k_tiles - per_cube).div_ceil(per_cube) } else { 1 };
        let (partial, partial_pairs) = match config.shared {
            true => (client.empty(parts * m * pitch * 4), parts * m * pitch / 2),
            // The result itself in f32; else not touched.
            false => (out.handle.clone(), m * pitch * out.dtype.size() / 8),
        };
        // Without a bias neither kernel touches it.
        let bias = bias.map_or_else(|| a.handle.clone(), |bias| bias.handle);
        // SAFETY: the maps describe the tensors and TMA clips to them; `partial` holds `parts` matrices with rows of
        // `pitch` numbers and stores to it are guarded by rows and columns; a bias is read in groups of four, of which
        // the last may reach past its end but not past its 16-byte aligned buffer's.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            gemm::launch_unchecked(
                &client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(config.units()),
                map_a,
                map_b,
                map_out,
                BufferArg::from_raw_parts(partial.clone(), partial_pairs),
                BufferArg::from_raw_parts(bias.clone(), n.div_ceil(2)),
                m as u32,
                n as u32,
                pitch as u32,
                k_tiles as u32,
                per_cube as u32,
                config,
                dtype,
            );
            if config.shared {
                let quads = m * pitch / 4;
                let config = GemmConfig { onto, ..config };
                reduce_runs::launch_unchecked(
                    &client,
                    CubeCount::Static(quads.div_ceil(256) as u32, 1, 1),
                    CubeDim::new_1d(256),
                    BufferArg::from_raw_parts(partial, parts * quads),
                    BufferArg::from_raw_parts(bias, pitch / 4),
                    BufferArg::from_raw_parts(out.handle.clone(), quads),
                    m as u32,
                    n as u32,
                    k_tiles as u32,
                    per_cube as u32,
                    (pitch / 4) as u32,
                    config,
                    dtype_to_storage_type(out.dtype),
                );
            }
        }
        out
    }
}

/// K tiles for each cube if fewer tiles than multiprocessors are to be shared, in whole turns of a ring of `stages`. A run of
/// fewer than 16 does not pay for its sums, nor does sharing that saves less than a tenth.
fn per_cube(tiles: usize, k_tiles: usize, stages: usize, multiprocessors: usize) -> Option<usize> {
    if tiles >= multiprocessors {
        return None;
    }
    let even = (tiles * k_tiles).div_ceil(multiprocessors).max(16).next_multiple_of(stages);
    (even * 10 <= k_tiles * 9).then_some(even)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of `gemm`'s cubes, counted as the kernel counts them: every K tile of every tile once, in parts that follow each
    /// other, no more of them than there is room for, and no cube without work.
    #[test]
    fn shared_tiles_are_covered_once() {
        for (tiles, k_tiles) in [(1, 64), (18, 256), (54, 256), (72, 256), (131, 100), (24, 400), (7, 67), (100, 23)] {
            let Some(per_cube) = per_cube(tiles, k_tiles, 4, 132) else { continue };
            let rest = k_tiles - per_cube;
            let cubes = tiles + (tiles * rest).div_ceil(per_cube);
            assert!(cubes <= 132 && per_cube >= 16, "{tiles} x {k_tiles}: {cubes} cubes");
            let first_helper = |tile: usize| tile * rest / per_cube;
            let mut runs = vec![vec![(0, 0, per_cube)]; tiles];
            for cube in tiles..cubes {
                let mut at = (cube - tiles) * per_cube;
                let end = (at + per_cube).min(tiles * rest);
                assert!(at < end, "cube {cube} has work");
                while at < end {
                    let (tile, from) = (at / rest, per_cube + at % rest);
                    let to = k_tiles.min(from + end - at);
                    runs[tile].push((1 + cube - tiles - first_helper(tile), from, to));
                    at += to - from;
                }
            }
            for (tile, runs) in runs.iter().enumerate() {
                let helpers = ((tile + 1) * rest - 1) / per_cube + 1 - first_helper(tile);
                assert_eq!(runs.len(), 1 + helpers);
                assert!(runs.len() <= 2 + rest.div_ceil(per_cube), "{} parts", runs.len());
                assert!(runs.iter().enumerate().all(|(i, run)| run.0 == i), "{runs:?}");
                assert!(runs.windows(2).all(|pair| pair[0].2 == pair[1].1), "{runs:?}");
                assert_eq!(runs.last().map(|run| run.2), Some(k_tiles));
            }
        }
    }
}
