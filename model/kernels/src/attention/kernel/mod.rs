//! Flash attention on tensor cores (Dao 2023, FlashAttention-2): scores live in registers, tile by tile.
//!
//! A cube is one warpgroup of 128 units. It holds the tile of 64 rows that stays (queries in forward and for the gradient of
//! the queries, keys and values for theirs) as MMA fragments in registers, and TMA streams the other sequence past it through
//! three slots of shared memory. Several cubes share a multiprocessor, so that one computes exponentials while another
//! multiplies. All columns of heads are read where the projection wrote them.
//!
//! Backward is two kernels, one that owns the rows of dQ and one that owns those of dK and dV: no sum depends on timing.

pub(super) mod backward;
pub(super) mod forward;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::{Fragment, Major, MatrixDescriptor, Swizzle, WgmmaTileLayout};
use half::bf16;

use crate::dropout::kernel::philox;

type Pair<E> = Vector<E, Const<2>>;

/// Rows of the tile that stays, and of a streamed tile.
pub(super) const TILE: usize = 64;
/// Columns of a TMA box: one 128-byte swizzle span of bf16.
pub(super) const SPAN: usize = 64;
/// Units of a cube.
pub(super) const UNITS: u32 = 128;
/// Slots of shared memory for streamed tiles: one is read, one is full, one is being filled.
const SLOTS: u32 = 3;
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
fn load_fragments(
    x: &[Pair<bf16>],
    first: u32,
    row0: u32,
    rows: u32,
    column: u32,
    at: &Place,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> Sequence<Fragment<bf16>> {
    let mut fragments = Sequence::<Fragment<bf16>>::new();
    #[unroll]
    for step in 0..comptime![head_dim / 16] {
        let mut fragment = Fragment::<bf16>::new();
        #[unroll]
        for chunk in 0..4usize {
            let row = row0 + at.row + comptime![(chunk as u32 % 2) * 8];
            let from = column + at.column + comptime![(step * 16 + chunk / 2 * 8) as u32];
            let mut value = Pair::<bf16>::zeroed();
            if row < rows {
                value = x[((first + row) as usize * columns + from as usize) / 2];
            }
            fragment.set(comptime![chunk * 2], value.extract(0usize));
            fragment.set(comptime![chunk * 2 + 1], value.extract(1usize));
        }
        fragments.push(fragment);
    }
    fragments
}

/// Columns `step * 16..` of a 64 x 64 accumulator's elements, as the left operand of the next MMA.
#[cube]
fn fragment_of(values: &Array<f32>, #[comptime] step: usize) -> Fragment<bf16> {
    let mut fragment = Fragment::<bf16>::new();
    #[unroll]
    for chunk in 0..4usize {
        let mut pair = Pair::<f32>::empty();
        pair.insert(0usize, values[comptime![step * 8 + chunk * 2]]);
        pair.insert(1usize, values[comptime![step * 8 + chunk * 2 + 1]]);
        let rounded = Pair::<bf16>::cast_from(pair);
        fragment.set(comptime![chunk * 2], rounded.extract(0usize));
        fragment.set(comptime![chunk * 2 + 1], rounded.extract(1usize));
    }
    fragment
}

/// Stores this unit's share of a 64 x head_dim accumulator times `scale0` (first row) and `scale1` (second).
#[cube]
fn store_rows(
    values: &Array<f32>,
    scale0: f32,
    scale1: f32,
    out: &mut [Pair<bf16>],
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
            out[((first + row) as usize * columns + to as usize) / 2] = Pair::<bf16>::cast_from(pair);
        }
    }
}

/// The two streamed tiles in shared memory, [`SLOTS`] of each, and the barriers that say a slot is full.
#[derive(CubeType)]
struct Slots {
    a: Shared<[bf16]>,
    b: Shared<[bf16]>,
    full: Sequence<Shared<Barrier>>,
}

#[cube]
fn slots(#[comptime] cfg: FlashConfig) -> Slots {
    let a = Shared::<[bf16]>::new_aligned_slice(comptime![SLOTS as usize * cfg.tile_len()], 1024usize);
    let b = Shared::<[bf16]>::new_aligned_slice(comptime![SLOTS as usize * cfg.tile_len()], 1024usize);
    let mut full = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..comptime![SLOTS] {
        full.push(Barrier::shared_uninit());
    }
    if UNIT_POS == 0 {
        #[unroll]
        for slot in 0..comptime![SLOTS as usize] {
            full.index(slot).init_manual(1u32);
        }
    }
    sync_async_proxy_shared();
    sync_cube();
    Slots { a, b, full }
}

/// Unit 0 asks for the tiles at matrix row `row`, one at `column_a` of `map_a` and one at `column_b` of `map_b`.
#[cube]
fn fill(
    slots: &mut Slots,
    slot: u32,
    map_a: &TensorMap<bf16, Tiled>,
    map_b: &TensorMap<bf16, Tiled>,
    row: u32,
    column_a: u32,
    column_b: u32,
    #[comptime] cfg: FlashConfig,
) {
    #[unroll]
    for s in 0..comptime![SLOTS as usize] {
        if slot == comptime![s as u32] {
            fill_slot(slots, map_a, map_b, row, column_a, column_b, s, cfg);
        }
    }
}

#[cube]
fn fill_slot(
    slots: &mut Slots,
    map_a: &TensorMap<bf16, Tiled>,
    map_b: &TensorMap<bf16, Tiled>,
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

/// Waits until the tiles of `block` have arrived in its slot, which is returned.
#[cube]
fn arrived(slots: &Slots, block: u32) -> u32 {
    let slot = block % SLOTS;
    let parity = block / SLOTS % 2;
    #[unroll]
    for s in 0..comptime![SLOTS as usize] {
        if slot == comptime![s as u32] {
            slots.full.index(s).wait_parity(parity);
        }
    }
    slot
}

#[cube]
fn descriptor(
    smem: &Shared<[bf16]>,
    slot: u32,
    #[comptime] len: usize,
    #[comptime] layout: WgmmaTileLayout,
) -> MatrixDescriptor<bf16> {
    let from = slot as usize * len;
    MatrixDescriptor::new(&smem[from..from + len], layout)
}

/// Sixteen random bits each for the probabilities of `key` (even) and the next key in row `row` of all rows of all heads.
#[cube]
fn random_pair(random: &[i32], site: u32, row: u32, key: u32, keys: u32) -> (u32, u32) {
    let (w0, w1, w2, w3) = philox(row * ((keys + 7) / 8) + key / 8, site, random);
    let place = key % 8;
    let word = select(place < 4, select(place < 2, w0, w1), select(place < 6, w2, w3));
    (word & 0xffff, word >> 16)
}

/// The random bits of one probability.
#[cube]
fn random_bits(random: &[i32], site: u32, row: u32, key: u32, keys: u32) -> u32 {
    let (even, odd) = random_pair(random, site, row, key / 2 * 2, keys);
    select(key % 2 == 0, even, odd)
}
