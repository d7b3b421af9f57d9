//! Matrices that lie in slices, and their products: on the calling thread, or in tiles on all threads.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

/// The largest tile of a product: rows and columns. A thread computes a tile at a time.
const LARGEST_TILE: [usize; 2] = [128, 512];
/// The smallest. Below it, a thread spends more time in copying operands than in multiplying them.
const SMALLEST_TILE: [usize; 2] = [32, 64];
/// Tiles that a product should have, so that the threads of a usual machine share them evenly.
const TILES: usize = 32;

/// A matrix in a slice, row by row, or its transpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    /// From row to row, and from column to column.
    strides: [usize; 2],
}

/// A matrix to write, row by row.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    first: *mut f32,
    shape: [usize; 2],
    stride: usize,
    values: PhantomData<&'a mut [f32]>,
}

#[expect(unsafe_code, reason = "a pointer is not Send by itself")]
// SAFETY: a matrix is the only way to its numbers while it lives, as a slice would be.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> Matrix<'a> {
    /// Reads the first `columns` of each `stride` numbers as a row.
    ///
    /// # Panics
    /// If the rows overlap or do not fit into `values`.
    pub(crate) fn new(values: &'a [f32], [rows, columns]: [usize; 2], stride: usize) -> Self {
        check(values.len(), [rows, columns], stride);
        Self { values, shape: [rows, columns], strides: [stride, 1] }
    }

    pub(crate) fn transposed(self) -> Self {
        let Self { values, shape: [rows, columns], strides: [down, right] } = self;
        Self { values, shape: [columns, rows], strides: [right, down] }
    }

    /// The rows of a matrix that is not transposed.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        let [_, columns] = self.shape;
        assert_eq!(self.strides[1], 1, "a transposed matrix has no rows in the slice");
        Self::new(&self.values[rows.start * self.strides[0]..], [rows.len(), columns], self.strides[0])
    }

    /// Returns the numbers row by row.
    fn copied(self) -> Vec<f32> {
        /// Rows that a thread writes at a time: as many numbers as a line of the cache has.
        const ROWS: usize = 16;
        let ([_, n], [down, right]) = (self.shape, self.strides);
        super::written(self.shape[0] * n, ROWS * n, |i, rows| {
            let (first, height) = (ROWS * i, rows.len() / n);
            for j in 0..n {
                let column = self.values[first * down + j * right..].iter().step_by(down);
                rows[j..].iter_mut().step_by(n).zip(column).take(height).for_each(|(to, from)| *to = *from);
            }
        })
    }

    /// The matrix of some rows or columns, transposed or not.
    fn part(self, [rows, columns]: [Range<usize>; 2]) -> Self {
        let [down, right] = self.strides;
        assert!(rows.end <= self.shape[0] && columns.end <= self.shape[1], "{rows:?}, {columns:?} of {:?}", self.shape);
        let first = (rows.start * down + columns.start * right).min(self.values.len());
        Self { values: &self.values[first..], shape: [rows.len(), columns.len()], strides: self.strides }
    }
}

impl<'a> MatrixMut<'a> {
    /// Writes the first `columns` of each `stride` numbers as a row.
    ///
    /// # Panics
    /// If the rows overlap or do not fit into `values`.
    pub(crate) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2], stride: usize) -> Self {
        check(values.len(), [rows, columns], stride);
        Self { first: values.as_mut_ptr(), shape: [rows, columns], stride, values: PhantomData }
    }
}

fn check(len: usize, [rows, columns]: [usize; 2], stride: usize) {
    assert!(columns <= stride || rows <= 1, "rows of {columns} numbers overlap at a stride of {stride}");
    assert!(rows == 0 || (rows - 1) * stride + columns <= len, "[{rows}, {columns}] at {stride} in {len} numbers");
}

/// Writes `factor * a b`, added to what is there if `accumulate`. The order of sums depends on the shapes only.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn multiply(into: &mut MatrixMut<'_>, accumulate: bool, factor: f32, a: Matrix<'_>, b: Matrix<'_>) {
    let ([m, n], [_, k]) = (into.shape, a.shape);
    assert!(a.shape == [m, k] && b.shape == [k, n], "{:?} x {:?} is not {:?}", a.shape, b.shape, into.shape);
    if m == 0 || n == 0 {
        return;
    }
    let stride = |stride: usize| isize::try_from(stride).expect("a slice has less than isize::MAX numbers");
    let [a_down, a_right] = a.strides.map(stride);
    let [b_down, b_right] = b.strides.map(stride);

    #[expect(unsafe_code, reason = "gemm takes pointers")]
    // SAFETY: `check` has found that all rows lie within their slices, and `into` is not shared. Without `accumulate`, gemm
    // writes all of `into` and reads none of it.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            into.first,
            1,
            stride(into.stride),
            accumulate,
            a.values.as_ptr(),
            a_right,
            a_down,
            b.values.as_ptr(),
            b_right,
            b_down,
            1.0,
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
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
    let ([m, k], [_, n]) = (a.shape, b.shape);
    // Each tile copies its part of `b`, which takes longer if that is transposed.
    let copy = (b.strides[1] > 1 && m > SMALLEST_TILE[0]).then(|| b.copied());
    let b = copy.as_deref().map_or(b, |copy| Matrix::new(copy, b.shape, n));

    let mut values = Vec::<f32>::with_capacity(m * n);
    let whole = MatrixMut { first: values.as_mut_ptr(), shape: [m, n], stride: n, values: PhantomData };

    whole.tiles().into_par_iter().for_each(|Tile { rows, columns, mut matrix }| {
        let (a, b) = (a.part([rows.clone(), 0..k]), b.part([0..k, columns.clone()]));
        multiply(&mut matrix, false, 1.0, a, b);
        for (i, row) in rows.zip(matrix.rows()) {
            finish(i, columns.clone(), row);
        }
    });

    #[expect(unsafe_code, reason = "the numbers are written before they have a length")]
    // SAFETY: the tiles cover all numbers, and `multiply` has written each of them.
    unsafe {
        values.set_len(m * n);
    }
    values
}

