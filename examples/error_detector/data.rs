//! The data: the documentation of this repository, in which tokens are replaced by tokens of a similar spelling.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln::Config;
use kiln::config::ConfigBuilder;
use kiln::dataset::{RunData, Vocabulary};
use kiln_data::{BatchSource, BatchWorker, Buckets, EpochPlan, HostBatch, Order, Shape, TextParts, TextTokenizer};

/// Candidates per token; even.
const K: usize = 4;
/// One token of this many is wrong.
const ONE_OF: u64 = 8;
/// Copies of each training row, with other errors each.
const COPIES: u64 = 4;
/// Every paragraph of this number is for validation.
const VALIDATION_EVERY: usize = 10;

/// A small encoder that takes up this task in a minute on a CPU.
pub(crate) fn settings() -> ConfigBuilder {
    Config::preset("bert-tiny")
        .set("tokenizer.vocab_size", 512)
        .set("data.text.seq_len", 64)
        .set("model.d_model", 64)
        .set("model.d_ff", 256)
        .set("model.positions", "rotary")
        .set("optim.lr", 6e-3)
        .set("optim.warmup_steps", 20)
}

/// The tokens that each token may be confused with. If a may be taken for b, b may be taken for a.
#[derive(Debug, Clone)]
pub(crate) struct Confusions {
    /// `[V, K]`, row by row.
    pub(crate) ids: Vec<i32>,
    /// K
    pub(crate) k: usize,
}

impl Confusions {
    /// Sorts the vocabulary by spelling. A token may be confused with the K / 2 tokens on either side.
    fn of(tokenizer: &TextTokenizer) -> Result<Self> {
        let spelled = (0..tokenizer.vocab_size() as u32).map(|id| Ok((tokenizer.decode(&[id])?, id)));
        let mut sorted = spelled.collect::<kiln_data::Result<Vec<_>>>()?;
        sorted.sort();
        Ok(Self::of_neighbours(&sorted.into_iter().map(|(_, id)| id).collect::<Vec<_>>()))
    }

    /// A token may be confused with the K / 2 tokens on either side in `sorted`, all tokens of the vocabulary.
    pub(crate) fn of_neighbours(sorted: &[u32]) -> Self {
        let v = sorted.len();
        let mut ids = vec![0; v * K];
        for (place, id) in sorted.iter().enumerate() {
            for (k, step) in (1..=K / 2).flat_map(|step| [step, v - step]).enumerate() {
                ids[*id as usize * K + k] = sorted[(place + step) % v] as i32;
            }
        }
        Self { ids, k: K }
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.ids.len() / self.k
    }

    fn of_token(&self, id: u32) -> &[i32] {
        &self.ids[id as usize * self.k..][..self.k]
    }
}

/// Rows with errors, and the same rows without.
pub(crate) struct Corrupted {
    rows: Vec<(Vec<i32>, Vec<i32>)>,
    /// Tokens of a row.
    row: usize,
    buckets: Buckets,
}

impl Corrupted {
    fn new(
        texts: &[&str],
        tokenizer: &TextTokenizer,
        confusions: &Confusions,
        config: &Config,
        copies: u64,
    ) -> Result<Self> {
        let ids = texts.iter().map(|text| tokenizer.encode(text)).collect::<kiln_data::Result<Vec<_>>>()?.concat();
        let row = match config.data.text.seq_len {
            0 => config.model.max_positions,
            len => len,
        };

        let mut random = Random(config.seed);
        let mut rows = Vec::new();
        for _ in 0..copies {
            for tokens in ids.chunks_exact(row) {
                let right = tokens.iter().map(|id| *id as i32).collect();
                let read = tokens.iter().map(|id| match random.below(ONE_OF) {
                    0 => confusions.of_token(*id)[random.below(confusions.k as u64) as usize],
                    _ => *id as i32,
                });
                rows.push((read.collect(), right));
            }
        }
        let buckets = Buckets::new(rows.iter().map(|_| (0, row)), (0, row), &config.loader)?;
        Ok(Self { rows, row, buckets })
    }

    /// The first rows: with errors, and without.
    pub(crate) fn first(&self, n: usize) -> &[(Vec<i32>, Vec<i32>)] {
        &self.rows[..n]
    }
}

impl BatchSource for Corrupted {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes())
    }

    fn fingerprint(&self) -> String {
        blake3::hash(format!("{:?}", self.rows).as_bytes()).to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(CorruptedWorker(self))
    }
}

/// Fills batches on one thread of the loader.
struct CorruptedWorker(Arc<Corrupted>);

impl BatchWorker for CorruptedWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        let (numbers, _) = plan.batch(index);
        let rows = || numbers.iter().map(|number| &self.0.rows[*number as usize]);
        let input = rows().flat_map(|row| row.0.clone()).collect();
        *batch = text_batch(input, rows().flat_map(|row| row.1.clone()).collect(), self.0.row);
        batch.rows = numbers.to_vec();
        Ok(())
    }
}

/// Makes a batch of full rows of `row` tokens.
pub(crate) fn text_batch(input: Vec<i32>, labels: Vec<i32>, row: usize) -> HostBatch {
    let n = input.len() / row;
    let positions = (0..n).flat_map(|_| 0..row as i32).collect();
    let parts = TextParts { input, labels, positions, documents: vec![0; n * row], lengths: vec![row as i32; n] };
    HostBatch::text(Shape::text(n, row), false, parts)
}

/// Everything that the run needs, and what the model must know.
pub(crate) struct Data {
    pub(crate) tokenizer: TextTokenizer,
    pub(crate) confusions: Confusions,
    pub(crate) train: Arc<Corrupted>,
    pub(crate) valid: Arc<Corrupted>,
}

impl Data {
    /// Reads the documentation, trains a vocabulary on the training part, and makes errors.
    pub(crate) fn make(config: &Config) -> Result<Self> {
        let documents = documentation()?;
        let paragraphs: Vec<&str> = documents.iter().flat_map(|text| text.split("\n\n")).collect();
        let part = |valid: bool| {
            let mine = move |(i, text)| ((i % VALIDATION_EVERY == 0) == valid).then_some(text);
            paragraphs.iter().copied().enumerate().filter_map(mine).collect::<Vec<&str>>()
        };
        let (train, valid) = (part(false), part(true));

        let texts: Vec<String> = train.iter().map(|text| (*text).to_owned()).collect();
        let tokenizer = TextTokenizer::train_on_documents(&config.tokenizer, &texts, 2)?;
        let confusions = Confusions::of(&tokenizer)?;
        let train = Arc::new(Corrupted::new(&train, &tokenizer, &confusions, config, COPIES)?);
        let valid = Arc::new(Corrupted::new(&valid, &tokenizer, &confusions, config, 1)?);
        Ok(Self { tokenizer, confusions, train, valid })
    }

    pub(crate) fn of_run(&self) -> RunData {
        RunData {
            valid: Some(self.valid.clone()),
            ..RunData::new(Vocabulary::Text(self.tokenizer.clone()), self.train.clone())
        }
    }
}

/// The pages of `docs/`, and those next to it.
fn documentation() -> Result<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<PathBuf> =
        fs::read_dir(root.join("docs"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)));
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).with_context(|| path.display().to_string())).collect()
}

/// Random numbers that are the same on every machine: SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}
