//! Products in tiles on all threads.
//!
//! The products of a forward pass, of which a search takes a few rows in each step, have a loop of their own. A number of them depends on
//! its row and its column only, see [`kernel`](super::kernel): it has the same bits alone and among others.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

use super::in_order::InOrder;
use super::int8::{Int8, Int8Matrix, Rounded};
use super::swapped::Swapped;
use super::tile::{HEIGHT, Room};
use super::{Matrix, MatrixMut, multiply};

/// Rows up to which a product with a transposed right operand has the loop of its own. A search takes fewer in a step; training takes
/// more, for which `gemm` is faster (`benches/results/2026-11-29-cpu-products.md`).
const MANY: usize = 1024;
/// Terms of a sum up to which a copy of a transposed right operand takes less time than exchanging the operands
/// (`benches/results/2026-11-29-cpu-products.md`).
const SHORT: usize = 128;
/// The largest tile, rows and columns, and the smallest.
const TALLEST: [usize; 2] = [HEIGHT, 256];
const SHORTEST: [usize; 2] = [64, 64];
/// Tiles that each thread should have, so that none waits long for another.
const TILES_PER_THREAD: usize = 2;

/// The largest tile of `gemm`: rows and columns.
const LARGEST_TILE: [usize; 2] = [128, 512];
/// The smallest. Below it, a thread spends more time in copying operands than in multiplying them.
const SMALLEST_TILE: [usize; 2] = [32, 64];
/// Tiles that a product should have, so that the threads of a usual machine share them evenly.
const TILES: usize = 32;

