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

use super::kernel::{BOX_ROWS, Finish, GemmConfig, PANEL, TILE_K, TILE_M, gemm, reduce_runs};
use super::{Layout, LinearOps};
use crate::activation::Activation;
use crate::activation::gpu::activate;
use crate::dropout::Mask;
use crate::gpu::hardware::{is_hopper, multiprocessors};
use crate::gpu::memory::{addressable, aligned, empty, empty_pitched, row_pitch};
use crate::gpu::tensor_map::tensor_map;
use crate::maybe::Maybe;
use crate::reduce::columns::backward_and_sum;

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

    fn fused_linear_both(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (CubeTensor, CubeTensor) {
        let sizes = layout.sizes(x.meta.shape(), weight.meta.shape());
        let before = empty_matrix(&x, [sizes.0, sizes.1], x.dtype);
        if let Some(plan) = finishing_plan(&x, layout, sizes, &mask) {
            let y = empty_matrix(&x, [sizes.0, sizes.1], x.dtype);
            let finish = Epilogue::Activation { activation, kept: Some(before.clone()) };
            return (before, plan.launch(x, weight, bias.into_option(), finish, y));
        }
        let before = product_into(x, weight, bias.into_option(), layout, Epilogue::None, before);
        (before.clone(), activate(before, activation, mask))
    }

    fn linear_residual(x: CubeTensor, weight: CubeTensor, bias: Maybe<Self>, residual: CubeTensor) -> CubeTensor {
        let out = empty_matrix(&x, [residual.meta.shape()[0], residual.meta.shape()[1]], x.dtype);
        product_into(x, weight, bias.into_option(), Layout::NN, Epilogue::Residual(residual), out)
    }

    fn activate(x: CubeTensor, activation: Activation, mask: Mask<Self>) -> CubeTensor {
        activate(x, activation, mask)
    }

    fn activate_backward(
        kept: CubeTensor,
        dy: CubeTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (CubeTensor, CubeTensor) {
        backward_and_sum(Some((kept, activation)), dy, mask)
    }

    fn column_sum(x: CubeTensor) -> CubeTensor {
        backward_and_sum(None, x, Mask::None).1
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
    let sizes = layout.sizes(a.meta.shape(), b.meta.shape());
    let out = empty_matrix(&a, [sizes.0, sizes.1], a.dtype);
    let relu = activation == Some(Activation::Relu) && !mask.is_some() && has_kernel(&a);
    match activation {
        Some(activation) if !relu => match finishing_plan(&a, layout, sizes, &mask) {
            Some(plan) => plan.launch(a, b, bias, Epilogue::Activation { activation, kept: None }, out),
            None => activate(product_into(a, b, bias, layout, Epilogue::None, out), activation, mask),
        },
        _ => product_into(a, b, bias, layout, if relu { Epilogue::Relu } else { Epilogue::None }, out),
    }
}

/// What is done to the results of a product, with its bias, on their way out.
pub(crate) enum Epilogue {
    None,
    Relu,
    /// By warps of their own; only of a [`finishing_plan`].
    Activation {
        activation: Activation,
        /// Where the arguments of the activation go, if they are wanted.
        kept: Option<CubeTensor>,
    },
    /// This matrix is added.
    Residual(CubeTensor),
}

/// How the kernel finishes this product itself, if it does: whole tiles, and nothing is dropped. Random bits for a tile take
/// the finishing warps longer than the next tile takes to multiply; a pass of its own is faster.
fn finishing_plan(
    a: &CubeTensor,
    layout: Layout,
    sizes: (usize, usize, usize),
    mask: &Mask<CubeBackend>,
) -> Option<Plan> {
    let (m, n, k) = sizes;
    let possible = !mask.is_some() && has_kernel(a) && m * n * k > 0;
    possible.then(|| Plan::new(a, layout, sizes)).filter(|plan| plan.shares.is_none())
}

/// Whether products of tensors like this one run on the kernel.
fn has_kernel(like: &CubeTensor) -> bool {
    matches!(like.dtype, DType::BF16 | DType::F16) && is_hopper(&like.client)
}

/// A matrix for the result of a product of tensors like `like`. Rows that are no multiple of 16 bytes long are allocated
/// with a gap behind each, so that TMA can address them.
pub(crate) fn empty_matrix(like: &CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    if has_kernel(like) { empty_pitched(like, shape, dtype) } else { empty(like, shape, dtype) }
}

/// The product that `layout` names, and a bias, and the epilogue, in `out`, which [`empty_matrix`] made or which is some of its
/// rows.
pub(crate) fn product_into(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    layout: Layout,
    epilogue: Epilogue,
    out: CubeTensor,
) -> CubeTensor {
    let sizes = layout.sizes(a.meta.shape(), b.meta.shape());
    if has_kernel(&a) && sizes.0 * sizes.1 * sizes.2 > 0 {
        return Plan::new(&a, layout, sizes).launch(a, b, bias, epilogue, out);
    }
    let bias = bias.map(into_contiguous);
    let y = fallback(a, b, layout, out);
    let y = match bias {
        Some(bias) => CubeBackend::float_add(y, CubeBackend::float_reshape(bias, [1, sizes.1].into())),
        None => y,
    };
    match epilogue {
        Epilogue::None => y,
        Epilogue::Relu => CubeBackend::relu(y),
        Epilogue::Residual(residual) => CubeBackend::float_add(residual, y),
        Epilogue::Activation { .. } => unreachable!("of a plan of the kernel only"),
    }
}

/// The product that `layout` names in f32: written to `sum` (which [`empty_matrix`] made in f32) if it is the `first`, else
/// added to it in place.
pub(crate) fn product_in_f32(a: CubeTensor, b: CubeTensor, layout: Layout, sum: CubeTensor, first: bool) -> CubeTensor {
    let (m, n, k) = layout.sizes(a.meta.shape(), b.meta.shape());
    if has_kernel(&a) && m * n * k > 0 {
        return Plan { onto: !first, ..Plan::new(&a, layout, (m, n, k)) }.launch(a, b, None, Epilogue::None, sum);
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
    layout: Layout,
    m: usize,
    n: usize,
    k: usize,
    tile_n: usize,
    cubes: usize,
    shares: Option<Shares>,
    /// The result is added to the f32 numbers that are there.
    onto: bool,
}

impl Plan {
    fn new(like: &CubeTensor, layout: Layout, (m, n, k): (usize, usize, usize)) -> Self {
        let multiprocessors = multiprocessors(&like.client) as usize;
        let tiles = |tile_n: usize| m.div_ceil(TILE_M) * n.div_ceil(tile_n);
        let wide_tile = if n <= 128 { 128 } else { 256 };
        let shares = Shares::of(tiles(wide_tile), k.div_ceil(TILE_K), multiprocessors);
        // Wide tiles read less; narrow ones are for few, if each finds a multiprocessor of its own.
        let tile_n = if shares.is_some() || 2 * tiles(wide_tile) > multiprocessors { wide_tile } else { 128 };
        let cubes = match &shares {
            Some(shares) => shares.splits * tiles(tile_n) + shares.helpers,
            None => tiles(tile_n).min(multiprocessors),
        };
        Self { layout, m, n, k, tile_n, cubes, shares, onto: false }
    }

    /// `out` is of the dtype of `a` and `b`, or in f32.
    fn launch(
        self,
        a: CubeTensor,
        b: CubeTensor,
        bias: Option<CubeTensor>,
        epilogue: Epilogue,
        out: CubeTensor,
    ) -> CubeTensor {
        let Self { layout, m, n, k, tile_n, cubes, shares, onto } = self;
        let (a, b, bias) = (addressable(a), addressable(b), bias.map(|bias| aligned(into_contiguous(bias))));
        let k_tiles = k.div_ceil(TILE_K);
        let shared = shares.is_some();
        let wide = shared || out.dtype == DType::F32;
        // `beside` is what is kept or added.
        let (relu, finish, residual, beside) = match epilogue {
            Epilogue::None => (false, None, false, None),
            Epilogue::Relu => (true, None, false, None),
            Epilogue::Activation { activation, kept } => {
                (false, Some(Finish { activation, kept: kept.is_some() }), false, kept)
            }
            Epilogue::Residual(residual) => (false, None, true, Some(addressable(residual))),
        };
        // Where a tile takes few K tiles, all its results lie in shared memory, in place of a stage: the next is multiplied
        // while they are stored.
        let three = finish.is_some() || residual || k_tiles <= 16;
        let (stages, panels) = if !wide && tile_n == 256 && three { (3, 4) } else { (4, 2) };
        // What is left for the last round is halved if there are cubes for that many halves.
        let left = m.div_ceil(TILE_M) * n.div_ceil(tile_n) % cubes;
        let as_it_is = finish.is_none() && !residual;
        let config = GemmConfig {
            tile_n,
            halves: !wide && as_it_is && tile_n == 256 && left > 0 && 2 * left <= cubes,
            columns: tile_n,
            stages,
            panels,
            a_mn: layout == Layout::TN,
            b_mn: layout != Layout::NT,
            ragged: shared || !k_tiles.is_multiple_of(stages),
            wide,
            shared,
            onto: onto && !shared,
            bias: bias.is_some(),
            relu,
            finish,
            residual,
            group_m: 16,
        };
        let shares = shares.unwrap_or_default();
        let dtype = dtype_to_storage_type(a.dtype);
        let client = a.client.clone();
        let map_a = if config.a_mn { tensor_map(&a, TILE_K, PANEL) } else { tensor_map(&a, BOX_ROWS, TILE_K) };
        let map_b = if config.b_mn { tensor_map(&b, TILE_K, PANEL) } else { tensor_map(&b, BOX_ROWS, TILE_K) };
        // A kernel argument needs some tensor; where sums are written in f32, this one is not touched.
        let map_out = if wide { tensor_map(&a, PANEL, PANEL) } else { tensor_map(&out, PANEL, PANEL) };
        // Nor is what stands in for `beside`.
        let beside = beside.unwrap_or_else(|| a.clone());
        let map_beside = tensor_map(&beside, PANEL, PANEL);
        let pitch = row_pitch(&out);
        let parts = if config.shared { shares.splits + shares.pieces } else { 1 };
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
                map_beside,
                BufferArg::from_raw_parts(partial.clone(), partial_pairs),
                BufferArg::from_raw_parts(bias.clone(), n.div_ceil(2)),
                m as u32,
                n as u32,
                pitch as u32,
                k_tiles as u32,
                shares.splits as u32,
                shares.per_split as u32,
                shares.pieces as u32,
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
                    BufferArg::from_raw_parts(beside.handle.clone(), beside.meta.shape()[0] * row_pitch(&beside) / 4),
                    BufferArg::from_raw_parts(out.handle.clone(), quads),
                    m as u32,
                    n as u32,
                    shares.splits as u32,
                    shares.helpers as u32,
                    shares.pieces as u32,
                    (pitch / 4) as u32,
                    (row_pitch(&beside) / 4) as u32,
                    config,
                    dtype_to_storage_type(out.dtype),
                );
            }
        }
        out
    }
}

