//! The 16-bit GEMM: TMA fills a ring of swizzled shared-memory stages, two warpgroups multiply them with wgmma, and the
//! result leaves through shared memory and TMA again.
//!
//! One warp issues loads, two warpgroups of four warps multiply 64 rows each, one warp stores, or three finish results and store
//! them. The grid is persistent: each cube walks over tiles, so that what is done to the results of one tile, and their stores,
//! hide behind the next tile's products. Tiles that are left for a last round in which most cubes would have none are halved.
//! Where the output has fewer tiles than the device has multiprocessors (weight gradients), as many cubes as it has share
//! the sums over K evenly, see [`Run`].
//! Each run writes f32 partial sums; [`reduce_runs`] adds them in a fixed order, so that the result does not depend on timing.
//!
//! Rows, columns and K beyond the matrices are read as zeros and not written: TMA clips both ways.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::{Accumulator, Major, MatrixDescriptor, Swizzle, WgmmaTileLayout};
use cubecl_ir::types::MatrixIdent;

use crate::activation::Activation;
use crate::activation::gpu::activated;
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::add_up;

type Pair<E> = Vector<E, Const<2>>;
type Quad<E> = Vector<E, Const<4>>;
type Oct<E> = Vector<E, Const<8>>;

/// Rows of an output tile: 64 for each of two warpgroups.
pub(super) const TILE_M: usize = 128;
/// K elements of a stage: one 128-byte swizzle span of 16-bit numbers.
pub(super) const TILE_K: usize = 64;
/// Rows of a box of an operand whose rows run along K.
pub(super) const BOX_ROWS: usize = 128;
/// Edge of the square panels in which results are stored.
pub(super) const PANEL: usize = 64;
const WARPGROUPS: u32 = 2;
const PANEL_OCTS: usize = PANEL * PANEL / 8;
/// Panels that a multiplying warpgroup hands on at a time, which costs it some two hundred cycles.
const HANDED: usize = 2;
/// Cubes of [`reduce_runs`] on a multiprocessor at a time: units that wait for memory are many.
const SUM_CUBES: usize = 6;
/// Partial sums that a unit of [`reduce_runs`] has under way at a time.
const PARTS_AT_ONCE: u32 = 3;
/// Units that finish results: three warps.
const FINISHERS: u32 = 96;
/// Vectors that a finishing unit has under way at a time.
const OCTS_AT_ONCE: usize = 5;

/// What is done to results on their way out, beside the products of the next tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Finish {
    pub(super) activation: Activation,
    /// The argument of the activation is stored as well.
    pub(super) kept: bool,
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GemmConfig {
    /// Columns of an output tile: 128 or 256.
    pub(super) tile_n: usize,
    /// Whether the tiles of the last round, which are too few for all cubes, are halved: columns of two cubes each.
    pub(super) halves: bool,
    /// Columns that are multiplied at a time, those of a tile or of half of one: a matter of the round, see [`Self::round`].
    pub(super) columns: usize,
    /// Stages of the ring.
    pub(super) stages: usize,
    /// Panels of a warpgroup's results that lie in shared memory at a time.
    pub(super) panels: usize,
    /// `a` is stored `[K, M]`.
    pub(super) a_mn: bool,
    /// `b` is stored `[K, N]`.
    pub(super) b_mn: bool,
    /// Some run of K tiles is no whole number of turns of the ring.
    pub(super) ragged: bool,
    /// Write f32 sums instead of 16-bit results.
    pub(super) wide: bool,
    /// Share fewer tiles than cubes, see [`Run`]; `wide` then.
    pub(super) shared: bool,
    /// Add to the f32 numbers that are there.
    pub(super) onto: bool,
    /// Add a bias to the results.
    pub(super) bias: bool,
    /// Zero negative results.
    pub(super) relu: bool,
    /// Not where sums are written in f32.
    pub(super) finish: Option<Finish>,
    /// Add another matrix to the results. Nothing else is done to them but a bias, and a tile's lie in shared memory all at
    /// once: what is added to the next tile is loaded where those of this one were.
    pub(super) residual: bool,
    /// Rows of tiles that are walked together, for reuse in L2.
    pub(super) group_m: u32,
}

impl GemmConfig {
    fn operand(rows: usize, mn: bool) -> WgmmaTileLayout {
        let major = if mn { Major::MN } else { Major::K };
        WgmmaTileLayout { major, swizzle: Swizzle::B128, rows, k: TILE_K }
    }

    fn a_layout(&self) -> WgmmaTileLayout {
        Self::operand(TILE_M, self.a_mn)
    }

    fn b_layout(&self) -> WgmmaTileLayout {
        Self::operand(self.tile_n, self.b_mn)
    }

    /// An output panel in shared memory, swizzled as the TMA store reads it.
    fn panel_layout(&self) -> WgmmaTileLayout {
        Self::operand(PANEL, false)
    }

    fn stage_bytes(&self) -> u32 {
        ((TILE_M + self.columns) * TILE_K * 2) as u32
    }

    /// How many sorts of work follow each other: whole tiles, and halves.
    fn rounds(&self) -> usize {
        1 + usize::from(self.halves)
    }

    /// What the code of a round is compiled for.
    fn round(self, nth: usize) -> Self {
        Self { columns: self.tile_n >> nth, ..self }
    }

    fn is_half(&self) -> bool {
        self.columns < self.tile_n
    }

    /// The multiplying warpgroups, the loading warp, and the storing warp or the finishing ones unless sums are written in f32.
    pub(super) fn units(&self) -> u32 {
        let storing = match self.finish {
            _ if self.wide => 0,
            Some(_) => FINISHERS,
            None => 32,
        };
        WARPGROUPS * 128 + 32 + storing
    }

    fn keeps(&self) -> bool {
        self.finish.is_some_and(|finish| finish.kept)
    }

    /// Vectors of the panels that are handed on at a time, of both warpgroups.
    fn handed_octs(&self) -> usize {
        HANDED * WARPGROUPS as usize * PANEL_OCTS
    }

