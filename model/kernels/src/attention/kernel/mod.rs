//! Flash attention on tensor cores (Dao 2023, FlashAttention-2): scores live in registers, tile by tile.
//!
//! A cube is one warpgroup of 128 units. The tile of 64 rows that stays (queries in forward and for the gradient of the queries,
//! keys and values for theirs) lies in shared memory, and TMA streams the other sequence past it through a few slots there.
//! Several cubes share a multiprocessor, so that one computes exponentials while another multiplies. All columns of heads are
//! read where the projection wrote them.
//!
//! Backward is two kernels, one that owns the rows of dQ and one that owns those of dK and dV: no sum depends on timing.

pub(super) mod backward;
pub(super) mod forward;
mod sight;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};

use crate::dropout::kernel::philox;
use crate::wgmma::{FRAGMENT, K_STEP, describe, multiply, multiply_shared};

type Pair<E> = Vector<E, Const<2>>;

/// Rows of the tile that stays, and of a streamed tile.
pub(super) const TILE: usize = 64;
/// Columns of a TMA box: one 128-byte swizzle span of two-byte elements.
pub(super) const SPAN: usize = 64;
/// Units of a cube.
pub(super) const UNITS: u32 = 128;
/// A score that is masked: -2^100. Finite, so that a row without keys stays a number, and a power of two, so that its
/// product with the scale is exact and the difference of two of them is 0.
const MASKED: f32 = -1_267_650_600_228_229_401_496_703_205_376.0;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlashConfig {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// 64 or 128.
    pub(super) head_dim: usize,
    /// Queries, keys and values are columns of one matrix.
    pub(super) packed: bool,
    pub(super) causal: bool,
    /// Key lengths, documents and a random state are given.
    pub(super) lengths: bool,
    pub(super) documents: bool,
    pub(super) dropout: bool,
}

impl FlashConfig {
    /// Columns of the matrix with the queries.
    pub(super) fn query_columns(&self) -> usize {
        if self.packed { (self.n_heads + 2 * self.n_kv_heads) * self.head_dim } else { self.n_heads * self.head_dim }
    }

    /// Columns of the matrix with keys and values.
    pub(super) fn key_value_columns(&self) -> usize {
        if self.packed { self.query_columns() } else { 2 * self.n_kv_heads * self.head_dim }
    }

    /// Scores are multiplied by this.
    fn scale(&self) -> f32 {
        (self.head_dim as f32).powf(-0.5)
    }

    fn first_key_column(&self) -> u32 {
        if self.packed { (self.n_heads * self.head_dim) as u32 } else { 0 }
    }

    fn first_value_column(&self) -> u32 {
        self.first_key_column() + (self.n_kv_heads * self.head_dim) as u32
    }

    /// A tile whose rows are indices of the product's result and whose columns are summed over.
    fn rows_layout(&self) -> WgmmaTileLayout {
        WgmmaTileLayout { major: Major::K, swizzle: Swizzle::B128, rows: TILE, k: self.head_dim }
    }

    /// The same tile, summed over its rows.
    fn columns_layout(&self) -> WgmmaTileLayout {
        WgmmaTileLayout { major: Major::MN, swizzle: Swizzle::B128, rows: self.head_dim, k: TILE }
    }

    /// Slots of streamed queries in the kernel of keys and values: two cubes are to fit on a multiprocessor.
    fn query_slots(&self) -> u32 {
        if self.head_dim == 64 { 3 } else { 2 }
    }

    /// Elements of a tile.
    fn tile_len(&self) -> usize {
        TILE * self.head_dim
    }
}

/// Where a unit stands in a 64-row accumulator: its rows are `row` and `row + 8`, its columns `column + 8 n` and their right
/// neighbours.
#[derive(CubeType)]
struct Place {
    row: u32,
    column: u32,
}

#[cube]
fn place() -> Place {
    let lane = UNIT_POS % 32;
    Place { row: UNIT_POS / 32 * 16 + lane / 4, column: lane % 4 * 2 }
}

