//! Products in which a vector takes columns of the right operand, which lies row by row, or is copied so: from columns, or from int8.

use std::ops::Range;

use super::copy;
use super::int8::Int8Matrix;
use super::kernel::{self, Block, Sums, TERMS};
use super::tile::{Room, blocks};
use super::{Matrix, MatrixMut};

/// Rows up to which a product reads the right operand where it lies. For more, a copy that stays in a cache pays
/// (`benches/results/2026-11-29-cpu-products.md`).
const FEW: usize = 64;
/// Rows of the right operand that are copied at a time.
const DEPTH: usize = 4 * TERMS;

/// The operands.
pub(super) struct InOrder<'a> {
    a: Matrix<'a>,
    b: Right<'a>,
    block: Block,
    /// Whether the right operand is copied.
    is_copied: bool,
}

/// A right operand.
enum Right<'a> {
    Plain(Matrix<'a>),
    Int8(&'a Int8Matrix),
}

impl Right<'_> {
    /// Copies some rows of some columns, see [`copy::panel`].
    fn copy(&self, [rows, columns]: [Range<usize>; 2], width: usize, into: &mut [f32]) {
        match self {
            Self::Plain(b) => copy::panel(*b, [rows, columns], width, into),
            Self::Int8(b) => b.unrounded(rows, columns.start, into),
        }
    }
}

impl<'a> InOrder<'a> {
    pub(super) fn new(a: Matrix<'a>, b: Matrix<'a>) -> Self {
        let [rows, k] = a.shape;
        let is_copied = rows > FEW || k == 0 || b.is_transposed();
        Self { a, b: Right::Plain(b), block: Block::of_this_machine(), is_copied }
    }

    pub(super) fn of_int8(a: Matrix<'a>, b: &'a Int8Matrix) -> Self {
        Self { a, b: Right::Int8(b), block: Block::of_this_machine(), is_copied: true }
    }

    /// The rows of some columns of a right operand that is not copied, and the distance from one to the next.
    fn right(&self, row: usize, column: usize) -> (&'a [f32], usize) {
        match self.b {
            Right::Plain(b) => (b.from(row, column), b.strides[0]),
            Right::Int8(_) => unreachable!("int8 is copied"),
        }
    }

    /// Some columns of a block of rows.
    fn left(&self, block: &Range<usize>, ks: &Range<usize>) -> (*const f32, usize) {
        let stride = self.a.strides[0];
        let values = self.a.from(block.start, ks.start);
        assert!(values.len() >= (block.len() - 1) * stride + ks.len(), "the columns of a block");
        (values.as_ptr(), stride)
    }

    /// Writes some rows and columns of the product.
    pub(super) fn write(&self, into: &mut MatrixMut<'_>, [rows, columns]: [Range<usize>; 2], room: &mut Room) {
        let (width, [_, k], [_, n]) = (self.block.columns, self.a.shape, into.shape);
        let (panels, whole) = (n.div_ceil(width), n / width);
        let blocks: Vec<_> = blocks(rows.clone(), self.block.rows).collect();
        // The last panel can reach beyond the columns: its sums lie apart.
        room.sums.resize(rows.len() * width * (panels - whole), 0.0);

        let depth = if self.is_copied { DEPTH } else { TERMS };
        for first in (0..k.max(1)).step_by(depth) {
            let ks = first..(first + depth).min(k);
            let from = columns.start + if self.is_copied { 0 } else { whole * width };
            let size = ks.len() * width;
            room.copied.resize((columns.end - from).div_ceil(width) * size, 0.0);
            for (panel, into) in room.copied.chunks_mut(size.max(1)).enumerate() {
                let start = from + panel * width;
                self.b.copy([ks.clone(), start..columns.end.min(start + width)], width, into);
            }

            let sums = (0..panels).flat_map(|panel| blocks.iter().map(move |block| (panel, block)));
            let sums = sums.map(|(panel, block)| {
                let i = block.start - rows.start;
                let b = if self.is_copied {
                    (&room.copied[panel * size..], width)
                } else if panel == whole {
                    (&room.copied[..], width)
                } else {
                    self.right(first, columns.start + panel * width)
                };
                assert!(ks.is_empty() || b.0.len() >= (ks.len() - 1) * b.1 + width, "the rows of a panel");
                let c = if panel == whole {
                    (room.sums[i * width..].as_mut_ptr(), width)
                } else {
                    (into.at(i, panel * width), into.stride)
                };
                let (a, is_first) = (self.left(block, &ks), first == 0);
                Sums { rows: block.len(), is_narrow: false, k: ks.len(), a, b: (b.0.as_ptr(), b.1), c, is_first }
            });
            #[expect(unsafe_code, reason = "the kernel takes pointers")]
            // SAFETY: the slices hold `a` and `b`, and `c` lies in this tile or in the room of this thread.
            unsafe {
                kernel::add(sums);
            }
        }
        let rows = into.rows().zip(room.sums.chunks(width));
        rows.for_each(|(row, sums)| row[whole * width..].copy_from_slice(&sums[..n - whole * width]));
    }
}