    /// Panels in a tile's width.
    fn panels_across(&self) -> usize {
        self.columns / PANEL
    }
}

/// K tiles of an output tile that a cube multiplies on end.
///
/// Where tiles are shared, K is cut into `splits` of `per_split` K tiles and a tail. The first cubes take one split of one
/// tile each. The others, the helpers, take the tails in rounds, a tile each, and cut what is left for the last round into
/// `pieces`. So cubes that run at the same time read the same rows of K, and operands that do not fit into L2 are read from
/// memory once (Stream-K, Osama et al. 2023, balances as well but starts each cube at rows of its own).
#[derive(CubeType)]
struct Run {
    /// Where in the output its tile begins.
    row0: u32,
    col0: u32,
    from: u32,
    to: u32,
    /// Which of the tile's partial sums it makes.
    part: u32,
}

/// What a cube has before it: tiles, or halves of those from `whole` on, or where tiles are shared, runs.
#[derive(CubeType)]
struct Share {
    at: u32,
    end: u32,
    /// Tiles that are not halved.
    whole: u32,
    grid: u32,
    tiles_m: u32,
    tiles_n: u32,
    k_tiles: u32,
    splits: u32,
    per_split: u32,
    pieces: u32,
}

#[cube]
fn share(
    tiles_m: u32,
    tiles_n: u32,
    k_tiles: u32,
    splits: u32,
    per_split: u32,
    pieces: u32,
    #[comptime] cfg: GemmConfig,
) -> Share {
    let tiles = tiles_m * tiles_n;
    let grid = CUBE_COUNT as u32;
    let mut at = CUBE_POS as u32;
    let mut whole = tiles;
    if comptime![cfg.halves] {
        whole -= tiles % grid;
    }
    let mut end = whole;
    if comptime![cfg.shared] {
        at = 0u32;
        end = 1u32;
        let first = splits * tiles;
        if CUBE_POS as u32 >= first {
            let helpers = grid - first;
            end = tiles / helpers + u32::cast_from((CUBE_POS as u32 - first) < tiles % helpers * pieces);
        }
    }
    Share { at, end, whole, grid, tiles_m, tiles_n, k_tiles, splits, per_split, pieces }
}

/// Goes on to the round after that of `cfg`, if there is one.
#[cube]
fn next_round(share: &mut Share, #[comptime] cfg: GemmConfig) {
    if comptime![cfg.halves && !cfg.is_half()] {
        share.at = CUBE_POS as u32;
        share.end = 2 * (share.tiles_m * share.tiles_n - share.whole);
    }
}

/// The run at `share.at`, which moves on to the next.
#[cube]
fn take_run(share: &mut Share, #[comptime] cfg: GemmConfig) -> Run {
    let mut tile = share.at;
    let mut from = 0u32.runtime();
    let mut to = share.k_tiles;
    let mut part = 0u32.runtime();
    if comptime![cfg.shared] {
        let tiles = share.tiles_m * share.tiles_n;
        let cube = CUBE_POS as u32;
        let first = share.splits * tiles;
        let mut most = share.per_split;
        tile = cube % tiles;
        part = cube / tiles;
        from = part * share.per_split;
        if cube >= first {
            let helper = cube - first;
            let helpers = share.grid - first;
            let left = tiles % helpers;
            tile = share.at * helpers + helper;
            from = share.splits * share.per_split;
            part = share.splits;
            most = share.k_tiles - from;
            if tile >= tiles - left {
                let piece = helper / left;
                most = (most + share.pieces - 1) / share.pieces;
                tile = tiles - left + helper % left;
                from += piece * most;
                part += piece;
            }
        }
        to = min(share.k_tiles, from + most);
        share.at += 1;
    } else {
        share.at += share.grid;
    }
    if comptime![cfg.is_half()] {
        let half = tile;
        let (row0, col0) = tile_origin(share.whole + half / 2, share, cfg);
        Run { row0, col0: col0 + half % 2 * comptime![cfg.columns as u32], from, to, part }
    } else {
        let (row0, col0) = tile_origin(tile, share, cfg);
        Run { row0, col0, from, to, part }
    }
}

/// Where tile `tile` begins in the output.
#[cube]
fn tile_origin(tile: u32, share: &mut Share, #[comptime] cfg: GemmConfig) -> (u32, u32) {
    let (tm, tn) = tile_coords(tile, share.tiles_m, share.tiles_n, cfg.group_m);
    (tm * comptime![TILE_M as u32], tn * comptime![cfg.tile_n as u32])
}

/// The unit's position in its warpgroup, through a shuffle: LLVM hoists nothing computed from it out of a loop, which
/// would spill the addresses of an epilogue across the main loop.
#[cube]
fn unit_in_warpgroup() -> u32 {
    plane_shuffle(UNIT_POS, UNIT_POS_PLANE) % 128
}

/// Tile `t` of the output, in groups of `group_m` rows of tiles walked column by column.
#[cube]
fn tile_coords(t: u32, tiles_m: u32, tiles_n: u32, #[comptime] group_m: u32) -> (u32, u32) {
    let per_group = tiles_n * group_m;
    let group = t / per_group;
    let first = group * group_m;
    let left = tiles_m - first;
    let r = t - group * per_group;
    // A division by a constant is cheap. The multiplying warps wait for this between tiles.
    let mut row = r % group_m;
    let mut column = r / group_m;
    if left < group_m {
        row = r % left;
        column = r / left;
    }
    (first + row, column)
}

