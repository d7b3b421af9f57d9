//! Scores of a model on raw text: generated lines against references.

use anyhow::Result;
use kiln_data::Example;
use kiln_ranks::Ranks;

use super::bleu::{Bleu, corpus_bleu};
use super::chrf::corpus_chrf;
use crate::generate::Translator;

/// Scores of generated text.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Corpus BLEU, 13a tokens, exponential smoothing.
    pub bleu: Bleu,
    /// chrF2, 0 to 100.
    pub chrf: f64,
    /// Fraction of lines equal to their reference, 0 to 1. White space at both ends is ignored.
    pub exact_match: f64,
    /// The generated lines, in the order of the examples.
    pub hypotheses: Vec<String>,
    /// Seconds spent generating.
    pub generate_secs: f64,
}

/// Translates the sources of `examples` and scores the result. Several ranks share the sources; each gets all scores.
///
/// # Errors
/// If a source cannot be translated, or if another rank has failed.
pub fn evaluate(translator: &Translator, examples: &[Example], ranks: &Ranks) -> Result<Evaluation> {
    let sources: Vec<&str> = examples.iter().map(|example| example.source.as_str()).collect();

    let start = std::time::Instant::now();
    let own = translator.translate_share(&sources, 0, ranks.part())?;
    let hypotheses = ranks.merge("sharing the translations", own)?.into_iter().map(Option::unwrap_or_default).collect();
    Ok(score(hypotheses, examples, start.elapsed().as_secs_f64()))
}

/// Scores generated lines against the targets of `examples`; generating them took `generate_secs`.
///
/// # Panics
/// If there are not as many lines as examples.
pub fn score(hypotheses: Vec<String>, examples: &[Example], generate_secs: f64) -> Evaluation {
    let references: Vec<&str> = examples.iter().map(|example| example.target.as_str()).collect();
    let equal = hypotheses.iter().zip(&references).filter(|(found, wanted)| found.trim() == wanted.trim()).count();
    Evaluation {
        bleu: corpus_bleu(&hypotheses, &references),
        chrf: corpus_chrf(&hypotheses, &references),
        exact_match: equal as f64 / examples.len().max(1) as f64,
        hypotheses,
        generate_secs,
    }
}
