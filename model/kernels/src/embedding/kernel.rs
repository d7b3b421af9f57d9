//! A lookup is one pass: a unit for each vector of the result.
//!
//! The gradient of a table: tokens are sorted by id, and a plane adds up each 32 of them in their order. The sort
//! counts: atomic additions of integers find where an id's tokens are, and what order they leave them in is put right
//! before anything is summed.
//!
//! Where the tokens of one id fill more than a segment of 32, the segments leave partial sums, and a second pass adds
//! those in their order. Work is dealt out by tokens, not by ids: a token that makes up a tenth of the text costs no
//! more.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{EmbeddingOps, Lookup};
use crate::dropout::kernel::keep_factors;
use crate::dropout::{Dropping, Mask};
use crate::gpu::memory::{empty, vector_width};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::add_up;
use crate::maybe::Maybe;
use crate::reduce::columns::backward_and_sum;

type Quad = Vector<u32, Const<4>>;

/// Units of the cube of [`begin`].
const SCAN_UNITS: u32 = 1024;
/// Tokens of its id that a unit of [`settle`] has under way at a time, four by four.
const QUADS_AT_ONCE: u32 = 16;
/// Units of the cubes that add up rows: four planes. Few cubes have much to do here; small ones are spread evenly.
const SUM_UNITS: u32 = 128;
const PLANES: u32 = SUM_UNITS / 32;
/// Of these cubes, how many run on a multiprocessor at a time.
const SUM_CUBES: usize = 4;
/// Units of the other cubes.
const UNITS: u32 = 256;
/// Tokens of a segment: one for each lane of its plane.
const SEGMENT: u32 = 32;
/// Rows under way at a time.
const AT_ONCE: u32 = 8;
/// Vectors of a row that a plane takes: one for each lane.
const COLUMNS: u32 = 32;

/// Counts the tokens of each id. Sums of integers do not hang on their order.
#[cube(launch_unchecked)]
fn count(ids: &[i32], places: &mut [Atomic<u32>], n: u32) {
    let token = ABSOLUTE_POS as u32;
    if token < n {
        places[ids[token as usize] as usize].fetch_add(1u32);
    }
}

/// Makes of each id's count the sum of those before it, where its tokens begin: one cube, four ids a unit at a time.
#[cube(launch_unchecked)]
fn begin(places: &mut [Quad], quads: u32) {
    let plane = UNIT_POS / 32;
    let mut totals = Shared::<[u32]>::new_slice(comptime![SCAN_UNITS as usize / 32]);
    let mut before = 0u32.runtime();
    let turns = (quads + comptime![SCAN_UNITS - 1]) / SCAN_UNITS;
    for turn in 0..turns {
        let at = turn * SCAN_UNITS + UNIT_POS;
        let mut counts = Quad::zeroed();
        if at < quads {
            counts = places[at as usize];
        }
        let total = counts.extract(0usize) + counts.extract(1usize) + counts.extract(2usize) + counts.extract(3usize);
        let up_to = plane_inclusive_sum(total);
        if UNIT_POS_PLANE == 31 {
            totals[plane as usize] = up_to;
        }
        sync_cube();
        // Every plane sums up the planes, one a lane.
        let of_plane = totals[UNIT_POS_PLANE as usize];
        let planes_up_to = plane_inclusive_sum(of_plane);
        let mut place = before + plane_shuffle(planes_up_to - of_plane, plane) + up_to - total;
        if at < quads {
            let mut first = Quad::zeroed();
            #[unroll]
            for i in 0..4usize {
                first.insert(i, place);
                place += counts.extract(i);
            }
            places[at as usize] = first;
        }
        before += plane_shuffle(planes_up_to, 31u32);
        // All have read the totals.
        sync_cube();
    }
}

/// Deals each id's places to its tokens as they come. What is left in `places` is where the id's tokens end.
#[cube(launch_unchecked)]
fn deal(ids: &[i32], places: &mut [Atomic<u32>], dealt: &mut [u32], n: u32) {
    let token = ABSOLUTE_POS as u32;
    if token < n {
        let place = places[ids[token as usize] as usize].fetch_add(1u32);
        dealt[place as usize] = token;
    }
}