/// One operand tile of `rows` x TILE_K at (`row`, `k`): one box per BOX_ROWS rows from a `[rows, K]` map, or per panel of 64
/// rows from a `[K, rows]` map.
#[cube]
fn load_tile<E: Float>(
    map: &TensorMap<E, Tiled>,
    bar: &Barrier,
    smem: &mut [E],
    row: u32,
    k: u32,
    #[comptime] rows: usize,
    #[comptime] mn: bool,
) {
    if comptime![mn] {
        #[unroll]
        for p in 0..comptime![rows / PANEL] {
            let start = p * comptime![PANEL * TILE_K];
            bar.tma_load_2d(
                map,
                &mut smem[start..start + comptime![PANEL * TILE_K]],
                k as i32,
                (row + comptime![(p * PANEL) as u32]) as i32,
            );
        }
    } else {
        #[unroll]
        for b in 0..comptime![rows / BOX_ROWS] {
            let start = b * comptime![BOX_ROWS * TILE_K];
            bar.tma_load_2d(
                map,
                &mut smem[start..start + comptime![BOX_ROWS * TILE_K]],
                (row + comptime![(b * BOX_ROWS) as u32]) as i32,
                k as i32,
            );
        }
    }
}

/// The positive part.
#[cube]
fn positive(x: f32) -> f32 {
    select(x > 0.0f32, x, 0.0f32)
}

/// Results `2 i` and `2 i + 1` of the unit, which lie side by side.
#[cube]
fn pair(acc: &Accumulator<f32>, #[comptime] i: usize) -> Pair<f32> {
    let mut v = Pair::<f32>::empty();
    v.insert(0usize, acc.get(comptime![2 * i]));
    v.insert(1usize, acc.get(comptime![2 * i + 1]));
    v
}

/// The bias of the columns from `col0` on, dealt out to the plane: a unit holds the pairs at its lane of every panel. Read
/// before a tile is multiplied, it is there when the tile is done.
#[cube]
fn deal_bias<E: Float>(bias: &[Pair<E>], col0: u32, n: u32, #[comptime] cfg: GemmConfig) -> Array<Pair<E>> {
    let panels = comptime![cfg.panels_across()];
    let mut dealt = Array::<Pair<E>>::new(panels);
    #[unroll]
    for q in 0..panels {
        let col = col0 + comptime![(q * PANEL) as u32] + 2 * UNIT_POS_PLANE;
        // Columns beyond the matrix are not stored; they read the first bias.
        dealt[q] = bias[(select(col < n, col, 0u32) / 2) as usize];
    }
    dealt
}

/// The two numbers that the unit adds to its results in columns `8 group` of a panel, from the lane that holds them.
#[cube]
fn dealt_pair<E: Float>(dealt: Pair<E>, #[comptime] group: usize) -> Pair<f32> {
    let bits = plane_shuffle(u32::reinterpret(dealt), comptime![4 * group as u32] + UNIT_POS_PLANE % 4);
    Pair::cast_from(Pair::<E>::reinterpret(bits))
}

/// A ring's full and empty barriers. A `Shared<[Barrier]>` would not lower: hence sequences, unrolled over slots.
#[derive(CubeType)]
struct Ring {
    full: Sequence<Shared<Barrier>>,
    empty: Sequence<Shared<Barrier>>,
}

/// Unit 0 initializes the barriers; the caller fences and syncs.
#[cube]
fn ring(#[comptime] stages: usize, #[comptime] full_count: u32, #[comptime] empty_count: u32) -> Ring {
    let mut full = Sequence::<Shared<Barrier>>::new();
    let mut empty = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..stages {
        full.push(Barrier::shared_uninit());
        empty.push(Barrier::shared_uninit());
    }
    if UNIT_POS == 0 {
        #[unroll]
        for s in 0..stages {
            full.index(s).init_manual(full_count.runtime());
            empty.index(s).init_manual(empty_count.runtime());
        }
    }
    Ring { full, empty }
}

/// The parity of the phase that is next at the barrier of each slot, a bit a slot.
#[derive(CubeType)]
struct Parities {
    bits: u32,
}

/// `first` is the parity that every slot waits for first.
#[cube]
fn parities(#[comptime] first: u32) -> Parities {
    Parities { bits: comptime![if first == 0 { 0u32 } else { u32::MAX }].runtime() }
}

/// Waits for the phase that is next at the barrier of `slot`.
#[cube]
fn await_next(barrier: &Barrier, parities: &mut Parities, #[comptime] slot: usize) {
    barrier.wait_parity(parities.bits >> comptime![slot as u32] & 1);
    parities.bits ^= comptime![1u32 << slot];
}

/// Loads both operands of K tile `kt` into `slot`.
#[cube]
fn fill_slot<E: Float>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    smem_a: &mut Shared<[E]>,
    smem_b: &mut Shared<[E]>,
    r: &Ring,
    ph: &mut Parities,
    row0: u32,
    col0: u32,
    kt: u32,
    #[comptime] slot: usize,
    #[comptime] cfg: GemmConfig,
) {
    // A fresh barrier counts as having completed the phase of parity 1.
    await_next(r.empty.index(slot), ph, slot);
    let bar = r.full.index(slot);
    bar.arrive_and_expect_tx(1, comptime![cfg.stage_bytes()]);
    let at_a = comptime![slot * TILE_M * TILE_K];
    let at_b = comptime![slot * cfg.tile_n * TILE_K];
    let kk = kt * comptime![TILE_K as u32];
    load_tile(a, bar, &mut smem_a[at_a..comptime![at_a + TILE_M * TILE_K]], row0, kk, TILE_M, comptime![cfg.a_mn]);
    load_tile(
        b,
        bar,
        &mut smem_b[at_b..comptime![at_b + cfg.columns * TILE_K]],
        col0,
        kk,
        comptime![cfg.columns],
        comptime![cfg.b_mn],
    );
}

