//! The gradient of a table without atomics: tokens are sorted by id, and a plane adds up each 32 of them in their order.
//!
//! Where the tokens of one id fill more than a segment of 32, the segments leave partial sums, and a second pass adds those
//! in their order. Work is dealt out by tokens, not by ids: a token that makes up a tenth of the text costs no more.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::EmbeddingOps;
use crate::device::vector_width;

type Quad = Vector<i32, Const<4>>;

/// Ids that a cube of [`rank`] finds the places of.
const OWN: u32 = 128;
/// Units that share the work on each of those.
const GROUPS: u32 = 8;
const RANK_UNITS: u32 = OWN * GROUPS;
/// Ids that a unit compares its own with at a time, and all units of a cube together.
const SHARE: u32 = 512;
const TILE: u32 = SHARE * GROUPS;
/// Units of a cube of the other two: eight planes.
const UNITS: u32 = 256;
const PLANES: u32 = UNITS / 32;
/// Tokens of a segment: one for each lane of its plane.
const SEGMENT: u32 = 32;
/// Rows under way at a time.
const AT_ONCE: u32 = 4;
/// Vectors of a row that a plane takes.
const COLUMNS: u32 = 128;
const SLOTS: usize = COLUMNS as usize / 32;

/// Sorts by counting: a token's place is the number of tokens with a smaller id, and of those before it with the same. Every
/// id is compared with every other, which for some ten thousand tokens is less work than a sort's passes over memory.
#[cube(launch_unchecked)]
fn rank(ids: &[i32], order: &mut [u32], sorted: &mut [i32], n: u32) {
    let first_own = CUBE_POS as u32 * OWN;
    let mine = first_own + UNIT_POS % OWN;
    let group = UNIT_POS / OWN;
    let mut own = comptime![i32::MAX].runtime();
    if mine < n {
        own = ids[mine as usize];
    }
    let mut tile = Shared::<[Quad]>::new_slice(comptime![(TILE / 4) as usize]);
    // Four counts, so that no addition waits for the one before.
    let mut counts = Array::<u32>::new(4usize);
    #[unroll]
    for j in 0..4usize {
        counts[j] = 0u32;
    }
    let tiles = (n + comptime![TILE - 1]) / TILE;
    for t in 0..tiles {
        sync_cube();
        let mut loaded = Quad::zeroed();
        #[unroll]
        for j in 0..4u32 {
            let at = t * TILE + UNIT_POS * 4 + j;
            // Beyond the end stands what no id is greater than.
            let mut id = comptime![i32::MAX].runtime();
            if at < n {
                id = ids[at as usize];
            }
            loaded.insert(comptime![j as usize], id);
        }
        tile[UNIT_POS as usize] = loaded;
        sync_cube();
        let first = t * TILE + group * SHARE;
        let from = (group * comptime![SHARE / 4]) as usize;
        if first + SHARE <= first_own || first >= first_own + OWN {
            // Of those before, the same ids count too. The sign of the difference is the answer, in two instructions an id.
            let bound = own + i32::cast_from(first < first_own);
            for q in 0..comptime![(SHARE / 4) as usize] {
                let quad = tile[from + q];
                #[unroll]
                for j in 0..4usize {
                    counts[j] += u32::reinterpret(quad.extract(j) - bound) >> 31;
                }
            }
        } else {
            for q in 0..comptime![(SHARE / 4) as usize] {
                let quad = tile[from + q];
                #[unroll]
                for j in 0..4usize {
                    let other = quad.extract(j);
                    let same = other == own && first + q as u32 * 4 + comptime![j as u32] < mine;
                    counts[j] += select(other < own || same, 1u32, 0u32);
                }
            }
        }
    }
    let mut of_groups = Shared::<[u32]>::new_slice(comptime![RANK_UNITS as usize]);
    of_groups[UNIT_POS as usize] = counts[0] + counts[1] + counts[2] + counts[3];
    sync_cube();
    if UNIT_POS < OWN && mine < n {
        let mut place = 0u32;
        #[unroll]
        for other in 0..GROUPS {
            place += of_groups[(comptime![other * OWN] + UNIT_POS) as usize];
        }
        order[place as usize] = mine;
        sorted[place as usize] = own;
    }
}

/// Writes a unit's share of a row.
#[cube]
fn write_row<F: Float, N: Size>(
    out: &mut [Vector<F, N>],
    row: u32,
    first: u32,
    sum: &Array<Vector<f32, N>>,
    #[comptime] vectors: u32,
) {
    #[unroll]
    for i in 0..SLOTS {
        let column = first + comptime![i as u32 * 32];
        if column < vectors {
            out[row as usize * comptime![vectors as usize] + column as usize] = Vector::cast_from(sum[i]);
        }
    }
}

