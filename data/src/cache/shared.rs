//! How much of a validation text also stands in a training text.

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;

use super::{CacheKind, TokenCache, Tokens};

/// Tokens of a passage of plain text. Two texts that share so many in a row share them because one was copied.
const PASSAGE: usize = SharedRows::PASSAGE;
/// The share of a document in the passages of another text from which it is a copy, in percent.
const COPIED: u64 = 90;
/// Factor of the hash of a passage, for each token that follows. It is odd, so that no token loses its weight.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of the table that rules out most passages.
const TABLE_BITS: u32 = 20;

/// A part of a validation text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedRows {
    /// Rows of pairs or conversations, or tokens of plain text, that also stand in the training text.
    pub shared: u64,
    /// All of them.
    pub of: u64,
}

impl SharedRows {
    /// Tokens of a passage of plain text that is compared.
    pub const PASSAGE: usize = 32;

    /// Compares the rows of `valid` with the rows of `train`, token by token. Plain text is compared in passages, so that documents may be
    /// divided in another way. Takes 16 bytes per row or passage of `valid`, and reads `train` once.
    pub fn of(valid: &[TokenCache], train: &[TokenCache]) -> Self {
        let mut sought = Sought::default();
        valid.iter().for_each(|cache| sought.add_all(cache));
        let of = sought.weights.values().sum();
        let shared = train.iter().map(|cache| sought.take_all(cache)).sum();
        Self { shared, of }
    }

    /// Counts the documents of plain text in `valid` that stand in `train` whole, or all but a tenth of them. Takes as long as [`Self::of`].
    pub fn of_documents(valid: &[TokenCache], train: &[TokenCache]) -> Self {
        let mut sought = Sought::default();
        valid.iter().for_each(|cache| sought.add_all(cache));
        for cache in train {
            sought.take_all(cache);
        }
        let mut found = Self::default();
        for cache in valid.iter().filter(|cache| cache.kind() == CacheKind::Text) {
            for document in 0..cache.n_rows() {
                let parts = parts(&cache.document(document).to_vec());
                let is_found = |(hash, weight): &(u64, u64)| (!sought.weights.contains_key(hash)).then_some(*weight);
                let n: u64 = parts.iter().map(|(_, weight)| weight).sum();
                let n_found: u64 = parts.iter().filter_map(is_found).sum();
                found.of += u64::from(n > 0);
                found.shared += u64::from(n > 0 && 100 * n_found >= COPIED * n);
            }
        }
        found
    }

    /// Returns the part as a fraction, 0 to 1.
    pub fn share(&self) -> f64 {
        self.shared as f64 / self.of.max(1) as f64
    }
}

/// The rows or passages that have not been found, by their hash: how many rows or tokens have it.
struct Sought {
    weights: std::collections::HashMap<u64, u64, RandomState>,
    /// Whether a passage may be among them, by the first bits of its hash.
    table: Vec<u64>,
    hasher: RandomState,
}

impl Default for Sought {
    fn default() -> Self {
        let hasher = RandomState::with_seeds(1, 2, 3, 4);
        Self { weights: std::collections::HashMap::default(), table: vec![0; 1 << (TABLE_BITS - 6)], hasher }
    }
}

impl Sought {
    fn add_all(&mut self, cache: &TokenCache) {
        for row in 0..cache.n_rows() {
            if cache.kind() != CacheKind::Text {
                self.add(self.of_row(cache, row), 1);
                continue;
            }
            parts(&cache.document(row).to_vec()).into_iter().for_each(|(hash, weight)| self.add(hash, weight));
        }
    }

    fn add(&mut self, hash: u64, weight: u64) {
        *self.weights.entry(hash).or_default() += weight;
        let (word, bit) = place(hash);
        self.table[word] |= bit;
    }

    /// Takes what `cache` has away. Returns the weight of it.
    fn take_all(&mut self, cache: &TokenCache) -> u64 {
        let mut found = 0;
        for row in 0..cache.n_rows() {
            if self.weights.is_empty() {
                break;
            }
            found += match cache.kind() {
                CacheKind::Text => self.take_passages(&cache.document(row).to_vec()),
                _ => self.take(self.of_row(cache, row)),
            };
        }
        found
    }

    fn take(&mut self, hash: u64) -> u64 {
        let (word, bit) = place(hash);
        if self.table[word] & bit == 0 { 0 } else { self.weights.remove(&hash).unwrap_or(0) }
    }

    /// Takes all passages of a document away, wherever they begin. The hash of each follows from the one before it.
    fn take_passages(&mut self, ids: &[u32]) -> u64 {
        if ids.len() < PASSAGE {
            return self.take(short(ids));
        }
        let oldest = (1..PASSAGE).fold(1, |power: u64, _| power.wrapping_mul(FACTOR));
        let mut hash = of_passage(&ids[..PASSAGE]);
        let mut found = self.take(hash);
        for (old, new) in ids.iter().zip(&ids[PASSAGE..]) {
            hash = hash.wrapping_sub(of_token(*old).wrapping_mul(oldest));
            hash = hash.wrapping_mul(FACTOR).wrapping_add(of_token(*new));
            found += self.take(hash);
        }
        found
    }

    fn of_row(&self, cache: &TokenCache, row: usize) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        let mut update = |ids: Tokens<'_>| {
            let bytes: &[u8] = match ids {
                Tokens::Narrow(ids) => bytemuck::cast_slice(ids),
                Tokens::Wide(ids) => bytemuck::cast_slice(ids),
            };
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        };
        match cache.kind() {
            CacheKind::Pairs => {
                let (source, target) = cache.row(row);
                update(source);
                update(target);
            }
            CacheKind::Text | CacheKind::Chat | CacheKind::Preferences | CacheKind::Labelled => {
                update(cache.document(row));
            }
        }
        hasher.finish()
    }
}