/// Loads K tiles `from..to` of the output tile at (`row0`, `col0`), from slot 0 on.
#[cube]
fn produce<E: Float>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    smem_a: &mut Shared<[E]>,
    smem_b: &mut Shared<[E]>,
    r: &Ring,
    ph: &mut Parities,
    row0: u32,
    col0: u32,
    from: u32,
    to: u32,
    #[comptime] cfg: GemmConfig,
) {
    let stages = comptime![cfg.stages as u32];
    let laps = (to - from) / stages;
    for lap in 0..laps {
        #[unroll]
        for slot in 0..comptime![cfg.stages] {
            let kt = from + lap * stages + comptime![slot as u32];
            fill_slot(a, b, smem_a, smem_b, r, ph, row0, col0, kt, slot, cfg);
        }
    }
    if comptime![cfg.ragged] {
        let done = from + laps * stages;
        #[unroll]
        for slot in 0..comptime![cfg.stages - 1] {
            let kt = done + comptime![slot as u32];
            if kt < to {
                fill_slot(a, b, smem_a, smem_b, r, ph, row0, col0, kt, slot, cfg);
            }
        }
    }
}

/// Issues the MMAs of one slot.
#[cube]
fn mma_slot<E: Float>(
    acc: &mut Pending<Accumulator<f32>>,
    da: &MatrixDescriptor<E>,
    db: &MatrixDescriptor<E>,
    wg_row: usize,
    #[comptime] slot: usize,
    #[comptime] cfg: GemmConfig,
) {
    #[unroll]
    for step in 0..4usize {
        acc.execute(
            &da.at(wg_row + comptime![slot * TILE_M], step * 16),
            &db.at(comptime![slot * cfg.tile_n], step * 16),
        );
    }
}

/// One plane's release of `slot`.
#[cube]
fn release(r: &Ring, #[comptime] slot: usize) {
    if UNIT_POS_PLANE == 0 {
        r.empty.index(slot).arrive();
    }
}

#[cube]
fn release_last(r: &Ring, count: u32, #[comptime] cfg: GemmConfig) {
    if comptime![cfg.ragged] {
        let last = (count - 1) % comptime![cfg.stages as u32];
        #[unroll]
        for slot in 0..comptime![cfg.stages] {
            if last == comptime![slot as u32] {
                release(r, slot);
            }
        }
    } else {
        release(r, comptime![cfg.stages - 1]);
    }
}

/// Multiplies `count` K tiles, from slot 0 on, into a fresh accumulator of 64 rows.
#[cube]
fn consume<E: Float>(
    da: &MatrixDescriptor<E>,
    db: &MatrixDescriptor<E>,
    r: &Ring,
    ph: &mut Parities,
    wg_row: usize,
    count: u32,
    #[comptime] cfg: GemmConfig,
) -> Accumulator<f32> {
    let stages = comptime![cfg.stages as u32];
    let laps = count / stages;
    let mut acc = Accumulator::<f32>::new(comptime![cfg.columns]).start();
    let mut released = acc.commit();
    for lap in 0..laps {
        let mut tokens = Sequence::<Pending<()>>::new();
        #[unroll]
        for slot in 0..comptime![cfg.stages] {
            await_next(r.full.index(slot), ph, slot);
            mma_slot(&mut acc, da, db, wg_row, slot, cfg);
            // Wait for the MMAs of the slot before. The tokens of one turn stay in a sequence, because a variable
            // assigned again in an unrolled loop resolves to waiting for everything.
            let read = acc.commit();
            if comptime![slot == 0] {
                released.wait();
            } else {
                tokens.index(comptime![slot - 1]).wait();
            }
            if comptime![slot == cfg.stages - 1] {
                released = read;
            } else {
                tokens.push(read);
            }
            if comptime![slot == 0] {
                if lap > 0 {
                    release(r, comptime![cfg.stages - 1]);
                }
            } else {
                release(r, comptime![slot - 1]);
            }
        }
    }
    if comptime![cfg.ragged] {
        let done = laps * stages;
        #[unroll]
        for slot in 0..comptime![cfg.stages - 1] {
            if done + comptime![slot as u32] < count {
                await_next(r.full.index(slot), ph, slot);
                mma_slot(&mut acc, da, db, wg_row, slot, cfg);
                let read = acc.commit();
                released.wait();
                released = read;
                if comptime![slot == 0] {
                    if laps > 0 {
                        release(r, comptime![cfg.stages - 1]);
                    }
                } else {
                    release(r, comptime![slot - 1]);
                }
            }
        }
    }
    let done = acc.wait();
    release_last(r, count, cfg);
    done
}

/// Hands an accumulator of 64 rows per warpgroup to the warps that store or finish it, in panels of 64 columns. Each plane
/// writes its 16 rows, four 8 x 8 matrices at a time (`stmatrix`, whose registers are those of an accumulator): a unit
/// gives the address of one of their rows.
#[cube]
fn store_staged<E: Float>(
    acc: &Accumulator<f32>,
    smem_c: &mut Shared<[Oct<E>]>,
    r: &Ring,
    ph: &mut Parities,
    wg: u32,
    dealt: &Array<Pair<E>>,
    #[comptime] cfg: GemmConfig,
) {
    let unit = unit_in_warpgroup();
    let layout = comptime![cfg.panel_layout()];
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let row = unit / 32 * 16 + unit % 16;
    let col = unit % 32 / 16 * 8;
    #[unroll]
    for turn in 0..comptime![cfg.panels_across() / HANDED] {
        let handed = comptime![turn % (cfg.panels / HANDED)];
        await_next(r.empty.index(handed), ph, handed);
        let first = wg as usize * comptime![PANEL_OCTS] + comptime![handed * cfg.handed_octs()];
        let mut places = Array::<usize>::new(comptime![4 * HANDED]);
        // All are read before the first is written over, so that their latencies overlap.
        let mut residual = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for nth in 0..comptime![4 * HANDED] {
            let within = layout.offset(row as usize, (col + comptime![16 * (nth % 4) as u32]) as usize, 2usize) / 8;
            let at = first + comptime![nth / 4 * WARPGROUPS as usize * PANEL_OCTS] + within;
            places[nth] = at;
            if comptime![cfg.residual] {
                let ident = MatrixIdent::Accumulator;
                residual.push(instruction.load_matrix::<Oct<E>, Const<2>>(&smem_c[at..at + 1], ident, 4usize, false));
            }
        }
        #[unroll]
        for nth in 0..comptime![4 * HANDED] {
            let panel = comptime![turn * HANDED + nth / 4];
            let mut results = Array::<Pair<E>>::new(4usize);
            #[unroll]
            for half in 0..2usize {
                let mut added = Pair::<f32>::zeroed();
                if comptime![cfg.bias] {
                    added = dealt_pair::<E>(dealt[panel], comptime![nth % 4 * 2 + half]);
                }
                #[unroll]
                for i in 0..2usize {
                    let mut result = pair(acc, comptime![panel * 16 + nth % 4 * 4 + half * 2 + i]);
                    if comptime![cfg.bias] {
                        result += added;
                    }
                    if comptime![cfg.residual] {
                        result += Pair::cast_from(residual.index(nth)[comptime![half * 2 + i]]);
                    }
                    if comptime![cfg.relu] {
                        result.insert(0usize, positive(result.extract(0usize)));
                        result.insert(1usize, positive(result.extract(1usize)));
                    }
                    results[comptime![half * 2 + i]] = Pair::cast_from(result);
                }
            }
            let at = places[nth];
            instruction.store_matrix::<Oct<E>, Const<2>>(
                &mut smem_c[at..at + 1],
                &results,
                MatrixIdent::Accumulator,
                4usize,
                false,
            );
        }
        sync_async_proxy_shared();
        sync_plane();
        if UNIT_POS_PLANE == 0 {
            r.full.index(handed).arrive();
        }
    }
}

