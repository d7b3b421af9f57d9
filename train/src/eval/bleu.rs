//! Corpus BLEU (Papineni et al. 2002) as sacreBLEU computes it: 13a tokenizer, exponential smoothing, one reference.
//!
//! The input is detokenized text; the tokenizer is part of the metric. The score equals sacreBLEU 2.x with its defaults.
//! `tests/fixtures/bleu` holds cases scored by sacreBLEU.

use std::collections::HashMap;
use std::fmt;

/// Longest n-gram counted.
const MAX_ORDER: usize = 4;

/// The signature of the metric in sacreBLEU's notation. Print it with every score.
pub const SIGNATURE: &str =
    concat!("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:kiln-", env!("CARGO_PKG_VERSION"));

/// BLEU of a corpus, and the counts behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Bleu {
    /// 0 to 100.
    pub score: f64,
    /// Smoothed precisions of 1- to 4-grams, in percent.
    pub precisions: [f64; MAX_ORDER],
    /// Penalty for hypotheses shorter than the references, 0 to 1.
    pub brevity_penalty: f64,
    /// n-grams that also occur in the reference, clipped.
    pub matches: [u64; MAX_ORDER],
    /// n-grams of the hypotheses.
    pub totals: [u64; MAX_ORDER],
    /// Hypothesis length in 13a tokens.
    pub hypothesis_len: u64,
    /// Reference length in 13a tokens.
    pub reference_len: u64,
}

impl Bleu {
    /// Returns whether no hypothesis has four tokens. The score is 0 then, whatever the hypotheses say.
    pub fn has_no_four_grams(&self) -> bool {
        self.totals[MAX_ORDER - 1] == 0
    }
}

impl fmt::Display for Bleu {
    /// Writes sacreBLEU's line: `57.70 81.2/64.0/53.2/44.8 (BP = 0.98 ratio = 0.98 hyp_len = 24000 ref_len = 24400)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three, four] = self.precisions;
        let ratio = if self.reference_len > 0 { self.hypothesis_len as f64 / self.reference_len as f64 } else { 0.0 };
        write!(
            f,
            "{:.2} {one:.1}/{two:.1}/{three:.1}/{four:.1} (BP = {:.3} ratio = {ratio:.3} hyp_len = {} ref_len = {})",
            self.score, self.brevity_penalty, self.hypothesis_len, self.reference_len
        )
    }
}

/// Returns the BLEU of a corpus: line `i` of `hypotheses` against line `i` of `references`.
///
/// # Panics
/// If the two differ in length.
pub fn corpus_bleu<H: AsRef<str>, R: AsRef<str>>(hypotheses: &[H], references: &[R]) -> Bleu {
    assert_eq!(hypotheses.len(), references.len(), "one reference per hypothesis");
    let (mut matches, mut totals) = ([0; MAX_ORDER], [0; MAX_ORDER]);
    let (mut hypothesis_len, mut reference_len) = (0, 0);
    for (hypothesis, reference) in hypotheses.iter().zip(references) {
        let (hypothesis, reference) = (tokenize_13a(hypothesis.as_ref()), tokenize_13a(reference.as_ref()));
        let hypothesis: Vec<&str> = hypothesis.split(' ').filter(|token| !token.is_empty()).collect();
        let reference: Vec<&str> = reference.split(' ').filter(|token| !token.is_empty()).collect();
        hypothesis_len += hypothesis.len() as u64;
        reference_len += reference.len() as u64;
        for order in 1..=MAX_ORDER {
            let wanted = count_ngrams(&reference, order);
            for (ngram, count) in count_ngrams(&hypothesis, order) {
                totals[order - 1] += count;
                matches[order - 1] += count.min(wanted.get(ngram).copied().unwrap_or(0));
            }
        }
    }
    from_counts(matches, totals, hypothesis_len, reference_len)
}

fn count_ngrams<'a, 'b>(tokens: &'b [&'a str], order: usize) -> HashMap<&'b [&'a str], u64> {
    let mut counts = HashMap::new();
    for ngram in tokens.windows(order) {
        *counts.entry(ngram).or_insert(0) += 1;
    }
    counts
}

fn from_counts(matches: [u64; MAX_ORDER], totals: [u64; MAX_ORDER], hypothesis_len: u64, reference_len: u64) -> Bleu {
    let brevity_penalty = match (hypothesis_len, reference_len) {
        (0, 1..) => 0.0,
        (hypothesis, reference) if hypothesis < reference => (1.0 - reference as f64 / hypothesis as f64).exp(),
        _ => 1.0,
    };
    let mut bleu = Bleu {
        score: 0.0,
        precisions: [0.0; MAX_ORDER],
        brevity_penalty,
        matches,
        totals,
        hypothesis_len,
        reference_len,
    };

    // Without a matching word the score is 0; smoothing alone must not raise it.
    if matches.iter().all(|&count| count == 0) {
        return bleu;
    }

    // Exponential smoothing (NIST mteval-v13a): the k-th order without a match counts as 1 / 2^k matches.
    let mut halvings = 1.0;
    for (precision, (&matched, &total)) in bleu.precisions.iter_mut().zip(matches.iter().zip(&totals)) {
        if total == 0 {
            break;
        }
        *precision = if matched == 0 {
            halvings *= 2.0;
            100.0 / (halvings * total as f64)
        } else {
            100.0 * matched as f64 / total as f64
        };
    }

    // An order without any n-gram has precision 0, and so has the score (`eff:no`).
    if bleu.precisions.iter().all(|&precision| precision > 0.0) {
        let mean_log = bleu.precisions.iter().map(|precision| precision.ln()).sum::<f64>() / MAX_ORDER as f64;
        bleu.score = brevity_penalty * mean_log.exp();
    }
    bleu
}

