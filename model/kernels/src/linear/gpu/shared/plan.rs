//! How the kernel computes one product, and with which tensors.

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::arguments::{GemmSizeLaunch, SplitKSizeLaunch};
use super::config::{Batch, Epilogue, GROUP_M, GemmConfig, HOPPER_STAGES, Output, Sums, TILE_M, widest_ampere_tile};
use super::split_k::SplitK;
use crate::dropout::Mask;
use crate::fp8::adds_up;
use crate::gpu::hardware::{kernel_set, multiprocessors, shared_memory};
use crate::gpu::memory::row_pitch;
use crate::gpu::mma_f32::Arithmetic;
use crate::kernel_set::KernelSet;
use crate::linear::{Layout, ProductKind};

/// Whether products of tensors like this one run on the kernel.
pub(crate) fn has_kernel(like: &CubeTensor) -> bool {
    matches!(like.dtype, DType::BF16 | DType::F16 | DType::F32) && kernel_set(&like.client).is_some()
}

/// The tensors of one product, as a kernel takes them.
pub(crate) struct Call {
    pub(crate) a: CubeTensor,
    pub(crate) b: CubeTensor,
    pub(crate) out: CubeTensor,
    pub(crate) bias: Handle,
    pub(crate) has_bias: bool,
    /// The scales of operands in FP8.
    pub(crate) scales: Option<[CubeTensor; 2]>,
    /// The residual, or where the arguments of an activation are kept.
    pub(crate) auxiliary: CubeTensor,
    /// Where f32 sums go, and the number of pairs of them.
    pub(crate) sums: (Handle, usize),
}

impl Call {
    /// Returns the bias of `n` columns, in pairs.
    #[expect(unsafe_code, reason = "a buffer argument from a handle")]
    pub(crate) fn bias(&self, n: usize) -> BufferArg {
        // SAFETY: the last pair may reach past the end of the bias but not past its 16-byte aligned buffer's.
        unsafe { BufferArg::from_raw_parts(self.bias.clone(), n.div_ceil(2)) }
    }

    /// Returns the f32 sums, in vectors of four.
    #[expect(unsafe_code, reason = "a buffer argument from a handle")]
    pub(crate) fn sums_in_fours(&self) -> BufferArg {
        // SAFETY: rows of sums begin at multiples of 16 bytes, so pairs make whole vectors.
        unsafe { BufferArg::from_raw_parts(self.sums.0.clone(), self.sums.1 / 2) }
    }

    /// Returns the f32 sums, in pairs.
    #[expect(unsafe_code, reason = "a buffer argument from a handle")]
    pub(crate) fn sums(&self) -> BufferArg {
        // SAFETY: the buffer has as many pairs.
        unsafe { BufferArg::from_raw_parts(self.sums.0.clone(), self.sums.1) }
    }
}

/// How the kernel computes one product.
pub(crate) struct Plan {
    pub(crate) set: KernelSet,
    kind: ProductKind,
    batch: Option<Batch>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) tile_n: usize,
    blocks: usize,
    multiprocessors: usize,
    pub(crate) split_k: Option<SplitK>,
    /// The product is added to the f32 numbers in the output (`beta = 1`).
    pub(crate) accumulates: bool,
}

/// Whether a product of M x N x K in TF32 is faster on the kernel for Hopper, with the transposes that its layout needs, than on the one
/// for Ampere. The constants: `benches/results/2026-11-25-h100-f32.md`.
pub(crate) fn tf32_pays(layout: Layout, (m, n, k): (usize, usize, usize)) -> bool {
    /// Seconds that a multiplication and an addition take less (`benches/results/2026-11-25-h100-f32.md`).
    const SAVED: f64 = 6e-15;
    /// Seconds of the transpose of an element, which is read and written, and of a launch.
    const PER_ELEMENT: f64 = 3.2e-12;
    const PER_LAUNCH: f64 = 4e-6;

    let moved = match layout {
        Layout::NT => [0, 0],
        Layout::NN => [0, k * n],
        Layout::TN => [k * m, k * n],
    };
    let launches = moved.iter().filter(|elements| **elements > 0).count();
    let cost = moved.iter().sum::<usize>() as f64 * PER_ELEMENT + launches as f64 * PER_LAUNCH;
    cost < (m * n) as f64 * k as f64 * SAVED
}

/// Whether tiles of 192 columns leave at least a tenth less empty behind the `n` columns of a matrix than tiles of 256.
fn fits_192(n: usize) -> bool {
    10 * n.next_multiple_of(192) <= 9 * n.next_multiple_of(256)
}

