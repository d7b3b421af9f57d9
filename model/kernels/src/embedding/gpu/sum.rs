//! Sums the rows of each id in the order of their tokens.

use cubecl::prelude::*;

use crate::dropout::kernel::{DropArgs, keep_factors};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::add_up;

/// Threads of a block: four warps. Few blocks have much to do, and small ones are distributed evenly.
pub(super) const SUM_UNITS: u32 = 128;
/// Warps of a block.
pub(super) const PLANES: u32 = SUM_UNITS / 32;
/// Blocks on a multiprocessor at a time (`benches/results/2026-11-22-h200-5980429.md`).
const SUM_CUBES: usize = 4;
/// Tokens of a segment: one per lane of its warp.
pub(super) const SEGMENT: u32 = 32;
/// Rows whose loads are in flight.
const ROWS_IN_FLIGHT: u32 = 8;
/// Vectors of a row that a warp takes: one per lane.
pub(super) const COLUMNS: u32 = 32;

/// Rows, and the tokens they belong to, sorted by id.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Rows<F: Float, N: Size> {
    pub(super) dy: Box<[Vector<F, N>]>,
    /// Number of each token.
    pub(super) order: Box<[u32]>,
    /// Id of each token.
    pub(super) sorted: Box<[i32]>,
    /// Of the random stream. Not touched without dropout.
    pub(super) state: Box<[i32]>,
}

/// The gradient of the table, and the sums of ids that extend over several segments.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Sums<F: Float, N: Size> {
    pub(super) out: Box<[Vector<F, N>]>,
    pub(super) head: Box<[Vector<f32, N>]>,
    pub(super) tail: Box<[Vector<f32, N>]>,
}

/// Sums the rows of one segment of the sorted tokens, each times its dropout factor. A warp takes 32 columns. The sum
/// of an id that lies within the segment is its row of the gradient. An id that continues from the previous segment
/// leaves its sum in `head`, an id that begins here and continues in the next one in `tail`.
#[cube(launch_unchecked)]
pub(super) fn accumulate<F: Float, N: Size>(
    rows: &Rows<F, N>,
    sums: &mut Sums<F, N>,
    n: u32,
    drop: DropArgs,
    #[comptime] vectors: u32,
    #[comptime] is_dropped: bool,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(SUM_CUBES);
    let segment = CUBE_POS_X * PLANES + UNIT_POS / 32;
    let begin = segment * SEGMENT;
    if begin < n {
        let column = CUBE_POS_Y * COLUMNS + UNIT_POS_PLANE;
        let end = select(begin + SEGMENT < n, begin + SEGMENT, n);
        // Each lane loads one token; shuffles distribute them.
        let lane = select(begin + UNIT_POS_PLANE < n, begin + UNIT_POS_PLANE, n - 1);
        let next = select(lane + 1 < n, lane + 1, n - 1);
        let before = select(begin > 0, begin - 1, begin);
        let token = rows.order[lane as usize];
        let id = rows.sorted[lane as usize];
        let next_id = rows.sorted[next as usize];
        let mut goes_on = begin > 0 && rows.sorted[before as usize] == plane_broadcast(id, 0u32);

        let mut sum = Vector::<f32, N>::zeroed();
        for turn in 0..comptime![SEGMENT / ROWS_IN_FLIGHT] {
            let mut loaded = Array::<Vector<F, N>>::new(comptime![ROWS_IN_FLIGHT as usize]);
            #[unroll]
            for j in 0..ROWS_IN_FLIGHT {
                let place = turn * ROWS_IN_FLIGHT + j;
                let row = plane_shuffle(token, place);
                loaded[comptime![j as usize]] = Vector::<F, N>::zeroed();
                if begin + place < end && column < vectors {
                    let from = row as usize * comptime![vectors as usize] + column as usize;
                    loaded[comptime![j as usize]] = rows.dy[from];
                }
            }
            #[unroll]
            for j in 0..ROWS_IN_FLIGHT {
                let place = turn * ROWS_IN_FLIGHT + j;
                let here = plane_shuffle(id, place);
                let following = plane_shuffle(next_id, place);
                let row = plane_shuffle(token, place);
                let mut factor = Vector::<f32, N>::new(drop.scale);
                if is_dropped {
                    let vector = row * vectors + column;
                    factor = keep_factors::<N>(vector, drop.site, &rows.state, drop.limit, drop.scale);
                }
                sum += Vector::<f32, N>::cast_from(loaded[comptime![j as usize]]) * factor;
                let at = begin + place;
                let last = at + 1 == end;
                let ends = at + 1 == n || following != here;
                if at < end && (last || ends) {
                    if column < vectors {
                        let part = segment as usize * comptime![vectors as usize] + column as usize;
                        if goes_on {
                            sums.head[part] = sum;
                        } else if ends {
                            let to = here as usize * comptime![vectors as usize] + column as usize;
                            sums.out[to] = Vector::cast_from(sum);
                        } else {
                            sums.tail[part] = sum;
                        }
                    }
                    sum = Vector::<f32, N>::zeroed();
                    goes_on = false;
                }
            }
        }
    }
}

/// Adds the partial sums of the id that begins in a warp's segment and continues in the next one, if there is such an
/// id.
#[cube(launch_unchecked)]
pub(super) fn join<F: Float, N: Size>(
    sorted: &[i32],
    head: &[Vector<f32, N>],
    tail: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    n: u32,
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(SUM_CUBES);
    let segment = CUBE_POS_X * PLANES + UNIT_POS / 32;
    let begin = segment * SEGMENT;
    let end = begin + SEGMENT;
    if end < n {
        let column = CUBE_POS_Y * COLUMNS + UNIT_POS_PLANE;
        // Lanes beyond the row sum its last column, and write nothing.
        let within = min(column, comptime![vectors - 1]) as usize;
        let id = sorted[(end - 1) as usize];
        let before = select(begin > 0, begin - 1, begin);
        let began_earlier = begin > 0 && sorted[begin as usize] == id && sorted[before as usize] == id;
        if sorted[end as usize] == id && !began_earlier {
            let mut sum = tail[segment as usize * comptime![vectors as usize] + within];
            // Find the last segment that begins with this id. Each lane checks one segment.
            let mut after = segment + 2;
            let mut found = 32u32.runtime();
            while found == 32 {
                let at = (after + UNIT_POS_PLANE) * SEGMENT;
                let place = select(at < n, at, n - 1);
                found = plane_sum(u32::cast_from(at < n && sorted[place as usize] == id));
                after += found;
            }

            sum = add_up(sum, head, within, comptime![vectors as usize], segment + 1, after, 1u32, ROWS_IN_FLIGHT);
            if column < vectors {
                out[id as usize * comptime![vectors as usize] + column as usize] = Vector::cast_from(sum);
            }
        }
    }
}