/// How fewer tiles than multiprocessors are shared, see [`super::kernel`]'s `Run`.
#[derive(Default)]
struct Shares {
    splits: usize,
    per_split: usize,
    helpers: usize,
    pieces: usize,
}

impl Shares {
    /// Nothing if sharing saves less than a tenth.
    fn of(tiles: usize, k_tiles: usize, multiprocessors: usize) -> Option<Self> {
        /// K tiles below which a split does not pay for its sums.
        const SHORTEST_SPLIT: usize = 16;
        /// K tiles below which helpers do not pay.
        const SHORTEST_TAIL: usize = 4;
        /// What it costs to write the sums of a run, in K tiles.
        const WRITE: usize = 3;
        const MOST_PIECES: usize = 8;
        if tiles >= multiprocessors {
            return None;
        }
        let most = multiprocessors / tiles;
        let splits = most.min(k_tiles / SHORTEST_SPLIT).max(1);
        let helpers = multiprocessors - most * tiles;
        let mut shares = None;
        if splits == most && helpers > 0 {
            let left = tiles % helpers;
            let pieces = if left > 0 { (helpers / left).min(MOST_PIECES) } else { 1 };
            // A helper's tails, in pieces, and its runs. It is to need as long as a split.
            let work = tiles / helpers * pieces + usize::from(left > 0);
            let more_runs = tiles.div_ceil(helpers) - 1;
            let per_split = (k_tiles * work + WRITE * more_runs * pieces).div_ceil(pieces + splits * work);
            let tail = k_tiles.saturating_sub(splits * per_split);
            if tail >= SHORTEST_TAIL {
                let pieces = tail.div_ceil(tail.div_ceil(pieces));
                shares = Some(Self { splits, per_split, helpers, pieces });
            }
        }
        let shares = shares.unwrap_or_else(|| {
            let per_split = k_tiles.div_ceil(splits);
            Self { splits: k_tiles.div_ceil(per_split), per_split, helpers: 0, pieces: 0 }
        });
        (shares.per_split * 10 <= k_tiles * 9).then_some(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of `gemm`'s cubes, counted as the kernel counts them: every K tile of every tile once, in parts that follow each
    /// other, as many as `reduce_runs` adds, no cube without work, and none with much more than another.
    #[test]
    fn shared_tiles_are_covered_once() {
        let mut tried = 0;
        for (tiles, k_tiles) in (1..132).flat_map(|tiles| [16, 33, 64, 67, 100, 141, 256, 400].map(|k| (tiles, k))) {
            let Some(Shares { splits, per_split, helpers, pieces }) = Shares::of(tiles, k_tiles, 132) else { continue };
            tried += 1;
            let mut runs = vec![Vec::new(); tiles];
            let mut longest = 0;
            let mut run = |tile: usize, part: usize, from: usize, most: usize| {
                let to = k_tiles.min(from + most);
                assert!(from < to, "{tiles} x {k_tiles}: a run without work");
                runs[tile].push((part, from, to));
                to - from
            };
            assert!(splits * tiles + helpers <= 132);
            for cube in 0..splits * tiles {
                let part = cube / tiles;
                longest = longest.max(run(cube % tiles, part, part * per_split, per_split));
            }
            let from = splits * per_split;
            for helper in 0..helpers {
                let tail = k_tiles - from;
                let left = tiles % helpers;
                let mut work = 0;
                for round in 0..tiles / helpers {
                    work += run(round * helpers + helper, splits, from, tail);
                }
                if helper < left * pieces {
                    let (piece, most) = (helper / left, tail.div_ceil(pieces));
                    work += run(tiles - left + helper % left, splits + piece, from + piece * most, most);
                }
                longest = longest.max(work);
            }
            for (tile, runs) in runs.iter_mut().enumerate() {
                runs.sort_unstable();
                let tails = match helpers {
                    0 => 0,
                    _ if tile < tiles - tiles % helpers => 1,
                    _ => pieces,
                };
                assert_eq!(runs.len(), splits + tails, "{tiles} x {k_tiles}");
                assert!(runs.iter().enumerate().all(|(i, run)| run.0 == i), "{runs:?}");
                assert!(runs.windows(2).all(|pair| pair[0].2 == pair[1].1), "{runs:?}");
                assert_eq!((runs[0].1, runs[runs.len() - 1].2), (0, k_tiles));
            }
            assert!(longest <= per_split, "{tiles} x {k_tiles}: {longest} of {per_split}");
        }
        assert!(tried > 500, "{tried}");
    }
}
