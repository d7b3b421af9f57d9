//! Flash attention on tensor cores (Dao 2023, FlashAttention-2): scores live in registers, tile by tile.
//!
//! A cube is one warpgroup of 128 units. The tile of 64 rows that stays (queries in forward and for the gradient of the queries,
//! keys and values for theirs) lies in shared memory, and TMA streams the other sequence past it through a few slots there.
//! Several cubes share a multiprocessor, so that one computes exponentials while another multiplies. All columns of heads are
//! read where the projection wrote them.
//!
//! Backward is two kernels, one that owns the rows of dQ and one that owns those of dK and dV: no sum depends on timing. Where all
//! queries and keys of a batch row are one tile, a single one owns all three.

pub(super) mod backward;
pub(super) mod forward;
pub(super) mod one_tile;
mod sight;

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
use cubecl_ir::types::MatrixIdent;

use crate::dropout::kernel::philox;
use crate::gpu::traversal::from_last;
use crate::gpu::wgmma::{FRAGMENT, K_STEP, multiply, multiply_shared};

type Pair<E> = Vector<E, Const<2>>;
/// What a unit stores at a time: 16 bytes.
type Oct<E> = Vector<E, Const<8>>;

/// Rows of the tile that stays, and of a streamed tile.
pub(super) const TILE: usize = 64;
/// Columns of a TMA box: one 128-byte swizzle span of two-byte elements.
pub(super) const SPAN: usize = 64;
/// Units of a cube.
pub(super) const UNITS: u32 = 128;
/// A score that is masked: -2^100. Finite, so that a row without keys stays a number, and a power of two, so that its
/// product with the scale is exact and the difference of two of them is 0.
const MASKED: f32 = -1_267_650_600_228_229_401_496_703_205_376.0;
/// A score whose exponential is 0, whatever is subtracted, that of a row without keys too: -2^126.
const HIDDEN: f32 = -85_070_591_730_234_615_865_843_651_857_942_052_864.0;

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
    /// Cubes of most kernels on a multiprocessor at a time: as many as leave registers for products that run on.
    fn cubes(&self) -> usize {
        if self.head_dim == 64 { 4 } else { 2 }
    }

    /// [`Self::cubes`] of the gradient of queries.
    fn query_gradient_cubes(&self) -> usize {
        if self.documents && self.dropout { 2 } else { self.cubes() }
    }

    /// Whether three cubes of the gradient of keys and values find registers on a multiprocessor, each of them without those in which
    /// products of one block run on beside the next one's. Otherwise there are two.
    fn three_key_value_cubes(&self) -> bool {
        self.head_dim == 64 && !self.dropout
    }

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

    /// Whether each batch row's `t` queries and `s` keys are one tile, and each head has keys of its own.
    pub(super) fn one_tile(&self, t: usize, s: usize) -> bool {
        t <= TILE && s <= TILE && self.n_heads == self.n_kv_heads
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
fn place(unit: u32) -> Place {
    Place { row: unit / 32 * 16 + unit % 32 / 4, column: unit % 4 * 2 }
}

/// `UNIT_POS` through a shuffle: what hangs on it is worked out where it is asked for, neither earlier nor kept across a loop.
#[cube]
fn unit_here() -> u32 {
    plane_shuffle(UNIT_POS, UNIT_POS % 32)
}

/// The head, counted over all batch rows, and the tile that the cube works on, which may lie beyond the last. Cubes start with X
/// first, then Y, then Z: Z groups of heads, the last first, whose keys and values stay in L2 until their last tile; Y groups
/// of tiles, and in X the tiles of a group, `1 << tile_bits` of a head side by side.
#[cube]
fn cube_place(heads_at_once: u32, tile_bits: u32) -> (u32, u32) {
    let head = from_last(CUBE_POS_Z, CUBE_COUNT_Z) * heads_at_once + (CUBE_POS_X >> tile_bits);
    let tile = (CUBE_POS_Y << tile_bits) + (CUBE_POS_X & ((1u32 << tile_bits) - 1));
    (head, tile)
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

/// The sums of `a * b` over the columns of a head, for the unit's two rows of the 64 from `row0` on. Units read 16 bytes, planes
/// whole lines, and pass the sums on. `first` is the matrix row of the batch's row 0; rows from `rows` on have the last one's
/// sums.
#[cube]
fn row_products<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    first: u32,
    row0: u32,
    rows: u32,
    column: u32,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> (f32, f32) {
    let turns = comptime![head_dim / 16];
    let per_row = comptime![head_dim as u32 / 8];
    let at_once = comptime![32 / (head_dim as u32 / 8)];
    let lane = unit % 32;
    let mut of_a = Array::<Oct<E>>::new(turns);
    let mut of_b = Array::<Oct<E>>::new(turns);
    #[unroll]
    for turn in 0..turns {
        let row = row0 + unit / 32 * 16 + comptime![turn as u32] * at_once + lane / per_row;
        let at =
            (first + min(row, rows - 1)) as usize * comptime![columns / 8] + (column / 8 + lane % per_row) as usize;
        of_a[turn] = a[at];
        of_b[turn] = b[at];
    }
    let mut sums = Array::<f32>::new(turns);
    #[unroll]
    for turn in 0..turns {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..8usize {
            sum += f32::cast_from(of_a[turn].extract(i)) * f32::cast_from(of_b[turn].extract(i));
        }
        sums[turn] = sum;
    }
    // Row `lane / 4` was summed at turn `mine`, eight rows on half the turns later.
    let mine = lane / 4 / at_once;
    let source = lane / 4 % at_once * per_row;
    let mut first_sum = 0.0f32;
    let mut second_sum = 0.0f32;
    #[unroll]
    for turn in 0..turns {
        let mut sum = quad_sum(sums[turn]);
        sum += plane_shuffle_xor(sum, 4u32);
        if comptime![head_dim == 128] {
            sum += plane_shuffle_xor(sum, 8u32);
        }
        let passed = plane_shuffle(sum, source);
        if comptime![turn < turns / 2] {
            first_sum = select(mine == comptime![turn as u32], passed, first_sum);
        } else {
            second_sum = select(mine == comptime![(turn - turns / 2) as u32], passed, second_sum);
        }
    }
    (first_sum, second_sum)
}

/// Room for a 64 x 64 left operand. It is made before a loop, not in it: a product that runs on into the next turn reads these
/// registers, and only what is live is not given to others.
#[cube]
fn left_operand<E: Float>() -> Sequence<Array<E>> {
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
    tile: u32,
    #[comptime] layout: WgmmaTileLayout,
) {
    #[unroll]
    for step in 0..comptime![TILE / K_STEP] {
        multiply::<E>(acc, fragments.index(step), tile, step, layout);
    }
}

/// `acc += stays * streamed`, both in shared memory: all columns of a head.
#[cube]
fn product_shared<E: Float>(acc: &mut Array<f32>, stays: u32, streamed: u32, #[comptime] cfg: FlashConfig) {
    let layout = comptime![cfg.rows_layout()];
    #[unroll]
    for step in 0..comptime![cfg.head_dim / K_STEP] {
        multiply_shared::<E>(acc, stays, streamed, step, layout, layout);
    }
}

/// Shared memory in which results of 64 rows of a head wait to be stored.
#[cube]
fn results_memory<E: Float>(#[comptime] cfg: FlashConfig) -> Shared<[Oct<E>]> {
    Shared::<[Oct<E>]>::new_aligned_slice(comptime![cfg.tile_len() / 8], 1024usize)
}

/// Stores a 64 x head_dim accumulator times `scale0` (first row) and `scale1` (second) at (`row0`, `column`) of a matrix, rows
/// before `rows` only. Each plane turns its 16 rows through shared memory (`stmatrix`), so that units store 16 bytes and
/// planes whole lines. `first` is the matrix row of the batch's row 0.
#[cube]
fn store_rows<E: Float>(
    values: &Array<f32>,
    scale0: f32,
    scale1: f32,
    memory: &mut Shared<[Oct<E>]>,
    out: &mut [Oct<E>],
    first: u32,
    row0: u32,
    rows: u32,
    column: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let per_row = comptime![head_dim as u32 / 8];
    let lane = UNIT_POS % 32;
    let plane_row = UNIT_POS / 32 * 16;
    // What lay here has been read by the plane.
    sync_plane();
    #[unroll]
    for sixteen in 0..comptime![head_dim / 16] {
        let mut four = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for matrix in 0..4usize {
            let from = comptime![sixteen * 8 + matrix * 2];
            let scale = if comptime![matrix % 2 == 0] { scale0 } else { scale1 };
            let mut pair = Pair::<f32>::empty();
            pair.insert(0usize, values[from] * scale);
            pair.insert(1usize, values[comptime![from + 1]] * scale);
            four[matrix] = Pair::<E>::cast_from(pair);
        }
        let row = plane_row + lane % 16;
        let oct = lane / 16 + comptime![2 * sixteen as u32];
        let at = (row * per_row + (oct ^ (row % 8))) as usize;
        instruction.store_matrix::<Oct<E>, Const<2>>(
            &mut memory[at..at + 1],
            &four,
            MatrixIdent::Accumulator,
            4usize,
            false,
        );
    }
    sync_plane();
    #[unroll]
    for turn in 0..comptime![head_dim / 16] {
        let n = lane + comptime![32 * turn as u32];
        let row = plane_row + n / per_row;
        let oct = n % per_row;
        if row0 + row < rows {
            let to = (first + row0 + row) as usize * comptime![columns / 8] + (column / 8 + oct) as usize;
            out[to] = memory[(row * per_row + (oct ^ (row % 8))) as usize];
        }
    }
}

/// Tiles in shared memory, some in each slot, and the barriers that say a slot is full.
#[derive(CubeType)]
struct Slots<E: Float> {
    tiles: Shared<[E]>,
    full: Sequence<Shared<Barrier>>,
}

/// `n` slots of `per_slot` tiles. The caller fences and syncs before they are filled.
#[cube]
fn slots<E: Float>(#[comptime] n: usize, #[comptime] per_slot: usize, #[comptime] cfg: FlashConfig) -> Slots<E> {
    let tiles = Shared::<[E]>::new_aligned_slice(comptime![n * per_slot * cfg.tile_len()], 1024usize);
    let mut full = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..n {
        full.push(Barrier::shared_uninit());
    }
    if UNIT_POS == 0 {
        #[unroll]
        for slot in 0..n {
            full.index(slot).init_manual(1u32);
        }
    }
    Slots::<E> { tiles, full }
}

/// Unit 0 asks for the only tile of slot `slot` of two: that at matrix row `row` and column `column` of `map`. Rows of the next
/// sequence, where this one ends, give results that nobody stores.
#[cube]
fn fill<E: Float>(
    slots: &mut Slots<E>,
    slot: u32,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    if slot == 0 {
        fill_slot::<E>(slots, 0usize, map, row, column, cfg);
    } else {
        fill_slot::<E>(slots, 1usize, map, row, column, cfg);
    }
}

#[cube]
fn fill_slot<E: Float>(
    slots: &mut Slots<E>,
    #[comptime] slot: usize,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    slots.full.index(slot).arrive_and_expect_tx(1, comptime![(2 * cfg.tile_len()) as u32]);
    load::<E>(slots, slot, slot, map, row, column, cfg);
}

/// [`fill`] for slots of two tiles, one of each map.
#[cube]
fn fill_both<E: Float>(
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
        fill_slot_both::<E>(slots, 0usize, map_a, map_b, row, column_a, column_b, cfg);
    } else {
        fill_slot_both::<E>(slots, 1usize, map_a, map_b, row, column_a, column_b, cfg);
    }
}

#[cube]
fn fill_slot_both<E: Float>(
    slots: &mut Slots<E>,
    #[comptime] slot: usize,
    map_a: &TensorMap<E, Tiled>,
    map_b: &TensorMap<E, Tiled>,
    row: u32,
    column_a: u32,
    column_b: u32,
    #[comptime] cfg: FlashConfig,
) {
    slots.full.index(slot).arrive_and_expect_tx(1, comptime![(4 * cfg.tile_len()) as u32]);
    load::<E>(slots, slot, comptime![2 * slot], map_a, row, column_a, cfg);
    load::<E>(slots, slot, comptime![2 * slot + 1], map_b, row, column_b, cfg);
}

/// Waits until what block `block` reads lies in its slot of two, which is returned.
#[cube]
fn arrived<E: Float>(slots: &Slots<E>, block: u32) -> u32 {
    let slot = block % 2;
    let parity = block / 2 % 2;
    if slot == 0 {
        slots.full.index(0usize).wait_parity(parity);
    } else {
        slots.full.index(1usize).wait_parity(parity);
    }
    slot
}

#[cube]
fn load<E: Float>(
    slots: &mut Slots<E>,
    #[comptime] slot: usize,
    #[comptime] tile: usize,
    map: &TensorMap<E, Tiled>,
    row: u32,
    column: u32,
    #[comptime] cfg: FlashConfig,
) {
    #[unroll]
    for span in 0..comptime![cfg.head_dim / SPAN] {
        let from = comptime![tile * cfg.tile_len() + span * TILE * SPAN];
        let column = column + comptime![(span * SPAN) as u32];
        slots.full.index(slot).tma_load_2d(
            map,
            &mut slots.tiles[from..comptime![from + TILE * SPAN]],
            row as i32,
            column as i32,
        );
    }
}

/// Tile `n` of those of which `first` describes the first.
#[cube]
fn tile(first: u32, n: u32, #[comptime] cfg: FlashConfig) -> u32 {
    first + n * comptime![(cfg.tile_len() * 2 / 16) as u32]
}

/// Sixteen random bits each for eight probabilities of row `row` of all rows of all heads, those of keys `column`, `column
/// + 1` and every eight keys on in half `half` of the tile of keys number `tile`: what a unit holds of that half.
#[cube]
fn random_words(random: &[i32], site: u32, row: u32, tile: u32, half: u32, column: u32, keys: u32) -> Array<u32> {
    let tiles = (keys + comptime![TILE as u32 - 1]) / comptime![TILE as u32];
    let (w0, w1, w2, w3) = philox((row * tiles + tile) * 8 + half * 4 + column / 2, site, random);
    let mut words = Array::<u32>::new(4usize);
    words[0] = w0;
    words[1] = w1;
    words[2] = w2;
    words[3] = w3;
    words
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
        let words = random_words(random, site, from, tile, comptime![half as u32].runtime(), column, keys);
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
        let words = random_words(random, site, from, tile, at.row / 32, at.row % 8, keys);
        let first = select(last_words, words[2], words[0]) >> shift;
        let second = select(last_words, words[3], words[1]) >> shift;
        let bit = comptime![(query / 2 * 4 + query % 2) as u32];
        kept |= select((first & 0xffff) >= limit, comptime![1u32 << bit].runtime(), 0u32);
        kept |= select((second & 0xffff) >= limit, comptime![1u32 << (bit + 2)].runtime(), 0u32);
    }
    kept
}
