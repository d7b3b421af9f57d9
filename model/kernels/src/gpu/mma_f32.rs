//! Matrix products of single warps in f32, by the TF32 instructions of `mma.sync`: eight elements of K each, of 11 significant bits.
//!
//! With the accuracy of f32, each number is split into the sum of two TF32 numbers, and a product into three (Ootomo and Yokota 2022,
//! "Recovering single precision accuracy from Tensor Cores"): `a b = a1 b1 + a1 b2 + a2 b1`. The product left out is below 2^-22 of
//! the whole. The instructions truncate their sums, which over a long K adds up; so the three products of a step start from zero, and
//! a rounded addition adds them to the results.
//!
//! `ldmatrix` cannot transpose words, so operands across K are read by plain loads of four rows' elements at one K, see [`fragments`].
//! Rows `4 l` to `4 l + 3` of 32 are then where a fragment along K has rows `l`, `l + 8`, `l + 16` and `l + 24`: rows or columns of
//! the product change places, see [`row_across`] and [`eight_of_row`].

use burn::backend::DType;
use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use super::mma::{LINE, Pair, Reader, half_of, multiply, quad_transpose, zeroed};
use crate::fp8::Fp8;
use crate::kernel_set::F32Products;

/// Elements of the summed dimension per instruction.
const K_STEP: usize = 8;

/// The bits of an f32 number that TF32 lacks.
const BELOW: u32 = (1 << 13) - 1;

/// How a kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arithmetic {
    /// 16-bit floats as they are.
    Sixteen,
    /// FP8: the formats of both operands. Two of their numbers lie in an element of 16 bits.
    Eight([Fp8; 2]),
    /// f32 rounded to TF32.
    Tf32,
    /// f32 as sums of two TF32 numbers.
    F32,
}

impl Arithmetic {
    /// Returns the arithmetic for operands of `dtype`.
    pub(crate) fn new(dtype: DType, f32_products: F32Products) -> Self {
        match (dtype, f32_products) {
            (DType::F32, F32Products::Tf32) => Self::Tf32,
            (DType::F32, F32Products::F32) => Self::F32,
            _ => Self::Sixteen,
        }
    }

    pub(crate) fn is_f32(self) -> bool {
        matches!(self, Self::Tf32 | Self::F32)
    }

    /// Numbers in an element.
    pub(crate) fn per_element(self) -> usize {
        if matches!(self, Self::Eight(_)) { 2 } else { 1 }
    }

    /// Elements of a vector of 16 bytes.
    pub(crate) fn vector(self) -> usize {
        if self.is_f32() { 4 } else { 8 }
    }

    /// Elements of a register of a fragment.
    pub(crate) fn register(self) -> usize {
        if self.is_f32() { 1 } else { 2 }
    }

    /// Elements of a line in shared memory.
    pub(crate) fn line(self) -> usize {
        self.vector() * LINE
    }
}

/// A fragment as it is multiplied: a left one, or half of a right one.
#[derive(CubeType)]
pub(crate) struct Operand<E: Float, R: Size> {
    /// Of 16 bits.
    whole: Array<Vector<E, R>>,
    /// In f32, the fragment rounded, and what that has left.
    rounded: Array<Vector<tf32, R>>,
    rest: Array<Vector<tf32, R>>,
}

/// Returns a left fragment as it is multiplied.
#[cube]
pub(crate) fn left_operand<E: Float, R: Size>(
    fragment: &Array<Vector<E, R>>,
    #[comptime] arithmetic: Arithmetic,
) -> Operand<E, R> {
    operand::<E, R>(fragment, 4usize, arithmetic)
}

/// Returns half `half` of a right fragment, eight columns, as it is multiplied.
#[cube]
pub(crate) fn right_operand<E: Float, R: Size>(
    fragment: &Array<Vector<E, R>>,
    #[comptime] half: usize,
    #[comptime] arithmetic: Arithmetic,
) -> Operand<E, R> {
    operand::<E, R>(&half_of::<E, R>(fragment, half), 2usize, arithmetic)
}

#[cube]
fn operand<E: Float, R: Size>(
    registers: &Array<Vector<E, R>>,
    #[comptime] n: usize,
    #[comptime] arithmetic: Arithmetic,
) -> Operand<E, R> {
    let mut whole = Array::<Vector<E, R>>::new(n);
    let mut rounded = Array::<Vector<tf32, R>>::new(n);
    let mut rest = Array::<Vector<tf32, R>>::new(n);

    #[unroll]
    for i in 0..n {
        if comptime![arithmetic == Arithmetic::Tf32] {
            let exact = Vector::<f32, R>::cast_from(registers[i]);
            // The sum would carry into the sign of the NaN whose bits are all ones.
            let is_number = exact.equal(&exact);
            let words = select_many(is_number, half_up::<R>(exact), Vector::<u32, R>::reinterpret(exact));
            rounded[i] = Vector::<tf32, R>::reinterpret(words);
        } else if comptime![arithmetic == Arithmetic::F32] {
            let exact = Vector::<f32, R>::cast_from(registers[i]);
            let words = half_up::<R>(exact) & Vector::new(comptime![!BELOW]);
            rounded[i] = Vector::<tf32, R>::reinterpret(words);
            rest[i] = Vector::<tf32, R>::reinterpret(exact - Vector::<f32, R>::reinterpret(words));
        } else {
            whole[i] = registers[i];
        }
    }
    Operand::<E, R> { whole, rounded, rest }
}

/// Returns the bits of `x` plus half of a unit of TF32. Without the bits below such a unit, which the instructions ignore, this is `x`
/// rounded to the nearest TF32, ties away from zero, as `cvt.rna` rounds. That instruction takes several times as long.
#[cube]
fn half_up<R: Size>(x: Vector<f32, R>) -> Vector<u32, R> {
    Vector::<u32, R>::reinterpret(x) + Vector::new(comptime![BELOW / 2 + 1])
}

