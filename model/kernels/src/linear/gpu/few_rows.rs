//! Products of a few rows, as decoding has them: the weights are read once, and memory is the bound.
//!
//! Tensor cores would wait: a tile of 128 rows would be nearly empty, and a few blocks would read all weights. Here many blocks read
//! them, with several loads in flight. Weights `[K, N]`: a block takes 16 or 32 columns, and each of its threads eight rows at a time.
//! Weights `[N, K]`: a warp takes four rows. Each row of the result is summed in the same order, whatever other rows there are.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::ops::record_product;
use super::super::{Layout, ProductKind};
use super::launch::EpilogueArguments;
use super::shared::plan::has_kernel;
use crate::activation::Activation;
use crate::activation::gpu::activated;
use crate::calls;
use crate::gpu::early::{self, await_front, changed, prefetch, start_next};
use crate::gpu::memory::{addressable, aligned, row_pitch};

/// Most rows of a result.
const MAX_ROWS: usize = 8;
/// Rows of weights that a thread reads at once, as many as a vector of `a` has numbers.
const OCT: u32 = 8;
/// Rows of `[N, K]` weights per warp.
const PER_WARP: u32 = 4;

type Oct<E> = Vector<E, Const<8>>;

/// What is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FewRows {
    /// Of a block.
    threads: u32,
    /// Vectors of a block's columns.
    octs: u32,
    rows: u32,
    /// See [`crate::gpu::early`].
    early: bool,
    bias: bool,
    residual: bool,
    activation: Option<Activation>,
}

impl FewRows {
    fn warps(self) -> u32 {
        self.threads / 32
    }
}

/// Sizes in vectors of eight. The rows of a matrix begin every `pitch` vectors.
#[derive(CubeType, CubeLaunch)]
struct Sizes {
    n: u32,
    /// In numbers.
    k: u32,
    a_pitch: u32,
    b_pitch: u32,
    residual_pitch: u32,
    out_pitch: u32,
}

/// Moves what a turn reads to the L2 cache, from row `first` on in the columns of vector `read`.
#[cube]
fn prefetch_rows<E: Float>(b: &[Oct<E>], first: u32, read: u32, sizes: &Sizes) {
    // A prefetch has the bytes of two vectors.
    if read % 2 == 0 && first < sizes.k {
        #[unroll]
        for i in 0..OCT {
            let place = ((first + i) * sizes.b_pitch + read) as usize;
            prefetch(&b[place..place + 1]);
        }
    }
}

/// Adds up what the lanes of a warp have of the same columns, and writes it to the warp's place.
#[cube]
fn share_parts(sums: &Array<Oct<f32>>, parts: &mut [Oct<f32>], #[comptime] cfg: FewRows) {
    let (warp, oct) = (UNIT_POS / 32, UNIT_POS % cfg.octs);
    #[unroll]
    for row in 0..cfg.rows {
        let mut sum = sums[comptime![row as usize]];
        #[unroll]
        for j in 0..8usize {
            let mut x = sum.extract(j);
            if comptime![cfg.octs == 2] {
                x += plane_shuffle_xor(x, 2u32);
            }
            x += plane_shuffle_xor(x, 4u32);
            x += plane_shuffle_xor(x, 8u32);
            x += plane_shuffle_xor(x, 16u32);
            sum.insert(j, x);
        }
        if UNIT_POS_PLANE < cfg.octs {
            parts[((warp * cfg.rows + row) * cfg.octs + oct) as usize] = sum;
        }
    }
}

/// `out = epilogue(a · b + bias)` for weights `[K, N]`.
#[cube(launch_unchecked)]
fn few_rows_nn<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    bias: &[Oct<E>],
    residual: &[Oct<E>],
    out: &mut [Oct<E>],
    sizes: Sizes,
    #[comptime] cfg: FewRows,
    #[define(E)] _dtype: ElemType,
) {
    let oct = UNIT_POS % cfg.octs;
    let column = CUBE_POS as u32 * cfg.octs + oct;
    // Threads beyond the last column read it again and write nothing.
    let read = min(column, sizes.n - 1);
    let mut sums = Array::<Oct<f32>>::new(comptime![cfg.rows as usize]);
    #[unroll]
    for row in 0..cfg.rows {
        sums[comptime![row as usize]] = Oct::<f32>::zeroed();
    }

    let mut first = UNIT_POS / cfg.octs * OCT;
    if comptime![cfg.early] {
        prefetch_rows(b, first, read, &sizes);
        await_front();
        start_next();
    }
    changed(a, cfg.early);
    changed(residual, cfg.early);

    while first < sizes.k {
        let mut weights = Array::<Oct<E>>::new(comptime![OCT as usize]);
        #[unroll]
        for i in 0..OCT {
            weights[comptime![i as usize]] = b[((first + i) * sizes.b_pitch + read) as usize];
        }
        #[unroll]
        for row in 0..cfg.rows {
            let x = Oct::<f32>::cast_from(a[(row * sizes.a_pitch + first / OCT) as usize]);
            #[unroll]
            for i in 0..OCT {
                let weight = Oct::<f32>::cast_from(weights[comptime![i as usize]]);
                sums[comptime![row as usize]] += weight * Oct::<f32>::new(x.extract(comptime![i as usize]));
            }
        }
        first += comptime![cfg.threads / cfg.octs * OCT];
    }

    let mut parts = Shared::<[Oct<f32>]>::new_slice(comptime![(cfg.warps() * cfg.rows * cfg.octs) as usize]);
    share_parts(&sums, &mut parts, cfg);
    sync_cube();

    let row = UNIT_POS / cfg.octs;
    if row < cfg.rows && column < sizes.n {
        let mut result = Oct::<f32>::zeroed();
        #[unroll]
        for warp in 0..comptime![cfg.warps()] {
            result += parts[((warp * cfg.rows + row) * cfg.octs + oct) as usize];
        }
        if comptime![cfg.bias] {
            result += Oct::<f32>::cast_from(bias[column as usize]);
        }
        if comptime![cfg.activation.is_some()] {
            result = activated::<Const<8>>(result, comptime![cfg.activation.unwrap_or(Activation::Relu)]);
        }
        if comptime![cfg.residual] {
            result += Oct::<f32>::cast_from(residual[(row * sizes.residual_pitch + column) as usize]);
        }
        out[(row * sizes.out_pitch + column) as usize] = Oct::<E>::cast_from(result);
    }
}