/// Finishes the results in slot `slot`, panel `panel` of the tile of 128 rows from `row0` on, whose columns begin at `col`, and
/// stores them, with the arguments of the activation if they are kept. All finishing units call it.
#[cube]
fn finish_panel<E: Float>(
    smem_c: &mut Shared<[Oct<E>]>,
    smem_y: &mut Shared<[Oct<E>]>,
    c: &mut TensorMap<E, Tiled>,
    kept: &mut TensorMap<E, Tiled>,
    rc: &Ring,
    finished: &Barrier,
    row0: u32,
    col: u32,
    #[comptime] panel: usize,
    #[comptime] cfg: GemmConfig,
) {
    let finish = comptime![cfg.finish.unwrap()];
    let slot = comptime![panel % cfg.panels];
    let octs = comptime![WARPGROUPS as usize * PANEL_OCTS];
    let from = comptime![slot * octs];
    // The finishing units begin at a multiple of their number.
    let unit = UNIT_POS % FINISHERS;
    if comptime![finish.kept] {
        if unit == 0 {
            let (_first, _second) = store_panels(smem_c, kept, row0, col, from);
        }
    }
    // Unrolled whole, the loop would not fit the instruction cache.
    let turns = comptime![octs / (OCTS_AT_ONCE * FINISHERS as usize)];
    for turn in 0..turns {
        let nth = unit + turn as u32 * comptime![OCTS_AT_ONCE as u32 * FINISHERS];
        finish_octs(smem_c, smem_y, nth, OCTS_AT_ONCE, from, cfg);
    }
    let done = comptime![(turns * OCTS_AT_ONCE) as u32 * FINISHERS];
    if unit < comptime![octs as u32 - done] {
        finish_octs(smem_c, smem_y, unit + done, 1usize, from, cfg);
    }
    sync_async_proxy_shared();
    finished.arrive();
    finished.wait_parity(comptime![if finish.kept { 0u32 } else { panel as u32 % 2 }]);
    if unit == 0 {
        if comptime![finish.kept] {
            let (_first, second) = store_panels(smem_y, c, row0, col, 0usize);
            second.wait();
        } else {
            let (_first, second) = store_panels(smem_c, c, row0, col, from);
            second.wait();
        }
        if comptime![(panel + 1) % HANDED == 0] {
            rc.empty.index(comptime![slot / HANDED]).arrive();
        }
    }
    if comptime![finish.kept] {
        // The room for finished results has been read.
        finished.arrive();
        finished.wait_parity(1u32);
    }
}

/// Finishes `count` vectors of eight results, [`FINISHERS`] apart from number `nth` of a panel on.
#[cube]
fn finish_octs<E: Float>(
    smem_c: &mut Shared<[Oct<E>]>,
    smem_y: &mut Shared<[Oct<E>]>,
    nth: u32,
    #[comptime] count: usize,
    #[comptime] from: usize,
    #[comptime] cfg: GemmConfig,
) {
    let finish = comptime![cfg.finish.unwrap()];
    let layout = comptime![cfg.panel_layout()];
    let mut places = Array::<usize>::new(count);
    let mut values = Array::<Vector<f32, Const<8>>>::new(count);
    #[unroll]
    for i in 0..count {
        let nth = nth + comptime![i as u32 * FINISHERS];
        let row = nth / 8;
        let within = layout.offset((row % 64) as usize, (nth % 8 * 8) as usize, 2usize) / 8;
        places[i] = (row / 64) as usize * comptime![PANEL_OCTS] + within;
        let argument = Vector::<f32, Const<8>>::cast_from(smem_c[from + places[i]]);
        values[i] = activated::<Const<8>>(argument, comptime![finish.activation]);
    }
    #[unroll]
    for i in 0..count {
        if comptime![finish.kept] {
            smem_y[places[i]] = Vector::cast_from(values[i]);
        } else {
            smem_c[from + places[i]] = Vector::cast_from(values[i]);
        }
    }
}

/// Loads what is added to the panels that are handed on at a time, those at (`row0`, `col`) and behind, into slot `handed`,
/// which is empty, and says so when they are there.
#[cube]
fn load_residual<E: Float>(
    smem_c: &mut Shared<[Oct<E>]>,
    residual: &TensorMap<E, Tiled>,
    rc: &Ring,
    row0: u32,
    col: u32,
    #[comptime] handed: usize,
    #[comptime] cfg: GemmConfig,
) {
    let bar = rc.empty.index(handed);
    bar.arrive_and_expect_tx(1, comptime![(cfg.handed_octs() * 16) as u32]);
    #[unroll]
    for nth in 0..comptime![HANDED * WARPGROUPS as usize] {
        let from = comptime![handed * cfg.handed_octs() + nth * PANEL_OCTS];
        let row = row0 + comptime![nth as u32 % WARPGROUPS * 64];
        let col = col + comptime![(nth as u32 / WARPGROUPS) * PANEL as u32];
        bar.tma_load_2d(residual, &mut smem_c[from..comptime![from + PANEL_OCTS]], row as i32, col as i32);
    }
}

