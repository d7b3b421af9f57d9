//! Relative positions: each head adds a number to the scores, which depends on the distance between key and query alone.
//!
//! The numbers of a head are in ascending order of `key - query`, from `1 - T` to `S - 1`. A thread holds scores of two rows and pairs of
//! columns, 8 apart, so that few distances occur: it loads the number of each once.

use cubecl::prelude::*;

use super::arguments::{Lens, Masks};
use super::config::FlashConfig;
use super::position::Place;

/// Where an accumulator lies: the head, and the first query and key.
#[derive(CubeType)]
pub(crate) struct Scores {
    pub(crate) head: u32,
    pub(crate) q0: u32,
    pub(crate) k0: u32,
}

/// Adds the numbers to scores, queries by keys, that have not been multiplied by their factor.
#[cube]
pub(crate) fn add_to_rows(
    values: &mut Array<f32>,
    masks: &Masks,
    scores: &Scores,
    at: &Place,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.relative] {
        let distance = i32::cast_from(scores.k0 + at.column + lens.t - 1) - i32::cast_from(scores.q0 + at.row);
        add(values, masks, scores.head, distance, 1, lens, cfg);
    }
}

/// Adds the numbers to scores, keys by queries.
#[cube]
pub(crate) fn add_to_columns(
    values: &mut Array<f32>,
    masks: &Masks,
    scores: &Scores,
    at: &Place,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.relative] {
        let distance = i32::cast_from(scores.k0 + at.row + lens.t - 1) - i32::cast_from(scores.q0 + at.column);
        add(values, masks, scores.head, distance, -1, lens, cfg);
    }
}

/// Adds the numbers of a thread's scores, of which the first has place `distance`. `step` is 1 if the distance grows along a row of
/// the accumulator, and -1 if it falls.
#[cube]
fn add(
    values: &mut Array<f32>,
    masks: &Masks,
    head: u32,
    distance: i32,
    #[comptime] step: i32,
    lens: &Lens,
    #[comptime] cfg: FlashConfig,
) {
    let held = values.len();
    let n = lens.t + lens.s - 1;
    let (first, last) = (head * n, i32::cast_from(n) - 1);
    // Pair 0 is the second row's first, eight columns before the first row's.
    let mut numbers = Array::<f32>::new(comptime![held / 2 + 2]);
    #[unroll]
    for i in 0..comptime![held / 2 + 2] {
        let away = comptime![step * (8 * (i as i32 / 2) - 8 + i as i32 % 2)];
        // Scores beyond the last query or key are hidden.
        let place = min(max(distance + away, 0i32), last);
        numbers[i] = masks.relative[(first + u32::cast_from(place)) as usize];
    }

    let factor = comptime![cfg.scale().recip()].runtime();
    #[unroll]
    for i in 0..held {
        let pair = comptime![i / 4 + usize::from(i % 4 < 2)];
        values[i] += numbers[comptime![2 * pair + i % 2]] * factor;
    }
}