/// The head, counted over all batch rows, and the tile that the cube works on. Heads are taken `heads_at_once` at a time, so
/// that what the tiles of a head read in common is still in L2 when the next of them comes: first the first `tiles_at_once` tiles
/// of all of them, side by side for each head, then the second ones.
#[cube]
fn cube_place(tiles: u32, heads_at_once: u32, tiles_at_once: u32) -> (u32, u32) {
    let pos = CUBE_POS as u32;
    let heads = CUBE_COUNT as u32 / tiles;
    let first_head = pos / (heads_at_once * tiles) * heads_at_once;
    let n_heads = min(heads_at_once, heads - first_head);
    let within = pos - first_head * tiles;
    let first_tile = within / (tiles_at_once * n_heads) * tiles_at_once;
    let n_tiles = min(tiles_at_once, tiles - first_tile);
    let left = within - first_tile * n_heads;
    (first_head + left / n_tiles, first_tile + left % n_tiles)
}

/// Sum over the four units that share a row.
#[cube]
fn quad_sum(value: f32) -> f32 {
    let pair = value + plane_shuffle_xor(value, 1u32);
    pair + plane_shuffle_xor(pair, 2u32)
}

/// Maximum over the four units that share a row.
#[cube]
fn quad_max(value: f32) -> f32 {
    let pair = max(value, plane_shuffle_xor(value, 1u32));
    max(pair, plane_shuffle_xor(pair, 2u32))
}