/// Stores the panels of both warpgroups, from `from` on in shared memory, at (`row0`, `col`) and 64 rows below. Once the second
/// has been read, all that was stored before has.
#[cube]
fn store_panels<E: Float>(
    memory: &mut Shared<[Oct<E>]>,
    to: &mut TensorMap<E, Tiled>,
    row0: u32,
    col: u32,
    #[comptime] from: usize,
) -> (Pending<()>, Pending<()>) {
    let middle = comptime![from + PANEL_OCTS];
    let end = comptime![middle + PANEL_OCTS];
    let first = tma_store_2d(&memory[from..middle], to, row0 as i32, col as i32);
    let second = tma_store_2d(&memory[middle..end], to, (row0 + 64) as i32, col as i32);
    (first, second)
}

/// Pairs that are read before any of them is written back, so that their latencies overlap.
const PAIRS_AT_ONCE: usize = 8;

/// Writes a 64 x tile_n accumulator as f32 at (`row0`, `col0`) of the `[m, n]` matrix of rows of `pitch` numbers that begins
/// at `base`, or adds it to what is there.
#[cube]
fn store_partial(
    acc: &Accumulator<f32>,
    partial: &mut [Pair<f32>],
    base: usize,
    row0: u32,
    col0: u32,
    m: u32,
    n: u32,
    pitch: u32,
    #[comptime] cfg: GemmConfig,
) {
    let unit = unit_in_warpgroup();
    #[unroll]
    for group in 0..comptime![cfg.tile_n / 4 / PAIRS_AT_ONCE] {
        let mut before = Array::<Pair<f32>>::new(PAIRS_AT_ONCE);
        if comptime![cfg.onto] {
            #[unroll]
            for i in 0..PAIRS_AT_ONCE {
                let (r, c) = acc.position_of_nth(unit, comptime![2 * (group * PAIRS_AT_ONCE + i) as u32]);
                let inside = row0 + r < m && col0 + c < n;
                let at = base + (row0 + r) as usize * pitch as usize + (col0 + c) as usize;
                // Outside the matrix the first pair is read, and not used.
                before[i] = partial[select(inside, at, base) / 2];
            }
        }
        #[unroll]
        for i in 0..PAIRS_AT_ONCE {
            let nth = comptime![group * PAIRS_AT_ONCE + i];
            let (r, c) = acc.position_of_nth(unit, comptime![2 * nth as u32]);
            let row = row0 + r;
            let col = col0 + c;
            let mut sum = pair(acc, nth);
            if comptime![cfg.onto] {
                sum += before[i];
            }
            if row < m && col < n {
                partial[(base + row as usize * pitch as usize + col as usize) / 2] = sum;
            }
        }
    }
}

