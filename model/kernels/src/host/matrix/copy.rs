//! Copies of operands in the order in which the kernel reads them.

use std::ops::Range;

use super::Matrix;

/// Rows of a copy that are written at a time, because they fit in the first cache.
const AT_ONCE: usize = 64;

/// Copies some rows of some columns, at most `width`, row by row. Columns beyond them are 0.
pub(super) fn panel(b: Matrix<'_>, [rows, columns]: [Range<usize>; 2], width: usize, into: &mut [f32]) {
    let n = columns.len();
    for (chunk, into) in into.chunks_mut(AT_ONCE * width).enumerate() {
        let first = rows.start + chunk * AT_ONCE;
        if !b.is_transposed() {
            for (i, into) in into.chunks_exact_mut(width).enumerate() {
                into[..n].copy_from_slice(&b.from(first + i, columns.start)[..n]);
                into[n..].fill(0.0);
            }
            continue;
        }
        let height = into.len() / width;
        for j in 0..width {
            let to = into[j..].iter_mut().step_by(width);
            if j < n {
                let column = &b.from(first, columns.start + j)[..height];
                to.zip(column).for_each(|(to, from)| *to = *from);
            } else {
                to.for_each(|to| *to = 0.0);
            }
        }
    }
}
