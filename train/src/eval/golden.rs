//! Scores computed by sacreBLEU (`tests/fixtures/bleu/make.py`), for the tests of this folder.

use serde::Deserialize;

/// The fixture file.
#[derive(Deserialize)]
pub(super) struct Golden {
    pub(super) bleu_signature: String,
    pub(super) chrf_signature: String,
    pub(super) tokenized: Vec<Tokenized>,
    pub(super) cases: Vec<Case>,
}

/// One line and its 13a tokens.
#[derive(Deserialize)]
pub(super) struct Tokenized {
    pub(super) text: String,
    pub(super) tokens: String,
}

/// One small corpus and its scores.
#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) hypotheses: Vec<String>,
    pub(super) references: Vec<String>,
    pub(super) bleu: BleuScore,
    pub(super) chrf: f64,
}

/// sacreBLEU's `BLEUScore`.
#[derive(Deserialize)]
pub(super) struct BleuScore {
    pub(super) score: f64,
    pub(super) brevity_penalty: f64,
    pub(super) matches: [u64; 4],
    pub(super) totals: [u64; 4],
    pub(super) hypothesis_len: u64,
    pub(super) reference_len: u64,
    pub(super) line: String,
}

impl Golden {
    /// Reads the committed fixture, or the file in `KILN_BLEU_GOLDEN`, which the same script has written.
    pub(super) fn load() -> Self {
        let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/bleu/golden.json");
        let path = std::env::var("KILN_BLEU_GOLDEN").unwrap_or_else(|_| committed.into());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let golden: Self = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(!golden.cases.is_empty(), "{path} has no cases");
        golden
    }
}