/// `c = a · b` in the layouts of `cfg`, finished as it says. With `cfg.wide`, the f32 sums go to `partial`, in rows of `pitch`
/// numbers, and `c` is not touched; with `cfg.shared` those of part `i` of each tile to matrix `i` of `partial`. `beside` is what is
/// added to the results, or where the arguments of what finishes them go.
#[cube(launch_unchecked)]
pub(super) fn gemm<E: Float>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    c: &mut TensorMap<E, Tiled>,
    beside: &mut TensorMap<E, Tiled>,
    partial: &mut [Pair<f32>],
    bias: &[Pair<E>],
    m: u32,
    n: u32,
    pitch: u32,
    k_tiles: u32,
    splits: u32,
    per_split: u32,
    pieces: u32,
    #[comptime] cfg: GemmConfig,
    #[define(E)] _dtype: ElemType,
) {
    let mut smem_a = Shared::<[E]>::new_aligned_slice(comptime![cfg.stages * TILE_M * TILE_K], 1024usize);
    let mut smem_b = Shared::<[E]>::new_aligned_slice(comptime![cfg.stages * cfg.tile_n * TILE_K], 1024usize);
    let c_len = comptime![if cfg.wide { 1 } else { WARPGROUPS as usize * cfg.panels * PANEL_OCTS }];
    let c_align = comptime![if cfg.wide { 16usize } else { 1024usize }];
    let mut smem_c = Shared::<[Oct<E>]>::new_aligned_slice(c_len, c_align);
    // Finished results, where their arguments are stored as well.
    let y_len = comptime![if cfg.keeps() { WARPGROUPS as usize * PANEL_OCTS } else { 1 }];
    let mut smem_y =
        Shared::<[Oct<E>]>::new_aligned_slice(y_len, comptime![if cfg.keeps() { 1024usize } else { 16usize }]);
    let finished = Barrier::shared_uninit();
    if UNIT_POS == 0 {
        finished.init_manual(FINISHERS);
    }
    let r = ring(comptime![cfg.stages], 1u32, comptime![4 * WARPGROUPS]);
    let handed = comptime![if cfg.wide { 1 } else { cfg.panels / HANDED }];
    let rc = ring(handed, comptime![4 * WARPGROUPS], 1u32);
    sync_async_proxy_shared();
    sync_cube();

    let tiles_m = (m + comptime![TILE_M as u32 - 1]) / comptime![TILE_M as u32];
    let tiles_n = (n + comptime![cfg.tile_n as u32 - 1]) / comptime![cfg.tile_n as u32];
    let mut mine = share(tiles_m, tiles_n, k_tiles, splits, per_split, pieces, cfg);

    // The same on every lane, which the broadcast tells the assembler.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let wg = warp / 4;
    if wg < WARPGROUPS {
        let da = MatrixDescriptor::new(&smem_a, comptime![cfg.a_layout()]);
        let db = MatrixDescriptor::new(&smem_b, comptime![cfg.b_layout()]);
        let wg_row = wg as usize * 64;
        let mut ph = parities(0u32);
        // What is added must be there first.
        let mut phc = parities(comptime![if cfg.residual { 0u32 } else { 1u32 }]);
        #[unroll]
        for round in 0..comptime![cfg.rounds()] {
            let cfg = comptime![cfg.round(round)];
            while mine.at < mine.end {
                let run = take_run(&mut mine, cfg);
                let mut dealt = Array::<Pair<E>>::new(comptime![cfg.panels_across()]);
                if comptime![cfg.bias && !cfg.wide] {
                    dealt = deal_bias(bias, run.col0, n, cfg);
                }
                let acc = consume(&da, &db, &r, &mut ph, wg_row, run.to - run.from, cfg);
                if comptime![cfg.wide] {
                    let base = run.part as usize * m as usize * pitch as usize;
                    let row0 = run.row0 + wg * 64;
                    store_partial(&acc, partial, base, row0, run.col0, m, n, pitch, cfg);
                } else {
                    store_staged(&acc, &mut smem_c, &rc, &mut phc, wg, &dealt, cfg);
                }
            }
            next_round(&mut mine, cfg);
        }
    } else if warp == comptime![4 * WARPGROUPS] {
        if UNIT_POS_PLANE == 0 {
            let mut ph = parities(1u32);
            #[unroll]
            for round in 0..comptime![cfg.rounds()] {
                let cfg = comptime![cfg.round(round)];
                while mine.at < mine.end {
                    let run = take_run(&mut mine, cfg);
                    produce(a, b, &mut smem_a, &mut smem_b, &r, &mut ph, run.row0, run.col0, run.from, run.to, cfg);
                }
                next_round(&mut mine, cfg);
            }
        }
    } else if comptime![!cfg.wide && cfg.finish.is_some()] {
        let mut ph = parities(0u32);
        while mine.at < mine.end {
            let run = take_run(&mut mine, cfg);
            #[unroll]
            for panel in 0..comptime![cfg.panels_across()] {
                let handed = comptime![panel % cfg.panels / HANDED];
                if comptime![panel % HANDED == 0] {
                    await_next(rc.full.index(handed), &mut ph, handed);
                }
                let col = run.col0 + comptime![(panel * PANEL) as u32];
                finish_panel(&mut smem_c, &mut smem_y, c, beside, &rc, &finished, run.row0, col, panel, cfg);
            }
        }
    } else if comptime![!cfg.wide] {
        if UNIT_POS_PLANE == 0 {
            let mut ph = parities(0u32);
            if comptime![cfg.residual] {
                let (row0, col0) = tile_origin(mine.at, &mut mine, cfg);
                #[unroll]
                for turn in 0..comptime![cfg.panels_across() / HANDED] {
                    let col = col0 + comptime![(turn * HANDED * PANEL) as u32];
                    load_residual(&mut smem_c, &*beside, &rc, row0, col, turn, cfg);
                }
            }
            #[unroll]
            for round in 0..comptime![cfg.rounds()] {
                let cfg = comptime![cfg.round(round)];
                while mine.at < mine.end {
                    let run = take_run(&mut mine, cfg);
                    let (next_row0, next_col0) = tile_origin(mine.at, &mut mine, cfg);
                    #[unroll]
                    for turn in 0..comptime![cfg.panels_across() / HANDED] {
                        let handed = comptime![turn % (cfg.panels / HANDED)];
                        await_next(rc.full.index(handed), &mut ph, handed);
                        let mut stores = Sequence::<Pending<()>>::new();
                        #[unroll]
                        for i in 0..comptime![HANDED] {
                            let col = run.col0 + comptime![((turn * HANDED + i) * PANEL) as u32];
                            let from = comptime![(handed * HANDED + i) * WARPGROUPS as usize * PANEL_OCTS];
                            let (_first, second) = store_panels(&mut smem_c, c, run.row0, col, from);
                            stores.push(second);
                        }
                        stores.index(comptime![HANDED - 1]).wait();
                        if comptime![cfg.residual] {
                            if mine.at < mine.end {
                                let col = next_col0 + comptime![(turn * HANDED * PANEL) as u32];
                                load_residual(&mut smem_c, &*beside, &rc, next_row0, col, handed, cfg);
                            }
                        } else {
                            rc.empty.index(handed).arrive();
                        }
                    }
                }
                next_round(&mut mine, cfg);
            }
        }
    }
}

/// The number of the tile at (`tm`, `tn`), see [`tile_coords`].
#[cube]
fn tile_number(tm: u32, tn: u32, tiles_m: u32, tiles_n: u32, #[comptime] group_m: u32) -> u32 {
    let first = tm / group_m * group_m;
    let left = tiles_m - first;
    let rows = select(left < group_m, left, group_m.runtime());
    first * tiles_n + tn * rows + tm - first
}