/// The 64 x head_dim tile at (`row0`, `column`) of a matrix of pairs, as fragments of 16 columns; rows from `rows` on are
/// zeros. `first` is the matrix row of the batch's row 0.
#[cube]
fn load_fragments<E: Float>(
    x: &[Pair<E>],
    first: u32,
    row0: u32,
    rows: u32,
    column: u32,
    at: &Place,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> Sequence<Array<E>> {
    let mut fragments = Sequence::<Array<E>>::new();
    #[unroll]
    for step in 0..comptime![head_dim / K_STEP] {
        let mut fragment = Array::<E>::new(FRAGMENT);
        #[unroll]
        for chunk in 0..4usize {
            let row = row0 + at.row + comptime![(chunk as u32 % 2) * 8];
            let from = column + at.column + comptime![(step * K_STEP + chunk / 2 * 8) as u32];
            let mut value = Pair::<E>::zeroed();
            if row < rows {
                value = x[((first + row) as usize * columns + from as usize) / 2];
            }
            fragment[comptime![chunk * 2]] = value.extract(0usize);
            fragment[comptime![chunk * 2 + 1]] = value.extract(1usize);
        }
        fragments.push(fragment);
    }
    fragments
}

/// Room for a 64 x 64 left operand. It is made before a loop, not in it: a product that runs on into the next turn reads these
/// registers, and only what is live is not given to others.
#[cube]
fn fragments<E: Float>() -> Sequence<Array<E>> {
    let mut fragments = Sequence::<Array<E>>::new();
    #[unroll]
    for _ in 0..comptime![TILE / K_STEP] {
        let mut fragment = Array::<E>::new(FRAGMENT);
        #[unroll]
        for i in 0..FRAGMENT {
            fragment[i] = E::from_int(0);
        }
        fragments.push(fragment);
    }
    fragments
}

/// The elements of a 64 x 64 accumulator as the left operand of the next product.
#[cube]
fn round_into<E: Float>(values: &Array<f32>, fragments: &mut Sequence<Array<E>>) {
    #[unroll]
    for step in 0..fragments.len() {
        let fragment = fragments.index_mut(step);
        #[unroll]
        for chunk in 0..4usize {
            let mut pair = Pair::<f32>::empty();
            pair.insert(0usize, values[comptime![step * FRAGMENT + chunk * 2]]);
            pair.insert(1usize, values[comptime![step * FRAGMENT + chunk * 2 + 1]]);
            let rounded = Pair::<E>::cast_from(pair);
            fragment[comptime![chunk * 2]] = rounded.extract(0usize);
            fragment[comptime![chunk * 2 + 1]] = rounded.extract(1usize);
        }
    }
}

/// A unit's share of a zeroed 64 x `columns` accumulator.
#[cube]
fn zeros(#[comptime] columns: usize) -> Array<f32> {
    let mut values = Array::<f32>::new(comptime![columns / 2]);
    #[unroll]
    for i in 0..comptime![columns / 2] {
        values[i] = 0.0f32;
    }
    values
}

/// `acc += fragments * tile`: all of the tile's summed dimension.
#[cube]
fn product<E: Float>(
    acc: &mut Array<f32>,
    fragments: &Sequence<Array<E>>,
    tile: u64,
    #[comptime] layout: WgmmaTileLayout,
) {
    #[unroll]
    for step in 0..comptime![layout.k / K_STEP] {
        multiply::<E>(acc, fragments.index(step), tile, step, layout);
    }
}

/// Stores this unit's share of a 64 x head_dim accumulator times `scale0` (first row) and `scale1` (second).
#[cube]
fn store_rows<E: Float>(
    values: &Array<f32>,
    scale0: f32,
    scale1: f32,
    out: &mut [Pair<E>],
    first: u32,
    row0: u32,
    rows: u32,
    column: u32,
    at: &Place,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) {
    #[unroll]
    for chunk in 0..comptime![head_dim / 4] {
        let row = row0 + at.row + comptime![(chunk as u32 % 2) * 8];
        let scale = if comptime![chunk % 2 == 0] { scale0 } else { scale1 };
        let to = column + at.column + comptime![(chunk / 2 * 8) as u32];
        let mut pair = Pair::<f32>::empty();
        pair.insert(0usize, values[comptime![chunk * 2]] * scale);
        pair.insert(1usize, values[comptime![chunk * 2 + 1]] * scale);
        if row < rows {
            out[((first + row) as usize * columns + to as usize) / 2] = Pair::<E>::cast_from(pair);
        }
    }
}

/// The two streamed tiles in shared memory, a few of each, and the barriers that say a slot is full.
#[derive(CubeType)]
struct Slots<E: Float> {
    a: Shared<[E]>,
    b: Shared<[E]>,
    full: Sequence<Shared<Barrier>>,
}

#[cube]
fn slots<E: Float>(#[comptime] n: u32, #[comptime] cfg: FlashConfig) -> Slots<E> {
    let a = Shared::<[E]>::new_aligned_slice(comptime![n as usize * cfg.tile_len()], 1024usize);
    let b = Shared::<[E]>::new_aligned_slice(comptime![n as usize * cfg.tile_len()], 1024usize);
    let mut full = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..n {
        full.push(Barrier::shared_uninit());
    }
    if UNIT_POS == 0 {
        #[unroll]
        for slot in 0..comptime![n as usize] {
            full.index(slot).init_manual(1u32);
        }
    }
    sync_async_proxy_shared();
    sync_cube();
    Slots::<E> { a, b, full }
}

/// Unit 0 asks for the tiles at matrix row `row`, one at `column_a` of `map_a` and one at `column_b` of `map_b`.
#[cube]
fn fill<E: Float>(
    slots: &mut Slots<E>,
    slot: u32,
    map_a: &TensorMap<E, Tiled>,
    map_b: &TensorMap<E, Tiled>,
    row: u32,
    column_a: u32,
    column_b: u32,
    #[comptime] cfg: FlashConfig,
) {
    if slot == 0 {
        fill_slot::<E>(slots, map_a, map_b, row, column_a, column_b, 0usize, cfg);
    } else if comptime![slots.full.len() == 2] {
        fill_slot::<E>(slots, map_a, map_b, row, column_a, column_b, 1usize, cfg);
    } else if slot == 1 {
        fill_slot::<E>(slots, map_a, map_b, row, column_a, column_b, 1usize, cfg);
    } else {
        fill_slot::<E>(slots, map_a, map_b, row, column_a, column_b, 2usize, cfg);
    }
}

#[cube]
fn fill_slot<E: Float>(
    slots: &mut Slots<E>,
    map_a: &TensorMap<E, Tiled>,
    map_b: &TensorMap<E, Tiled>,
    row: u32,
    column_a: u32,
    column_b: u32,
    #[comptime] slot: usize,
    #[comptime] cfg: FlashConfig,
) {
    let bar = slots.full.index(slot);
    bar.arrive_and_expect_tx(1, comptime![(4 * cfg.tile_len()) as u32]);
    #[unroll]
    for span in 0..comptime![cfg.head_dim / SPAN] {
        let from = comptime![slot * cfg.tile_len() + span * TILE * SPAN];
        let to = comptime![from + TILE * SPAN];
        let column = comptime![(span * SPAN) as u32];
        bar.tma_load_2d(map_a, &mut slots.a[from..to], row as i32, (column_a + column) as i32);
        bar.tma_load_2d(map_b, &mut slots.b[from..to], row as i32, (column_b + column) as i32);
    }
}

/// Streamed tiles of one kind in two slots of shared memory, and the barriers that say a slot is full. The caller fences and
/// syncs.
#[derive(CubeType)]
struct Stream<E: Float> {
    tiles: Shared<[E]>,
    full: Sequence<Shared<Barrier>>,
}

#[cube]
fn stream<E: Float>(#[comptime] cfg: FlashConfig) -> Stream<E> {
    let tiles = Shared::<[E]>::new_aligned_slice(comptime![2 * cfg.tile_len()], 1024usize);
    let mut full = Sequence::<Shared<Barrier>>::new();
    full.push(Barrier::shared_uninit());
    full.push(Barrier::shared_uninit());
    if UNIT_POS == 0 {
        full.index(0usize).init_manual(1u32);
        full.index(1usize).init_manual(1u32);
    }
    Stream::<E> { tiles, full }
}

/// Unit 0 asks for the tile at matrix row `row` and column `column` of `map`.
#[cube]
fn fill_alone<E: Float>(
    stream: &mut Stream<E>,
    slot: u32,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    if slot == 0 {
        fill_alone_at::<E>(stream, map, row, column, 0usize, cfg);
    } else {
        fill_alone_at::<E>(stream, map, row, column, 1usize, cfg);
    }
}

#[cube]
fn fill_alone_at<E: Float>(
    stream: &mut Stream<E>,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] slot: usize,
    #[comptime] cfg: FlashConfig,
) {
    let bar = stream.full.index(slot);
    bar.arrive_and_expect_tx(1, comptime![(2 * cfg.tile_len()) as u32]);
    #[unroll]
    for span in 0..comptime![cfg.head_dim / SPAN] {
        let from = comptime![slot * cfg.tile_len() + span * TILE * SPAN];
        let to = comptime![from + TILE * SPAN];
        let column = column + comptime![(span * SPAN) as u32];
        bar.tma_load_2d(map, &mut stream.tiles[from..to], row as i32, column as i32);
    }
}

