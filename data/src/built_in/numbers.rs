//! Numbers in digits -> English words.
//!
//! A real sequence-to-sequence task without a download. The output depends on every digit and its place, the lengths
//! differ, and a model can only read held-out numbers if it learned the rule. All rows are a pure function of a seed.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::corpus::Example;
use crate::error::{Error, Result};
use crate::files::{read_file, write_fresh};
use crate::sampler::below;
use crate::tokenizer::TokenizerConfig;

/// Digits of the default range, 0 to 999,999.
pub const MAX_DIGITS: u32 = 6;

/// Numbers below this are always in the training set: their words make up all others.
const ALWAYS_TRAINED: u64 = 1000;

/// One number in this many is held out.
const HELD_OUT_ONE_IN: u64 = 10;

const BELOW_TWENTY: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [&str; 7] = ["", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion"];

/// Returns a number in English words: 105 is "one hundred five".
pub fn in_words(number: u64) -> String {
    if number < 20 {
        return BELOW_TWENTY[number as usize].into();
    }

    let mut words: Vec<&str> = Vec::new();
    for (i, scale) in SCALES.iter().enumerate().rev() {
        let group = (number / 1000u64.pow(i as u32) % 1000) as usize;
        if group == 0 {
            continue;
        }
        if group >= 100 {
            words.extend([BELOW_TWENTY[group / 100], "hundred"]);
        }
        match group % 100 {
            0 => {}
            small @ 1..20 => words.push(BELOW_TWENTY[small]),
            two => {
                words.push(TENS[two / 10]);
                if two % 10 != 0 {
                    words.push(BELOW_TWENTY[two % 10]);
                }
            }
        }
        if !scale.is_empty() {
            words.push(scale);
        }
    }
    words.join(" ")
}

/// Rows of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    /// Training rows. Each number of digits is equally frequent, so short numbers repeat.
    pub train: Vec<Example>,
    /// Test rows: different numbers, none of them in `train`.
    pub held_out: Vec<Example>,
}

/// Samples `n_train` and `n_held_out` numbers of up to `max_digits` digits, each number of digits equally likely.
///
/// # Errors
///
/// If `max_digits` is not 4 to 18, or if there are too few held-out numbers.
pub fn examples(n_train: usize, n_held_out: usize, max_digits: u32, seed: u64) -> Result<Numbers> {
    if !(4..=18).contains(&max_digits) {
        return Err(Error::Invalid(format!("cannot sample numbers of {max_digits} digits: choose 4 to 18")));
    }
    let available = (10u64.pow(max_digits) - ALWAYS_TRAINED) / HELD_OUT_ONE_IN;
    if n_held_out as u64 > available / 2 {
        return Err(Error::Invalid(format!(
            "cannot hold out {n_held_out} numbers of up to {max_digits} digits: at most {} are available",
            available / 2
        )));
    }

    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut train = Vec::with_capacity(n_train);
    while train.len() < n_train {
        let number = draw(&mut random, 1, max_digits);
        if !is_held_out(number, seed) {
            train.push(example(number));
        }
    }

    let mut held_out = BTreeSet::new();
    // Few short numbers are held out. Sampling every length equally often would take long once they are used up.
    let mut misses = 0;
    while held_out.len() < n_held_out {
        let min_digits = if misses > 20 * n_held_out { max_digits } else { 4 };
        let number = draw(&mut random, min_digits, max_digits);
        if !is_held_out(number, seed) || !held_out.insert(number) {
            misses += 1;
        }
    }
    Ok(Numbers { train, held_out: held_out.into_iter().map(example).collect() })
}

/// Returns a vocabulary that fits the task: every digit is a token.
pub fn tokenizer_config() -> TokenizerConfig {
    TokenizerConfig { vocab_size: 96, byte_fallback: false, split_digits: true, ..TokenizerConfig::default() }
}

/// Returns rows as JSONL with the fields `src` and `trg`.
pub fn jsonl(examples: &[Example]) -> Vec<u8> {
    let mut text = Vec::new();
    for example in examples {
        let row = serde_json::json!({ "src": example.source, "trg": example.target });
        writeln!(text, "{row}").expect("writing to memory");
    }
    text
}

