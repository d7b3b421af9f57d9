//! How the kernel computes one product, and its launch.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::Layout;
use super::arguments::{GemmSizeLaunch, OperandsLaunch, ResultsLaunch, SplitKSizeLaunch};
use super::config::{BOX_ROWS, Epilogue, GemmConfig, Output, PANEL, Sums, TILE_K, TILE_M};
use super::gemm;
use super::split_k::SplitK;
use super::split_k_sum::{SUM_THREADS, SumConfig, SumSizeLaunch, add_slices};
use crate::activation::Activation;
use crate::dropout::Mask;
use crate::gpu::hardware::{is_hopper, multiprocessors};
use crate::gpu::memory::{addressable, aligned, row_pitch};
use crate::gpu::tensor_map::tensor_map;

/// Rows of tiles that are walked together, for reuse in L2.
const GROUP_M: u32 = 16;

/// Whether products of tensors like this one run on the kernel.
pub(super) fn has_kernel(like: &CubeTensor) -> bool {
    matches!(like.dtype, DType::BF16 | DType::F16) && is_hopper(&like.client)
}

/// An epilogue with its tensors, see [`super::epilogue`].
pub(crate) enum EpilogueArguments {
    Store,
    Relu,
    /// By the epilogue warps; only with a plan [`Plan::with_epilogue_warps`].
    Activation {
        activation: Activation,
        /// Where the arguments of the activation go, if they are wanted.
        input: Option<CubeTensor>,
    },
    /// This matrix is added.
    AddResidual(CubeTensor),
}

impl EpilogueArguments {
    /// Splits into what the kernel is compiled for and the auxiliary matrix that it reads or writes.
    fn split(self) -> (Epilogue, Option<CubeTensor>) {
        match self {
            Self::Store => (Epilogue::Store, None),
            Self::Relu => (Epilogue::Relu, None),
            Self::Activation { activation, input } => {
                (Epilogue::Activation { activation, keeps_input: input.is_some() }, input)
            }
            Self::AddResidual(residual) => (Epilogue::AddResidual, Some(addressable(residual))),
        }
    }
}

/// Returns the map through which the load warp reads an operand.
fn operand_map(operand: &CubeTensor, mn_major: bool) -> TensorMapArg<Tiled> {
    if mn_major { tensor_map(operand, TILE_K, PANEL) } else { tensor_map(operand, BOX_ROWS, TILE_K) }
}

/// How the kernel computes one product.
pub(super) struct Plan {
    layout: Layout,
    m: usize,
    n: usize,
    k: usize,
    tile_n: usize,
    blocks: usize,
    split_k: Option<SplitK>,
    /// The product is added to the f32 numbers in the output (`beta = 1`).
    accumulates: bool,
}

impl Plan {
    /// Plans a product of matrices like `like`.
    pub(super) fn new(like: &CubeTensor, layout: Layout, (m, n, k): (usize, usize, usize)) -> Self {
        let multiprocessors = multiprocessors(&like.client) as usize;
        let tiles = |tile_n: usize| m.div_ceil(TILE_M) * n.div_ceil(tile_n);
        let wide_tile = if n <= 128 { 128 } else { 256 };
        let split_k = SplitK::plan(tiles(wide_tile), k.div_ceil(TILE_K), multiprocessors);

        // Wide tiles read less. Narrow ones are for products with few tiles, if each tile gets a multiprocessor to itself.
        let tile_n = if split_k.is_some() || 2 * tiles(wide_tile) > multiprocessors { wide_tile } else { 128 };
        let blocks = match &split_k {
            Some(split_k) => split_k.slices * tiles(tile_n) + split_k.tail_blocks,
            None => tiles(tile_n).min(multiprocessors),
        };
        Self { layout, m, n, k, tile_n, blocks, split_k, accumulates: false }
    }

    /// Adds the product to the f32 numbers in the output, if `accumulates`.
    pub(super) fn accumulating(self, accumulates: bool) -> Self {
        Self { accumulates, ..self }
    }

    /// Plans a product whose activation the epilogue warps compute, if they can: K is not split, and nothing is dropped. Random
    /// bits for a tile take the epilogue warps longer than the next tile takes to multiply; a pass of its own is faster.
    pub(super) fn with_epilogue_warps(
        a: &CubeTensor,
        layout: Layout,
        sizes: (usize, usize, usize),
        mask: &Mask<CubeBackend>,
    ) -> Option<Self> {
        let (m, n, k) = sizes;
        let possible = !mask.is_some() && has_kernel(a) && m * n * k > 0;
        possible.then(|| Self::new(a, layout, sizes)).filter(|plan| plan.split_k.is_none())
    }

    fn k_tiles(&self) -> usize {
        self.k.div_ceil(TILE_K)
    }

