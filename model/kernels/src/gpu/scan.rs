//! Prefix sums over a block.

use cubecl::prelude::*;

/// Threads of a block that scans: a warp of warps, so that a thread adds up the warps in one step.
pub(crate) const SCAN_UNITS: u32 = 1024;

/// The sums that [`scan`] returns to a thread.
#[derive(CubeType)]
pub(crate) struct Prefix {
    /// Sum of the numbers of the threads before this one.
    pub(crate) before: u32,
    /// Sum of the numbers of all threads.
    pub(crate) total: u32,
}

/// Returns the prefix sums of one number per thread of a block of [`SCAN_UNITS`]. `of_warps` holds a number for each warp. In a loop,
/// the caller synchronizes the block before the next scan: until then, threads read `of_warps`.
#[cube]
pub(crate) fn scan(number: u32, of_warps: &mut Shared<[u32]>) -> Prefix {
    let warp = UNIT_POS / 32;
    let up_to = plane_inclusive_sum(number);
    if UNIT_POS_PLANE == 31 {
        of_warps[warp as usize] = up_to;
    }
    sync_cube();

    let of_warp = of_warps[UNIT_POS_PLANE as usize];
    let warps_up_to = plane_inclusive_sum(of_warp);
    Prefix {
        before: plane_shuffle(warps_up_to - of_warp, warp) + up_to - number,
        total: plane_shuffle(warps_up_to, 31u32),
    }
}
