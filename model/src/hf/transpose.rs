//! Transposes matrices.

/// A part of a matrix: its elements from the first one on, and the width of the whole matrix.
pub(super) struct Part<T> {
    pub(super) elements: T,
    pub(super) width: usize,
}

/// Writes the transpose of `[rows, columns]` elements of `from` to `into`. It works in tiles, so that neither side is accessed
/// with a long stride throughout.
pub(super) fn transpose<T: Copy>(from: &Part<&[T]>, [rows, columns]: [usize; 2], into: &mut Part<&mut [T]>) {
    const TILE: usize = 32;
    let (width, n) = (into.width, from.width);
    for row_tile in (0..rows).step_by(TILE) {
        for column_tile in (0..columns).step_by(TILE) {
            for column in column_tile..(column_tile + TILE).min(columns) {
                let last = (row_tile + TILE).min(rows);
                let target = &mut into.elements[column * width + row_tile..column * width + last];
                for (row, x) in (row_tile..).zip(target) {
                    *x = from.elements[row * n + column];
                }
            }
        }
    }
}
