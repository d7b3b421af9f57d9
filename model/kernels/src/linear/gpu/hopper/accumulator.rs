//! The results of a warpgroup, 64 rows, in its threads' registers.

use cubecl::prelude::*;

use crate::linear::gpu::shared::vectors::Pair;

/// Returns the thread's position in its warpgroup, through a shuffle: LLVM hoists nothing computed from it out of a loop, which
/// would spill the addresses of an epilogue across the main loop.
#[cube]
pub(crate) fn thread_in_warpgroup() -> u32 {
    plane_shuffle(UNIT_POS, UNIT_POS_PLANE) % 128
}

/// Returns results `2 i` and `2 i + 1` of the thread, which are neighbours in a row.
#[cube]
pub(crate) fn pair(acc: &Array<f32>, #[comptime] i: usize) -> Pair<f32> {
    let mut v = Pair::<f32>::empty();
    v.insert(0usize, acc[comptime![2 * i]]);
    v.insert(1usize, acc[comptime![2 * i + 1]]);
    v
}
