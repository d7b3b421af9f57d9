//! Sorts tokens by id, and the tokens of an id in their order: a counting sort whose result does not depend on timing.

use cubecl::prelude::*;

use crate::gpu::scan::{SCAN_UNITS, scan};

/// Four numbers, loaded at once.
type Quad = Vector<u32, Const<4>>;

/// Loads of a thread of [`settle`] in flight, four tokens each.
const QUADS_IN_FLIGHT: u32 = 16;

/// Counts the tokens of each id. Sums of integers do not depend on their order.
#[cube(launch_unchecked)]
pub(super) fn count(ids: &[i32], places: &mut [Atomic<u32>], n: u32) {
    let token = ABSOLUTE_POS as u32;
    if token < n {
        places[ids[token as usize] as usize].fetch_add(1u32);
    }
}

/// Replaces each id's count by the sum of the counts before it: the place of its first token. One block, in turns of
/// four ids per thread.
#[cube(launch_unchecked)]
pub(super) fn begin(places: &mut [Quad], quads: u32) {
    let mut of_warps = Shared::<[u32]>::new_slice(comptime![SCAN_UNITS as usize / 32]);
    let mut before = 0u32.runtime();
    let turns = (quads + comptime![SCAN_UNITS - 1]) / SCAN_UNITS;
    for turn in 0..turns {
        let at = turn * SCAN_UNITS + UNIT_POS;
        let mut counts = Quad::zeroed();
        if at < quads {
            counts = places[at as usize];
        }
        let total = counts.extract(0usize) + counts.extract(1usize) + counts.extract(2usize) + counts.extract(3usize);

        let prefix = scan(total, &mut of_warps);
        let mut place = before + prefix.before;
        if at < quads {
            let mut first = Quad::zeroed();
            #[unroll]
            for i in 0..4usize {
                first.insert(i, place);
                place += counts.extract(i);
            }
            places[at as usize] = first;
        }
        before += prefix.total;
        // All threads have read the sums of the warps.
        sync_cube();
    }
}

/// Writes each token to a place of its id, in any order. Afterwards `places` holds the end of each id's tokens.
#[cube(launch_unchecked)]
pub(super) fn deal(ids: &[i32], places: &mut [Atomic<u32>], dealt: &mut [u32], n: u32) {
    let token = ABSOLUTE_POS as u32;
    if token < n {
        let place = places[ids[token as usize] as usize].fetch_add(1u32);
        dealt[place as usize] = token;
    }
}

/// Sorts the tokens of each id: a token's place is the number of tokens of its id before it. The threads of a warp take
/// places that are as far apart as there are blocks, so that an id with many tokens is spread over all blocks.
#[cube(launch_unchecked)]
pub(super) fn settle(
    ids: &[i32],
    ends: &[u32],
    dealt: &[u32],
    quads: &[Quad],
    order: &mut [u32],
    sorted: &mut [i32],
    n: u32,
) {
    let dealt_place = UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32;
    if dealt_place < n {
        let token = dealt[dealt_place as usize];
        let id = ids[token as usize];
        let mut first = 0u32.runtime();
        if id > 0 {
            first = ends[(id - 1) as usize];
        }
        let end = ends[id as usize];

        // Count the tokens of this id that come before. Four counters, so that no addition waits for the previous one.
        let mut before = Array::<u32>::new(4usize);
        #[unroll]
        for j in 0..4usize {
            before[j] = 0u32;
        }
        // The first and the last of the loaded tokens may belong to another id.
        let mut at = first / 4;
        while 4 * at < end {
            // All loads are in flight before the first is needed.
            let mut read = Array::<Quad>::new(comptime![QUADS_IN_FLIGHT as usize]);
            #[unroll]
            for i in 0..QUADS_IN_FLIGHT {
                read[comptime![i as usize]] = quads[min(at + i, (end - 1) / 4) as usize];
            }
            if 4 * at >= first && 4 * (at + QUADS_IN_FLIGHT) <= end {
                // The sign of the difference is the answer: two instructions per token.
                #[unroll]
                for i in 0..QUADS_IN_FLIGHT {
                    #[unroll]
                    for j in 0..4usize {
                        before[j] += (read[comptime![i as usize]].extract(j) - token) >> 31;
                    }
                }
            } else {
                #[unroll]
                for i in 0..QUADS_IN_FLIGHT {
                    #[unroll]
                    for j in 0..4usize {
                        let place = 4 * (at + i) + comptime![j as u32];
                        let other = read[comptime![i as usize]].extract(j);
                        before[j] += u32::cast_from(other < token && place >= first && place < end);
                    }
                }
            }
            at += QUADS_IN_FLIGHT;
        }

        let place = first + before[0] + before[1] + before[2] + before[3];
        order[place as usize] = token;
        sorted[place as usize] = id;
    }
}
