//! What a kernel is compiled for: tile sizes, stages, and what happens to the results.

use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};

use crate::activation::Activation;
use crate::fp8::Fp8;
use crate::gpu::mma_f32::Arithmetic;
use crate::linear::Layout;

/// Rows of an output tile: 64 per multiply warpgroup.
pub(crate) const TILE_M: usize = 128;
/// Bytes of a row of an operand per stage: one swizzle span.
const LINE_BYTES: usize = 128;
/// Rows of a TMA box of an operand that is stored along K, of which a tile has `rows`.
pub(crate) fn box_rows(rows: usize) -> usize {
    if rows.is_multiple_of(128) { 128 } else { 96 }
}
/// Edge of the square panels through which results leave shared memory.
pub(crate) const PANEL: usize = 64;
/// Warpgroups that multiply.
pub(crate) const WARPGROUPS: u32 = 2;
/// Vectors of eight results in a panel.
pub(crate) const PANEL_OCTS: usize = PANEL * PANEL / 8;
/// Rows of tiles that are walked together, for reuse in L2.
pub(crate) const GROUP_M: u32 = 16;
/// Stages of a block on Hopper whose results are not in shared memory
/// (`benches/results/2026-11-21-h200-561509c.md`).
pub(crate) const HOPPER_STAGES: usize = 4;
/// Stages of a block on Ampere.
const AMPERE_STAGES: usize = 3;
/// Shared memory of a block on Ampere with wide tiles. With narrow ones it is 96 KiB, which every GPU since Ampere has.
const WIDE_BYTES: usize = AMPERE_STAGES * (TILE_M + 256) * LINE_BYTES;
/// Threads of the epilogue warps: three warps.
pub(crate) const EPILOGUE_THREADS: u32 = 96;

/// What happens to the results of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Output {
    /// They leave through shared memory in the dtype of the operands, after a bias and an epilogue.
    Rounded { bias: bool, epilogue: Epilogue },
    /// They leave the registers as f32.
    Sums(Sums),
}

/// What is applied to results before they are stored. A product whose K is split applies it when it adds up its partial sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Epilogue {
    /// Nothing.
    Store,
    /// In the registers: zero where negative.
    Relu,
    /// In the registers: another matrix is added. The results of a whole tile lie in shared memory at once, because the
    /// residual of the next tile is loaded where the results of this one were.
    AddResidual,
    /// By the epilogue warps, in shared memory, while the next tile is multiplied.
    Activation {
        activation: Activation,
        /// The argument of the activation is stored as well, for backward.
        keeps_input: bool,
    },
}

impl Epilogue {
    pub(crate) fn is_relu(self) -> bool {
        self == Self::Relu
    }

    pub(crate) fn adds_residual(self) -> bool {
        self == Self::AddResidual
    }
}

/// What the kernel does with f32 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sums {
    /// Writes them to the output.
    Write,
    /// Adds them to the output (`beta = 1`).
    Accumulate,
    /// Writes the partial sums of each split-K slice to a matrix of its own.
    SplitK,
}

/// Many products in one launch. Their operands lie one behind the other, and so do their results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    /// Rows of the result of one product, a multiple of [`TILE_M`].
    pub(crate) rows: usize,
    /// Rows of `b` in memory that belong to one product.
    pub(crate) b_rows: usize,
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemmConfig {
    pub(crate) layout: Layout,
    /// Many products, in 16 bits on Hopper; `None`: one.
    pub(crate) batch: Option<Batch>,
    pub(crate) output: Output,
    /// Columns of an output tile: 128 or 256; also 192 in 16 bits on Hopper, without epilogue warps.
    pub(crate) tile_n: usize,
    /// Columns of the tiles of this wave: `tile_n`, or half of it in the last wave of [`Self::half_tiles`].
    pub(crate) columns: usize,
    /// The last wave, which has too few tiles for all blocks, computes half tiles.
    pub(crate) half_tiles: bool,
    /// Stages of the load pipeline.
    pub(crate) stages: usize,
    /// Panels of a warpgroup's results that fit into shared memory.
    pub(crate) panels: usize,
    /// The number of K tiles is not always a multiple of the stages.
    pub(crate) ragged: bool,
    /// Rows of tiles that are walked together, for reuse in L2.
    pub(crate) group_m: u32,
    pub(crate) arithmetic: Arithmetic,
}

/// Returns the columns of the widest tiles on Ampere, of a device whose blocks have at most `shared_memory` bytes. They read each
/// operand less often than narrow ones. With the accuracy of f32, products take three times as long as they wait for.
pub(crate) fn widest_ampere_tile(shared_memory: usize, arithmetic: Arithmetic) -> usize {
    if shared_memory >= WIDE_BYTES && arithmetic != Arithmetic::F32 { 256 } else { 128 }
}

impl GemmConfig {
    /// Returns what the kernel for Ampere is compiled for.
    pub(crate) fn ampere(layout: Layout, output: Output, tile_n: usize, group_m: u32, arithmetic: Arithmetic) -> Self {
        Self {
            layout,
            batch: None,
            output,
            tile_n,
            columns: tile_n,
            half_tiles: false,
            stages: AMPERE_STAGES,
            panels: 0,
            ragged: true,
            group_m,
            arithmetic,
        }
    }

    /// Returns what the kernel of TF32 products on Hopper is compiled for.
    pub(crate) fn tf32(layout: Layout, output: Output, tile_n: usize, ragged: bool) -> Self {
        let arithmetic = Arithmetic::Tf32;
        Self { stages: HOPPER_STAGES, ragged, ..Self::ampere(layout, output, tile_n, GROUP_M, arithmetic) }
    }