/// A plane adds up the rows of one segment of the sorted tokens. The sum of an id that lies in this segment alone is its
/// gradient; that of one which goes on from the segment before is left in `head`, that of one which begins here and goes on
/// in `tail`.
#[cube(launch_unchecked)]
fn accumulate<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    order: &[u32],
    sorted: &[i32],
    out: &mut [Vector<F, N>],
    head: &mut [Vector<f32, N>],
    tail: &mut [Vector<f32, N>],
    n: u32,
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    let segment = CUBE_POS_X * PLANES + UNIT_POS / 32;
    let begin = segment * SEGMENT;
    if begin < n {
        let first = CUBE_POS_Y * COLUMNS + UNIT_POS_PLANE;
        let end = select(begin + SEGMENT < n, begin + SEGMENT, n);
        // Each lane looks up one token; the plane passes them around.
        let lane = select(begin + UNIT_POS_PLANE < n, begin + UNIT_POS_PLANE, n - 1);
        let next = select(lane + 1 < n, lane + 1, n - 1);
        let before = select(begin > 0, begin - 1, begin);
        let token = order[lane as usize];
        let id = sorted[lane as usize];
        let next_id = sorted[next as usize];
        let mut goes_on = begin > 0 && sorted[before as usize] == plane_broadcast(id, 0u32);
        let mut sum = Array::<Vector<f32, N>>::new(SLOTS);
        #[unroll]
        for i in 0..SLOTS {
            sum[i] = Vector::<f32, N>::zeroed();
        }
        for turn in 0..comptime![SEGMENT / AT_ONCE] {
            let mut rows = Array::<Vector<F, N>>::new(comptime![AT_ONCE as usize * SLOTS]);
            #[unroll]
            for j in 0..AT_ONCE {
                let place = turn * AT_ONCE + j;
                let row = plane_shuffle(token, place);
                #[unroll]
                for i in 0..SLOTS {
                    let column = first + comptime![i as u32 * 32];
                    rows[comptime![j as usize * SLOTS + i]] = Vector::<F, N>::zeroed();
                    if begin + place < end && column < vectors {
                        rows[comptime![j as usize * SLOTS + i]] =
                            dy[row as usize * comptime![vectors as usize] + column as usize];
                    }
                }
            }
            #[unroll]
            for j in 0..AT_ONCE {
                let place = turn * AT_ONCE + j;
                let here = plane_shuffle(id, place);
                let following = plane_shuffle(next_id, place);
                #[unroll]
                for i in 0..SLOTS {
                    sum[i] += Vector::<f32, N>::cast_from(rows[comptime![j as usize * SLOTS + i]]);
                }
                let at = begin + place;
                let last = at + 1 == end;
                let ends = at + 1 == n || following != here;
                if at < end && (last || ends) {
                    if goes_on {
                        write_row::<f32, N>(head, segment, first, &sum, vectors);
                    } else if ends {
                        write_row::<F, N>(out, here as u32, first, &sum, vectors);
                    } else {
                        write_row::<f32, N>(tail, segment, first, &sum, vectors);
                    }
                    #[unroll]
                    for i in 0..SLOTS {
                        sum[i] = Vector::<f32, N>::zeroed();
                    }
                    goes_on = false;
                }
            }
        }
    }
}

/// A plane finishes the id that begins in its segment and goes on in the next, if there is one.
#[cube(launch_unchecked)]
fn join<F: Float, N: Size>(
    sorted: &[i32],
    head: &[Vector<f32, N>],
    tail: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    n: u32,
    #[comptime] vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    let segment = CUBE_POS_X * PLANES + UNIT_POS / 32;
    let begin = segment * SEGMENT;
    let end = begin + SEGMENT;
    if end < n {
        let first = CUBE_POS_Y * COLUMNS + UNIT_POS_PLANE;
        let id = sorted[(end - 1) as usize];
        let before = select(begin > 0, begin - 1, begin);
        let began_earlier = begin > 0 && sorted[begin as usize] == id && sorted[before as usize] == id;
        if sorted[end as usize] == id && !began_earlier {
            let mut sum = Array::<Vector<f32, N>>::new(SLOTS);
            #[unroll]
            for i in 0..SLOTS {
                let column = first + comptime![i as u32 * 32];
                sum[i] = Vector::<f32, N>::zeroed();
                if column < vectors {
                    sum[i] = tail[segment as usize * comptime![vectors as usize] + column as usize];
                }
            }
            // Segments whose first token has this id follow each other; the lanes look at one each.
            let mut after = segment + 2;
            let mut found = 32u32.runtime();
            while found == 32 {
                let at = (after + UNIT_POS_PLANE) * SEGMENT;
                let within = select(at < n, at, n - 1);
                found = plane_sum(u32::cast_from(at < n && sorted[within as usize] == id));
                after += found;
            }
            let mut at = segment + 1;
            while at < after {
                // All loads are on their way before the first is needed; beyond the last segment it is read once more.
                let mut heads = Array::<Vector<f32, N>>::new(comptime![AT_ONCE as usize * SLOTS]);
                #[unroll]
                for j in 0..AT_ONCE {
                    let row = min(at + j, after - 1) as usize * comptime![vectors as usize];
                    #[unroll]
                    for i in 0..SLOTS {
                        let column = first + comptime![i as u32 * 32];
                        heads[comptime![j as usize * SLOTS + i]] = Vector::<f32, N>::zeroed();
                        if column < vectors {
                            heads[comptime![j as usize * SLOTS + i]] = head[row + column as usize];
                        }
                    }
                }
                #[unroll]
                for j in 0..AT_ONCE {
                    if at + j < after {
                        #[unroll]
                        for i in 0..SLOTS {
                            sum[i] += heads[comptime![j as usize * SLOTS + i]];
                        }
                    }
                }
                at += AT_ONCE;
            }
            write_row::<F, N>(out, id as u32, first, &sum, vectors);
        }
    }
}

