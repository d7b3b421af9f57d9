//! Matrices that lie in slices, and their products: on the calling thread, or in tiles on all threads.
//!
//! The crate `gemm` multiplies, but for the products of a forward pass, see [`product`].

mod copy;
mod in_order;
mod int8;
mod kernel;
mod product;
mod swapped;
mod tile;

use std::marker::PhantomData;
use std::ops::Range;

pub use self::int8::Int8;
pub(crate) use self::int8::Int8Matrix;
pub(crate) use self::product::{int8_product, product, product_into};

/// A matrix in a slice, row by row, or its transpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    /// From row to row, and from column to column. One of them is 1.
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

    /// The matrix of some rows or columns, transposed or not.
    fn part(self, [rows, columns]: [Range<usize>; 2]) -> Self {
        let [down, right] = self.strides;
        assert!(rows.end <= self.shape[0] && columns.end <= self.shape[1], "{rows:?}, {columns:?} of {:?}", self.shape);
        let first = (rows.start * down + columns.start * right).min(self.values.len());
        Self { values: &self.values[first..], shape: [rows.len(), columns.len()], strides: self.strides }
    }

    /// The numbers from a row and a column on.
    fn from(self, row: usize, column: usize) -> &'a [f32] {
        &self.values[row * self.strides[0] + column * self.strides[1]..]
    }

    fn is_transposed(self) -> bool {
        self.strides[1] != 1
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

    /// A pointer to a number of the matrix.
    fn at(&mut self, row: usize, column: usize) -> *mut f32 {
        self.first.wrapping_add(row * self.stride + column)
    }

    /// Some numbers of a row, which must have been written.
    fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.shape[0] && columns.end <= self.shape[1], "{row}, {columns:?} of {:?}", self.shape);
        #[expect(unsafe_code, reason = "rows of a tile lie apart")]
        // SAFETY: the numbers lie within the matrix, which is borrowed.
        unsafe {
            std::slice::from_raw_parts_mut(self.at(row, columns.start), columns.len())
        }
    }

    /// Returns the rows, each of which must have been written.
    fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let ([m, n], first, stride) = (self.shape, self.first, self.stride);
        #[expect(unsafe_code, reason = "rows of a tile lie apart")]
        // SAFETY: rows lie within the matrix, do not overlap, and the matrix is borrowed.
        (0..m).map(move |i| unsafe { std::slice::from_raw_parts_mut(first.add(i * stride), n) })
    }
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

fn check(len: usize, [rows, columns]: [usize; 2], stride: usize) {
    assert!(columns <= stride || rows <= 1, "rows of {columns} numbers overlap at a stride of {stride}");
    assert!(rows == 0 || (rows - 1) * stride + columns <= len, "[{rows}, {columns}] at {stride} in {len} numbers");
}

#[cfg(test)]
mod tests;
