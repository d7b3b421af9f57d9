//! Products whose right operand is transposed: its columns lie as rows, and the kernel reads them where they lie. The operands change
//! places, so that a vector takes rows of the left one.

use std::ops::Range;

use rayon::prelude::*;

use super::copy;
use super::kernel::{self, Block, Sums, TERMS};
use super::tile::{Room, blocks};
use super::{Matrix, MatrixMut};

/// Numbers of a column that are read at a time.
const DEPTH: usize = 8 * TERMS;
/// Columns that a block reads side by side (`benches/results/2026-11-29-cpu-products.md`).
const STREAMS: usize = 12;

/// The left operand in panels of rows, each column by column, and the right one.
pub(super) struct Swapped<'a> {
    a: Vec<f32>,
    b: Matrix<'a>,
    /// Of the transposed product.
    block: Block,
    /// Rows of a panel.
    width: usize,
}

impl<'a> Swapped<'a> {
    pub(super) fn new(a: Matrix<'_>, b: Matrix<'a>) -> Self {
        let (block, [m, k]) = (Block::of_this_machine(), a.shape);
        let width = if m <= block.narrow() { block.narrow() } else { block.columns };
        let mut copied = vec![0.0; m.div_ceil(width) * width * k];
        copied.par_chunks_mut((width * k).max(1)).enumerate().for_each(|(panel, into)| {
            let rows = panel * width..m.min((panel + 1) * width);
            copy::panel(a.transposed(), [0..k, rows], width, into);
        });
        Self { a: copied, b, block, width }
    }

    /// Writes some rows and columns of the product.
    pub(super) fn write(&self, into: &mut MatrixMut<'_>, [rows, columns]: [Range<usize>; 2], room: &mut Room) {
        let (width, [k, _], [m, n]) = (self.width, self.b.shape, into.shape);
        let (panels, first_panel) = (m.div_ceil(width), rows.start / width);
        room.sums.resize(panels * n * width, 0.0);

        let blocks: Vec<_> = blocks(columns.clone(), STREAMS.min(self.block.rows)).collect();
        for first in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - first);
            let sums = blocks.iter().flat_map(|block| (0..panels).map(move |panel| (block, panel)));
            let sums = sums.map(|(block, panel)| {
                let (a, stride) = (self.b.from(first, block.start), self.b.strides[1]);
                assert!(a.len() >= (block.len() - 1) * stride + depth, "the columns of a block");
                let b = &self.a[((first_panel + panel) * k + first) * width..][..depth * width];
                let c = &mut room.sums[(panel * n + block.start - columns.start) * width..][..block.len() * width];
                Sums {
                    rows: block.len(),
                    is_narrow: width < self.block.columns,
                    k: depth,
                    a: (a.as_ptr(), stride),
                    b: (b.as_ptr(), width),
                    c: (c.as_mut_ptr(), width),
                    is_first: first == 0,
                }
            });
            #[expect(unsafe_code, reason = "the kernel takes pointers")]
            // SAFETY: the slices hold `a`, `b` and `c`, which is in the room of this thread.
            unsafe {
                kernel::add(sums);
            }
        }
        for (i, row) in into.rows().enumerate() {
            let sums = room.sums[i / width * n * width + i % width..].iter().step_by(width);
            row.iter_mut().zip(sums).for_each(|(to, from)| *to = *from);
        }
    }
}