/// Tokenizes a line as NIST mteval-v13a does and returns it with single spaces between tokens.
pub fn tokenize_13a(line: &str) -> String {
    let mut line = line.trim_end_matches(is_space).replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if line.contains('&') {
        line = line.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    }
    let line: Vec<char> = format!(" {line} ").chars().collect();

    // Four passes in mteval's order. Each works on the output of the pass before, left to right, without overlap.
    let mut spaced = Vec::with_capacity(line.len() * 2);
    for character in line {
        if is_symbol(character) {
            spaced.extend([' ', character, ' ']);
        } else {
            spaced.push(character);
        }
    }
    let spaced = rewrite_pairs(&spaced, |a, b| !a.is_ascii_digit() && is_point(b), |a, b| [a, ' ', b, ' ']);
    let spaced = rewrite_pairs(&spaced, |a, b| is_point(a) && !b.is_ascii_digit(), |a, b| [' ', a, ' ', b]);
    let spaced = rewrite_pairs(&spaced, |a, b| a.is_ascii_digit() && b == '-', |a, b| [a, ' ', b, ' ']);

    let spaced: String = spaced.into_iter().collect();
    spaced.split(is_space).filter(|token| !token.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Replaces each matching pair of neighbours, as a regular expression of two characters does.
fn rewrite_pairs(
    text: &[char],
    matches: impl Fn(char, char) -> bool,
    rewrite: impl Fn(char, char) -> [char; 4],
) -> Vec<char> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 2);
    let mut at = 0;
    while at < text.len() {
        match text.get(at + 1) {
            Some(&next) if matches(text[at], next) => {
                out.extend(rewrite(text[at], next));
                at += 2;
            }
            _ => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

/// Returns whether a character is an ASCII symbol that is always a token. `'`, `,`, `-` and `.` have rules of their own.
fn is_symbol(character: char) -> bool {
    matches!(character, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/')
}

fn is_point(character: char) -> bool {
    matches!(character, '.' | ',')
}

/// Returns whether Python's `str.split` splits at a character: Unicode white space and U+001C to U+001F.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::golden::Golden;

    #[test]
    fn scores_equal_sacrebleu() {
        for case in Golden::load().cases {
            let bleu = corpus_bleu(&case.hypotheses, &case.references);
            let wanted = &case.bleu;
            assert_eq!((bleu.matches, bleu.totals), (wanted.matches, wanted.totals), "{}", case.name);
            assert_eq!(
                (bleu.hypothesis_len, bleu.reference_len),
                (wanted.hypothesis_len, wanted.reference_len),
                "{}",
                case.name
            );
            assert!((bleu.score - wanted.score).abs() < 1e-9, "{}: {} is not {}", case.name, bleu.score, wanted.score);
            assert!((bleu.brevity_penalty - wanted.brevity_penalty).abs() < 1e-12, "{}", case.name);
            assert_eq!(bleu.to_string(), wanted.line, "{}", case.name);
        }
    }

    #[test]
    fn lines_are_tokenized_as_mteval_v13a_does() {
        for case in Golden::load().tokenized {
            assert_eq!(tokenize_13a(&case.text), case.tokens, "{:?}", case.text);
        }
    }

    #[test]
    fn lines_of_fewer_than_four_words_have_no_score() {
        let words = ["casa", "il gatto nero"];
        let short = corpus_bleu(&words, &words);
        assert!(short.has_no_four_grams() && short.score == 0.0, "{short}");
        let long = corpus_bleu(&["il gatto nero dorme"], &["il gatto nero dorme"]);
        assert!(!long.has_no_four_grams() && (long.score - 100.0).abs() < 1e-9, "{long}");
    }

    #[test]
    fn the_signature_names_what_sacrebleu_names() {
        let wanted = Golden::load().bleu_signature;
        let settings = |signature: &str| signature.split("|version").next().map(str::to_owned);
        assert_eq!(settings(SIGNATURE), settings(&wanted));
    }

    #[test]
    #[should_panic(expected = "one reference per hypothesis")]
    fn unpaired_lines_are_a_bug_of_the_caller() {
        corpus_bleu(&["a"], &["a", "b"]);
    }
}
