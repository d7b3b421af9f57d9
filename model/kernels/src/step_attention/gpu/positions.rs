//! Positions of a head: which lanes read which, and what they add to the sums.

use cubecl::prelude::*;

use super::sizes::{Call, IN_FLIGHT, Place, Sizes, WARP};
use super::sums::{LOWEST, Sums, group_sum};
use crate::gpu::early::prefetch;
use crate::gpu::instruction::exp2_approx;
use crate::gpu::reduce::sum_of;

/// Moves the positions of a block's head that its warps read first to the L2 cache. What it reads of `lengths` may be from an earlier step.
#[cube]
pub(super) fn prefetch_positions<F: Float, N: Size>(
    key_value: &mut [Vector<F, N>],
    lengths: &[i32],
    call: &Call,
    #[comptime] sizes: Sizes,
) {
    let (row, head) = (CUBE_POS as u32 / sizes.heads, CUBE_POS as u32 % sizes.heads);
    let group = head / comptime![sizes.heads / sizes.kv_heads];
    let turn = comptime![sizes.groups() * IN_FLIGHT * sizes.parts].runtime();
    let n = min(min(max(lengths[row as usize], 0i32) as u32, call.capacity), turn);
    // A prefetch has two vectors; keys, then values.
    let each = comptime![sizes.head()];
    let mut at = UNIT_POS;
    while at < n * each {
        let (position, within) = (at / each, at % each);
        let part = within / comptime![sizes.head() / 2];
        let vector =
            part * comptime![sizes.kv_heads * sizes.head()] + group * each + within % comptime![sizes.head() / 2] * 2;
        let place = (row * call.capacity + position) as usize * comptime![sizes.position() as usize] + vector as usize;
        prefetch(&key_value[place..place + 1]);
        at += comptime![sizes.threads()];
    }
}

/// Reads the positions before the `end`th from `first` on, as far as this warp has them, and adds them to `sums`.
#[cube]
pub(super) fn attend<F: Float, N: Size>(
    own: &Array<Vector<f32, N>>,
    key_value: &mut [Vector<F, N>],
    places: &[i32],
    sums: &mut Sums<N>,
    place: &Place,
    end: u32,
    call: &Call,
    #[comptime] sizes: Sizes,
) {
    let (lane, nth) = (UNIT_POS % sizes.lanes, UNIT_POS % WARP / sizes.lanes);
    let groups = comptime![sizes.groups()];
    let vectors = comptime![sizes.vectors];
    let key_at = (place.group * comptime![sizes.head()] + lane) as usize;
    let value_at = key_at + comptime![(sizes.kv_heads * sizes.head()) as usize];
    let mut first = if comptime![sizes.parts > 1] {
        UNIT_POS / WARP * comptime![sizes.groups() * IN_FLIGHT]
    } else {
        0u32.runtime()
    };
    while first < end {
        let mut scores = Array::<f32>::new(comptime![IN_FLIGHT as usize]);
        let mut values = Array::<Vector<F, N>>::new(comptime![(IN_FLIGHT * sizes.vectors) as usize]);
        #[unroll]
        for i in 0..IN_FLIGHT {
            // Beyond the last position, that position is read again and has no weight.
            let position = min(first + comptime![i * groups] + nth, end - 1);
            let index = if comptime![sizes.per_position] { place.row * call.capacity + position } else { place.row };
            let buffer = if comptime![sizes.appends] { place.row } else { places[index as usize] as u32 };
            let base =
                (buffer as usize * call.capacity as usize + position as usize) * comptime![sizes.position() as usize];
            let mut score = 0.0f32;
            #[unroll]
            for j in 0..vectors {
                let at = base + comptime![(j * sizes.lanes) as usize];
                let products = own[comptime![j as usize]] * Vector::<f32, N>::cast_from(key_value[at + key_at]);
                values[comptime![(i * vectors + j) as usize]] = key_value[at + value_at];
                score += sum_of::<N>(products);
            }
            scores[comptime![i as usize]] = score;
        }

        let mut highest = sums.top;
        #[unroll]
        for i in 0..IN_FLIGHT {
            let score = group_sum(scores[comptime![i as usize]], comptime![sizes.lanes]) * call.scale;
            let seen = select(first + comptime![i * groups] + nth < end, score, LOWEST);
            scores[comptime![i as usize]] = seen;
            highest = max(highest, seen);
        }
        let factor = exp2_approx(sums.top - highest);
        sums.top = highest;
        sums.total *= factor;
        #[unroll]
        for j in 0..vectors {
            sums.values[comptime![j as usize]] *= Vector::new(factor);
        }
        #[unroll]
        for i in 0..IN_FLIGHT {
            // A group that has seen nothing yet has the lowest top: what is beyond the end has no weight there, either.
            let is_seen = first + comptime![i * groups] + nth < end;
            let weight = select(is_seen, exp2_approx(scores[comptime![i as usize]] - highest), 0.0f32);
            sums.total += weight;
            #[unroll]
            for j in 0..vectors {
                let value = Vector::<f32, N>::cast_from(values[comptime![(i * vectors + j) as usize]]);
                sums.values[comptime![j as usize]] += value * Vector::new(weight);
            }
        }
        first += comptime![sizes.groups() * IN_FLIGHT * sizes.parts];
    }
}

/// Begins with the position that comes in the columns behind the query, and lets one warp of each group of heads append it.
#[cube]
pub(super) fn append<F: Float, N: Size>(
    query: &[Vector<F, N>],
    own: &Array<Vector<f32, N>>,
    key_value: &mut [Vector<F, N>],
    sums: &mut Sums<N>,
    place: &Place,
    position: u32,
    call: &Call,
    #[comptime] sizes: Sizes,
) {
    let lane = UNIT_POS % sizes.lanes;
    let key_at = place.group * comptime![sizes.head()] + lane;
    let value_at = key_at + comptime![sizes.kv_heads * sizes.head()];
    let from = place.row * call.pitch + comptime![sizes.heads * sizes.head()];
    let to = (place.row * call.capacity + position) as usize * comptime![sizes.position() as usize];
    let of_head = if comptime![sizes.parts > 1] { UNIT_POS } else { UNIT_POS % WARP };
    let is_first = of_head < sizes.lanes;
    let appends = is_first && place.head % comptime![sizes.heads / sizes.kv_heads] == 0 && position < call.capacity;

    let mut score = 0.0f32;
    let mut values = Array::<Vector<f32, N>>::new(comptime![sizes.vectors as usize]);
    #[unroll]
    for j in 0..sizes.vectors {
        let at = comptime![j * sizes.lanes];
        let key = query[(from + at + key_at) as usize];
        let value = query[(from + at + value_at) as usize];
        score += sum_of::<N>(own[comptime![j as usize]] * Vector::<f32, N>::cast_from(key));
        values[comptime![j as usize]] = Vector::cast_from(value);
        if appends {
            key_value[to + (at + key_at) as usize] = key;
            key_value[to + (at + value_at) as usize] = value;
        }
    }
    let score = group_sum(score, comptime![sizes.lanes]) * call.scale;
    if is_first {
        sums.top = score;
        sums.total = 1.0f32;
        #[unroll]
        for j in 0..sizes.vectors {
            sums.values[comptime![j as usize]] = values[comptime![j as usize]];
        }
    }
}