/// `out = a · b^T` for weights `[N, K]`; `n` counts numbers here, and `out` is one of numbers.
#[cube(launch_unchecked)]
fn few_rows_nt<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    out: &mut [E],
    sizes: Sizes,
    #[comptime] cfg: FewRows,
    #[define(E)] _dtype: ElemType,
) {
    let lane = UNIT_POS_PLANE;
    let first = (CUBE_POS as u32 * comptime![cfg.warps()] + UNIT_POS / 32) * PER_WARP;
    let octs = sizes.k / 8;
    let mut sums = Array::<f32>::new(comptime![(PER_WARP * cfg.rows) as usize]);
    #[unroll]
    for i in 0..PER_WARP * cfg.rows {
        sums[comptime![i as usize]] = 0.0f32;
    }

    if comptime![cfg.early] {
        // What the first two turns read. A prefetch has the bytes of two vectors.
        if 2 * lane < octs {
            #[unroll]
            for i in 0..PER_WARP {
                let place = min(first + i, sizes.n - 1) as usize * sizes.b_pitch as usize + 2 * lane as usize;
                prefetch(&b[place..place + 1]);
            }
        }
        await_front();
        start_next();
    }
    changed(a, cfg.early);

    let mut at = lane;
    while at < octs {
        let mut weights = Array::<Oct<E>>::new(comptime![PER_WARP as usize]);
        #[unroll]
        for i in 0..PER_WARP {
            // Beyond the last row, that row is read again.
            let column = min(first + i, sizes.n - 1);
            weights[comptime![i as usize]] = b[column as usize * sizes.b_pitch as usize + at as usize];
        }
        #[unroll]
        for row in 0..cfg.rows {
            let x = Oct::<f32>::cast_from(a[(row * sizes.a_pitch + at) as usize]);
            #[unroll]
            for i in 0..PER_WARP {
                let products = Oct::<f32>::cast_from(weights[comptime![i as usize]]) * x;
                #[unroll]
                for j in 0..8usize {
                    sums[comptime![(i * cfg.rows + row) as usize]] += products.extract(j);
                }
            }
        }
        at += 32u32;
    }

    #[unroll]
    for i in 0..PER_WARP {
        #[unroll]
        for row in 0..cfg.rows {
            let x = plane_sum(sums[comptime![(i * cfg.rows + row) as usize]]);
            if lane == 0 && first + i < sizes.n {
                out[(row * sizes.out_pitch * 8 + first + i) as usize] = E::cast_from(x);
            }
        }
    }
}

/// Returns the threads of a block, and the vectors of its columns. Where the columns make few blocks, each reads more rows at once, and
/// very few make narrower blocks (`benches/results/2026-11-29-h200-decoding.md`). The order of sums follows, so that it depends on the weights
/// alone.
fn block(layout: Layout, n: usize) -> (u32, u32) {
    match layout {
        Layout::NN if n <= 1024 => (512, 2),
        Layout::NN if n <= 4096 => (512, 4),
        _ => (256, 4),
    }
}