    /// Returns what the kernel is compiled for.
    fn config(&self, out: DType, bias: bool, epilogue: Epilogue) -> GemmConfig {
        let output = match &self.split_k {
            Some(_) => Output::Sums(Sums::SplitK),
            None if out == DType::F32 && self.accumulates => Output::Sums(Sums::Accumulate),
            None if out == DType::F32 => Output::Sums(Sums::Write),
            None => Output::Rounded { bias, epilogue },
        };
        let is_rounded = matches!(output, Output::Rounded { .. });
        let is_wide = is_rounded && self.tile_n == 256;

        // Where a tile has few K tiles, all its results lie in shared memory, in place of a stage: the next tile is multiplied
        // while they are stored. Residuals and activations need them there.
        let in_registers = matches!(epilogue, Epilogue::Store | Epilogue::Relu);
        let is_whole_tile_staged = is_wide && (!in_registers || self.k_tiles() <= 16);
        let (stages, panels) = if is_whole_tile_staged { (3, 4) } else { (4, 2) };

        // The tiles that are left for the last wave are halved if there are blocks for that many halves.
        let left = self.m.div_ceil(TILE_M) * self.n.div_ceil(self.tile_n) % self.blocks;
        let half_tiles = is_wide && in_registers && left > 0 && 2 * left <= self.blocks;

        GemmConfig {
            layout: self.layout,
            output,
            tile_n: self.tile_n,
            columns: self.tile_n,
            half_tiles,
            stages,
            panels,
            ragged: self.split_k.is_some() || !self.k_tiles().is_multiple_of(stages),
            group_m: GROUP_M,
        }
    }

    /// Launches the kernel. `out` has the dtype of `a` and `b`, or is in f32.
    pub(super) fn launch(
        self,
        a: CubeTensor,
        b: CubeTensor,
        bias: Option<CubeTensor>,
        epilogue: EpilogueArguments,
        out: CubeTensor,
    ) -> CubeTensor {
        let (a, b, bias) = (addressable(a), addressable(b), bias.map(|bias| aligned(into_contiguous(bias))));
        let (epilogue, auxiliary) = epilogue.split();
        let config = self.config(out.dtype, bias.is_some(), epilogue);
        let dtype = dtype_to_storage_type(a.dtype);
        let client = a.client.clone();

        // A kernel argument needs some tensor; `a` takes the place of those that this kernel does not touch.
        let (map_a, map_b) = (operand_map(&a, config.a_is_mn_major()), operand_map(&b, config.b_is_mn_major()));
        let map_out = tensor_map(if config.writes_sums() { &a } else { &out }, PANEL, PANEL);
        let map_auxiliary = tensor_map(auxiliary.as_ref().unwrap_or(&a), PANEL, PANEL);
        let bias_buffer = bias.as_ref().map_or_else(|| a.handle.clone(), |bias| bias.handle.clone());

        // The partial sums of the slices, or the output itself.
        let pitch = row_pitch(&out);
        let parts = self.split_k.as_ref().map_or(1, SplitK::most_slices);
        let (partial, partial_pairs) = match config.splits_k() {
            true => (client.empty(parts * self.m * pitch * 4), parts * self.m * pitch / 2),
            false => (out.handle.clone(), self.m * pitch * out.dtype.size() / 8),
        };

        let sizes = self.split_k.as_ref().map_or((0, 0, 0), |k| (k.slices, k.slice_len, k.tail_slices));
        // SAFETY: the maps describe the tensors and TMA clips to them; `partial` holds `parts` matrices with rows of
        // `pitch` numbers and stores to it are guarded by rows and columns; a bias is read in groups of four, of which
        // the last may reach past its end but not past its 16-byte aligned buffer's.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            gemm::launch_unchecked(
                &client,
                CubeCount::Static(self.blocks as u32, 1, 1),
                CubeDim::new_1d(config.threads()),
                OperandsLaunch::new(map_a, map_b),
                ResultsLaunch::new(map_out, map_auxiliary),
                BufferArg::from_raw_parts(partial.clone(), partial_pairs),
                BufferArg::from_raw_parts(bias_buffer.clone(), self.n.div_ceil(2)),
                GemmSizeLaunch::new(self.m as u32, self.n as u32, pitch as u32, self.k_tiles() as u32),
                SplitKSizeLaunch::new(sizes.0 as u32, sizes.1 as u32, sizes.2 as u32),
                config,
                dtype,
            );
        }
        if let Some(split_k) = &self.split_k {
            let auxiliary = auxiliary.unwrap_or(a);
            self.add_slices(split_k, partial, (bias_buffer, bias.is_some()), (auxiliary, epilogue), &out);
        }
        out
    }

    /// Launches the sum of the slices of a product whose K is split.
    fn add_slices(
        &self,
        split_k: &SplitK,
        partial: Handle,
        (bias, has_bias): (Handle, bool),
        (residual, epilogue): (CubeTensor, Epilogue),
        out: &CubeTensor,
    ) {
        let config = SumConfig {
            tile_n: self.tile_n,
            group_m: GROUP_M,
            accumulates: self.accumulates,
            bias: has_bias,
            epilogue,
        };

        let row_quads = row_pitch(out) / 4;
        let quads = self.m * row_quads;
        let residual_row_quads = row_pitch(&residual) / 4;
        let size = SumSizeLaunch::new(
            self.m as u32,
            self.n as u32,
            split_k.slices as u32,
            split_k.tail_blocks as u32,
            split_k.tail_slices as u32,
            row_quads as u32,
            residual_row_quads as u32,
        );

        // SAFETY: threads are guarded by rows and columns; `partial` holds a matrix of the size of `out` per slice; see
        // [`Self::launch`] for the bias.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            add_slices::launch_unchecked(
                &out.client,
                CubeCount::Static(quads.div_ceil(SUM_THREADS as usize) as u32, 1, 1),
                CubeDim::new_1d(SUM_THREADS),
                BufferArg::from_raw_parts(partial, split_k.most_slices() * quads),
                BufferArg::from_raw_parts(bias, row_quads),
                BufferArg::from_raw_parts(residual.handle.clone(), residual.meta.shape()[0] * residual_row_quads),
                BufferArg::from_raw_parts(out.handle.clone(), quads),
                size,
                config,
                dtype_to_storage_type(out.dtype),
            );
        }
    }
}