/// Whether `x` can be rounded to FP8: bf16, with rows of whole vectors.
fn can_round(x: &CubeTensor) -> bool {
    x.dtype == DType::BF16 && x.meta.shape()[1].is_multiple_of(8)
}

impl Plan {
    /// Plans a product of matrices like `like`.
    pub(crate) fn new(like: &CubeTensor, kind: ProductKind, (m, n, k): (usize, usize, usize)) -> Self {
        let set = kernel_set(&like.client).expect("a device with a kernel");
        let arithmetic = match kind.fp8((m, n, k)) {
            Some(formats) if set == KernelSet::Hopper && can_round(like) => Arithmetic::Eight(formats),
            _ => Arithmetic::new(like.dtype, kind.f32_products),
        };
        let on_hopper = match arithmetic {
            Arithmetic::Sixteen | Arithmetic::Eight(_) => true,
            Arithmetic::Tf32 => !kind.independent_rows && tf32_pays(kind.layout, (m, n, k)),
            Arithmetic::F32 => false,
        };
        let set = if on_hopper { set } else { KernelSet::Ampere };
        let widest = match set {
            KernelSet::Hopper => 256,
            KernelSet::Ampere => widest_ampere_tile(shared_memory(&like.client), arithmetic),
        };
        let multiprocessors = multiprocessors(&like.client) as usize;
        let tiles = |tile_n: usize| m.div_ceil(TILE_M) * n.div_ceil(tile_n);
        let wide_tile = match arithmetic {
            _ if n <= 128 => 128,
            Arithmetic::Eight(formats) if adds_up(formats) => 128,
            Arithmetic::Sixteen if set == KernelSet::Hopper && fits_192(n) => 192,
            _ => widest,
        };
        let split_k = match arithmetic {
            Arithmetic::Eight(_) => None,
            _ if kind.independent_rows => None,
            _ => SplitK::plan(tiles(wide_tile), k.div_ceil(arithmetic.line()), multiprocessors),
        };

        // Wide tiles read less. Narrow ones are for products with few tiles, if each tile gets a multiprocessor to itself.
        let tile_n = if split_k.is_some() || 2 * tiles(wide_tile) > multiprocessors { wide_tile } else { 128 };
        let blocks = match &split_k {
            Some(split_k) => split_k.slices * tiles(tile_n) + split_k.tail_blocks,
            None => tiles(tile_n).min(multiprocessors),
        };
        let (batch, accumulates) = (None, false);
        Self { set, kind, batch, arithmetic, m, n, k, tile_n, blocks, multiprocessors, split_k, accumulates }
    }

    /// Plans `products` products of M x N x K in one launch, if the kernel for Hopper computes them. The bits of each are the same
    /// however many there are: K is never split.
    pub(crate) fn batched(
        like: &CubeTensor,
        kind: ProductKind,
        products: usize,
        (m, n, k): (usize, usize, usize),
    ) -> Option<Self> {
        let b_rows = match kind.layout {
            // Beyond K, zeros of `a` meet numbers of the next product's `b`, which may not be finite.
            Layout::NN if k.is_multiple_of(Arithmetic::Sixteen.line()) => k,
            Layout::NT => n,
            Layout::NN | Layout::TN => return None,
        };
        let in_sixteen = matches!(like.dtype, DType::BF16 | DType::F16);
        let on_hopper = in_sixteen && kernel_set(&like.client) == Some(KernelSet::Hopper);
        // Results in rows of whole vectors have no gaps between them.
        let fits = products * m * n * k > 0 && m.is_multiple_of(TILE_M) && n.is_multiple_of(8);
        if !on_hopper || !fits {
            return None;
        }

        let plan = Self::new(like, kind, (products * m, n, k));
        let tiles = plan.m.div_ceil(TILE_M) * n.div_ceil(plan.tile_n);
        let blocks = tiles.min(plan.multiprocessors);
        Some(Self { batch: Some(Batch { rows: m, b_rows }), split_k: None, blocks, ..plan })
    }

    /// Adds the product to the f32 numbers in the output, if `accumulates`.
    pub(crate) fn accumulating(self, accumulates: bool) -> Self {
        Self { accumulates, ..self }
    }