/// Adds the product of a left fragment and half of a right one, a matrix of 16 x 8, to `acc`.
#[cube]
pub(crate) fn multiply_as<E: Float, R: Size>(
    acc: &mut Array<Pair<f32>>,
    left: &Operand<E, R>,
    right: &Operand<E, R>,
    #[comptime] arithmetic: Arithmetic,
) {
    if comptime![arithmetic == Arithmetic::Sixteen] {
        multiply::<E, R>(acc, &left.whole, &right.whole);
    } else {
        let instruction = MmaDefinition::<tf32, tf32, f32>::new(16usize, 8usize, 8usize);
        if comptime![arithmetic == Arithmetic::Tf32] {
            instruction.execute_inplace(&left.rounded, &right.rounded, acc);
        } else {
            let mut sum = zeroed();
            instruction.execute_inplace(&left.rest, &right.rounded, &mut sum);
            instruction.execute_inplace(&left.rounded, &right.rest, &mut sum);
            instruction.execute_inplace(&left.rounded, &right.rounded, &mut sum);
            #[unroll]
            for row in 0..2usize {
                acc[row] += sum[row];
            }
        }
    }
}

/// Returns where vector `vector` of line `line` lies in a tile across K whose other operand is read along K, in vectors. A lane reads
/// lines `k` and `k + 4` of a step then, `k` of its four.
#[cube]
pub(crate) fn place_across(line: u32, vector: u32) -> u32 {
    line * comptime![LINE as u32] + (vector ^ (line % 4 * 2))
}

/// Returns how this lane reads a tile across K, from row `row` on, a multiple of 32.
///
/// The four lanes that share rows read different lines at once. If the fragments of the other operand are `in_registers`, their
/// results are in pairs, and a lane reads two adjacent lines of a tile placed by [`place_in_tile`](super::mma::place_in_tile);
/// otherwise, two lines that are four apart of a tile placed by [`place_across`].
#[cube]
pub(crate) fn reader_across(row: u32, #[comptime] in_registers: bool) -> Reader {
    let (vector, k) = (UNIT_POS_PLANE / 4, UNIT_POS_PLANE % 4);
    let line = comptime![LINE as u32];
    let mut places = Array::<u32>::new(4usize);
    if comptime![in_registers] {
        places[0] = (row + 2 * k) * line + (vector ^ (2 * k));
        places[1] = (row + 2 * k + 1) * line + (vector ^ (2 * k + 1));
    } else {
        places[0] = (row + k) * line + (vector ^ (2 * k));
        places[1] = places[0] + 4 * line;
    }
    places[2] = 0u32;
    places[3] = 0u32;
    Reader { places, across: true, panel: comptime![64usize] }
}

/// Returns two fragments, of 32 rows, at step `step` of K, of the panel that begins at vector `panel` of `memory`, which is stored
/// across K. Each has four registers: of a left operand, or of a right one.
#[cube]
pub(crate) fn fragments<E: Float, N: Size, R: Size>(
    memory: &Shared<[Vector<E, N>]>,
    panel: u32,
    reader: &Reader,
    #[comptime] step: usize,
    #[comptime] left: bool,
) -> Array<Vector<E, R>> {
    let mut registers = Array::<Vector<E, R>>::new(8usize);
    #[unroll]
    for nth in 0..2usize {
        let at = panel + reader.places[nth] + comptime![(step * K_STEP * LINE) as u32];
        let four = memory[at as usize];
        #[unroll]
        for row in 0..4usize {
            // Left: two registers of rows, then two of the other K. Right: both K of eight columns, then of the next.
            let place = comptime![if left { row / 2 * 4 + nth * 2 + row % 2 } else { row * 2 + nth }];
            registers[place] = Vector::<E, R>::new(four.extract(row));
        }
    }
    registers
}

/// Returns the row, of 32, of this lane's results number `half` of fragment `fragment` of a left operand across K.
#[cube]
pub(crate) fn row_across(lane: u32, #[comptime] fragment: usize, #[comptime] half: usize) -> u32 {
    lane / 4 * 4 + comptime![(fragment % 2 * 2 + half) as u32]
}

/// Returns this lane's eight results in a row of 32 columns, which four products of 16 x 8 give it: columns `8 l` to `8 l + 7`, `l` of
/// its four. `pairs` are its results in each. If the right operand was `across` K, they are there; otherwise four adjacent lanes
/// exchange theirs.
#[cube]
pub(crate) fn eight_of_row<N: Size>(pairs: &Array<Pair<f32>>, #[comptime] across: bool) -> Array<Vector<f32, N>> {
    let mut eight = Array::<Vector<f32, N>>::new(2usize);
    eight[0] = Vector::<f32, N>::zeroed();
    eight[1] = Vector::<f32, N>::zeroed();

    #[unroll]
    for which in 0..2usize {
        if comptime![across] {
            // Eight products apart in the tile, neighbours in memory.
            let mut four = Vector::<f32, N>::zeroed();
            #[unroll]
            for product in 0..4usize {
                four.insert(product, pairs[product].extract(which));
            }
            eight[which] = four;
        } else {
            let mut words = Array::<u32>::new(4usize);
            #[unroll]
            for product in 0..4usize {
                words[product] = u32::reinterpret(pairs[product].extract(which));
            }
            quad_transpose(&mut words);
            #[unroll]
            for from in 0..4usize {
                let mut four = eight[comptime![from / 2]];
                four.insert(comptime![from % 2 * 2 + which], f32::reinterpret(words[from]));
                eight[comptime![from / 2]] = four;
            }
        }
    }
    eight
}