/// Waits until the tile of `block` has arrived in its slot, which is returned.
#[cube]
fn arrived_alone<E: Float>(stream: &Stream<E>, block: u32) -> u32 {
    let slot = block % 2;
    let parity = block / 2 % 2;
    if slot == 0 {
        stream.full.index(0usize).wait_parity(parity);
    } else {
        stream.full.index(1usize).wait_parity(parity);
    }
    slot
}

/// Unit 0 asks for the tile at matrix row `row` and column `column` of `map`, which stays. Rows of the next sequence, where this
/// one ends, give results that nobody stores.
#[cube]
fn fetch<E: Float>(
    bar: &Barrier,
    map: &TensorMap<E, Tiled>,
    tile: &mut Shared<[E]>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    #[unroll]
    for span in 0..comptime![cfg.head_dim / SPAN] {
        let from = comptime![span * TILE * SPAN];
        let column = column + comptime![(span * SPAN) as u32];
        bar.tma_load_2d(map, &mut tile[from..comptime![from + TILE * SPAN]], row as i32, column as i32);
    }
}

/// `acc += stays * streamed`, both in shared memory: all columns of a head.
#[cube]
fn product_shared<E: Float>(
    acc: &mut Array<f32>,
    stays: u64,
    streamed: u64,
    #[comptime] layout: WgmmaTileLayout,
    #[comptime] cfg: FlashConfig,
) {
    #[unroll]
    for step in 0..comptime![cfg.head_dim / K_STEP] {
        multiply_shared::<E>(acc, stays, streamed, step, comptime![cfg.rows_layout()], layout);
    }
}