    /// K elements per stage.
    pub(crate) fn tile_k(&self) -> usize {
        self.arithmetic.line()
    }

    /// Elements of 16 bytes.
    pub(crate) fn vector(&self) -> usize {
        self.arithmetic.vector()
    }

    /// Columns of a warp's results on Ampere. With the accuracy of f32, a product takes the registers of half of them.
    pub(crate) fn warp_columns(&self) -> usize {
        if self.arithmetic == Arithmetic::F32 { 32 } else { 64 }
    }

    pub(crate) fn is_f32(&self) -> bool {
        self.arithmetic.is_f32()
    }

    pub(crate) fn is_fp8(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Eight(_))
    }

    /// The formats of operands in FP8.
    pub(crate) fn formats(&self) -> [Fp8; 2] {
        match self.arithmetic {
            Arithmetic::Eight(formats) => formats,
            other => unreachable!("{other:?} is not FP8"),
        }
    }

    fn operand(rows: usize, k: usize, mn_major: bool) -> WgmmaTileLayout {
        let major = if mn_major { Major::MN } else { Major::K };
        WgmmaTileLayout { major, swizzle: Swizzle::B128, rows, k }
    }

    /// Whether `a` is stored `[K, M]`.
    pub(crate) fn a_is_mn_major(&self) -> bool {
        self.layout == Layout::TN
    }

    /// Whether `b` is stored `[K, N]`.
    pub(crate) fn b_is_mn_major(&self) -> bool {
        self.layout != Layout::NT
    }

    pub(crate) fn a_tile(&self) -> WgmmaTileLayout {
        Self::operand(TILE_M, self.tile_k(), self.a_is_mn_major())
    }

    pub(crate) fn b_tile(&self) -> WgmmaTileLayout {
        Self::operand(self.tile_n, self.tile_k(), self.b_is_mn_major())
    }

    /// A panel of results in shared memory, swizzled as the TMA store reads it.
    pub(crate) fn panel(&self) -> WgmmaTileLayout {
        Self::operand(PANEL, PANEL, false)
    }

    /// Bytes that are loaded per stage.
    pub(crate) fn stage_bytes(&self) -> u32 {
        ((TILE_M + self.columns) * LINE_BYTES) as u32
    }

    /// Waves that differ in their code: whole tiles, then half tiles.
    pub(crate) fn waves(&self) -> usize {
        1 + usize::from(self.half_tiles)
    }

    /// What the code of a wave is compiled for.
    pub(crate) fn wave(self, nth: usize) -> Self {
        Self { columns: self.tile_n >> nth, ..self }
    }

    pub(crate) fn is_half(&self) -> bool {
        self.columns < self.tile_n
    }

    /// Threads of a block: the multiply warpgroups, the load warp, and a store warp or the epilogue warps unless sums leave
    /// the registers directly.
    pub(crate) fn threads(&self) -> u32 {
        let storing = match self.epilogue() {
            _ if self.stores_registers() => 0,
            Epilogue::Activation { .. } => EPILOGUE_THREADS,
            _ => 32,
        };
        WARPGROUPS * 128 + 32 + storing
    }

    pub(crate) fn writes_sums(&self) -> bool {
        matches!(self.output, Output::Sums(_))
    }

    /// Whether results go from the registers to the output, not through shared memory.
    pub(crate) fn stores_registers(&self) -> bool {
        self.writes_sums() || self.is_f32()
    }

    pub(crate) fn splits_k(&self) -> bool {
        self.output == Output::Sums(Sums::SplitK)
    }

    pub(crate) fn accumulates(&self) -> bool {
        self.output == Output::Sums(Sums::Accumulate)
    }

    pub(crate) fn has_bias(&self) -> bool {
        matches!(self.output, Output::Rounded { bias: true, .. })
    }

    pub(crate) fn epilogue(&self) -> Epilogue {
        match self.output {
            Output::Rounded { epilogue, .. } => epilogue,
            Output::Sums(_) => Epilogue::Store,
        }
    }

    pub(crate) fn is_relu(&self) -> bool {
        self.epilogue().is_relu()
    }

    pub(crate) fn adds_residual(&self) -> bool {
        self.epilogue().adds_residual()
    }

    pub(crate) fn has_epilogue_warps(&self) -> bool {
        matches!(self.epilogue(), Epilogue::Activation { .. })
    }

    /// The activation of the epilogue warps.
    pub(crate) fn activation(&self) -> Activation {
        match self.epilogue() {
            Epilogue::Activation { activation, .. } => activation,
            other => unreachable!("{other:?} has no epilogue warps"),
        }
    }

    pub(crate) fn keeps_input(&self) -> bool {
        matches!(self.epilogue(), Epilogue::Activation { keeps_input: true, .. })
    }

    /// Panels across a tile.
    pub(crate) fn panels_across(&self) -> usize {
        self.columns / PANEL
    }

    /// Panels per group: a multiply warpgroup passes panels on in groups, because passing them on takes it some 200 cycles. The three
    /// panels of a tile of 192 columns are one group.
    pub(crate) fn panels_per_group(&self) -> usize {
        if self.tile_n.is_multiple_of(2 * PANEL) { 2 } else { 3 }
    }

    /// Panel groups that fit into shared memory: the stages of the result pipeline.
    pub(crate) fn panel_groups(&self) -> usize {
        if self.stores_registers() { 1 } else { self.panels / self.panels_per_group() }
    }

    /// Vectors of a panel group, of both warpgroups.
    pub(crate) fn group_octs(&self) -> usize {
        self.panels_per_group() * WARPGROUPS as usize * PANEL_OCTS
    }
}