/// Puts the tokens of each id in their order: a token's place is the number of those before it. Units of a plane look
/// after places that lie as far apart as there are cubes, so that an id with many tokens is spread over all of them.
#[cube(launch_unchecked)]
fn settle(ids: &[i32], ends: &[u32], dealt: &[u32], quads: &[Quad], order: &mut [u32], sorted: &mut [i32], n: u32) {
    let mine = UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32;
    if mine < n {
        let token = dealt[mine as usize];
        let id = ids[token as usize];
        let mut first = 0u32.runtime();
        if id > 0 {
            first = ends[(id - 1) as usize];
        }
        let end = ends[id as usize];
        // Four counts, so that no addition waits for the one before.
        let mut before = Array::<u32>::new(4usize);
        #[unroll]
        for j in 0..4usize {
            before[j] = 0u32;
        }
        // Of what is read at a time, the first and the last may be another id's.
        let mut at = first / 4;
        while 4 * at < end {
            // All loads are on their way before the first is needed.
            let mut read = Array::<Quad>::new(comptime![QUADS_AT_ONCE as usize]);
            #[unroll]
            for i in 0..QUADS_AT_ONCE {
                read[comptime![i as usize]] = quads[min(at + i, (end - 1) / 4) as usize];
            }
            if 4 * at >= first && 4 * (at + QUADS_AT_ONCE) <= end {
                // The sign of the difference is the answer, in two instructions a token.
                #[unroll]
                for i in 0..QUADS_AT_ONCE {
                    #[unroll]
                    for j in 0..4usize {
                        before[j] += (read[comptime![i as usize]].extract(j) - token) >> 31;
                    }
                }
            } else {
                #[unroll]
                for i in 0..QUADS_AT_ONCE {
                    #[unroll]
                    for j in 0..4usize {
                        let place = 4 * (at + i) + comptime![j as u32];
                        let other = read[comptime![i as usize]].extract(j);
                        before[j] += u32::cast_from(other < token && place >= first && place < end);
                    }
                }
            }
            at += QUADS_AT_ONCE;
        }
        let place = first + before[0] + before[1] + before[2] + before[3];
        order[place as usize] = token;
        sorted[place as usize] = id;
    }
}

/// A unit makes a vector of the result.
#[cube(launch_unchecked)]
fn look_up<F: Float, N: Size>(
    table: &[Vector<F, N>],
    ids: &[i32],
    positions: &[Vector<F, N>],
    state: &[i32],
    out: &mut [Vector<F, N>],
    n: u32,
    length: u32,
    site: u32,
    limit: u32,
    keep: f32,
    scale: f32,
    #[comptime] vectors: u32,
    #[comptime] placed: bool,
    #[comptime] dropped: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    let row = at / vectors;
    if row < n {
        let column = at % vectors;
        let from = ids[row as usize] as usize * comptime![vectors as usize] + column as usize;
        let mut x = Vector::<f32, N>::cast_from(table[from]) * Vector::new(scale);
        if placed {
            x += Vector::<f32, N>::cast_from(positions[(row % length * vectors + column) as usize]);
        }
        if dropped {
            x = x * keep_factors::<N>(at, site, state, limit, keep);
        }
        out[at as usize] = Vector::cast_from(x);
    }
}

