//! Transposes a matrix of f32, through squares of it in shared memory.

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::gpu::memory::{empty_pitched, row_pitch};
use crate::linear::gpu::shared::vectors::Quad;

/// Edge of the squares.
const EDGE: usize = 64;
/// Vectors of four across a square.
const QUADS: u32 = EDGE as u32 / 4;
/// Elements from one row of a square to the next. Threads that read a column read different banks.
const PITCH: usize = EDGE + 1;
/// Threads of a block.
const UNITS: u32 = 256;
/// Rows of a square that a block moves at once.
const AT_ONCE: u32 = UNITS / QUADS;

/// `to = fromᵀ`, of `from` with `rows` rows. Pitches are the vectors from one row to the next; `to` has 0 in the gap behind its rows.
#[cube(launch_unchecked)]
fn transpose(from: &[Quad<f32>], to: &mut [Quad<f32>], rows: u32, columns: u32, from_pitch: u32, to_pitch: u32) {
    let mut square = Shared::<[f32]>::new_slice(comptime![EDGE * PITCH]);
    let (row0, column0) = (CUBE_POS_Y * comptime![EDGE as u32], CUBE_POS_X * comptime![EDGE as u32]);
    let (line, quad) = (UNIT_POS / QUADS, UNIT_POS % QUADS);

    #[unroll]
    for turn in 0..comptime![EDGE / AT_ONCE as usize] {
        let down = line + comptime![turn as u32 * AT_ONCE];
        let (row, column) = (row0 + down, column0 + 4 * quad);
        let mut four = Quad::<f32>::zeroed();
        if row < rows && column < columns {
            four = from[row as usize * from_pitch as usize + (column / 4) as usize];
        }
        #[unroll]
        for i in 0..4usize {
            square[(down * comptime![PITCH as u32] + 4 * quad + comptime![i as u32]) as usize] = four.extract(i);
        }
    }
    sync_cube();

    #[unroll]
    for turn in 0..comptime![EDGE / AT_ONCE as usize] {
        let across = line + comptime![turn as u32 * AT_ONCE];
        let (row, quads) = (column0 + across, row0 / 4 + quad);
        if row < columns && quads < to_pitch {
            let mut four = Quad::<f32>::zeroed();
            #[unroll]
            for i in 0..4usize {
                let at = (4 * quad + comptime![i as u32]) * comptime![PITCH as u32] + across;
                four.insert(i, square[at as usize]);
            }
            to[row as usize * to_pitch as usize + quads as usize] = four;
        }
    }
}

/// Returns the transpose of `matrix`, whose rows begin at multiples of 16 bytes, as do the result's.
pub(super) fn transposed(matrix: &CubeTensor) -> CubeTensor {
    let [rows, columns] = [matrix.meta.shape()[0], matrix.meta.shape()[1]];
    let out = empty_pitched(matrix, [columns, rows], DType::F32);
    let (from_pitch, to_pitch) = (row_pitch(matrix) / 4, row_pitch(&out) / 4);
    let squares = CubeCount::Static(columns.div_ceil(EDGE) as u32, rows.div_ceil(EDGE) as u32, 1);
    // SAFETY: loads and stores are guarded by rows and columns; both buffers have as many vectors as their rows have pitches.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        transpose::launch_unchecked(
            &matrix.client,
            squares,
            CubeDim::new_1d(UNITS),
            BufferArg::from_raw_parts(matrix.handle.clone(), rows * from_pitch),
            BufferArg::from_raw_parts(out.handle.clone(), columns * to_pitch),
            rows as u32,
            columns as u32,
            from_pitch as u32,
            to_pitch as u32,
        );
    }
    out
}