    /// Plans a product whose activation the epilogue warps compute, if they can: K is not split, and nothing is dropped. Random
    /// bits for a tile take the epilogue warps longer than the next tile takes to multiply; a pass of its own is faster.
    pub(crate) fn with_epilogue_warps(
        a: &CubeTensor,
        kind: ProductKind,
        sizes: (usize, usize, usize),
        mask: &Mask<CubeBackend>,
    ) -> Option<Self> {
        let (m, n, k) = sizes;
        let possible = !mask.is_some() && has_kernel(a) && m * n * k > 0;
        possible.then(|| Self::new(a, kind, sizes).without_192()).filter(|plan| plan.split_k.is_none())
    }

    /// Takes wider tiles instead of 192 columns: the epilogue warps expect an even number of panels.
    fn without_192(self) -> Self {
        match self.tile_n {
            192 => {
                let tiles = self.m.div_ceil(TILE_M) * self.n.div_ceil(256);
                Self { tile_n: 256, blocks: tiles.min(self.multiprocessors), ..self }
            }
            _ => self,
        }
    }

    /// Returns the product.
    pub(crate) fn kind(&self) -> ProductKind {
        self.kind
    }

    fn k_tiles(&self) -> usize {
        self.k.div_ceil(self.arithmetic.line() * self.arithmetic.per_element())
    }

    /// Returns what the kernel is compiled for.
    pub(crate) fn config(&self, out: DType, bias: bool, epilogue: Epilogue) -> GemmConfig {
        let output = match &self.split_k {
            Some(_) => Output::Sums(Sums::SplitK),
            // What the output holds is a residual.
            None if self.arithmetic.is_f32() && self.accumulates => {
                Output::Rounded { bias, epilogue: Epilogue::AddResidual }
            }
            None if self.arithmetic.is_f32() => Output::Rounded { bias, epilogue },
            None if out == DType::F32 && self.accumulates => Output::Sums(Sums::Accumulate),
            None if out == DType::F32 => Output::Sums(Sums::Write),
            None => Output::Rounded { bias, epilogue },
        };
        match self.set {
            KernelSet::Hopper if self.arithmetic.is_f32() => {
                let ragged = self.split_k.is_some() || !self.k_tiles().is_multiple_of(HOPPER_STAGES);
                GemmConfig::tf32(self.kind.layout, output, self.tile_n, ragged)
            }
            KernelSet::Hopper => self.hopper_config(output),
            KernelSet::Ampere => GemmConfig::ampere(self.kind.layout, output, self.tile_n, GROUP_M, self.arithmetic),
        }
    }

    fn hopper_config(&self, output: Output) -> GemmConfig {
        let is_wide = matches!(output, Output::Rounded { .. }) && self.tile_n == 256;

        // Where a tile has few K tiles, all its results lie in shared memory, in place of a stage: the next tile is multiplied
        // while they are stored. Residuals and activations need them there.
        let in_registers = matches!(output, Output::Rounded { epilogue: Epilogue::Store | Epilogue::Relu, .. });
        let is_whole_tile_staged = is_wide && (!in_registers || self.k_tiles() <= 16);
        let (stages, panels) = match self.tile_n {
            192 => (4, 3),
            _ if is_whole_tile_staged => (3, 4),
            _ => (4, 2),
        };

        // The tiles that are left for the last wave are halved if there are blocks for that many halves.
        let left = self.m.div_ceil(TILE_M) * self.n.div_ceil(self.tile_n) % self.blocks;
        let half_tiles = is_wide && in_registers && left > 0 && 2 * left <= self.blocks;

        GemmConfig {
            layout: self.kind.layout,
            batch: self.batch,
            output,
            tile_n: self.tile_n,
            columns: self.tile_n,
            half_tiles,
            stages,
            panels,
            ragged: self.split_k.is_some() || !self.k_tiles().is_multiple_of(stages),
            group_m: GROUP_M,
            arithmetic: self.arithmetic,
        }
    }

    /// Returns the blocks of the kernel.
    pub(crate) fn blocks(&self) -> CubeCount {
        CubeCount::Static(self.blocks as u32, 1, 1)
    }

    /// Returns the sizes of the product, for a kernel that writes to `out`.
    pub(crate) fn size(&self, out: &CubeTensor) -> GemmSizeLaunch {
        GemmSizeLaunch::new(self.m as u32, self.n as u32, row_pitch(out) as u32, self.k_tiles() as u32)
    }

    /// Returns how K is split, for a kernel.
    pub(crate) fn split_k_size(&self) -> SplitKSizeLaunch {
        let sizes = self.split_k.as_ref().map_or((0, 0, 0), |k| (k.slices, k.slice_len, k.tail_slices));
        SplitKSizeLaunch::new(sizes.0 as u32, sizes.1 as u32, sizes.2 as u32)
    }
}