impl EmbeddingOps for CubeBackend {
    fn table_gradient(dy: CubeTensor, ids: CubeTensor, rows: usize) -> CubeTensor {
        let (dy, ids) = (into_contiguous(dy), into_contiguous(ids));
        let [n, d] = [dy.meta.shape()[0], dy.meta.shape()[1]];
        assert!(ids.dtype == DType::I32, "ids of {:?}", ids.dtype);
        let (client, device) = (dy.client.clone(), dy.device.clone());
        // Zeros for ids that no token has, asked for in one row: between rows of odd lengths the backend leaves gaps.
        let zeros = zeros_client(client.clone(), device.clone(), [rows * d].into(), dy.dtype);
        let out = CubeTensor::new_contiguous(client.clone(), device, [rows, d].into(), zeros.handle, dy.dtype);
        if n == 0 || d == 0 {
            return out;
        }
        let width = vector_width(d, dy.dtype);
        let vectors = (d / width) as u32;
        let dtype = dtype_to_storage_type(dy.dtype);
        let segments = n.div_ceil(SEGMENT as usize);
        let (order, sorted) = (client.empty(4 * n), client.empty(4 * n));
        let (head, tail) = (client.empty(4 * segments * d), client.empty(4 * segments * d));
        let cubes = CubeCount::Static((segments as u32).div_ceil(PLANES), vectors.div_ceil(COLUMNS), 1);
        // SAFETY: `order` is a permutation of the tokens, ids are rows of the table, columns and tokens are guarded; every
        // segment has its place in `head` and `tail`.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            rank::launch_unchecked(
                &client,
                CubeCount::Static((n as u32).div_ceil(OWN), 1, 1),
                CubeDim::new_1d(RANK_UNITS),
                ids.into_buffer_arg(),
                BufferArg::from_raw_parts(order.clone(), n),
                BufferArg::from_raw_parts(sorted.clone(), n),
                n as u32,
            );
            accumulate::launch_unchecked(
                &client,
                cubes.clone(),
                CubeDim::new_1d(UNITS),
                width,
                dy.into_buffer_arg(),
                BufferArg::from_raw_parts(order, n),
                BufferArg::from_raw_parts(sorted.clone(), n),
                out.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(head.clone(), segments * d),
                BufferArg::from_raw_parts(tail.clone(), segments * d),
                n as u32,
                vectors,
                dtype,
            );
            join::launch_unchecked(
                &client,
                cubes,
                CubeDim::new_1d(UNITS),
                width,
                BufferArg::from_raw_parts(sorted, n),
                BufferArg::from_raw_parts(head, segments * d),
                BufferArg::from_raw_parts(tail, segments * d),
                out.clone().into_buffer_arg(),
                n as u32,
                vectors,
                dtype,
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::{buffer, ptx, settings};

    #[test]
    fn kernels_compile_without_a_device() {
        let (launch, properties, target) = settings(RANK_UNITS);
        let Some(code) = ptx(rank::Rank::new(launch, properties, target, buffer(), buffer(), buffer(), ())) else {
            return;
        };
        assert!(!code.contains("div.u32"));
        for (dtype, vectors) in [(DType::BF16, 96), (DType::F32, 7)] {
            let (launch, properties, target) = settings(UNITS);
            let (b, dtype) = (buffer, dtype_to_storage_type(dtype));
            assert!(
                ptx(join::Join::new(launch, properties, target, b(), b(), b(), b(), (), 8, vectors, dtype)).is_some()
            );
        }
    }
}