/// Returns the hashes of the passages of a document, or of a whole short one, each with its number of tokens.
fn parts(ids: &[u32]) -> Vec<(u64, u64)> {
    match ids.len() {
        0 => Vec::new(),
        n if n < PASSAGE => vec![(short(ids), n as u64)],
        _ => ids.chunks_exact(PASSAGE).map(|passage| (of_passage(passage), PASSAGE as u64)).collect(),
    }
}

/// Returns the word and the bit of a hash in the table.
fn place(hash: u64) -> (usize, u64) {
    let at = hash >> (64 - TABLE_BITS);
    ((at >> 6) as usize, 1 << (at & 63))
}

fn of_token(id: u32) -> u64 {
    let mixed = (u64::from(id) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

fn of_passage(ids: &[u32]) -> u64 {
    ids.iter().fold(0, |hash: u64, id| hash.wrapping_mul(FACTOR).wrapping_add(of_token(*id)))
}

/// Returns the hash of a whole document that is shorter than a passage.
fn short(ids: &[u32]) -> u64 {
    of_passage(ids) ^ (ids.len() as u64).wrapping_mul(0xa24b_aed4_963e_e407)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::built_in::numbers;
    use crate::cache::{prepare_pairs, prepare_text};
    use crate::corpus::{CorpusConfig, Example, PairCorpus, TextConfig, TextCorpus, TextFormat};
    use crate::fixtures::Fixture;
    use crate::tokenizer::{TextTokenizer, TokenizerConfig};

    fn shared(shared: u64, of: u64) -> SharedRows {
        SharedRows { shared, of }
    }

    #[test]
    fn pairs_that_both_texts_have_are_counted() {
        let fixture = Fixture::numbers(400);
        let mut rows: Vec<Example> = fixture.corpus.read_all().expect("readable").0;
        rows.sort_by(|a, b| a.source.cmp(&b.source));
        rows.dedup();
        let cache = |name: &str, rows: &[Example]| {
            let [file, tokens] =
                [format!("{name}.jsonl"), format!("{name}.tokens")].map(|x| fixture.dir.path().join(x));
            numbers::write_jsonl(&file, rows).expect("writable");
            let corpus = PairCorpus::open(&[file], &CorpusConfig::default()).expect("a corpus");
            prepare_pairs(&tokens, &corpus, &fixture.tokenizers, 2, &mut |_| ()).expect("a cache").cache
        };
        let crossed = Example { source: rows[0].source.clone(), target: rows[1].target.clone() };
        let twice = [&rows[..30], &rows[..10], &[crossed]].concat();
        let (train, head, mixed) = (cache("train", &rows[20..]), cache("head", &rows[..60]), cache("mixed", &twice));
        let of = |valid: TokenCache, train: Vec<TokenCache>| SharedRows::of(&[valid], &train);
        assert_eq!(of(head, vec![train]), shared(40, 60));
        let all = || TokenCache::open(&fixture.dir.path().join("head.tokens")).expect("there");
        assert_eq!(of(mixed, vec![all()]), shared(40, 41), "copies count, and a pair of other halves does not");
        assert_eq!(of(all(), vec![]), shared(0, 60));
    }

    #[test]
    fn passages_of_plain_text_are_found_wherever_documents_begin() {
        let folder = tempfile::tempdir().expect("a folder");
        let line = |n: usize| format!("line {n} says {} and {}\n", n * 7919 % 1009, n * 104_729 % 997);
        let lines = |range: std::ops::Range<usize>| range.map(line).collect::<String>();
        let path = |name: &str| folder.path().join(name);
        let corpus = |name: &str, text: &str| {
            std::fs::write(path(name), text).expect("writable");
            let config = TextConfig { format: TextFormat::BlankLines, ..TextConfig::default() };
            TextCorpus::open(&[path(name)], &config).expect("a corpus")
        };

        let train = corpus("train.txt", &lines(0..600));
        let config = TokenizerConfig { vocab_size: 400, ..TokenizerConfig::default() };
        let tokenizer = TextTokenizer::train(&config, &train, 2).expect("enough text");
        let cache = |name: &str, corpus: &TextCorpus| {
            prepare_text(Path::new(&path(name)), corpus, &tokenizer, 2, &mut |_| ()).expect("a cache").cache
        };
        let share = |name: &str, text: &str| {
            let valid = cache(&format!("{name}.tokens"), &corpus(&format!("{name}.txt"), text));
            SharedRows::of(&[valid], &[cache("train.tokens", &train)]).share()
        };
        let part = share("part", &lines(100..200));
        let cut = share("cut", &format!("{}\n{}", lines(5..80), lines(300..400)));
        let half = share("half", &format!("{}\n{}", lines(0..100), lines(1000..1100)));
        let other = share("other", &lines(1000..1200));
        assert!(part > 0.9 && cut > 0.9 && (0.4..0.6).contains(&half) && other < 0.05, "{part} {cut} {half} {other}");
        assert_eq!(share("short", "ine 7\n"), 0.0, "a part of a word");

        let copies = |name: &str, text: &str| {
            let valid = cache(&format!("{name}.tokens"), &corpus(&format!("{name}.txt"), text));
            SharedRows::of_documents(&[valid], &[cache("train.tokens", &train)])
        };
        let others = lines(1000..1060);
        let text = format!("{}\n{}{others}\nline 7 says 1\n", lines(100..200), lines(0..30));
        assert_eq!(copies("copies", &text), shared(1, 3), "a third of the second document is a passage, and no copy");
    }
}
