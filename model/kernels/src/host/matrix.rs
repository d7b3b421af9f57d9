//! Matrices that lie in slices, and their product on the calling thread.

use std::ops::Range;

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
    values: &'a mut [f32],
    shape: [usize; 2],
    stride: usize,
}

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
}

impl<'a> MatrixMut<'a> {
    /// Writes the first `columns` of each `stride` numbers as a row.
    ///
    /// # Panics
    /// If the rows overlap or do not fit into `values`.
    pub(crate) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2], stride: usize) -> Self {
        check(values.len(), [rows, columns], stride);
        Self { values, shape: [rows, columns], stride }
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
pub(crate) fn multiply(into: MatrixMut<'_>, accumulate: bool, factor: f32, a: Matrix<'_>, b: Matrix<'_>) {
    let ([m, n], [_, k]) = (into.shape, a.shape);
    assert!(a.shape == [m, k] && b.shape == [k, n], "{:?} x {:?} is not {:?}", a.shape, b.shape, into.shape);
    if m == 0 || n == 0 {
        return;
    }
    let stride = |stride: usize| isize::try_from(stride).expect("a slice has less than isize::MAX numbers");
    let [a_down, a_right] = a.strides.map(stride);
    let [b_down, b_right] = b.strides.map(stride);

    #[expect(unsafe_code, reason = "gemm takes pointers")]
    // SAFETY: `check` has found that all rows lie within their slices, and `into` is not shared.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            into.values.as_mut_ptr(),
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
            multiply(MatrixMut::new(&mut found, [m, n], 8), true, 0.5, a, b);
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
    #[should_panic(expected = "in 11 numbers")]
    fn a_matrix_outside_its_slice_is_refused() {
        let _ = Matrix::new(&[0.0; 11], [3, 4], 4);
    }

    #[test]
    #[should_panic(expected = "is not [2, 2]")]
    fn shapes_that_do_not_fit_are_refused() {
        let x = [0.0; 6];
        multiply(
            MatrixMut::new(&mut [0.0; 4], [2, 2], 2),
            false,
            1.0,
            Matrix::new(&x, [2, 3], 3),
            Matrix::new(&x, [2, 3], 3),
        );
    }
}