/// `out = sum of the parts of partial`, in their order, added to what is there if `cfg` says so, and finished as the kernel
/// whose tiles are not shared does it: one unit per four elements, which are of one row. Rows of `partial` and `out` begin
/// every `4 * row_quads` elements, those of `residual` every `4 * residual_row_quads`.
#[cube(launch_unchecked)]
pub(super) fn reduce_runs<E: Float>(
    partial: &[Quad<f32>],
    bias: &[Quad<E>],
    residual: &[Quad<E>],
    out: &mut [Quad<E>],
    m: u32,
    n: u32,
    splits: u32,
    helpers: u32,
    pieces: u32,
    row_quads: u32,
    residual_row_quads: u32,
    #[comptime] cfg: GemmConfig,
    #[define(E)] _dtype: ElemType,
) {
    cubes_at_once(SUM_CUBES);
    let quads = m as usize * row_quads as usize;
    if ABSOLUTE_POS < quads {
        let row = ABSOLUTE_POS as u32 / row_quads;
        // In the gap behind a row stands nothing that anybody reads.
        let col = min(ABSOLUTE_POS as u32 % row_quads * 4, n - 1);
        let tiles_m = (m + comptime![TILE_M as u32 - 1]) / comptime![TILE_M as u32];
        let tiles_n = (n + comptime![cfg.tile_n as u32 - 1]) / comptime![cfg.tile_n as u32];
        let (tm, tn) = (row / comptime![TILE_M as u32], col / comptime![cfg.tile_n as u32]);
        let tile = tile_number(tm, tn, tiles_m, tiles_n, comptime![cfg.group_m]);
        let tiles = tiles_m * tiles_n;
        let mut parts = splits;
        if helpers > 0 {
            parts += select(tile < tiles - tiles % helpers, 1u32, pieces);
        }
        let mut sum = add_up(Quad::zeroed(), partial, ABSOLUTE_POS, quads, 0u32, parts, 1u32, PARTS_AT_ONCE);
        if comptime![cfg.onto] {
            sum += Quad::<f32>::cast_from(out[ABSOLUTE_POS]);
        }
        if comptime![cfg.bias] {
            // A buffer may be longer than the bias in it, so its length is no guide to the column.
            sum += Quad::<f32>::cast_from(bias[ABSOLUTE_POS % row_quads as usize]);
        }
        if comptime![cfg.residual] {
            sum += Quad::<f32>::cast_from(residual[(row * residual_row_quads + col / 4) as usize]);
        }
        if comptime![cfg.relu] {
            #[unroll]
            for i in 0..4usize {
                sum.insert(i, positive(sum.extract(i)));
            }
        }
        out[ABSOLUTE_POS] = Quad::<E>::cast_from(sum);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::backend::DType;
    use burn::backend::cubecl::dtype_to_storage_type;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    const DTYPES: [(&str, DType); 2] = [("bf16", DType::BF16), ("f16", DType::F16)];

    /// Every epilogue and layout, stored, finished and added to.
    fn configs() -> Vec<(String, GemmConfig)> {
        let stored = GemmConfig {
            tile_n: 256,
            halves: false,
            columns: 256,
            stages: 3,
            panels: 4,
            a_mn: false,
            b_mn: true,
            ragged: true,
            wide: false,
            shared: false,
            onto: false,
            bias: true,
            relu: false,
            finish: None,
            residual: false,
            group_m: 16,
        };
        let finished = |activation, kept| {
            let finish = Some(Finish { activation, kept });
            GemmConfig { finish, ragged: false, ..stored }
        };
        let summed = GemmConfig { wide: true, stages: 4, bias: false, ..stored };
        let narrow = GemmConfig { tile_n: 128, columns: 128, stages: 4, panels: 2, ..stored };
        let mut configs = vec![
            ("nn-gelu-tanh-kept".into(), finished(Activation::GeluTanh, true)),
            ("nn-gelu-kept".into(), finished(Activation::Gelu, true)),
            ("nn-silu".into(), finished(Activation::Silu, false)),
            ("nn-bias-relu".into(), GemmConfig { relu: true, ..stored }),
            ("nn-bias-relu-narrow".into(), GemmConfig { relu: true, ..narrow }),
            ("nn-bias-residual".into(), GemmConfig { residual: true, ..stored }),
            ("nn-bias-residual-narrow".into(), GemmConfig { residual: true, ..narrow }),
            ("nn-half-tiles-deep".into(), GemmConfig { halves: true, stages: 4, panels: 2, bias: false, ..stored }),
        ];
        for (layout, a_mn, b_mn) in [("nn", false, true), ("nt", false, false), ("tn", true, true)] {
            let cases = [
                ("bias", stored),
                ("bias-half-tiles", GemmConfig { halves: true, ..stored }),
                ("f32-split-k", GemmConfig { shared: true, ..summed }),
                ("f32", summed),
                ("f32-accumulate", GemmConfig { onto: true, ..summed }),
            ];
            configs
                .extend(cases.map(|(case, config)| (format!("{layout}-{case}"), GemmConfig { a_mn, b_mn, ..config })));
        }
        configs
    }

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let mut kernels = Vec::new();
            for (case, config) in configs() {
                for (name, dtype) in DTYPES {
                    let (launch, properties, target) = settings(config.units());
                    #[rustfmt::skip]
                    let kernel = gemm::Gemm::new(
                        launch, properties, target, (), (), (), (), buffer(), buffer(), (), (), (), (), (), (),
                        (), config, dtype_to_storage_type(dtype),
                    );
                    kernels.push(Compiled::new(format!("linear/gemm/{case}-{name}"), kernel));
                }
            }

            let stored = configs()[3].1;
            let sums = [
                ("accumulate", GemmConfig { onto: true, relu: false, bias: false, ..stored }),
                ("bias-relu", stored),
                ("bias-residual", GemmConfig { residual: true, relu: false, ..stored }),
            ];
            for (case, config) in sums {
                let (launch, properties, target) = settings(256);
                let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
                #[rustfmt::skip]
                let kernel = reduce_runs::ReduceRuns::new(
                    launch, properties, target, b(), b(), b(), b(), (), (), (), (), (), (), (), config, dtype,
                );
                kernels.push(Compiled::new(format!("linear/split-k-sum/{case}-bf16"), kernel));
            }
            kernels
        })
    }

    /// Each product is to use TMA and the tensor cores.
    #[test]
    fn kernels_compile_without_a_device() {
        for Compiled { label, ptx } in offline_kernels() {
            if label.starts_with("linear/split-k-sum") {
                assert!(ptx.is_some(), "{label}");
                continue;
            }
            let Some(code) = ptx else { return };
            let operands = if label.ends_with("-bf16") { "f32.bf16.bf16" } else { "f32.f16.f16" };
            assert!(code.contains(operands), "{label}");
            assert!(code.contains("cp.async.bulk.tensor"), "{label}");
            // Around a call the driver runs one product at a time.
            assert!(!["div.rn", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
        }
    }
}
