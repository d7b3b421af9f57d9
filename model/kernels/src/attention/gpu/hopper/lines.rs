//! Rows of a head in lines of 128 bytes, for blocks of one warpgroup: they are stored through shared memory, and multiplied. Other
//! heads take the ways of [`rows`].

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;
use cubecl_ir::types::MatrixIdent;

use crate::attention::gpu::shared::config::FlashConfig;
use crate::attention::gpu::shared::position::Patch;
use crate::attention::gpu::shared::softmax::quad_sum;
use crate::attention::gpu::shared::{Oct, Pair, rows};

/// Allocates the shared memory that [`store_rows`] needs.
#[cube]
pub(super) fn results_memory<E: Float>(#[comptime] cfg: FlashConfig) -> Shared<[Oct<E>]> {
    Shared::<[Oct<E>]>::new_aligned_slice(comptime![if cfg.is_a_line() { cfg.tile_len() / 8 } else { 1 }], 1024usize)
}

/// Stores a 64 x head_dim accumulator at `patch` of a matrix of `columns` columns.
#[cube]
pub(super) fn store_rows<E: Float>(
    values: &Array<f32>,
    memory: &mut Shared<[Oct<E>]>,
    out: &mut [Oct<E>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.is_a_line()] {
        store_lines::<E>(values, memory, out, patch, columns, comptime![cfg.head_dim]);
    } else {
        let scale = 1.0f32;
        rows::store_rows::<E, Const<8>>(values, scale, scale, out, patch, UNIT_POS, columns, comptime![cfg.head_dim]);
    }
}

/// Returns the sums of `a * b` over the columns of a head, for the thread's two rows of `patch`. Rows beyond the batch row's last
/// repeat it.
#[cube]
pub(super) fn row_products<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    patch: &Patch,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] cfg: FlashConfig,
) -> (f32, f32) {
    if comptime![cfg.has_lines()] {
        line_products::<E>(a, b, patch, unit, columns, comptime![cfg.head_dim])
    } else {
        rows::row_products::<E, Const<8>>(a, b, patch, unit, columns, comptime![cfg.head_dim])
    }
}

/// [`store_rows`] for heads of 64. Each warp transposes its 16 rows through shared memory (`stmatrix`), so that threads store
/// 16 bytes and warps whole lines.
#[cube]
fn store_lines<E: Float>(
    values: &Array<f32>,
    memory: &mut Shared<[Oct<E>]>,
    out: &mut [Oct<E>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let per_row = comptime![head_dim as u32 / 8];
    let lane = UNIT_POS % 32;
    let plane_row = UNIT_POS / 32 * 16;
    // The warp has read the previous contents.
    sync_plane();
    #[unroll]
    for sixteen in 0..comptime![head_dim / 16] {
        let mut four = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for matrix in 0..4usize {
            let from = comptime![sixteen * 8 + matrix * 2];
            four[matrix] = Pair::<E>::cast_from(rows::pair(values, from));
        }
        let row = plane_row + lane % 16;
        let oct = lane / 16 + comptime![2 * sixteen as u32];
        let at = (row * per_row + (oct ^ (row % 8))) as usize;
        instruction.store_matrix::<Oct<E>, Const<2>>(
            &mut memory[at..at + 1],
            &four,
            MatrixIdent::Accumulator,
            4usize,
            false,
        );
    }

    sync_plane();
    #[unroll]
    for turn in 0..comptime![head_dim / 16] {
        let n = lane + comptime![32 * turn as u32];
        let row = plane_row + n / per_row;
        let oct = n % per_row;
        if patch.row0 + row < patch.rows {
            let to =
                (patch.first + patch.row0 + row) as usize * comptime![columns / 8] + (patch.column / 8 + oct) as usize;
            out[to] = memory[(row * per_row + (oct ^ (row % 8))) as usize];
        }
    }
}

/// [`row_products`] of heads of 64 or 128. Threads read 16 bytes and warps whole lines, then pass the sums on.
#[cube]
fn line_products<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    patch: &Patch,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> (f32, f32) {
    let turns = comptime![head_dim / 16];
    let per_row = comptime![head_dim as u32 / 8];
    let at_once = comptime![32 / (head_dim as u32 / 8)];
    let lane = unit % 32;
    let mut of_a = Array::<Oct<E>>::new(turns);
    let mut of_b = Array::<Oct<E>>::new(turns);
    #[unroll]
    for turn in 0..turns {
        let row = patch.row0 + unit / 32 * 16 + comptime![turn as u32] * at_once + lane / per_row;
        let at = (patch.first + min(row, patch.rows - 1)) as usize * comptime![columns / 8]
            + (patch.column / 8 + lane % per_row) as usize;
        of_a[turn] = a[at];
        of_b[turn] = b[at];
    }

    let mut sums = Array::<f32>::new(turns);
    #[unroll]
    for turn in 0..turns {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..8usize {
            sum += f32::cast_from(of_a[turn].extract(i)) * f32::cast_from(of_b[turn].extract(i));
        }
        sums[turn] = sum;
    }

    // Row `lane / 4` was summed at turn `mine`; the row eight further, half the turns later.
    let mine = lane / 4 / at_once;
    let source = lane / 4 % at_once * per_row;
    let mut first_sum = 0.0f32;
    let mut second_sum = 0.0f32;
    #[unroll]
    for turn in 0..turns {
        let mut sum = quad_sum(sums[turn]);
        sum += plane_shuffle_xor(sum, 4u32);
        if comptime![head_dim == 128] {
            sum += plane_shuffle_xor(sum, 8u32);
        }
        let passed = plane_shuffle(sum, source);
        if comptime![turn < turns / 2] {
            first_sum = select(mine == comptime![turn as u32], passed, first_sum);
        } else {
            second_sum = select(mine == comptime![(turn - turns / 2) as u32], passed, second_sum);
        }
    }
    (first_sum, second_sum)
}