/// Writes rows as JSONL, see [`jsonl`], unless the file has exactly this content.
pub fn write_jsonl(path: &Path, examples: &[Example]) -> Result<()> {
    let text = jsonl(examples);
    if read_file(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "creating the folder"))?;
    }
    write_fresh(path, &text).map_err(Error::io(path, "writing the built-in task"))
}

fn example(number: u64) -> Example {
    Example { source: number.to_string(), target: in_words(number) }
}

fn draw(random: &mut ChaCha8Rng, min_digits: u32, max_digits: u32) -> u64 {
    let digits = min_digits + below(random, max_digits - min_digits + 1);
    let low = if digits == 1 { 0 } else { 10u64.pow(digits - 1) };
    let span = 10u64.pow(digits) - low;
    // Multiply and shift: the bias is at most the span over 2^64, below 10^-13 for six digits.
    low + ((u128::from(random.next_u64()) * u128::from(span)) >> 64) as u64
}

/// Whether a number is held out. Depends on the number and the seed, not on how many rows are sampled.
fn is_held_out(number: u64, seed: u64) -> bool {
    let mut hasher = blake3::Hasher::new_derive_key("kiln-data 2026 held-out numbers");
    hasher.update(&seed.to_le_bytes()).update(&number.to_le_bytes());
    let hash = u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("8 bytes"));
    number >= ALWAYS_TRAINED && hash % HELD_OUT_ONE_IN == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_in_english() {
        let cases = [
            (0, "zero"),
            (7, "seven"),
            (10, "ten"),
            (13, "thirteen"),
            (20, "twenty"),
            (40, "forty"),
            (99, "ninety nine"),
            (100, "one hundred"),
            (105, "one hundred five"),
            (110, "one hundred ten"),
            (219, "two hundred nineteen"),
            (1000, "one thousand"),
            (1001, "one thousand one"),
            (12_000, "twelve thousand"),
            (70_080, "seventy thousand eighty"),
            (100_100, "one hundred thousand one hundred"),
            (999_999, "nine hundred ninety nine thousand nine hundred ninety nine"),
            (1_000_000, "one million"),
            (2_000_000_003, "two billion three"),
        ];

        for (number, words) in cases {
            assert_eq!(in_words(number), words);
        }
        assert!(in_words(u64::MAX).starts_with("eighteen quintillion four hundred forty six quadrillion"));
    }

    #[test]
    fn all_readings_differ() {
        let readings: std::collections::HashSet<_> = (0..20_000).map(in_words).collect();
        assert_eq!(readings.len(), 20_000);
    }

    #[test]
    fn held_out_numbers_are_never_trained() {
        let numbers = examples(20_000, 500, MAX_DIGITS, 1).expect("valid settings");
        assert_eq!((numbers.train.len(), numbers.held_out.len()), (20_000, 500));
        let train: BTreeSet<_> = numbers.train.iter().map(|e| &e.source).collect();
        assert!(numbers.held_out.iter().all(|e| !train.contains(&e.source)));
        let different: BTreeSet<_> = numbers.held_out.iter().map(|e| &e.source).collect();
        assert_eq!(different.len(), 500);
        for digits in 1..=6 {
            let share = numbers.train.iter().filter(|e| e.source.len() == digits).count() as f64 / 20_000.0;
            assert!((0.14..0.20).contains(&share), "{digits} digits: {share}");
        }
        assert!(train.contains(&"0".to_owned()) && train.contains(&"7".to_owned()));
        assert_eq!(numbers, examples(20_000, 500, MAX_DIGITS, 1).expect("valid settings"));
        assert_ne!(numbers, examples(20_000, 500, MAX_DIGITS, 2).expect("valid settings"));
    }

    #[test]
    fn impossible_requests_are_refused() {
        assert!(examples(10, 10, 3, 0).is_err());
        assert!(examples(10, 1000, 4, 0).is_err());
    }

    #[test]
    fn held_out_draws_end_even_when_short_numbers_run_out() {
        let numbers = examples(10, 400, 4, 0).expect("valid settings");
        assert_eq!(numbers.held_out.len(), 400);
    }
}