/// Waits until the tiles of `block` have arrived in its slot, which is returned.
#[cube]
fn arrived<E: Float>(slots: &Slots<E>, block: u32) -> u32 {
    let n = slots.full.len().comptime() as u32;
    let slot = block % n;
    let parity = block / n % 2;
    // Not a comparison a slot: of those LLVM makes a switch whose impossible default leaves the loop over blocks, and the
    // assembler then lets no product run on.
    if slot == 0 {
        slots.full.index(0usize).wait_parity(parity);
    } else if comptime![n == 2] {
        slots.full.index(1usize).wait_parity(parity);
    } else if slot == 1 {
        slots.full.index(1usize).wait_parity(parity);
    } else {
        slots.full.index(2usize).wait_parity(parity);
    }
    slot
}

/// The tile in slot `slot`.
#[cube]
fn tile_of<E: Float>(
    smem: &Shared<[E]>,
    slot: u32,
    #[comptime] len: usize,
    #[comptime] layout: WgmmaTileLayout,
) -> u64 {
    let from = slot as usize * len;
    describe::<E>(&smem[from..from + len], layout)
}

/// Sixteen random bits each for eight probabilities of row `row` of all rows of all heads, those of keys `column`, `column
/// + 1` and every eight keys on in half `half` of the tile of keys number `tile`: what a unit holds of that half.
#[cube]
fn random_words(
    random: &[i32],
    site: u32,
    row: u32,
    tile: u32,
    half: u32,
    column: u32,
    keys: u32,
) -> (u32, u32, u32, u32) {
    let tiles = (keys + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    philox((row * tiles + tile) * 8 + half * 4 + column / 2, site, random)
}

/// Drops values of a 64 x 64 accumulator whose rows are queries, from row `row` of all rows on, and whose columns are the
/// keys of tile `tile`; the others times `keep`.
#[cube]
fn drop_values(
    values: &mut Array<f32>,
    random: &[i32],
    site: u32,
    row: u32,
    tile: u32,
    column: u32,
    keys: u32,
    limit: u32,
    keep: f32,
) {
    #[unroll]
    for block in 0..4usize {
        let second_row = comptime![block % 2];
        let half = comptime![block / 2];
        let from = row + comptime![8 * second_row as u32];
        let (w0, w1, w2, w3) = random_words(random, site, from, tile, comptime![half as u32].runtime(), column, keys);
        let mut words = Array::<u32>::new(4usize);
        words[0] = w0;
        words[1] = w1;
        words[2] = w2;
        words[3] = w3;
        #[unroll]
        for n in 0..4usize {
            let i = comptime![(half * 4 + n) * 4 + second_row * 2];
            values[i] = select((words[n] & 0xffff) >= limit, values[i] * keep, 0.0f32);
            values[comptime![i + 1]] = select((words[n] >> 16) >= limit, values[comptime![i + 1]] * keep, 0.0f32);
        }
    }
}

/// Which values of a 64 x 64 accumulator are kept, bit by bit, where rows are the keys of tile `tile` and columns are
/// queries, of which row `row` of all rows is this unit's first.
#[cube]
fn kept_bits(random: &[i32], site: u32, row: u32, tile: u32, at: &Place, keys: u32, limit: u32) -> u32 {
    // The unit's keys stand in the first or the last two of the four words.
    let last_words = at.row / 16 % 2 == 1;
    let shift = at.row % 2 * 16;
    let mut kept = 0u32;
    #[unroll]
    for query in 0..16usize {
        let from = row + comptime![(query / 2 * 8 + query % 2) as u32];
        let (w0, w1, w2, w3) = random_words(random, site, from, tile, at.row / 32, at.row % 8, keys);
        let first = select(last_words, w2, w0) >> shift;
        let second = select(last_words, w3, w1) >> shift;
        let bit = comptime![(query / 2 * 4 + query % 2) as u32];
        kept |= select((first & 0xffff) >= limit, comptime![1u32 << bit].runtime(), 0u32);
        kept |= select((second & 0xffff) >= limit, comptime![1u32 << (bit + 2)].runtime(), 0u32);
    }
    kept
}