/// How a tile is computed.
enum Way<'a> {
    InOrder(InOrder<'a>),
    Swapped(Swapped<'a>),
    /// In int8.
    Rounded(Rounded<'a>),
    /// By `gemm`.
    Library(Matrix<'a>, Matrix<'a>),
}

impl<'a> Way<'a> {
    /// The way of a product with a loop of its own.
    fn new(a: Matrix<'a>, b: Matrix<'a>) -> Self {
        let is_swapped = b.is_transposed() && a.shape[1] > SHORT;
        if is_swapped { Self::Swapped(Swapped::new(a, b)) } else { Self::InOrder(InOrder::new(a, b)) }
    }

    /// The most rows and columns of a tile.
    fn tile(&self, [m, n]: [usize; 2]) -> [usize; 2] {
        if let Self::Library(..) = self {
            let [mut height, mut width] = LARGEST_TILE;
            while m.div_ceil(height) * n.div_ceil(width) < TILES && [height, width] != SMALLEST_TILE {
                if width >= 2 * height { width /= 2 } else { height /= 2 }
            }
            return [height, width];
        }
        let wanted = TILES_PER_THREAD * rayon::current_num_threads();
        let [mut height, mut width] = TALLEST;
        while m.div_ceil(height) * n.div_ceil(width) < wanted && [height, width] != SHORTEST {
            if width > SHORTEST[1] { width /= 2 } else { height /= 2 }
        }
        [height, width]
    }

    /// Writes some rows and columns of the product.
    fn write(&self, into: &mut MatrixMut<'_>, place: [Range<usize>; 2], room: &mut Room) {
        match self {
            Self::InOrder(way) => way.write(into, place, room),
            Self::Swapped(way) => way.write(into, place, room),
            Self::Rounded(way) => way.write(into, place),
            Self::Library(a, b) => {
                let ([rows, columns], [_, k]) = (place, a.shape);
                multiply(into, false, 1.0, a.part([rows, 0..k]), b.part([0..k, columns]));
            }
        }
    }
}

/// Returns `a b`, row by row. A thread computes a tile and then calls `finish` for each of its rows, with the row's index, the
/// columns of the tile and the numbers in them. The order of sums depends on the shapes only.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product(
    a: Matrix<'_>,
    b: Matrix<'_>,
    finish: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let ([m, k], [depth, n]) = (a.shape, b.shape);
    assert_eq!(k, depth, "{:?} x {:?}", a.shape, b.shape);
    let is_by_library = a.is_transposed() || (b.is_transposed() && m > MANY);
    // Each tile of `gemm` copies its part of `b`, which takes longer if that is transposed.
    let copy = (is_by_library && b.is_transposed() && m > SMALLEST_TILE[0]).then(|| b.copied());
    let b = copy.as_deref().map_or(b, |copy| Matrix::new(copy, b.shape, n));

    in_tiles(&if is_by_library { Way::Library(a, b) } else { Way::new(a, b) }, [m, n], finish)
}

/// Returns `a b` for weights in int8, as [`product`]. A number has the same bits alone and among others.
///
/// # Panics
/// If the shapes do not fit, or `a` is transposed.
pub(crate) fn int8_product(
    a: Matrix<'_>,
    b: &Int8Matrix,
    finish: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let ([m, k], [depth, n]) = (a.shape, b.shape());
    assert_eq!(k, depth, "{:?} x {:?}", a.shape, b.shape());
    assert!(!a.is_transposed(), "the left operand lies row by row");
    let way = match b.kind() {
        Int8::Weights => Way::InOrder(InOrder::of_int8(a, b)),
        Int8::Both => Way::Rounded(Rounded::new(a, b)),
    };
    in_tiles(&way, [m, n], finish)
}

/// Returns the product, written in tiles by all threads.
fn in_tiles(way: &Way<'_>, [m, n]: [usize; 2], finish: impl Fn(usize, Range<usize>, &mut [f32]) + Sync) -> Vec<f32> {
    let mut values = Vec::<f32>::with_capacity(m * n);
    let whole = MatrixMut { first: values.as_mut_ptr(), shape: [m, n], stride: n, values: PhantomData };
    let tiles = whole.tiles(way.tile([m, n]));

    tiles.into_par_iter().for_each_init(Room::default, |room, Tile { rows, columns, mut matrix }| {
        way.write(&mut matrix, [rows.clone(), columns.clone()], room);
        for (i, row) in rows.zip(matrix.rows()) {
            finish(i, columns.clone(), row);
        }
    });

    #[expect(unsafe_code, reason = "the numbers are written before they have a length")]
    // SAFETY: the tiles cover all numbers, and each of them is written.
    unsafe {
        values.set_len(m * n);
    }
    values
}

/// Writes `a b` on this thread. A number has the same bits alone and among others.
///
/// # Panics
/// If the shapes do not fit, or `a` is transposed.
pub(crate) fn product_into(into: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>) {
    let ([m, n], [rows, k], [depth, columns]) = (into.shape, a.shape, b.shape);
    assert!([m, n, k] == [rows, columns, depth], "{:?} x {:?} is not {:?}", a.shape, b.shape, into.shape);
    assert!(!a.is_transposed(), "the left operand lies row by row");
    if m > 0 {
        InOrder::new(a, b).write(into, [0..m, 0..n], &mut Room::default());
    }
}

/// A part of a matrix to write.
struct Tile<'a> {
    rows: Range<usize>,
    columns: Range<usize>,
    matrix: MatrixMut<'a>,
}

impl Matrix<'_> {
    /// Returns the numbers row by row.
    fn copied(self) -> Vec<f32> {
        /// Rows that a thread writes at a time: as many numbers as a line of the cache has.
        const ROWS: usize = 16;
        let ([_, n], [down, right]) = (self.shape, self.strides);
        super::super::written(self.shape[0] * n, ROWS * n, |i, rows| {
            let (first, height) = (ROWS * i, rows.len() / n);
            for j in 0..n {
                let column = self.values[first * down + j * right..].iter().step_by(down);
                rows[j..].iter_mut().step_by(n).zip(column).take(height).for_each(|(to, from)| *to = *from);
            }
        })
    }
}

impl<'a> MatrixMut<'a> {
    /// Cuts the matrix into tiles of at most so many rows and columns.
    fn tiles(mut self, [height, width]: [usize; 2]) -> Vec<Tile<'a>> {
        let [m, n] = self.shape;
        let tile = |(row, column): (usize, usize)| {
            let (rows, columns) = (row..(row + height).min(m), column..(column + width).min(n));
            let shape = [rows.len(), columns.len()];
            Tile { rows, columns, matrix: Self { first: self.at(row, column), shape, ..self } }
        };
        let rows = (0..m).step_by(height);
        rows.flat_map(|row| (0..n).step_by(width).map(move |column| (row, column))).map(tile).collect()
    }
}