/// A part of a matrix to write.
struct Tile<'a> {
    rows: Range<usize>,
    columns: Range<usize>,
    matrix: MatrixMut<'a>,
}

impl<'a> MatrixMut<'a> {
    /// Cuts the matrix. The size of a tile depends on the shape only.
    fn tiles(self) -> Vec<Tile<'a>> {
        let ([m, n], [mut height, mut width]) = (self.shape, LARGEST_TILE);
        while m.div_ceil(height) * n.div_ceil(width) < TILES && [height, width] != SMALLEST_TILE {
            if width >= 2 * height { width /= 2 } else { height /= 2 }
        }

        let tile = |(row, column): (usize, usize)| {
            let (rows, columns) = (row..(row + height).min(m), column..(column + width).min(n));
            #[expect(
                unsafe_code,
                reason = "the rows of tiles side by side alternate in memory, so that no slice holds a tile alone"
            )]
            // SAFETY: the first number of a tile lies within the matrix.
            let first = unsafe { self.first.add(row * self.stride + column) };
            let shape = [rows.len(), columns.len()];
            Tile { rows, columns, matrix: Self { first, shape, ..self } }
        };
        let rows = (0..m).step_by(height);
        rows.flat_map(|row| (0..n).step_by(width).map(move |column| (row, column))).map(tile).collect()
    }

    /// Returns the rows, each of which must have been written.
    fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let ([m, n], first, stride) = (self.shape, self.first, self.stride);
        #[expect(unsafe_code, reason = "rows of a tile lie apart")]
        // SAFETY: rows lie within the matrix, do not overlap, and the matrix is borrowed.
        (0..m).map(move |i| unsafe { std::slice::from_raw_parts_mut(first.add(i * stride), n) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i * 7 % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn products_equal_the_definition_in_every_layout() {
        let (m, n, k) = (5, 7, 9);
        let (a, b) = (numbers(100), numbers(200));
        for (a, b) in [
            (Matrix::new(&a, [m, k], 11), Matrix::new(&b, [k, n], 13)),
            (Matrix::new(&a, [m, k], k), Matrix::new(&b, [n, k], 12).transposed()),
            (Matrix::new(&a, [k, m], 8).transposed(), Matrix::new(&b, [k + 3, n], n).rows(2..k + 2)),
        ] {
            let mut found = vec![100.0; m * 8];
            multiply(&mut MatrixMut::new(&mut found, [m, n], 8), true, 0.5, a, b);
            let at = |x: Matrix<'_>, i: usize, j: usize| x.values[i * x.strides[0] + j * x.strides[1]];
            for (i, row) in found.chunks(8).enumerate() {
                for (j, found) in row[..n].iter().enumerate() {
                    let product: f32 = (0..k).map(|l| at(a, i, l) * at(b, l, j)).sum();
                    assert_eq!(*found, 100.0 + 0.5 * product, "{i}, {j}");
                }
                assert_eq!(row[n], 100.0, "right of the matrix");
            }
        }
    }

    #[test]
    fn tiles_make_up_the_product() {
        for (m, n, k) in [(1, 1, 5), (300, 1000, 17), (1024, 128, 40), (129, 513, 3), (1000, 70, 16)] {
            let (a, b) = (numbers(m * k), numbers(n * k));
            let (a, b) = (Matrix::new(&a, [m, k], k), Matrix::new(&b, [n, k], k).transposed());
            let mut expected = vec![0.0; m * n];
            multiply(&mut MatrixMut::new(&mut expected, [m, n], n), false, 1.0, a, b);

            let found = product(a, b, |i, columns, row| {
                row.iter_mut().zip(columns).for_each(|(x, j)| *x += (i * n + j) as f32)
            });
            let expected = expected.iter().enumerate().map(|(i, x)| x + i as f32);
            assert!(found.iter().copied().eq(expected), "{m}, {n}, {k}");
        }
        assert!(product(Matrix::new(&[], [0, 3], 3), Matrix::new(&[0.0; 6], [3, 2], 2), |_, _, _| ()).is_empty());
    }

    #[test]
    #[should_panic(expected = "in 11 numbers")]
    fn a_matrix_outside_its_slice_is_refused() {
        let _ = Matrix::new(&[0.0; 11], [3, 4], 4);
    }

    #[test]
    #[should_panic(expected = "is not [2, 2]")]
    fn shapes_that_do_not_fit_are_refused() {
        let x = [0.0; 6];
        multiply(
            &mut MatrixMut::new(&mut [0.0; 4], [2, 2], 2),
            false,
            1.0,
            Matrix::new(&x, [2, 3], 3),
            Matrix::new(&x, [2, 3], 3),
        );
    }
}