/// Whether this kernel computes a product: of a few rows of 16-bit numbers, whose columns come in vectors.
pub(super) fn takes(
    a: &CubeTensor,
    kind: ProductKind,
    (m, n, k): (usize, usize, usize),
    has_bias: bool,
    epilogue: &EpilogueArguments,
) -> bool {
    let is_small = (1..=MAX_ROWS).contains(&m) && matches!(a.dtype, DType::BF16 | DType::F16) && has_kernel(a);
    let keeps_input = matches!(epilogue, EpilogueArguments::Activation { input: Some(_), .. });
    is_small
        && !kind.independent_rows
        && !keeps_input
        && match kind.layout {
            Layout::NN => n > 0 && k > 0 && n.is_multiple_of(8) && k.is_multiple_of(8),
            Layout::NT => {
                n > 0 && k > 0 && k.is_multiple_of(8) && !has_bias && matches!(epilogue, EpilogueArguments::Store)
            }
            Layout::TN => false,
        }
}

/// Computes a product that [`takes`] accepts, in `out`.
pub(super) fn launch(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    kind: ProductKind,
    epilogue: EpilogueArguments,
    out: CubeTensor,
) -> CubeTensor {
    let (m, n, k) = kind.layout.sizes(a.meta.shape(), b.meta.shape());
    let (activation, residual) = match epilogue {
        EpilogueArguments::Store => (None, None),
        EpilogueArguments::Relu => (Some(Activation::Relu), None),
        EpilogueArguments::AddResidual(residual) => (None, Some(addressable(residual))),
        EpilogueArguments::Activation { activation, .. } => (Some(activation), None),
    };
    let _call = record_product(&a, &b, kind, residual.as_ref().map_or(0.0, calls::bytes));
    let (a, b, bias) = (addressable(a), addressable(b), bias.map(|bias| aligned(into_contiguous(bias))));
    let (threads, block_octs) = block(kind.layout, n);
    let early = early::is_wanted(&out.client);
    let cfg = FewRows {
        threads,
        octs: block_octs,
        rows: m as u32,
        early,
        bias: bias.is_some(),
        residual: residual.is_some(),
        activation,
    };
    let octs = |matrix: &CubeTensor| (row_pitch(matrix) / 8) as u32;
    let sizes = |n: usize| {
        let residual_pitch = residual.as_ref().map_or(0, octs);
        SizesLaunch::new(n as u32, k as u32, octs(&a), octs(&b), residual_pitch, octs(&out))
    };
    let (client, dim, dtype) = (out.client.clone(), CubeDim::new_1d(threads), dtype_to_storage_type(out.dtype));

    // SAFETY: threads read and write within the rows and columns of the matrices, whose rows begin at multiples of 16 bytes. A kernel
    // argument needs some tensor: `b` takes the place of a bias or residual that this kernel does not touch.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        if kind.layout == Layout::NN {
            few_rows_nn::launch_unchecked(
                &client,
                CubeCount::Static((n as u32 / 8).div_ceil(block_octs), 1, 1),
                dim,
                a.clone().into_buffer_arg(),
                b.clone().into_buffer_arg(),
                bias.unwrap_or_else(|| b.clone()).into_buffer_arg(),
                residual.clone().unwrap_or_else(|| b.clone()).into_buffer_arg(),
                out.clone().into_buffer_arg(),
                sizes(n / 8),
                cfg,
                dtype,
            );
        } else {
            few_rows_nt::launch_unchecked(
                &client,
                CubeCount::Static((n as u32).div_ceil(cfg.warps() * PER_WARP), 1, 1),
                dim,
                a.clone().into_buffer_arg(),
                b.clone().into_buffer_arg(),
                out.clone().into_buffer_arg(),
                sizes(n),
                cfg,
                dtype,
            );
        }
    }
    early::launched(&out, early);
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(in crate::linear) fn offline_kernels() -> Vec<Compiled> {
        let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
        let sizes =
            || SizesCompilationArg { n: (), k: (), a_pitch: (), b_pitch: (), residual_pitch: (), out_pitch: () };
        let (early, bias, residual, activation) = (true, true, true, Some(Activation::GeluTanh));
        let cfg = FewRows { threads: 512, octs: 2, rows: 8, early, bias, residual, activation };
        let (launch, properties, target) = settings(512);
        let nn = few_rows_nn::FewRowsNn::new(launch, properties, target, b(), b(), b(), b(), b(), sizes(), cfg, dtype);
        let cfg = FewRows { threads: 256, octs: 4, bias: false, residual: false, activation: None, ..cfg };
        let (launch, properties, target) = settings(256);
        let nt = few_rows_nt::FewRowsNt::new(launch, properties, target, b(), b(), b(), sizes(), cfg, dtype);
        let cfg = FewRows { threads: 256, rows: 1, ..cfg };
        let (launch, properties, target) = settings(256);
        let one = few_rows_nn::FewRowsNn::new(launch, properties, target, b(), b(), b(), b(), b(), sizes(), cfg, dtype);
        vec![
            Compiled::new("linear/few-rows-nn/bf16", nn),
            Compiled::new("linear/few-rows-nn/one-bf16", one),
            Compiled::new("linear/few-rows-nt/bf16", nt),
        ]
    }

    #[test]
    fn kernels_compile_without_a_device() {
        offline_kernels().iter().for_each(|kernel| assert!(kernel.ptx.is_some(), "{}", kernel.label));
    }
}
