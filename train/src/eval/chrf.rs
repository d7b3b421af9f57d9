//! Corpus chrF2 (Popovic 2015) as sacreBLEU computes it: character n-grams up to 6, beta 2, one reference, without white
//! space, word n-grams or epsilon smoothing.

use std::collections::HashMap;

use super::bleu::is_space;

/// Longest character n-gram counted.
const MAX_ORDER: usize = 6;

/// The weight of recall is `BETA` squared times the weight of precision.
const BETA: f64 = 2.0;

/// The signature of the metric in sacreBLEU's notation. Print it with every score.
pub const SIGNATURE: &str =
    concat!("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:kiln-", env!("CARGO_PKG_VERSION"));

/// Counts of n-grams of one order, summed over the corpus.
#[derive(Debug, Clone, Copy, Default)]
struct OrderCounts {
    hypothesis: u64,
    reference: u64,
    matches: u64,
}

/// Returns the chrF2 of a corpus, 0 to 100: line `i` of `hypotheses` against line `i` of `references`.
///
/// # Panics
/// If the two differ in length.
pub fn corpus_chrf<H: AsRef<str>, R: AsRef<str>>(hypotheses: &[H], references: &[R]) -> f64 {
    assert_eq!(hypotheses.len(), references.len(), "one reference per hypothesis");
    let mut counts = [OrderCounts::default(); MAX_ORDER];
    for (hypothesis, reference) in hypotheses.iter().zip(references) {
        let (hypothesis, reference) = (letters(hypothesis.as_ref()), letters(reference.as_ref()));
        for (order, counts) in (1..).zip(&mut counts) {
            let wanted = count_ngrams(&reference, order);
            if wanted.is_empty() {
                continue; // the reference is shorter than the n-gram
            }
            counts.reference += wanted.values().sum::<u64>();
            for (ngram, count) in count_ngrams(&hypothesis, order) {
                counts.hypothesis += count;
                counts.matches += count.min(wanted.get(ngram).copied().unwrap_or(0));
            }
        }
    }
    f_score(&counts)
}

/// Returns the F-score of mean precision and mean recall over the orders that occur on both sides.
fn f_score(counts: &[OrderCounts]) -> f64 {
    let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0.0);
    for order in counts.iter().filter(|order| order.hypothesis > 0 && order.reference > 0) {
        precision += order.matches as f64 / order.hypothesis as f64;
        recall += order.matches as f64 / order.reference as f64;
        orders += 1.0;
    }
    if precision + recall == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (precision / orders, recall / orders);
    let weight = BETA * BETA;
    100.0 * (1.0 + weight) * precision * recall / (weight * precision + recall)
}

fn letters(line: &str) -> Vec<char> {
    line.chars().filter(|&character| !is_space(character)).collect()
}

fn count_ngrams(text: &[char], order: usize) -> HashMap<&[char], u64> {
    let mut counts = HashMap::new();
    for ngram in text.windows(order) {
        *counts.entry(ngram).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::golden::Golden;

    #[test]
    fn scores_equal_sacrebleu() {
        for case in Golden::load().cases {
            let chrf = corpus_chrf(&case.hypotheses, &case.references);
            assert!((chrf - case.chrf).abs() < 1e-9, "{}: {chrf} is not {}", case.name, case.chrf);
        }
    }

    #[test]
    fn the_signature_names_what_sacrebleu_names() {
        let wanted = Golden::load().chrf_signature;
        let settings = |signature: &str| signature.split("|version").next().map(str::to_owned);
        assert_eq!(settings(SIGNATURE), settings(&wanted));
    }
}