/// A plane adds up 32 columns of the rows of one segment of the sorted tokens, each times `scale` where it is not
/// dropped. The sum of an id that lies in this segment alone is its gradient; that of one which goes on from the
/// segment before is left in `head`, that of one which begins here and goes on in `tail`.
#[cube(launch_unchecked)]
fn accumulate<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    order: &[u32],
    sorted: &[i32],
    state: &[i32],
    out: &mut [Vector<F, N>],
    head: &mut [Vector<f32, N>],
    tail: &mut [Vector<f32, N>],
    n: u32,
    site: u32,
    limit: u32,
    scale: f32,
    #[comptime] vectors: u32,
    #[comptime] dropped: bool,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(SUM_CUBES);
    let segment = CUBE_POS_X * PLANES + UNIT_POS / 32;
    let begin = segment * SEGMENT;
    if begin < n {
        let column = CUBE_POS_Y * COLUMNS + UNIT_POS_PLANE;
        let end = select(begin + SEGMENT < n, begin + SEGMENT, n);
        // Each lane looks up one token; the plane passes them around.
        let lane = select(begin + UNIT_POS_PLANE < n, begin + UNIT_POS_PLANE, n - 1);
        let next = select(lane + 1 < n, lane + 1, n - 1);
        let before = select(begin > 0, begin - 1, begin);
        let token = order[lane as usize];
        let id = sorted[lane as usize];
        let next_id = sorted[next as usize];
        let mut goes_on = begin > 0 && sorted[before as usize] == plane_broadcast(id, 0u32);
        let mut sum = Vector::<f32, N>::zeroed();
        for turn in 0..comptime![SEGMENT / AT_ONCE] {
            let mut rows = Array::<Vector<F, N>>::new(comptime![AT_ONCE as usize]);
            #[unroll]
            for j in 0..AT_ONCE {
                let place = turn * AT_ONCE + j;
                let row = plane_shuffle(token, place);
                rows[comptime![j as usize]] = Vector::<F, N>::zeroed();
                if begin + place < end && column < vectors {
                    rows[comptime![j as usize]] = dy[row as usize * comptime![vectors as usize] + column as usize];
                }
            }
            #[unroll]
            for j in 0..AT_ONCE {
                let place = turn * AT_ONCE + j;
                let here = plane_shuffle(id, place);
                let following = plane_shuffle(next_id, place);
                let row = plane_shuffle(token, place);
                let mut factor = Vector::<f32, N>::new(scale);
                if dropped {
                    factor = keep_factors::<N>(row * vectors + column, site, state, limit, scale);
                }
                sum += Vector::<f32, N>::cast_from(rows[comptime![j as usize]]) * factor;
                let at = begin + place;
                let last = at + 1 == end;
                let ends = at + 1 == n || following != here;
                if at < end && (last || ends) {
                    if column < vectors {
                        let part = segment as usize * comptime![vectors as usize] + column as usize;
                        if goes_on {
                            head[part] = sum;
                        } else if ends {
                            out[here as usize * comptime![vectors as usize] + column as usize] = Vector::cast_from(sum);
                        } else {
                            tail[part] = sum;
                        }
                    }
                    sum = Vector::<f32, N>::zeroed();
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
    cubes_at_once(SUM_CUBES);
    let segment = CUBE_POS_X * PLANES + UNIT_POS / 32;
    let begin = segment * SEGMENT;
    let end = begin + SEGMENT;
    if end < n {
        let column = CUBE_POS_Y * COLUMNS + UNIT_POS_PLANE;
        // Lanes beyond the row add up its last column, and write nothing.
        let within = min(column, comptime![vectors - 1]) as usize;
        let id = sorted[(end - 1) as usize];
        let before = select(begin > 0, begin - 1, begin);
        let began_earlier = begin > 0 && sorted[begin as usize] == id && sorted[before as usize] == id;
        if sorted[end as usize] == id && !began_earlier {
            let mut sum = tail[segment as usize * comptime![vectors as usize] + within];
            // Segments whose first token has this id follow each other; the lanes look at one each.
            let mut after = segment + 2;
            let mut found = 32u32.runtime();
            while found == 32 {
                let at = (after + UNIT_POS_PLANE) * SEGMENT;
                let place = select(at < n, at, n - 1);
                found = plane_sum(u32::cast_from(at < n && sorted[place as usize] == id));
                after += found;
            }
            sum = add_up(sum, head, within, comptime![vectors as usize], segment + 1, after, 1u32, AT_ONCE);
            if column < vectors {
                out[id as usize * comptime![vectors as usize] + column as usize] = Vector::cast_from(sum);
            }
        }
    }
}

/// Ids as the kernels read them.
fn integers(ids: CubeTensor) -> CubeTensor {
    assert!(ids.dtype == DType::I32, "ids of {:?}", ids.dtype);
    into_contiguous(ids)
}

impl EmbeddingOps for CubeBackend {
    fn embed(
        table: CubeTensor,
        ids: CubeTensor,
        positions: Maybe<Self>,
        drop: Mask<Self>,
        lookup: Lookup,
    ) -> CubeTensor {
        let (table, ids) = (into_contiguous(table), integers(ids));
        let positions = positions.into_option().map(into_contiguous);
        let (n, d) = (ids.meta.shape()[0], table.meta.shape()[1]);
        let out = empty(&table, [n, d], table.dtype);
        if n == 0 || d == 0 {
            return out;
        }
        let width = vector_width(d, table.dtype);
        let vectors = (d / width) as u32;
        let Dropping { state, site, limit, scale: keep } = Dropping::new(drop);
        let (placed, dropped) = (positions.is_some(), state.is_some());
        let dtype = dtype_to_storage_type(table.dtype);
        // SAFETY: ids are rows of the table; units beyond the last vector do nothing; what is not given is not touched.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            look_up::launch_unchecked(
                &out.client,
                CubeCount::Static((n as u32 * vectors).div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                table.clone().into_buffer_arg(),
                ids.clone().into_buffer_arg(),
                positions.unwrap_or(table).into_buffer_arg(),
                state.unwrap_or(ids).into_buffer_arg(),
                out.clone().into_buffer_arg(),
                n as u32,
                lookup.length as u32,
                site,
                limit,
                keep,
                lookup.scale,
                vectors,
                placed,
                dropped,
                dtype,
            );
        }
        out
    }

    fn position_gradient(dy: CubeTensor, drop: Mask<Self>, lookup: Lookup) -> CubeTensor {
        // A batch row is a row of T D columns, which are summed.
        let dy = into_contiguous(dy);
        let [n, d] = [dy.meta.shape()[0], dy.meta.shape()[1]];
        let (rows, columns) = (n / lookup.length, lookup.length * d);
        let (_, sum) = backward_and_sum(None, reshape(dy, [rows, columns].into()), drop);
        reshape(sum, [lookup.length, d].into())
    }

    fn table_gradient(dy: CubeTensor, ids: CubeTensor, drop: Mask<Self>, lookup: Lookup) -> CubeTensor {
        let (dy, ids) = (into_contiguous(dy), integers(ids));
        let rows = lookup.rows;
        let [n, d] = [dy.meta.shape()[0], dy.meta.shape()[1]];
        let (client, device) = (dy.client.clone(), dy.device.clone());
        // Zeros for ids that no token has, asked for in one row: between rows of odd lengths the backend leaves gaps.
        let zeros = zeros_client(client.clone(), device.clone(), [rows * d].into(), dy.dtype);
        let out = CubeTensor::new_contiguous(client.clone(), device.clone(), [rows, d].into(), zeros.handle, dy.dtype);
        if n == 0 || d == 0 {
            return out;
        }
        let width = vector_width(d, dy.dtype);
        let vectors = (d / width) as u32;
        let dtype = dtype_to_storage_type(dy.dtype);
        let segments = n.div_ceil(SEGMENT as usize);
        let quads = rows.div_ceil(4);
        let places = zeros_client(client.clone(), device.clone(), [4 * quads].into(), DType::U32).handle;
        let dealt = client.empty(4 * n.next_multiple_of(4));
        let (order, sorted) = (client.empty(4 * n), client.empty(4 * n));
        let each = CubeCount::Static((n as u32).div_ceil(UNITS), 1, 1);
        let (head, tail) = (client.empty(4 * segments * d), client.empty(4 * segments * d));
        let Dropping { state, site, limit, scale } = Dropping::new(drop);
        let dropped = state.is_some();
        let cubes = CubeCount::Static((segments as u32).div_ceil(PLANES), vectors.div_ceil(COLUMNS), 1);
        // SAFETY: `order` is a permutation of the tokens, ids are rows of the table, columns and tokens are guarded;
        // every segment has its place in `head` and `tail`.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            count::launch_unchecked(
                &client,
                each.clone(),
                CubeDim::new_1d(UNITS),
                ids.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(places.clone(), rows),
                n as u32,
            );
            begin::launch_unchecked(
                &client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(SCAN_UNITS),
                BufferArg::from_raw_parts(places.clone(), quads),
                quads as u32,
            );
            deal::launch_unchecked(
                &client,
                each.clone(),
                CubeDim::new_1d(UNITS),
                ids.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(places.clone(), rows),
                BufferArg::from_raw_parts(dealt.clone(), n),
                n as u32,
            );
            settle::launch_unchecked(
                &client,
                each,
                CubeDim::new_1d(UNITS),
                ids.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(places, rows),
                BufferArg::from_raw_parts(dealt.clone(), n),
                BufferArg::from_raw_parts(dealt, n.div_ceil(4)),
                BufferArg::from_raw_parts(order.clone(), n),
                BufferArg::from_raw_parts(sorted.clone(), n),
                n as u32,
            );
            accumulate::launch_unchecked(
                &client,
                cubes.clone(),
                CubeDim::new_1d(SUM_UNITS),
                width,
                dy.into_buffer_arg(),
                BufferArg::from_raw_parts(order, n),
                BufferArg::from_raw_parts(sorted.clone(), n),
                // Not touched if nothing is dropped.
                state.unwrap_or(ids).into_buffer_arg(),
                out.clone().into_buffer_arg(),
                BufferArg::from_raw_parts(head.clone(), segments * d),
                BufferArg::from_raw_parts(tail.clone(), segments * d),
                n as u32,
                site,
                limit,
                scale * lookup.scale,
                vectors,
                dropped,
                dtype,
            );
            join::launch_unchecked(
                &client,
                cubes,
                CubeDim::new_1d(SUM_UNITS),
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
pub(super) mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let b = buffer;
            let mut kernels = Vec::new();

            let (launch, properties, target) = settings(SCAN_UNITS);
            let kernel = begin::Begin::new(launch, properties, target, b(), ());
            kernels.push(Compiled::new("embedding/sort/begin", kernel));
            let (launch, properties, target) = settings(UNITS);
            let kernel = count::Count::new(launch, properties, target, b(), b(), ());
            kernels.push(Compiled::new("embedding/sort/count", kernel));
            let (launch, properties, target) = settings(UNITS);
            let kernel = deal::Deal::new(launch, properties, target, b(), b(), b(), ());
            kernels.push(Compiled::new("embedding/sort/deal", kernel));
            let (launch, properties, target) = settings(UNITS);
            let kernel = settle::Settle::new(launch, properties, target, b(), b(), b(), b(), b(), b(), ());
            kernels.push(Compiled::new("embedding/sort/settle", kernel));

            for (name, dtype, vectors) in [("96-vectors-bf16", DType::BF16, 96), ("7-vectors-f32", DType::F32, 7)] {
                let dtype = dtype_to_storage_type(dtype);
                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let lookup = look_up::LookUp::new(
                    launch, properties, target, b(), b(), b(), b(), b(), (), (), (), (), (), (), 8, vectors, true, true, dtype,
                );
                kernels.push(Compiled::new(format!("embedding/forward/{name}"), lookup));
                let (launch, properties, target) = settings(SUM_UNITS);
                #[rustfmt::skip]
                let sums = accumulate::Accumulate::new(
                    launch, properties, target, b(), b(), b(), b(), b(), b(), b(), (), (), (), (), 8, vectors, true, dtype,
                );
                kernels.push(Compiled::new(format!("embedding/backward/accumulate-{name}"), sums));
                let (launch, properties, target) = settings(SUM_UNITS);
                let join = join::Join::new(launch, properties, target, b(), b(), b(), b(), (), 8, vectors, dtype);
                kernels.push(Compiled::new(format!("embedding/backward/join-{name}"), join));
            }
            kernels
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
