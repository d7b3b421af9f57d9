//! Dropout of probabilities: the random bits of each, in the register layout of a product.

use cubecl::prelude::*;

use super::arguments::Dropout;
use super::config::{FlashConfig, TILE, UNITS};
use super::position::{Place, tiles};
use crate::dropout::kernel::philox;

/// Draws of [`random_words`] per thread for the 64 x 64 probabilities of a tile, eight per draw.
const DRAWS: usize = TILE * TILE / 8 / UNITS as usize;

/// Distance of the bits of one group of eight keys from the next: the threads of a warp then read different banks.
pub(crate) const KEPT_STRIDE: u32 = TILE as u32 + 8;

/// Returns sixteen random bits each for eight probabilities of row `row` (of all rows of all heads): keys `column`,
/// `column + 1` and every eight keys further, in half `half` of key tile `tile`. These are the keys that a thread holds
/// of that half.
#[cube]
fn random_words(dropout: &Dropout, row: u32, tile: u32, half: u32, column: u32, keys: u32) -> Array<u32> {
    let quad = (row * tiles(keys) + tile) * 8 + half * 4 + column / 2;
    let (w0, w1, w2, w3) = philox(quad, dropout.args.site, &dropout.state);
    let mut words = Array::<u32>::new(4usize);
    words[0] = w0;
    words[1] = w1;
    words[2] = w2;
    words[3] = w3;
    words
}

/// Drops values of an accumulator, 64 queries from row `row` of all rows on by 64 or 32 keys, and scales the others. `nth`
/// counts tiles of as many keys.
#[cube]
pub(crate) fn drop_values(values: &mut Array<f32>, dropout: &Dropout, row: u32, nth: u32, column: u32, keys: u32) {
    let (limit, keep) = (dropout.args.limit, dropout.args.scale);
    let held = values.len();
    let halves = comptime![held / 16];

    #[unroll]
    for block in 0..comptime![2 * halves] {
        let second_row = comptime![block % 2];
        let half = comptime![block / 2];
        let from = row + comptime![8 * second_row as u32];
        let words = if comptime![halves == 2] {
            random_words(dropout, from, nth, comptime![half as u32].runtime(), column, keys)
        } else {
            random_words(dropout, from, nth / 2, nth % 2, column, keys)
        };
        #[unroll]
        for n in 0..4usize {
            let i = comptime![(half * 4 + n) * 4 + second_row * 2];
            values[i] = select((words[n] & 0xffff) >= limit, values[i] * keep, 0.0f32);
            values[comptime![i + 1]] = select((words[n] >> 16) >= limit, values[comptime![i + 1]] * keep, 0.0f32);
        }
    }
}

/// Returns a bit per value of an accumulator, set if the value is kept. Rows are the keys of tile `tile`; columns are
/// `queries` queries, the first of which is row `row` of all rows.
#[cube]
pub(crate) fn kept_bits(
    dropout: &Dropout,
    row: u32,
    tile: u32,
    at: &Place,
    keys: u32,
    #[comptime] queries: usize,
) -> u32 {
    let limit = dropout.args.limit;
    // The thread's keys are in the first or the last two of the four words.
    let last_words = at.row / 16 % 2 == 1;
    let shift = at.row % 2 * 16;
    let mut kept = 0u32;
    #[unroll]
    for query in 0..comptime![queries / 4] {
        let from = row + comptime![(query / 2 * 8 + query % 2) as u32];
        let words = random_words(dropout, from, tile, at.row / 32, at.row % 8, keys);
        let first = select(last_words, words[2], words[0]) >> shift;
        let second = select(last_words, words[3], words[1]) >> shift;
        let bit = comptime![(query / 2 * 4 + query % 2) as u32];
        kept |= select((first & 0xffff) >= limit, comptime![1u32 << bit].runtime(), 0u32);
        kept |= select((second & 0xffff) >= limit, comptime![1u32 << (bit + 2)].runtime(), 0u32);
    }
    kept
}

/// Returns `values` times `keep` where the bit in `kept` is set, and 0 elsewhere. Without dropout, returns `values`.
#[cube]
pub(crate) fn kept_values(values: &Array<f32>, kept: u32, keep: f32, #[comptime] cfg: FlashConfig) -> Array<f32> {
    let mut result = Array::<f32>::new(values.len());
    #[unroll]
    for i in 0..values.len() {
        result[i] = values[i];
        if comptime![cfg.dropout] {
            result[i] = values[i] * select(kept & comptime![1u32 << i as u32] != 0, keep, 0.0f32);
        }
    }
    result
}

/// Draws the kept probabilities of 64 queries, from row `row` of all rows of all heads on, and 64 keys. A thread draws
/// the bits of one query and eight keys, and stores them in one word.
#[cube]
pub(crate) fn draw_kept(memory: &mut Shared<[u32]>, dropout: &Dropout, row: u32, keys: u32) {
    let limit = dropout.args.limit;
    #[unroll]
    for turn in 0..DRAWS {
        let n = UNIT_POS + comptime![turn as u32 * UNITS];
        let query = n % comptime![TILE as u32];
        let eight = n / comptime![TILE as u32];
        let words = random_words(dropout, row + query, 0u32, eight / 4, eight % 4 * 2, keys);
        let mut bits = 0u32;
        #[unroll]
        for i in 0..4usize {
            bits |= select((words[i] & 0xffff) >= limit, comptime![1u32 << (2 * i as u32)].runtime(), 0u32);
            bits |= select((words[i] >> 16) >= limit, comptime![2u32 << (2 * i as u32)].runtime(), 0u32);
        }
        memory[(eight * KEPT_STRIDE + query) as usize] = bits;
    }
}

/// Returns a bit per value of a 64 x 64 accumulator, keys by queries, set if [`draw_kept`] has kept it.
#[cube]
pub(crate) fn drawn_bits(memory: &Shared<[u32]>, at: &Place) -> u32 {
    // The thread's two keys are eight apart; their bits are in one word, two positions apart.
    let from = (at.row / 32 * 4 + at.row % 8 / 2) * KEPT_STRIDE + at.column;
    let shift = at.row % 32 / 8 * 2 + at.row % 2;
    let mut kept = 0u32;
    #[unroll]
    for query in 0..16usize {
        let bits = memory[(from + comptime![(query / 2 * 8 + query % 2) as u32]) as usize] >> shift;
        let bit = comptime![(query / 2 * 4 + query % 2) as u32];
        kept |= (bits & 1) << bit;
        kept |= (bits >> 2 & 1) << comptime![bit + 2];
    }
    kept
}
