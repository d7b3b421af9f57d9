//! Matrix products of single warps: `ldmatrix` and `mma.sync` of the PTX ISA, for GPUs without `wgmma`.
//!
//! Tiles in shared memory consist of *lines* of 128 bytes, eight vectors each. Vector `v` of line `l` lies at place
//! `v ^ (l % 8)` of its line, so that the eight vectors of a column, which `ldmatrix` reads at a time, are in different banks.
//!
//! An operand is stored in one of two ways. In both a tile has a line's elements of the summed dimension K: 64 of 16 bits, 32 of f32.
//!
//! | | a line of 16-bit elements | lines |
//! |---|---|---|
//! | along K | the 64 elements of a row | one per row |
//! | across K | 64 rows' elements at one K | 64 per panel of 64 rows |
//!
//! A step of K is two vectors along K. `ldmatrix` moves words, so it reads fragments along K of f32 as it reads pairs of 16-bit
//! elements. What differs in f32 is in [`super::mma_f32`].
//!
//! Vectors have `N` elements, the registers of a fragment `R`: 8 and 2 of 16 bits, 4 and 1 of f32.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;
use cubecl_ir::types::MatrixIdent;

pub(crate) type Pair<E> = Vector<E, Const<2>>;

/// 16-bit elements of the summed dimension per instruction.
pub(crate) const K_STEP: usize = 16;
/// Rows of an instruction's left operand, and columns of two instructions' right operands.
pub(crate) const EDGE: usize = 16;
/// Vectors of a line.
pub(crate) const LINE: usize = 8;

/// Returns where vector `vector` of line `line` lies in a tile, in vectors.
#[cube]
pub(crate) fn place_in_tile(line: u32, vector: u32) -> u32 {
    line * comptime![LINE as u32] + (vector ^ (line % 8))
}

/// Where a lane reads the fragments of a tile.
#[derive(CubeType)]
pub(crate) struct Reader {
    /// Along K: the place at each step of K, without the row. Across K: the place at each 16 rows of a panel, without the step; of f32,
    /// the places of the step's two lines that a lane reads.
    pub(super) places: Array<u32>,
    #[cube(comptime)]
    pub(super) across: bool,
    /// Across K: the lines of a panel.
    #[cube(comptime)]
    pub(super) panel: usize,
}

/// Returns how this lane reads a left operand, from row `row` of the tile on; across K, `row` is a multiple of 64.
#[cube]
pub(crate) fn left_reader(row: u32, #[comptime] across: bool) -> Reader {
    let lane = UNIT_POS_PLANE;
    let (along, other) = (lane % 16, lane / 16);
    if comptime![across] {
        reader(row, lane % 8 + lane / 16 * 8, lane / 8 % 2, true)
    } else {
        reader(row, along, other, false)
    }
}

/// Returns how this lane reads a right operand, whose rows are the columns of the product.
#[cube]
pub(crate) fn right_reader(row: u32, #[comptime] across: bool) -> Reader {
    let lane = UNIT_POS_PLANE;
    if comptime![across] {
        reader(row, lane % 16, lane / 16, true)
    } else {
        reader(row, lane % 8 + lane / 16 * 8, lane / 8 % 2, false)
    }
}

/// Returns how this lane reads a right operand across K whose panels have `lines` lines instead of 64.
#[cube]
pub(crate) fn short_right_reader(#[comptime] lines: usize) -> Reader {
    let across = right_reader(0u32, true);
    Reader { places: across.places, across: comptime![true], panel: comptime![lines] }
}

/// Returns the reader of a lane that reads, of the first 16 x 16 elements, vector `vector` of line `line`.
#[cube]
fn reader(row: u32, line: u32, vector: u32, #[comptime] across: bool) -> Reader {
    let mut places = Array::<u32>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        // Lines of one lane are the same modulo 8, whatever the row and the step.
        places[i] = place_in_tile(row + line, vector ^ comptime![2 * i as u32]);
    }
    Reader { places, across, panel: comptime![64usize] }
}

/// Returns the fragment of the 16 rows number `sixteen` of the reader's, at step `step` of K, of the tile that begins at vector
/// `tile` of `memory`: the registers of four 8 x 8 matrices. Across K, elements have 16 bits.
#[cube]
pub(crate) fn fragment<E: Float, N: Size, R: Size>(
    memory: &Shared<[Vector<E, N>]>,
    tile: u32,
    reader: &Reader,
    #[comptime] sixteen: usize,
    #[comptime] step: usize,
) -> Array<Vector<E, R>> {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let across = comptime![reader.across];
    let at = if comptime![across] {
        let (panel, within) = comptime![((sixteen / 4 * reader.panel * LINE) as u32, sixteen % 4)];
        tile + reader.places[within] + comptime![panel + (step * K_STEP * LINE) as u32]
    } else {
        tile + reader.places[step] + comptime![(sixteen * EDGE * LINE) as u32]
    };
    let at = at as usize;
    instruction.load_matrix::<Vector<E, N>, R>(&memory[at..at + 1], MatrixIdent::A, 4usize, across)
}

/// Adds the product of a left fragment and half of a right one, a matrix of 16 x 8, to `acc`. Elements have 16 bits.
#[cube]
pub(crate) fn multiply<E: Float, R: Size>(
    acc: &mut Array<Pair<f32>>,
    left: &Array<Vector<E, R>>,
    right: &Array<Vector<E, R>>,
) {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    instruction.execute_inplace(left, right, acc);
}

/// Returns half `half` of a right fragment: eight columns.
#[cube]
pub(crate) fn half_of<E: Float, R: Size>(right: &Array<Vector<E, R>>, #[comptime] half: usize) -> Array<Vector<E, R>> {
    let mut columns = Array::<Vector<E, R>>::new(2usize);
    columns[0] = right[comptime![2 * half]];
    columns[1] = right[comptime![2 * half + 1]];
    columns
}

/// Returns a lane's share of a zeroed 16 x 8 matrix.
#[cube]
pub(crate) fn zeroed() -> Array<Pair<f32>> {
    let mut acc = Array::<Pair<f32>>::new(2usize);
    acc[0] = Pair::zeroed();
    acc[1] = Pair::zeroed();
    acc
}

/// Transposes a 4 x 4 matrix of words, of which each of four adjacent lanes holds a row.
#[cube]
pub(crate) fn quad_transpose(words: &mut Array<u32>) {
    let odd = UNIT_POS_PLANE % 2 == 1;
    let upper = UNIT_POS_PLANE / 2 % 2 == 1;
    #[unroll]
    for i in 0..2usize {
        exchange(words, comptime![2 * i], comptime![2 * i + 1], odd, 1u32);
    }
    #[unroll]
    for i in 0..2usize {
        exchange(words, i, comptime![i + 2], upper, 2u32);
    }
}

/// Exchanges word `second` of the lower lane with word `first` of the upper one, of two lanes that are `distance` apart.
#[cube]
fn exchange(words: &mut Array<u32>, #[comptime] first: usize, #[comptime] second: usize, upper: bool, distance: u32) {
    let (a, b) = (words[first], words[second]);
    let received = plane_shuffle_xor(select(upper, a, b), distance);
    words[first] = select(upper, received, a);
    words[second] = select(upper, b, received);
}
